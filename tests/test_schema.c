/* The schema parser, and what genops makes of the op table: parsed rows equal a fresh parse of their text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <string.h>

#include "ops/ops.h"

static void test_kinds(void **state) {
    (void)state;
    rp__schema s;
    assert_int_equal(
        rp__schema_parse("op_1(Tensor(a!) self, Tensor[] xs, Tensor? y, *, int k=-3, int? n=None, int[] size=[1, 2], "
                         "float f=1e-05, bool b=True, Scalar s=2, dtype dtype=bfloat16, Generator? g=None, str t=None) "
                         "-> (Tensor(a!), Tensor)",
                         &s),
        RP_OK);
    assert_string_equal(s.name, "op_1");
    assert_int_equal(s.n_params, 12);
    assert_int_equal(s.n_tensor_params, 3);
    assert_int_equal(s.n_attrs, 9);
    assert_int_equal(s.n_outs, 2);
    assert_true(s.params[0].written && !s.params[0].aliased && s.params[0].alias == 'a' &&
                s.params[0].kind == RP__PARAM_TENSOR);
    assert_int_equal(s.params[1].kind, RP__PARAM_TENSORS);
    assert_int_equal(s.params[2].kind, RP__PARAM_OPTIONAL_TENSOR);
    assert_true(s.params[3].has_default && s.params[3].value.v.i == -3);
    assert_true(s.params[4].optional && s.params[4].value.v.i == INT64_MIN);
    rp_attr size = rp__param_default(&s.params[5]);
    assert_true(size.kind == RP_ATTR_INTS && size.n == 2 && size.v.ints[0] == 1 && size.v.ints[1] == 2);
    assert_true(s.params[6].value.v.f == 1e-05);
    assert_true(s.params[7].value.v.b);
    assert_true(s.params[8].value.v.scalar.kind == RP_SCALAR_I64 && s.params[8].value.v.scalar.v.i == 2);
    assert_int_equal(s.params[9].value.v.dtype, RP_BF16);
    assert_int_equal(s.params[10].attr_kind, RP_ATTR_GENERATOR);
    assert_int_equal(s.params[11].attr_kind, RP_ATTR_STRING);
    assert_true(s.out_written[0] && s.out_alias[0] == 'a' && !s.out_written[1] && s.out_alias[1] == 0);
}

/* PyTorch's types: None of each, lists of a fixed size, what is given by name. */
static void test_types_of_pytorch(void **state) {
    (void)state;
    rp__schema s;
    assert_int_equal(
        rp__schema_parse(
            "op(Tensor?[] indices, SymInt[2] stride=1, int[1]? dim=None, Scalar? min=None, float? eps=None, "
            "bool? train=None, float[] scales, str mode=\"tanh\", *, ScalarType? dtype=None, "
            "Layout? layout=None, Device? device=None, MemoryFormat? memory_format=None, "
            "Generator? generator) -> (Tensor values, Tensor indices)",
            &s),
        RP_OK);
    assert_true(s.params[0].kind == RP__PARAM_TENSORS && s.params[0].optional);
    rp_attr stride = rp__param_default(&s.params[1]);
    assert_true(s.params[1].fixed == 2 && stride.n == 2 && stride.v.ints[0] == 1 && stride.v.ints[1] == 1);
    for (unsigned k = 2; k < 13; k++) {
        if (k == 6 || k == 7) continue;
        rp_attr none = rp__param_default(&s.params[k]);
        if (!s.params[k].optional || !s.params[k].has_default || !rp__attr_is_none(&none))
            fail_msg("%s is not None", s.params[k].name);
        assert_true(s.params[k].keyword == (k >= 8));
    }
    assert_true(s.params[4].attr_kind == RP_ATTR_SCALAR && s.params[4].type == RP__TYPE_FLOAT);
    assert_true(s.params[5].attr_kind == RP_ATTR_SCALAR && s.params[5].type == RP__TYPE_BOOL);
    assert_true(s.params[6].attr_kind == RP_ATTR_FLOATS && !s.params[6].has_default);
    assert_string_equal(rp__param_default(&s.params[7]).v.string, "tanh");
    assert_true(s.typed && s.n_outs == 2);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        rp_scalar_kind kind;
        double value;
    } cases[] = {{"f(Scalar x=1) -> Tensor", RP_SCALAR_I64, 1},
                 {"f(Scalar x=-7) -> Tensor", RP_SCALAR_I64, -7},
                 {"f(Scalar x=1.0) -> Tensor", RP_SCALAR_F64, 1},
                 {"f(Scalar x=1e3) -> Tensor", RP_SCALAR_F64, 1000},
                 {"f(Scalar x=False) -> Tensor", RP_SCALAR_BOOL, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp__schema s;
        assert_int_equal(rp__schema_parse(cases[i].text, &s), RP_OK);
        rp_scalar v = s.params[0].value.v.scalar;
        assert_int_equal(v.kind, cases[i].kind);
        assert_true((v.kind == RP_SCALAR_F64    ? v.v.f
                     : v.kind == RP_SCALAR_BOOL ? v.v.b
                                                : (double)v.v.i) == cases[i].value);
    }
}

