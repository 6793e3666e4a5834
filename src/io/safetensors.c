/* Safetensors: eight bytes with the length of a JSON header, the header, then the elements of all tensors without a gap. A file is
   taken as a whole or not at all: lengths and offsets are compared with its size before anything is made of them. */
#include <reprise_io.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/handle.h"
#include "core/json.h"
#include "core/text.h"
#include "io/file.h"
#include "tensor/tensor.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are taken as they are");

enum { LENGTH = 8, HEADER_LIMIT = 100000000 };

/* Its types; dtype RP_DTYPE_NONE: known to it alone. */
typedef struct type {
    const char *name;
    unsigned bits;
    rp_dtype dtype;
} type;
static const type others[] = {
    {"U16", 16, RP_DTYPE_NONE},    {"U32", 32, RP_DTYPE_NONE},        {"U64", 64, RP_DTYPE_NONE},
    {"C64", 64, RP_DTYPE_NONE},    {"F4", 4, RP_DTYPE_NONE},          {"F6_E2M3", 6, RP_DTYPE_NONE},
    {"F6_E3M2", 6, RP_DTYPE_NONE}, {"F8_E5M2", 8, RP_DTYPE_NONE},     {"F8_E4M3", 8, RP_DTYPE_NONE},
    {"F8_E8M0", 8, RP_DTYPE_NONE}, {"F8_E4M3FNUZ", 8, RP_DTYPE_NONE}, {"F8_E5M2FNUZ", 8, RP_DTYPE_NONE}};

static bool type_find(const char *name, type *out) {
    for (unsigned d = 1; d < RP__DTYPE_COUNT; d++) {
        *out = (type){rp__dtypes[d].safetensors, 8u * rp__dtypes[d].bytes, (rp_dtype)d};
        if (strcmp(out->name, name) == 0) return true;
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        *out = others[i];
        if (strcmp(out->name, name) == 0) return true;
    }
    return false;
}

typedef struct item {
    char *name;
    type type;
    int64_t size[RP_MAX_DIMS];
    size_t ndim;
    uint64_t begin, end; /* in the file */
    rp__file *file;      /* borrowed */
} item;

typedef struct note {
    char *key, *text;
} note;

struct rp_safetensors {
    rp__handle handle;
    rp__file **files;
    item *items; /* by name */
    note *notes;
    size_t n_files, files_capacity, n_items, items_capacity, n_notes, notes_capacity;
};

static rp_safetensors failed_file; /* returned when there is no memory for one */

static rp_status file_check(const rp_safetensors *f, const char *call) {
    return rp__handle_check(f, RP__HANDLE_SAFETENSORS, call);
}

static void file_clear(rp_safetensors *f) {
    for (size_t i = 0; i < f->n_items; i++) rp__free(f->items[i].name);
    for (size_t i = 0; i < f->n_notes; i++) {
        rp__free(f->notes[i].key);
        rp__free(f->notes[i].text);
    }
    for (size_t i = 0; i < f->n_files; i++) rp__file_release(f->files[i]);
    rp__free(f->items);
    rp__free(f->notes);
    rp__free(f->files);
    f->items = NULL;
    f->notes = NULL;
    f->files = NULL;
    f->n_items = f->n_notes = f->n_files = f->items_capacity = f->notes_capacity = f->files_capacity = 0;
}

/* ---------------------------------------------------------------- the header */

/* Names of tensors may hold anything; messages show them in one line. */
typedef char shown[160];
static const char *show(shown out, const char *name) {
    rp__printable(out, sizeof(shown), name);
    return out;
}

static rp_status wrong(const rp__file *file, const char *name, const char *what) {
    shown path, tensor;
    return rp__fail(RP_ERROR_IO, "safetensors %s: tensor `%s`: %s", show(path, file->name), show(tensor, name), what);
}

