/* What the texts of tiled convolutions (conv.cuh, conv_mma.cuh) share: words, shares of the inner index, and where a sum goes. conv.c puts it
 * behind the macros and before either. The line RP_FOLLOW is replaced as in the texts themselves. */
#define RP_S RP_SPATIAL
#define RP_W_SPACE 8
#define RP_W_STRIDES (8 + 6 * RP_S)
#define RP_W_AHEAD (RP_W_STRIDES + 3 * (2 + RP_S) + 1)
#if RP_MAPS /* tensor maps behind all other words: of weights, then of the other operand's places by class (conv_bulk.cuh) */
#define RP_W_MAPS ((RP_W_AHEAD + 1 + RP_REST + 7) / 8 * 8)
typedef struct __align__(64) {
    rp_u64 w[RP_W_MAPS + 16 * (1 + RP_MAPS)];
}
RP_WORDS;
#else
typedef struct {
    rp_u64 w[RP_W_AHEAD + 1 + RP_REST];
} RP_WORDS;
#endif
#define RP_SIZE(field, d) ((RP_INDEX)p.w[RP_W_SPACE + 6 * (d) + (field)])
#define RP_STRIDE(tensor, d) ((RP_INDEX)p.w[RP_W_STRIDES + (tensor) * (2 + RP_S) + (d)])
enum { RP_IN, RP_OUT, RP_KERNEL, RP_STEP, RP_PAD, RP_DIL };
/* The operand with windows, and the bounds of its places. */
#define RP_WINDOWED (RP_KIND == 1 ? 0 : 1)
#define RP_BOUND (RP_KIND == 1 ? RP_OUT : RP_IN)

typedef struct {
    RP_INDEX n, at[RP_S];
} rp_result;

/* Which share of the inner index a block takes, and the number of its tile among those of its rows: the blocks of a cluster take one tile, or, of
 * RP_PARTS, as many as the last word says leave their sums in memory, as parts that another kernel adds up. */
#if RP_PARTS
#define RP_SHARE_OF_BLOCK                                                                                              \
    const int shares = (int)p.w[RP_W_STRIDES + 3 * (2 + RP_S)] * RP_SPLIT,                                             \
              of_part = (int)(gridDim.x / (rp_u32)shares) * RP_SPLIT,                                                  \
              rank = (int)blockIdx.x / of_part * RP_SPLIT + (int)(blockIdx.x % RP_SPLIT);                              \
    RP_INDEX number = (RP_INDEX)((int)blockIdx.x % of_part / RP_SPLIT);
#else
#define RP_SHARE_OF_BLOCK                                                                                              \
    const int shares = RP_SPLIT, rank = (int)(blockIdx.x % RP_SPLIT);                                                  \
    RP_INDEX number = (RP_INDEX)(blockIdx.x / RP_SPLIT);
#endif
#if RP_S == 1
#define RP_TAPS_OF(p) RP_SIZE(RP_KERNEL, 0)
#elif RP_S == 2
#define RP_TAPS_OF(p) (RP_SIZE(RP_KERNEL, 0) * RP_SIZE(RP_KERNEL, 1))
#else
#define RP_TAPS_OF(p) (RP_SIZE(RP_KERNEL, 0) * RP_SIZE(RP_KERNEL, 1) * RP_SIZE(RP_KERNEL, 2))
#endif

/* Splits `index` over the sizes. */
RP_FN void rp_split(const RP_INDEX *size, RP_INDEX *index, RP_INDEX *at) {
    _Pragma("unroll") for (int d = RP_S - 1; d >= 0; d--) {
        at[d] = *index % size[d];
        *index /= size[d];
    }
}

/* A place before the first one is a large number. */
RP_FN int rp_within(RP_INDEX at, RP_INDEX bound) {
    return sizeof at == 4 ? (rp_u32)at < (rp_u32)bound : (rp_u64)at < (rp_u64)bound;
}

/* Pixels that are columns (of a weight gradient: the inner index) and taps of a window, how many there are of either. RP_CLASSES: of an input
 * gradient of a strided convolution a class, the pixels that a step divides with the same rest and the taps that they meet; no product with a
 * zero in between. Its pixels begin at `begin` and are a step apart, its taps begin at `tap_begin`, `tap_step` apart. */
typedef struct {
    RP_INDEX pixels[RP_S], kernel[RP_S], points, taps;
#if RP_CLASSES
    RP_INDEX which, begin[RP_S], tap_begin[RP_S], tap_step[RP_S];
#endif
} rp_places;
/* `number` of a tile of so many columns becomes its number in the class. */
RP_FN rp_places rp_places_of(const RP_WORDS *q, RP_INDEX *number, RP_INDEX columns) {
    const RP_WORDS p = *q;
    rp_places own;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
        own.kernel[d] = RP_SIZE(RP_KERNEL, d);
        own.pixels[d] = RP_SIZE(RP_KIND == 1 ? RP_IN : RP_OUT, d);
    }
