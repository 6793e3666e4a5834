/* Protocol buffers, the writing half: fields appended to a growing buffer; a message within a message is a buffer that becomes a
   field of bytes. Knows no message of anybody. Failure (out of memory) sticks in the buffer. */
#ifndef RP_DOORS_ONNX_PROTO_H
#define RP_DOORS_ONNX_PROTO_H

#include "core/text.h"

void rp__proto_int(rp__text *t, unsigned field, int64_t value);
void rp__proto_float(rp__text *t, unsigned field, float value);
void rp__proto_bytes(rp__text *t, unsigned field, const void *data, size_t bytes);
void rp__proto_string(rp__text *t, unsigned field, const char *s);
/* The head of a field of bytes, which the caller appends. */
void rp__proto_head(rp__text *t, unsigned field, size_t bytes);
void rp__proto_message(rp__text *t, unsigned field, rp__text *message); /* which is freed */

#endif
