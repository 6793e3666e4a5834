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
enum { RP__ONEDNN_ABI = 3 };

/* Compared as bytes: zero it first. Operands: 0 the result, then those of kernel/library.h; all of rank `ndim` (products: 3). */
typedef struct rp__onednn_problem {
    int32_t kind, dtype, ndim, bias, spatial;
    int64_t size[3][5], stride[3][5];
    int64_t conv_stride[3], padding[3], padding_end[3], dilation[3], groups;
} rp__onednn_problem;

/* A net: calls one behind the other over values of float32; what follows a product or convolution is part of its call. A value is the
   caller's memory, laid out by strides, whose address is given at each run; or the net's own, laid out as its maker likes unless it is
   `plain` (row-major), as that must be which others are views of. */
typedef struct rp__onednn_value {
    int32_t ndim;
    int32_t root;    /* the value whose memory it lies in: itself, or a lower one of which it is a view */
    int32_t address; /* of a root: number of the address; -1: the net's own */
    int32_t plain;
    int64_t size[5], stride[5], offset; /* elements; offset: of a view */
    const void *fixed; /* a root's bytes that never change and are there while the net is; NULL: they may */
} rp__onednn_value;

/* Of one operand; or of the result and a second: one number a channel (of a product: a column), or, once a call and of ADD alone, one of
   the result's sizes. */
enum {
    RP__ONEDNN_RELU,
    RP__ONEDNN_GELU,
    RP__ONEDNN_GELU_TANH,
    RP__ONEDNN_TANH,
    RP__ONEDNN_SIGMOID,
    RP__ONEDNN_ADD,
    RP__ONEDNN_MUL,
    RP__ONEDNN_POSTS
};
enum { RP__ONEDNN_CHAIN = 8 };
typedef struct rp__onednn_call {
    rp__onednn_problem problem; /* kind, spatial, geometry: sizes are those of values */
    int32_t out,
        in[3]; /* in: operands and bias (-1: none) of a product (M, K) by the transposed (N, K), or of a convolution */
    int32_t n_posts;
    struct {
        int32_t kind, value;
    } post[RP__ONEDNN_CHAIN];
} rp__onednn_call;

typedef struct rp__onednn {
    int abi;
    int version[3];
    /* NULL: oneDNN has nothing for it. scratch: bytes that run wants. */
    void *(*plan_new)(const rp__onednn_problem *problem, size_t *scratch);
    /* result, operands, bias (or NULL). 0: done; else a status of oneDNN. One call at a time for a plan. */
    int (*run)(void *plan, void *const addresses[4], void *scratch);
    void (*plan_free)(void *plan);
    /* For so many threads of oneDNN's. NULL: it has nothing for it. */
    void *(*net_new)(const rp__onednn_value *values, int n_values, const rp__onednn_call *calls, int n_calls,
                     int threads);
    int (*net_run)(void *net, void *const *addresses); /* one call at a time */
    void (*net_free)(void *net);
} rp__onednn;

/* The exported symbol: extern const rp__onednn rp__onednn_table. */
#define RP__ONEDNN_TABLE "rp__onednn_table"

#endif
