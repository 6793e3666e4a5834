/* Graphs as data (reprise_ir.h): reading every part of a traced graph, making graphs by hand and by types, and a backend of the
   test's own that runs what it is given through the public interface alone. */
#include "support/trace_help.h"

#include <stdlib.h>

#include "reprise_ir.h"

static void assert_error(rp_status status) { assert_int_equal(rp_error_take(), status); }

static rp_ir_value_info value_at(const rp_ir *ir, rp_ir_value v) {
    rp_ir_value_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_ir_value_get(ir, v, &info), RP_OK);
    return info;
}

static rp_ir_node node_at(const rp_ir *ir, uint32_t number) {
    rp_ir_node node = {.struct_size = sizeof node};
    assert_int_equal(rp_ir_node_get(ir, number, &node), RP_OK);
    return node;
}

/* The k-th node of a block. */
static rp_ir_node nth(const rp_ir *ir, const rp_ir_block *block, size_t k) {
    rp_ir_node node = {.struct_size = sizeof node};
    size_t at = 0;
    for (size_t i = 0; i <= k; i++) assert_true(rp_ir_next(ir, block, &at, &node));
    return node;
}

static size_t count_nodes(const rp_ir *ir, const rp_ir_block *block) {
    rp_ir_node node = {.struct_size = sizeof node};
    size_t n = 0;
    for (size_t at = 0; rp_ir_next(ir, block, &at, &node);) n++;
    return n;
}

/* ---- reading */

static void halves(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_slice(in[0], 0, 0, rp_sym_floordiv(rp_sym_size(in[0], 0), 2), 1);
}

/* Stands before every other test: nothing of the process has traced yet. */
static void test_symbols_before_any_trace(void **state) {
    (void)state;
    const rp_ir_type type = {.struct_size = sizeof type,
                             .dtype = RP_F32,
                             .device = rp_cpu(),
                             .ndim = 2,
                             .size = {6, 4},
                             .dynamic = {true, false}};
    rp_fn fn = {halves, NULL, 0, "halves"};
    rp_ir *ir = rp_trace_types(fn, &type, 1, 1);
    assert_false(rp_failed());
    rp_ir_release(ir);
}

struct layer {
    rp_tensor *w, *b;
};

static void layer_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    struct layer *l = ctx;
    rp_tensor *y = rp_tanh(rp_linear(in[0], l->w, l->b));
    rp_tensor *both[] = {y, rp_transpose(in[1], 0, 1)};
    out[0] = rp_cat(both, 2, 1);
    out[1] = NULL;
    rp_fill_(in[2], rp_f64(3));
}

