/* Convolution on the tensor cores of sm_90, forward and input gradient, with bulk copies: conv_mma.cuh's products, order of sums and results, of
 * operands whose channels lie side by side. Two warps of their own ask the copy unit for tiles, RP_STAGES ahead: of the windowed operand RP_TN places of
 * the window with 128 bytes of channels at one tap, zeros where the window leaves the picture (an im2col map); of the other one a box. f32 is rounded
 * to tf32 on that way. Warpgroups multiply out of shared memory; of f32 whose rows, not the inner index, run fastest, they read the first
 * factor's tile themselves (RP_A_OWN), since their instruction reads f32 along the inner index alone.
 *
 * Macros: RP_NAME, RP_T, RP_ACC, RP_KIND (0, 1), RP_SPATIAL, RP_TM, RP_TN, RP_TK (128 bytes), RP_WM, RP_STAGES, RP_TILES, RP_SPLIT, RP_INDEX, RP_SAME,
 * RP_CLASSES, RP_MAPS, RP_A_ALONG, RP_OUT_ROWS, RP_REST, RP_RESIDENT, RP_WG_STEP and its like as in conv_mma.cuh. Words as in conv.cuh, then maps
 * (tensor_map.h). */
#define RP_A_OWN (RP_TF32 && !RP_A_ALONG)
#define RP_PANEL (128 / (int)sizeof(RP_T)) /* rows side by side where not the inner index is */
#define RP_A_SIZE (RP_TM * RP_TK)
#define RP_B_SIZE (RP_TN * RP_TK)
#define RP_STEP_K (32 / (int)sizeof(RP_T))         /* of an instruction */
#define RP_B_STEP(k) (rp_u32)((k) / RP_STEP_K * 2) /* in a descriptor, 16 bytes each */
#define RP_A_STEP(k) (rp_u32)((k) / RP_STEP_K * (RP_A_ALONG ? 2 : 128))

/* Where the next tile lies: channels, and the tap along each dim. */
typedef struct {
    RP_INDEX c, r[RP_S];
} rp_next;
/* Is the tap behind this one the first again? */
RP_FN int rp_next_tap(rp_next *next, const RP_INDEX *kernel) {
    int over = 1;
    _Pragma("unroll") for (int d = RP_S - 1; d >= 0; d--) {
        next->r[d] += over;
        over = over && next->r[d] == kernel[d];
        if (over) next->r[d] = 0;
    }
    return over;
}

extern "C" __global__ void RP_CLUSTER __launch_bounds__(256 + 64, RP_RESIDENT)
    RP_NAME(const __grid_constant__ RP_WORDS p) {
    extern __shared__ __align__(1024) unsigned char room[]; /* tiles, results' places, barriers */
    RP_T *const sa = (RP_T *)room, *const sb = sa + RP_STAGES * RP_A_SIZE;
    RP_ACC *const st = (RP_ACC *)room;
    rp_u64 *const full = (rp_u64 *)(sb + RP_STAGES * RP_B_SIZE), *const empty = full + RP_STAGES;
    rp_result *const result = (rp_result *)(empty + RP_STAGES);
    const int t = (int)threadIdx.x, early = p.w[RP_W_AHEAD] != 0;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = G == 1 ? C : C / G, og = G == 1 ? O : O / G, g = (RP_INDEX)blockIdx.z;
    RP_SHARE_OF_BLOCK
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM;
    const rp_places own = rp_places_of(&p, &number, RP_TN);
    const RP_INDEX n0 = number * RP_TN, taps = own.taps, N = batch * own.points, M = RP_KIND == 0 ? og : cg,
                   channels = RP_KIND == 0 ? cg : og, K = channels * taps;
#if RP_SPLIT == 1
    const RP_INDEX first = 0, end = K;
    (void)shares;
#else
    const RP_INDEX unit = RP_UNIT_OF(channels, taps), share = ((K + unit - 1) / unit + shares - 1) / shares * unit;
    const RP_INDEX first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
#endif
#if RP_CLASSES
    if (n0 >= N) return; /* a class with fewer places than the first one */
#endif
#if RP_SAME
    const int steps = (int)((end - first) / RP_TK);
#else
    const int steps = channels ? (int)((end - first) / channels * ((channels + RP_TK - 1) / RP_TK)) : 0;
#endif
    /* the first place of the tile, and how far each tap is from the window's first one */
    int at[RP_S], image, tap_at[RP_S];
    {
        RP_INDEX n = n0, pixel[RP_S];
        rp_split(own.pixels, &n, pixel);
        image = (int)n;
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
#if RP_KIND == 0
            at[d] = (int)(pixel[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d));
#elif RP_CLASSES
            const RP_INDEX last = own.tap_begin[d] + (own.kernel[d] - 1) * own.tap_step[d];
            at[d] =
                (int)(pixel[d] + (own.begin[d] + RP_SIZE(RP_PAD, d) - last * RP_SIZE(RP_DIL, d)) / RP_SIZE(RP_STEP, d));
#else
            at[d] = (int)(pixel[d] + RP_SIZE(RP_PAD, d) - (RP_SIZE(RP_KERNEL, d) - 1) * RP_SIZE(RP_DIL, d));
#endif
        }
    }
    const rp_u64 *const weights = &p.w[RP_W_MAPS];