static rp_status item_read(item *it, const rp__file *file, const char *name, rp__json *entry, uint64_t data) {
    const char *dtype = rp__json_string(rp__json_member(entry, "dtype"));
    rp__json *shape = rp__json_member(entry, "shape"), *offsets = rp__json_member(entry, "data_offsets");
    size_t n_offsets;
    int64_t begin, end;
    char why[128];
    if (rp__json_count(entry) != 3 || !dtype || !rp__json_array(shape, &it->ndim) ||
        !rp__json_array(offsets, &n_offsets))
        return wrong(file, name, "it has not dtype, shape and data_offsets alone");
    if (!type_find(dtype, &it->type)) return wrong(file, name, "its dtype is none of safetensors");
    if (it->ndim > RP_MAX_DIMS) return wrong(file, name, "it has more dimensions than Reprise has");
    uint64_t bits = it->type.bits;
    for (size_t d = 0; d < it->ndim; d++) {
        if (!rp__json_integer(rp__json_item(shape, d), &it->size[d]) || it->size[d] < 0)
            return wrong(file, name, "its shape is not a list of sizes");
        if (__builtin_mul_overflow(bits, (uint64_t)it->size[d], &bits))
            return wrong(file, name, "its sizes are too large");
    }
    if (n_offsets != 2 || !rp__json_integer(rp__json_item(offsets, 0), &begin) ||
        !rp__json_integer(rp__json_item(offsets, 1), &end) || begin < 0 || end < begin)
        return wrong(file, name, "its data_offsets are no range");
    if ((uint64_t)end > file->bytes - data) {
        snprintf(why, sizeof why, "it ends behind the file: at byte %llu of %llu",
                 (unsigned long long)(data + (uint64_t)end), (unsigned long long)file->bytes);
        return wrong(file, name, why);
    }
    if (bits % 8 || (uint64_t)(end - begin) != bits / 8) {
        snprintf(why, sizeof why, "its range is not that of its sizes: %lld bytes, for %llu bits",
                 (long long)(end - begin), (unsigned long long)bits);
        return wrong(file, name, why);
    }
    it->begin = data + (uint64_t)begin;
    it->end = data + (uint64_t)end;
    return RP_OK;
}

static int by_place(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b) { return strcmp(((const item *)a)->name, ((const item *)b)->name); }

static rp_status notes_read(rp_safetensors *f, const rp__file *file, rp__json *object) {
    void *at = NULL;
    const char *key;
    rp__json *value;
    if (!rp__json_is_object(object)) return wrong(file, "__metadata__", "it is no map of texts");
    while (rp__json_next(object, &at, &key, &value)) {
        const char *text = rp__json_string(value);
        if (!text) return wrong(file, "__metadata__", "it is no map of texts");
        if (!RP__GROW(&f->notes, &f->notes_capacity, f->n_notes + 1)) return RP__OOM("a safetensors file");
        note *n = &f->notes[f->n_notes++];
        *n = (note){rp__strdup(key), rp__strdup(text)};
        if (!n->key || !n->text) return RP__OOM("a safetensors file");
    }
    return RP_OK;
}

/* Tensors of one file, which is f's by now, behind those of f. */
static rp_status entries_read(rp_safetensors *f, rp__file *file, rp__json *header, uint64_t data) {
    size_t first = f->n_items;
    void *at = NULL;
    const char *name;
    rp__json *value;
    while (rp__json_next(header, &at, &name, &value)) {
        if (strcmp(name, "__metadata__") == 0) {
            RP_TRY(notes_read(f, file, value));
            continue;
        }
        if (!RP__GROW(&f->items, &f->items_capacity, f->n_items + 1)) return RP__OOM("a safetensors file");
        item *it = &f->items[f->n_items];
        *it = (item){.file = file};
        RP_TRY(item_read(it, file, name, value, data));
        if (!(it->name = rp__strdup(name))) return RP__OOM("a safetensors file");
        f->n_items++;
    }
    uint64_t end = data;
    if (f->n_items > first) qsort(f->items + first, f->n_items - first, sizeof *f->items, by_place);
    for (size_t i = first; i < f->n_items; i++) {
        if (f->items[i].begin != end) {
            char why[128];
            snprintf(why, sizeof why, "there is a gap or an overlap before it: it begins at byte %llu, not %llu",
                     (unsigned long long)f->items[i].begin, (unsigned long long)end);
            return wrong(file, f->items[i].name, why);
        }
        end = f->items[i].end;
    }
    shown path;
    return end == file->bytes
               ? RP_OK
               : rp__fail(RP_ERROR_IO, "safetensors %s: %llu bytes behind its last tensor belong to none",
                          show(path, file->name), (unsigned long long)(file->bytes - end));
}

