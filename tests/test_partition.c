/* Joint graph and min-cut partition on graphs as text: what is saved, what is computed again, what each half gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "compile/passes.h"
#include "core/text.h"
#include "support/passes.h"

typedef struct halves {
    rp_ir *ir;
    rp__joint joint;
    rp__partitioned parts;
} halves;

static void split(halves *h, const char *text, const uint32_t *leaves, uint32_t n) {
    h->ir = test_parse(text);
    (void)rp__joint_build(h->ir, leaves, n, UINT64_MAX, &h->joint);
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

static void cut_random(halves *h, const char *text, bool keep_random) {
    const uint32_t leaf = 0;
    h->ir = test_parse(text);
    (void)rp__joint_build(h->ir, &leaf, 1, UINT64_MAX, &h->joint);
    test_no_error();
    rp_ir *parts;
    (void)rp__decompose(h->joint.ir, &parts);
    test_no_error();
    rp_ir_release(h->joint.ir);
    h->joint.ir = parts;
    (void)rp__partition(&h->joint, keep_random, &h->parts);
    test_no_error();
}

/* Numbers are drawn again where that costs less than keeping them: on a GPU; not if the leaf draws as it runs. */
static void draws_are_repeated(void **state) {
    (void)state;
    static const struct {
        const char *device;
        bool keep;
        unsigned draws;
    } cases[] = {{"", false, 0}, {" cuda:0", false, 1}, {" cuda:0", true, 0}};
    for (unsigned c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *d = cases[c].device;
        rp__text t = {0};
        rp__text_add(&t,
                     "graph \"f\" (%%0: f32[64]%s grad) {\n"
                     "  %%1: f32[64]%s = randn() {size = [64], dtype = f32, generator = none} random(3, 16)\n"
                     "  %%2: f32[64]%s grad = mul(%%0, %%1)\n"
                     "  return %%2\n"
                     "}\n",
                     d, d, d);
        halves h;
        cut_random(&h, t.data, cases[c].keep);
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
        rp__text_free(&t);
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
        false);
    assert_int_equal(h.parts.saved_bytes, 64);
    drop(&h);
}

static void refusals(void **state) {
    (void)state;
    static const char *const graphs[] = {
        /* a result that carries a gradient although nothing that it is made of does: a custom function */
        "graph \"f\" (%0: f32[4] grad) {\n  %1: f32[4] = sin(%0)\n  %2: f32[4] grad = exp(%1)\n  return %2\n}\n",
        /* an argument is written with what needs a gradient */
        "graph \"f\" (%0: f32[4] grad, %1: f32[4]) {\n  %2: f32[4] grad = sin(%0)\n  assign(%1, %2)\n  return %2\n}\n",
    };
    for (unsigned k = 0; k < 2; k++) {
        rp_ir *ir = test_parse(graphs[k]);
        rp__joint joint;
        const uint32_t leaf = 0;
        assert_int_equal(rp__joint_build(ir, &leaf, 1, UINT64_MAX, &joint), RP_ERROR_UNAVAILABLE);
        (void)rp_error_take();
        rp_ir_release(ir);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chain_saves_its_argument), cmocka_unit_test(products_are_saved),
                                       cmocka_unit_test(draws_are_repeated), cmocka_unit_test(masks_are_kept),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
