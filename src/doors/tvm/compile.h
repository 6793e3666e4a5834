/* An ONNX model as a shared object: TVM's compiler is written in Python, so a Python process runs it, once a model; what came of it is
   kept in the cache of kernels on disk. */
#ifndef RP_DOORS_TVM_COMPILE_H
#define RP_DOORS_TVM_COMPILE_H

#include "core/text.h"
#include "kernel/disk_cache.h"

/* path: of the object. python: the program; target: in TVM's words; identity: of the compiler, a part of the key. Fails with a
   sticky error that has the last line that the compiler wrote. */
rp_status rp__tvm_compile(const char *python, const rp__text *model, const char *target, const char *identity,
                          int seconds, char path[RP__DISK_PATH]);

#endif
