/* Convolution of 16-bit floats on tensor cores, where a group has few channels, as many in as out: RP_CG, a power of two from 2 to 32. Groups
 * share a step of 16 channels, or of 32, in which the weights of each are a block on the diagonal among zeros. 1 or 2 spatial dims, any
 * strides and memory format.
 *   RP_KIND 0, 1  forward, input gradient: a block takes 64 channels and RP_TH by RP_TW places a turn. What these read lies in shared memory
 *                 once, as a patch with the places around them, and is multiplied where it lies, tap by tap. Places of an input gradient
 *                 with steps come in classes of equal rest, each with its own taps (gridDim.y).
 *   RP_KIND 2     weight gradient: a share of the turns, whose sums of the whole window stay in registers: 16 channels by 16, of which the
 *                 blocks on the diagonal are kept. Two halves of the places are added up, then the shares (conv_sum.cuh).
 * A sum takes a tap a step, its channels at once (32: 16 and 16), from left to right in f32; of kind 2, 16 places. So the bits depend on sizes
 * and the kind of device: the shape of a turn and the number of shares are functions of these (conv_groups.c).
 *
 * Macros: RP_NAME, RP_T, RP_ACC, RP_LOAD, RP_STORE, RP_MMA_STEP, RP_KIND, RP_SPATIAL, RP_BIAS, RP_INDEX, RP_OUT_ROWS, RP_OUT_WIDE, RP_PARTS,
 * RP_REST as in conv_mma.cuh; RP_CG; RP_TH, RP_TW; of kind 2 RP_TAPS, those of the window, and RP_WINDOW_X, of a row; RP_LAST: eight channels of what is read come at
 * once, of dy also for kind 2; RP_W_LAST: so do weights. Words as in conv.cuh. */
#define RP_CB 64                          /* channels of a block */
#define RP_DEEP (RP_CG > 16 ? RP_CG : 16) /* channels that a result is multiplied from */
#define RP_PX (RP_TH * RP_TW)
#define RP_FRAGMENTS (RP_PX / 32) /* a warp: 16 places each, of half of them */
#define RP_ROW (RP_CB + 8)
#define RP_W_ROW (RP_DEEP + 8)
#define RP_ST_ROW (RP_OUT_ROWS ? RP_CB + 4 : RP_PX + 4)
#define RP_ST_AT(n, c) (RP_OUT_ROWS ? (n)*RP_ST_ROW + (c) : (c)*RP_ST_ROW + (n))
#define RP_MOST_TAPS 64
#define RP_AT_ONCE 8 /* elements of a thread that are on their way together */

/* Rows and places of one spatial dim are one row. */
#define RP_Y(x) (RP_S == 2 ? (x) : 0)
#define RP_SIZE_Y(field) (RP_S == 2 ? RP_SIZE(field, 0) : 1)
#define RP_SIZE_X(field) RP_SIZE(field, RP_S - 1)
#define RP_STRIDE_Y(tensor) RP_Y(RP_STRIDE(tensor, 2))
#define RP_STRIDE_X(tensor) RP_STRIDE(tensor, 1 + RP_S)

/* Rows and places from (top, left) on of image `from`, channels from c0 on: into shared memory, zero where there is nothing. */
RP_FN void rp_fetch(RP_T *to, const RP_T *from, int height, int width, RP_INDEX top, RP_INDEX left, RP_INDEX bound_y,
                    RP_INDEX bound_x, RP_INDEX channels, RP_INDEX row, RP_INDEX column, RP_INDEX channel) {
    const int t = (int)threadIdx.x;
#if RP_LAST
    (void)channel;
    for (int e = t; e < height * width * (RP_CB / 8); e += 256) {
        const int c = e % (RP_CB / 8) * 8, at = e / (RP_CB / 8), py = at / width, px = at - py * width;
        const RP_INDEX y = top + py, x = left + px;
        const int ok = y >= 0 && y < bound_y && x >= 0 && x < bound_x && c < channels;
        rp_cp_async_16_zfill(&to[at * RP_ROW + c], ok ? from + (y * row + x * column + c) : from, ok ? 16 : 0);
    }
#else
    for (int e = t; e < height * width * RP_CB; e += 256) {
        const int c = e / (height * width), at = e - c * (height * width), py = at / width, px = at - py * width;
        const RP_INDEX y = top + py, x = left + px;
        RP_T v = 0;
        if (y >= 0 && y < bound_y && x >= 0 && x < bound_x && c < channels)
            v = from[y * row + x * column + c * channel];
        to[at * RP_ROW + c] = v;
    }
#endif
}

