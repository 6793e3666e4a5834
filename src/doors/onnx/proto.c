/* See proto.h. Wire types: 0 varint, 2 length and bytes, 5 four bytes, least first. */
#include "doors/onnx/proto.h"

#include <string.h>

static void varint(rp__text *t, uint64_t v) {
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
    rp__text_write(t, bytes, n);
}

static void tag(rp__text *t, unsigned field, unsigned wire) { varint(t, (uint64_t)field << 3 | wire); }

void rp__proto_int(rp__text *t, unsigned field, int64_t value) {
    tag(t, field, 0);
    varint(t, (uint64_t)value);
}

void rp__proto_float(rp__text *t, unsigned field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const char bytes[4] = {(char)(bits & 255), (char)(bits >> 8 & 255), (char)(bits >> 16 & 255), (char)(bits >> 24)};
    tag(t, field, 5);
    rp__text_write(t, bytes, sizeof bytes);
}

void rp__proto_head(rp__text *t, unsigned field, size_t bytes) {
    tag(t, field, 2);
    varint(t, bytes);
}

void rp__proto_bytes(rp__text *t, unsigned field, const void *data, size_t bytes) {
    rp__proto_head(t, field, bytes);
    if (bytes) rp__text_write(t, data, bytes);
}

void rp__proto_string(rp__text *t, unsigned field, const char *s) { rp__proto_bytes(t, field, s, strlen(s)); }

void rp__proto_message(rp__text *t, unsigned field, rp__text *message) {
    rp__proto_bytes(t, field, message->data, message->length);
    t->failed = t->failed || message->failed;
    rp__text_free(message);
}