#if RP_CLASSES
    RP_INDEX most = (RP_INDEX)p.w[4];
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) most *=
        (own.pixels[d] + RP_SIZE(RP_STEP, d) - 1) / RP_SIZE(RP_STEP, d);
    const RP_INDEX tiles = (most + columns - 1) / columns;
    RP_INDEX which = *number / tiles;
    own.which = which;
    *number %= tiles;
    _Pragma("unroll") for (int d = RP_S - 1; d >= 0; d--) {
        const RP_INDEX step = RP_SIZE(RP_STEP, d), dil = RP_SIZE(RP_DIL, d), size = own.pixels[d],
                       many = step < size ? step : size, begin = which % many,
                       rest = ((begin + RP_SIZE(RP_PAD, d)) % step + step) % step;
        which /= many;
        RP_INDEX r = 0, period = 1;
        if (dil == 1) {
            r = rest, period = step;
        } else {
            while (r < own.kernel[d] && (rest - r * dil) % step != 0) r++;
            while (period < step && period * dil % step != 0) period++;
        }
        own.begin[d] = begin;
        own.pixels[d] = (size - begin + step - 1) / step;
        own.tap_begin[d] = r;
        own.tap_step[d] = period;
        own.kernel[d] = r < own.kernel[d] ? (own.kernel[d] - r + period - 1) / period : 0;
    }
#else
    (void)number, (void)columns;
#endif
    own.points = own.taps = 1;
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) {
        own.points *= own.pixels[d];
        own.taps *= own.kernel[d];
    }
    return own;
}

/* On tensor cores the inner index of kinds 0 and 1 runs through the taps with so many channels innermost: RP_CHUNK where they come in such
 * chunks, whose places the taps read again and again, else all. */
#define RP_CHUNK_OF(channels) ((channels) % RP_CHUNK == 0 ? RP_CHUNK : (channels))
/* Elements of the inner index of which shares are made: such chunks, of f32 with all their taps (a class may have none), or all channels of a
 * tap where they are steps of the tensor cores; else RP_UNIT. */
#define RP_UNIT_OF(channels, taps)                                                                                     \
    (RP_KIND == 2 || RP_CHUNK == 1                ? RP_UNIT                                                            \
     : (channels) % RP_CHUNK == 0                 ? (RP_TF32 && (taps) > 0 ? RP_CHUNK * (taps) : RP_CHUNK)             \
     : (channels) % (32 / (int)sizeof(RP_T)) == 0 ? (channels)                                                         \
                                                  : RP_UNIT)

/* Of a column of the result: where it lies, if sums are only stored, else its number and place. */
RP_FN RP_INDEX rp_column(const RP_WORDS *q, RP_INDEX n, const RP_INDEX *at) {
#if RP_REST || RP_PARTS
    (void)q, (void)at;
    return n;
#else
    const RP_WORDS p = *q;
    RP_INDEX o = n * RP_STRIDE(RP_KIND, RP_KIND == 2 ? 1 : 0);
    _Pragma("unroll") for (int d = 0; d < RP_S; d++) o += at[d] * RP_STRIDE(RP_KIND, 2 + d);
    return o;
#endif
}

#if RP_OUT_WIDE && RP_REST
RP_WIDE_TYPES
/* What follows eight sums, neighbours along rows or columns, reads of memory before they are there. */
RP_FN void rp_held_load(const RP_WORDS *q, rp_held *held, RP_INDEX g, RP_INDEX m, RP_INDEX n, const RP_INDEX *at) {
    const RP_WORDS p = *q;
    (void)p;
    RP_WIDE_HELD
}
/* The same of rows alone. */
RP_FN void rp_line_load(const RP_WORDS *q, rp_line *held, RP_INDEX g, RP_INDEX m) {
    const RP_WORDS p = *q;
    const RP_INDEX n = 0, at[RP_S] = {0};
    (void)p, (void)n, (void)at;
    RP_WIDE_LINE
}
#elif RP_OUT_WIDE
#define RP_HELD_BYTES 0
typedef struct {
    int none;
} rp_held, rp_line;
RP_FN void rp_held_load(const RP_WORDS *q, rp_held *held, RP_INDEX g, RP_INDEX m, RP_INDEX n, const RP_INDEX *at) {
    (void)q, (void)held, (void)g, (void)m, (void)n, (void)at;
}
RP_FN void rp_line_load(const RP_WORDS *q, rp_line *line, RP_INDEX g, RP_INDEX m) {
    (void)q, (void)line, (void)g, (void)m;
}
#else
#define RP_HELD_BYTES 0
#endif