static void test_reading(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    struct layer l = {rp_ones(RP_DIMS(4, 3)), rp_zeros(RP_DIMS(4))};
    assert_int_equal(rp_set_requires_grad(l.w, true), RP_OK);
    rp_tensor *in[] = {rp_ones(RP_DIMS(2, 3)), rp_ones(RP_DIMS(5, 2)),
                       rp_ones(RP_DIMS(2), RP_OPTIONS(rp_ones_options, .dtype = RP_F64))};
    rp_ir *ir = rp_trace((rp_fn){layer_body, &l, sizeof l, "layer"}, in, 3, 2);
    assert_ok();
    assert_string_equal(rp_ir_name(ir), "layer");
    const rp_ir_block *body = rp_ir_body(ir);
    const rp_ir_value *args, *results;
    assert_int_equal(rp_ir_block_args(body, &args), 3);
    assert_int_equal(rp_ir_block_results(body, &results), 2);
    assert_int_equal(results[1], RP_IR_NONE);

    rp_ir_value_info x = value_at(ir, args[0]), out = value_at(ir, results[0]);
    assert_int_equal(x.producer, RP_IR_NONE);
    assert_int_equal(x.index, 0);
    assert_int_equal(x.ndim, 2);
    assert_int_equal(x.size[1], 3);
    assert_false(x.requires_grad);
    assert_true(out.requires_grad);
    assert_int_equal(out.size[0], 2);
    assert_int_equal(out.size[1], 9);

    rp_ir_node cat = node_at(ir, out.producer);
    assert_string_equal(cat.op, "cat");
    assert_int_equal(cat.kind, RP_IR_OP);
    assert_non_null(strstr(cat.site, "test_ir_public.c:"));
    size_t first = 99;
    assert_int_equal(rp_ir_operands(ir, cat.number, "tensors", &first), 2);
    assert_int_equal(first, 0);
    assert_int_equal(rp_ir_attr(ir, cat.number, "dim")->v.i, 1);
    rp_ir_value_info turned = value_at(ir, cat.in[1]);
    assert_int_equal(turned.memory, value_at(ir, args[1]).memory);
    assert_false(turned.contiguous);
    assert_int_equal(turned.stride[0], 1);

    size_t captured = 0, writes = 0;
    rp_ir_node node = {.struct_size = sizeof node};
    for (size_t at = 0; rp_ir_next(ir, body, &at, &node);) {
        if (node.kind == RP_IR_CAPTURED) {
            assert_true(node.captured == l.w || node.captured == l.b);
            captured++;
        }
        for (size_t k = 0; k < node.n_in; k++) writes += rp_ir_node_writes(ir, node.number, k);
        assert_int_equal(node.n_regions, 0);
        if (strcmp(node.op, "fill_") == 0) {
            assert_true(node.has_effect);
            assert_int_equal(node.in[0], args[2]);
        }
    }
    assert_int_equal(captured, 2);
    assert_int_equal(writes, 1);
    rp_ir_release(ir);
    rp_scope_end(scope, NULL, 0);
}

static void twice(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_mul_scalar(in[0], rp_i64(2));
}
static void negative(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_neg(in[0]);
}
static void branch(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    (void)rp_cond(in[0], (rp_fn){twice, ctx, 0, "twice"}, (rp_fn){negative, ctx, 0, "negative"}, in + 1, 1, out, 1);
    out[0] = rp_add_scalar(out[0], rp_f64(0.5));
}

static void test_regions_and_numbers_out_of_range(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *in[] = {rp_full(RP_NO_DIMS, rp_bool(true), RP_OPTIONS(rp_full_options, .dtype = RP_BOOL)),
                       rp_ones(RP_DIMS(3))};
    rp_ir *ir = rp_trace((rp_fn){branch, NULL, 0, "branch"}, in, 2, 1);
    assert_ok();
    rp_ir_node cond = nth(ir, rp_ir_body(ir), 0);
    assert_int_equal(cond.kind, RP_IR_COND);
    assert_string_equal(cond.op, "");
    assert_int_equal(cond.n_regions, 2);
    const rp_ir_block *then = rp_ir_node_region(ir, cond.number, 0), *other = rp_ir_node_region(ir, cond.number, 1);
    assert_int_equal(count_nodes(ir, then), 1);
    assert_string_equal(nth(ir, then, 0).op, "mul_scalar");
    assert_string_equal(nth(ir, other, 0).op, "neg");
    assert_int_equal(rp_ir_block_args(then, NULL), 1);

    assert_null(rp_ir_node_region(ir, cond.number, 2));
    assert_error(RP_ERROR_INDEX);
    rp_ir_value_info info = {.struct_size = sizeof info};
    assert_int_equal(rp_ir_value_get(ir, (rp_ir_value)rp_ir_value_count(ir), &info), RP_ERROR_INDEX);
    assert_error(RP_ERROR_INDEX);
    rp_ir_node node = {.struct_size = sizeof node};
    assert_int_equal(rp_ir_node_get(ir, 1u << 30, &node), RP_ERROR_INDEX);
    assert_error(RP_ERROR_INDEX);
    node.struct_size = 8;
    assert_int_equal(rp_ir_node_get(ir, cond.number, &node), RP_ERROR_INVALID_ARGUMENT);
    assert_error(RP_ERROR_INVALID_ARGUMENT);
    assert_null(rp_ir_attr(ir, cond.number, "dim"));
    assert_error(RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_ir_operands(ir, nth(ir, then, 0).number, "nothing", NULL), 0);
    assert_error(RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_ir_block_args(NULL, NULL), 0);
    rp_ir_release(ir);
    rp_scope_end(scope, NULL, 0);
}

