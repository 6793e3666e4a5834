/* Template: the inner kernels of products for one accumulator type. gemm.c includes it once a type with
     ACC suffix of names, T element, V vector, VU the same in memory, L lanes. Undefined here again, but for L.
   A kernel holds mr rows times two vectors of the result in registers and walks k once. Nothing here knows storage types. */
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define N(name) NAME1(name, ACC)

/* Rows of c (at ldc) and a (at am, elements of a row at ak); row k of b at k * bk, holding 2 L columns. */
typedef struct N(micro_call) {
    int64_t kc;
    const T *a;
    int64_t am, ak;
    const T *b;
    int64_t bk;
    T *c;
    int64_t ldc;
    bool first, last; /* first: nothing in c yet, else it is added to; last: bias */
    const T *bias_n;  /* 2 L values, or NULL */
    const T *bias_m;  /* mr values, or NULL */
} N(micro_call);

RP__VEC_FN V N(splat)(T x) { return x - (V){0}; }
RP__VEC_FN V N(load)(const T *p) { return *(const VU *)p; }
RP__VEC_FN void N(store)(T *p, V x) { *(VU *)p = x; }

RP__VEC_FN void N(micro)(const int mr, const N(micro_call) * m) {
    const int64_t kc = m->kc, am = m->am, ak = m->ak, bk = m->bk, ldc = m->ldc;
    const T *a = m->a, *b = m->b;
    T *c = m->c;
    V acc[MICRO_ROWS][2];
    UNROLL for (int i = 0; i < mr; i++) acc[i][0] = acc[i][1] = (V){0};
    for (int64_t k = 0; k < kc; k++) {
        const V b0 = N(load)(b), b1 = N(load)(b + L);
        UNROLL for (int i = 0; i < mr; i++) {
            const V x = N(splat)(a[i * am]);
            acc[i][0] += x * b0;
            acc[i][1] += x * b1;
        }
        a += ak;
        b += bk;
    }
    if (!m->first) {
        UNROLL for (int i = 0; i < mr; i++) {
            acc[i][0] = N(load)(c + i * ldc) + acc[i][0];
            acc[i][1] = N(load)(c + i * ldc + L) + acc[i][1];
        }
    }
    if (m->last) {
        if (m->bias_n) {
            const V b0 = N(load)(m->bias_n), b1 = N(load)(m->bias_n + L);
            UNROLL for (int i = 0; i < mr; i++) {
                acc[i][0] += b0;
                acc[i][1] += b1;
            }
        }
        if (m->bias_m) {
            UNROLL for (int i = 0; i < mr; i++) {
                const V x = N(splat)(m->bias_m[i]);
                acc[i][0] += x;
                acc[i][1] += x;
            }
        }
    }
    UNROLL for (int i = 0; i < mr; i++) {
        N(store)(c + i * ldc, acc[i][0]);
        N(store)(c + i * ldc + L, acc[i][1]);
    }
}
#if MICRO_ROWS > 6
static __attribute__((noinline)) void N(micro12)(const N(micro_call) * m) { N(micro)(12, m); }
#endif
static __attribute__((noinline)) void N(micro6)(const N(micro_call) * m) { N(micro)(6, m); }
static __attribute__((noinline)) void N(micro4)(const N(micro_call) * m) { N(micro)(4, m); }
static __attribute__((noinline)) void N(micro2)(const N(micro_call) * m) { N(micro)(2, m); }
static __attribute__((noinline)) void N(micro1)(const N(micro_call) * m) { N(micro)(1, m); }

