/* Scopes: who owns a handle and when it dies, on every order of ending and keeping, in threads and out of memory. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "tensor/tensor.h"

static rp_tensor *one(float value) { return rp_from_data(&value, RP_DIMS(1), RP_F32); }

static uint64_t live(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    rp_memory_stats_get(rp_cpu(), &s);
    return s.live_tensors;
}

static uint64_t in_root(void) {
    rp_memory_stats s = {.struct_size = sizeof s};
    rp_memory_stats_get(rp_cpu(), &s);
    return s.root_scope_tensors;
}

static void scopes_release_and_keep(void **state) {
    (void)state;
    uint64_t before = live();
    rp_scope outer = rp_scope_begin();
    rp_scope inner = rp_scope_begin();
    rp_tensor *a = one(1), *b = one(2), *c = one(3);
    assert_int_equal(live(), before + 3);
    assert_int_equal(rp_scope_end(inner, (rp_tensor *[]){b, NULL, rp__tensor_error()}, 3), RP_OK);
    assert_int_equal(live(), before + 1);
    assert_int_equal(rp_item_i64(b), 2);
    rp_item(a);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    rp_item(c);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_int_equal(rp_scope_end(outer, NULL, 0), RP_OK);
    assert_int_equal(live(), before);
}

static void retained_handles_outlive_scopes(void **state) {
    (void)state;
    uint64_t before = live();
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = rp_retain(one(5));
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(rp_item_i64(t), 5);
    rp_release(t);
    assert_int_equal(live(), before);
}

/* What belongs to a tensor that goes with its scope, and is to be kept. */
static void gradients_are_kept(void **state) {
    (void)state;
    enum { N = 40 };
    rp_scope outer = rp_scope_begin();
    rp_tensor *kept[N], *before = rp_ones(RP_DIMS(2));
    for (size_t n = 1; n <= N; n += N - 1) { /* a short list and a long one */
        rp_scope scope = rp_scope_begin();
        for (size_t k = 0; k < n; k++) {
            rp_tensor *x = rp_full(RP_DIMS(2), rp_f64((double)k));
            rp_set_requires_grad(x, true);
            rp_backward(rp_sum(rp_mul(x, x)), NULL, NULL);
            kept[k] = k % 4 == 3 ? x : rp_grad_of(x);
        }
        if (n > 1) kept[1] = kept[0];
        if (n > 2) kept[2] = before;
        assert_int_equal(rp_scope_end(scope, kept, n), RP_OK);
        for (size_t k = 0; k < n; k++) {
            float v[2] = {-1, -1};
            assert_int_equal(rp_to_host(kept[k], v, sizeof v), RP_OK);
            assert_true(v[0] == (k == 1 ? 0 : k == 2 ? 1 : k % 4 == 3 ? (float)k : 2 * (float)k));
        }
    }
    /* not a day longer: one that the program holds as well is released by it */
    rp_scope scope = rp_scope_begin();
    rp_tensor *x = rp_retain(rp_ones(RP_DIMS(2)));
    rp_scope_end(scope, NULL, 0);
    scope = rp_scope_begin();
    rp_scope_end(scope, &x, 1);
    rp_memory_stats a = {.struct_size = sizeof a}, b = a;
    rp_memory_stats_get(rp_cpu(), &a);
    rp_release(x);
    rp_memory_stats_get(rp_cpu(), &b);
    assert_int_equal(b.live_tensors, a.live_tensors - 1);
    rp_scope_end(outer, NULL, 0);
}

static void inner_scopes_end_with_outer_ones(void **state) {
    (void)state;
    uint64_t before = live();
    rp_scope outer = rp_scope_begin();
    one(1);
    rp_scope middle = rp_scope_begin();
    one(2);
    rp_scope inner = rp_scope_begin();
    one(3);
    assert_int_equal(rp_scope_end(outer, NULL, 0), RP_OK);
    assert_int_equal(live(), before);
    assert_int_equal(rp_scope_end(middle, NULL, 0), RP_ERROR_STATE);
    assert_int_equal(rp_scope_end(inner, NULL, 0), RP_ERROR_STATE);
    assert_int_equal(rp_scope_end((rp_scope){0}, NULL, 0), RP_ERROR_STATE);
    rp_error_take();
    rp_scope again = rp_scope_begin();
    assert_int_not_equal(again.id, outer.id);
    assert_int_equal(rp_scope_end(again, NULL, 1), RP_ERROR_INVALID_ARGUMENT);
    rp_error_take();
    rp_tensor *one_of_many = one(1);
    assert_int_equal(rp_scope_end(again, &one_of_many, SIZE_MAX), RP_ERROR_INVALID_ARGUMENT); /* nothing is that long */
    assert_int_equal(rp_scope_end(again, &one_of_many, SIZE_MAX / 4), RP_ERROR_INVALID_ARGUMENT);
    assert_int_equal(rp_item_i64(one_of_many), 1); /* and the scope is still open */
    rp_error_take();
    assert_int_equal(rp_scope_end(again, NULL, 0), RP_OK);
}