/* ---- by types, with symbols */

static void rows(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)ctx, (void)n_in, (void)n_out;
    out[0] = rp_reshape(rp_matmul(in[0], in[1]), RP_DIMS(-1));
}

static void test_types_and_symbols(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    const rp_ir_type types[] = {
        {sizeof *types, RP_F32, rp_cpu(), 2, {7, 4}, {true, false}, false},
        {sizeof *types, RP_F32, rp_cpu(), 2, {4, 3}, {false, false}, true},
    };
    rp_ir *ir = rp_trace_types((rp_fn){rows, NULL, 0, "rows"}, types, 2, 1);
    assert_ok();
    assert_int_equal(rp_ir_symbol_count(ir), 1);
    rp_ir_symbol s = {.struct_size = sizeof s};
    assert_int_equal(rp_ir_symbol_get(ir, 0, &s), RP_OK);
    assert_int_equal(s.arg, 0);
    assert_int_equal(s.dim, 0);
    assert_int_equal(s.hint, 7);
    const rp_ir_value *args, *results;
    (void)rp_ir_block_args(rp_ir_body(ir), &args), (void)rp_ir_block_results(rp_ir_body(ir), &results);
    rp_ir_value_info in0 = value_at(ir, args[0]), out = value_at(ir, results[0]);
    assert_true(rp_ir_is_symbolic(in0.size[0]));
    assert_false(rp_ir_is_symbolic(in0.size[1]));
    assert_int_equal(rp_ir_symbol_of(ir, in0.size[0]), 0);
    assert_int_equal(rp_ir_symbol_of(ir, out.size[0]), SIZE_MAX);
    assert_int_equal(rp_ir_size_hint(ir, out.size[0]), 21);
    char text[32];
    assert_int_equal(rp_ir_size_text(ir, out.size[0], text, sizeof text), 4);
    assert_string_equal(text, "s0*3");
    assert_int_equal(rp_ir_size_text(ir, out.size[0], text, 3), 4);
    assert_string_equal(text, "s0");

    rp_tensor *in[] = {rp_ones(RP_DIMS(5, 4)), rp_ones(RP_DIMS(4, 3))}, *y;
    int64_t symbols[1], value;
    assert_int_equal(rp_ir_symbols_of_args(ir, in, 2, symbols), RP_OK);
    assert_int_equal(symbols[0], 5);
    assert_int_equal(rp_ir_size_value(ir, out.size[0], symbols, &value), RP_OK);
    assert_int_equal(value, 15);
    symbols[0] = INT64_MAX / 2;
    assert_int_equal(rp_ir_size_value(ir, out.size[0], symbols, &value), RP_ERROR_SHAPE);
    assert_error(RP_ERROR_SHAPE);
    assert_int_equal(rp_ir_run(ir, in, 2, &y, 1), RP_OK);
    assert_int_equal(rp_size(y, 0), 15);
    rp_ir_release(ir);

    /* what types cannot be */
    rp_ir_type bad = types[0];
    bad.size[1] = -1;
    ir = rp_trace_types((rp_fn){rows, NULL, 0, "rows"}, &bad, 1, 1);
    assert_error(RP_ERROR_SHAPE);
    rp_ir_release(ir);
    bad = types[0];
    bad.dtype = RP_I64, bad.requires_grad = true;
    ir = rp_trace_types((rp_fn){rows, NULL, 0, "rows"}, &bad, 1, 1);
    assert_error(RP_ERROR_DTYPE);
    rp_ir_release(ir);
    rp_scope_end(scope, NULL, 0);
}