extern "C" __global__ void __launch_bounds__(256, RP_KIND == 2 ? 2 : 3) RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) unsigned char room[];
    const int t = (int)threadIdx.x, lane = t % 32, block16 = t / 32 % 4 * 16, half = t / 128 * (RP_PX / 2);
    const RP_INDEX batch = (RP_INDEX)p.w[4], C = (RP_INDEX)p.w[5];
    const RP_INDEX spans = (C + RP_CB - 1) / RP_CB, c0 = (RP_INDEX)blockIdx.x % spans * RP_CB;
    const int channels = (int)(C - c0 < RP_CB ? C - c0 : RP_CB);
    RP_INDEX height = RP_SIZE_Y(RP_KIND == 1 ? RP_IN : RP_OUT), width = RP_SIZE_X(RP_KIND == 1 ? RP_IN : RP_OUT);
    const RP_INDEX bound_y = RP_SIZE_Y(RP_KIND == 1 ? RP_OUT : RP_IN),
                   bound_x = RP_SIZE_X(RP_KIND == 1 ? RP_OUT : RP_IN);
    const int step_y = RP_S == 2 ? (int)RP_SIZE(RP_STEP, 0) : 1, step_x = (int)RP_SIZE_X(RP_STEP),
              dil_y = RP_S == 2 ? (int)RP_SIZE(RP_DIL, 0) : 1, dil_x = (int)RP_SIZE_X(RP_DIL);
    const RP_INDEX pad_y = RP_S == 2 ? RP_SIZE(RP_PAD, 0) : 0, pad_x = RP_SIZE_X(RP_PAD);
#if RP_KIND == 2
    const int window_y = RP_TAPS / RP_WINDOW_X, window_x = RP_WINDOW_X;
#else
    int window_y = (int)RP_SIZE_Y(RP_KERNEL), window_x = (int)RP_SIZE_X(RP_KERNEL);
#endif
    /* Result (y, x) of a turn meets tap number (r, s) at (y * go_y + r * by_y + low_y, ..) from the turn's first place on. */
#if RP_KIND == 1
    /* Places of the class begin at `begin` and are a step apart; its taps are `first`, `first` + period .. */
    const int class_y = (int)blockIdx.y / step_x, class_x = (int)blockIdx.y % step_x;
    int first_y = 0, first_x = 0, period_y = 1, period_x = 1;
    height = height > class_y ? (height - class_y + step_y - 1) / step_y : 0;
    width = width > class_x ? (width - class_x + step_x - 1) / step_x : 0;
    while (first_y < window_y && (class_y + pad_y - first_y * dil_y) % step_y != 0) first_y++;
    while (first_x < window_x && (class_x + pad_x - first_x * dil_x) % step_x != 0) first_x++;
    while (period_y < step_y && period_y * dil_y % step_y != 0) period_y++;
    while (period_x < step_x && period_x * dil_x % step_x != 0) period_x++;
    window_y = first_y < window_y ? (window_y - first_y + period_y - 1) / period_y : 0;
    window_x = first_x < window_x ? (window_x - first_x + period_x - 1) / period_x : 0;
    const int go_y = 1, go_x = 1, by_y = -(period_y * dil_y / step_y), by_x = -(period_x * dil_x / step_x);
    const RP_INDEX low_y = (class_y + pad_y - first_y * dil_y) / step_y + (window_y ? (window_y - 1) * by_y : 0),
                   low_x = (class_x + pad_x - first_x * dil_x) / step_x + (window_x ? (window_x - 1) * by_x : 0);
    const int reach_y = window_y ? (1 - window_y) * by_y : 0, reach_x = window_x ? (1 - window_x) * by_x : 0;
