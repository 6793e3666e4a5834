/* Template: the inner kernels of products for one accumulator type. gemm.c includes it once a type with
     ACC suffix of names, T element, V vector, VU the same in memory, L lanes. Undefined here again, but for L.
   A kernel holds mr rows times two vectors of the result in registers and walks k once. Nothing here knows storage types. */
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define N(name) NAME1(name, ACC)

/* Rows of c (at ldc) and a (at am, elements of a row at ak); row k of b at k * bk or places[k], holding 2 L columns. */
typedef struct N(micro_call) {
    int64_t kc;
    const T *a;
    int64_t am, ak;
    const T *b;
    int64_t bk;
    const int64_t *places; /* of the rows of b, in place of k * bk; NULL: these */
    T *c;
    int64_t ldc;
    bool first, last; /* first: nothing in c yet, else it is added to; last: bias */
    const T *bias_n;  /* 2 L values, or NULL */
    const T *bias_m;  /* mr values, or NULL */
} N(micro_call);

RP__VEC_FN V N(splat)(T x) { return x - (V){0}; }
RP__VEC_FN V N(load)(const T *p) { return *(const VU *)p; }
RP__VEC_FN void N(store)(T *p, V x) { *(VU *)p = x; }

RP__VEC_FN void N(micro)(const int mr, const bool placed, const N(micro_call) * m) {
    const int64_t kc = m->kc, am = m->am, ak = m->ak, bk = m->bk, ldc = m->ldc;
    const T *a = m->a, *b = m->b;
    T *c = m->c;
    V acc[MICRO_ROWS][2];
    UNROLL for (int i = 0; i < mr; i++) acc[i][0] = acc[i][1] = (V){0};
    for (int64_t k = 0; k < kc; k++) {
        const T *row = placed ? m->b + m->places[k] : b;
        const V b0 = N(load)(row), b1 = N(load)(row + L);
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
#define MICRO(mr)                                                                                                      \
    static __attribute__((noinline)) void N(micro##mr)(const N(micro_call) * m) {                                      \
        if (m->places)                                                                                                 \
            N(micro)(mr, true, m);                                                                                     \
        else                                                                                                           \
            N(micro)(mr, false, m);                                                                                    \
    }
#if MICRO_ROWS > 6
MICRO(12)
MICRO(8)
#endif
MICRO(6)
MICRO(5)
MICRO(4)
MICRO(3)
MICRO(2)
MICRO(1)
#undef MICRO

/* One row times WIDE panels (of b and of c): a single panel has too few independent chains to hide the latency of addition. */
RP__VEC_FN void N(wide)(const bool placed, const N(micro_call) * m, int64_t panel_step) {
    const int64_t kc = m->kc, ak = m->ak, bk = m->bk;
    const T *a = m->a, *b = m->b;
    T *c = m->c;
    V acc[2 * WIDE];
    UNROLL for (int i = 0; i < 2 * WIDE; i++) acc[i] = (V){0};
    for (int64_t k = 0; k < kc; k++) {
        const V x = N(splat)(*a);
        const T *row = placed ? m->b + m->places[k] : b;
        UNROLL for (int i = 0; i < WIDE; i++) {
            acc[2 * i] += x * N(load)(row + i * panel_step);
            acc[2 * i + 1] += x * N(load)(row + i * panel_step + L);
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
static __attribute__((noinline)) void N(micro_wide)(const N(micro_call) * m, int64_t panel_step) {
    if (m->places)
        N(wide)(true, m, panel_step);
    else
        N(wide)(false, m, panel_step);
}

/* Rows of the next block of mr: fewer than four wait for their own additions, so that the last two blocks share what is left. */
static int N(micro_step)(int64_t mr) {
#if MICRO_ROWS > 6
    if (mr == 12 || mr >= 16) return 12;
    if (mr == 8 || mr >= 12) return 8;
#endif
    if (mr == 6 || mr >= 10) return 6;
    return mr == 9 ? 5 : mr > 6 ? 4 : (int)mr;
}
/* mr rows of one panel; the rows of a packed block (am 1) and of a plain operand advance alike through `row_step`. */
static void N(micro_rows)(N(micro_call) * m, int64_t mr, int64_t row_step) {
    while (mr > 0) {
        const int step = N(micro_step)(mr);
        switch (step) {
#if MICRO_ROWS > 6
        case 12: N(micro12)(m); break;
        case 8: N(micro8)(m); break;
#endif
        case 6: N(micro6)(m); break;
        case 5: N(micro5)(m); break;
        case 4: N(micro4)(m); break;
        case 3: N(micro3)(m); break;
        case 2: N(micro2)(m); break;
        default: N(micro1)(m);
        }
        mr -= step;
        m->a += step * row_step;
        m->c += step * m->ldc;
        if (m->bias_m) m->bias_m += step;
    }
}

/* The last columns of a tile without padding: of so many lanes the largest vector that is no wider than they, and where they are more a second
   one that ends with them. A column in both is computed twice, and stored as one. */
#if MICRO_ROWS > 6
#define SLIM_ROWS 8
#else
#define SLIM_ROWS 4
#endif
#define SLIM_KERNEL(lanes)                                                                                             \
    typedef T N(slim##lanes) __attribute__((vector_size(lanes * sizeof(T))));                                          \
    typedef N(slim##lanes) N(slim##lanes##_u) __attribute__((aligned(1), may_alias));                                  \
    RP__VEC_FN void N(slim_by_##lanes)(const int mr, const bool two, const N(micro_call) * m, int64_t second) {        \
        typedef N(slim##lanes) vector;                                                                                 \
        typedef N(slim##lanes##_u) vector_u;                                                                           \
        const int64_t am = m->am, ldc = m->ldc;                                                                        \
        const T *a = m->a, *b = m->b;                                                                                  \
        T *c = m->c;                                                                                                   \
        vector acc[8][2];                                                                                              \
        UNROLL for (int i = 0; i < mr; i++) acc[i][0] = acc[i][1] = (vector){0};                                       \
        for (int64_t k = 0; k < m->kc; k++, a += m->ak, b += m->bk) {                                                  \
            const vector b0 = *(const vector_u *)b, b1 = *(const vector_u *)(two ? b + second : b);                    \
            UNROLL for (int i = 0; i < mr; i++) {                                                                      \
                const vector x = a[i * am] - (vector){0};                                                              \
                acc[i][0] += x * b0;                                                                                   \
                if (two) acc[i][1] += x * b1;                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int i = 0; i < mr; i++) {                                                                          \
            vector_u *const to[2] = {(vector_u *)(c + i * ldc), (vector_u *)(c + i * ldc + second)};                   \
            if (!m->first) {                                                                                           \
                acc[i][0] = *to[0] + acc[i][0];                                                                        \
                if (two) acc[i][1] = *to[1] + acc[i][1];                                                               \
            }                                                                                                          \
            if (m->last && m->bias_n) {                                                                                \
                acc[i][0] += *(const vector_u *)m->bias_n;                                                             \
                if (two) acc[i][1] += *(const vector_u *)(m->bias_n + second);                                         \
            }                                                                                                          \
            if (m->last && m->bias_m) {                                                                                \
                const vector x = m->bias_m[i] - (vector){0};                                                           \
                acc[i][0] += x;                                                                                        \
                if (two) acc[i][1] += x;                                                                               \
            }                                                                                                          \
            *to[0] = acc[i][0];                                                                                        \
            if (two) *to[1] = acc[i][1];                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    static __attribute__((noinline)) int N(slim_two_##lanes)(const N(micro_call) * m, int64_t mr, int64_t second) {    \
        if (mr >= 8 && SLIM_ROWS == 8) return N(slim_by_##lanes)(SLIM_ROWS, true, m, second), 8;                       \
        if (mr >= 4) return N(slim_by_##lanes)(4, true, m, second), 4;                                                 \
        if (mr >= 2) return N(slim_by_##lanes)(2, true, m, second), 2;                                                 \
        return N(slim_by_##lanes)(1, true, m, second), 1;                                                              \
    }                                                                                                                  \
    static __attribute__((noinline)) int N(slim_one_##lanes)(const N(micro_call) * m, int64_t mr, int64_t second) {    \
        if (mr >= 8) return N(slim_by_##lanes)(8, false, m, second), 8;                                                \
        if (mr >= 4) return N(slim_by_##lanes)(4, false, m, second), 4;                                                \
        if (mr >= 2) return N(slim_by_##lanes)(2, false, m, second), 2;                                                \
        return N(slim_by_##lanes)(1, false, m, second), 1;                                                             \
    }
#if GEMM_BYTES == 8
SLIM_KERNEL(2)
#endif
#if RP_VEC_BYTES >= 4 * GEMM_BYTES
SLIM_KERNEL(4)
#endif
#if RP_VEC_BYTES >= 8 * GEMM_BYTES
SLIM_KERNEL(8)
#endif
#if RP_VEC_BYTES >= 16 * GEMM_BYTES
SLIM_KERNEL(16)
#endif
#undef SLIM_KERNEL
#undef SLIM_ROWS

/* mr rows of `columns`, from SLIM (gemm.c) to 2 L of them, as micro_rows of a panel. */
static void N(slim_rows)(const N(micro_call) * call, int64_t columns, int64_t mr, int64_t row_step) {
    int (*two)(const N(micro_call) * m, int64_t mr, int64_t second);
    int (*one)(const N(micro_call) * m, int64_t mr, int64_t second);
    N(micro_call) m = *call;
    int64_t lanes = SLIM;
#if GEMM_BYTES == 8
    two = N(slim_two_2), one = N(slim_one_2);
#endif
#if RP_VEC_BYTES >= 4 * GEMM_BYTES
    if (columns >= 4) lanes = 4, two = N(slim_two_4), one = N(slim_one_4);
#endif
#if RP_VEC_BYTES >= 8 * GEMM_BYTES
    if (columns >= 8) lanes = 8, two = N(slim_two_8), one = N(slim_one_8);
#endif
#if RP_VEC_BYTES >= 16 * GEMM_BYTES
    if (columns >= 16) lanes = 16, two = N(slim_two_16), one = N(slim_one_16);
#endif
    while (mr > 0) {
        const int step = (columns > lanes ? two : one)(&m, mr, columns - lanes);
        mr -= step;
        m.a += step * row_step;
        m.c += step * m.ldc;
        if (m.bias_m) m.bias_m += step;
    }
}

#if GEMM_BYTES == 4
/* BLOCK lines of BLOCK elements, `along` apart, into columns of rows W apart. */
#if RP_VEC_BYTES >= 32
#define BLOCK 8
RP__VEC_FN void N(turn)(const T *s, int64_t along, T *t, int64_t W) {
    typedef T quad __attribute__((vector_size(16)));
    typedef quad quad_u __attribute__((aligned(1), may_alias));
    typedef T oct __attribute__((vector_size(32)));
    typedef oct oct_u __attribute__((aligned(1), may_alias));
    UNROLL for (int h = 0; h < 2; h++) {
        oct r[4], x[4];
        UNROLL for (int i = 0; i < 4; i++) {
            const quad low = *(const quad_u *)(s + i * along + 4 * h),
                       high = *(const quad_u *)(s + (i + 4) * along + 4 * h);
            r[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
        }
        x[0] = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13);
        x[1] = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15);
        x[2] = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
        x[3] = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
        T *d = t + 4 * h * W;
        *(oct_u *)d = __builtin_shufflevector(x[0], x[2], 0, 1, 8, 9, 4, 5, 12, 13);
        *(oct_u *)(d + W) = __builtin_shufflevector(x[0], x[2], 2, 3, 10, 11, 6, 7, 14, 15);
        *(oct_u *)(d + 2 * W) = __builtin_shufflevector(x[1], x[3], 0, 1, 8, 9, 4, 5, 12, 13);
        *(oct_u *)(d + 3 * W) = __builtin_shufflevector(x[1], x[3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
}
#else
#define BLOCK 4
RP__VEC_FN void N(turn)(const T *s, int64_t along, T *t, int64_t W) {
    typedef T quad __attribute__((vector_size(16)));
    typedef quad quad_u __attribute__((aligned(1), may_alias));
    const quad r0 = *(const quad_u *)s, r1 = *(const quad_u *)(s + along);
    const quad r2 = *(const quad_u *)(s + 2 * along), r3 = *(const quad_u *)(s + 3 * along);
    const quad lo01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
    const quad hi01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
    const quad lo23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    const quad hi23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(quad_u *)t = __builtin_shufflevector(lo01, lo23, 0, 1, 4, 5);
    *(quad_u *)(t + W) = __builtin_shufflevector(lo01, lo23, 2, 3, 6, 7);
    *(quad_u *)(t + 2 * W) = __builtin_shufflevector(hi01, hi23, 0, 1, 4, 5);
    *(quad_u *)(t + 3 * W) = __builtin_shufflevector(hi01, hi23, 2, 3, 6, 7);
}
#endif
#else
#define BLOCK 1
#define NO_TURN
#endif
/* w <= W lines, `along` apart, of kc elements each, one after the other in memory, into columns of one panel. next: the lines that are
   packed afterwards, as far apart; those behind the ones under way are fetched, as no prefetcher follows so many short runs. NULL: all
   is near. */
RP__VEC_FN void N(pack_turned)(const int W, const T *next, const T *s, int64_t along, int64_t w, int64_t kc, T *dst) {
    (void)next;
    int64_t k = 0, j = 0;
#ifndef NO_TURN
    for (; j + BLOCK <= w; j += BLOCK) { /* a few lines at a time: streams that the prefetcher follows */
        const T *const later = j + BLOCK < w ? s + (j + BLOCK) * along : next;
        for (k = 0; k + BLOCK <= kc; k += BLOCK) {
            for (int i = 0; next && k * (int64_t)sizeof(T) % 64 == 0 && i < BLOCK; i++)
                __builtin_prefetch(later + i * along + k, 0, 2);
            N(turn)(s + j * along + k, along, dst + k * W + j, W);
        }
        for (; k < kc; k++)
            for (int i = 0; i < BLOCK; i++) dst[k * W + j + i] = s[(j + i) * along + k];
    }
#endif
    for (; j < w; j++)
        for (k = 0; k < kc; k++) dst[k * W + j] = s[j * along + k];
}
/* `lines` lines of `count` elements: dst[element * to + line]. */
static void N(turn_lines)(const T *s, int64_t along, int64_t lines, int64_t count, T *dst, int64_t to) {
    int64_t j = 0, k = 0;
#ifndef NO_TURN
    for (; j + BLOCK <= lines; j += BLOCK) {
        for (k = 0; k + BLOCK <= count; k += BLOCK) N(turn)(s + j * along + k, along, dst + k * to + j, to);
        for (; k < count; k++)
            for (int i = 0; i < BLOCK; i++) dst[k * to + j + i] = s[(j + i) * along + k];
    }
#endif
    for (; j < lines; j++)
        for (k = 0; k < count; k++) dst[k * to + j] = s[j * along + k];
}
#undef BLOCK
#undef NO_TURN

/* Packs `count` lines of kc elements of this type into panels `step` apart: dst[line / W][k][line % W], zeros beyond count. Lines along
   `along`, elements of a line along `down`. */
RP__VEC_FN void N(pack)(const int W, const T *src, int64_t along, int64_t down, int64_t count, int64_t kc, T *dst,
                        int64_t step) {
    const int64_t full = count / W * W;
    if (full < count) {
        T *last = dst + full / W * step;
        const int64_t w = count - full;
        if (along == 1 || down != 1) {
            for (int64_t k = 0; k < kc; k++) {
                for (int64_t j = 0; j < w; j++) last[k * W + j] = src[(full + j) * along + k * down];
                for (int64_t j = w; j < W; j++) last[k * W + j] = 0;
            }
        } else {
            for (int64_t k = 0; k < kc; k++) memset(last + k * W, 0, (size_t)W * sizeof(T));
            N(pack_turned)(W, NULL, src + full * along, along, w, kc, last);
        }
    }
    if (along == 1) { /* memory in its order: rows of a panel lie far apart */
        for (int64_t k = 0; k < kc; k++) {
            const T *s = src + k * down;
            T *d = dst + k * W;
            for (int64_t p = 0; p < full; p += W, d += step) memcpy(d, s + p, (size_t)W * sizeof(T));
        }
        return;
    }
    for (int64_t p = 0; p < full; p += W, dst += step) {
        const T *s = src + p * along;
        if (down == 1) {
            N(pack_turned)(W, p + W < full ? s + W * along : src + kc, s, along, W, kc, dst);
        } else {
            for (int64_t k = 0; k < kc; k++)
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
