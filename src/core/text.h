/* Text builder: a growing NUL-terminated buffer with a sticky out-of-memory flag, for dumps, emitters and messages. */
#ifndef RP_CORE_TEXT_H
#define RP_CORE_TEXT_H

#include "core/error.h"

typedef struct rp__text {
    char *data; /* NULL until something was added */
    size_t length, capacity;
    bool failed; /* out of memory once: further calls do nothing */
} rp__text;

void rp__text_add(rp__text *t, const char *format, ...) RP__PRINTF(2, 3);
void rp__text_puts(rp__text *t, const char *s);
void rp__text_write(rp__text *t, const char *bytes, size_t n);
void rp__text_number(rp__text *t,
                     double f); /* the shortest that reads back; a NaN that is not the usual one as its bits */
void rp__text_free(rp__text *t);
/* A program's locale may have another decimal point, of several bytes. What printf wrote of a finite number, n bytes, with a point of
   ours; returns its length. */
size_t rp__text_point(char *number, size_t n);
/* strtod with that point: where the number ends that text begins with; text itself, where it begins with none or memory ran out. */
const char *rp__text_read_number(const char *text, double *out);

/* Copies text, cut where `out` ends, with what a terminal would obey (control bytes, C1 in UTF-8) written as \xNN. */
void rp__printable(char *out, size_t bytes, const char *text);

#endif