/* ---- by hand */

static void by_calls(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    rp_tensor *pair[] = {rp_mul(in[0], ctx), in[0]};
    out[0] = rp_reshape(rp_cat(pair, 2, 0), RP_DIMS(-1));
}

static void test_making(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *w = rp_full(RP_DIMS(3), rp_f64(2)), *x = rp_ones(RP_DIMS(2, 3)), *y, *z;
    rp_ir *ir = rp_ir_new("by_calls"), *traced = rp_trace((rp_fn){by_calls, w, 0, "by_calls"}, &x, 1, 1);
    const rp_ir_type type = {sizeof type, RP_F32, rp_cpu(), 2, {2, 3}, {false}, false};
    rp_ir_value a = rp_ir_add_arg(ir, &type), c = rp_ir_add_captured(ir, w), v[2], both[2];
    assert_int_equal(rp_ir_add_captured(ir, w), c);
    assert_int_equal(rp_ir_add_op(ir, "here:1", "mul", (rp_ir_value[]){a, c}, 2, NULL, 0, &both[0], 1), RP_OK);
    both[1] = a;
    const rp_attr dim = {.kind = RP_ATTR_INT, .v.i = 0};
    assert_int_equal(rp_ir_add_op(ir, "here:2", "cat", both, 2, &dim, 1, &v[0], 1), RP_OK);
    const int64_t flat[] = {-1};
    const rp_attr size = {.kind = RP_ATTR_INTS, .n = 1, .v.ints = flat};
    assert_int_equal(rp_ir_add_op(ir, "here:3", "reshape", v, 1, &size, 1, &v[1], 1), RP_OK); /* composite: a view */
    assert_int_equal(rp_ir_set_results(ir, &v[1], 1), RP_OK);
    assert_int_equal(rp_ir_check(ir), RP_OK);
    assert_true(rp_ir_equal(ir, traced));
    assert_int_equal(rp_ir_run(ir, &x, 1, &y, 1), RP_OK);
    assert_int_equal(rp_ir_run(traced, &x, 1, &z, 1), RP_OK);
    assert_int_equal(rp_item_i64(rp_sum(rp_ne(y, z))), 0);

    /* a failed op leaves the graph as it was, and says what it was about */
    rp_ir_value none;
    const rp_ir_type long_row = {sizeof type, RP_F32, rp_cpu(), 1, {5}, {false}, false};
    rp_ir *other = rp_ir_new("other");
    rp_ir_value p = rp_ir_add_arg(other, &type), q = rp_ir_add_arg(other, &long_row);
    assert_int_equal(rp_ir_add_op(other, "here:4", "add", (rp_ir_value[]){p, q}, 2, NULL, 0, &none, 1), RP_ERROR_SHAPE);
    assert_non_null(strstr(rp_error_message(), "here:4"));
    assert_error(RP_ERROR_SHAPE);
    assert_int_equal(none, RP_IR_NONE);
    assert_int_equal(count_nodes(other, rp_ir_body(other)), 0);
    assert_int_equal(rp_ir_add_op(other, NULL, "fill_", &p, 1, NULL, 0, &none, 1), RP_ERROR_INVALID_ARGUMENT);
    assert_error(RP_ERROR_INVALID_ARGUMENT);
    const rp_attr one = {.kind = RP_ATTR_SCALAR, .v.scalar = {RP_SCALAR_F64, {.f = 1}}};
    assert_int_equal(rp_ir_add_op(other, NULL, "fill_", &p, 1, &one, 1, &none, 1), RP_ERROR_UNAVAILABLE);
    assert_error(RP_ERROR_UNAVAILABLE);
    assert_int_equal(rp_ir_add_op(other, NULL, "no_such_op", &p, 1, NULL, 0, &none, 1), RP_ERROR_INVALID_ARGUMENT);
    assert_error(RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_ir_add_assign(other, NULL, p, q), RP_ERROR_SHAPE);
    assert_error(RP_ERROR_SHAPE);
    rp_ir *held = rp_ir_retain(other);
    assert_int_equal(rp_ir_add_arg(other, &type), RP_IR_NONE);
    assert_error(RP_ERROR_STATE);
    rp_ir_release(held);

    /* constants and writes */
    const float numbers[] = {1, 2, 3, 4, 5};
    const int64_t five[] = {5};
    rp_ir_value k = rp_ir_add_const(other, numbers, five, 1, RP_F32), sum;
    const rp_attr alpha = {.kind = RP_ATTR_SCALAR, .v.scalar = {RP_SCALAR_I64, {.i = 1}}};
    assert_int_equal(rp_ir_add_op(other, NULL, "add", (rp_ir_value[]){q, k}, 2, &alpha, 1, &sum, 1), RP_OK);
    assert_int_equal(rp_ir_add_assign(other, "here:9", q, sum), RP_OK);
    assert_int_equal(rp_ir_set_results(other, (rp_ir_value[]){sum, RP_IR_NONE}, 2), RP_OK);
    assert_int_equal(rp_ir_check(other), RP_OK);
    rp_tensor *in[] = {x, rp_ones(RP_DIMS(5))}, *out[2];
    assert_int_equal(rp_ir_run(other, in, 2, out, 2), RP_OK);
    assert_true(rp_item_f64(rp_select(in[1], 0, 4)) == 6);
    assert_null(out[1]);

    rp_ir_release(ir), rp_ir_release(traced), rp_ir_release(other);
    rp_scope_end(scope, NULL, 0);
}

