/* The interface of libreprise-onednn.so, the only binary of ours that links oneDNN (and with it a C++ runtime). The library
   opens it at first use and sees one table of functions. A plan is one primitive for one problem on one thread; the library
   cuts a large problem into blocks and runs them on its own pool, so oneDNN's threads never compete with ours and bits do not
   depend on their number. */
#ifndef RP_KERNEL_ONEDNN_ONEDNN_H
#define RP_KERNEL_ONEDNN_ONEDNN_H

#include <stddef.h>
#include <stdint.h>

enum { RP__ONEDNN_MATMUL, RP__ONEDNN_CONV_FORWARD, RP__ONEDNN_CONV_INPUT };
enum { RP__ONEDNN_F32, RP__ONEDNN_BF16, RP__ONEDNN_F16 };
enum { RP__ONEDNN_ABI = 2 };

/* Compared as bytes: zero it first. Operands: 0 the result, then those of kernel/library.h; all of rank `ndim` (products: 3). */
typedef struct rp__onednn_problem {
    int32_t kind, dtype, ndim, bias, spatial;
    int64_t size[3][5], stride[3][5];
    int64_t conv_stride[3], padding[3], padding_end[3], dilation[3], groups;
} rp__onednn_problem;

typedef struct rp__onednn {
    int abi;
    int version[3];
    /* NULL: oneDNN has nothing for it. scratch: bytes that run wants. */
    void *(*plan_new)(const rp__onednn_problem *problem, size_t *scratch);
    /* result, operands, bias (or NULL). 0: done; else a status of oneDNN. One call at a time for a plan. */
    int (*run)(void *plan, void *const addresses[4], void *scratch);
    void (*plan_free)(void *plan);
} rp__onednn;

/* The exported symbol: extern const rp__onednn rp__onednn_table. */
#define RP__ONEDNN_TABLE "rp__onednn_table"

#endif
