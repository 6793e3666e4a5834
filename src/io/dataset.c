/* Files that data sets come in: IDX, the binary CIFAR, plain bytes. All are checked to the byte
   before they are believed. */
#include "ops/private.h"
#include <reprise_io.h>

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/text.h"
#include "io/dataset.h"
#include "io/file.h"
#include "tensor/tensor.h"

/* at: the byte from which on the file is not what it should be. */
static rp_status wrong(const char *call, const rp__file *f, uint64_t at, const char *why) {
    char name[512];
    rp__printable(name, sizeof name, f->name);
    return rp__fail(RP_ERROR_IO, "%s: %s: byte %llu: %s", call, name, (unsigned long long)at, why);
}

static void unmap(void *ctx) { rp__file_release(ctx); }

/* A tensor over bytes of the file, which it holds. */
static rp_tensor *in_place(rp__file *f, uint64_t at, const int64_t *size, size_t ndim) {
    static uint8_t nothing;
    return rp_from_blob(f->data ? f->data + at : &nothing, size, ndim, NULL, RP_U8, rp_cpu(), unmap,
                        rp__file_retain(f)); /* which releases it, on failure too */
}

static rp_tensor *from_data_cpu(const void *data, const int64_t *size, size_t ndim, rp_dtype dtype) {
    rp_device device = rp_default_device();
    if (rp_set_default_device(rp_cpu()) != RP_OK) return rp__tensor_error();
    rp_tensor *t = rp_from_data(data, size, ndim, dtype);
    return rp_set_default_device(device) == RP_OK ? t : rp__tensor_error();
}

/* ---------------------------------------------------------------- text */

rp_tensor *rp_text_load_at(const char *site, const char *path) {
    RP__CALLED_FROM(site);
    rp__file *f = rp__file_map("rp_text_load", path);
    if (!f) return rp__tensor_error();
    rp_tensor *t = in_place(f, 0, RP_DIMS((int64_t)f->bytes));
    rp__file_release(f);
    return t;
}

/* ---------------------------------------------------------------- IDX: two zeros, type, rank; sizes; elements; all
   big-endian */

static rp_tensor *swapped(const uint8_t *data, size_t count, size_t element, const int64_t *size, size_t ndim,
                          rp_dtype dtype) {
    uint8_t *own = rp__alloc(count * element + 1);
    if (!own) {
        (void)RP__OOM("rp_idx_load");
        return rp__tensor_error();
    }
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < element; k++) own[i * element + k] = data[i * element + element - 1 - k];
    rp_tensor *t = from_data_cpu(own, size, ndim, dtype);
    rp__free(own);
    return t;
}

static rp_tensor *idx(rp__file *f) {
    static const struct {
        uint8_t code;
        rp_dtype dtype;
    } types[] = {{8, RP_U8}, {9, RP_I8}, {11, RP_I16}, {12, RP_I32}, {13, RP_F32}, {14, RP_F64}};
    const uint8_t *u = f->data;
    rp_dtype dtype = RP_DTYPE_NONE;
    if (f->bytes >= 4 && u[0] == 0 && u[1] == 0)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (types[i].code == u[2]) dtype = types[i].dtype;
    if (dtype == RP_DTYPE_NONE || u[3] > RP_MAX_DIMS || f->bytes < 4 + 4 * (uint64_t)u[3]) {
        (void)wrong("rp_idx_load", f, 0, "it is no IDX file");
        return rp__tensor_error();
    }
    const size_t ndim = u[3], begin = 4 + 4 * ndim, element = rp_dtype_size(dtype);
    int64_t size[RP_MAX_DIMS];
    uint64_t count = 1, bytes;
    bool large = false;
    for (size_t d = 0; d < ndim; d++) {
        const uint8_t *s = u + 4 + 4 * d;
        size[d] = (int64_t)((uint32_t)s[0] << 24 | (uint32_t)s[1] << 16 | (uint32_t)s[2] << 8 | s[3]);
        large = large || __builtin_mul_overflow(count, (uint64_t)size[d], &count);
    }
    if (large || __builtin_mul_overflow(count, element, &bytes) || bytes != f->bytes - begin) {
        (void)wrong("rp_idx_load", f, begin, "its sizes and the number of the bytes from here on do not agree");
        return rp__tensor_error();
    }
    if (element == 1 && dtype == RP_U8) return in_place(f, begin, size, ndim);
    return swapped(u + begin, (size_t)count, element, size, ndim, dtype);
}

rp_tensor *rp_idx_load_at(const char *site, const char *path) {
    RP__CALLED_FROM(site);
    rp__file *f = rp__file_map("rp_idx_load", path);
    if (!f) return rp__tensor_error();
    rp_tensor *t = idx(f);
    rp__file_release(f);
    return t;
}

/* ---------------------------------------------------------------- CIFAR: a record is a label (of 100 classes: the
   coarse one, too) and an image */

enum { IMAGE = 3 * 32 * 32, MAX_FILES = 64 };

static rp_status cifar_read(rp__file *const *files, size_t n, int64_t classes, rp_tensor **images, rp_tensor **labels) {
    const size_t head = classes == 100 ? 2 : 1, record = head + IMAGE;
    size_t all = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        if (files[i]->bytes == 0 || files[i]->bytes % record != 0)
            return wrong("rp_cifar_load", files[i], files[i]->bytes - files[i]->bytes % record,
                         "it does not consist of records of this data set: there is no whole one");
        all += (size_t)(files[i]->bytes / record);
    }
    uint8_t *pixels = rp__alloc(all * IMAGE + 1);
    int64_t *names = rp__alloc((all + 1) * sizeof *names);
    rp_status status = pixels && names ? RP_OK : RP__OOM("rp_cifar_load");
    for (size_t i = 0; i < n && status == RP_OK; i++)
        for (uint64_t r = 0; r < files[i]->bytes / record && status == RP_OK; r++, at++) {
            const uint8_t *u = files[i]->data + r * record;
            names[at] = u[head - 1];
            if (names[at] >= classes)
                status = wrong("rp_cifar_load", files[i], r * record + head - 1, "it has a label beyond the classes");
            memcpy(pixels + at * IMAGE, u + head, IMAGE);
        }
    if (status == RP_OK) {
        *images = from_data_cpu(pixels, RP_DIMS((int64_t)all, 3, 32, 32), RP_U8);
        *labels = from_data_cpu(names, RP_DIMS((int64_t)all), RP_I64);
        if (rp__tensor_is_error(*images) || rp__tensor_is_error(*labels)) status = rp_error_status();
    }
    rp__free(pixels);
    rp__free(names);
    return status;
}

rp_status rp_cifar_load_at(const char *site, const char *const *paths, size_t n, int64_t classes, rp_tensor **images,
                           rp_tensor **labels) {
    RP__CALLED_FROM(site);
    if (!images || !labels) return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_cifar_load: a place for results is NULL");
    *images = *labels = rp__tensor_error();
    if (!paths || n == 0 || n > MAX_FILES || (classes != 10 && classes != 100))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_cifar_load: it takes 1 to 64 files, of 10 or 100 classes");
    rp__file *files[MAX_FILES];
    size_t opened = 0;
    rp_status status = RP_OK;
    while (opened < n && status == RP_OK) {
        files[opened] = rp__file_map("rp_cifar_load", paths[opened]);
        if (files[opened])
            opened++;
        else
            status = rp_error_status();
    }
    if (status == RP_OK) status = cifar_read(files, n, classes, images, labels);
    while (opened > 0) rp__file_release(files[--opened]);
    return status;
}
