/* Archives of numpy (.npz): zip files whose members are files of numpy, stored as they are. Reading believes the directory at the end,
   checked to the byte; writing gives what numpy.savez does, in the format's first form: below 4 GiB. */
#include "ops/private.h"
#include <reprise_io.h>

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/text.h"
#include "io/dataset.h"
#include "io/file.h"
#include "tensor/tensor.h"

enum { END = 22, ENTRY = 46, LOCAL = 30, COMMENT_LIMIT = 65535 };

static uint32_t word16(const uint8_t *u) { return u[0] | (uint32_t)u[1] << 8; }
static uint32_t word32(const uint8_t *u) { return word16(u) | word16(u + 2) << 16; }

/* at: the byte from which on the file is not what it should be. */
static rp_status wrong(const rp__file *f, uint64_t at, const char *why) {
    char name[512];
    rp__printable(name, sizeof name, f->name);
    return rp__fail(RP_ERROR_IO, "rp_npz_load: %s: byte %llu: %s", name, (unsigned long long)at, why);
}

/* ---------------------------------------------------------------- reading */

static bool is_name(const uint8_t *u, size_t n, const char *name) {
    const size_t k = strlen(name);
    if (n < k || memcmp(u, name, k) != 0) return false;
    return n == k || (n == k + 4 && memcmp(u + k, ".npy", 4) == 0);
}

static rp_status npz(rp__file *f, const char *name, rp_tensor **out) {
    static const char none[] = "it is no archive of numpy";
    const uint8_t *u = f->data;
    if (f->bytes < END) return wrong(f, f->bytes, none);
    uint64_t end = f->bytes - END, lowest = f->bytes > END + COMMENT_LIMIT ? f->bytes - END - COMMENT_LIMIT : 0;
    while (end > lowest && memcmp(u + end, "PK\5\6", 4) != 0) end--;
    if (memcmp(u + end, "PK\5\6", 4) != 0) return wrong(f, f->bytes, none);
    uint64_t at = word32(u + end + 16);
    const uint32_t members = word16(u + end + 10);
    for (uint32_t i = 0; i < members; i++) {
        if (at > end || end - at < ENTRY || memcmp(u + at, "PK\1\2", 4) != 0) return wrong(f, at, none);
        const uint64_t n = word16(u + at + 28), behind = n + word16(u + at + 30) + word16(u + at + 32);
        if (end - at - ENTRY < behind) return wrong(f, at, none);
        if (is_name(u + at + ENTRY, n, name)) {
            const uint64_t local = word32(u + at + 42), bytes = word32(u + at + 24);
            if (word16(u + at + 10) != 0 || word32(u + at + 20) != bytes)
                return wrong(f, at, "the member is compressed: numpy.savez writes it as it is");
            if (local > f->bytes || f->bytes - local < LOCAL || memcmp(u + local, "PK\3\4", 4) != 0)
                return wrong(f, local, none);
            const uint64_t begin = local + LOCAL + word16(u + local + 26) + word16(u + local + 28);
            if (begin > f->bytes || f->bytes - begin < bytes) return wrong(f, begin, none);
            return rp__npy_parse(&(rp__npy_source){"rp_npz_load", f, false}, u + begin, bytes, out);
        }
        at += ENTRY + behind;
    }
    char text[160], shown[96];
    rp__printable(shown, sizeof shown, name);
    snprintf(text, sizeof text, "it has no member `%s`", shown);
    return wrong(f, end, text);
}

rp_tensor *rp_npz_load_at(const char *site, const char *path, const char *name) {
    RP__CALLED_FROM(site);
    rp_tensor *t = rp__tensor_error();
    if (!name) {
        (void)rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_npz_load: the name is NULL");
        return t;
    }
    rp__file *f = rp__file_map("rp_npz_load", path);
    if (f) (void)npz(f, name, &t);
    rp__file_release(f);
    return t;
}

/* ---------------------------------------------------------------- writing */

/* The checksum of zip files (ISO 3309), of `bytes` more bytes. */
static uint32_t checksum(uint32_t sum, const void *data, size_t bytes) {
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        table[i] = c;
    }
    const uint8_t *u = data;
    sum = ~sum;
    for (size_t i = 0; i < bytes; i++) sum = table[(sum ^ u[i]) & 255] ^ sum >> 8;
    return ~sum;
}

static void put16(uint8_t *u, size_t n) { u[0] = (uint8_t)n, u[1] = (uint8_t)(n >> 8); }
static void put32(uint8_t *u, uint64_t n) { put16(u, n & 65535), put16(u + 2, n >> 16 & 65535); }

