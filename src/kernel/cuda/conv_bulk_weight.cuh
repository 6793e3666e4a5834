/* Weight gradient of f32 rounded to tf32 on sm_90 with bulk copies: out[o][tap][c] = sum over places of y[place][o] x[window of place at tap][c], in
 * the order of conv_mma.cuh. Channels lie side by side in both operands, and in shared memory as they came: lines of 32 channels (128 bytes) of
 * RP_TK places each, swizzled, panels beside each other; maps round to tf32. Warps multiply (mma), since warpgroups read f32 along the inner index
 * alone, which runs across lines here (conv_panels.cuh).
 *
 * Macros as in conv_bulk.cuh, without RP_WG; RP_PARTS as in conv_mma.cuh. A column's panel is of one tap: channels are a multiple of 32. */
#define RP_B_PANELS (RP_TN / RP_PANEL)

extern "C" __global__ void RP_CLUSTER __launch_bounds__(256 + 64, RP_RESIDENT)
    RP_NAME(const __grid_constant__ RP_WORDS p) {
    extern __shared__ __align__(1024) unsigned char room[]; /* tiles, results' places, barriers */
    RP_T *const sa = (RP_T *)room, *const sb = sa + RP_STAGES * RP_A_SIZE;
    RP_ACC *const st = (RP_ACC *)room;
    rp_u64 *const full = (rp_u64 *)(sb + RP_STAGES * RP_B_SIZE), *const empty = full + RP_STAGES;
    rp_result *const result = (rp_result *)(empty + RP_STAGES);
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5], O = (RP_INDEX)p.w[6], G = (RP_INDEX)p.w[7];
    const RP_INDEX cg = G == 1 ? C : C / G, og = G == 1 ? O : O / G, g = (RP_INDEX)blockIdx.z;
    RP_SHARE_OF_BLOCK
    const RP_INDEX m0 = (RP_INDEX)blockIdx.y * RP_TM, n0 = number * RP_TN;
    const rp_places own = rp_places_of(&p, &number, RP_TN);
    const RP_INDEX taps = own.taps, M = og, N = cg * taps, K = batch * own.points;
    const RP_INDEX share = ((K + RP_UNIT - 1) / RP_UNIT + shares - 1) / shares * RP_UNIT,
                   first = rank * share < K ? rank * share : K, end = K - first < share ? K : first + share;
    const int steps = (int)((end - first + RP_TK - 1) / RP_TK);
    const rp_u64 *const of_y = &p.w[RP_W_MAPS], *const of_x = of_y + 16;
    enum {
        BYTES_OF_A = RP_A_SIZE * (int)sizeof(RP_T),
        BYTES_OF_B = RP_B_SIZE * (int)sizeof(RP_T),
        WARPS = 8,        /* multiply */
        COPIES_A = WARPS, /* and one for each operand */
        COPIES_B
    };
    if (warp == COPIES_A && rp_elect()) {
        for (int slot = 0; slot < RP_STAGES; slot++)
            rp_mbarrier_init(&full[slot], 2), rp_mbarrier_init(&empty[slot], WARPS);
        rp_mbarrier_ready();
        rp_bulk_prefetch(of_y);
        rp_bulk_prefetch(of_x);
    }
    rp_launch_dependents();
    rp_barrier();
    if (warp < WARPS) { /* while the first copies are on their way */
        for (int e = t; e < RP_TN; e += 256) {
            rp_result r;
#if RP_PARTS
            _Pragma("unroll") for (int d = 0; d < RP_S; d++) r.at[d] = 0;
            r.n = rank / RP_SPLIT * (O * N) + n0 + e;
#else
            RP_INDEX tap = (n0 + e) / cg;
            rp_split(own.kernel, &tap, r.at);
            r.n = rp_column(&p, (n0 + e) % cg, r.at);
#endif
            result[e] = r;
        }
    }
    rp_grid_wait();
    float acc[RP_FM][RP_FN_][4];
    _Pragma("unroll") for (int i = 0; i < RP_FM; i++) _Pragma("unroll") for (int j = 0; j < RP_FN_; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[i][j][v] = 0;
/* All steps: `panels` copies each, panel i by COPY, of places from `image`, pixel[] on, which go on by RP_TK a step. */
#define RP_COPY_ALL(panels, bytes, COPY)                                                                               \
    {                                                                                                                  \
        int slot = 0, parity = 1;                                                                                      \
        RP_INDEX image = first, pixel[RP_S], images = RP_TK, pixels[RP_S];                                             \
        rp_split(own.pixels, &image, pixel);                                                                           \
        rp_split(own.pixels, &images, pixels);                                                                         \
        for (int step = 0; step < steps; step++) {                                                                     \
            if (step >= RP_STAGES) rp_mbarrier_wait(&empty[slot], parity);                                             \
            rp_mbarrier_expect(&full[slot], bytes);                                                                    \
            _Pragma("unroll") for (int i = 0; i < (panels); i++) COPY if (++slot == RP_STAGES) slot = 0, parity ^= 1;  \
            int carry = 0;                                                                                             \
            _Pragma("unroll") for (int d = RP_S - 1; d >= 0; d--) {                                                    \
                pixel[d] += pixels[d] + carry;                                                                         \
                carry = pixel[d] >= own.pixels[d];                                                                     \
                if (carry) pixel[d] -= own.pixels[d];                                                                  \
            }                                                                                                          \
            image += images + carry;                                                                                   \
        }                                                                                                              \
    }
    if (warp == COPIES_A) {
        if (rp_elect()) {
            int at[RP_S], none[RP_S];
            _Pragma("unroll") for (int d = 0; d < RP_S; d++) none[d] = 0;
            RP_COPY_ALL(RP_TM / RP_PANEL, BYTES_OF_A, {
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) at[d] = (int)pixel[d];
                rp_bulk_pixels(sa + slot * RP_A_SIZE + i * (RP_PANEL * RP_TK), of_y, &full[slot], RP_S,
                               (int)(g * og + m0) + i * RP_PANEL, at, (int)image, none);
            })
        }
    } else if (warp == COPIES_B) {
        if (rp_elect()) {
            int at[RP_S], tap[RP_B_PANELS][RP_S], channel[RP_B_PANELS];
            _Pragma("unroll") for (int i = 0; i < RP_B_PANELS; i++) {
                RP_INDEX n = n0 + i * RP_PANEL, r[RP_S];
                channel[i] = n < N ? (int)(g * cg + n % cg) : (int)C; /* none: zeros */
                n = n < N ? n / cg : 0;
                rp_split(own.kernel, &n, r);
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) tap[i][d] = (int)(r[d] * RP_SIZE(RP_DIL, d));
            }
            RP_COPY_ALL(RP_B_PANELS, BYTES_OF_B, {
                _Pragma("unroll") for (int d = 0; d < RP_S; d++) at[d] =
                    (int)(pixel[d] * RP_SIZE(RP_STEP, d) - RP_SIZE(RP_PAD, d));
                rp_bulk_pixels(sb + slot * RP_B_SIZE + i * (RP_PANEL * RP_TK), of_x, &full[slot], RP_S, channel[i], at,
                               (int)image, tap[i]);
            })
        }
    } else {
        int turn = 0, parity = 0;
        for (int step = 0; step < steps; step++) {
            rp_mbarrier_wait(&full[turn], parity);
            rp_panels_multiply(acc, (const rp_u32 *)sa + turn * RP_A_SIZE, (const rp_u32 *)sb + turn * RP_B_SIZE, warp,
                               lane);
            if (lane == 0) rp_mbarrier_arrive(&empty[turn]);
            if (++turn == RP_STAGES) turn = 0, parity ^= 1;
        }
    }
    rp_barrier();
    rp_leave(&p, st, acc, result, t, rank, g, m0, n0, M, N, cg, og);
}
