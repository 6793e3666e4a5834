/* Which nodes become one kernel: groups of graphs given as text, and the reason for every edge that is not fused. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "compile/explain.h"
#include "compile/fuse.h"
#include "compile/passes.h"
#include "compile/program.h"
#include "core/alloc.h"
#include "device/device.h"
#include "kernel/library.h"
#include "support/passes.h"

static const char *name_of(const rp__ir_node *n) { return n->kind == RP__IR_OP ? n->op->name : "assign"; }

static rp__device *chained_by; /* of expect: whose library is asked for chains of products; NULL: none are made */
static rp__device *summed_by;  /* of expect: whose library is asked for orders of products; NULL: that of chained_by */

/* groups: "sin+exp;sum", in the order in which they run. reasons: "a>b:reason;...", sorted as found; NULL: not looked at. */
static void expect(const char *text, const char *groups, const char *reasons) {
    rp_ir *parsed = test_parse(text), *joined = NULL, *wide = NULL, *ir = NULL;
    (void)rp__join_scatters(parsed, &joined);
    test_no_error();
    (void)rp__spread(joined, &wide);
    rp__ir_release(joined);
    test_no_error();
    (void)rp__cats_part(wide, &ir);
    (void)rp__cats_place(ir);
    rp__ir_release(wide);
    test_no_error();
    rp__fusion f;
    (void)rp__fuse(ir, summed_by ? summed_by : chained_by, false, &f);
    if (chained_by) (void)rp__fuse_chains(&f, chained_by);
    test_no_error();
    uint32_t *order = rp__calloc(f.n_groups + 1u, sizeof *order), n = 0;
    assert_int_equal(rp__fuse_order(&f, order, &n), RP_OK);
    rp__text got = {0}, why = {0};
    for (uint32_t g = 0; g < n; g++) {
        const rp__fuse_group *group = &f.groups[order[g]];
        for (uint32_t m = 0; m < group->n_members; m++) {
            const rp__ir_node *node = &ir->nodes[f.nodes[group->members[m]].node];
            rp__text_add(&got, "%s%s", m ? "+" : g ? ";" : "", name_of(node));
        }
    }
    for (uint32_t k = 0; k < f.n_unfused; k++) {
        const rp__unfused_edge *e = &f.unfused[k];
        if (f.nodes[e->producer].group == f.nodes[e->consumer].group) continue;
        assert_int_not_equal(rp__reason_find(e->reason), RP__REASON_NONE); /* every reason is in the table */
        rp__text_add(&why, "%s%s>%s:%s", why.length ? ";" : "", name_of(&ir->nodes[f.nodes[e->producer].node]),
                     name_of(&ir->nodes[f.nodes[e->consumer].node]), e->reason);
    }
    assert_string_equal(got.data ? got.data : "", groups);
    if (reasons) assert_string_equal(why.data ? why.data : "", reasons);
    rp__text_free(&got);
    rp__text_free(&why);
    rp__free(order);
    rp__fusion_free(&f);
    rp__ir_release(ir);
    rp_ir_release(parsed);
}

static void chains(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[8]) {\n"
           "  %2: f32[4, 8] = mul(%0, %1)\n"
           "  %3: f32[4, 8] = sin(%2)\n"
           "  %4: f32[8, 4] strides(1, 8) alias(%3) = permute(%3) {dims = [1, 0]}\n"
           "  %5: f32[8, 4] = exp(%4)\n"
           "  return %5\n"
           "}\n",
           "mul+sin+exp", "");
}

static void rows(void **state) {
    (void)state;
    expect(
        "graph \"f\" (%0: f32[4, 8]) {\n"
        "  %1: f32[4, 8] = gelu(%0)\n"
        "  %2: f32[4, 8], %3: f32[4, 1], %4: f32[4, 1] = native_layer_norm(%1, none, none) {normalized_shape = [8], eps = 1e-05}\n"
        "  %5: f32[4, 8] = softmax(%2) {dim = 1}\n"
        "  %6: f32[4] = sum(%5) {dim = [1], keepdim = false, dtype = none}\n"
        "  %7: f32[4] = neg(%6)\n"
        "  return %5, %7\n"
        "}\n",
        "gelu+native_layer_norm+softmax+sum+neg", "");
}

/* A scan along rows is one kernel with what makes and reads its elements, reductions of the same rows included; one that runs the
   other way is not. */
static void scans(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8]) {\n"
           "  %1: f32[4, 8] = softmax(%0) {dim = 1}\n"
           "  %2: f32[4, 8] = cumsum(%1) {dim = 1, dtype = none}\n"
           "  %3: f32[4, 8] = log(%2)\n"
           "  %4: f32[4] = sum(%3) {dim = [1], keepdim = false, dtype = none}\n"
           "  return %3, %4\n"
           "}\n",
           "softmax+cumsum+log+sum", "");
    expect("graph \"f\" (%0: f32[4, 8]) {\n"
           "  %1: f32[4, 8] = exp(%0)\n"
           "  %2: f32[4, 8] = cumsum_reversed(%1) {dim = 1}\n"
           "  %3: f32[4, 8] = neg(%2)\n"
           "  %4: f32[4, 8] = cumsum(%3) {dim = 1, dtype = none}\n"
           "  return %3, %4\n"
           "}\n",
           "exp+cumsum_reversed+neg;cumsum", "neg>cumsum:walks-the-other-way");
}

