/* Library ops: what the loop form does not express. Exactly one kernel file a device stands behind each function; a function
   turns operands into one launch record (bind), so that eager, capture and programs use the same one. Shapes are values. */
#ifndef RP_KERNEL_LIBRARY_H
#define RP_KERNEL_LIBRARY_H

#include "device/generator.h"
#include "kernel/loop.h"
#include "kernel/operand.h"
#include "kernel/product.h"
#include "kernel/steps.h"

/* What a scatter does where it writes. Under rp__library_call.deterministic, and on a CPU always, in the order of the indices along
   dim: of several values that are SET in one place the last one stays. */
typedef enum rp__scatter {
    RP__SCATTER_ADD,
    RP__SCATTER_SET,
    RP__SCATTER_MUL,
    RP__SCATTER_MAX,
    RP__SCATTER_MIN,
    RP__SCATTERS
} rp__scatter;

typedef struct rp__library_call { /* filled by the caller; the union by op */
    const char *op, *site;
    rp__conv_geometry conv;
    rp__neighbours neighbours; /* of a result without memory */
    int64_t k, dim;            /* topk */
    bool largest, sorted, deterministic, replacement;
    uint8_t precision; /* products and convolutions of f32: rp__float32_precision */
    rp__scatter scatter;
    int64_t limit; /* choose */
    bool first;
    bool back;            /* ctc_carry */
    uint8_t steps;        /* RP_STEPS_.. (kernel/steps.h) */
    double least;         /* draws of gamma distributions: no smaller */
    double range[2];      /* count_bins */
    rp__random_draw draw; /* multinomial, attention_place, steps */
    struct rp__attention {
        double scale, dropout; /* of the scores; of the weights */
        bool causal;           /* query i sees keys 0 .. i */
    } attention;
    struct rp__recurrence {
        uint8_t cell; /* rp__recurrent_cell */
        bool reverse; /* along the sequence: from its last step to the first */
    } recurrence;
    void *workspace; /* of the size that *_workspace returned */
    struct rp__storage *workspace_storage;
    size_t workspace_bytes;
} rp__library_call;

