/* Joint graph and min-cut partition on graphs as text: what is saved, what is computed again, what each half gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "compile/passes.h"
#include "core/text.h"
#include "ops/lower.h"
#include "support/passes.h"

typedef struct halves {
    rp_ir *ir;
    rp__joint joint;
    rp__partitioned parts;
} halves;

static void split(halves *h, const char *text, const uint32_t *leaves, uint32_t n) {
    h->ir = test_parse(text);
    (void)rp__joint_build(h->ir, NULL, leaves, n, UINT64_MAX, &h->joint);
    test_no_error();
    (void)rp__partition(&h->joint, false, &h->parts);
    test_no_error();
}
static void drop(halves *h) {
    rp__partitioned_free(&h->parts);
    rp__joint_free(&h->joint);
    rp_ir_release(h->ir);
}

/* A chain of cheap ops: the argument alone is saved, the chain is run again. */
static void chain_saves_its_argument(void **state) {
    (void)state;
    halves h;
    const uint32_t leaf = 0;
    split(&h,
          "graph \"f\" (%0: f32[64] grad) {\n"
          "  %1: f32[64] grad = sin(%0)\n"
          "  %2: f32[64] grad = exp(%1)\n"
          "  return %2\n"
          "}\n",
          &leaf, 1);
    assert_int_equal(h.parts.n_saved, 1);
    assert_int_equal(h.parts.saved[0].kind, RP__SAVED_ARG);
    assert_int_equal(h.parts.saved_bytes, 0);
    test_expect_graph(h.parts.forward, "graph \"f\" (%0: f32[64] grad) {\n"
                                       "  %1: f32[64] grad = sin(%0)\n"
                                       "  %2: f32[64] grad = exp(%1)\n"
                                       "  return %2\n"
                                       "}\n");
    test_expect_graph(h.parts.backward, "graph \"f\" (%0: f32[64] grad, %1: f32[64]) {\n"
                                        "  %2: f32[64] grad = sin(%0)\n"
                                        "  %3: f32[64] grad = exp(%2)\n"
                                        "  %4: f32[64] = mul(%1, %3)\n"
                                        "  %5: f32[64] = cos(%0)\n"
                                        "  %6: f32[64] = mul(%4, %5)\n"
                                        "  return %6\n"
                                        "}\n");
    drop(&h);
}

/* Matrix products are never run again: their result is saved where the backward needs it; parameters cost nothing. */
static void products_are_saved(void **state) {
    (void)state;
    halves h;
    const uint32_t leaves[] = {0, 1, 2};
    split(&h,
          "graph \"f\" (%0: f32[8, 16] grad, %1: f32[32, 16] grad, %2: f32[4, 32] grad) {\n"
          "  %3: f32[8, 32] grad = linear(%0, %1, none)\n"
          "  %4: f32[8, 32] grad = relu(%3)\n"
          "  %5: f32[8, 4] grad = linear(%4, %2, none)\n"
          "  return %5\n"
          "}\n",
          leaves, 3);
    unsigned results = 0, args = 0;
    for (uint32_t k = 0; k < h.parts.n_saved; k++) {
        results += h.parts.saved[k].kind == RP__SAVED_RESULT;
        args += h.parts.saved[k].kind == RP__SAVED_ARG;
    }
    assert_int_equal(results, 1);
    assert_int_equal(args, 3);
    assert_int_equal(h.parts.saved_bytes, 8 * 32 * 4);
    assert_int_equal(h.parts.forward->body.n_results, 2);
    assert_int_equal(h.parts.backward->body.n_results, 3);
    for (size_t k = 0; k < h.parts.backward->body.n_nodes; k++) {
        const rp__ir_node *n = &h.parts.backward->nodes[h.parts.backward->body.nodes[k]];
        for (uint32_t i = 0; i < n->n_out; i++) {
            assert_false(n->op == rp__op_find("linear") && h.parts.backward->values[n->out[i]].meta.size[1] == 4);
        }
    }
    drop(&h);
}

static void cut_random(halves *h, const char *text, rp_device_type device, bool keep_random) {
    const uint32_t leaf = 0;
    h->ir = test_parse(text);
    (void)rp__joint_build(h->ir, NULL, &leaf, 1, UINT64_MAX, &h->joint);
    test_no_error();
    rp_ir *parts;
    (void)rp__decompose(h->joint.ir, &parts);
    test_no_error();
    rp_ir_release(h->joint.ir);
    h->joint.ir = parts;
    for (size_t v = 0; v < parts->n_values; v++) parts->values[v].meta.device.type = device; /* there may be none */
    (void)rp__partition(&h->joint, keep_random, &h->parts);
    test_no_error();
}

