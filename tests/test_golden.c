/* Ops against results of PyTorch: tests/data/golden/ops.txt, written by scripts/golden.py, which says what the lines mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the four above */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/golden.h"
#include <reprise.h>

enum { MAX_TENSORS = 4, MAX_ATTRS = 8, LINE = 4096 };

typedef struct golden {
    char op[48];
    double tolerance;
    int n_in, n_attrs, n_out, line;
    rp_tensor *in[MAX_TENSORS], *out[MAX_TENSORS];
    rp_attr attrs[MAX_ATTRS];
    int64_t ints[MAX_ATTRS][8];
    bool error;
} golden;

static rp_dtype dtype_named(const char *name) {
    for (int d = 1; d <= RP_I16; d++) {
        if (strcmp(rp_dtype_name((rp_dtype)d), name) == 0) return (rp_dtype)d;
    }
    return RP_DTYPE_NONE;
}

/* "DTYPE NDIM SIZE... VALUE...": through float64 or int64, which hold every value exactly. */
static rp_tensor *read_tensor(char *text) {
    char *at;
    rp_dtype d = dtype_named(strtok_r(text, " \n", &at));
    int64_t size[RP_MAX_DIMS], n = 1;
    size_t ndim = (size_t)atoi(strtok_r(NULL, " \n", &at));
    for (size_t k = 0; k < ndim; k++) {
        size[k] = atoll(strtok_r(NULL, " \n", &at));
        n *= size[k];
    }
    double v[256];
    int64_t whole[256];
    assert_true(n <= 256);
    for (int64_t i = 0; i < n; i++) {
        v[i] = strtod(strtok_r(NULL, " \n", &at), NULL);
        whole[i] = isfinite(v[i]) ? (int64_t)v[i] : 0;
    }
    bool integral = d >= RP_I32;
    rp_tensor *t = integral ? rp_from_data(whole, size, ndim, RP_I64) : rp_from_data(v, size, ndim, RP_F64);
    return rp_to_dtype(t, d);
}

static void read_attr(golden *g, char *text) {
    char *at, *kind = strtok_r(text, " \n", &at), *word;
    rp_attr *a = &g->attrs[g->n_attrs];
    if (strcmp(kind, "ints") == 0) {
        *a = (rp_attr){.kind = RP_ATTR_INTS, .v.ints = g->ints[g->n_attrs]};
        while ((word = strtok_r(NULL, " \n", &at))) g->ints[g->n_attrs][a->n++] = atoll(word);
    } else if (strcmp(kind, "int") == 0) {
        *a = (rp_attr){.kind = RP_ATTR_INT, .v.i = atoll(strtok_r(NULL, " \n", &at))};
    } else if (strcmp(kind, "float") == 0) {
        *a = (rp_attr){.kind = RP_ATTR_FLOAT, .v.f = strtod(strtok_r(NULL, " \n", &at), NULL)};
    } else if (strcmp(kind, "bool") == 0) {
        *a = (rp_attr){.kind = RP_ATTR_BOOL, .v.b = atoi(strtok_r(NULL, " \n", &at)) != 0};
    } else if (strcmp(kind, "dtype") == 0) {
        *a = (rp_attr){.kind = RP_ATTR_DTYPE, .v.dtype = dtype_named(strtok_r(NULL, " \n", &at))};
    } else {
        assert_string_equal(kind, "scalar");
        word = strtok_r(NULL, " \n", &at);
        double v = strtod(strtok_r(NULL, " \n", &at), NULL);
        a->kind = RP_ATTR_SCALAR;
        a->v.scalar = strcmp(word, "int") == 0    ? rp_i64((int64_t)v)
                      : strcmp(word, "bool") == 0 ? rp_bool(v != 0)
                                                  : rp_f64(v);
    }
    g->n_attrs++;
}

static void compare(const golden *g, rp_tensor *got, rp_tensor *want) {
    bool same = rp_dtype_of(got) == rp_dtype_of(want) && rp_ndim(got) == rp_ndim(want);
    for (size_t d = 0; same && d < rp_ndim(got); d++) same = rp_size(got, (int64_t)d) == rp_size(want, (int64_t)d);
    if (!same)
        fail_msg("ops.txt:%d: %s: %s of rank %zu, expected %s of rank %zu, or a size differs", g->line, g->op,
                 rp_dtype_name(rp_dtype_of(got)), rp_ndim(got), rp_dtype_name(rp_dtype_of(want)), rp_ndim(want));
    double a[256], b[256];
    size_t bytes = (size_t)rp_numel(got) * sizeof *a;
    assert_int_equal(rp_to_host(rp_to_dtype(got, RP_F64), a, bytes), RP_OK);
    assert_int_equal(rp_to_host(rp_to_dtype(want, RP_F64), b, bytes), RP_OK);
    for (int64_t i = 0; i < rp_numel(got); i++) {
        bool close =
            a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) || fabs(a[i] - b[i]) <= g->tolerance * fmax(1, fabs(b[i]));
        if (!close)
            fail_msg("ops.txt:%d: %s: element %lld is %.17g, expected %.17g", g->line, g->op, (long long)i, a[i], b[i]);
    }
}

static void run(const golden *g) {
    rp_tensor *out[MAX_TENSORS];
    size_t n_out = g->error ? 1 : (size_t)g->n_out;
    rp_status status = rp_op_call(g->op, g->in, (size_t)g->n_in, g->attrs, (size_t)g->n_attrs, out, n_out);
    if (g->error) {
        if (status == RP_OK) fail_msg("ops.txt:%d: %s: PyTorch refuses what was accepted", g->line, g->op);
        (void)rp_error_take();
        return;
    }
    if (status != RP_OK) fail_msg("ops.txt:%d: %s", g->line, rp_error_message());
    for (int k = 0; k < g->n_out; k++) compare(g, out[k], g->out[k]);
}

static void test_golden(void **state) {
    (void)state;
    FILE *f = golden_open("ops.txt");
    static golden g;
    char line[LINE], rest[LINE];
    int calls = 0, n = 0;
    rp_scope scope = rp_scope_begin();
    while (fgets(line, sizeof line, f)) {
        n++;
        int used = 0;
        char word[16];
        assert_int_equal(sscanf(line, "%15s%n", word, &used), 1);
        (void)snprintf(rest, sizeof rest, "%s", line + used);
        if (strcmp(word, "op") == 0) {
            memset(&g, 0, sizeof g);
            g.line = n;
            assert_int_equal(sscanf(rest, "%47s %lf", g.op, &g.tolerance), 2);
        } else if (strcmp(word, "in") == 0) {
            g.in[g.n_in++] = read_tensor(rest);
        } else if (strcmp(word, "out") == 0) {
            g.out[g.n_out++] = read_tensor(rest);
        } else if (strcmp(word, "attr") == 0) {
            read_attr(&g, rest);
        } else if (strcmp(word, "error") == 0) {
            g.error = true;
        } else {
            assert_string_equal(word, "end");
            run(&g);
            calls++;
            assert_int_equal(rp_scope_end(scope, NULL, 0), RP_OK);
            scope = rp_scope_begin();
        }
    }
    (void)fclose(f);
    (void)rp_scope_end(scope, NULL, 0);
    assert_true(calls > 500);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
