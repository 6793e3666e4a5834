/* What Unicode says of characters, by utf8proc, which is opened at run time (libutf8proc.so.2 or .3;
   REPRISE_LIBUTF8PROC names another file). ASCII needs it not. UTF-8 itself is read and written here. */
#ifndef RP_CORE_UNICODE_H
#define RP_CORE_UNICODE_H

#include <stdint.h>

#include "core/error.h"

enum { RP__UNICODE_WRONG = 0xFFFD }; /* stands for bytes that are no UTF-8 */

/* The character at text (bytes > 0) and the bytes that it takes, at least 1. */
uint32_t rp__utf8_read(const char *text, size_t bytes, size_t *length);
size_t rp__utf8_write(uint32_t c, char out[4]); /* returns its bytes */

typedef enum rp__kind {
    RP__KIND_OTHER, /* symbols, enclosing and spacing marks, separators, what is not assigned */
    RP__KIND_LETTER,
    RP__KIND_NUMBER,
    RP__KIND_PUNCTUATION,
    RP__KIND_MARK,   /* nonspacing */
    RP__KIND_CONTROL /* control, format and private characters */
} rp__kind;

/* Of these, c above 127 needs rp__unicode_need to have succeeded. */
rp__kind rp__unicode_kind(uint32_t c);
bool rp__unicode_blank(uint32_t c); /* White_Space */
bool rp__unicode_word(uint32_t c);  /* what \w matches: letters, marks, digits, connectors */
/* Its lower case, up to two characters; returns how many. */
int rp__unicode_lower(uint32_t c, uint32_t out[2]);
/* Canonical decomposition (NFD): *out, to be freed with rp__free, has *n_out characters. */
rp_status rp__unicode_decompose(const char *text, size_t bytes, uint32_t **out, size_t *n_out);

/* Fails, naming the package, where utf8proc is absent. */
rp_status rp__unicode_need(const char *what);
size_t rp__unicode_report(char *text, size_t size); /* for rp_doctor */

#endif
