/* How much memory the system can still give the process. Linux promises any address space and kills who touches too much of it;
   so the CPU's segments are refused by these numbers. */
#ifndef RP_DEVICE_CPU_MEMORY_H
#define RP_DEVICE_CPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of memory and swap: the least of what the machine has and of what each control group around the process allows (v1 and
   v2). UINT64_MAX where the system does not say. *limit (of n bytes, cut if need be) names what sets the number. `root` is put
   before each path: "", or a test's folder. */
uint64_t rp__cpu_memory_left(const char *root, char *limit, size_t n);
/* Of `reserved` bytes of address space of the process those that were certainly never touched: the system has promised them, and
   counts them nowhere. */
uint64_t rp__cpu_memory_promised(const char *root, uint64_t reserved);

#endif
