/* DLPack both ways, against structs written here from the published ABI: layout, flags, refusals, and one deleter call. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "tensor/tensor.h"

typedef struct {
    int32_t device_type, device_id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type;
typedef struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
struct DLManagedTensorVersioned {
    struct {
        uint32_t major, minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    dl_tensor tensor;
};
typedef struct DLManagedTensorVersioned managed;

static void count_deleter(managed *self) { ++*(int *)self->manager_ctx; }

static float padded[7] = {0, 1, 2, 3, 4, 5, 6};
static float *const data = padded + 1;
static int64_t shape[2] = {2, 3};
static int64_t transposed[2] = {1, 2};

static managed fresh(int *calls) {
    managed m = {.version = {1, 1}, .manager_ctx = calls, .deleter = count_deleter};
    m.tensor.data = data;
    m.tensor.device.device_type = 1;
    m.tensor.ndim = 2;
    m.tensor.dtype = (dl_type){2, 32, 1};
    m.tensor.shape = shape;
    *calls = 0;
    return m;
}

static void exports_share_memory(void **state) {
    (void)state;
    rp_scope scope = rp_scope_begin();
    rp_tensor *base = rp_from_data(data, RP_DIMS(2, 3), RP_F32);
    rp_tensor *t = rp__tensor_view(base, (rp_dim[]){2, 2}, (rp_dim[]){3, 1}, 2, 1);
    managed *m = rp_to_dlpack(t);
    assert_non_null(m);
    assert_int_equal(m->version.major, 1);
    assert_int_equal(m->flags, 0);
    assert_int_equal(m->tensor.device.device_type, 1);
    assert_true(m->tensor.dtype.code == 2 && m->tensor.dtype.bits == 32 && m->tensor.dtype.lanes == 1);
    assert_true(m->tensor.ndim == 2 && m->tensor.shape[1] == 2 && m->tensor.strides[0] == 3 &&
                m->tensor.strides[1] == 1);
    rp_scope_end(scope, NULL, 0);
    assert_true(((float *)m->tensor.data)[0] == 2); /* alive without the scope */
    scope = rp_scope_begin();
    rp_tensor *back = rp_from_dlpack(m);
    float y[4];
    assert_int_equal(rp_to_host(back, y, sizeof y), RP_OK);
    assert_true(y[0] == 2 && y[1] == 3 && y[2] == 5 && y[3] == 6);
    rp_scope_end(scope, NULL, 0);
    rp_memory_stats s = {.struct_size = sizeof s};
    rp_memory_stats_get(rp_cpu(), &s);
    assert_int_equal(s.live_tensors, 0);
}

static void every_dtype_goes_out_and_in(void **state) {
    (void)state;
    for (int d = 1; d <= RP_I16; d++) {
        rp_scope scope = rp_scope_begin();
        uint64_t zeros[3] = {0};
        rp_tensor *t = rp_from_dlpack(rp_to_dlpack(rp_from_data(zeros, RP_DIMS(3), (rp_dtype)d)));
        assert_int_equal(rp_dtype_of(t), d);
        rp_tensor *scalar = rp_from_dlpack(rp_to_dlpack(rp_from_data(zeros, RP_NO_DIMS, (rp_dtype)d)));
        assert_int_equal(rp_ndim(scalar), 0);
        assert_int_equal(rp_numel(scalar), 1);
        rp_tensor *empty = rp_from_dlpack(rp_to_dlpack(rp_from_data(NULL, RP_DIMS(0, 2), (rp_dtype)d)));
        assert_int_equal(rp_numel(empty), 0);
        assert_false(rp_failed());
        rp_scope_end(scope, NULL, 0);
    }
}

static void imports_wrap_or_copy(void **state) {
    (void)state;
    int calls;
    float y[6];
    rp_scope scope = rp_scope_begin();
    managed m = fresh(&calls);
    rp_tensor *t = rp_from_dlpack(&m); /* strides NULL: row-major */
    assert_ptr_equal(rp_data(t), data);
    assert_true(t->storage->foreign && rp_is_contiguous(t));
    assert_int_equal(calls, 0);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(calls, 1);

    scope = rp_scope_begin();
    m = fresh(&calls);
    m.tensor.strides = transposed;
    m.tensor.data = padded;
    m.tensor.byte_offset = 4;
    m.flags = 2; /* copied: ours alone */
    t = rp_from_dlpack(&m);
    assert_ptr_equal(rp_data(t), data);
    assert_false(t->storage->foreign);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_true(y[0] == 1 && y[1] == 3 && y[2] == 5 && y[3] == 2);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(calls, 1);

    scope = rp_scope_begin();
    m = fresh(&calls);
    m.tensor.strides = transposed;
    m.flags = 1; /* read-only */
    t = rp_from_dlpack(&m);
    assert_int_equal(calls, 1); /* copied: the producer is free at once */
    assert_ptr_not_equal(rp_data(t), data);
    memset(y, 0, sizeof y);
    assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
    assert_true(y[0] == 1 && y[1] == 3 && y[2] == 5 && y[3] == 2);
    rp_scope_end(scope, NULL, 0);
    assert_int_equal(calls, 1);

    scope = rp_scope_begin();
    m = fresh(&calls);
    m.deleter = NULL;
    assert_false(rp_is_error(rp_from_dlpack(&m)));
    rp_scope_end(scope, NULL, 0);
}