/* What is computed of an operand that is expanded along the rows is kept once a row: a sum of those rows joins a short formula of it, not a long one. */
static void expanded_rows(void **state) {
    (void)state;
    static const char *const text =
        "graph \"f\" (%%0: f64[4, 1], %%1: f64[4, 8]) {\n"
        "  %%2: f64[4, 8] strides(1, 0) alias(%%0) = expand(%%0) {size = [4, 8], implicit = false}\n"
        "  %%3: f64[4, 8] = %s(%%2)\n"
        "  %%4: f64[4, 8] = mul(%%3, %%1)\n"
        "  %%5: f64[4] = sum(%%4) {dim = [1], keepdim = false, dtype = none}\n"
        "  return %%5\n"
        "}\n";
    char few[512], many[512];
    (void)snprintf(few, sizeof few, text, "sin");
    (void)snprintf(many, sizeof many, text, "special_i0e");
    expect(few, "sin+mul+sum", "");
    expect(many, "special_i0e+mul;sum", "mul>sum:kernel-too-large");
    /* so it is where rows of a table are picked that is one value everywhere */
    expect("graph \"f\" (%0: f64[1], %1: i64[4], %2: f64[4, 8]) {\n"
           "  %3: f64[3, 8] strides(0, 0) alias(%0) = expand(%0) {size = [3, 8], implicit = false}\n"
           "  %4: f64[4, 8] = embedding(%3, %1)\n"
           "  %5: f64[4, 8] = special_i0e(%4)\n"
           "  %6: f64[4, 8] = mul(%5, %2)\n"
           "  %7: f64[4] = sum(%6) {dim = [1], keepdim = false, dtype = none}\n"
           "  return %7\n"
           "}\n",
           "embedding+special_i0e+mul;sum", "mul>sum:kernel-too-large");
    /* not where the rows are the same, but their elements are not */
    expect("graph \"f\" (%0: f64[8], %1: i64[4], %2: f64[4, 8]) {\n"
           "  %3: f64[3, 8] strides(0, 1) alias(%0) = expand(%0) {size = [3, 8], implicit = false}\n"
           "  %4: f64[4, 8] = embedding(%3, %1)\n"
           "  %5: f64[4, 8] = special_i0e(%4)\n"
           "  %6: f64[4, 8] = mul(%5, %2)\n"
           "  %7: f64[4] = sum(%6) {dim = [1], keepdim = false, dtype = none}\n"
           "  return %7\n"
           "}\n",
           "embedding+special_i0e+mul+sum", "");
    /* and where the place in a table stands still along the row */
    expect("graph \"f\" (%0: f64[4, 3], %1: i64[4, 1], %2: f64[4, 8]) {\n"
           "  %3: i64[4, 8] strides(1, 0) alias(%1) = expand(%1) {size = [4, 8], implicit = false}\n"
           "  %4: f64[4, 8] = gather(%0, %3) {dim = 1, sparse_grad = false}\n"
           "  %5: f64[4, 8] = special_i0e(%4)\n"
           "  %6: f64[4, 8] = mul(%5, %2)\n"
           "  %7: f64[4] = sum(%6) {dim = [1], keepdim = false, dtype = none}\n"
           "  return %7\n"
           "}\n",
           "gather+special_i0e+mul;sum", "mul>sum:kernel-too-large");
    expect("graph \"f\" (%0: f64[3, 1], %1: i64[4, 1], %2: f64[4, 8]) {\n"
           "  %3: i64[4, 8] strides(1, 0) alias(%1) = expand(%1) {size = [4, 8], implicit = false}\n"
           "  %4: f64[4, 8, 1] = embedding(%0, %3)\n"
           "  %5: f64[4, 8] strides(8, 1) alias(%4) = squeeze(%4) {dim = 2}\n"
           "  %6: f64[4, 8] = special_i0e(%5)\n"
           "  %7: f64[4, 8] = mul(%6, %2)\n"
           "  %8: f64[4] = sum(%7) {dim = [1], keepdim = false, dtype = none}\n"
           "  return %8\n"
           "}\n",
           "embedding+special_i0e+mul;sum", "mul>sum:kernel-too-large");
}

/* Behind a reduction of one element, without an inner dim, every value is one of a row. */
static void rows_of_one_element(void **state) {
    (void)state;
    static const char *const text = "graph \"f\" (%%0: f64[]) {\n"
                                    "  %%1: i64[] = argmax(%%0) {dim = none, keepdim = false}\n"
                                    "  %%2: f64[] = to_dtype(%%1) {dtype = f64, non_blocking = false, copy = false}\n"
                                    "  %%3: f64[] = %s(%%2)\n"
                                    "  return %%3\n"
                                    "}\n";
    char few[512], many[512];
    (void)snprintf(few, sizeof few, text, "sin");
    (void)snprintf(many, sizeof many, text, "i0");
    expect(few, "argmax+to_dtype+sin", "");
    expect(many, "argmax+to_dtype;i0", "to_dtype>i0:kernel-too-large");
}

static void different_rows(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8]) {\n"
           "  %1: f32[4, 8] = softmax(%0) {dim = 1}\n"
           "  %2: f32[8] = sum(%1) {dim = [0], keepdim = false, dtype = none}\n"
           "  return %2\n"
           "}\n",
           "softmax;sum", "softmax>sum:reduction-dims-differ");
}

/* On a CPU sums over the rows join what reduces along them, and take what follows from them alone along; but not where something of
   the rows reads them again, where there are few rows, or where rows do not lie in memory element after element. */
static void rows_and_columns(void **state) {
    (void)state;
    static const char *const text = "graph \"f\" (%%0: f32[%d, 64]%s) {\n"
                                    "  %%1: f32[%d, 64] = softmax(%%0) {dim = 1}\n"
                                    "  %%2: f32[64] = sum(%%1) {dim = [0], keepdim = false, dtype = none}\n"
                                    "  %%3: f32[64] = exp(%%2)\n"
                                    "  %%4: f32[%d, 64] = mul(%%1, %%3)\n"
                                    "  return %s\n"
                                    "}\n";
    char graph[1024];
    (void)snprintf(graph, sizeof graph, text, 256, "", 256, 256, "%1, %3");
    expect(graph, "softmax+sum+exp;mul", NULL);
    (void)snprintf(graph, sizeof graph, text, 256, "", 256, 256, "%4");
    expect(graph, "softmax+sum+exp;mul", "softmax>mul:reduction-dims-differ;exp>mul:reduction-dims-differ");
    (void)snprintf(graph, sizeof graph, text, 255, "", 255, 255, "%4");
    expect(graph, "softmax;sum+exp+mul", NULL);
    (void)snprintf(graph, sizeof graph, text, 256, " strides(1, 256)", 256, 256, "%4");
    expect(graph, "softmax;sum+exp+mul", NULL);
}

/* What is behind sums over the rows runs in a launch of its own, where every value is one of a row. */
static void much_behind_columns(void **state) {
    (void)state;
    static const char *const text = "graph \"f\" (%%0: f32[256, 64]) {\n"
                                    "  %%1: f32[256, 64] = softmax(%%0) {dim = 1}\n"
                                    "  %%2: f32[64] = sum(%%1) {dim = [0], keepdim = false, dtype = none}\n"
                                    "  %%3: f32[64] = %s(%%2)\n"
                                    "  %%4: f32[64] = %s(%%3)\n"
                                    "  return %%1, %%4\n"
                                    "}\n";
    char few[1024], many[1024];
    (void)snprintf(few, sizeof few, text, "sin", "exp");
    (void)snprintf(many, sizeof many, text, "special_i0e", "special_i0e");
    expect(few, "softmax+sum+sin+exp", "");
    expect(many, "softmax+sum;special_i0e+special_i0e", "sum>special_i0e:kernel-too-large");
}

/* Rows of one element have no dim of their own, so that all 16 may be rows. */
static void most_axes(void **state) {
    (void)state;
#define EIGHT "2, 2, 2, 2, 2, 2, 2, 2"
#define FOURTEEN "2, 2, 2, 2, 2, 2, " EIGHT
    expect("graph \"f\" (%0: f32[4, " FOURTEEN ", 1]) {\n"
           "  %1: f32[4, " FOURTEEN "] = sum(%0) {dim = [15], keepdim = false, dtype = none}\n"
           "  %2: f32[" EIGHT ", " EIGHT "] alias(%1) = view(%1) {size = [" EIGHT ", " EIGHT "]}\n"
           "  %3: f32[" EIGHT ", " EIGHT "] = relu(%2)\n"
           "  return %3\n"
           "}\n",
           "sum+relu", "");
    expect("graph \"f\" (%0: f32[4, " FOURTEEN ", 1]) {\n"
           "  %1: f32[4, " FOURTEEN "] = sum(%0) {dim = [15], keepdim = false, dtype = none}\n"
           "  %2: f32[4, " FOURTEEN "] = relu(%1)\n"
           "  return %2\n"
           "}\n",
           "sum+relu", "");
}

static void parts(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8]) {\n"
           "  %1: f32[4, 8] = exp(%0)\n"
           "  %2: f32[8] alias(%1) = select(%1) {dim = 0, index = 0}\n"
           "  %3: f32[8] = sin(%2)\n"
           "  return %3\n"
           "}\n",
           "exp;sin", "exp>sin:view-of-part");
}

