/* Several views at once: of all parts of a dim (split, chunk, unbind), of several tensors in one size. Their number is a number, also in a trace, and the parts are ordinary slices and
   selections: what is done with those is done with them. */
#include <string.h>

#include "ops/private.h"

#include "ops/infer.h"

typedef struct parts {
    const char *name;
    rp_tensor *t, **out;
    size_t n_out;
    int64_t size; /* of the dim */
    unsigned dim;
} parts;

static size_t refuse(const parts *p) {
    for (size_t k = 0; k < p->n_out && p->out; k++) p->out[k] = rp__tensor_error();
    return 0;
}

static bool begin(parts *p, int64_t dim) {
    size_t at;
    if (rp__tensor_check(p->t, "the tensor to take apart") != RP_OK) return false;
    if (p->n_out > 0 && !p->out) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: out is NULL", p->name);
        return false;
    }
    if (p->t->ndim == 0) {
        (void)rp__fail(RP_ERROR_SHAPE, "%s: a 0-dim tensor has no parts", p->name);
        return false;
    }
    if (rp__wrap_dim(dim, p->t->ndim, &at) != RP_OK) return false;
    p->dim = (unsigned)at;
    p->size = rp__dim_value(p->t->size[at]);
    return true;
}

static bool has_room(const parts *p, int64_t n) {
    if (n <= (int64_t)p->n_out) return true;
    (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: dim %u of size %lld has %lld parts, and out has room for %zu",
                   p->name, p->dim, (long long)p->size, (long long)n, p->n_out);
    return false;
}

/* Part k has sizes[k] elements or, without a list, `each` while there are so many left. */
static size_t cut(const parts *p, int64_t n, const int64_t *sizes, int64_t each) {
    int64_t from = 0;
    if (!has_room(p, n)) return refuse(p);
    for (int64_t k = 0; k < n; k++) {
        int64_t to = p->size - from < each ? p->size : from + each;
        if (sizes) to = from + sizes[k];
        p->out[k] = rp_slice_at(NULL, p->t, p->dim, from, to, 1);
        if (rp__tensor_is_error(p->out[k])) return refuse(p);
        from = to;
    }
    for (size_t k = (size_t)n; k < p->n_out; k++) p->out[k] = NULL;
    return (size_t)n;
}

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

size_t rp_split_at(const char *site, rp_tensor *t, int64_t split_size, int64_t dim, rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    parts p = {"split", t, out, n_out, 0, 0};
    if (!begin(&p, dim)) return refuse(&p);
    if (split_size < 0 || (split_size == 0 && p.size != 0)) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "split: split_size must be positive, or 0 where the dim has size 0, not %lld",
                       (long long)split_size);
        return refuse(&p);
    }
    return cut(&p, p.size == 0 ? 1 : ceil_div(p.size, split_size), NULL, split_size);
}

size_t rp_split_with_sizes_at(const char *site, rp_tensor *t, const int64_t *sizes, size_t n, int64_t dim,
                              rp_tensor **out) {
    RP__CALLED_FROM(site);
    parts p = {"split_with_sizes", t, out, n, 0, 0};
    if (!begin(&p, dim)) return refuse(&p);
    int64_t sum = 0;
    bool good = n == 0 || sizes;
    for (size_t k = 0; good && k < n; k++) good = sizes[k] >= 0 && rp__add_i64(sum, sizes[k], &sum);
    if (!good || sum != p.size) {
        char text[RP__SHAPE_TEXT];
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "split_with_sizes: sizes must be numbers >= 0 that sum exactly to %lld (dim %u), not %s",
                       (long long)p.size, p.dim, sizes && n <= RP_MAX_DIMS ? rp__shape_text(sizes, n, text) : "these");
        return refuse(&p);
    }
    return cut(&p, (int64_t)n, sizes, 0);
}

size_t rp_chunk_at(const char *site, rp_tensor *t, int64_t chunks, int64_t dim, rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    parts p = {"chunk", t, out, n_out, 0, 0};
    if (!begin(&p, dim)) return refuse(&p);
    if (chunks <= 0) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "chunk expects `chunks` to be greater than 0, got: %lld",
                       (long long)chunks);
        return refuse(&p);
    }
    if (p.size == 0) return cut(&p, chunks, NULL, 0); /* as many empty ones */
    const int64_t each = ceil_div(p.size, chunks);
    return cut(&p, ceil_div(p.size, each), NULL, each);
}

size_t rp_unbind_at(const char *site, rp_tensor *t, int64_t dim, rp_tensor **out, size_t n_out) {
    RP__CALLED_FROM(site);
    parts p = {"unbind", t, out, n_out, 0, 0};
    if (!begin(&p, dim) || !has_room(&p, p.size)) return refuse(&p);
    for (int64_t k = 0; k < p.size; k++) {
        out[k] = rp_select_at(NULL, t, p.dim, k);
        if (rp__tensor_is_error(out[k])) return refuse(&p);
    }
    for (size_t k = (size_t)p.size; k < n_out; k++) out[k] = NULL;
    return (size_t)p.size;
}

