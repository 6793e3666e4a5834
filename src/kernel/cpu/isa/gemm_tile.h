/* Template: one tile of a product for one storage type. gemm.c includes it once a dtype with
     S suffix of names, ST storage element, ACC/T/L the accumulator as in gemm_core.h, SAME 1 where ST is T,
     LOAD(x) ST -> T, STORE(x) T -> ST, WIDEN(dst, src, n) and NARROW(dst, src, n) for contiguous runs, FLOATING 1 for types
     that convolutions take.
   Blocks: KC of k at a time; b packed KC x tile_n; a packed ROWS x KC where it cannot be read in place. The sum of the blocks
   of k stays in the result where that is of type T with unit stride, else in `kept` (so the tile's height is bounded); where
   there is more than one group of blocks, that of a group in `group` and that of groups in `kept`. */
#define NAME2(a, b) a##_##b
#define NAME1(a, b) NAME2(a, b)
#define N(name) NAME1(name, S)
#define A(name) NAME1(name, ACC)
#define KC (RP__PRODUCT_BLOCK * 4 / GEMM_BYTES)
#define GROUP (RP__PRODUCT_GROUP * KC)
#define NR (2 * L)
#define PAD (64 / GEMM_BYTES) /* a cache line between rows, against sets */

/* What a tile reads through a function of its own (convolution): fills dst as pack does. */
typedef struct N(job) {
    int64_t k;
    const ST *a, *b;
    ST *out;
    int64_t om, on, am, ak, bk, bn;
    const ST *bias;
    int64_t bias_stride;
    unsigned flags;
    const struct conv_plan *conv; /* NULL: plain strides */
    void (*gather_a)(const struct conv_plan *c, const ST *base, int64_t m0, int64_t count, int64_t k0, int64_t kc,
                     T *dst);
    void (*gather_b)(const struct conv_plan *c, const ST *base, int64_t n0, int64_t count, int64_t k0, int64_t kc,
                     T *dst);
    void (*scatter)(const struct conv_plan *c, ST *base, int64_t m0, int64_t mc, int64_t n0, int64_t nc, const T *src,
                    int64_t ld);
    const rp__gemm_rest *rest; /* takes the sums; NULL: they are the result */
} N(job);

typedef struct N(scratch) {
    _Alignas(64) T pb[KC * RP__GEMM_MAX_TILE_N], pa[GEMM_BLOCK_ROWS * (KC + PAD)];
    _Alignas(64) T kept[RP__GEMM_MAX_TILE_M * GEMM_MAX_NR > RP__GEMM_KEPT_TILE_M *RP__GEMM_MAX_TILE_N
                            ? RP__GEMM_MAX_TILE_M *GEMM_MAX_NR
                            : RP__GEMM_KEPT_TILE_M *RP__GEMM_MAX_TILE_N];
    _Alignas(64) T group[RP__GEMM_KEPT_TILE_M * RP__GEMM_MAX_TILE_N];
    T bias[RP__GEMM_MAX_TILE_M > RP__GEMM_MAX_TILE_N + NR ? RP__GEMM_MAX_TILE_M : RP__GEMM_MAX_TILE_N + NR];
} N(scratch);
_Static_assert(sizeof(N(scratch)) <= RP__GEMM_SCRATCH_BYTES, "a tile's scratch is a thread's scratch");

/* Lines into panels of W, converted: contiguous runs by vectors, else one by one. */
RP__VEC_FN void N(pack_lines)(const int W, const ST *src, int64_t along, int64_t down, int64_t count, int64_t kc,
                              T *dst) {
#if SAME
    A(pack)(W, src, along, down, count, kc, dst);
#else
    for (int64_t p = 0; p < count; p += W, dst += W * kc) {
        const int64_t w = count - p < W ? count - p : W;
        const ST *s = src + p * along;
        if (w < W) {
            for (int64_t i = 0; i < W * kc; i++) dst[i] = 0;
        }
        if (along == 1) {
            for (int64_t k = 0; k < kc; k++) WIDEN(dst + k * W, s + k * down, w);
        } else if (down == 1) {
            T run[KC];
            for (int64_t j = 0; j < w; j++) {
                WIDEN(run, s + j * along, kc);
                for (int64_t k = 0; k < kc; k++) dst[k * W + j] = run[k];
            }
        } else {
            for (int64_t k = 0; k < kc; k++)
                for (int64_t j = 0; j < w; j++) dst[k * W + j] = LOAD(s[j * along + k * down]);
        }
    }
#endif
}

