/* What the files of libreprise-onednn.so share: oneDNN's engine, its threads, and descriptions of memory, which are structs in oneDNN 2
   and handles in 3. */
#ifndef RP_KERNEL_ONEDNN_PARTS_H
#define RP_KERNEL_ONEDNN_PARTS_H

#include <dnnl.h>
#include <dnnl_version.h>
#include <stdbool.h>

#include "kernel/onednn/onednn.h"

extern dnnl_engine_t rp__dnnl_engine; /* once rp__dnnl_begin has said that it is there */
bool rp__dnnl_begin(void);

/* oneDNN's threads are OpenMP's in most builds; each of our threads asks for so many, and then again for what it had: the thread is
   the program's, and so are its other uses of OpenMP. */
extern void omp_set_num_threads(int n) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
static inline int rp__dnnl_threads(int n) {
    int before = omp_set_num_threads && omp_get_max_threads ? omp_get_max_threads() : n;
    if (before != n) omp_set_num_threads(n);
    return before;
}

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t rp__dnnl_desc; /* owned pointer */
typedef const_dnnl_memory_desc_t rp__dnnl_desc_ref;
#define RP__DESC(d) (*(d))
static inline bool rp__dnnl_desc_new(rp__dnnl_desc *d, int ndim, const dnnl_dims_t size, dnnl_data_type_t type,
                                     const dnnl_dims_t stride) {
    return dnnl_memory_desc_create_with_strides(d, ndim, size, type, stride) == dnnl_success;
}
static inline bool rp__dnnl_desc_any(rp__dnnl_desc *d, int ndim, const dnnl_dims_t size, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_tag(d, ndim, size, type, dnnl_format_tag_any) == dnnl_success;
}
static inline bool rp__dnnl_desc_copy(rp__dnnl_desc *d, rp__dnnl_desc_ref from) {
    return from && dnnl_memory_desc_clone(d, from) == dnnl_success;
}
static inline void rp__dnnl_desc_free(rp__dnnl_desc *d) {
    if (*d) dnnl_memory_desc_destroy(*d);
}
#else
typedef dnnl_memory_desc_t rp__dnnl_desc;
typedef const dnnl_memory_desc_t *rp__dnnl_desc_ref;
#define RP__DESC(d) (d)
static inline bool rp__dnnl_desc_new(rp__dnnl_desc *d, int ndim, const dnnl_dims_t size, dnnl_data_type_t type,
                                     const dnnl_dims_t stride) {
    return dnnl_memory_desc_init_by_strides(d, ndim, size, type, stride) == dnnl_success;
}
static inline bool rp__dnnl_desc_any(rp__dnnl_desc *d, int ndim, const dnnl_dims_t size, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_tag(d, ndim, size, type, dnnl_format_tag_any) == dnnl_success;
}
static inline bool rp__dnnl_desc_copy(rp__dnnl_desc *d, rp__dnnl_desc_ref from) {
    if (from) *d = *from;
    return from != NULL;
}
static inline void rp__dnnl_desc_free(rp__dnnl_desc *d) { (void)d; }
#endif

/* A convolution or product of a problem's kind and geometry over such memory: result, operands, bias. */
dnnl_status_t rp__dnnl_describe(const rp__onednn_problem *q, rp__dnnl_desc d[4], const_dnnl_primitive_attr_t attr,
                                dnnl_primitive_desc_t *out);
/* Is it the plain reference, written to be read? Kernels of ours are many times faster. */
bool rp__dnnl_is_reference(const_dnnl_primitive_desc_t pd);

/* net.c */
void *rp__dnnl_net_new(const rp__onednn_value *values, int n_values, const rp__onednn_call *calls, int n_calls,
                       int threads);
int rp__dnnl_net_run(void *net, void *const *addresses);
void rp__dnnl_net_free(void *net);

#endif
