/* Spaces for walks that know no axes but those along rows: dims of all others in the order of memory. backend.c binds by it. */
#ifndef RP_KERNEL_CPU_POINTS_H
#define RP_KERNEL_CPU_POINTS_H

#include "kernel/loop.h"

typedef struct rp__points {
    rp__space space;
    rp__space_access accesses[RP__DAG_MAX_ACCESSES];
    rp__space_window windows[RP__DAG_WINDOWS];
} rp__points;

/* The space with its outer dims, or for points all dims, by the strides of what is written, then of what is read, elements before row
   values, and merged where all accesses walk two alike; they are dims of axis 0. Which element is where, in which row, and so any result, is
   the same. NULL: the order is right as it is; else &out->space. */
const rp__space *rp__points_in_order(const rp__dag *dag, const rp__space *space, rp__points *out);

#endif