#else
    const int go_y = step_y, go_x = step_x, by_y = dil_y, by_x = dil_x;
    const RP_INDEX low_y = -pad_y, low_x = -pad_x;
    const int reach_y = (window_y - 1) * by_y, reach_x = (window_x - 1) * by_x;
#endif
    const int patch_y = (RP_TH - 1) * go_y + reach_y + 1, patch_x = (RP_TW - 1) * go_x + reach_x + 1;
    const RP_INDEX high = (height + RP_TH - 1) / RP_TH, across = (width + RP_TW - 1) / RP_TW,
                   turns = batch * high * across;
    const int taps = window_y * window_x;
    rp_launch_dependents();
    rp_grid_wait();
/* Where tap number k is, from the patch's first place on. */
#define RP_TAP_AT(k)                                                                                                   \
    ((RP_KIND == 1 ? reach_y + (k) / window_x * by_y : (k) / window_x * by_y) * patch_x +                              \
     (RP_KIND == 1 ? reach_x + (k) % window_x * by_x : (k) % window_x * by_x))
/* And place number n of a turn. */
#define RP_PLACE_AT(n) ((n) / RP_TW * go_y * patch_x + (n) % RP_TW * go_x)
    const RP_T *const source = (const RP_T *)p.w[RP_KIND == 1 ? 0 : 1];
#if RP_KIND != 2
    __shared__ int tap_at[RP_MOST_TAPS];
    __shared__ RP_INDEX tap_weight[RP_MOST_TAPS]; /* offset in the weight */
    const RP_T *const w = (const RP_T *)p.w[2];
    RP_T *const weights = (RP_T *)room, *const patch = weights + taps * (RP_CB * RP_W_ROW);
    RP_ACC *const st = (RP_ACC *)patch;
    /* The weights that the block needs, the zeros between them first. */
    for (int e = t; e < taps * (RP_CB * RP_W_ROW / 8); e += 256) {
        const rp_u32x4 none = {0, 0, 0, 0};
        ((rp_u32x4 *)weights)[e] = none;
    }
    for (int e = t; e < taps; e += 256) {
#if RP_KIND == 1
        const RP_INDEX ry = first_y + e / window_x * period_y, rx = first_x + e % window_x * period_x;
#else
        const RP_INDEX ry = e / window_x, rx = e % window_x;
#endif
        tap_at[e] = RP_TAP_AT(e) * RP_ROW;
        tap_weight[e] = ry * RP_STRIDE_Y(2) + rx * RP_STRIDE_X(2);
    }
    rp_barrier();
    /* Of channel c of the block number i of those that it is multiplied by. */
    const RP_INDEX w_out = RP_STRIDE(2, 0), w_in = RP_STRIDE(2, 1);
#if RP_KIND == 1
#define RP_WEIGHT_AT(k, c, i) ((c0 + (c) / RP_CG * RP_CG + (i)) * w_out + (c) % RP_CG * w_in + tap_weight[k])
#else
#define RP_WEIGHT_AT(k, c, i) ((c0 + (c)) * w_out + (i)*w_in + tap_weight[k])
#endif
#define RP_WEIGHT_PLACE(k, c, i) (((k)*RP_CB + (c)) * RP_W_ROW + (c) % RP_DEEP / RP_CG * RP_CG + (i))
#if RP_W_LAST /* eight of them at once */
    for (int e = t; e < taps * (RP_CB * RP_CG / 8); e += 256) {
        const int i = e % (RP_CG / 8) * 8, c = e / (RP_CG / 8) % RP_CB, k = e / (RP_CG / 8 * RP_CB);
        if (c < channels) rp_cp_async_16(&weights[RP_WEIGHT_PLACE(k, c, i)], &w[RP_WEIGHT_AT(k, c, i)]);
    }
#else
    for (int e0 = t; e0 < taps * (RP_CB * RP_CG); e0 += 256 * RP_AT_ONCE) {
        RP_T v[RP_AT_ONCE];
        _Pragma("unroll") for (int u = 0; u < RP_AT_ONCE; u++) {
            const int e = e0 + u * 256, i = e % RP_CG, c = e / RP_CG % RP_CB, k = e / (RP_CG * RP_CB);
            v[u] = 0;
            if (c < channels && k < taps) v[u] = w[RP_WEIGHT_AT(k, c, i)];
        }
        _Pragma("unroll") for (int u = 0; u < RP_AT_ONCE; u++) {
            const int e = e0 + u * 256, i = e % RP_CG, c = e / RP_CG % RP_CB, k = e / (RP_CG * RP_CB);
            if (c < channels && k < taps) weights[RP_WEIGHT_PLACE(k, c, i)] = v[u];
        }
    }