static void refuse(managed m, int *calls, rp_status want) {
    *calls = 0;
    assert_true(rp_is_error(rp_from_dlpack(&m)));
    assert_int_equal(rp_error_take(), want);
    assert_int_equal(*calls, 1);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    int calls;
    int64_t negative[] = {-3, 1}, size[] = {2, -3};
    managed good = fresh(&calls), m;
    m = good, m.version.major = 2, refuse(m, &calls, RP_ERROR_INVALID_ARGUMENT);
    m = good, m.tensor.dtype.lanes = 4, refuse(m, &calls, RP_ERROR_DTYPE);
    m = good, m.tensor.dtype = (dl_type){5, 64, 1}, refuse(m, &calls, RP_ERROR_DTYPE); /* complex */
    m = good, m.tensor.dtype = (dl_type){1, 16, 1}, refuse(m, &calls, RP_ERROR_DTYPE); /* uint16 */
    m = good, m.tensor.device.device_type = 7, refuse(m, &calls, RP_ERROR_DEVICE);     /* Vulkan */
    m = good, m.tensor.strides = negative, refuse(m, &calls, RP_ERROR_SHAPE);
    int64_t one_row[] = {1, 3}; /* a dimension of one element may go any way */
    m = good, m.tensor.shape = one_row, m.tensor.strides = negative;
    calls = 0;
    rp_scope outer = rp_scope_begin();
    rp_tensor *row = rp_from_dlpack(&m);
    assert_true(!rp_failed() && rp_numel(row) == 3 && rp_stride(row, 0) >= 0 && rp_item_f64(rp_sum(row)) == 6);
    rp_scope_end(outer, NULL, 0);
    assert_int_equal(calls, 1);
    calls = 0;
    m = good, m.tensor.shape = size, refuse(m, &calls, RP_ERROR_SHAPE);
    m = good, m.tensor.ndim = 17, refuse(m, &calls, RP_ERROR_SHAPE);
    m = good, m.tensor.ndim = -1, refuse(m, &calls, RP_ERROR_SHAPE);
    m = good, m.tensor.data = NULL, refuse(m, &calls, RP_ERROR_INVALID_ARGUMENT);
    m = good, m.tensor.byte_offset = 2, refuse(m, &calls, RP_ERROR_INVALID_ARGUMENT);
    m = good, m.tensor.shape = NULL, refuse(m, &calls, RP_ERROR_INVALID_ARGUMENT);
    assert_true(rp_is_error(rp_from_dlpack(NULL)));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
    rp_scope scope = rp_scope_begin();
    rp_tensor *leaf = rp_from_data(data, RP_DIMS(6), RP_F32);
    leaf->flags |= RP__T_REQUIRES_GRAD;
    assert_null(rp_to_dlpack(leaf));
    assert_int_equal(rp_error_take(), RP_ERROR_STATE);
    assert_null(rp_to_dlpack(rp__tensor_error()));
    rp_error_take();
    rp_scope_end(scope, NULL, 0);
}

/* What producers before DLPack 1.0 give. */
struct DLManagedTensor {
    dl_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
};
typedef struct DLManagedTensor old_managed;

static void count_old_deleter(old_managed *self) { ++*(int *)self->manager_ctx; }