enum { SHARED = 26, MIDNIGHT_1980 = 33 }; /* of a member's two records; a date that says nothing */

/* What both records of a member say: version to extra bytes. */
static void put_member(uint8_t u[SHARED], uint32_t sum, size_t bytes, size_t name) {
    memset(u, 0, SHARED);
    u[0] = 20;
    put16(u + 8, MIDNIGHT_1980);
    put32(u + 10, sum);
    put32(u + 14, bytes);
    put32(u + 18, bytes);
    put16(u + 22, name);
}

typedef struct archive {
    rp__writer w;
    uint64_t at;
    uint8_t *directory;
    size_t bytes, capacity, members;
} archive;

static void archive_put(archive *a, const void *data, size_t bytes) {
    rp__writer_put(&a->w, data, bytes);
    a->at += bytes;
}

static rp_status save_member(archive *a, const rp_named_tensor *t) {
    rp__npy npy;
    RP_TRY(rp__npy_make("rp_npz_save", t->tensor, &npy));
    const size_t name = strlen(t->name) + 4, bytes = npy.header_bytes + npy.bytes;
    uint8_t record[ENTRY] = "PK\3\4";
    rp_status status = RP_OK;
    if (npy.bytes >= UINT32_MAX || a->at + bytes + 2 * name + a->bytes + LOCAL + ENTRY + END >= UINT32_MAX)
        status = rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_npz_save: with `%s` the archive has more than 4 GiB", t->name);
    else if (!RP__GROW(&a->directory, &a->capacity, a->bytes + ENTRY + name))
        status = RP__OOM("rp_npz_save");
    if (status == RP_OK) {
        const uint32_t sum = checksum(checksum(0, npy.header, npy.header_bytes), npy.data, npy.bytes);
        uint8_t *entry = a->directory + a->bytes;
        memset(entry, 0, ENTRY);
        memcpy(entry, "PK\1\2\24", 5);
        put_member(entry + 6, sum, bytes, name);
        put32(entry + 42, a->at);
        memcpy(entry + ENTRY, t->name, name - 4);
        memcpy(entry + ENTRY + name - 4, ".npy", 4);
        put_member(record + 4, sum, bytes, name);
        archive_put(a, record, LOCAL);
        archive_put(a, entry + ENTRY, name);
        archive_put(a, npy.header, npy.header_bytes);
        archive_put(a, npy.data, npy.bytes);
        a->bytes += ENTRY + name;
        a->members++;
    }
    rp__free(npy.data);
    return status;
}

static rp_status save(const char *path, const rp_named_tensor *tensors, size_t n) {
    archive a = {.w.fd = -1};
    rp_status status = rp__writer_begin(&a.w, "rp_npz_save", path);
    for (size_t i = 0; i < n && status == RP_OK; i++) status = save_member(&a, &tensors[i]);
    if (status == RP_OK) {
        uint8_t end[END] = "PK\5\6";
        put16(end + 8, a.members);
        put16(end + 10, a.members);
        put32(end + 12, a.bytes);
        put32(end + 16, a.at);
        archive_put(&a, a.directory, a.bytes);
        archive_put(&a, end, END);
    }
    rp_status ended = rp__writer_end(&a.w, status == RP_OK);
    rp__free(a.directory);
    return status == RP_OK ? ended : status;
}

rp_status rp_npz_save_at(const char *site, const char *path, const rp_named_tensor *tensors, size_t n) {
    RP__CALLED_FROM(site);
    if (n > 65534 || (n && !tensors))
        return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_npz_save: it takes at most 65534 tensors, in a list");
    for (size_t i = 0; i < n; i++) {
        const char *name = tensors[i].name;
        if (!name || !*name || strlen(name) > 1000)
            return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_npz_save: tensor %zu needs a name of at most 1000 bytes", i);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(name, tensors[k].name))
                return rp__fail(RP_ERROR_INVALID_ARGUMENT, "rp_npz_save: two tensors have the name `%s`", name);
        RP_TRY(rp__tensor_check(tensors[i].tensor, "rp_npz_save: a tensor"));
    }
    bool grad_mode = rp_set_grad_enabled(false);
    rp_scope scope = rp__scope_begin();
    rp_status status = scope.id ? save(path, tensors, n) : rp_error_status();
    rp__scope_end(scope, NULL, 0);
    (void)rp_set_grad_enabled(grad_mode);
    return status;
}