static void the_root_scope_is_counted(void **state) {
    (void)state;
    uint64_t before = in_root();
    rp_tensor *t = one(1), *u = one(2);
    assert_int_equal(in_root(), before + 2);
    rp_scope scope = rp_scope_begin();
    one(3);
    assert_int_equal(in_root(), before + 2);
    rp_scope_end(scope, NULL, 0);
    rp_release(rp__tensor_unscope(t)); /* leaves a hole under u */
    assert_int_equal(in_root(), before + 1);
    rp_release(rp__tensor_unscope(u));
    assert_int_equal(in_root(), before);
}

static void handles_enter_scopes_more_than_once(void **state) {
    (void)state;
    uint64_t before = live();
    rp_scope outer = rp_scope_begin();
    rp_tensor *t = one(7);
    rp_scope inner = rp_scope_begin();
    for (int i = 0; i < 5; i++) assert_ptr_equal(rp__tensor_enter_scope(t), t);
    assert_int_equal(t->refs, 6);
    assert_int_equal(t->retained, 0);
    rp_scope_end(inner, &t, 1); /* one of the five moves out, the others go */
    assert_int_equal(t->refs, 2);
    assert_int_equal(t->retained, 0);
    rp_release(t);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    rp__tensor_unscope(t);
    rp_release(t);
    assert_int_equal(t->refs, 1);
    assert_int_equal(rp_item_i64(t), 7);
    rp_scope_end(outer, NULL, 0);
    assert_int_equal(live(), before);
}

/* A long loop that moves handles out of the scope must not make the list grow with its holes. */
static void holes_are_reused(void **state) {
    (void)state;
    uint64_t before = live();
    rp_scope scope = rp_scope_begin();
    rp_tensor *held[4] = {0};
    for (int i = 0; i < 10000; i++) {
        rp_tensor *t = one((float)i);
        rp_tensor *u = one((float)i); /* stays above: t's entry becomes a hole */
        if (held[i % 4]) rp_release(held[i % 4]);
        held[i % 4] = rp__tensor_unscope(t);
        if (i % 2) rp_release(rp__tensor_unscope(u));
    }
    rp_scope deeper = rp_scope_begin();
    for (int i = 0; i < 5000; i++) one(1);
    rp_scope_end(deeper, NULL, 0);
    assert_int_equal(live(), before + 5000 + 4);
    rp_scope_end(scope, NULL, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rp_item_i64(held[i]), 9996 + i);
        rp_release(held[i]);
    }
    assert_int_equal(live(), before);
}

static void a_slot_is_not_reused_at_once(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *t = one(1);
    rp_scope_end(scope, NULL, 0);
    for (int i = 0; i < RP__QUARANTINE; i++) {
        scope = rp_scope_begin();
        assert_ptr_not_equal(one(2), t);
        rp_scope_end(scope, NULL, 0);
    }
    rp_ndim(t);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
}

typedef struct handover {
    rp_tensor *retained, *lost;
    rp_scope scope;
} handover;

static void *thread_body(void *argument) {
    handover *h = argument;
    h->lost = one(1); /* in the thread's root scope */
    h->scope = rp_scope_begin();
    one(2);
    h->retained = rp_retain(one(3));
    return NULL;
}

static void a_thread_ends_its_scopes(void **state) {
    (void)state;
    uint64_t before = live();
    pthread_t thread;
    handover h;
    assert_int_equal(pthread_create(&thread, NULL, thread_body, &h), 0);
    pthread_join(thread, NULL);
    assert_int_equal(live(), before + 1);
    assert_int_equal(rp_item_i64(h.retained), 3);
    rp_item(h.lost);
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_int_equal(rp_scope_end(h.scope, NULL, 0), RP_ERROR_STATE); /* another thread's */
    rp_error_take();
    rp_release(h.retained);
    assert_int_equal(live(), before);
}