#if RP_CLASSES
    const rp_u64 *const places = weights + 16 * (1 + own.which);
#else
    const rp_u64 *const places = weights + 16;
#endif
    rp_next next_a, next_b;
    RP_INDEX reach[RP_S]; /* from tap to tap */
    {
#if RP_SAME
        const RP_INDEX begin = first / RP_TK;
        RP_INDEX tap = taps ? begin % taps : 0;
        next_a.c = taps ? begin / taps * RP_TK : 0;
#else
        RP_INDEX tap = channels ? first / channels : 0;
        next_a.c = 0;
#endif
        if (taps) rp_split(own.kernel, &tap, next_a.r);
        next_b = next_a;
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
#if RP_CLASSES
            reach[d] = own.tap_step[d] * RP_SIZE(RP_DIL, d) / RP_SIZE(RP_STEP, d);
#else
            reach[d] = RP_SIZE(RP_DIL, d);
#endif
        }
    }
#if RP_SAME
#define RP_GO_ON(next)                                                                                                 \
    if (rp_next_tap(&next, own.kernel)) next.c += RP_TK;
#else
#define RP_GO_ON(next)                                                                                                 \
    if ((next.c += RP_TK) >= channels) {                                                                               \
        next.c = 0;                                                                                                    \
        (void)rp_next_tap(&next, own.kernel);                                                                          \
    }
#endif
#if RP_CLASSES
#define RP_TAP_OF(d, r) (own.tap_begin[d] + (r)*own.tap_step[d])
#else
#define RP_TAP_OF(d, r) (r)
#endif
/* The next tile of either operand, into slot `slot` of the place where it stands. */
#define RP_FILL_A(slot)                                                                                                \
    {                                                                                                                  \
        RP_INDEX tap = 0;                                                                                              \
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) tap =                                                         \
            tap * RP_SIZE(RP_KERNEL, d) + RP_TAP_OF(d, next_a.r[d]);                                                   \
        RP_T *const to = sa + (slot)*RP_A_SIZE;                                                                        \
        RP_BOX_OF_A(to, tap)                                                                                           \
        RP_GO_ON(next_a)                                                                                               \
    }
#if RP_KIND == 0
#define RP_BOX_OF_A(to, tap) rp_bulk_tile(to, weights, &full[slot], (int)next_a.c, (int)(tap), (int)(g * og + m0));
#elif RP_A_ALONG
#define RP_BOX_OF_A(to, tap) rp_bulk_tile(to, weights, &full[slot], (int)(g * og + next_a.c), (int)(tap), (int)m0);
#else
#define RP_BOX_OF_A(to, tap)                                                                                           \
    _Pragma("unroll") for (int i = 0; i < RP_TM / RP_PANEL; i++)                                                       \
        rp_bulk_tile((to) + i * (RP_PANEL * RP_TK), weights, &full[slot], (int)m0 + i * RP_PANEL, (int)(tap),          \
                     (int)(g * og + next_a.c));