/* What is read at computed places lies in memory; where it is read, and what comes of it, stay in registers. */
static void gathers(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[10, 8], %1: i64[4, 3], %2: f32[3, 8], %3: f32[4, 3, 1]) {\n"
           "  %4: i64[4, 3] = add_scalar(%1) {other = 2}\n"
           "  %5: f32[4, 3, 8] = embedding(%0, %4)\n"
           "  %6: f32[4, 3, 8] = add(%5, %2) {alpha = 1}\n"
           "  %7: f32[4, 3, 8] = mul(%6, %3)\n"
           "  %8: f32[4, 3] = sum(%7) {dim = [2], keepdim = false, dtype = none}\n"
           "  return %7, %8\n"
           "}\n",
           "add_scalar+embedding+add+mul+sum", "");
    /* positions are made from nothing, and so are never stored */
    expect("graph \"f\" (%0: f32[10, 8], %1: f32[10, 8], %2: i64[4, 3]) {\n"
           "  %3: i64[3] = arange() {start = 0, end = 3, step = 1, dtype = i64}\n"
           "  %4: f32[3, 8] = embedding(%0, %3)\n"
           "  %5: f32[4, 3, 8] = embedding(%1, %2)\n"
           "  %6: f32[4, 3, 8] = add(%5, %4) {alpha = 1}\n"
           "  return %6\n"
           "}\n",
           "arange+embedding+embedding+add", "");
    expect("graph \"f\" (%0: f32[4, 8], %1: i64[4, 1]) {\n"
           "  %2: f32[4, 8] = exp(%0)\n"
           "  %3: i64[4, 1] = relu(%1)\n"
           "  %4: f32[4, 1] = gather(%2, %3) {dim = 1}\n"
           "  %5: f32[4, 1] = neg(%4)\n"
           "  return %5\n"
           "}\n",
           "exp;relu+gather+neg", "exp>gather:gathered-operand");
    /* a part put into a whole: the whole may be computed here, the part lies in memory */
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[2, 8]) {\n"
           "  %2: f32[4, 8] = exp(%0)\n"
           "  %3: f32[2, 8] = sin(%1)\n"
           "  %4: f32[4, 8] = slice_scatter(%2, %3) {dim = 0, start = 1, end = 3, step = 1}\n"
           "  %5: f32[4, 8] = neg(%4)\n"
           "  return %5\n"
           "}\n",
           "sin;exp+slice_scatter+neg", "sin>slice_scatter:gathered-operand");
    /* an index is computed for each element that it picks, but stored once: rows of the embedding */
    expect("graph \"f\" (%0: f32[10, 8], %1: i64[4]) {\n"
           "  %2: i64[4] = add_scalar(%1) {other = 2}\n"
           "  %3: f32[4, 8] = embedding(%0, %2)\n"
           "  %4: f32[4, 8] = sin(%3)\n"
           "  return %4, %2\n"
           "}\n",
           "add_scalar+embedding+sin", "");
}

/* A kernel takes 64 nodes; every reader that is left over is told so. */
static void many_readers(void **state) {
    (void)state;
    enum { READERS = 100 };
    rp__text t = {0}, results = {0};
    rp__text_add(&t, "graph \"f\" (%%0: f32[8], %%1: f32[8]) {\n  %%2: f32[8] = exp(%%0)\n");
    for (int k = 0; k < READERS; k++) {
        rp__text_add(&t, "  %%%d: f32[8] = mul_scalar(%%2) {other = %d}\n", 3 + 2 * k, k + 2);
        rp__text_add(&t, "  %%%d: f32[8] = %s(%%%d)\n", 4 + 2 * k, k ? "sin" : "cos", 3 + 2 * k);
        rp__text_add(&results, "%s%%%d", k ? ", " : "", 4 + 2 * k);
    }
    rp__text_add(&t, "  return %s\n}\n", results.data);
    rp_ir *ir = test_parse(t.data);
    rp__fusion f;
    (void)rp__fuse(ir, summed_by ? summed_by : chained_by, false, &f);
    test_no_error();
    unsigned apart = 0, reasons = 0;
    for (uint32_t k = 1; k < f.n_nodes; k++) {
        bool reads_exp = ir->nodes[f.nodes[k].node].in[0] == ir->nodes[f.nodes[0].node].out[0];
        if (!reads_exp || f.nodes[k].group == f.nodes[0].group) continue;
        apart++;
        for (uint32_t i = 0; i < f.n_unfused; i++) reasons += f.unfused[i].producer == 0 && f.unfused[i].consumer == k;
    }
    assert_true(apart >= READERS - 64);
    assert_int_equal(reasons, apart);
    rp__fusion_free(&f);
    rp_ir_release(ir);
    rp__text_free(&t);
    rp__text_free(&results);
}

static void stores_are_not_repeated(void **state) {
    (void)state;
    /* %1 is a result: storing it once a row of %2 is one kernel; stored once a column it would be written again and again */
    expect("graph \"f\" (%0: f32[4, 1], %1: f32[4, 8]) {\n"
           "  %2: f32[4, 1] = exp(%0)\n"
           "  %3: f32[4, 8] = add(%1, %2) {alpha = 1}\n"
           "  return %2, %3\n"
           "}\n",
           "exp+add", "");
    expect("graph \"f\" (%0: f32[4, 1], %1: f32[1, 8]) {\n"
           "  %2: f32[4, 1] = exp(%0)\n"
           "  %3: f32[1, 8] = exp(%1)\n"
           "  %4: f32[4, 8] = add(%3, %2) {alpha = 1}\n"
           "  return %2, %3, %4\n"
           "}\n",
           "exp;exp+add", "exp>add:store-would-repeat");
}

static void libraries(void **state) {
    (void)state;
    summed_by = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    assert_non_null(summed_by);
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[4, 8] = neg(%0)\n"
           "  %3: f32[4, 8] = linear(%2, %1, none)\n"
           "  %4: f32[4, 8] = relu(%3)\n"
           "  %5: f32[4, 8] = add(%4, %2) {alpha = 1}\n"
           "  return %5\n"
           "}\n",
           "neg;linear+relu+add", "neg>linear:iteration-spaces-differ;neg>add:iteration-spaces-differ");
    summed_by = NULL;
}

/* A device whose library takes every chain of at most three products, and notes what it was asked. */
static unsigned asked;
static rp__chain_answer take_chain(rp__device *d, const rp__library_stage *stages, size_t n) {
    (void)d;
    asked++;
    for (size_t s = 0; s < n; s++) {
        assert_int_equal(stages[s].order, rp__order_of(RP__CONTRACT_PRODUCT, 0));
        assert_null(stages[s].o[0].base);
        if (s > 0) assert_int_equal(stages[s].o[1].size[1], stages[s - 1].o[0].size[1]);
    }
    return n > 3 ? RP__CHAIN_TOO_LARGE : RP__CHAIN_YES;
}

static rp__order our_order(rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                           const rp__library_call *call) {
    (void)d, (void)o, (void)n, (void)call;
    assert_int_equal(op, RP__LIB_MATMUL);
    return rp__order_of(RP__CONTRACT_PRODUCT, 0);
}