/* Deep nesting allocates; when that fails, what is made lives in the scope around. */
static void a_scope_that_cannot_begin(void **state) {
    (void)state;
    rp_scope outer = rp_scope_begin(), failed = outer;
    int depth = 0;
    while (failed.id && depth < 10000) {
        rp__alloc_fail_at(1);
        failed = rp__scope_begin();
        rp__alloc_fail_at(0);
        depth++;
    }
    assert_int_equal(failed.id, 0);
    assert_true(depth > 32);
    assert_int_equal(rp_error_take(), RP_ERROR_OUT_OF_MEMORY);
    rp_tensor *t = one(4);
    rp__scope_end(failed, NULL, 0);
    assert_false(rp_failed());
    assert_int_equal(rp_item_i64(t), 4);
    for (int i = 0; i < 1000; i++) {
        assert_int_not_equal(rp_scope_begin().id, 0);
        one(5);
    }
    assert_int_equal(rp_item_i64(t), 4);
    rp_scope_end(outer, NULL, 0);
    assert_int_equal(live(), 0);
}

/* Long lists are looked up, not searched: each of them comes once, also one that entered twice or is named twice. */
static void many_are_kept(void **state) {
    (void)state;
    enum { N = 60000 };
    static rp_tensor *keep[N + 3];
    uint64_t before = live();
    rp_scope outer = rp_scope_begin(), inner = rp_scope_begin();
    for (int i = 0; i < N; i++) {
        keep[i] = one((float)i);
        if (i % 2) one(-1); /* is not kept */
    }
    rp__tensor_enter_scope(keep[7]);
    keep[N] = NULL;
    keep[N + 1] = keep[9];
    keep[N + 2] = rp__tensor_error();
    clock_t start = clock();
    assert_int_equal(rp_scope_end(inner, keep, N + 3), RP_OK);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 2); /* a search takes half a minute */
    assert_int_equal(live(), before + N);
    assert_int_equal(rp_item_i64(keep[7]), 7);
    assert_int_equal(rp_item_i64(keep[N - 1]), N - 1);
    inner = rp_scope_begin(); /* without memory for a table */
    for (int i = 0; i < 40; i++) keep[i] = one((float)i);
    (void)rp__alloc_fail_at(1);
    assert_int_equal(rp_scope_end(inner, keep, 40), RP_OK);
    (void)rp__alloc_fail_at(0);
    assert_int_equal(live(), before + N + 40);
    assert_int_equal(rp_item_i64(keep[39]), 39);
    rp_scope_end(outer, NULL, 0);
    assert_int_equal(live(), before);
    assert_false(rp_failed());
}

/* RP_SCOPE and RP_NO_GRAD end with their block, however it is left, and break leaves no loop around them. */
static int leave_by(int how) {
    for (int turn = 0; turn < 2; turn++) {
        RP_SCOPE {
            (void)one(1);
            RP_NO_GRAD {
                assert_false(rp_grad_enabled());
                (void)one(2);
                if (how == 1) return turn;
                if (how == 2) break;
                if (how == 3) continue;
                if (how == 4) goto out;
                RP_SCOPE RP_NO_GRAD(void) one(3);
            }
            assert_true(rp_grad_enabled());
        }
    }
    return 2;
out:
    return 3;
}

static void blocks_end(void **state) {
    (void)state;
    static const int gives[] = {2, 0, 2, 2, 3};
    const uint64_t before = live();
    for (int how = 0; how < 5; how++) {
        assert_int_equal(leave_by(how), gives[how]);
        assert_int_equal(live(), before);
        assert_true(rp_grad_enabled());
    }
    (void)rp_set_grad_enabled(false);
    RP_NO_GRAD(void) one(4);
    assert_false(rp_grad_enabled()); /* what it was */
    (void)rp_set_grad_enabled(true);
    assert_false(rp_failed());
}

/* rp_report tells of an error, and clears it. */
static void reports(void **state) {
    (void)state;
    char text[512] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    assert_int_equal(rp_report(f, "before"), 0);
    (void)rp_item(NULL);
    char wanted[512];
    (void)snprintf(wanted, sizeof wanted, "evaluate: %s\n", rp_error_message());
    assert_int_equal(rp_report(f, "evaluate"), 1);
    assert_false(rp_failed());
    (void)fclose(f);
    assert_string_equal(text, wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scopes_release_and_keep),
        cmocka_unit_test(retained_handles_outlive_scopes),
        cmocka_unit_test(many_are_kept),
        cmocka_unit_test(gradients_are_kept),
        cmocka_unit_test(inner_scopes_end_with_outer_ones),
        cmocka_unit_test(the_root_scope_is_counted),
        cmocka_unit_test(handles_enter_scopes_more_than_once),
        cmocka_unit_test(holes_are_reused),
        cmocka_unit_test(a_slot_is_not_reused_at_once),
        cmocka_unit_test(a_thread_ends_its_scopes),
        cmocka_unit_test(a_scope_that_cannot_begin),
        cmocka_unit_test(blocks_end),
        cmocka_unit_test(reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
