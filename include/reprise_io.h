/* reprise_io.h - files: safetensors and npy, and the state of a training program, on top of reprise_nn.h.
 *
 * What is read is checked before it is believed, and a failed read changes nothing. What is written lies beside its target until it
 * is whole and on disk, then takes its place: a torn file never replaces a good one. Errors are RP_ERROR_IO with the file's name.
 */
#ifndef REPRISE_IO_H
#define REPRISE_IO_H

#include "reprise_nn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- safetensors (github.com/huggingface/safetensors)

   Reading needs the library Jansson (package libjansson4), opened at run time. */

typedef struct rp_safetensors rp_safetensors;

/* A file, or an index (model.safetensors.index.json) with the files that it names beside it. Never NULL: on failure an object without
   tensors, on which every call fails. The files are mapped: whoever cuts one shorter meanwhile kills the process. */
RP_CALL rp_safetensors *rp_safetensors_open(const char *path);
RP_API void rp_safetensors_release(rp_safetensors *f); /* its tensors stay; NULL is ignored */
RP_API size_t rp_safetensors_count(const rp_safetensors *f);

typedef struct rp_file_tensor {
    const char *name;  /* borrowed from f */
    const char *dtype; /* as the file calls it: "F32", "BF16", "F8_E4M3" */
    rp_dtype type;     /* RP_DTYPE_NONE: of a type that Reprise does not have */
    int64_t size[RP_MAX_DIMS];
    size_t ndim;
    uint64_t bytes;
} rp_file_tensor;
/* Tensor `index`, in order of names. */
RP_CALL rp_status rp_safetensors_info(const rp_safetensors *f, size_t index, rp_file_tensor *info);
RP_CALL bool rp_safetensors_has(const rp_safetensors *f, const char *name);
/* A tensor on the default device. On the CPU it lies in the mapped file, if its place is aligned to its elements: writing to it writes a
   copy of its pages, never the file. An error if there is none of that name or its type is not one of Reprise's. */
RP_CALL rp_tensor *rp_safetensors_tensor(const rp_safetensors *f, const char *name);
/* The text of a key of the file's metadata, borrowed; NULL: none. */
RP_API const char *rp_safetensors_metadata(const rp_safetensors *f, const char *key);
/* n tensors of any device, and n_metadata pairs key, text. */
RP_CALL rp_status rp_safetensors_save(const char *path, const rp_named_tensor *tensors, size_t n,
                                      const char *const (*metadata)[2], size_t n_metadata);

/* ---------------------------------------------------------------- npy (numpy.load, numpy.save): one tensor, versions 1.0 to 3.0 */

/* A new tensor on the default device; elements in Fortran order are put in order. */
RP_CALL rp_tensor *rp_npy_load(const char *path);
/* On the CPU, in the mapped file (mmap_mode="c"), for data sets that are larger than memory: writing to it writes a copy of its pages,
   never the file, and whoever cuts the file shorter meanwhile kills the process. Elements in Fortran order are an error. */
RP_CALL rp_tensor *rp_npy_map(const char *path);
/* bfloat16, which numpy does not have, is written as float32. */
RP_CALL rp_status rp_npy_save(const char *path, rp_tensor *t);

/* Member `name` (with or without .npy) of a file of numpy.savez; what savez_compressed writes is refused. */
RP_CALL rp_tensor *rp_npz_load(const char *path, const char *name);
/* n tensors of any device as such a file (numpy.savez), below 4 GiB. */
RP_CALL rp_status rp_npz_save(const char *path, const rp_named_tensor *tensors, size_t n);

/* ---------------------------------------------------------------- data sets: tensors on the CPU, for rp_loader_new */

/* An IDX file (MNIST): bytes lie in the mapped file, wider elements are a copy. */
RP_CALL rp_tensor *rp_idx_load(const char *path);
/* CIFAR-10 (classes 10) or CIFAR-100 (100: the fine labels) in its binary version, n files one after the other: images (N, 3, 32,
   32) uint8, labels (N) int64. */
RP_CALL rp_status rp_cifar_load(const char *const *paths, size_t n, int64_t classes, rp_tensor **images,
                                rp_tensor **labels);
/* The bytes of a file, in place: (N) uint8. */
RP_CALL rp_tensor *rp_text_load(const char *path);

/* ---------------------------------------------------------------- loaders (torch.utils.data.DataLoader)

   Batches of rows of n arrays, in order or shuffled anew each epoch: the order is a function of seed and epoch alone, so seed, epoch
   and batch are the whole position, which files of rp_save keep. A loader is used by one thread at a time. */