static void products(void **state) {
    (void)state;
    const rp__library library = {.chain = take_chain, .order = our_order};
    const rp__device_ops ops = {.library = &library};
    rp__device device = {.ops = &ops};
    static const char mlp[] = "graph \"f\" (%0: f32[10], %1: f32[64, 10], %2: f32[64], %3: f32[10, 64]) {\n"
                              "  %4: f32[64] = linear(%0, %1, %2)\n"
                              "  %5: f32[64] = relu(%4)\n"
                              "  %6: f32[10] = linear(%5, %3, none)\n"
                              "  %7: f32[10] = relu(%6)\n"
                              "  return %7\n"
                              "}\n";
    expect(mlp, "linear;relu;linear;relu", NULL); /* no device to ask */
    chained_by = &device;
    expect(mlp, "linear+relu+linear+relu", "");
    /* rows that others read are stored, and lie in memory as the next product reads them */
    expect("graph \"f\" (%0: f32[2, 3, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[2, 3, 8] = linear(%0, %1, none)\n"
           "  %3: f32[6, 8] alias(%2) = view(%2) {size = [6, 8]}\n"
           "  %4: f32[6, 8] = bmm(%3, %1)\n"
           "  %5: f32[2, 3, 8] = exp(%2)\n"
           "  return %4, %5, %2\n"
           "}\n",
           "linear+exp+bmm", "");
    /* what follows a product, whatever it is made of */
    expect("graph \"f\" (%0: f32[6, 8], %1: f32[8, 8], %2: f32[6, 8]) {\n"
           "  %3: f32[6, 8] = exp(%2)\n"
           "  %4: f32[6, 8] = bmm(%0, %1)\n"
           "  %5: f32[6, 8] = mul(%4, %3)\n"
           "  %6: f32[6, 8] = tanh(%5)\n"
           "  %7: f32[6, 8] = bmm(%6, %1)\n"
           "  %8: f32[6, 8] = add(%7, %2) {alpha = 1}\n"
           "  return %8\n"
           "}\n",
           "bmm+exp+mul+tanh+bmm+add", "");
    /* but for what another stage made: it may lie in no memory */
    expect("graph \"f\" (%0: f32[6, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[6, 8] = bmm(%0, %1)\n"
           "  %3: f32[6, 8] = tanh(%2)\n"
           "  %4: f32[6, 8] = bmm(%3, %1)\n"
           "  %5: f32[6, 8] = add(%4, %3) {alpha = 1}\n"
           "  return %5\n"
           "}\n",
           "bmm+tanh;bmm+add", "tanh>add:gathered-operand;tanh>bmm:products-meet");
    /* other rows: a transposed result; the product as a weight, as both operands; a weight made of it; what is too long */
    asked = 0;
    expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[8, 8] = bmm(%0, %1)\n"
           "  %3: f32[8, 8] strides(1, 8) alias(%2) = permute(%2) {dims = [1, 0]}\n"
           "  %4: f32[8, 8] = bmm(%3, %1)\n"
           "  return %4\n"
           "}\n",
           "bmm;bmm", "bmm>bmm:product-reads-other-rows");
    expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[8, 8] = bmm(%0, %1)\n"
           "  %3: f32[8, 8] = bmm(%1, %2)\n"
           "  return %3\n"
           "}\n",
           "bmm;bmm", "bmm>bmm:product-reads-other-rows");
    expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[8, 8] = bmm(%0, %1)\n"
           "  %3: f32[8, 8] = bmm(%2, %2)\n"
           "  return %3\n"
           "}\n",
           "bmm;bmm", "bmm>bmm:product-reads-other-rows");
    expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[8, 8] = bmm(%0, %1)\n"
           "  %3: f32[8, 8] = exp(%2)\n"
           "  %4: f32[8, 8] = bmm(%2, %3)\n"
           "  return %4\n"
           "}\n",
           "bmm+exp;bmm", "bmm>bmm:product-reads-other-rows;exp>bmm:product-reads-other-rows");
    assert_int_equal(asked, 1); /* about the first product and what follows it */
    expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[8, 8] = bmm(%0, %1)\n"
           "  %3: f32[8, 8] = bmm(%2, %1)\n"
           "  %4: f32[8, 8] = bmm(%3, %1)\n"
           "  %5: f32[8, 8] = bmm(%4, %1)\n"
           "  %6: f32[8, 8] = bmm(%5, %1)\n"
           "  return %6\n"
           "}\n",
           "bmm+bmm+bmm;bmm+bmm", "bmm>bmm:products-too-large");
    chained_by = NULL;
}

/* A device that makes no chains is asked about none: an edge between products keeps the reason that it had before. */
static void products_one_by_one(void **state) {
    (void)state;
    const rp__library library = {.order = our_order};
    const rp__device_ops ops = {.library = &library};
    rp__device device = {.ops = &ops};
    rp__device *const devices[] = {&device, rp__device_get((rp_device){RP_DEVICE_CPU, 0})};
    for (size_t k = 0; k < 2; k++) {
        chained_by = devices[k];
        assert_null(chained_by->ops->library->chain);
        expect("graph \"f\" (%0: f32[10, 10], %1: f32[64, 10], %2: f32[64], %3: f32[10, 64]) {\n"
               "  %4: f32[10, 64] = linear(%0, %1, %2)\n"
               "  %5: f32[10, 64] = relu(%4)\n"
               "  %6: f32[10, 10] = linear(%5, %3, none)\n"
               "  %7: f32[10, 10] = relu(%6)\n"
               "  return %7\n"
               "}\n",
               "linear+relu;linear+relu", k ? "relu>linear:reduction-dims-differ" : "relu>linear:gathered-operand");
        expect("graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
               "  %2: f32[8, 8] = bmm(%0, %1)\n"
               "  %3: f32[8, 8] = bmm(%2, %2)\n"
               "  return %3\n"
               "}\n",
               "bmm;bmm", k ? "bmm>bmm:iteration-spaces-differ" : "bmm>bmm:gathered-operand");
    }
    chained_by = NULL;
}

/* What follows a product stays with it where another product's kernel could make it as its factor too, whoever else reads the sum. */
static unsigned any_cost(rp__device *d, rp__library_op op, const rp__operand *o, size_t n, const rp__library_call *call,
                         rp__order order, unsigned k) {
    (void)d, (void)op, (void)o, (void)n, (void)call, (void)order, (void)k;
    return 1000;
}
static void products_and_factors(void **state) {
    (void)state;
    static const char siblings[] = "graph \"f\" (%0: f32[8, 8], %1: f32[8, 8]) {\n"
                                   "  %2: f32[8, 8] = bmm(%0, %1)\n"
                                   "  %3: f32[8, 8] = tanh(%2)\n"
                                   "  %4: f32[8, 8] = bmm(%3, %1)\n"
                                   "  %5: f32[8, 8] = exp(%2)\n"
                                   "  return %4, %5\n"
                                   "}\n";
    static const char gradients[] = "graph \"f\" (%0: f32[8, 8], %1: f32[8, 8], %2: f32[8, 8]) {\n"
                                    "  %3: f32[8, 8] = exp(%2)\n"
                                    "  %4: f32[8, 8] = bmm(%3, %1)\n"
                                    "  %5: f32[8, 8] = mul(%4, %3)\n"
                                    "  %6: f32[8, 8] = bmm(%5, %1)\n"
                                    "  return %6\n"
                                    "}\n";
    rp__library library = {.order = our_order, .factor_cost = any_cost};
    const rp__device_ops ops = {.library = &library};
    rp__device device = {.ops = &ops};
    chained_by = &device;
    /* without chains: the loop behind a product is its, not the next one's factor, and so is its sibling */
    expect(siblings, "bmm+tanh+exp;bmm", "tanh>bmm:reduction-dims-differ");
    /* a factor from outside is made where it is read by the product alone; the one that its own rest reads too is stored */
    expect(gradients, "exp;bmm+mul;bmm", NULL);
    library.chain = take_chain;
    expect(siblings, "bmm+tanh+exp+bmm", "");
    expect(gradients, "exp;bmm+mul+bmm", NULL);
    chained_by = NULL;
}

