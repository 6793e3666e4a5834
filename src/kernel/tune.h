/* The tuner: which schedule of a loop kernel is the fastest on this machine. Candidates are the backend's (rp__loop_backend.schedules);
   in default numbers all of them give the same bits, so what a measurement says changes times and nothing else. Measured on memory of
   the tuner's own, kept in the process and in the disk cache by kernel, class of space (sizes to a factor of two, strides, alignment)
   and machine (model, driver, threads). An entry that does not name exactly these, or whose schedule the backend would not offer, is
   not used. */
#ifndef RP_KERNEL_TUNE_H
#define RP_KERNEL_TUNE_H

#include "device/device.h"
#include "kernel/loop.h"

typedef struct rp__tuned {
    rp__schedule how;     /* all zero: the backend's own choice is the fastest */
    bool known, measured; /* is the rest anything; in this process, not read from the disk */
    uint32_t tried;       /* schedules, the own choice among them */
    int64_t own, best;    /* ns of a launch as the backend chooses, and by `how` */
} rp__tuned;

/* Measures, unless it is known. Not in a capture or under a recorder. A kernel that cannot be measured (it draws, divides integers, is
   a product, has one schedule, takes too much memory) is left as it is. Fails only when the device is lost or memory runs out. */
rp_status rp__tune_measure(rp__device *d, rp__dag *dag, const rp__space *space, bool free);
/* What is known; false: nothing. */
bool rp__tune_find(rp__device *d, rp__dag *dag, const rp__space *space, bool free, rp__tuned *out);
/* Bytes a second, read and written, of a copy of more than the caches hold. Measured once for a machine; 0: it could not be. */
double rp__tune_copy_rate(rp__device *d, bool measure);
/* Bytes that a launch reads and writes, each element once. */
int64_t rp__tune_bytes(const rp__dag *dag, const rp__space *space);

/* For tests: ns from any start; NULL: the machine's clock. And forgets what this process knows, but not the disk. */
extern int64_t (*rp__tune_clock)(void);
void rp__tune_forget(void);

#endif
