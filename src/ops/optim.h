/* Update rules: what foreach_update_ (optim.c) does with tensors that are walked together. A rule says which lists it
   reads and writes, how its numbers reach the kernel, and the update as a formula; optim_rules.c has the table.
   Lists, in order: what the op calls self, other (gradients), first, second, third. step, lr, extra, momentum and found_inf are
   0-d tensors (float32 or float64) of the device that the kernel reads, so that a recorded update is right at every
   replay. */
#ifndef RP_OPS_OPTIM_H
#define RP_OPS_OPTIM_H

#include "kernel/loop.h"

enum { RP__UPDATE_LISTS = 5, RP__UPDATE_NUMBERS = 8, RP__UPDATE_SCALARS = 12 };
/* Lists, as bits. */
enum { RP__SELF = 1, RP__OTHER = 2, RP__FIRST = 4, RP__SECOND = 8, RP__THIRD = 16 };

/* What shapes the formula beside the rule. */
enum {
    RP__UPDATE_DECAY = 1,     /* there is a weight decay */
    RP__UPDATE_DECOUPLED = 2, /* which shrinks the parameter, and is not added to the gradient */
    RP__UPDATE_MAXIMIZE = 4,
    RP__UPDATE_MOMENTUM = 8,
    RP__UPDATE_NESTEROV = 16,
    RP__UPDATE_DAMPENED = 32,
    RP__UPDATE_AMSGRAD = 64,
    RP__UPDATE_CENTERED = 128,
    RP__UPDATE_FLAGS = 256 /* all are below */
};

/* Numbers of each rule, in order:
     sgd       momentum, dampening, weight_decay                     first: momentum_buffer, under MOMENTUM
     adam      beta1, beta2, eps, weight_decay                       exp_avg, exp_avg_sq, max_exp_avg_sq under AMSGRAD
     adamax    beta1, beta2, eps, weight_decay                       exp_avg, exp_inf
     nadam     beta1, beta2, eps, weight_decay, momentum_decay       exp_avg, exp_avg_sq; extra: mu_product of this step
     radam     beta1, beta2, eps, weight_decay                       exp_avg, exp_avg_sq
     rmsprop   alpha, eps, weight_decay, momentum                    square_avg, momentum_buffer under MOMENTUM,
     grad_avg under CENTERED adagrad   lr_decay, weight_decay, eps                           sum
     adadelta  rho, eps, weight_decay                                square_avg, acc_delta
     lion      beta1, beta2, weight_decay                            exp_avg
     lamb      beta1, beta2, eps, weight_decay                       self: the update, first, second: exp_avg,
     exp_avg_sq, third: the parameter descend                                                         self -= lr *
     first (0-d) * other scale                                                           self *= extra
     clamp     low, high                                             self within bounds
     ema       weight                                                self += weight (other - self); other at step 1
     average                                                         self += (other - self) / step: the mean of all
     others so far
   The step was advanced before. */

/* A formula in the making: values in the parameter's compute type; those of lists are overwritten by what is to be
   stored. */
typedef struct rp__update {
    rp__dag_builder *b;
    rp_dtype type;
    uint32_t flags;
    rp__val list[RP__UPDATE_LISTS];
    rp__val step, lr, extra;
    rp__val momentum;     /* in the type of its tensor; RP__NO_VAL: the number is the momentum */
    uint16_t step_access; /* for those that calculate with it in float64 */
} rp__update;

typedef struct rp__update_rule {
    const char *name;
    uint8_t lists, written;              /* bits; always */
    uint8_t momentum, amsgrad, centered; /* lists besides, under these flags; written as well */
    uint8_t numbers;                     /* lists of 0-d tensors */
    bool step, lr, extra;                /* what it reads */
    bool cycles;                         /* and its momentum or beta1, if that is a tensor */
    uint8_t n_numbers, n_scalars;        /* of the op; of the kernel, which come from them */
    uint32_t flags;                      /* that it knows */
    const char *(*check)(const double *numbers,
                         uint32_t flags); /* what is wrong with them, NULL: nothing; NULL: any will do */
    void (*scalars)(const double *numbers, rp_scalar *out);
    void (*build)(rp__update *u);
} rp__update_rule;

/* NULL: no rule has that name. */
const rp__update_rule *rp__update_rule_find(const char *name);
/* The lists of a rule under flags. */
static inline uint8_t rp__update_lists(const rp__update_rule *r, uint32_t flags) {
    return (uint8_t)(r->lists | (flags & RP__UPDATE_MOMENTUM ? r->momentum : 0) |
                     (flags & RP__UPDATE_AMSGRAD ? r->amsgrad : 0) | (flags & RP__UPDATE_CENTERED ? r->centered : 0));
}

#endif