/* Numbers are drawn again where that costs less than keeping them: on a GPU; not if the leaf draws as it runs. */
static void draws_are_repeated(void **state) {
    (void)state;
    static const struct {
        rp_device_type device;
        bool keep;
        unsigned draws;
    } cases[] = {{RP_DEVICE_CPU, false, 0}, {RP_DEVICE_CUDA, false, 1}, {RP_DEVICE_CUDA, true, 0}};
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        halves h;
        cut_random(&h,
                   "graph \"f\" (%0: f32[64] grad) {\n"
                   "  %1: f32[64] = randn() {size = [64], dtype = f32, generator = none} random(3, 16)\n"
                   "  %2: f32[64] grad = mul(%0, %1)\n"
                   "  return %2\n"
                   "}\n",
                   cases[c].device, cases[c].keep);
        unsigned draws = 0;
        for (size_t k = 0; k < h.parts.backward->body.n_nodes; k++) {
            const rp__ir_node *n = &h.parts.backward->nodes[h.parts.backward->body.nodes[k]];
            if (n->op != rp__op_find("randn")) continue;
            assert_int_equal(n->random_offset, 3);
            assert_int_equal(n->random_count, 16);
            draws++;
        }
        assert_int_equal(draws, cases[c].draws);
        assert_int_equal(h.parts.saved_bytes, draws ? 0 : 64 * 4);
        drop(&h);
    }
}

/* Of a dropout the mask is kept, a byte an element; it does not take the operand along. */
static void masks_are_kept(void **state) {
    (void)state;
    halves h;
    cut_random(
        &h,
        "graph \"f\" (%0: f32[8, 8] grad, %1: f32[8, 8]) {\n"
        "  %2: f32[8, 8] grad = linear(%0, %1, none)\n"
        "  %3: f32[8, 8] grad, %4: b8[8, 8] = native_dropout(%2) {p = 0.5, train = none, generator = none} random(3, 16)\n"
        "  return %3\n"
        "}\n",
        RP_DEVICE_CPU, false);
    assert_int_equal(h.parts.saved_bytes, 64);
    drop(&h);
}

/* y[i] = sum over j of x[j], as a loop of computed places: as large as its operand, and n times the work. */
static void lower_totals(rp__lower *lw) {
    const rp__call *call = rp__lw_call(lw);
    const rp_dim n = call->in[0]->size[0], size[2] = {n, n}, stride[2] = {0, call->in[0]->stride[0]};
    rp__lw_space(lw, size, 2, 2);
    rp__val x = rp__lw_load(lw, rp__lw_access(lw, false, 0, stride, false), RP__NO_VAL, RP__NO_VAL);
    rp__lw_out_row(lw, 0, rp__lw_reduce(lw, RP__REDUCE_SUM, x));
}
static rp_status cpu_nothing(void *ctx, const void *const *in, size_t n_in, void *const *out, size_t n_out,
                             rp_tensor *const *in_tensors, rp_tensor *const *out_tensors, const rp_attr *attrs,
                             size_t n_attrs) {
    (void)ctx, (void)in, (void)n_in, (void)out, (void)n_out, (void)in_tensors, (void)out_tensors, (void)attrs;
    (void)n_attrs;
    return RP_OK;
}

static bool runs(const rp_ir *ir, const char *op) {
    for (size_t k = 0; k < ir->body.n_nodes; k++)
        if (ir->nodes[ir->body.nodes[k]].op == rp__op_find(op)) return true;
    return false;
}

/* What a loop reads for each element that it gives decides whether it is run again, not what kind of loop it is. */
static void work_decides(void **state) {
    (void)state;
    const rp_op_descriptor descriptor = {
        .struct_size = sizeof descriptor, .schema = "test_totals(Tensor self) -> Tensor", .cpu = cpu_nothing};
    assert_int_equal(rp_op_register(&descriptor), RP_OK);
    rp__op *totals = (rp__op *)(uintptr_t)rp__op_find("test_totals");
    totals->lowering = RP__INDEXED;
    totals->rule.lower = lower_totals;
    static const struct {
        const char *op, *forward;
        bool again;
    } cases[] = {
        {"test_totals", "%2: f32[64] = test_totals(%0)", false},
        {"gather", "%2: f32[64] = gather(%0, %3) {dim = 0}", true},
        {"slice_scatter", "%2: f32[64] = slice_scatter(%0, %0) {dim = 0, start = 0, end = 64, step = 1}", true},
        {"softmax", "%2: f32[64] = softmax(%0) {dim = 0}", false},
        {"sin", "%2: f32[64] = sin(%0)", true},
    };
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        rp__text t = {0};
        rp__text_add(&t,
                     "graph \"f\" (%%0: f32[64], %%1: f32[64] grad, %%3: i64[64]) {\n"
                     "  %s\n"
                     "  %%4: f32[64] grad = mul(%%1, %%2)\n"
                     "  return %%4\n"
                     "}\n",
                     cases[c].forward);
        halves h;
        const uint32_t leaf = 1;
        split(&h, t.data, &leaf, 1);
        assert_true(runs(h.parts.forward, cases[c].op));
        if (runs(h.parts.backward, cases[c].op) != cases[c].again)
            fail_msg("%s is %s", cases[c].op, cases[c].again ? "kept" : "run again");
        assert_int_equal(h.parts.saved_bytes, cases[c].again ? 0 : 64 * 4);
        rp__text_free(&t);
        drop(&h);
    }
}