#endif
#define RP_FILL_B(slot)                                                                                                \
    {                                                                                                                  \
        _Pragma("unroll") for (int d = 0; d < RP_S; d++) tap_at[d] =                                                   \
            (int)((RP_KIND == 0 ? next_b.r[d] : own.kernel[d] - 1 - next_b.r[d]) * reach[d]);                          \
        rp_bulk_pixels(sb + (slot)*RP_B_SIZE, places, &full[slot], RP_S, (int)(g * channels + next_b.c), at, image,    \
                       tap_at);                                                                                        \
        RP_GO_ON(next_b)                                                                                               \
    }
    enum {
        BYTES_OF_A = RP_A_SIZE * (int)sizeof(RP_T),
        BYTES_OF_B = RP_B_SIZE * (int)sizeof(RP_T),
        WARPS = 8,        /* multiply */
        COPIES_A = WARPS, /* and one for each operand */
        COPIES_B
    };
    const int warp = t / 32;
    if (warp == COPIES_A && rp_elect()) {
        for (int slot = 0; slot < RP_STAGES; slot++)
            rp_mbarrier_init(&full[slot], 2), rp_mbarrier_init(&empty[slot], WARPS);
        rp_mbarrier_ready();
        rp_bulk_prefetch(weights);
        rp_bulk_prefetch(places);
        for (int slot = 0; early && slot < RP_STAGES && slot < steps; slot++) {
            rp_mbarrier_expect(&full[slot], BYTES_OF_A);
            RP_FILL_A(slot)
        }
    }
    rp_launch_dependents();
    rp_barrier();
    if (warp < WARPS) { /* while the first copies are on their way */
        for (int e = t; e < RP_TN; e += 256) {
            RP_INDEX n = n0 + e;
            rp_result r;
#if RP_POINT
            _Pragma("unroll") for (int d = 0; d < RP_S; d++) r.at[d] = d + 1 < RP_S ? 0 : n;
            r.n = 0;
#else
            rp_split(own.pixels, &n, r.at);
            r.n = n;
#if RP_CLASSES
            _Pragma("unroll") for (int d = 0; d < RP_S; d++) r.at[d] = own.begin[d] + r.at[d] * RP_SIZE(RP_STEP, d);
#endif
#endif
            r.n = rp_column(&p, r.n, r.at);
            result[e] = r;
        }
    }
    rp_grid_wait();
    float acc[RP_WGN / 2];
    _Pragma("unroll") for (int i = 0; i < RP_WGN / 2; i++) acc[i] = 0;
