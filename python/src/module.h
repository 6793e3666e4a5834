/* What the files of the C module share. The module speaks Python's limited API (3.10), so that one build serves every Python 3.10
   and newer, and the public interface of libreprise. */
#ifndef REPRISE_PY_MODULE_H
#define REPRISE_PY_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#define REPRISE_NO_OPS
#include <reprise.h>
#include <reprise_ir.h>

#include "dlpack_abi.h"

/* ---- errors: NULL or -1 with a Python error set */
extern PyObject *py_error;        /* reprise.Error */
void *py_fail(const char *where); /* raises what the thread's sticky error says, and clears it */

/* ---- text that outlives everything: names of ops, call sites. NULL with a Python error. */
const char *py_keep_text(PyObject *text);

/* ---- tensors (exchange.c) */
extern dl_exchange *py_exchange; /* of torch.Tensor; NULL: through capsules */
PyObject *py_bind_exchange(PyObject *module, PyObject *tensor_class);
/* Reads what a tensor object is; `keep` gets what must be released behind the call (NULL: nothing). */
int py_view(PyObject *object, dl_tensor *out, PyObject **keep);
int py_dtype_of(const dl_tensor *t, rp_dtype *dtype, rp_device *device);
/* A torch tensor over the memory of t. */
PyObject *py_torch_from(rp_tensor *t);
/* The current stream of the caller's framework becomes ours; without one ours stays. */
int py_follow_stream(rp_device device);
/* Any array with __dlpack__: a handle with one reference, NULL with a Python error. */
rp_tensor *py_from_array(PyObject *array);
extern PyObject *py_array_type;
PyObject *py_array_new(rp_tensor *t); /* takes a reference of its own */
int py_exchange_ready(PyObject *module);

/* ---- programs (program.c) */
int py_program_ready(PyObject *module);

#endif