/* Each op: bytes of workspace it wants for these operands, and bind. Operands in the order of the comment. */
typedef enum rp__library_op {
    RP__LIB_MATMUL, /* out (..., M, N) = a (..., M, K) b (..., K, N) [+ bias (N) or none]; batch dims broadcast by stride 0 */
    RP__LIB_CONV_FORWARD, /* out (N, O, *) , x (N, C, *), w (O, C/g, *), bias (O) or none */
    RP__LIB_CONV_INPUT,   /* dx, dy, w */
    RP__LIB_CONV_WEIGHT,  /* dw, dy, x */
    RP__LIB_TOPK,         /* values (..., k), indices i64 (..., k), x; along dim */
    RP__LIB_NONZERO,      /* indices i64 (numel, ndim), of which the first `count` rows are defined, count i64 (), x */
    RP__LIB_MULTINOMIAL,  /* out i64 (rows, samples), weights f32 or f64 (rows, n) */
    RP__LIB_SCATTER, /* out (already holding the input), index i64, src; along dim: deterministic form in index order */
    /* out (N, C, S), zeros: of each place p and each k, weight[n, k, p] grad[n, c, p] is added at index[n, k, p], below 0 nowhere. The deterministic
       form goes along p, then k. grad (N, C, P) of any floats, index i32 or i64 and weight (N, K, P), K <= RP__MAX_TAPS, weight of out's type, f32 or f64 */
    RP__LIB_WEIGHTED_SCATTER, /* out, grad, index, weight */
    /* out (bins) of i32 or i64, zeros: how many elements of x, of any floats, lie in each of as many parts of call->range; one at its end is in
       the last, NaN in none */
    RP__LIB_COUNT_BINS, /* out, x (n) */
    RP__LIB_CHOOSE, /* predicate bool (1) [, counter i64 (1), written]: makes the decision `decision` of a device graph (device.h):
                       1 if the predicate holds and, if limit > 0, it held fewer than `limit` times since `first`. The first word is the
                       decision's handle, 0 until the launch is part of a graph. */
    /* Attention (src/ops/attention.def has the sizes; what may be absent has no base). The weights of one (b, h) are numbered row by row
       for dropout. KEYS: a device may give dq there, too; its QUERIES are nothing then. */
    RP__LIB_ATTENTION,         /* out, logsumexp, q, k, v, mask or absent, place i64 (2) or absent */
    RP__LIB_ATTENTION_KEYS,    /* dq, dk, dv, grad, q, k, v, logsumexp, delta, mask or absent, place or absent */
    RP__LIB_ATTENTION_QUERIES, /* the same */
    RP__LIB_ATTENTION_PLACE,   /* place: seed and first counter of call->draw */
    RP__LIB_ATTENTION_KEEP,    /* keep bool (B, H, L, S), place */
    /* The ways of CTC through L states, all sizes (T, N, L): a state is reached from itself, the one before and, where skips says so,
       the one before that. REACH: logarithms of the probability of being there; score is that of the state itself; the states 0 and
       1 can be begun with; from a sequence's length on nothing changes. CARRY: along these ways x is handed on and added up, out[t] = x[t] +
       W(t) out[t - 1], W the probabilities of having come that way; call->back: against them, by W's transpose. */
    RP__LIB_CTC_REACH, /* reach, score, skips bool (N, L), lengths i64 (N); all contiguous */
    RP__LIB_CTC_CARRY, /* out, x, reach, skips, lengths */
    /* One recurrent layer in one direction: T > 0 steps, N sequences, H units of G gates each (of PyTorch, in its order). x is what the inputs
       add to the gates' sums. Of T + 1 states one is that before the first step: the first one, or if reversed the last. Contiguous but
       x, of which a row is; of lstm alone: cells, last_cell, c, dc, grad_cell; of lstm and gru: kept, what a step leaves for the way back (i f g o; r z n and
       what r multiplies). An operand that the cell has not, or that is absent, has no base.
       BACK: the gradients of the sums of all steps, dx, and where they differ dy, those of the part that the weights made (gru); of the first
       states. From those of the states, of the last one, of the last cell, each or absent. */
    RP__LIB_RECUR, /* states (T + 1, N, H), last (N, H), cells, last_cell, kept (T, N, 4 H), x (T, N, G H), w (G H, H), b (G H), h (N, H), c; h, c: absent ones are zeros */
    RP__LIB_RECUR_BACK, /* dx (T, N, G H), dy, dh (N, H), dc, grad (T + 1, N, H), grad_last, grad_cell, states, cells, kept, w */
    RP__LIB_STEPS, /* out, a, b, vectors (n) of f32 or f64: call->steps of kernel/steps.h of each element; draws have a counter an element */
    RP__LIB_COUNT
} rp__library_op;
enum { RP__MAX_TAPS = 16 };        /* of RP__LIB_WEIGHTED_SCATTER */
enum { RP__CHOOSE_PREDICATE = 1 }; /* the word of a RP__LIB_CHOOSE launch that is its predicate's address */

/* One matrix product of a chain of them, with what follows each of its sums. From the second product on, the first factor is rows that the
   stage before made. */
enum { RP__CHAIN_MAX = 6 };
typedef struct rp__library_stage {
    /* Of a question: RP__LIB_MATMUL's, without memory; the order of its sums. */
    rp__operand o[3];
    rp__order order;
    /* Of a launch: a CONTRACT over a space (kernel/contract.h) whose factors are read; what the stage behind it reads is what store `rows` of
       dag->rest stores, in memory too if that has some. */
    rp__dag *dag;
    const rp__space *space;
    unsigned rows;
} rp__library_stage;
typedef enum rp__chain_answer {
    RP__CHAIN_YES,
    RP__CHAIN_TOO_LARGE, /* one launch would be slower, or not fit */
    RP__CHAIN_LAYOUT,    /* a product does not read the rows of the one before as they are */
    RP__CHAIN_OTHER_SUM  /* one of them is computed elsewhere, in another order */
} rp__chain_answer;

/* Bit k: operand k densely, with its channels innermost, or by rows; there: lies elsewhere with its channels innermost, so that no copy need be
   paid for, says the caller, who zeroes the others; likes: it would be read faster with its channels innermost, if not for a copy. */
typedef struct rp__turned {
    uint32_t channels, rows, there, likes;
} rp__turned;