#define RP_COPY_ALL(begin, fill, bytes)                                                                                \
    {                                                                                                                  \
        int slot = (begin) % RP_STAGES, parity = (begin) / RP_STAGES % 2 ^ 1;                                          \
        for (int step = (begin); step < steps; step++) {                                                               \
            if (step >= RP_STAGES) rp_mbarrier_wait(&empty[slot], parity);                                             \
            rp_mbarrier_expect(&full[slot], bytes);                                                                    \
            fill(slot) if (++slot == RP_STAGES) slot = 0, parity ^= 1;                                                 \
        }                                                                                                              \
    }
    if (warp == COPIES_A) {
        const int begun = !early ? 0 : steps < RP_STAGES ? steps : RP_STAGES;
        if (rp_elect()) RP_COPY_ALL(begun, RP_FILL_A, BYTES_OF_A)
    } else if (warp == COPIES_B) {
        if (rp_elect()) RP_COPY_ALL(0, RP_FILL_B, BYTES_OF_B)
    } else {
        const int group = t / 128, wm = RP_WM == 2 ? group : 0, wn = RP_WM == 2 ? 0 : group;
        const rp_u64 b_desc = RP_WG_DESC(sb + wn * RP_WGN * RP_TK, 16, 1024, 128);
#if RP_A_OWN
        rp_u32 fa[2][RP_TK / RP_STEP_K][4];
        const int lane = t % 32, row = wm * 64 + t / 32 % 4 * 16 + lane / 4;
        /* element (row + 8 i, k + 4 j) of the tile, in panels of 32 rows, whose lines of 128 bytes are swizzled */
#define RP_A_AT(r, k)                                                                                                  \
    ((r) / RP_PANEL * (RP_PANEL * RP_TK) + (k)*RP_PANEL + ((((r) % RP_PANEL) / 4) ^ (k) % 8) * 4 + (r) % 4)
#else
        const rp_u64 a_desc = RP_WG_DESC(sa + (RP_A_ALONG ? wm * 64 * RP_TK : wm * (64 * RP_TK)),
                                         RP_A_ALONG ? 16 : 128 * RP_TK, 1024, 128);
#endif
        int turn = 0, before = 0, parity = 0; /* slots of this step and of the last one; the phase of this one */
/* A step of all warps: its products are under way when the next one begins, those of the last step are done. */
#define RP_STEP_OF(step, which)                                                                                        \
    {                                                                                                                  \
        rp_mbarrier_wait(&full[turn], parity);                                                                         \
        RP_MULTIPLY(which)                                                                                             \
        RP_WG_COMMIT();                                                                                                \
        RP_WG_WAIT(1);                                                                                                 \
        if ((step) > 0 && t % 32 == 0) rp_mbarrier_arrive(&empty[before]);                                             \
        before = turn;                                                                                                 \
        if (++turn == RP_STAGES) turn = 0, parity ^= 1;                                                                \
    }
#if RP_A_OWN
#define RP_MULTIPLY(which)                                                                                             \
    {                                                                                                                  \
        const rp_u32 *const tile = (const rp_u32 *)sa + turn * RP_A_SIZE;                                              \
        _Pragma("unroll") for (int k = 0; k < RP_TK / RP_STEP_K; k++) _Pragma("unroll") for (int v = 0; v < 4; v++)    \
            fa[which][k][v] = tile[RP_A_AT(row + v % 2 * 8, k * RP_STEP_K + lane % 4 + v / 2 * 4)];                    \
        RP_WG_FENCE();                                                                                                 \
        _Pragma("unroll") for (int k = 0; k < RP_TK / RP_STEP_K; k++)                                                  \
            RP_WG_STEP(acc, fa[which][k], b_desc + (rp_u32)(turn * (BYTES_OF_B / 16)) + RP_B_STEP(k * RP_STEP_K), 1);  \
    }
#elif RP_TF32
#define RP_MULTIPLY(which)                                                                                             \
    RP_WG_FENCE();                                                                                                     \
    _Pragma("unroll") for (int k = 0; k < RP_TK; k += RP_STEP_K)                                                       \
        RP_WG_STEP(acc, a_desc + (rp_u32)(turn * (BYTES_OF_A / 16)) + RP_A_STEP(k),                                    \
                   b_desc + (rp_u32)(turn * (BYTES_OF_B / 16)) + RP_B_STEP(k), 1);
#else
#define RP_MULTIPLY(which)                                                                                             \
    RP_WG_FENCE();                                                                                                     \
    _Pragma("unroll") for (int k = 0; k < RP_TK; k += RP_STEP_K)                                                       \
        RP_WG_STEP(acc, a_desc + (rp_u32)(turn * (BYTES_OF_A / 16)) + RP_A_STEP(k),                                    \
                   b_desc + (rp_u32)(turn * (BYTES_OF_B / 16)) + RP_B_STEP(k), 1, !RP_A_ALONG, 0);
#endif
        int step = 0;
        for (; step + 1 < steps; step += 2) {
            RP_STEP_OF(step, 0)
            RP_STEP_OF(step + 1, 1)
        }
        if (step < steps) RP_STEP_OF(step, 0)
        RP_WG_WAIT(0);
        RP_WG_HOLD(acc, RP_WGN / 2);
    }
    rp_barrier();
    rp_leave(&p, st, acc, result, t, rank, g, m0, n0, M, N, cg, og);
}