/* Every failure says what was expected and where. */
static void test_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "expected an op name"},
        {"f", "expected '('"},
        {"f(", "unknown type"},
        {"f(Tensor", "expected a parameter name"},
        {"f(Tensor self", "expected ',' or ')'"},
        {"f(Tensor self)", "expected '->'"},
        {"f(Tensor self) -> ", "a result must be a Tensor"},
        {"f(Tensor self) -> Tensor[]", "a result may not be a list"},
        {"f(Tensor self) -> Tensor(a)", "no parameter has this alias set"},
        {"f(Tensor(a) self) -> Tensor(a!)", "no parameter has this alias set"},
        {"f(Tensor(A) self) -> Tensor", "an alias set must be one lower-case letter"},
        {"f(Tensor(a self) -> Tensor", "expected ')' after an alias set"},
        {"f(Tensor self, Tensor self) -> Tensor", "a second parameter of the same name"},
        {"f(Tensor self=None) -> Tensor", "a tensor has no default"},
        {"f(int k=x) -> Tensor", "expected an integer"},
        {"f(int k=99999999999999999999) -> Tensor", "expected an integer"},
        {"f(float k=) -> Tensor", "expected a number"},
        {"f(bool k=1) -> Tensor", "expected True or False"},
        {"f(dtype d=float33) -> Tensor", "expected a dtype name"},
        {"f(int[] k=[1,2,3,4,5]) -> Tensor", "at most 4 integers"},
        {"f(int[] k=[1) -> Tensor", "expected ']'"},
        {"f(Generator g) -> Tensor", "a Generator is always optional"},
        {"f(Tensor self) -> Tensor x", "text after the schema"},
        {"f(integer k) -> Tensor", "unknown type"},
        {"f(int aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) -> Tensor",
         "expected a parameter name of at most 31 letters"},
        {"f(int a,int b,int c,int d,int e,int f,int g,int h,int i,int j,int k,int l,int m,int n,int o,int p,int q) -> Tensor",
         "more than 16 parameters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp__schema s;
        assert_int_equal(rp__schema_parse(cases[i][0], &s), RP_ERROR_INVALID_ARGUMENT);
        if (!strstr(rp_error_message(), cases[i][1]))
            fail_msg("'%s': '%s' is not in '%s'", cases[i][0], cases[i][1], rp_error_message());
        assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    }
    rp__schema s;
    assert_int_equal(rp__schema_parse(NULL, &s), RP_ERROR_INVALID_ARGUMENT);
    (void)rp_error_take();
}

static bool same_param(const rp__param *a, const rp__param *b) {
    if (strcmp(a->name, b->name) != 0 || a->kind != b->kind || a->attr_kind != b->attr_kind ||
        a->optional != b->optional || a->written != b->written || a->aliased != b->aliased || a->alias != b->alias ||
        a->has_default != b->has_default || a->type != b->type || a->fixed != b->fixed || a->keyword != b->keyword)
        return false;
    if (a->kind != RP__PARAM_ATTR || !a->has_default) return true;
    rp_attr x = rp__param_default(a), y = rp__param_default(b);
    if (x.kind != y.kind || x.n != y.n) return false;
    switch (x.kind) {
    case RP_ATTR_INT: return x.v.i == y.v.i;
    case RP_ATTR_FLOAT: return x.v.f == y.v.f;
    case RP_ATTR_BOOL: return x.v.b == y.v.b;
    case RP_ATTR_SCALAR:
        return x.v.scalar.kind == y.v.scalar.kind &&
               (x.v.scalar.kind == RP_SCALAR_NONE || x.v.scalar.v.i == y.v.scalar.v.i);
    case RP_ATTR_DTYPE: return x.v.dtype == y.v.dtype;
    case RP_ATTR_INTS: return x.n == 0 || memcmp(x.v.ints, y.v.ints, x.n * sizeof *x.v.ints) == 0;
    default: return true;
    }
}

static void test_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < rp__op_builtin_count(); i++) {
        const rp__op *op = rp__op_table_at(i);
        rp__schema s;
        assert_int_equal(rp__schema_parse(op->schema_text, &s), RP_OK);
        assert_string_equal(s.name, op->name);
        assert_int_equal(s.n_params, op->schema.n_params);
        assert_int_equal(s.n_tensor_params, op->schema.n_tensor_params);
        assert_int_equal(s.n_attrs, op->schema.n_attrs);
        assert_int_equal(s.n_outs, op->schema.n_outs);
        assert_memory_equal(s.out_alias, op->schema.out_alias, sizeof s.out_alias);
        for (unsigned k = 0; k < s.n_params; k++) {
            if (!same_param(&s.params[k], &op->schema.params[k]))
                fail_msg("%s: parameter %s", op->name, s.params[k].name);
        }
        assert_ptr_equal(rp__op_find(op->name), op);
        assert_int_equal(op->index, i);
        bool written = false;
        for (unsigned k = 0; k < s.n_params; k++) written = written || s.params[k].written;
        assert_true(written == ((op->flags & RP_OP_INPLACE) != 0));
        assert_true((op->lowering == RP__VIEW) == ((op->flags & RP_OP_VIEW) != 0));
        if (op->functional_op) { /* the same parameters without the mutation */
            assert_string_equal(op->functional_op->name, op->functional);
            assert_int_equal(op->functional_op->schema.n_params, s.n_params);
            for (unsigned k = 0; k < s.n_params; k++)
                assert_string_equal(op->functional_op->schema.params[k].name, s.params[k].name);
        }
        assert_true(*op->doc != 0);
    }
    assert_null(rp__op_find("no_such_op"));
    assert_null(rp__op_find(NULL));
    assert_null(rp__op_table_at(rp__op_table_count()));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kinds), cmocka_unit_test(test_types_of_pytorch),
                                       cmocka_unit_test(test_numbers), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