/* One row times WIDE panels (of b and of c): a single panel has too few independent chains to hide the latency of addition. */
static __attribute__((noinline)) void N(micro_wide)(const N(micro_call) * m, int64_t panel_step) {
    const int64_t kc = m->kc, ak = m->ak, bk = m->bk;
    const T *a = m->a, *b = m->b;
    T *c = m->c;
    V acc[2 * WIDE];
    UNROLL for (int i = 0; i < 2 * WIDE; i++) acc[i] = (V){0};
    for (int64_t k = 0; k < kc; k++) {
        const V x = N(splat)(*a);
        UNROLL for (int i = 0; i < WIDE; i++) {
            acc[2 * i] += x * N(load)(b + i * panel_step);
            acc[2 * i + 1] += x * N(load)(b + i * panel_step + L);
        }
        a += ak;
        b += bk;
    }
    if (!m->first) {
        UNROLL for (int i = 0; i < 2 * WIDE; i++) acc[i] = N(load)(c + i * L) + acc[i];
    }
    if (m->last) {
        if (m->bias_n) {
            UNROLL for (int i = 0; i < 2 * WIDE; i++) acc[i] += N(load)(m->bias_n + i * L);
        }
        if (m->bias_m) {
            UNROLL for (int i = 0; i < 2 * WIDE; i++) acc[i] += N(splat)(m->bias_m[0]);
        }
    }
    UNROLL for (int i = 0; i < 2 * WIDE; i++) N(store)(c + i * L, acc[i]);
}

/* mr rows of one panel; the rows of a packed block (am 1) and of a plain operand advance alike through `row_step`. */
static void N(micro_rows)(N(micro_call) * m, int64_t mr, int64_t row_step) {
    while (mr > 0) {
        int step;
#if MICRO_ROWS > 6
        if (mr >= 12)
            N(micro12)(m), step = 12;
        else
#endif
            if (mr >= 6)
            N(micro6)(m), step = 6;
        else if (mr >= 4)
            N(micro4)(m), step = 4;
        else if (mr >= 2)
            N(micro2)(m), step = 2;
        else
            N(micro1)(m), step = 1;
        mr -= step;
        m->a += step * row_step;
        m->c += step * m->ldc;
        if (m->bias_m) m->bias_m += step;
    }
}

/* Packs `count` lines of kc elements of this type: dst[line / W][k][line % W], zeros beyond count. Lines along `along`,
   elements of a line along `down`. */
RP__VEC_FN void N(pack)(const int W, const T *src, int64_t along, int64_t down, int64_t count, int64_t kc, T *dst) {
    for (int64_t p = 0; p < count; p += W, dst += W * kc) {
        const int64_t w = count - p < W ? count - p : W;
        const T *s = src + p * along;
        if (w < W) {
            for (int64_t k = 0; k < kc; k++) {
                for (int64_t j = 0; j < w; j++) dst[k * W + j] = s[j * along + k * down];
                for (int64_t j = w; j < W; j++) dst[k * W + j] = 0;
            }
        } else if (along == 1) {
            for (int64_t k = 0; k < kc; k++) memcpy(dst + k * W, s + k * down, (size_t)W * sizeof(T));
        } else {
            int64_t k = 0;
#if GEMM_BYTES == 4
            typedef T quad __attribute__((vector_size(16)));
            typedef quad quad_u __attribute__((aligned(1), may_alias));
            if (down == 1 && W % 4 == 0) {
                k = kc / 4 * 4;
                for (int j = 0; j < W; j += 4) { /* four lines at a time: streams that the prefetcher follows */
                    for (int64_t i = 0; i < k; i += 4) {
                        const T *q = s + j * along + i;
                        const quad r0 = *(const quad_u *)q, r1 = *(const quad_u *)(q + along);
                        const quad r2 = *(const quad_u *)(q + 2 * along), r3 = *(const quad_u *)(q + 3 * along);
                        const quad lo01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
                        const quad hi01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
                        const quad lo23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
                        const quad hi23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
                        T *t = dst + i * W + j;
                        *(quad_u *)t = __builtin_shufflevector(lo01, lo23, 0, 1, 4, 5);
                        *(quad_u *)(t + W) = __builtin_shufflevector(lo01, lo23, 2, 3, 6, 7);
                        *(quad_u *)(t + 2 * W) = __builtin_shufflevector(hi01, hi23, 0, 1, 4, 5);
                        *(quad_u *)(t + 3 * W) = __builtin_shufflevector(hi01, hi23, 2, 3, 6, 7);
                    }
                }
            }
#endif
            for (; k < kc; k++)
                for (int64_t j = 0; j < W; j++) dst[k * W + j] = s[j * along + k * down];
        }
    }
}

#undef N
#undef NAME1
#undef NAME2
#undef ACC
#undef T
#undef V
#undef VU
