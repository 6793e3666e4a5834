/* Errors that kernels find in data. A kernel clamps and writes (code, launch number, index, bound) once; synchronisation,
   host copies, rp_item and the next run of a compiled program of a GPU turn it into the sticky error of the thread with the op and line of
   the launch. What another library fails at when its call is over is told in the same way. */
#ifndef RP_DEVICE_ERROR_RECORD_H
#define RP_DEVICE_ERROR_RECORD_H

#include "device/device.h"

/* The numbers are known to kernels; texts are in error_record.c. */
typedef enum rp__error_code {
    RP__ERROR_INDEX = 1,
    RP__ERROR_DIVISION = 2,
    RP__ERROR_WEIGHT = 3,       /* multinomial: a weight is negative, infinite or NaN; index: the row */
    RP__ERROR_WEIGHT_SUM = 4,   /* multinomial: no weight of the row is positive */
    RP__ERROR_WEIGHT_COUNT = 5, /* multinomial without replacement: fewer positive weights than samples */
    RP__ERROR_USER = 6,         /* the CPU function of a user's op failed; index: its rp_status */
    RP__ERROR_CODES
} rp__error_code;
#define RP__USER_FAILED "the op's CPU function failed"

/* Shared with kernels: six 64-bit words. word 0: state (0 free, 1 being written, 2 written). */
typedef struct rp__error_record {
    _Atomic uint64_t state;
    uint64_t code; /* rp__error_code */
    uint64_t tag;  /* rp__error_tag of the launch */
    int64_t index, bound;
    uint64_t reserved;
} rp__error_record;

/* A small table tag -> (op, site) and the op in force, of which op may be a part: 64-bit tag to be put into a parameter word of a
   checking kernel. Constant strings: they are compared and kept as pointers. 0 (no op, no site) when the table is full or out of memory. */
uint64_t rp__error_tag(const char *op, const char *site);
/* CPU kernels call these. */
void rp__error_record_put(rp__error_record *r, uint64_t tag, int64_t index, int64_t bound);
void rp__error_record_put_division(rp__error_record *r, uint64_t tag);
void rp__error_record_put_code(rp__error_record *r, rp__error_code code, uint64_t tag, int64_t index, int64_t bound);
/* The same of work that another library does on d: any thread, the text is copied. The first is kept until it is told. */
void rp__error_record_put_text(rp__device *d, uint64_t tag, const char *text);
/* Turns a written record, or such a text, into the sticky error and clears it. RP_OK when empty. */
rp_status rp__error_record_check(rp__device *d);

#endif