/* ---- a backend that reads its graphs through the public interface */

struct program {
    rp_ir *ir;
};
static int compiled_graphs, ran_graphs;

static rp_status reader_compile(void *ctx, const rp_ir *graph, void **compiled) {
    (void)ctx;
    struct program *p = malloc(sizeof *p);
    if (!p) return RP_ERROR_OUT_OF_MEMORY;
    p->ir = rp_ir_retain(graph);
    compiled_graphs++;
    *compiled = p;
    return RP_OK;
}

/* Attributes with symbols replaced by this call's sizes. */
static rp_status bind_attrs(const rp_ir *ir, const rp_ir_node *n, const int64_t *symbols, rp_attr *attrs,
                            int64_t (*ints)[RP_MAX_DIMS]) {
    for (size_t k = 0; k < n->n_attrs; k++) {
        attrs[k] = n->attrs[k];
        rp_status status = RP_OK;
        if (attrs[k].kind == RP_ATTR_INT && rp_ir_is_symbolic(attrs[k].v.i))
            status = rp_ir_size_value(ir, n->attrs[k].v.i, symbols, &attrs[k].v.i);
        if (attrs[k].kind == RP_ATTR_INTS) {
            for (size_t i = 0; i < attrs[k].n && status == RP_OK; i++)
                status = rp_ir_size_value(ir, n->attrs[k].v.ints[i], symbols, &ints[k][i]);
            attrs[k].v.ints = ints[k];
        }
        if (status != RP_OK) return status;
    }
    return RP_OK;
}