/* Denied memory is a failure of fusion, or changes nothing: never another plan. */
static void chains_without_memory(void **state) {
    (void)state;
    enum { CHAINS = 60 };
    const rp__library library = {.chain = take_chain, .order = our_order};
    const rp__device_ops ops = {.library = &library};
    rp__device device = {.ops = &ops};
    rp__text t = {0}, results = {0};
    rp__text_add(&t, "graph \"f\" (%%0: f32[8, 8], %%1: f32[8, 8]) {\n");
    for (int k = 0; k < CHAINS; k++) {
        const int v = 2 + 4 * k;
        rp__text_add(&t, "  %%%d: f32[8, 8] = bmm(%%0, %%1)\n  %%%d: f32[8, 8] = tanh(%%%d)\n", v, v + 1, v);
        rp__text_add(&t, "  %%%d: f32[8, 8] = bmm(%%%d, %%1)\n  %%%d: f32[8, 8] = exp(%%%d)\n", v + 2, v + 1, v + 3,
                     v + 2);
        rp__text_add(&results, "%s%%%d", k ? ", " : "", v + 3);
    }
    rp__text_add(&t, "  return %s\n}\n", results.data);
    rp_ir *ir = test_parse(t.data);
    unsigned denied = 0;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        rp__fusion f;
        assert_int_equal(rp__fuse(ir, &device, false, &f), RP_OK);
        const uint64_t before = rp__alloc_fail_at(n);
        const rp_status status = rp__fuse_chains(&f, &device);
        done = rp__alloc_fail_at(0) - before < n;
        assert_int_equal(status, done ? RP_OK : RP_ERROR_OUT_OF_MEMORY);
        assert_int_equal(rp_error_take(), status);
        denied += !done;
        for (uint32_t k = 0; k < f.n_nodes && done; k++) {
            const rp__fuse_group *g = &f.groups[f.nodes[k].group];
            assert_true(g->chain);
            assert_int_equal(g->n_members, 4);
        }
        rp__fusion_free(&f);
    }
    assert_true(denied > CHAINS); /* the space of a stage, each time */
    rp_ir_release(ir);
    rp__text_free(&t);
    rp__text_free(&results);
}

static void writes(void **state) {
    (void)state;
    /* the producer stores straight into the argument */
    expect("graph \"f\" (%0: f32[4]) {\n"
           "  %1: f32[4] = exp(%0)\n"
           "  assign(%0, %1)\n"
           "  return\n"
           "}\n",
           "exp+assign", "");
    /* not where another element of the argument is read by the same kernel */
    expect("graph \"f\" (%0: f32[4, 4]) {\n"
           "  %1: f32[4, 4] strides(1, 4) alias(%0) = permute(%0) {dims = [1, 0]}\n"
           "  %2: f32[4, 4] = exp(%1)\n"
           "  assign(%0, %2)\n"
           "  return\n"
           "}\n",
           "exp;assign", NULL);
}

/* Logits and their gradient meet over rows although a sum over all rows, and the count that both need, lie between them in the
   program: the count runs first, the sum and the bias gradient after. */
static void loss_and_gradient(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[64, 32], %1: f32[96, 32], %2: i64[64]) {\n"
           "  %3: f32[64, 96] = linear(%0, %1, none)\n"
           "  %4: f32[64], %5: f32[64], %6: f32[64] = cross_entropy_rows(%3, %2) {ignore_index = -100}\n"
           "  %7: f32[] = sum(%4) {dim = [], keepdim = false, dtype = none}\n"
           "  %8: b8[64] = eq_scalar(%2) {other = -100}\n"
           "  %9: b8[64] = logical_not(%8)\n"
           "  %10: i64[] = sum(%9) {dim = [], keepdim = false, dtype = none}\n"
           "  %11: f32[] = div(%7, %10)\n"
           "  %12: f32[] = full() {size = [], fill_value = 1, dtype = f32}\n"
           "  %13: f32[] = div(%12, %10)\n"
           "  %14: f32[64] strides(0) alias(%13) = expand(%13) {size = [64]}\n"
           "  %15: f32[64, 1] alias(%5) = unsqueeze(%5) {dim = -1}\n"
           "  %16: f32[64, 96] = sub(%3, %15) {alpha = 1}\n"
           "  %17: f32[64, 1] alias(%6) = unsqueeze(%6) {dim = -1}\n"
           "  %18: f32[64, 96] = sub(%16, %17) {alpha = 1}\n"
           "  %19: f32[64, 96] = exp(%18)\n"
           "  %20: f32[] = full() {size = [], fill_value = 0, dtype = f32}\n"
           "  %21: f32[64] = where(%8, %20, %14)\n"
           "  %22: i64[96] = arange() {start = 0, end = 96, step = 1, dtype = i64}\n"
           "  %23: i64[64, 1] alias(%2) = unsqueeze(%2) {dim = -1}\n"
           "  %24: b8[64, 96] = eq(%22, %23)\n"
           "  %25: f32[64, 96] = to_dtype(%24) {dtype = f32}\n"
           "  %26: f32[64, 96] = sub(%19, %25) {alpha = 1}\n"
           "  %27: f32[64, 1] alias(%21) = unsqueeze(%21) {dim = -1}\n"
           "  %28: f32[64, 96] = mul(%27, %26)\n"
           "  %29: f32[96] = sum(%28) {dim = [0], keepdim = false, dtype = none}\n"
           "  return %11, %28, %29\n"
           "}\n",
           "eq_scalar+logical_not+sum+full+div;linear;"
           "cross_entropy_rows+sub+sub+exp+full+where+arange+eq+to_dtype+sub+mul;sum+div;sum",
           NULL);
}

/* A row of softmax, its layer norm and the way back to the argument are one kernel: nothing leaves the row. */
static void rows_and_their_gradients(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[8, 64], %1: f32[8, 64]) {\n"
           "  %2: f32[8, 64] = softmax(%0) {dim = 1}\n"
           "  %3: f32[8, 64] = mul(%2, %1)\n"
           "  %4: f32[] = sum(%3) {dim = [], keepdim = false, dtype = none}\n"
           "  %5: f32[] = full() {size = [], fill_value = 1, dtype = f32}\n"
           "  %6: f32[8, 64] strides(0, 0) alias(%5) = expand(%5) {size = [8, 64]}\n"
           "  %7: f32[8, 64] = mul(%6, %1)\n"
           "  %8: f32[8, 64] = mul(%7, %2)\n"
           "  %9: f32[8, 1] = sum(%8) {dim = [1], keepdim = true, dtype = none}\n"
           "  %10: f32[8, 64] = mul(%2, %9)\n"
           "  %11: f32[8, 64] = sub(%8, %10) {alpha = 1}\n"
           "  return %4, %11\n"
           "}\n",
           "softmax+full+mul+mul+sum+mul+sub;mul+sum", NULL);
}

