/* The order in which chunk partials of a reduction combine: a balanced binary tree over chunk numbers, held as a stack with
   at most one partial a level. Used by the interpreter, for values of any width; the C emitter prints the same loop.
   After `count` chunks, level k holds a partial exactly when bit k of count is set. */
#ifndef RP_KERNEL_TREE_H
#define RP_KERNEL_TREE_H

#include <stdint.h>

/* Chunk number `count` (from 0) arrives: how many levels it combines with, lowest first: stack[0] op it, stack[1] op that,
   ...; the result is stored at the returned level. The older partial is always the left operand. */
static inline unsigned rp__tree_push(uint64_t count) {
    unsigned level = 0;
    while (count >> level & 1) level++;
    return level;
}
/* At the end the stack is folded from the lowest used level up, the older partial left. */

#endif