typedef struct rp_loader rp_loader;
typedef struct rp_loader_options { /* zero is PyTorch's default */
    size_t struct_size;
    bool shuffle, drop_last;
    uint64_t seed; /* 0: that of the CPU's default generator */
    int workers;   /* threads that gather batches ahead, 64 at most; 0: rp_loader_next does */
    int prefetch;  /* batches ahead a worker; 0: 2 */
    bool
        pin_memory; /* gathered in page-locked memory; a CUDA default device takes a batch by a stream of the loader's own, while
                        it still works on the one before. Without a CUDA device an error */
} rp_loader_options;
/* Tensors on the CPU with one number of rows; they are held, 16 at most. Never NULL: on failure a loader on which every call fails. */
RP_CALL rp_loader *rp_loader_new(rp_tensor *const *arrays, size_t n, int64_t batch, const rp_loader_options *options);
RP_API void rp_loader_release(rp_loader *l); /* NULL is ignored */
/* The next batch, on the default device. false: the epoch is over (the next call begins another), or an error. */
RP_CALL bool rp_loader_next(rp_loader *l, rp_tensor **out, size_t n_out);
RP_API int64_t rp_loader_batches(const rp_loader *l); /* of an epoch */
RP_CALL rp_status rp_loader_position(const rp_loader *l, uint64_t *seed, int64_t *epoch,
                                     int64_t *batch); /* of the next batch */
RP_CALL rp_status rp_loader_seek(rp_loader *l, uint64_t seed, int64_t epoch, int64_t batch);

/* ---------------------------------------------------------------- state of a program

   A safetensors file with the module's tensors under the names of rp_module_state; what belongs to the optimizer and to generators
   has names that begin with "reprise/". So any reader of safetensors reads a model that was saved here, and rp_load reads one that
   PyTorch saved. */

typedef struct rp_save_options {
    size_t struct_size;
    rp_optimizer *optimizer; /* NULL: none */
    bool random;             /* the default generators of all devices in use */
    const char *const (*metadata)[2];
    size_t n_metadata;
    const rp_grad_scaler *scaler; /* NULL: none; so with the next four */
    const rp_average *average;
    const rp_loader *loader;
    const rp_lbfgs *lbfgs;
    const rp_plateau *plateau;
} rp_save_options;
RP_CALL rp_status rp_save(const char *path, rp_module *m, const rp_save_options *options);

typedef struct rp_load_options {
    size_t struct_size;
    rp_optimizer *
        optimizer; /* of the kind, groups and parameters that were saved; NULL: what is in the file of it is passed over */
    bool random;        /* as saved; an error if the file has none */
    bool partial;       /* names that only the file or only the module has are passed over (strict=False) */
    const char *prefix; /* of the names in the file that are meant, left out: "model."; NULL: none */
    const char *const (
        *renames)[2]; /* pairs: a name that begins with the first (after the prefix) begins with the second instead */
    size_t n_renames;
    char *
        report; /* for report_bytes: missing, unexpected and misfitting names, a line each; NULL: the error alone has the first */
    size_t report_bytes;
    rp_grad_scaler *scaler; /* as the optimizer; so are the next four */
    rp_average *average;
    rp_loader *loader;
    rp_lbfgs *lbfgs;
    rp_plateau *plateau; /* its counts and its best; its options are the program's */
} rp_load_options;
/* Copies into the module's tensors, converting types as copy_ does; sizes must be equal. All or, on failure, nothing. */
RP_CALL rp_status rp_load(const char *path, rp_module *m, const rp_load_options *options);

/* ---------------------------------------------------------------- ONNX (onnx.ai): graphs for others to run */

typedef struct rp_onnx_options {
    size_t struct_size;
    int opset; /* 17 to 22; 0: 21 */
    /* Names of arguments and results; NULL, also for an entry: "in0", "out0", .. */
    const char *const *inputs, *const *outputs;
    size_t n_inputs, n_outputs;
    const rp_named_tensor *weights; /* names of captured tensors; others are "weight0", .. */
    size_t n_weights;
    /* Weights of so many bytes and more lie in a file PATH.data beside the model. 0: 1 MiB; SIZE_MAX: none does, and the model has at
       most 2 GiB */
    size_t outside_bytes;
} rp_onnx_options;
/* Writes a graph as an ONNX model: results are outputs, and what the graph writes into arguments and captured tensors is further
   outputs "new_NAME". Sizes that are symbols stay dimensions without a number; call sites are in the nodes. RP_ERROR_UNAVAILABLE: an
   op, which the message names with its line, has no operators of ONNX that compute it. */
RP_CALL rp_status rp_onnx_save(const char *path, const rp_ir *ir, const rp_onnx_options *options);

#ifdef __cplusplus
}
#endif

#include "reprise_io_calls.h"

#endif