/* Constants are made where they are used: kernels that share nothing else stay independent, and nothing is stored. */
static void constants_are_everywhere(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[8, 8], %2: b8[4, 8]) {\n"
           "  %3: f32[] = full() {size = [], fill_value = 0, dtype = f32}\n"
           "  %4: f32[4, 8] = where(%2, %0, %3)\n"
           "  %5: f32[4, 8] = linear(%4, %1, none)\n"
           "  %6: f32[4, 8] = where(%2, %5, %3)\n"
           "  return %6\n"
           "}\n",
           "full+where;linear;full+where",
           "where>linear:product-served-elsewhere;linear>where:product-served-elsewhere");
    /* a library op and the caller read memory */
    expect("graph \"f\" (%0: f32[4, 8]) {\n"
           "  %1: f32[8, 8] = full() {size = [8, 8], fill_value = 2, dtype = f32}\n"
           "  %2: f32[4, 8] = linear(%0, %1, none)\n"
           "  %3: f32[4, 8] = mul(%2, %2)\n"
           "  return %3, %1\n"
           "}\n",
           "full;linear;mul", NULL);
}

/* Numbers are made from counters alone: on a GPU by each kernel that reads them, on a CPU once. */
static void numbers_are_drawn_again(void **state) {
    (void)state;
    static const char *const devices[] = {"", " cuda:0"};
    for (unsigned d = 0; d < 2; d++) {
        rp__text t = {0};
        rp__text_add(&t,
                     "graph \"f\" (%%0: f32[4, 8]%s, %%1: f32[8, 8]%s) {\n"
                     "  %%2: f32[4, 8]%s = rand() {size = [4, 8], dtype = f32, generator = none} random(0, 8)\n"
                     "  %%3: f32[4, 8]%s = add_scalar(%%2) {other = 0.5}\n"
                     "  %%4: f32[4, 8]%s = mul(%%0, %%3)\n"
                     "  %%5: f32[4, 8]%s = linear(%%4, %%1, none)\n"
                     "  %%6: f32[4, 8]%s = mul(%%5, %%3)\n"
                     "  return %%6\n"
                     "}\n",
                     devices[d], devices[d], devices[d], devices[d], devices[d], devices[d], devices[d]);
        expect(t.data, d ? "rand+add_scalar+mul;linear;rand+add_scalar+mul" : "rand+add_scalar+mul;linear;mul", NULL);
        rp__text_free(&t);
    }
}

/* A step counter costs no launch of its own where some kernel makes one row. */
static void numbers_ride_along(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[]) {\n"
           "  %2: f32[] = add_scalar(%1) {other = 1}\n"
           "  %3: f32[] = sum(%0) {dim = [], keepdim = false, dtype = none}\n"
           "  assign(%1, %2)\n"
           "  return %3\n"
           "}\n",
           "add_scalar+sum+assign", NULL);
    /* not when elements of the row are computed with what is overwritten: another thread may come late */
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[]) {\n"
           "  %2: f32[] = add_scalar(%1) {other = 1}\n"
           "  %3: f32[4, 8] = mul(%0, %1)\n"
           "  %4: f32[] = sum(%3) {dim = [], keepdim = false, dtype = none}\n"
           "  assign(%1, %2)\n"
           "  return %4\n"
           "}\n",
           "mul+sum;add_scalar+assign", NULL);
    /* nor among many rows: it would be stored by each */
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[]) {\n"
           "  %2: f32[] = add_scalar(%1) {other = 1}\n"
           "  %3: f32[4] = sum(%0) {dim = [1], keepdim = false, dtype = none}\n"
           "  assign(%1, %2)\n"
           "  return %3\n"
           "}\n",
           "add_scalar+assign;sum", NULL);
}

/* What is cheaply made of arguments and numbers of a row is made by each reader on a GPU, where a reader reads no more by that and nobody
 * writes the argument. */
static void cheap_values_are_made_again(void **state) {
    (void)state;
    static const struct {
        const char *type, *device, *end, *groups;
    } cases[] = {
        {"f32", " cuda:0", "", "amax+sub+mul+sum;sub+mul+sum"},
        {"bf16", " cuda:0", "", "amax+to_dtype+to_dtype+sub+mul+sum;to_dtype+to_dtype+sub+mul+sum"},
        {"f32", "", "", "amax+sub+mul+sum+sum"},
        {"f32", " cuda:0", "  %8: f32[512, 256] cuda:0 = neg(%4)\n  assign(%0, %8)\n",
         "amax+sub+mul+sum;neg+assign;sum"},
    };
    for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++) {
        const bool narrow = cases[k].type[0] == 'b';
        const char *d = cases[k].device;
        rp__text t = {0};
        rp__text_add(
            &t, "graph \"f\" (%%0: %s[512, 256]%s) {\n  %%1: %s[512, 1]%s = amax(%%0) {dim = [1], keepdim = true}\n",
            cases[k].type, d, cases[k].type, d);
        if (narrow)
            rp__text_add(
                &t,
                "  %%2: f32[512, 256]%s = to_dtype(%%0) {dtype = f32}\n  %%3: f32[512, 1]%s = to_dtype(%%1) {dtype = f32}\n",
                d, d);
        rp__text_add(
            &t,
            "  %%4: f32[512, 256]%s = sub(%%%d, %%%d)\n  %%5: f32[512, 256]%s = mul(%%4, %%4)\n"
            "  %%6: f32[512]%s = sum(%%5) {dim = [1], keepdim = false, dtype = none}\n"
            "  %%7: f32[256]%s = sum(%%5) {dim = [0], keepdim = false, dtype = none}\n%s  return %%6, %%7\n}\n",
            d, narrow ? 2 : 0, narrow ? 3 : 1, d, d, d, cases[k].end);
        expect(t.data, cases[k].groups, NULL);
        rp__text_free(&t);
    }
}

/* The same of what a node makes: of fewer bytes, as a gradient in bfloat16 that a norm reads twice, or of as many where both have several
 * readers; else each reader would read two tensors for one. */
static void narrow_values_cross(void **state) {
    (void)state;
    static const struct {
        const char *type, *device, *also, *groups;
    } cases[] = {
        {"bf16", " cuda:0", "", "exp+to_dtype+mul+sum;to_dtype+mul+sum"},
        {"bf16", "", "", "exp+to_dtype+mul+sum+sum"},
        {"f32", " cuda:0", "", "exp+mul+sum;sum"},
        {"f32", " cuda:0",
         "  %8: f32[4096] cuda:0 = sum(%2) {dim = [1], keepdim = false, dtype = none}\n"
         "  %9: f32[512] cuda:0 = sum(%2) {dim = [0], keepdim = false, dtype = none}\n",
         "exp+mul+sum+sum;mul+sum;sum"},
    };
    for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *d = cases[k].device, *type = cases[k].type;
        const bool narrow = type[0] == 'b', also = cases[k].also[0] != 0;
        rp__text t = {0};
        rp__text_add(&t, "graph \"f\" (%%0: %s[4096, 512]%s, %%1: f32[512]%s) {\n  %%2: %s[4096, 512]%s = exp(%%0)\n",
                     type, d, d, type, d);
        if (narrow) rp__text_add(&t, "  %%3: f32[4096, 512]%s = to_dtype(%%2) {dtype = f32}\n", d);
        rp__text_add(
            &t,
            "  %%4: f32[4096, 512]%s = mul(%%%d, %%1)\n"
            "  %%6: f32[4096]%s = sum(%%4) {dim = [1], keepdim = false, dtype = none}\n"
            "  %%7: f32[512]%s = sum(%%4) {dim = [0], keepdim = false, dtype = none}\n%s  return %%6, %%7%s\n}\n",
            d, narrow ? 3 : 2, d, d, cases[k].also, also ? ", %8, %9" : "");
        expect(t.data, cases[k].groups, NULL);
        rp__text_free(&t);
    }
}

