/* What loading a program's state asks of loaders (loader.c), besides the public calls. */
#ifndef RP_IO_LOADER_H
#define RP_IO_LOADER_H

#include <reprise_io.h>

/* Is it a place to which rp_loader_seek goes? l is a loader. */
bool rp__loader_has(const rp_loader *l, int64_t epoch, int64_t batch);

#endif