#endif
    const int from_channel = block16 / RP_DEEP * RP_DEEP;
    for (RP_INDEX turn = (RP_INDEX)blockIdx.x / spans; turn < turns; turn += (RP_INDEX)gridDim.x / spans) {
        const RP_INDEX x0 = turn % across * RP_TW, y0 = turn / across % high * RP_TH, n = turn / across / high;
        rp_fetch(patch, source + (n * RP_STRIDE(RP_WINDOWED, 0) + c0 * RP_STRIDE(RP_WINDOWED, 1)), patch_y, patch_x,
                 y0 * go_y + low_y, x0 * go_x + low_x, bound_y, bound_x, channels, RP_STRIDE_Y(RP_WINDOWED),
                 RP_STRIDE_X(RP_WINDOWED), RP_STRIDE(RP_WINDOWED, 1));
        rp_cp_async_commit();
        rp_cp_async_wait(0);
        rp_barrier();
        float acc[RP_FRAGMENTS][2][4];
        int place[RP_FRAGMENTS];
        _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++) {
            const int at = half + f * 16 + lane % 16;
            place[f] = RP_PLACE_AT(at) * RP_ROW + from_channel + lane / 16 * 8;
            _Pragma("unroll") for (int j = 0; j < 2; j++) _Pragma("unroll") for (int v = 0; v < 4; v++) acc[f][j][v] =
                0;
        }
        for (int k = 0; k < taps; k++) {
            const int tap = tap_at[k];
            const RP_T *const row =
                &weights[(k * RP_CB + block16 + lane / 16 * 8 + lane % 8) * RP_W_ROW + lane / 8 % 2 * 8];
            _Pragma("unroll") for (int d = 0; d < RP_DEEP; d += 16) {
                rp_u32 fb[4], fa[RP_FRAGMENTS][4];
                rp_ldmatrix_x4(fb, row + d);
                _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++)
                    rp_ldmatrix_x4(fa[f], &patch[place[f] + tap + d]);
                _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++) {
                    RP_MMA_STEP(acc[f][0], fa[f], fb);
                    RP_MMA_STEP(acc[f][1], fa[f], fb + 2);
                }
            }
        }
#if RP_CG < 16
        /* What is not finite in one group times the zeros of another is no number: the sums of such places are taken again, each from its
         * own group's channels beside zeros. */
        int odd = 0;
        _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++) _Pragma("unroll") for (int j = 0; j < 2; j++)
            _Pragma("unroll") for (int v = 0; v < 4; v++) odd = odd || !rp_isfinite_f32(acc[f][j][v]);
        if (rp_any(odd))
            _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++) _Pragma("unroll") for (int j = 0; j < 2; j++)
                _Pragma("unroll 1") for (int group = 0; group < 16 / RP_CG; group++) {
                float own[4] = {0, 0, 0, 0};
                const int low = lane % 4 * 2 / RP_CG == group, high = (lane % 4 * 2 + 8) / RP_CG == group;
                _Pragma("unroll 1") for (int k = 0; k < taps; k++) {
                    rp_u32 fb[4], fa[4];
                    rp_ldmatrix_x4(
                        fb, &weights[(k * RP_CB + block16 + lane / 16 * 8 + lane % 8) * RP_W_ROW + lane / 8 % 2 * 8]);
                    rp_ldmatrix_x4(fa, &patch[place[f] + tap_at[k]]);
                    fa[0] = low ? fa[0] : 0, fa[1] = low ? fa[1] : 0;
                    fa[2] = high ? fa[2] : 0, fa[3] = high ? fa[3] : 0;
                    RP_MMA_STEP(own, fa, fb + 2 * j);
                }
                _Pragma("unroll") for (int v = 0; v < 4; v++) if ((j * 8 + lane % 4 * 2 + v % 2) / RP_CG == group)
                    acc[f][j][v] = own[v];
            }
