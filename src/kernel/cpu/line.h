/* Call of a line function: emitted C (emit_line.c) that runs whole rows of contiguous elements, phase by phase. Filled by line.c;
   pasted before emitted C, so it stands alone. */
#ifndef RP_KERNEL_CPU_LINE_H
#define RP_KERNEL_CPU_LINE_H

#include <stdint.h>

typedef struct rp__line {
    char *const *base; /* address of each access at the first row */
    const int64_t *
        row; /* of each access: bytes from a row to the next; NULL: there is one, and programs of elements have no other */
    const char *blocks; /* uniform values, 64 bytes each */
    char *kept;         /* row scratch: kept_cap elements of each kept value */
    int64_t kept_cap;   /* a multiple of 64, not less than n */
    int64_t rows, n;    /* rows, elements of each */
    uint64_t still;     /* bit a: access a is one value for a row (programs of elements only; others: 0) */
    int stream;         /* stores pass the caches by: every stored row is aligned to 64 bytes */
    /* Rows along which some accesses do not run on, element after element: bit a of `apart`. A phase has its elements [first, last) of those
       brought to place[a], and taken from there, a chunk at a time. */
    uint64_t apart;
    char *const *place;
    void *pieces; /* what `bring` and `take` go by */
    void (*bring)(const struct rp__line *l, int64_t row, uint64_t accesses, int64_t first, int64_t last);
    void (*take)(const struct rp__line *l, int64_t row, uint64_t accesses, int64_t first, int64_t last);
    /* Of rows that read at computed places: what CHECK_INDEX gives, and where it tells of what is outside. */
    int64_t (*check)(const struct rp__line *l, int64_t index, int64_t bound, int wrap);
    void *errors;
    uint64_t tag;
    /* chunk functions, one a phase: chunks [first, last) of one row of n elements */
    int64_t first, last, chunks; /* chunks: of the row */
    const char *values;          /* row values, 64 bytes each */
    uint64_t *partials;          /* [reduction][chunk] */
} rp__line;
typedef void rp__line_fn(const rp__line *l);
#ifndef RP_LINE_FN
#define RP_LINE_FN /* how emitted line functions are declared */
#endif

#endif