/* On a GPU one block walks a row: elements are not stored along one long row, nor across memory. */
static void slow_rows(void **state) {
    (void)state;
    static const char *const devices[] = {"", " cuda:0"};
    static const struct {
        int rows, columns;
        const char *dims, *kept, *on_gpu;
    } cases[] = {{1, 1 << 20, "0, 1", "", "exp;sum"},
                 {4096, 1024, "0", "1024", "exp;sum"},
                 {4096, 1024, "1", "4096", "exp+sum"},
                 {1024, 4096, "0", "4096", "exp+sum"}, /* in registers */
                 {64, 96, "0", "96", "exp+sum"}};
    for (unsigned k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (unsigned d = 0; d < 2; d++) {
            rp__text t = {0};
            char type[64], sum[64];
            (void)snprintf(type, sizeof type, "f32[%d, %d]%s", cases[k].rows, cases[k].columns, devices[d]);
            (void)snprintf(sum, sizeof sum, "f32[%s]%s", cases[k].kept, devices[d]);
            rp__text_add(&t,
                         "graph \"f\" (%%0: %s) {\n"
                         "  %%1: %s = exp(%%0)\n"
                         "  %%2: %s = sum(%%1) {dim = [%s], keepdim = false, dtype = none}\n"
                         "  return %%1, %%2\n"
                         "}\n",
                         type, type, sum, cases[k].dims);
            const char *groups = d == 1 ? cases[k].on_gpu : "exp+sum";
            expect(t.data, groups, strcmp(groups, "exp;sum") == 0 ? "exp>sum:slow-rows" : "");
            rp__text_free(&t);
        }
    }
}

/* The mask of a relu is made by the backward, so that the relu itself is a part of the product's launch. */
static void what_follows_joins_the_product(void **state) {
    (void)state;
    summed_by = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    assert_non_null(summed_by);
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[8, 8]) {\n"
           "  %2: f32[4, 8] = linear(%0, %1, none)\n"
           "  %3: f32[4, 8] = relu(%2)\n"
           "  %4: f32[4, 8] = linear(%3, %1, none)\n"
           "  %5: b8[4, 8] = eq_scalar(%3) {other = 0}\n"
           "  %6: f32[] = full() {size = [], fill_value = 0, dtype = f32}\n"
           "  %7: f32[4, 8] = where(%5, %6, %4)\n"
           "  return %7\n"
           "}\n",
           "linear+relu+eq_scalar;linear+full+where",
           "eq_scalar>where:iteration-spaces-differ;relu>linear:iteration-spaces-differ");
    summed_by = NULL;
}

/* What a cat joins is stored in its part: by the kernel that makes it, also where others read it and where the cat is a part of
   another; copies are of what is not made here, is a result, or is a part already. */
static void cats(void **state) {
    (void)state;
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[4, 3]) {\n"
           "  %2: f32[4, 8] = sin(%0)\n"
           "  %3: f32[4, 8] = exp(%2)\n"
           "  %4: f32[4] = sum(%1) {dim = [1], keepdim = false, dtype = none}\n"
           "  %5: f32[4, 1] alias(%4) = unsqueeze(%4) {dim = 1}\n"
           "  %6: f32[4, 17] = cat([%2, %3, %5]) {dim = 1}\n"
           "  %7: f32[4, 17] = neg(%6)\n"
           "  return %7\n"
           "}\n",
           "sum+clone;sin+exp;cat;neg", "cat>neg:joined-in-memory");
    expect("graph \"f\" (%0: f32[4, 8], %1: f32[4, 8]) {\n"
           "  %2: f32[4, 8] = sin(%0)\n"
           "  %3: f32[12, 8] = cat([%2, %1, %0]) {dim = 0}\n"
           "  %4: f32[12, 8] = exp(%3)\n"
           "  %5: f32[12, 24] = cat([%3, %4, %4]) {dim = 1}\n"
           "  return %5\n"
           "}\n",
           "clone;sin+clone;cat;exp+clone;cat", "cat>exp:joined-in-memory;clone>cat:cat-of-outside");
    static const char products[] = "graph \"f\" (%0: f32[4, 8], %1: f32[3, 8]) {\n"
                                   "  %2: f32[4, 3] = linear(%0, %1, none)\n"
                                   "  %3: f32[4, 8] = exp(%0)\n"
                                   "  %4: f32[8, 3] = cat([%2, %2]) {dim = 0}\n"
                                   "  %5: f32[4, 11] = cat([%2, %3]) {dim = 1}\n"
                                   "  return %3, %4, %5\n"
                                   "}\n";
    expect(products, "linear;clone+clone;cat;exp+clone;cat",
           "linear>clone:product-served-elsewhere;linear>clone:product-served-elsewhere;clone>cat:cat-of-part;"
           "clone>cat:cat-of-part");
    /* a product that is a node of a kernel stores all parts */
    summed_by = rp__device_get((rp_device){RP_DEVICE_CPU, 0});
    assert_non_null(summed_by);
    expect(products, "linear+clone+clone;cat;exp+clone;cat", "");
    summed_by = NULL;
}

/* Cats within cats, as many as a loop of the program makes: a scatter into the last does not look through all of them. */
static void *part_cats(void *graphs) {
    rp_ir **ir = graphs;
    return rp__cats_part(ir[0], &ir[1]) == RP_OK && rp__cats_place(ir[1]) == RP_OK ? ir[1] : NULL;
}
static void deep_cats(void **state) {
    (void)state;
    enum { DEEP = 40000 };
    rp__text text = {0};
    rp_ir *ir[2] = {NULL, NULL};
    rp__text_add(&text, "graph \"f\" (%%0: f32[1], %%1: i64[3], %%2: f32[3]) {\n  %%3: f32[1] = sin(%%0)\n");
    for (int k = 0; k < DEEP; k++)
        rp__text_add(&text, "  %%%d: f32[%d] = cat([%%%d, %%0]) {dim = 0}\n", k + 4, k + 2, k + 3);
    rp__text_add(&text, "  %%%d: f32[%d] = scatter_add(%%%d, %%1, %%2) {dim = 0}\n  return %%%d\n}\n", DEEP + 4,
                 DEEP + 1, DEEP + 3, DEEP + 4);
    ir[0] = test_parse(text.data);
    pthread_attr_t small; /* a stack that does not hold a frame for each */
    pthread_t thread;
    void *parted = NULL;
    assert_int_equal(pthread_attr_init(&small), 0);
    assert_int_equal(pthread_attr_setstacksize(&small, 1 << 20), 0);
    assert_int_equal(pthread_create(&thread, &small, part_cats, ir), 0);
    assert_int_equal(pthread_join(thread, &parted), 0);
    pthread_attr_destroy(&small);
    assert_non_null(parted);
    rp__ir_release(ir[1]);
    rp_ir_release(ir[0]);
    rp__text_free(&text);
}