size_t rp_tensor_split_at(const char *site, rp_tensor *t, int64_t sections, int64_t dim, rp_tensor **out,
                          size_t n_out) {
    RP__CALLED_FROM(site);
    parts p = {"tensor_split", t, out, n_out, 0, 0};
    if (!begin(&p, dim)) return refuse(&p);
    if (sections <= 0) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "tensor_split: number of sections must be larger than 0, got %lld",
                       (long long)sections);
        return refuse(&p);
    }
    if (!has_room(&p, sections)) return refuse(&p);
    const int64_t each = p.size / sections, longer = p.size % sections;
    for (int64_t k = 0, from = 0; k < sections; k++) {
        const int64_t to = from + each + (k < longer);
        out[k] = rp_slice_at(NULL, t, p.dim, from, to, 1);
        if (rp__tensor_is_error(out[k])) return refuse(&p);
        from = to;
    }
    for (size_t k = (size_t)sections; k < n_out; k++) out[k] = NULL;
    return (size_t)sections;
}

/* ---- several tensors in one size */

static rp_status refuse_all(rp_tensor **out, size_t n) {
    for (size_t k = 0; k < n && out; k++) out[k] = rp__tensor_error();
    return rp_error_status();
}

static rp_status check_all(const char *name, rp_tensor *const *tensors, size_t n, rp_tensor **out) {
    if (n && (!tensors || !out))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", name, out ? "tensors" : "out");
    for (size_t k = 0; k < n; k++) RP_TRY(rp__tensor_check(tensors[k], "a tensor of the list"));
    return RP_OK;
}

rp_status rp_broadcast_tensors_at(const char *site, rp_tensor *const *tensors, size_t n, rp_tensor **out) {
    RP__CALLED_FROM(site);
    rp_dim size[RP_MAX_DIMS];
    size_t ndim = 0;
    if (check_all("broadcast_tensors", tensors, n, out) != RP_OK) return refuse_all(out, n);
    for (size_t k = 0; k < n; k++) {
        rp_dim both[RP_MAX_DIMS];
        if (rp__broadcast(size, ndim, tensors[k]->size, tensors[k]->ndim, both, &ndim) != RP_OK)
            return refuse_all(out, n);
        memcpy(size, both, ndim * sizeof *size);
    }
    for (size_t k = 0; k < n; k++) {
        out[k] = rp_expand_at(NULL, tensors[k], size, ndim, NULL);
        if (rp__tensor_is_error(out[k])) return refuse_all(out, n);
    }
    return RP_OK;
}

rp_status rp_meshgrid_at(const char *site, rp_tensor *const *tensors, size_t n, const char *indexing, rp_tensor **out) {
    RP__CALLED_FROM(site);
    const bool swapped = indexing && strcmp(indexing, "xy") == 0;
    if (check_all("meshgrid", tensors, n, out) != RP_OK) return refuse_all(out, n);
    if (n == 0 || n > RP_MAX_DIMS || (!swapped && (!indexing || strcmp(indexing, "ij") != 0))) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT,
                       "meshgrid: 1 to %d tensors, and indexing \"ij\" or \"xy\", not %zu and \"%s\"", RP_MAX_DIMS, n,
                       indexing ? indexing : "NULL");
        return refuse_all(out, n);
    }
    rp_dim size[RP_MAX_DIMS];
    for (size_t k = 0; k < n; k++) {
        const rp_tensor *t = tensors[k];
        char text[RP__SHAPE_TEXT];
        if (t->ndim > 1 || t->dtype != tensors[0]->dtype) {
            (void)rp__fail(t->ndim > 1 ? RP_ERROR_SHAPE : RP_ERROR_DTYPE,
                           "meshgrid: tensors have 0 or 1 dims and one dtype; %zu is %s of %s", k,
                           rp_dtype_name((rp_dtype)t->dtype), rp__shape_text(t->size, t->ndim, text));
            return refuse_all(out, n);
        }
        size[k] = t->ndim ? t->size[0] : 1;
    }
    for (size_t k = 0; k < n; k++) {
        rp_dim along[RP_MAX_DIMS];
        for (size_t d = 0; d < n; d++) along[d] = d == k ? size[k] : 1;
        out[k] = rp_expand_at(NULL, rp_view_at(NULL, tensors[k], along, n), size, n, NULL);
        if (swapped && n > 1) out[k] = rp_transpose_at(NULL, out[k], 0, 1);
        if (rp__tensor_is_error(out[k])) return refuse_all(out, n);
    }
    return RP_OK;
}