static rp_status shard_read(rp_safetensors *f, const char *path) {
    if (!RP__GROW(&f->files, &f->files_capacity, f->n_files + 1)) return RP__OOM("a safetensors file");
    rp__file *file = rp__file_map("safetensors", path);
    if (!file) return rp_error_status();
    f->files[f->n_files++] = file;
    shown text;
    uint64_t length = 0;
    if (file->bytes >= LENGTH) memcpy(&length, file->data, LENGTH);
    if (file->bytes < LENGTH || length > HEADER_LIMIT || length > file->bytes - LENGTH)
        return rp__fail(RP_ERROR_IO, "safetensors %s: it is no such file: %s (%llu bytes of %llu)", show(text, path),
                        file->bytes < LENGTH    ? "it is shorter than 8 bytes"
                        : length > HEADER_LIMIT ? "its header would have more than 100000000 bytes"
                                                : "it ends within its header",
                        (unsigned long long)file->bytes,
                        (unsigned long long)(file->bytes < LENGTH ? LENGTH : LENGTH + length));
    char what[200];
    snprintf(what, sizeof what, "safetensors %s: the header", show(text, path));
    rp__json *header = rp__json_parse((const char *)file->data + LENGTH, (size_t)length, what);
    if (!header) return rp_error_status();
    rp_status status = rp__json_is_object(header) ? entries_read(f, file, header, LENGTH + length)
                                                  : rp__fail(RP_ERROR_IO, "%s is no map of tensors", what);
    rp__json_free(header);
    return status;
}

/* ---------------------------------------------------------------- an index and its files */

static size_t file_named(const rp_safetensors *f, const char *path) {
    size_t i = 0;
    while (i < f->n_files && strcmp(f->files[i]->name, path) != 0) i++;
    return i;
}