/* The gradient of a split is a cat; of parts that leave something out, or of one tensor read twice, it is a sum. */
static void splits(void **state) {
    (void)state;
    const char *const text =
        "graph \"f\" (%%0: f32[4, 8], %%1: f32[4, 3], %%2: f32[4, 5]) {\n"
        "  %%3: f32[4, 3] = sin(%%1)\n"
        "  %%4: f32[4, 5] = cos(%%2)\n"
        "  %%5: f32[4, 8] = full() {size = [4, 8], fill_value = %s, dtype = f32}\n"
        "  %%6: f32[4, 8] = slice_scatter(%%5, %%4) {dim = 1, start = 3, end = 9223372036854775807, step = 1}\n"
        "  %%7: f32[4, 8] = slice_scatter(%%5, %%3) {dim = 1, start = %s, end = %s, step = 1}\n"
        "  %%8: f32[4, 8] = add(%%6, %%7) {alpha = %s}\n"
        "  %%9: f32[4, 8] = mul(%%8, %%0)\n"
        "  return %%9\n"
        "}\n";
    char graph[1024];
    (void)snprintf(graph, sizeof graph, text, "0", "0", "3", "1");
    expect(graph, "sin+add_scalar;cos+add_scalar;cat;mul", "cat>mul:joined-in-memory");
    static const char *const sums[][4] = {{"0", "2", "5", "1"}, {"1", "0", "3", "1"}, {"0", "0", "3", "2"}};
    for (size_t k = 0; k < sizeof sums / sizeof *sums; k++) {
        (void)snprintf(graph, sizeof graph, text, sums[k][0], sums[k][1], sums[k][2], sums[k][3]);
        expect(graph, "sin;cos;full+slice_scatter+slice_scatter+add+mul", NULL);
    }
    expect("graph \"f\" (%0: f32[2, 8]) {\n"
           "  %1: f32[8] alias(%0) = select(%0) {dim = 0, index = 0}\n"
           "  %2: f32[8] = sin(%1)\n"
           "  %3: f32[8] = exp(%2)\n"
           "  %4: f32[2, 8] = full() {size = [2, 8], fill_value = 0, dtype = f32}\n"
           "  %5: f32[2, 8] = select_scatter(%4, %3) {dim = 0, index = -1}\n"
           "  %6: f32[2, 8] = select_scatter(%4, %2) {dim = 0, index = 0}\n"
           "  %7: f32[2, 8] = add(%5, %6) {alpha = 1}\n"
           "  return %7\n"
           "}\n",
           "sin+exp+add_scalar+add_scalar;cat", "");
}

/* ---- would a merge make a cycle? Random graphs, merged at random as long as there is no way around, against a plain search */

enum { PATH_NODES = 40 };

static bool way_around(const rp__fusion *f, uint32_t from, uint32_t to, uint32_t at, bool *seen) {
    for (uint32_t m = 0; m < f->groups[at].n_members; m++) {
        uint32_t node = f->groups[at].members[m];
        for (uint32_t s = 0; s < f->n_succ[node]; s++) {
            uint32_t next = f->nodes[f->succ[node][s]].group;
            if (next == to && at != from) return true;
            if (next == to || seen[next]) continue;
            seen[next] = true;
            if (way_around(f, from, to, next, seen)) return true;
        }
    }
    return false;
}

static void ways_around(void **state) {
    (void)state;
    uint32_t r = 12345, merges = 0, refused = 0;
    for (int round = 0; round < 200; round++) {
        rp__fuse_node nodes[PATH_NODES];
        rp__fuse_group groups[PATH_NODES];
        uint32_t succ[PATH_NODES][PATH_NODES], *lists[PATH_NODES], n_succ[PATH_NODES], of[PATH_NODES][PATH_NODES];
        memset(nodes, 0, sizeof nodes);
        memset(groups, 0, sizeof groups);
        rp__fusion f = {.nodes = nodes,
                        .n_nodes = PATH_NODES,
                        .groups = groups,
                        .n_groups = PATH_NODES,
                        .succ = lists,
                        .n_succ = n_succ};
        for (uint32_t k = 0; k < PATH_NODES; k++) {
            n_succ[k] = 0;
            lists[k] = succ[k];
            for (uint32_t j = k + 1; j < PATH_NODES; j++) {
                r = r * 1664525u + 1013904223u;
                if ((r >> 16) % 100 < 6) succ[k][n_succ[k]++] = j;
            }
            nodes[k].group = k;
            of[k][0] = k;
            groups[k] = (rp__fuse_group){.members = of[k], .n_members = 1};
        }
        rp__fuse_paths paths;
        assert_int_equal(rp__fuse_paths_begin(&paths, &f), RP_OK);
        for (int step = 0; step < 150; step++) {
            r = r * 1664525u + 1013904223u;
            uint32_t a = nodes[(r >> 8) % PATH_NODES].group, b = nodes[(r >> 20) % PATH_NODES].group;
            if (a == b) continue;
            bool seen[2][PATH_NODES] = {{false}};
            bool around = way_around(&f, a, b, a, seen[0]) || way_around(&f, b, a, b, seen[1]);
            assert_int_equal(rp__fuse_path_around(&paths, a, b), around);
            refused += around;
            if (around) continue;
            rp__fuse_paths_merge(&paths, a, b);
            for (uint32_t m = 0; m < groups[b].n_members; m++) {
                nodes[groups[b].members[m]].group = a;
                of[a][groups[a].n_members++] = groups[b].members[m];
            }
            groups[b].n_members = 0;
            merges++;
        }
        rp__fuse_paths_end(&paths);
    }
    assert_true(merges > 2000 && refused > 2000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient),
        cmocka_unit_test(rows_and_their_gradients),
        cmocka_unit_test(constants_are_everywhere),
        cmocka_unit_test(numbers_ride_along),
        cmocka_unit_test(numbers_are_drawn_again),
        cmocka_unit_test(what_follows_joins_the_product),
        cmocka_unit_test(slow_rows),
        cmocka_unit_test(cheap_values_are_made_again),
        cmocka_unit_test(narrow_values_cross),
        cmocka_unit_test(chains),
        cmocka_unit_test(rows),
        cmocka_unit_test(scans),
        cmocka_unit_test(expanded_rows),
        cmocka_unit_test(rows_of_one_element),
        cmocka_unit_test(different_rows),
        cmocka_unit_test(rows_and_columns),
        cmocka_unit_test(much_behind_columns),
        cmocka_unit_test(most_axes),
        cmocka_unit_test(parts),
        cmocka_unit_test(gathers),
        cmocka_unit_test(many_readers),
        cmocka_unit_test(stores_are_not_repeated),
        cmocka_unit_test(libraries),
        cmocka_unit_test(products),
        cmocka_unit_test(products_one_by_one),
        cmocka_unit_test(products_and_factors),
        cmocka_unit_test(chains_without_memory),
        cmocka_unit_test(writes),
        cmocka_unit_test(cats),
        cmocka_unit_test(deep_cats),
        cmocka_unit_test(splits),
        cmocka_unit_test(ways_around),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
