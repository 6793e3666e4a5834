/* rp_sym_* and rp_num_*: sizes that a function reads without fixing them, and numbers calculated of them. A word is a number, or in a trace with symbolic sizes a symbol
   or an expression (core/dim.h); arithmetic keeps it one, questions are guards. */
#include "core/dim.h"
#include "core/dtype.h"
#include "tensor/tensor.h"

/* A word that this thread may use now; else an error that names the call. */
static bool usable(int64_t d, const char *op) {
    if (RP__LIKELY(rp__dim_known(d))) return true;
    rp__site_frame outer = rp__site_push(NULL, op);
    (void)rp__fail(RP_ERROR_STATE,
                   "%s: a symbolic size of another trace, or of one that has ended, was used (or a number below -2^62)",
                   op);
    rp__site_pop(outer);
    return false;
}

static int64_t apply(rp__dim_op what, int64_t a, int64_t b, const char *op) {
    return usable(a, op) && usable(b, op) ? rp__dim_apply(what, a, b) : 0;
}

int64_t rp_sym_add_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return apply(RP__DIM_ADD, a, b, "rp_sym_add");
}
int64_t rp_sym_sub_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return apply(RP__DIM_SUB, a, b, "rp_sym_sub");
}
int64_t rp_sym_mul_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return apply(RP__DIM_MUL, a, b, "rp_sym_mul");
}

/* Quotients and remainders are sizes to the rules of the table, which are never negative. */
static int64_t divide(rp__dim_op what, int64_t a, int64_t b, const char *op) {
    if (!usable(a, op) || !usable(b, op)) return 0;
    if (!rp__dim_is(RP__DIM_LE, 0, a) || !rp__dim_is(RP__DIM_LT, 0, b)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %lld by %lld: sizes are divided, by what is above 0", op,
                       (long long)rp__dim_hint(a), (long long)rp__dim_hint(b));
        return 0;
    }
    return rp__dim_apply(what, a, b);
}

int64_t rp_sym_floordiv_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return divide(RP__DIM_FLOORDIV, a, b, "rp_sym_floordiv");
}
int64_t rp_sym_mod_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return divide(RP__DIM_MOD, a, b, "rp_sym_mod");
}

/* Of two sizes, an expression; with a difference below 0, the one that it is in this call, guarded. */
static int64_t extreme(rp__dim_op what, int64_t a, int64_t b, const char *op) {
    if (!usable(a, op) || !usable(b, op)) return 0;
    if (rp__dim_is(RP__DIM_LE, 0, a) && rp__dim_is(RP__DIM_LE, 0, b)) return rp__dim_apply(what, a, b);
    return rp__dim_is(RP__DIM_LE, a, b) == (what == RP__DIM_MAX) ? b : a;
}

int64_t rp_sym_max_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return extreme(RP__DIM_MAX, a, b, "rp_sym_max");
}
int64_t rp_sym_min_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return extreme(RP__DIM_MIN, a, b, "rp_sym_min");
}

static bool is(rp__dim_relation relation, int64_t a, int64_t b, const char *op) {
    return usable(a, op) && usable(b, op) && rp__dim_is(relation, a, b);
}

bool rp_sym_eq_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return is(RP__DIM_EQ, a, b, "rp_sym_eq");
}
bool rp_sym_lt_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return is(RP__DIM_LT, a, b, "rp_sym_lt");
}
bool rp_sym_le_at(const char *site, int64_t a, int64_t b) {
    RP__CALLED_FROM(site);
    return is(RP__DIM_LE, a, b, "rp_sym_le");
}

int64_t rp_sym_guard_int_at(const char *site, int64_t a) {
    RP__CALLED_FROM(site);
    return usable(a, "rp_sym_guard_int") ? rp__dim_value(a) : 0;
}

/* A size that came as a number says that it is one; an operand that may not be used is an error. */
static bool number(rp_scalar *s, const char *op) {
    if (s->kind == RP_SCALAR_I64) *s = rp__scalar_dim(s->v.i);
    if (RP__LIKELY(rp__num_known(*s))) return true;
    rp__site_frame outer = rp__site_push(NULL, op);
    if (rp__scalar_is_symbol(*s))
        (void)rp__fail(RP_ERROR_STATE, "%s: a number of sizes of another trace, or of one that has ended, was used",
                       op);
    else
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: an operand is no number", op);
    rp__site_pop(outer);
    return false;
}

static rp_scalar calculated(rp__num_op what, rp_scalar a, rp_scalar b, const char *op) {
    return number(&a, op) && number(&b, op) ? rp__num_apply(what, a, b) : rp_i64(0);
}

rp_scalar rp_num_add_at(const char *site, rp_scalar a, rp_scalar b) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_ADD, a, b, "rp_num_add");
}
rp_scalar rp_num_sub_at(const char *site, rp_scalar a, rp_scalar b) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_SUB, a, b, "rp_num_sub");
}
rp_scalar rp_num_mul_at(const char *site, rp_scalar a, rp_scalar b) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_MUL, a, b, "rp_num_mul");
}
rp_scalar rp_num_div_at(const char *site, rp_scalar a, rp_scalar b) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_DIV, a, b, "rp_num_div");
}
rp_scalar rp_num_pow_at(const char *site, rp_scalar a, rp_scalar b) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_POW, a, b, "rp_num_pow");
}
rp_scalar rp_num_sqrt_at(const char *site, rp_scalar a) {
    RP__CALLED_FROM(site);
    return calculated(RP__NUM_SQRT, a, a, "rp_num_sqrt");
}