static const item *find(const rp_safetensors *f, const char *name) {
    size_t low = 0, high = f->n_items;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(f->items[middle].name, name);
        if (order == 0) return &f->items[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static void sort_names(rp_safetensors *f) {
    if (f->n_items) qsort(f->items, f->n_items, sizeof *f->items, by_name);
}

/* Every file that the map names, once. They lie beside the index: a name with a slash would reach elsewhere. */
static rp_status map_read(rp_safetensors *f, const char *index, rp__json *map) {
    void *at = NULL;
    const char *name, *slash = strrchr(index, '/');
    rp__json *value;
    shown tensor, shard;
    size_t folder = slash ? (size_t)(slash - index) + 1 : 0;
    while (rp__json_next(map, &at, &name, &value)) {
        const char *file = rp__json_string(value);
        if (!file || !*file || strchr(file, '/') || strcmp(file, "..") == 0 || strcmp(file, ".") == 0)
            return rp__fail(RP_ERROR_IO, "safetensors index: tensor `%s`: `%s` is no file beside the index",
                            show(tensor, name), show(shard, file ? file : ""));
        char *path = rp__alloc(folder + strlen(file) + 1);
        if (!path) return RP__OOM("a safetensors file");
        memcpy(path, index, folder);
        strcpy(path + folder, file);
        rp_status status = file_named(f, path) == f->n_files ? shard_read(f, path) : RP_OK;
        rp__free(path);
        RP_TRY(status);
    }
    sort_names(f);
    for (size_t i = 1; i < f->n_items; i++)
        if (strcmp(f->items[i - 1].name, f->items[i].name) == 0)
            return rp__fail(RP_ERROR_IO, "safetensors index: two files have a tensor `%s`",
                            show(tensor, f->items[i].name));
    for (at = NULL; rp__json_next(map, &at, &name, &value);)
        if (!find(f, name))
            return rp__fail(RP_ERROR_IO, "safetensors index: `%s`, which should be in %s, is in no file",
                            show(tensor, name), show(shard, rp__json_string(value)));
    return RP_OK;
}

static rp_status index_read(rp_safetensors *f, const char *path) {
    rp__file *file = rp__file_map("safetensors index", path);
    if (!file) return rp_error_status();
    shown text;
    char what[200];
    snprintf(what, sizeof what, "safetensors index %s", show(text, path));
    rp__json *document =
        file->bytes > HEADER_LIMIT ? NULL : rp__json_parse((const char *)file->data, (size_t)file->bytes, what);
    rp_status status;
    if (file->bytes > HEADER_LIMIT)
        status = rp__fail(RP_ERROR_IO, "%s has more than 100000000 bytes", what);
    else if (!document)
        status = rp_error_status();
    else if (!rp__json_is_object(rp__json_member(document, "weight_map")))
        status = rp__fail(RP_ERROR_IO, "%s has no weight_map", what);
    else
        status = map_read(f, path, rp__json_member(document, "weight_map"));
    rp__json_free(document);
    rp__file_release(file);
    return status;
}

/* ---------------------------------------------------------------- what a program calls */

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

rp_safetensors *rp_safetensors_open_at(const char *site, const char *path) {
    RP__CALLED_FROM(site);
    rp_safetensors *f = rp__handle_new(RP__HANDLE_SAFETENSORS, sizeof *f);
    if (!f) {
        (void)RP__OOM("a safetensors file");
        return &failed_file;
    }
    rp_status status = !path ? rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_safetensors_open: the path is NULL")
                       : ends_with(path, ".json") ? index_read(f, path)
                                                  : shard_read(f, path);
    if (status == RP_OK) {
        sort_names(f);
        return f;
    }
    file_clear(f);
    rp__handle_free(f);
    return &failed_file;
}

void rp_safetensors_release(rp_safetensors *f) {
    if (!f || f == &failed_file || !rp__handle_give_up(f, RP__HANDLE_SAFETENSORS, "rp_safetensors_release")) return;
    file_clear(f);
    rp__handle_free(f);
}

size_t rp_safetensors_count(const rp_safetensors *f) {
    return rp__handle_is(f, RP__HANDLE_SAFETENSORS) ? f->n_items : 0;
}

rp_status rp_safetensors_info_at(const char *site, const rp_safetensors *f, size_t index, rp_file_tensor *info) {
    RP__CALLED_FROM(site);
    RP_TRY(file_check(f, "rp_safetensors_info"));
    if (index >= f->n_items || !info)
        return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                        "rp_safetensors_info: there is no tensor %zu of %zu, or no room for it", index, f->n_items);
    const item *it = &f->items[index];
    *info = (rp_file_tensor){.name = it->name,
                             .dtype = it->type.name,
                             .type = it->type.dtype,
                             .ndim = it->ndim,
                             .bytes = it->end - it->begin};
    memcpy(info->size, it->size, it->ndim * sizeof *it->size);
    return RP_OK;
}

bool rp_safetensors_has_at(const char *site, const rp_safetensors *f, const char *name) {
    RP__CALLED_FROM(site);
    return file_check(f, "rp_safetensors_has") == RP_OK && name && find(f, name);
}

static void release_file(void *ctx) { rp__file_release(ctx); }

/* In the mapped file; nobody else writes to these pages, so graphs may read them in place. */
static rp_tensor *mapped(const item *it) {
    rp_tensor *t = rp_from_blob(it->file->data + it->begin, it->size, it->ndim, NULL, it->type.dtype, rp_cpu(),
                                release_file, rp__file_retain(it->file)); /* which releases it, on failure too */
    return rp__tensor_is_error(t) || rp_declare_stable(t) != RP_OK ? rp__tensor_error() : t;
}

rp_tensor *rp_safetensors_tensor_at(const char *site, const rp_safetensors *f, const char *name) {
    RP__CALLED_FROM(site);
    if (file_check(f, "rp_safetensors_tensor") != RP_OK) return rp__tensor_error();
    const item *it = name ? find(f, name) : NULL;
    shown text;
    if (!it) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_safetensors_tensor: %s has no tensor `%s`",
                       f->n_files ? f->files[0]->name : "the file", show(text, name ? name : "NULL"));
        return rp__tensor_error();
    }
    rp_dtype dtype = it->type.dtype;
    if (dtype == RP_DTYPE_NONE) {
        (void)rp__fail(RP_ERROR_DTYPE, "rp_safetensors_tensor: `%s` is of type %s, which Reprise does not have",
                       show(text, name), it->type.name);
        return rp__tensor_error();
    }
    const uint8_t *data = it->file->data + it->begin;
    bool aligned = (uintptr_t)data % rp_dtype_size(dtype) == 0;
    if (rp_default_device().type == RP_DEVICE_CPU && aligned && it->end > it->begin) return mapped(it);
    return rp_from_data(it->end > it->begin ? data : (const uint8_t *)"", it->size, it->ndim, dtype);
}