static void refusals(void **state) {
    (void)state;
    static const char *const graphs[] = {
        /* a result that carries a gradient although nothing that it is made of does */
        "graph \"f\" (%0: f32[4] grad) {\n  %1: f32[4] alias(%0) = detach(%0)\n  %2: f32[4] grad = exp(%1)\n  return %2\n}\n",
        /* an argument is written with what needs a gradient */
        "graph \"f\" (%0: f32[4] grad, %1: f32[4]) {\n"
        "  %2: f32[4] grad = sin(%0)\n"
        "  %3: f32[4] alias(%1) grad = copy_(%1, %2) {non_blocking = false}\n"
        "  return %2\n"
        "}\n",
    };
    for (unsigned k = 0; k < 2; k++) {
        rp_ir *ir = test_parse(graphs[k]);
        rp__joint joint;
        const uint32_t leaf = 0;
        assert_int_equal(rp__joint_build(ir, NULL, &leaf, 1, UINT64_MAX, &joint), RP_ERROR_UNAVAILABLE);
        (void)rp_error_take();
        rp_ir_release(ir);
    }
}

/* Buffers that are written: one that no gradient reads is not saved; of one that a gradient depends on, what was made of it is,
   however cheap it would be to make it again. Its old value by itself cannot be. */
static void written_buffers_are_not_saved(void **state) {
    (void)state;
    halves h;
    const uint32_t leaf = 0;
    split(&h,
          "graph \"f\" (%0: f32[64] grad, %1: f32[64]) {\n"
          "  %2: f32[64] = captured 0\n"
          "  %3: f32[64] = neg(%1)\n"
          "  %4: f32[64] grad = mul(%0, %3)\n"
          "  %5: f32[64] = mul_scalar(%2) {other = 0.5}\n"
          "  assign(%2, %5)\n"
          "  assign(%1, %5)\n"
          "  return %4\n"
          "}\n",
          &leaf, 1);
    assert_int_equal(h.parts.n_saved, 1);
    assert_int_equal(h.parts.saved[0].kind, RP__SAVED_RESULT);
    assert_int_equal(h.parts.saved[0].index, 1);
    test_expect_graph(h.parts.backward, "graph \"f\" (%0: f32[64], %1: f32[64]) {\n"
                                        "  %2: f32[64] = mul(%1, %0)\n"
                                        "  return %2\n"
                                        "}\n");
    drop(&h);
    static const char *const texts[] = {"graph \"f\" (%0: f32[4, 4] grad, %1: f32[4, 4]) {\n"
                                        "  %2: f32[4, 4] grad = mul(%0, %1)\n"
                                        "  %3: f32[4, 4] = neg(%1)\n"
                                        "  assign(%1, %3) @\"net.c:7\"\n"
                                        "  return %2\n"
                                        "}\n",
                                        "graph \"f\" (%0: f32[4, 4] grad) {\n"
                                        "  %1: f32[4, 4] = captured 0\n"
                                        "  %2: f32[4, 4] strides(1, 4) alias(%1) = transpose(%1) {dim0 = 0, dim1 = 1}\n"
                                        "  %3: f32[4, 4] grad = mul(%0, %2)\n"
                                        "  %4: f32[4, 4] = neg(%1)\n"
                                        "  assign(%1, %4) @\"net.c:7\"\n"
                                        "  return %3\n"
                                        "}\n"};
    for (unsigned k = 0; k < 2; k++) {
        h = (halves){.ir = test_parse(texts[k])};
        assert_int_equal(rp__joint_build(h.ir, NULL, &leaf, 1, UINT64_MAX, &h.joint), RP_ERROR_UNAVAILABLE);
        assert_non_null(strstr(rp_error_message(), "net.c:7"));
        (void)rp_error_take();
        drop(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chain_saves_its_argument),
                                       cmocka_unit_test(products_are_saved),
                                       cmocka_unit_test(draws_are_repeated),
                                       cmocka_unit_test(masks_are_kept),
                                       cmocka_unit_test(work_decides),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(written_buffers_are_not_saved)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
