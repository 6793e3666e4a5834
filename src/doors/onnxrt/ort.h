/* ONNX Runtime's C interface, as far as it is used: its table of functions only grows, so a function is a place in it. */
#ifndef RP_DOORS_ONNXRT_ORT_H
#define RP_DOORS_ONNXRT_ORT_H

#include <stddef.h>
#include <stdint.h>

typedef struct rp__ort_base {
    const void *const *(*table)(uint32_t version); /* NULL: older than the version asked for */
    const char *(*version)(void);
} rp__ort_base;

enum { RP__ORT_VERSION = 12, RP__ORT_OLDEST = 12 }; /* that is asked for; minor number of releases */

/* Objects are pointers to what only the library knows; a status that is not NULL is an error and is to be released. */
typedef void rp__ort_object;
typedef const rp__ort_object *rp__ort_status;

/* RP_ORT(name, place, result, parameters) */
#define RP__ORT_FUNCTIONS(ORT)                                                                                         \
    ORT(create_status, 0, rp__ort_status, (int code, const char *text))                                                \
    ORT(error_code, 1, int, (rp__ort_status))                                                                          \
    ORT(error_message, 2, const char *, (rp__ort_status))                                                              \
    ORT(create_env, 3, rp__ort_status, (int level, const char *name, rp__ort_object **out))                            \
    ORT(disable_telemetry, 6, rp__ort_status, (const rp__ort_object *env))                                             \
    ORT(create_session, 8, rp__ort_status,                                                                             \
        (const rp__ort_object *env, const void *model, size_t bytes, const rp__ort_object *options,                    \
         rp__ort_object **out))                                                                                        \
    ORT(run, 9, rp__ort_status,                                                                                        \
        (rp__ort_object * session, const rp__ort_object *options, const char *const *in_names,                         \
         const rp__ort_object *const *in, size_t n_in, const char *const *out_names, size_t n_out,                     \
         rp__ort_object **out))                                                                                        \
    ORT(create_options, 10, rp__ort_status, (rp__ort_object * *out))                                                   \
    ORT(set_optimization, 23, rp__ort_status, (rp__ort_object * options, int level))                                   \
    ORT(set_threads, 24, rp__ort_status, (rp__ort_object * options, int n))                                            \
    ORT(create_tensor, 49, rp__ort_status,                                                                             \
        (const rp__ort_object *memory, void *data, size_t bytes, const int64_t *size, size_t ndim, int type,           \
         rp__ort_object **out))                                                                                        \
    ORT(cpu_memory, 69, rp__ort_status, (int allocator, int type, rp__ort_object **out))                               \
    ORT(release_status, 93, void, (rp__ort_status))                                                                    \
    ORT(release_session, 95, void, (rp__ort_object *))                                                                 \
    ORT(release_value, 96, void, (rp__ort_object *))                                                                   \
    ORT(release_options, 100, void, (rp__ort_object *))                                                                \
    ORT(providers, 125, rp__ort_status, (char ***out, int *n))                                                         \
    ORT(release_providers, 126, rp__ort_status, (char **names, int n))                                                 \
    ORT(append_tensorrt, 170, rp__ort_status, (rp__ort_object * options, const rp__ort_object *of))                    \
    ORT(create_tensorrt, 171, rp__ort_status, (rp__ort_object * *out))                                                 \
    ORT(update_tensorrt, 172, rp__ort_status,                                                                          \
        (rp__ort_object * of, const char *const *keys, const char *const *values, size_t n))                           \
    ORT(release_tensorrt, 174, void, (rp__ort_object *))                                                               \
    ORT(append_cuda, 204, rp__ort_status, (rp__ort_object * options, const rp__ort_object *of))                        \
    ORT(create_cuda, 205, rp__ort_status, (rp__ort_object * *out))                                                     \
    ORT(update_cuda, 206, rp__ort_status,                                                                              \
        (rp__ort_object * of, const char *const *keys, const char *const *values, size_t n))                           \
    ORT(release_cuda, 208, void, (rp__ort_object *))                                                                   \
    ORT(append_provider, 216, rp__ort_status,                                                                          \
        (rp__ort_object * options, const char *name, const char *const *keys, const char *const *values, size_t n))

typedef struct rp__ort {
#define RP__ORT_MEMBER(name, place, result, parameters) result(*name) parameters;
    RP__ORT_FUNCTIONS(RP__ORT_MEMBER)
#undef RP__ORT_MEMBER
} rp__ort;

#endif