static void N(tile)(const N(job) * g, N(scratch) *restrict memory, int64_t m0, int64_t mc, int64_t n0, int64_t nc) {
    T *const pb = memory->pb, *const pa = memory->pa, *const kept = memory->kept, *const bias = memory->bias;
    const bool groups = g->k > GROUP, direct = SAME && g->on == 1 && !g->scatter && !groups && !g->rest;
    const int64_t full = nc / NR * NR;                    /* columns in whole panels */
    const int64_t ld = direct ? NR : RP__GEMM_MAX_TILE_N; /* of kept: the ragged panel, or all */
    const int64_t K = g->k;
    const bool bias_n = g->flags & RP__GEMM_BIAS_N, bias_m = g->flags & RP__GEMM_BIAS_M;
    if (bias_n) {
        for (int64_t j = 0; j < nc; j++) bias[j] = LOAD(g->bias[(n0 + j) * g->bias_stride]);
        for (int64_t j = nc; j < (nc + NR - 1) / NR * NR; j++) bias[j] = 0;
    } else if (bias_m) {
        for (int64_t i = 0; i < mc; i++) bias[i] = LOAD(g->bias[(m0 + i) * g->bias_stride]);
    }
    int64_t k0 = 0;
    do { /* once for K = 0: the epilogue alone */
        const int64_t kc = K - k0 < KC ? K - k0 : KC;
        const bool first = k0 % GROUP == 0, last = !groups && k0 + kc == K;
        /* b in place pays when few rows use it, or when all of it is near */
        bool b_here = false;
        const ST *b = NULL;
        if (g->gather_b) {
            g->gather_b(g->conv, g->b, n0, nc, k0, kc, pb);
        } else {
            b = g->b + k0 * g->bk + n0 * g->bn;
            b_here = SAME && g->bn == 1 && full && (mc <= 2 * MICRO_ROWS || kc * (g->bk > 0 ? g->bk : -g->bk) <= 8192);
            if (!b_here)
                N(pack_lines)(NR, b, g->bn, g->bk, nc, kc, pb);
            else if (full < nc)
                N(pack_lines)(NR, b + full, g->bn, g->bk, nc - full, kc, pb + full * kc);
        }
        const ST *a = g->gather_a ? NULL : g->a + m0 * g->am + k0 * g->ak;
        /* a in place when it is read once or twice, or when all of it is near: rows far apart fall into few cache sets */
        const bool near = g->ak == 1 && mc * (g->am > 0 ? g->am : -g->am) <= 16384;
        const bool a_here = SAME && !g->gather_a && (near || nc <= 2 * NR || mc == 1);
        const bool a_rows = !g->gather_a && g->ak == 1; /* packed a: rows of kc + PAD, or blocks of MICRO_ROWS */
        for (int64_t i0 = 0; i0 < mc; i0 += a_here ? mc : GEMM_BLOCK_ROWS) {
            const int64_t rows = a_here ? mc : mc - i0 < GEMM_BLOCK_ROWS ? mc - i0 : GEMM_BLOCK_ROWS;
            if (g->gather_a) {
                g->gather_a(g->conv, g->a, m0 + i0, rows, k0, kc, pa);
            } else if (!a_here && a_rows) {
                for (int64_t i = 0; i < rows; i++) WIDEN(pa + i * (kc + PAD), a + (i0 + i) * g->am, kc);
            } else if (!a_here) {
                N(pack_lines)(MICRO_ROWS, a + i0 * g->am, g->am, g->ak, rows, kc, pa);
            }
            A(micro_call) m = {.kc = kc, .first = first, .last = last};
            for (int64_t j = 0; j < nc; j += NR) {
                const bool ragged = j >= full;
                if (direct && !ragged) {
                    m.c = (T *)(void *)(g->out + (m0 + i0) * g->om + n0 + j);
                    m.ldc = g->om;
                } else {
                    m.c = (groups ? memory->group : kept) + i0 * ld + (direct ? 0 : j);
                    m.ldc = ld;
                }
                int64_t panel_step = NR * kc;
                if (b_here && !ragged) {
                    m.b = (const T *)(const void *)(b + j);
                    m.bk = g->bk;
                    panel_step = NR;
                } else {
                    m.b = pb + j * kc;
                    m.bk = NR;
                }
                m.bias_n = last && bias_n ? bias + j : NULL;
                m.bias_m = last && bias_m ? bias + i0 : NULL;
                if (a_here) {
                    m.a = (const T *)(const void *)a, m.am = g->am, m.ak = g->ak;
                    if (mc == 1 && j + WIDE * NR <= full) {
                        A(micro_wide)(&m, panel_step);
                        j += (WIDE - 1) * NR;
                    } else {
                        A(micro_rows)(&m, rows, g->am);
                    }
                } else if (a_rows) {
                    m.a = pa, m.am = kc + PAD, m.ak = 1;
                    if (mc == 1 && j + WIDE * NR <= full) {
                        A(micro_wide)(&m, panel_step);
                        j += (WIDE - 1) * NR;
                    } else {
                        A(micro_rows)(&m, rows, kc + PAD);
                    }
                } else {
                    for (int64_t i = 0; i < rows; i += MICRO_ROWS) {
                        A(micro_call) block = m;
                        block.a = pa + i * kc, block.am = 1, block.ak = MICRO_ROWS;
                        block.c += i * block.ldc;
                        if (block.bias_m) block.bias_m += i;
                        A(micro_rows)(&block, rows - i < MICRO_ROWS ? rows - i : MICRO_ROWS, 1);
                    }
                }
            }
        }
        k0 += kc;
        if (!groups || (k0 % GROUP != 0 && k0 < K)) continue;
        const T *part = memory->group;
        for (int64_t i = 0; i < mc * ld; i++) kept[i] = k0 <= GROUP ? part[i] : kept[i] + part[i];
    } while (k0 < K);
    for (int64_t i = 0; groups && i < mc; i++) {
        for (int64_t j = 0; j < nc; j++) {
            T x = kept[i * ld + j];
            if (bias_n || bias_m) x = x + bias[bias_n ? j : i];
            kept[i * ld + j] = x;
        }
    }
    if (g->rest) {
        rp__gemm_rest_run(g->rest, kept, ld, m0, mc, n0, nc);
    } else if (g->scatter) {
        g->scatter(g->conv, g->out, m0, mc, n0, nc, kept, ld);
    } else if (!direct || full < nc) {
        const int64_t from = direct ? full : 0, count = nc - from;
        for (int64_t i = 0; i < mc; i++) {
            const T *s = kept + i * ld;
            ST *o = g->out + (m0 + i) * g->om + (n0 + from) * g->on;
            if (g->on == 1) {
                NARROW(o, s, count);
            } else {
                for (int64_t j = 0; j < count; j++) o[j * g->on] = STORE(s[j]);
            }
        }
    }
}

