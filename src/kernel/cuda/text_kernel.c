/* See text_kernel.h. */
#include "kernel/cuda/text_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "kernel/cuda/nvrtc.h"
#include "kernel/product.h"

enum { NAME = 64 };

static rp__mutex lock = RP__MUTEX_INIT;
static rp__map known;

/* The text with the kernel's name and the parts in their places. The name stands in the text itself: what looks for kernels in a
   source need not expand macros. */
static void add_filled(const char *text, size_t length, const char *name, const rp__text_parts *parts, rp__text *out) {
    static const struct {
        const char *mark;
        size_t length; /* without the last character, which stays */
    } marks[] = {{"RP_NAME(", 7},         {"RP_FOLLOW\n", 9},     {"RP_FACTOR_A\n", 11},  {"RP_FACTOR_B\n", 11},
                 {"RP_WIDE_TYPES\n", 13}, {"RP_WIDE_HELD\n", 12}, {"RP_WIDE_LINE\n", 12}, {"RP_WIDE_REST\n", 12}};
    const char *const to[] = {name,           parts->follow,  parts->factor[0], parts->factor[1],
                              parts->wide[0], parts->wide[1], parts->wide[2],   parts->wide[3]},
                      *end = text + length;
    for (;;) {
        const char *found = NULL;
        unsigned which = 0;
        for (unsigned k = 0; k < sizeof marks / sizeof *marks; k++) {
            const char *at = memmem(text, (size_t)(end - text), marks[k].mark, marks[k].length + 1);
            if (at && (!found || at < found)) found = at, which = k;
        }
        if (!found) break;
        rp__text_write(out, text, (size_t)(found - text));
        if (to[which]) rp__text_puts(out, to[which]);
        text = found + marks[which].length;
    }
    rp__text_write(out, text, (size_t)(end - text));
}

void rp__text_kernel_source(const char *name, uint64_t facts, rp__text_kernel_macros *macros, const char *text,
                            size_t length, const rp__text_parts *parts, rp__text *out) {
    rp__text head = {0};
    rp__text_add(out, "#define RP_WORDS %s_words\n", name);
    macros(facts, &head);
    if (head.data) add_filled(head.data, head.length, name, parts, out);
    out->failed = out->failed || head.failed;
    rp__text_free(&head);
    add_filled(text, length, name, parts, out);
}

/* Of what the text is made of, the same in each process. */
static rp__hash text_hash(const rp__text_kernel_key *key) {
    rp__hash h = rp__hash_bytes(&key->facts, sizeof key->facts, rp__hash_none());
    if (!key->parts) return h;
    const char *const parts[] = {key->parts->follow,  key->parts->factor[0], key->parts->factor[1], key->parts->wide[0],
                                 key->parts->wide[1], key->parts->wide[2],   key->parts->wide[3]};
    for (unsigned k = 0; k < sizeof parts / sizeof *parts; k++) {
        const char *part = parts[k] ? parts[k] : "";
        h = rp__hash_bytes(part, strlen(part) + 1, h);
    }
    return h;
}

/* Without parts it says all. */
static void write_name(const rp__text_kernel_key *key, char *name, size_t room) {
    if (key->parts)
        (void)snprintf(name, room, "rp_%s_%llx_with", key->family, (unsigned long long)text_hash(key).lo);
    else
        (void)snprintf(name, room, "rp_%s_%llx", key->family, (unsigned long long)key->facts);
}
bool rp__text_kernel_facts(const rp__kernel *k, const char *family, uint64_t *facts) {
    char name[NAME];
    const char *at = k->kind == RP__KERNEL_CUDA && k->name ? strrchr(k->name, '_') : NULL;
    if (!at) return false;
    const rp__text_kernel_key key = {family, strtoull(at + 1, NULL, 16), NULL};
    write_name(&key, name, sizeof name);
    *facts = key.facts;
    return strcmp(name, k->name) == 0;
}

rp_status rp__text_kernel(rp__device *d, const rp__text_kernel_key *key, rp__text_kernel_macros *macros,
                          const char *text, size_t length, rp__kernel **out) {
    const uint64_t of[2] = {(uint64_t)(uintptr_t)key->family, d->slot};
    const rp__hash at = rp__hash_bytes(of, sizeof of, text_hash(key));
    rp__lock(&lock);
    rp__kernel *k = rp__map_get(&known, at);
    rp__unlock(&lock);
    if (k) {
        *out = k;
        return RP_OK;
    }
    char name[NAME];
    rp__text source = {0};
    write_name(key, name, sizeof name);
    rp__text_kernel_source(name, key->facts, macros, text, length, key->parts ? key->parts : &(rp__text_parts){0},
                           &source);
    rp_status status = source.failed ? RP__OOM("source of a CUDA kernel")
                                     : rp__nvrtc_kernel(d, source.data, name, RP__KERNEL_CUDA, &k);
    rp__text_free(&source);
    RP_TRY(status);
    if (rp__nvrtc_is_pending(k)) { /* the batch holds it */
        rp__kernel_release(k);
        *out = k;
        return RP_OK;
    }
    rp__lock(&lock);
    rp__kernel *other = rp__map_get(&known, at);
    bool kept = other || rp__map_put(&known, at, k);
    rp__unlock(&lock);
    if (other || !kept) rp__kernel_release(k);
    if (!kept) return RP__OOM("a CUDA kernel");
    *out = other ? other : k;
    return RP_OK;
}

void rp__text_kernel_dtype(rp_dtype dtype, rp__text *out) {
    const char *type = rp__dtypes[dtype].cuda, *acc = dtype == RP_F64             ? "double"
                                                      : rp__dtype_is_float(dtype) ? "float"
                                                                                  : "rp_i64";
    rp__text_add(out, "#define RP_T %s\n#define RP_ACC %s\n", type, acc);
    if (rp__dtype_is_float(dtype) && rp__dtype_is_narrow(dtype))
        rp__text_add(out,
                     "#define RP_LOAD(x) rp_cvt_%s_to_f32(x)\n#define RP_STORE(x) rp_cvt_f32_to_%s(x)\n"
                     "#define RP_STORE_TWO(x, y) rp_cvt_f32_to_%sx2(x, y)\n",
                     rp__dtypes[dtype].short_name, rp__dtypes[dtype].short_name, rp__dtypes[dtype].short_name);
    else
        rp__text_add(out, "#define RP_LOAD(x) ((%s)(x))\n#define RP_STORE(x) ((%s)(x))\n", acc, type);
    rp__text_add(out, "#define RP_BLOCK %d\n#define RP_GROUP %d\n", RP__PRODUCT_BLOCK / (dtype == RP_F64 ? 2 : 1),
                 RP__PRODUCT_GROUP);
    if (dtype == RP_F64)
        rp__text_puts(out, "#define RP_MULADD(a, b, c) rp_fma_f64(a, b, c)\n");
    else if (rp__dtype_is_float(dtype))
        rp__text_puts(out, "#define RP_MULADD(a, b, c) rp_fma_f32(a, b, c)\n");
    else
        rp__text_puts(out, "#define RP_MULADD(a, b, c) ((c) + (a) * (b))\n");
}