#endif
        rp_barrier();
        _Pragma("unroll") for (int f = 0; f < RP_FRAGMENTS; f++) _Pragma("unroll") for (int j = 0; j < 2; j++)
            _Pragma("unroll") for (int v = 0; v < 4; v++)
                st[RP_ST_AT(half + f * 16 + lane / 4 + v / 2 * 8, block16 + j * 8 + lane % 4 * 2 + v % 2)] =
                    acc[f][j][v];
        rp_barrier();
#if RP_OUT_WIDE /* vectors of channels */
#define RP_EACH 8
#else
#define RP_EACH 1
#endif
        for (int e = t; e < RP_PX * RP_CB / RP_EACH; e += 256) {
            const int c = RP_OUT_ROWS ? e % (RP_CB / RP_EACH) * RP_EACH : e / RP_PX,
                      at = RP_OUT_ROWS ? e / (RP_CB / RP_EACH) : e % RP_PX;
            RP_INDEX y = y0 + at / RP_TW, x = x0 + at % RP_TW;
            if (c >= channels || y >= height || x >= width) continue;
#if RP_KIND == 1
            y = class_y + y * step_y;
            x = class_x + x * step_x;
#endif
            const RP_ACC *const sum = &st[RP_ST_AT(at, c)];
#if RP_OUT_WIDE
            float v[8];
            _Pragma("unroll") for (int i = 0; i < 8; i += 4) {
                const rp_f32x4 some = *(const rp_f32x4 *)(sum + i);
                v[i] = some.x, v[i + 1] = some.y, v[i + 2] = some.z, v[i + 3] = some.w;
            }
#if RP_BIAS
            const RP_INDEX by = (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)];
            _Pragma("unroll") for (int i = 0; i < 8; i++) v[i] =
                v[i] + RP_LOAD(((const RP_T *)p.w[3])[(c0 + c + i) * by]);
#endif
            rp_u32x4 four;
            four.x = RP_STORE(v[0]) | (rp_u32)RP_STORE(v[1]) << 16;
            four.y = RP_STORE(v[2]) | (rp_u32)RP_STORE(v[3]) << 16;
            four.z = RP_STORE(v[4]) | (rp_u32)RP_STORE(v[5]) << 16;
            four.w = RP_STORE(v[6]) | (rp_u32)RP_STORE(v[7]) << 16;
            rp_st_v4_u32(
                (rp_u32 *)((RP_T *)p.w[RP_KIND] + (n * RP_STRIDE(RP_KIND, 0) + (c0 + c) * RP_STRIDE(RP_KIND, 1) +
                                                   y * RP_STRIDE_Y(RP_KIND) + x * RP_STRIDE_X(RP_KIND))),
                four);
#else
            const RP_INDEX spot[2] = {RP_S == 2 ? y : x, x};
            rp_finish(&p, *sum, (c0 + c) / RP_CG, (c0 + c) % RP_CG, rp_column(&p, n, spot), spot, RP_CG, RP_CG);
#endif
        }
        rp_barrier();
    }
#else
    RP_ACC *const st = (RP_ACC *)room;
    const int turn_size = (RP_PX + patch_y * patch_x) * RP_ROW; /* of dy and of what it meets */
    const RP_INDEX shares = (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)], share = (RP_INDEX)blockIdx.x / spans;
    const RP_INDEX each = (turns + shares - 1) / shares, begin = turns < share * each ? turns : share * each,
                   end = turns - begin < each ? turns : begin + each;
    float acc[RP_TAPS][2][4];
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) _Pragma("unroll") for (int j = 0; j < 2; j++)
        _Pragma("unroll") for (int v = 0; v < 4; v++) acc[k][j][v] = 0;
#define RP_TURN_AT(number)                                                                                             \
    const RP_INDEX x0 = (number) % across * RP_TW, y0 = (number) / across % high * RP_TH, n = (number) / across / high;