static void N(matmul)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const int64_t M = v[RP__GEMM_M], NN = v[RP__GEMM_N], tm = v[RP__GEMM_TILE_M], tn = v[RP__GEMM_TILE_N];
    const int64_t tiles_n = (NN + tn - 1) / tn, tiles_m = (M + tm - 1) / tm, tiles = tiles_n * tiles_m;
    N(job)
    g = {.k = v[RP__GEMM_K],
         .om = v[RP__GEMM_OM],
         .on = v[RP__GEMM_ON],
         .am = v[RP__GEMM_AM],
         .ak = v[RP__GEMM_AK],
         .bk = v[RP__GEMM_BK],
         .bn = v[RP__GEMM_BN],
         .bias = (const ST *)(uintptr_t)w[RP__GEMM_BIAS],
         .bias_stride = v[RP__GEMM_BIAS_STRIDE],
         .flags = (unsigned)w[RP__GEMM_FLAGS]};
    rp__gemm_rest rest;
    if (g.flags & RP__GEMM_REST) {
        rp__gemm_rest_begin(&rest, kernel, w + RP__GEMM_WORDS + 4 * v[RP__GEMM_BATCH], sizeof(T));
        g.rest = &rest;
    }
    N(scratch) *memory = rp__gemm_scratch_take();
    for (int64_t item = begin; item < end; item++) {
        int64_t batch = tiles == 1 ? item : item / tiles, t = tiles == 1 ? 0 : item % tiles;
        int64_t oo = 0, oa = 0, ob = 0;
        for (int64_t d = v[RP__GEMM_BATCH] - 1; d >= 0; d--) {
            const int64_t *dim = v + RP__GEMM_WORDS + 4 * d;
            const int64_t i = d ? batch % dim[0] : batch;
            if (d) batch /= dim[0];
            if (g.rest) rest.fixed[d] = i;
            oo += i * dim[1];
            oa += i * dim[2];
            ob += i * dim[3];
        }
        g.out = (ST *)(uintptr_t)w[RP__GEMM_OUT] + oo;
        g.a = (const ST *)(uintptr_t)w[RP__GEMM_A] + oa;
        g.b = (const ST *)(uintptr_t)w[RP__GEMM_B] + ob;
        const int64_t m0 = t / tiles_n * tm, n0 = t % tiles_n * tn;
        N(tile)(&g, memory, m0, M - m0 < tm ? M - m0 : tm, n0, NN - n0 < tn ? NN - n0 : tn);
    }
    rp__gemm_scratch_give(memory);
}