static void what_has_no_version_comes_in(void **state) {
    (void)state;
    int calls;
    managed like = fresh(&calls);
    old_managed good = {.manager_ctx = &calls, .deleter = count_old_deleter}, m;
    memcpy(&good.tensor, &like.tensor, sizeof good.tensor);
    for (int strided = 0; strided < 2; strided++) {
        float y[6];
        m = good;
        if (strided) m.tensor.strides = transposed, m.tensor.data = padded, m.tensor.byte_offset = 4;
        rp_scope scope = rp_scope_begin();
        rp_tensor *t = rp_from_dlpack_unversioned(&m);
        assert_ptr_equal(rp_data(t), data);
        assert_true(t->storage->foreign); /* it may be written: by others, too */
        assert_int_equal(rp_to_host(t, y, sizeof y), RP_OK);
        assert_true(y[0] == 1 && y[1] == (strided ? 3 : 2) && y[5] == 6);
        assert_int_equal(calls, 0);
        rp_scope_end(scope, NULL, 0);
        assert_int_equal(calls, 1);
        calls = 0;
    }
    m = good, m.tensor.dtype.lanes = 2;
    assert_true(rp_is_error(rp_from_dlpack_unversioned(&m)));
    assert_non_null(strstr(rp_error_message(), "from_dlpack_unversioned"));
    assert_int_equal(rp_error_take(), RP_ERROR_DTYPE);
    assert_int_equal(calls, 1);
    calls = 0;
    for (uint64_t n = 1; n < 20; n++) { /* out of memory */
        rp_scope scope = rp_scope_begin();
        m = good;
        rp__alloc_fail_at(n);
        rp_tensor *t = rp_from_dlpack_unversioned(&m);
        rp__alloc_fail_at(0);
        assert_int_equal(rp_failed(), rp_is_error(t));
        rp_scope_end(scope, NULL, 0);
        assert_int_equal(calls, 1);
        calls = 0;
        rp_error_take();
    }
    rp_scope scope = rp_scope_begin();
    m = good, m.deleter = NULL;
    assert_false(rp_is_error(rp_from_dlpack_unversioned(&m)));
    rp_scope_end(scope, NULL, 0);
    assert_true(rp_is_error(rp_from_dlpack_unversioned(NULL)));
    assert_int_equal(rp_error_take(), RP_ERROR_INVALID_ARGUMENT);
}

static void the_deleter_runs_once_out_of_memory(void **state) {
    (void)state;
    for (uint64_t flags = 0; flags <= 1; flags++) {
        int failures = 0;
        for (uint64_t n = 1; n < 30; n++) {
            int calls;
            managed m = fresh(&calls);
            m.flags = flags;
            rp_scope scope = rp_scope_begin();
            rp__alloc_fail_at(n);
            rp_tensor *t = rp_from_dlpack(&m);
            managed *out = rp_is_error(t) ? NULL : rp_to_dlpack(t);
            rp__alloc_fail_at(0);
            failures += rp_failed();
            assert_int_equal(rp_failed(), rp_is_error(t) || !out);
            if (out) out->deleter(out);
            rp_scope_end(scope, NULL, 0);
            assert_int_equal(calls, 1);
            rp_error_take();
        }
        assert_true(failures >= 3);
    }
}

/* What a kernel found wrong in data is told when the host gets to see the result, not by a later read of something else. */
static rp_tensor *bad_gather(void) {
    return rp_gather(rp_from_data(data, RP_DIMS(3), RP_F32), 0, rp_from_data((int64_t[]){5}, RP_DIMS(1), RP_I64));
}
static rp_tensor *bad_weights(void) {
    return rp_multinomial(rp_from_data((float[]){1, -1, 1}, RP_DIMS(3), RP_F32), 2, false);
}

static void errors_of_kernels_come_with_addresses(void **state) {
    (void)state;
    static const struct {
        rp_tensor *(*make)(void);
        rp_status status;
        const char *text;
    } cases[] = {{bad_gather, RP_ERROR_INDEX, "gather: index 5 is out of bounds for a dimension of size 3 at "},
                 {bad_weights, RP_ERROR_INVALID_ARGUMENT, "multinomial: probability tensor contains either"}};
    rp_stream *streams[] = {rp_current_stream(rp_cpu()), rp_stream_new(rp_cpu())};
    rp_scope scope = rp_scope_begin();
    for (int k = 0; k < 4; k++) {
        assert_int_equal(rp_set_current_stream(streams[k / 2]), RP_OK);
        for (int exported = 0; exported < 2; exported++) {
            rp_tensor *t = cases[k % 2].make();
            assert_false(rp_failed());
            if (exported)
                assert_null(rp_to_dlpack(t));
            else
                assert_null(rp_data(t));
            if (!strstr(rp_error_message(), cases[k % 2].text) || !strstr(rp_error_message(), "test_dlpack.c:"))
                fail_msg("%s", rp_error_message());
            assert_int_equal(rp_error_take(), cases[k % 2].status);
            assert_non_null(rp_data(t)); /* told once */
        }
    }
    assert_int_equal(rp_set_current_stream(streams[0]), RP_OK);
    rp_stream_release(streams[1]);
    rp_scope_end(scope, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exports_share_memory),
        cmocka_unit_test(every_dtype_goes_out_and_in),
        cmocka_unit_test(imports_wrap_or_copy),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(what_has_no_version_comes_in),
        cmocka_unit_test(the_deleter_runs_once_out_of_memory),
        cmocka_unit_test(errors_of_kernels_come_with_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