const char *rp_safetensors_metadata(const rp_safetensors *f, const char *key) {
    for (size_t i = 0; key && i < (f && f != &failed_file ? f->n_notes : 0); i++)
        if (strcmp(f->notes[i].key, key) == 0) return f->notes[i].text;
    return NULL;
}

/* ---------------------------------------------------------------- writing */

static void put_string(rp__text *out, const char *s) {
    rp__text_puts(out, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p; p++) {
        if (*p == '"' || *p == '\\')
            rp__text_add(out, "\\%c", *p);
        else if (*p < 32)
            rp__text_add(out, "\\u%04x", *p);
        else
            rp__text_write(out, (const char *)p, 1);
    }
    rp__text_puts(out, "\"");
}

/* UTF-8 without NUL: what readers of JSON take. */
static bool is_text(const char *s) {
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        unsigned n = *p < 0x80                 ? 0
                     : *p >= 0xC2 && *p < 0xE0 ? 1
                     : *p >= 0xE0 && *p < 0xF0 ? 2
                     : *p >= 0xF0 && *p < 0xF5 ? 3
                                               : 4;
        unsigned second = p[0] == 0xE0   ? 0xA0
                          : p[0] == 0xF0 ? 0x90
                                         : 0x80,
                 last = p[0] == 0xED   ? 0x9F
                        : p[0] == 0xF4 ? 0x8F
                                       : 0xBF;
        if (n == 4 || (n && (p[1] < second || p[1] > last))) return false;
        for (unsigned k = 2; k <= n; k++)
            if (p[k] < 0x80 || p[k] > 0xBF) return false;
        p += n + 1;
    }
    return true;
}

typedef struct row {
    const rp_named_tensor *t;
    const rp__dtype_info *type;
} row;

/* The larger elements first, so that all are aligned. */
static int by_alignment(const void *a, const void *b) {
    const row *x = a, *y = b;
    if (x->type->bytes != y->type->bytes) return x->type->bytes > y->type->bytes ? -1 : 1;
    return strcmp(x->t->name, y->t->name);
}

static int by_row_name(const void *a, const void *b) {
    return strcmp(((const row *)a)->t->name, ((const row *)b)->t->name);
}

static rp_status rows_make(row *rows, const rp_named_tensor *tensors, size_t n) {
    shown text;
    for (size_t i = 0; i < n; i++) {
        const char *name = tensors[i].name;
        if (!name || strcmp(name, "__metadata__") == 0)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_safetensors_save: tensor %zu has no name that a file may have", i);
        if (!is_text(name))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_safetensors_save: the name `%s` is not UTF-8",
                            show(text, name));
        RP_TRY(rp__tensor_check(tensors[i].tensor, name));
        rows[i] = (row){&tensors[i], &rp__dtypes[rp_dtype_of(tensors[i].tensor)]};
    }
    if (n) qsort(rows, n, sizeof *rows, by_row_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(rows[i - 1].t->name, rows[i].t->name) == 0)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_safetensors_save: two tensors are called `%s`",
                            show(text, rows[i].t->name));
    if (n) qsort(rows, n, sizeof *rows, by_alignment);
    return RP_OK;
}