#if FLOATING
/* Lines [l0, l0 + count) times k [k0, k0 + kc) in panels of W: what lies in bounds, zero elsewhere. Lines that are neighbours
   along the innermost level form runs with one step. */
RP__VEC_FN void N(gather)(const int W, const struct conv_gather *g, const ST *src, int64_t l0, int64_t count,
                          int64_t k0, int64_t kc, T *dst) {
    struct conv_at ks[KC];
    struct conv_cursor at;
    if (kc == 0) return; /* no tap meets this phase */
    conv_start(&at, &g->k, k0);
    for (int64_t k = 0; k < kc; k++, conv_next(&at, &g->k)) ks[k] = at.here;
    const int64_t step = g->line.offset[3], move = g->line.coordinate[3], bound = g->bound[2];
    conv_start(&at, &g->line, l0);
    for (int64_t p = 0; p < count; p += W, dst += W * kc) {
        const int64_t w = count - p < W ? count - p : W;
        if (w < W) memset(dst, 0, (size_t)(W * kc) * sizeof *dst);
        for (int64_t j = 0; j < w;) {
            const int64_t left = g->line.extent[3] - at.index[3], run = left < w - j ? left : w - j;
            for (int64_t k = 0; k < kc; k++) {
                const int64_t x = at.here.c[2] + ks[k].c[2], y = at.here.c[1] + ks[k].c[1],
                              z = at.here.c[0] + ks[k].c[0];
                int64_t low = 0, high = run;
                if (z < 0 || z >= g->bound[0] || y < 0 || y >= g->bound[1]) {
                    high = 0;
                } else if (move == 0) {
                    if (x < 0 || x >= bound) high = 0;
                } else if (x < 0 || x + (run - 1) * move >= bound) {
                    low = x < 0 ? (-x + move - 1) / move : 0;
                    high = bound > x ? (bound - x + move - 1) / move : 0;
                    high = high < run ? high : run;
                    low = low < high ? low : high;
                }
                const ST *s = src + at.here.offset + ks[k].offset;
                T *d = dst + k * W + j;
                for (int64_t i = 0; i < low; i++) d[i] = 0;
                if (step == 1) {
                    if (high > low) WIDEN(d + low, s + low, high - low);
                } else {
                    for (int64_t i = low; i < high; i++) d[i] = LOAD(s[i * step]);
                }
                for (int64_t i = high; i < run; i++) d[i] = 0;
            }
            j += run;
            conv_advance(&at, &g->line, run);
        }
    }
}
/* The same where k has the longer innermost level (gradients of weights): runs go along k, line by line. */
RP__VEC_FN void N(gather_k)(const int W, const struct conv_gather *g, const ST *src, int64_t l0, int64_t count,
                            int64_t k0, int64_t kc, T *dst) {
    const int64_t step = g->k.offset[3], move = g->k.coordinate[3], bound = g->bound[2];
    struct conv_cursor line, at;
    if (kc == 0) return;
    conv_start(&line, &g->line, l0);
    for (int64_t p = 0; p < count; p += W, dst += W * kc) {
        const int64_t w = count - p < W ? count - p : W;
        if (w < W) memset(dst, 0, (size_t)(W * kc) * sizeof *dst);
        for (int64_t j = 0; j < w; j++, conv_next(&line, &g->line)) {
            conv_start(&at, &g->k, k0);
            for (int64_t k = 0; k < kc;) {
                const int64_t left = g->k.extent[3] - at.index[3], run = left < kc - k ? left : kc - k;
                const int64_t x = line.here.c[2] + at.here.c[2], y = line.here.c[1] + at.here.c[1];
                const int64_t z = line.here.c[0] + at.here.c[0];
                int64_t low = 0, high = run;
                if (z < 0 || z >= g->bound[0] || y < 0 || y >= g->bound[1]) {
                    high = 0;
                } else if (move > 0) {
                    if (x < 0) low = (-x + move - 1) / move;
                    if (x + (run - 1) * move >= bound) high = bound > x ? (bound - x + move - 1) / move : 0;
                    low = low < high ? low : high;
                } else if (x < 0 || x >= bound) {
                    high = 0;
                }
                const ST *s = src + line.here.offset + at.here.offset;
                T *d = dst + k * W + j;
                for (int64_t i = 0; i < low; i++) d[i * W] = 0;
                for (int64_t i = low; i < high; i++) d[i * W] = LOAD(s[i * step]);
                for (int64_t i = high; i < run; i++) d[i * W] = 0;
                k += run;
                conv_advance(&at, &g->k, run);
            }
        }
    }
}
static bool N(runs_along_k)(const struct conv_gather *g) {
    return g->k.extent[3] > g->line.extent[3] && g->k.coordinate[3] >= 0;
}
static void N(gather_a)(const struct conv_plan *c, const ST *src, int64_t l0, int64_t count, int64_t k0, int64_t kc,
                        T *dst) {
    if (N(runs_along_k)(&c->a))
        N(gather_k)(MICRO_ROWS, &c->a, src, l0, count, k0, kc, dst);
    else
        N(gather)(MICRO_ROWS, &c->a, src, l0, count, k0, kc, dst);
}
static void N(gather_b)(const struct conv_plan *c, const ST *src, int64_t l0, int64_t count, int64_t k0, int64_t kc,
                        T *dst) {
    if (N(runs_along_k)(&c->b))
        N(gather_k)(NR, &c->b, src, l0, count, k0, kc, dst);
    else
        N(gather)(NR, &c->b, src, l0, count, k0, kc, dst);
}
static void N(scatter)(const struct conv_plan *c, ST *out, int64_t m0, int64_t mc, int64_t n0, int64_t nc, const T *src,
                       int64_t ld) {
    struct conv_cursor at;
    conv_start(&at, &c->out, n0);
    for (int64_t j = 0; j < nc; j++, conv_next(&at, &c->out)) {
        ST *o = out + at.here.offset + m0 * c->out_m;
        for (int64_t i = 0; i < mc; i++) o[i * c->out_m] = STORE(src[i * ld + j]);
    }
}
RP__VEC_FN void N(conv)(const rp__conv_kind kind, const rp__kernel *kernel, const uint64_t *w, int64_t begin,
                        int64_t end) {
    const int64_t *v = (const int64_t *)w;
    const bool follows = w[RP__CONV_FLAGS] & RP__GEMM_REST;
    rp__gemm_rest rest;
    if (follows) rp__gemm_rest_begin(&rest, kernel, w + RP__CONV_WORDS, sizeof(T));
    const ST *x = (const ST *)(uintptr_t)w[RP__CONV_X], *wt = (const ST *)(uintptr_t)w[RP__CONV_W];
    const ST *y = (const ST *)(uintptr_t)w[RP__CONV_Y];
    N(scratch) *memory = rp__gemm_scratch_take();
    for (int64_t item = begin; item < end; item++) {
        struct conv_plan c;
        int64_t m0, n0;
        if (!conv_plan_of(kind, v, item, &c, &m0, &n0)) continue;
        N(job)
        g = {.k = c.k,
             .a = kind == RP__CONV_WEIGHT ? y : wt,
             .b = kind == RP__CONV_INPUT ? y : x,
             .out = (ST *)(uintptr_t)w[kind == RP__CONV_FORWARD ? RP__CONV_Y
                                       : kind == RP__CONV_INPUT ? RP__CONV_X
                                                                : RP__CONV_W],
             .om = c.out_m,
             .conv = &c,
             .flags = (unsigned)w[RP__CONV_FLAGS],
             .bias = (const ST *)(uintptr_t)w[RP__CONV_BIAS],
             .bias_stride = v[RP__CONV_BIAS_STRIDE]};
        if (c.bias_at) g.bias += c.bias_at * g.bias_stride;
        g.out += c.out.start.offset;
        if (conv_flat(&c.a.line, &c.a.k, &g.am, &g.ak) && !c.a.bounded)
            g.a += c.a.line.start.offset + c.a.k.start.offset;
        else
            g.gather_a = N(gather_a);
        if (conv_flat(&c.b.line, &c.b.k, &g.bn, &g.bk) && !c.b.bounded)
            g.b += c.b.line.start.offset + c.b.k.start.offset;
        else
            g.gather_b = N(gather_b);
        c.out.start.offset = 0;
        if (follows) conv_rest(&rest, &c, kind), g.rest = &rest;
        if (!conv_flat_axis(&c.out, &g.on)) g.scatter = N(scatter);
        const int64_t tm = v[RP__CONV_TILE_M], tn = v[RP__CONV_TILE_N];
        N(tile)(&g, memory, m0, c.m - m0 < tm ? c.m - m0 : tm, n0, c.n - n0 < tn ? c.n - n0 : tn);
    }
    rp__gemm_scratch_give(memory);
}
static void N(conv_forward)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    N(conv)(RP__CONV_FORWARD, kernel, w, begin, end);
}
static void N(conv_input)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    N(conv)(RP__CONV_INPUT, kernel, w, begin, end);
}
static void N(conv_weight)(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    N(conv)(RP__CONV_WEIGHT, kernel, w, begin, end);
}
#endif

#undef A
#undef N
#undef NAME1
#undef NAME2
#undef KC
#undef GROUP
#undef NR
#undef PAD
#undef S
#undef ST
#undef ACC
#undef T
#undef L
#undef SAME
#undef LOAD
#undef STORE
#undef WIDEN
#undef NARROW
#undef GEMM_BYTES
#undef FLOATING