static rp_status reader_run(void *ctx, void *compiled, rp_tensor *const *in, size_t n_in, rp_tensor **out,
                            size_t n_out) {
    (void)ctx;
    const rp_ir *ir = ((struct program *)compiled)->ir;
    rp_tensor **value = calloc(rp_ir_value_count(ir), sizeof *value), *operands[64];
    int64_t symbols[16];
    if (!value || rp_ir_symbol_count(ir) > 16) return RP_ERROR_OUT_OF_MEMORY;
    rp_status status = rp_ir_symbols_of_args(ir, in, n_in, symbols);
    const rp_ir_value *args, *results;
    (void)rp_ir_block_args(rp_ir_body(ir), &args), (void)rp_ir_block_results(rp_ir_body(ir), &results);
    for (size_t k = 0; k < n_in; k++) value[args[k]] = in[k];
    rp_ir_node n = {.struct_size = sizeof n};
    for (size_t at = 0; status == RP_OK && rp_ir_next(ir, rp_ir_body(ir), &at, &n);) {
        if (n.kind == RP_IR_CAPTURED) value[n.out[0]] = n.captured;
        if (n.kind == RP_IR_ASSIGN) (void)rp_copy_(value[n.in[0]], value[n.in[1]]);
        if (n.kind != RP_IR_OP) continue;
        rp_attr attrs[16];
        int64_t ints[16][RP_MAX_DIMS];
        rp_tensor *made[8];
        status = bind_attrs(ir, &n, symbols, attrs, ints);
        for (size_t k = 0; k < n.n_in; k++) operands[k] = n.in[k] == RP_IR_NONE ? NULL : value[n.in[k]];
        if (status == RP_OK) status = rp_op_call_at(n.site, n.op, operands, n.n_in, attrs, n.n_attrs, made, n.n_out);
        for (size_t k = 0; k < n.n_out && status == RP_OK; k++) value[n.out[k]] = made[k];
    }
    for (size_t k = 0; k < n_out && status == RP_OK; k++) out[k] = results[k] == RP_IR_NONE ? NULL : value[results[k]];
    free(value);
    ran_graphs++;
    return status;
}

static void reader_destroy(void *ctx, void *compiled) {
    (void)ctx;
    rp_ir_release(((struct program *)compiled)->ir);
    free(compiled);
}

struct net {
    rp_tensor *w1, *b1, *w2, *steps;
};

static void net_body(void *ctx, rp_tensor *const *in, size_t n_in, rp_tensor **out, size_t n_out) {
    (void)n_in, (void)n_out;
    struct net *n = ctx;
    bool grad = rp_set_grad_enabled(false);
    rp_add_scalar_(n->steps, rp_i64(1));
    (void)rp_set_grad_enabled(grad);
    rp_tensor *h = rp_gelu(rp_linear(in[0], n->w1, n->b1));
    out[0] = rp_mean(rp_softmax(rp_matmul(h, n->w2), -1), RP_DIMS(0));
}

static void test_backend(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    const rp_backend reader = {.struct_size = sizeof reader,
                               .name = "reader",
                               .compile = reader_compile,
                               .run = reader_run,
                               .destroy = reader_destroy};
    assert_int_equal(rp_register_backend(&reader), RP_OK);
    struct net n = {rp_randn(RP_DIMS(8, 4)), rp_randn(RP_DIMS(8)), rp_randn(RP_DIMS(8, 5)), rp_zeros(RP_NO_DIMS)};
    rp_fn fn = {net_body, &n, sizeof n, "net"};
    rp_compiled *f = rp_compile(fn, RP_OPTIONS(rp_compile_options, .backend = "reader", .strict = true)),
                *e = rp_plain(fn);
    for (int64_t b = 2; b < 7; b++) { /* from the second size on it is a symbol */
        rp_tensor *x = rp_randn(RP_DIMS(b, 4)), *y, *z;
        assert_int_equal(rp_call(f, &x, 1, &y, 1), RP_OK);
        assert_int_equal(rp_call(e, &x, 1, &z, 1), RP_OK);
        assert_int_equal(rp_item_i64(rp_sum(rp_ne(y, z))), 0);
    }
    assert_true(rp_item_f64(n.steps) == 10);
    assert_true(compiled_graphs >= 1 && compiled_graphs <= 5);
    assert_true(ran_graphs >= 4);
    rp_compiled_release(f), rp_compiled_release(e);
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symbols_before_any_trace),
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_regions_and_numbers_out_of_range),
        cmocka_unit_test(test_types_and_symbols),
        cmocka_unit_test(test_making),
        cmocka_unit_test(test_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