typedef struct rp__library {
    size_t (*workspace)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                        const rp__library_call *call);
    rp_status (*bind)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                      const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);
    /* The launches behind that of bind, for what those before left in the workspace: number `step` from 1 on, until one is without kernel.
       NULL: never. */
    rp_status (*finish)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                        const rp__library_call *call, unsigned step, rp__launch_buffer *buffer, rp__launch *out);
    /* The order in which a product or convolution adds up (product.h), by sizes, strides and dtypes alone; RP__ORDER_ELSEWHERE:
       another library's, or one that no CONTRACT has. */
    rp__order (*order)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                       const rp__library_call *call);
    /* The most that computing an element of factor k (0, 1) of a product may cost (rp__node_cost), where a kernel of that order makes it while
       it runs instead of reading it: it does so for each of its tiles that need it. 0: none makes it. NULL: never. */
    unsigned (*factor_cost)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                            const rp__library_call *call, rp__order order, unsigned k);
    /* Convolutions: which operands are to be read, and the result written, as copies that lie otherwise. The bits of the result are the same, or
       those of a library that is told to read them so. NULL: no device's kernel wants it. */
    rp_status (*turned)(struct rp__device *d, rp__library_op op, const rp__operand *operands, size_t n,
                        const rp__library_call *call, rp__turned *out);
    /* Of how many sequences at the most are RECUR and BACK better than a product and its cells for each step? 0: none. NULL: never. */
    int64_t (*recurs)(struct rp__device *d, rp__recurrent_cell cell, rp_dtype dtype, int64_t units);
    /* One launch for two that have the same bits in it, as products of one input by several weights; without kernel: there is none. Neither
       touches what the other one writes; a may be such a launch already. buffer: not that of a or b. NULL: never. */
    rp_status (*join)(struct rp__device *d, const rp__launch *a, const rp__launch *b, rp__launch_buffer *buffer,
                      rp__launch *out);
    /* Is one launch for these products, with the bits that they have one by one, better? Answered by sizes, strides and dtypes.
       NULL: never. */
    rp__chain_answer (*chain)(struct rp__device *d, const rp__library_stage *stages, size_t n);
    rp_status (*bind_chain)(struct rp__device *d, const rp__library_stage *stages, size_t n,
                            const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);
    const char *(*name)(struct rp__device *d, rp__library_op op); /* who serves it: "reprise", "onednn", "cublasLt" */
} rp__library;

#define RP__NO_WAY                                                                                                     \
    (-1e30) /* the logarithm of a state without a way: low but finite, so that no difference of two is NaN */
/* What has one kernel on a device: its bind, which fills one launch record from operands that fit, and the bytes that it wants. */
typedef rp_status rp__library_bind(struct rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                   const rp__library_call *call, rp__launch_buffer *buffer, rp__launch *out);
typedef size_t rp__library_workspace(struct rp__device *d, rp__library_op op, const rp__operand *o, size_t n,
                                     const rp__library_call *call);
typedef struct rp__library_family {
    rp__library_bind *bind;           /* NULL: not on this device */
    rp__library_workspace *workspace; /* NULL: none */
} rp__library_family;
/* Of a table by op: those of rp__library. Operands are checked here, for every device. */
rp_status rp__family_bind(const rp__library_family *families, struct rp__device *d, rp__library_op op,
                          const rp__operand *o, size_t n, const rp__library_call *call, rp__launch_buffer *buffer,
                          rp__launch *out);
size_t rp__family_workspace(const rp__library_family *families, struct rp__device *d, rp__library_op op,
                            const rp__operand *o, size_t n, const rp__library_call *call);

/* Word `word` is the address of `o`; its slot, behind those of `out`, says which bytes may be touched. */
void rp__operand_slot(const rp__operand *o, uint32_t word, uint32_t access, rp__launch_buffer *buffer, rp__launch *out);
/* Of n operands: word k is operand k's address. `access` gives RP__READ or RP__WRITE (or both) of each. */
void rp__operand_slots(const rp__operand *o, size_t n, const uint32_t *access, rp__launch_buffer *buffer,
                       rp__launch *out);
/* The call's workspace, of `bytes`; without bytes 0 and no slot. */
rp_status rp__workspace_slot(const rp__library_call *call, size_t bytes, uint32_t word, rp__launch_buffer *buffer,
                             rp__launch *out);
static inline int64_t rp__operand_numel(const rp__operand *o) {
    int64_t n = 1;
    for (unsigned i = 0; i < o->ndim; i++) n *= o->size[i];
    return n;
}

/* workspace + bind + rp__launch_on. */
rp_status rp__library_run(struct rp__device *d, rp_stream *s, rp__library_op op, const rp__operand *operands, size_t n,
                          rp__library_call *call);
/* Strides of a convolution's operand whose channels are innermost. */
void rp__channels_innermost(const rp__operand *o, int64_t *stride);
/* A chain that the device said yes to, in one launch: bind_chain + rp__launch_on. */
rp_status rp__library_run_chain(struct rp__device *d, rp_stream *s, const rp__library_stage *stages, size_t n,
                                const rp__library_call *call);

#endif
