/* Structs of options that may grow: their size stands in front. A program of another version has a shorter one, whose missing
   fields are zero, or a longer one, whose further fields must be. */
#ifndef RP_CORE_OPTIONS_H
#define RP_CORE_OPTIONS_H

#include "core/error.h"

/* Copies what the program gave (NULL: nothing) into `out`, which has `known` bytes and begins with its size_t struct_size; the rest
   of it is zero. Fails for a size that was not set, and for fields that only a newer library knows. */
rp_status rp__options_read(const char *function, const void *given, size_t known, void *out);
/* The other way, for a struct that the library fills: as much as the program has room for, and zeros behind. */
rp_status rp__options_write(const char *function, void *given, size_t known, const void *in);

/* A field whose zero is the default and whose negative values are 0. */
static inline double rp__option_or(double given, double otherwise) {
    return given > 0 ? given : given < 0 ? 0 : otherwise;
}

#endif