static uint64_t row_bytes(const row *r) { return (uint64_t)rp_numel(r->t->tensor) * r->type->bytes; }

static void header_make(rp__text *out, const row *rows, size_t n, const char *const (*metadata)[2], size_t n_metadata) {
    uint64_t at = 0;
    rp__text_puts(out, "{");
    for (size_t i = 0; i < n_metadata; i++) {
        rp__text_puts(out, i ? "," : "\"__metadata__\":{");
        put_string(out, metadata[i][0]);
        rp__text_puts(out, ":");
        put_string(out, metadata[i][1]);
    }
    if (n_metadata) rp__text_puts(out, n ? "}," : "}");
    for (size_t i = 0; i < n; i++) {
        put_string(out, rows[i].t->name);
        rp__text_add(out, ":{\"dtype\":\"%s\",\"shape\":[", rows[i].type->safetensors);
        for (size_t d = 0; d < rp_ndim(rows[i].t->tensor); d++)
            rp__text_add(out, "%s%lld", d ? "," : "", (long long)rp_size(rows[i].t->tensor, (int64_t)d));
        rp__text_add(out, "],\"data_offsets\":[%llu,", (unsigned long long)at);
        at += row_bytes(&rows[i]);
        rp__text_add(out, "%llu]}%s", (unsigned long long)at, i + 1 < n ? "," : "");
    }
    rp__text_puts(out, "}");
    while (!out->failed && out->length % 8) rp__text_puts(out, " ");
}

static rp_status rows_write(rp__writer *w, const row *rows, size_t n) {
    void *room = NULL;
    uint64_t most = 0;
    for (size_t i = 0; i < n; i++) most = row_bytes(&rows[i]) > most ? row_bytes(&rows[i]) : most;
    if (most && !(room = rp__alloc((size_t)most))) return RP__OOM("rp_safetensors_save");
    rp_status status = RP_OK;
    for (size_t i = 0; i < n && status == RP_OK; i++) {
        size_t bytes = (size_t)row_bytes(&rows[i]);
        if (bytes) status = rp_to_host(rows[i].t->tensor, room, bytes);
        if (status == RP_OK) rp__writer_put(w, room, bytes);
    }
    rp__free(room);
    return status;
}

rp_status rp_safetensors_save_at(const char *site, const char *path, const rp_named_tensor *tensors, size_t n,
                                 const char *const (*metadata)[2], size_t n_metadata) {
    RP__CALLED_FROM(site);
    if ((n && !tensors) || (n_metadata && !metadata))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_safetensors_save: a list is NULL");
    for (size_t i = 0; i < n_metadata; i++)
        if (!metadata[i][0] || !metadata[i][1] || !is_text(metadata[i][0]) || !is_text(metadata[i][1]))
            return rp__fail(RP_ERROR_INVALID_ARGUMENT,
                            "rp_safetensors_save: pair %zu of the metadata is not two texts in UTF-8", i);
    row *rows = rp__calloc(n + 1, sizeof *rows);
    rp__text header = {0};
    rp__writer w = {.fd = -1};
    rp_status status = rows ? rows_make(rows, tensors, n) : RP__OOM("rp_safetensors_save");
    if (status == RP_OK) header_make(&header, rows, n, metadata, n_metadata);
    if (status == RP_OK && header.failed) status = RP__OOM("rp_safetensors_save");
    if (status == RP_OK && header.length > HEADER_LIMIT)
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT,
                          "rp_safetensors_save: names and metadata are longer than 100000000 bytes");
    if (status == RP_OK) status = rp__writer_begin(&w, "rp_safetensors_save", path);
    if (status == RP_OK) {
        uint64_t length = header.length;
        rp__writer_put(&w, &length, LENGTH);
        rp__writer_put(&w, header.data, header.length);
        status = rows_write(&w, rows, n);
        rp_status written = rp__writer_end(&w, status == RP_OK);
        if (status == RP_OK) status = written;
    }
    rp__text_free(&header);
    rp__free(rows);
    return status;
}