#if RP_OUT_WIDE
/* n sums, four or eight, side by side in a pass of results, of all blocks of a cluster in rising order. */
RP_FN void rp_add_sums(RP_ACC *sum, const RP_ACC *from, int n) {
    _Pragma("unroll") for (int i = 0; i < n; i += 4) {
#if RP_SPLIT > 1
        rp_f32x4 part[RP_SPLIT];
        _Pragma("unroll") for (int other = 0; other < RP_SPLIT; other++) part[other] =
            rp_cluster_read_v4_f32(from + i, other, RP_SPLIT);
        rp_f32x4 four = part[0];
        _Pragma("unroll") for (int other = 1; other < RP_SPLIT; other++) {
            four.x = four.x + part[other].x;
            four.y = four.y + part[other].y;
            four.z = four.z + part[other].z;
            four.w = four.w + part[other].w;
        }
#else
        const rp_f32x4 four = *(const rp_f32x4 *)(from + i);
#endif
        sum[i] = four.x, sum[i + 1] = four.y, sum[i + 2] = four.z, sum[i + 3] = four.w;
    }
}
#if !RP_REST
/* Where the sum of row m is stored in a column whose place is n, and n sums from there on along rows or columns, four words or fewer as one. */
RP_FN RP_INDEX rp_place_of(const RP_WORDS *q, RP_INDEX g, RP_INDEX m, RP_INDEX n, RP_INDEX cg, RP_INDEX og) {
    const RP_WORDS p = *q;
#if RP_PARTS
    return n + (g * og + m) * (cg * RP_TAPS_OF(p));
#else
    return n + (g * (RP_KIND == 1 ? cg : og) + m) * RP_STRIDE(RP_KIND, RP_KIND == 2 ? 0 : 1);
#endif
}
#if RP_BIAS
RP_FN void rp_read_bias(const RP_WORDS *q, RP_ACC *bias, RP_INDEX row) {
    const RP_WORDS p = *q;
    *bias = RP_LOAD(((const RP_T *)p.w[3])[row * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]);
}
#endif
RP_FN void rp_add_bias(const RP_WORDS *q, RP_ACC *sum, int n, RP_INDEX row) {
#if RP_BIAS
    const RP_WORDS p = *q;
    const RP_INDEX step = (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)];
    const RP_T *bias = (const RP_T *)p.w[3] + row * step;
    _Pragma("unroll") for (int i = 0; i < n; i++) sum[i] = sum[i] + RP_LOAD(bias[RP_OUT_ROWS ? i * step : 0]);
#else
    (void)q, (void)sum, (void)n, (void)row;
#endif
}
#if RP_TF32
#define RP_AT_ONCE 4
RP_FN void rp_store_wide(const RP_WORDS *q, const RP_ACC *sum, RP_INDEX to) {
    const RP_WORDS p = *q;
    rp_st_v4_f32((float *)p.w[RP_PARTS ? 3 : RP_KIND] + to, *(const rp_f32x4 *)sum);
}
#else
#define RP_AT_ONCE 8
RP_FN void rp_store_wide(const RP_WORDS *q, const RP_ACC *sum, RP_INDEX to) {
    const RP_WORDS p = *q;
    rp_u32x4 four;
    four.x = RP_STORE(sum[0]) | (rp_u32)RP_STORE(sum[1]) << 16;
    four.y = RP_STORE(sum[2]) | (rp_u32)RP_STORE(sum[3]) << 16;
    four.z = RP_STORE(sum[4]) | (rp_u32)RP_STORE(sum[5]) << 16;
    four.w = RP_STORE(sum[6]) | (rp_u32)RP_STORE(sum[7]) << 16;
    rp_st_v4_u32((rp_u32 *)((RP_T *)p.w[RP_KIND] + to), four);
}
#endif
#endif
/* What is done with eight sums of rows from m on, or of columns from n and `at` on. */
RP_FN void rp_finish_wide(const RP_WORDS *q, RP_ACC *sum, const rp_held *held, const rp_line *line, RP_INDEX g,
                          RP_INDEX m, RP_INDEX n, const RP_INDEX *at, RP_INDEX cg, RP_INDEX og) {
    (void)held, (void)line, (void)cg, (void)og, (void)at;
#if RP_REST
    const RP_WORDS p = *q;
    RP_WIDE_REST
#else
    const RP_INDEX to = rp_place_of(q, g, m, n, cg, og);
    rp_add_bias(q, sum, 8, g * og + m);
#if RP_TF32
    const RP_WORDS p = *q;
    rp_st_v8((float *)p.w[RP_KIND] + to, sum);
#else
    rp_store_wide(q, sum, to);
#endif
#endif
}
#endif

/* What is done with the sum of row m and a column: n is what rp_column gave. */
RP_FN void rp_finish(const RP_WORDS *q, RP_ACC x, RP_INDEX g, RP_INDEX m, RP_INDEX n, const RP_INDEX *at, RP_INDEX cg,
                     RP_INDEX og) {
    const RP_WORDS p = *q;
    (void)cg, (void)og, (void)at;
#if RP_REST
    RP_FOLLOW
#elif RP_PARTS /* n: column of the share's part, counted from the first share's */
    ((RP_ACC *)p.w[3])[n + (g * og + m) * (cg * RP_TAPS_OF(p))] = x;
#else
    const RP_INDEX o = n + (g * (RP_KIND == 1 ? cg : og) + m) * RP_STRIDE(RP_KIND, RP_KIND == 2 ? 0 : 1);
    RP_T *to = (RP_T *)p.w[RP_KIND];
#if RP_BIAS
    to[o] = RP_STORE(x + RP_LOAD(((const RP_T *)p.w[3])[(g * og + m) * (RP_INDEX)p.w[RP_W_STRIDES + 3 * (2 + RP_S)]]));
#else
    to[o] = RP_STORE(x);
#endif
#endif
}
