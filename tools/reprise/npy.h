/* Files of numpy, version 1.0: one tensor. Read strictly: a file says what it holds in the form that numpy writes, its size is that
 * of its elements to the byte, and nothing of it is believed that was not checked. Written beside the file and renamed, so that a
 * reader sees a whole file or none. Element types without a name in numpy (bfloat16) are written as float32. */
#ifndef REPRISE_NPY_H
#define REPRISE_NPY_H

#include <reprise.h>

/* A new tensor on the default device; NULL: what was wrong is in why. Elements in Fortran order are put in order. */
rp_tensor *cli_npy_read(const char *path, char *why, size_t why_bytes);
bool cli_npy_write(const char *path, rp_tensor *t, char *why, size_t why_bytes);

#endif
