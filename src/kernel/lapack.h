/* LAPACK, opened at run time (liblapack.so.3, or OpenBLAS that holds it; REPRISE_LIBLAPACK names another file). Optional: without it
   the ops that need it are refused with what to install. Matrices are column-major, in float64, and calls of several threads at a
   time are LAPACK's own business. */
#ifndef RP_KERNEL_LAPACK_H
#define RP_KERNEL_LAPACK_H

#include <stddef.h>

/* Fortran's ABI with 32-bit integers: every argument by its address, lengths of characters last. */
#define RP__LAPACK_FUNCTIONS(F)                                                                                        \
    F(dpotrf_, (const char *uplo, const int *n, double *a, const int *lda, int *info, size_t))                         \
    F(dgetrf_, (const int *m, const int *n, double *a, const int *lda, int *pivots, int *info))                        \
    F(dgetrs_, (const char *trans, const int *n, const int *nrhs, const double *a, const int *lda, const int *pivots,  \
                double *b, const int *ldb, int *info, size_t))                                                         \
    F(dsytrf_, (const char *uplo, const int *n, double *a, const int *lda, int *pivots, double *work,                  \
                const int *lwork, int *info, size_t))                                                                  \
    F(dsytrs_, (const char *uplo, const int *n, const int *nrhs, const double *a, const int *lda, const int *pivots,   \
                double *b, const int *ldb, int *info, size_t))                                                         \
    F(dgeqrf_,                                                                                                         \
      (const int *m, const int *n, double *a, const int *lda, double *tau, double *work, const int *lwork, int *info)) \
    F(dorgqr_, (const int *m, const int *n, const int *k, double *a, const int *lda, const double *tau, double *work,  \
                const int *lwork, int *info))                                                                          \
    F(dsyevd_, (const char *job, const char *uplo, const int *n, double *a, const int *lda, double *w, double *work,   \
                const int *lwork, int *iwork, const int *liwork, int *info, size_t, size_t))                           \
    F(dgesdd_,                                                                                                         \
      (const char *job, const int *m, const int *n, double *a, const int *lda, double *s, double *u, const int *ldu,   \
       double *vt, const int *ldvt, double *work, const int *lwork, int *iwork, int *info, size_t))                    \
    F(dgelsy_, (const int *m, const int *n, const int *nrhs, double *a, const int *lda, double *b, const int *ldb,     \
                int *pivots, const double *rcond, int *rank, double *work, const int *lwork, int *info))

typedef struct rp__lapack {
#define F(name, args) void(*name) args;
    RP__LAPACK_FUNCTIONS(F)
#undef F
} rp__lapack;

const rp__lapack *rp__lapack_get(void); /* NULL: there is none */
size_t rp__lapack_report(char *text, size_t size);

#endif