/* Turn `number` into its place, of which there are RP_TURNS_HELD. */
#define RP_FETCH_TURN(number)                                                                                          \
    {                                                                                                                  \
        RP_TURN_AT(number)                                                                                             \
        RP_T *const to = (RP_T *)room + ((number)-begin) % RP_TURNS_HELD * turn_size;                                  \
        rp_fetch(to, (const RP_T *)p.w[0] + (n * RP_STRIDE(0, 0) + c0 * RP_STRIDE(0, 1)), RP_TH, RP_TW, y0, x0,        \
                 height, width, channels, RP_STRIDE_Y(0), RP_STRIDE_X(0), RP_STRIDE(0, 1));                            \
        rp_fetch(to + RP_PX * RP_ROW, source + (n * RP_STRIDE(1, 0) + c0 * RP_STRIDE(1, 1)), patch_y, patch_x,         \
                 y0 * go_y + low_y, x0 * go_x + low_x, bound_y, bound_x, channels, RP_STRIDE_Y(1), RP_STRIDE_X(1),     \
                 RP_STRIDE(1, 1));                                                                                     \
    }
    if (RP_TURNS_HELD == 2 && begin < end) RP_FETCH_TURN(begin)
    rp_cp_async_commit();
    for (RP_INDEX turn = begin; turn < end; turn++) {
        RP_TURN_AT(turn)
        const RP_T *const dy = (const RP_T *)room + (turn - begin) % RP_TURNS_HELD * turn_size, *const patch =
                                                                                                    dy + RP_PX * RP_ROW;
        (void)n;
        if (turn + RP_TURNS_HELD - 1 < end) RP_FETCH_TURN(turn + RP_TURNS_HELD - 1)
        rp_cp_async_commit();
        rp_cp_async_wait(RP_TURNS_HELD - 1);
        rp_barrier();
        _Pragma("unroll 1") for (int f = 0; f < RP_FRAGMENTS; f++) {
            const int at = half + f * 16;
            rp_u32 fa[4];
            rp_ldmatrix_x4_trans(fa, &dy[(at + lane / 16 * 8 + lane % 8) * RP_ROW + block16 + lane / 8 % 2 * 8]);
            const RP_T *const row = &patch[RP_PLACE_AT(at + lane % 16) * RP_ROW + block16 + lane / 16 * 8];
            rp_u32 there[2]; /* of this lane's pairs of places: beside those that are not, x may hold anything */
            _Pragma("unroll") for (int h = 0; h < 2; h++) {
                const int q = at + h * 8 + lane % 4 * 2;
                there[h] = (y0 + q / RP_TW < height && x0 + q % RP_TW < width ? 0xffffu : 0) |
                           (y0 + (q + 1) / RP_TW < height && x0 + (q + 1) % RP_TW < width ? 0xffff0000u : 0);
            }
            _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) {
                rp_u32 fb[4];
                rp_ldmatrix_x4_trans(fb, row + RP_TAP_AT(k) * RP_ROW);
                fb[0] &= there[0], fb[1] &= there[1], fb[2] &= there[0], fb[3] &= there[1];
                RP_MMA_STEP(acc[k][0], fa, fb);
                RP_MMA_STEP(acc[k][1], fa, fb + 2);
            }
        }
        rp_barrier();
    }
    /* The first half of the places, then the other; of 16 by 16 sums those of one group. */
    RP_ACC *const to = (RP_ACC *)p.w[3] + share * (C * (RP_CG * RP_TAPS));
    (void)taps;
    _Pragma("unroll") for (int k = 0; k < RP_TAPS; k++) {
        if (half)
            _Pragma("unroll") for (int j = 0; j < 2; j++) _Pragma("unroll") for (int v = 0; v < 4; v++)
                st[(j * 4 + v) * 128 + t % 128] = acc[k][j][v];
        rp_barrier();
        if (!half) _Pragma("unroll") for (int j = 0; j < 2; j++) _Pragma("unroll") for (int v = 0; v < 4; v++) {
                const int o = lane / 4 + v / 2 * 8, in = j * 8 + lane % 4 * 2 + v % 2;
                const RP_ACC sum = acc[k][j][v] + st[(j * 4 + v) * 128 + t];
                if (o / RP_CG == in / RP_CG && block16 + o < channels)
                    to[((c0 + block16 + o) * RP_CG + in % RP_CG) * RP_TAPS + k] = sum;
            }
        rp_barrier();
    }
#endif
}
