/* Attention of bf16 by the matrix unit (dots.h): blocks as in attention_core.h, whose scores and sums lie keys and features by queries, with
   products of bf16 added up in f32; weights and slopes are rounded to bf16 before they are multiplied. Included by attention.c. */

enum { PAIRS = RP__DOTS_STRIP, STEP = RP__DOTS_STEP, UNIT = RP__DOTS_ROWS };
static inline int64_t up_to(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* ---- operands */

/* Rows [first, first + n) of `columns` elements, zeros behind them up to `rows` of ld. */
static void copy_halves(const operand *o, int64_t first, int64_t n, int64_t columns, uint16_t *to, int64_t ld,
                        int64_t rows) {
    for (int64_t i = 0; i < n; i++, to += ld) {
        const uint16_t *from = (const uint16_t *)(const void *)o->base + (first + i) * o->row;
        if (o->column == 1)
            memcpy(to, from, (size_t)columns * sizeof *to);
        else
            for (int64_t j = 0; j < columns; j++) to[j] = from[j * o->column];
        if (columns < ld) memset(to + columns, 0, (size_t)(ld - columns) * sizeof *to);
    }
    if (n < rows) memset(to, 0, (size_t)((rows - n) * ld) * sizeof *to);
}

typedef struct halves { /* rows of bf16 that products read */
    const uint16_t *at;
    int64_t ld;
} halves;
/* A block of keys or values for products: as it lies as far as whole tiles can be read, the rows behind that as a copy, with zeros behind it. */
typedef struct parts {
    halves whole, rest;
    int64_t n, left; /* rows of each, as they lie a multiple of STEP */
} parts;
static parts parts_of(const operand *o, int64_t first, int64_t n, int64_t columns, uint16_t *copy) {
    const int64_t ld = up_to(columns, STEP), whole = o->column == 1 && columns == ld ? n / STEP * STEP : 0;
    if (whole < n) copy_halves(o, first + whole, n - whole, columns, copy, ld, up_to(n - whole, STEP));
    return (parts){{(const uint16_t *)(const void *)o->base + first * o->row, o->row}, {copy, ld}, whole, n - whole};
}

/* Elements 2e and 2e + 1 of 16 k rows side by side, strips of PAIRS rows one behind the other: (strip, columns / 2, PAIRS). */
static void pair_along_rows(halves from, int64_t rows, int64_t columns, uint32_t *to) {
    for (int64_t r = 0; r < rows; r += UNIT) {
        const float *at = (const float *)(const void *)(from.at + r * from.ld);
        float *strip = (float *)(void *)(to + r / PAIRS * PAIRS * (columns / 2) + r % PAIRS);
        for (int64_t e = 0; e < columns / 2; e += 4) {
            rp__vf32 turned[4];
            turn_piece_f32(at + e, from.ld / 2, turned);
            UNROLL for (int q = 0; q < 4; q++) rp__v_store_f32(strip + (e + q) * PAIRS, turned[q]);
        }
    }
}
/* Elements of x beside those of y, of two vectors of columns: as pairs of columns, whose halves change places. */
RP__VEC_FN void pair_halves(const uint16_t *x, const uint16_t *y, uint32_t *to) {
    const rp__vu32 a = (rp__vu32)rp__v_load_i32(x), b = (rp__vu32)rp__v_load_i32(y);
    const rp__vu32 even = (a & 0xffff) | b << 16, odd = a >> 16 | (b & 0xffff0000);
    rp__v_store_i32(
        to, (rp__vi32)__builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    rp__v_store_i32(to + UNIT, (rp__vi32)__builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                                                 29, 14, 30, 15, 31));
}
/* Rows 2i and 2i + 1 side by side, strips of PAIRS columns one behind the other: (strip, all / 2, PAIRS). */
static void pair_rows(halves from, int64_t rows, int64_t all, int64_t columns, uint32_t *to) {
    for (int64_t i = 0; i < rows; i += 2) {
        const uint16_t *x = from.at + i * from.ld, *y = x + from.ld;
        for (int64_t c = 0; c < columns; c += PAIRS) pair_halves(x + c, y + c, to + c * (all / 2) + i / 2 * PAIRS);
    }
}
static void pair_parts(const parts *from, int64_t columns, uint32_t *to) {
    const int64_t left = up_to(from->left, STEP), all = from->n + left;
    pair_rows(from->whole, from->n, all, columns, to);
    pair_rows(from->rest, left, all, columns, to + from->n / 2 * PAIRS);
}
/* to[column][row], rows in units of STEP, columns in those of PAIRS. */
static void turn_halves(halves from, int64_t rows, int64_t columns, uint16_t *to, int64_t ld) {
    for (int64_t r = 0; r < rows; r += STEP) {
        for (int64_t c = 0; c < columns; c += PAIRS) {
            _Alignas(64) uint32_t pairs[STEP / 2][PAIRS];
            for (int i = 0; i < STEP / 2; i++) {
                const uint16_t *x = from.at + (r + 2 * i) * from.ld + c;
                pair_halves(x, x + from.ld, pairs[i]);
            }
            for (int e = 0; e < PAIRS; e += 4) {
                rp__vf32 turned[4];
                turn_piece_f32((const float *)(const void *)pairs + e, PAIRS, turned);
                UNROLL for (int q = 0; q < 4; q++)
                    rp__v_store_f32((float *)(void *)(to + (c + e + q) * ld + r), turned[q]);
            }
        }
    }
}

static void turn_parts(const parts *from, int64_t columns, uint16_t *to, int64_t ld) {
    turn_halves(from->whole, from->n, columns, to, ld);
    turn_halves(from->rest, up_to(from->left, STEP), columns, to + from->n, ld);
}

/* c[rows, columns] = or += a[rows, k] b[k, columns]: rows and columns in units of 16, k in those of STEP; b in pairs of `ldb` columns' strips. */
static void dots(halves a, int64_t rows, const uint32_t *b, int64_t columns, int64_t k, float *c, int64_t ldc,
                 bool first) {
    rp__dots_call d = {.a = a.at, .am = a.ld, .ldc = ldc, .rows = rows / UNIT, .steps = k / STEP, .first = first};
    for (int64_t n = 0; n < columns; n += PAIRS) {
        d.pairs = b + n * (k / 2), d.c = c + n, d.columns = columns - n > UNIT ? 2 : 1;
        rp__dots_run(&d);
    }
}
static void dots_of_parts(const parts *a, const uint32_t *b, int64_t columns, int64_t k, float *c, int64_t ldc) {
    dots(a->whole, a->n, b, columns, k, c, ldc, true);
    dots(a->rest, up_to(a->left, UNIT), b, columns, k, c + a->n * ldc, ldc, true);
}

/* ---- weights */

/* e^x of x that is hardly above 0: 2^(x log2 e) within 2^-22 (vmath_coeffs.py, "exp2_dots"); 0 below 2^-126, 2^126 above that. Differences
   of scores come here, not scores times log2 e, whose rounding error is a power of 2 where they are large: masks of -1e9 and less. */
RP__VEC_FN rp__vf32 weight_of(rp__vf32 difference) {
    const float magic = RP__MAGIC_F32 + 127, most = 126;
    rp__vf32 x = difference * 0x1.715476p+0f;
    x = rp__v_sel_f32(x > most, rp__v_splat_f32(most), x);
    const rp__vf32 t = x + magic, r = x - (t - magic);
    rp__vf32 p = rp__v_step_f32(rp__v_splat_f32(0x1.5ccc56p-10f), r, 0x1.3cf5b2p-7f);
    p = rp__v_step_f32(rp__v_step_f32(p, r, 0x1.c6b586p-5f), r, 0x1.ebf9ap-3f);
    p = rp__v_step_f32(rp__v_step_f32(p, r, 0x1.62e42ap-1f), r, 1.0f) * (rp__vf32)((rp__vu32)t << 23);
    return rp__v_sel_f32(x < -126.0f, (rp__vf32){0}, p);
}

/* Scores times the scale, masked; returns what is left to multiply them by: blocks without a mask are scaled by the caller, to the same bits. */
static float prepare_scores(const block *b, float *scores) {
    const float scale = (float)double_of(b->w[RP__ATTENTION_SCALE]);
    if (!b->w[RP__ATTENTION_MASK_KIND] && !(b->w[RP__ATTENTION_CAUSAL] && b->key + b->keys - 1 > b->row)) return scale;
    for (int64_t i = 0; i < b->keys * b->ld; i += RP_VEC_F32)
        rp__v_store_f32(scores + i, rp__v_load_f32(scores + i) * scale);
    mask_scores_f32(b, scores);
    return 1;
}

/* The weights of one more block, rounded, in pairs of keys (strip of queries, keys / 2, PAIRS), zeros behind the last key; by what the sums
   before it shrink. */
static void soften_dots(const block *b, int64_t columns, const float *scores, const float *kept, float factor,
                        uint32_t *pairs, float *most, float *sum, float *shrink) {
    const int64_t padded = up_to(b->keys, STEP);
    for (int64_t i = 0; i < columns; i += RP_VEC_F32) {
        const rp__vf32 old = rp__v_load_f32(most + i);
        uint32_t *to = pairs + i / PAIRS * PAIRS * (padded / 2) + i % PAIRS;
        rp__vf32 m = old, total = {0};
        for (int64_t j = 0; j < b->keys; j++) m = rp__v_greater_f32(rp__v_load_f32(scores + j * b->ld + i) * factor, m);
        const rp__vf32 from = rp__v_sel_f32(m == -__builtin_inff(), (rp__vf32){0}, m), by = rp__v_splat_f32(factor);
        for (int64_t j = 0; j < padded; j += 2, to += PAIRS) {
            rp__vu32 bits[2];
            UNROLL for (int q = 0; q < 2; q++) {
                if (j + q >= b->keys) {
                    bits[q] = (rp__vu32){0};
                    continue;
                }
                rp__vf32 x = weight_of(rp__v_load_f32(scores + (j + q) * b->ld + i) * by - from);
                total += x;
                if (kept) x = x * rp__v_load_f32(kept + (j + q) * b->ld + i);
                bits[q] = (rp__vu32)x + 0x8000; /* to the nearest, halves upwards */
            }
            rp__v_store_i32(to, (rp__vi32)(bits[0] >> 16 | (bits[1] & 0xffff0000)));
        }
        const rp__vf32 less = weight_of(old - from);
        rp__v_store_f32(most + i, m);
        rp__v_store_f32(sum + i, rp__v_load_f32(sum + i) * less + total);
        rp__v_store_f32(shrink + i, less);
    }
}

/* Of a few queries (FEWEST), whose lanes would hardly be used: vectors along keys, with the bits of the above, and weights by rows of keys.
   line: of a query. */
enum { FEWEST = 4 };
static void soften_few(const block *b, const float *scores, float factor, float *line, uint16_t *weights, float *most,
                       float *sum, float *shrink) {
    const int64_t padded = up_to(b->keys, STEP);
    for (int64_t i = 0; i < b->rows; i++, weights += padded) {
        rp__vf32 greatest = rp__v_splat_f32(most[i]);
        for (int64_t j = 0; j < b->keys; j++) line[j] = scores[j * b->ld + i] * factor;
        for (int64_t j = b->keys; j < padded; j++) line[j] = -__builtin_inff();
        for (int64_t j = 0; j < padded; j += RP_VEC_F32)
            greatest = rp__v_greater_f32(rp__v_load_f32(line + j), greatest);
        float m = greatest[0], total = 0;
        for (int q = 1; q < RP_VEC_F32; q++) m = greatest[q] > m ? greatest[q] : m;
        const rp__vf32 from = rp__v_splat_f32(m == -__builtin_inff() ? 0 : m);
        for (int64_t j = 0; j < padded; j += RP_VEC_F32) {
            const rp__vf32 x = weight_of(rp__v_load_f32(line + j) - from);
            rp__v_store_f32(line + j, x);
            rp__v_store_u16h(weights + j, __builtin_convertvector(((rp__vu32)x + 0x8000) >> 16, rp__vu16h));
        }
        for (int64_t j = 0; j < b->keys; j++) total += line[j];
        const float less = weight_of(rp__v_splat_f32(most[i]) - from)[0];
        most[i] = m;
        sum[i] = sum[i] * less + total;
        shrink[i] = less;
    }
}

/* Rows of the result, whose elements lie `ld` apart: to[i][e] = factor * from[e][i], of ceil(n / 4) 4 rows and ceil(columns / 16) 16 lines. */
static void give_turned(const float *from, int64_t ld, int64_t n, int64_t columns, float factor, uint16_t *to,
                        int64_t row, int64_t column) {
    for (int64_t e = 0; e < columns; e += RP_VEC_F32) {
        const int64_t many = columns - e < RP_VEC_F32 ? columns - e : RP_VEC_F32;
        for (int64_t i = 0; i < n; i += 4) {
            rp__vf32 turned[4];
            turn_piece_f32(from + e * ld + i, ld, turned);
            for (int64_t q = 0; q < 4 && i + q < n; q++) {
                uint16_t line[RP_VEC_F32], *at = to + (i + q) * row + e * column;
                const rp__vu16h rounded = rp__v_bf16_f32(turned[q] * factor);
                if (column == 1 && many == RP_VEC_F32) {
                    rp__v_store_u16h(at, rounded);
                    continue;
                }
                rp__v_store_u16h(line, rounded);
                for (int64_t c = 0; c < many; c++) at[c * column] = line[c];
            }
        }
    }
}

/* Weights by rows of keys, of up to UNIT queries: to[query][key]. */
static void unpair_weights(const uint32_t *pairs, int64_t queries, int64_t keys, uint16_t *to, int64_t ld) {
    for (int64_t j = 0; j < keys; j += STEP) {
        for (int64_t i = 0; i < queries; i += 4) {
            rp__vf32 turned[4];
            turn_piece_f32((const float *)(const void *)(pairs + j / 2 * PAIRS + i), PAIRS, turned);
            UNROLL for (int q = 0; q < 4; q++) rp__v_store_f32((float *)(void *)(to + (i + q) * ld + j), turned[q]);
        }
    }
}
/* Adds weights by rows of keys, times values, to sums (UNIT queries, values), where turning values would cost more than multiplying them. */
static void add_few(const block *b, const parts *values, int64_t wide, const uint16_t *rows, const float *shrink,
                    uint32_t *pairs, float *sums) {
    const int64_t padded = up_to(b->keys, STEP);
    pair_parts(values, wide, pairs);
    if (b->key)
        for (int64_t i = 0; i < b->rows; i++)
            for (int64_t e = 0; e < wide; e += RP_VEC_F32)
                rp__v_store_f32(sums + i * wide + e, rp__v_load_f32(sums + i * wide + e) * shrink[i]);
    dots((halves){rows, padded}, UNIT, pairs, wide, padded, sums, wide, b->key == 0);
}
/* Elements of a result that lie `column` apart. */
static void give_line(const float *from, int64_t columns, float factor, uint16_t *at, int64_t column) {
    for (int64_t e = 0; e < columns; e += RP_VEC_F32, at += RP_VEC_F32 * column) {
        uint16_t line[RP_VEC_F32];
        rp__v_store_u16h(line, rp__v_bf16_f32(rp__v_load_f32(from + e) * factor));
        for (int64_t c = 0; c < RP_VEC_F32 && e + c < columns; c++) at[c * column] = line[c];
    }
}
static void give_few(const float *sums, int64_t wide, int64_t n, int64_t values, const float *factor, uint16_t *to,
                     int64_t row, int64_t column) {
    for (int64_t i = 0; i < n; i++) give_line(sums + i * wide, values, factor[i], to + i * row, column);
}

static void *take(char **next, int64_t bytes) {
    void *p = *next;
    *next += up_to(bytes, 64);
    return p;
}

static void forward_dots_block(const uint64_t *w, int64_t item, char *memory) {
    const int64_t heads = (int64_t)w[RP__ATTENTION_HEADS], rows = (int64_t)w[RP__ATTENTION_ROWS],
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES],
                  block_rows = (int64_t)w[RP__ATTENTION_BLOCK_ROWS], block_keys = (int64_t)w[RP__ATTENTION_BLOCK_KEYS],
                  blocks = (rows + block_rows - 1) / block_rows;
    block b = {.w = w, .dtype = RP_BF16, .number = item / blocks, .row = item % blocks * block_rows};
    const int64_t batch = b.number / heads, head = b.number % heads, kv = head / (int64_t)w[RP__ATTENTION_GROUP];
    b.rows = rows - b.row < block_rows ? rows - b.row : block_rows;
    const operand q = operand_at(w, RP__ATTENTION_Q, batch, head, RP_BF16),
                  k = operand_at(w, RP__ATTENTION_K, batch, kv, RP_BF16),
                  v = operand_at(w, RP__ATTENTION_V, batch, kv, RP_BF16);
    b.mask = mask_at(w, batch, head);
    const int64_t *os = strides_of(w, RP__ATTENTION_OUT), *ls = strides_of(w, RP__ATTENTION_LSE);
    uint16_t *out = (uint16_t *)(uintptr_t)w[RP__ATTENTION_OUT] + batch * os[0] + head * os[1];
    float *lse = (float *)(uintptr_t)w[RP__ATTENTION_LSE] + batch * ls[0] + head * ls[1];
    const int64_t n = up_to(b.rows, UNIT), deep = up_to(features, STEP), wide = up_to(values, STEP);
    b.ld = n + UNIT; /* not a power of 2, whose lines would fall into few sets of a cache */
    float *sums = take(&memory, wide * b.ld * 4), *most = take(&memory, n * 4), *total = take(&memory, n * 4),
          *shrink = take(&memory, n * 4), *scores = take(&memory, block_keys * b.ld * 4);
    float *kept = w[RP__ATTENTION_PLACE] ? take(&memory, block_keys * b.ld * 4) : NULL;
    uint32_t *queries = take(&memory, up_to(n, PAIRS) * deep * 2),
             *weights = take(&memory, up_to(n, PAIRS) * block_keys * 2);
    const bool few = n == UNIT, fewest = b.rows <= FEWEST && !kept;
    uint16_t *copy = take(&memory, (block_keys > n ? block_keys : n) * (deep > wide ? deep : wide) * 2),
             *turned = take(&memory, block_keys * wide * 2), *few_rows = take(&memory, UNIT * block_keys * 2);
    copy_halves(&q, b.row, b.rows, features, copy, deep, n);
    pair_along_rows((halves){copy, deep}, n, deep, queries);
    for (int64_t i = 0; i < n; i++) most[i] = -__builtin_inff(), total[i] = 0;
    const int64_t seen = keys_seen(w, b.row, b.rows);
    if (seen == 0) memset(sums, 0, (size_t)(wide * b.ld) * sizeof *sums);
    if (fewest)
        memset(few_rows, 0, (size_t)(UNIT * (seen < block_keys ? up_to(seen, STEP) : block_keys)) * sizeof *few_rows);
    for (b.key = 0; b.key < seen; b.key += block_keys) {
        b.keys = seen - b.key < block_keys ? seen - b.key : block_keys;
        const int64_t padded = up_to(b.keys, STEP);
        const parts keys = parts_of(&k, b.key, b.keys, features, copy);
        dots_of_parts(&keys, queries, n, deep, scores, b.ld);
        const float factor = prepare_scores(&b, scores);
        if (kept) draw_f32(&b, kept);
        if (fewest)
            soften_few(&b, scores, factor, (float *)(void *)weights, few_rows, most, total, shrink);
        else
            soften_dots(&b, n, scores, kept, factor, weights, most, total, shrink);
        const parts given = parts_of(&v, b.key, b.keys, values, copy);
        if (few) {
            if (!fewest) unpair_weights(weights, b.rows, padded, few_rows, padded);
            add_few(&b, &given, wide, few_rows, shrink, (uint32_t *)(void *)turned, sums);
            continue;
        }
        if (b.key)
            for (int64_t e = 0; e < values; e++) multiply_f32(sums + e * b.ld, shrink, n);
        turn_parts(&given, wide, turned, padded);
        dots((halves){turned, padded}, up_to(values, UNIT), weights, n, padded, sums, b.ld, b.key == 0);
    }
    for (int64_t i = 0; i < n; i += RP_VEC_F32) { /* what they are divided by; the logarithm of the sum */
        const rp__vf32 t = rp__v_load_f32(total + i);
        rp__v_store_f32(shrink + i, rp__v_sel_f32(t == 0, (rp__vf32){0}, 1 / t));
        rp__v_store_f32(most + i, rp__v_load_f32(most + i) + rp__v_log_f32(t));
    }
    for (int64_t i = 0; i < b.rows; i++) lse[(b.row + i) * ls[2]] = total[i] == 0 ? -__builtin_inff() : most[i];
    if (few) {
        give_few(sums, wide, b.rows, values, shrink, out + b.row * os[2], os[2], os[3]);
        return;
    }
    for (int64_t e = 0; e < values; e++) multiply_f32(sums + e * b.ld, shrink, n);
    give_turned(sums, b.ld, b.rows, values, 1, out + b.row * os[2], os[2], os[3]);
}

static void forward_dots(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    void *scratch = rp__gemm_scratch_take();
    rp__dots_begin(UNIT, false);
    for (int64_t i = begin; i < end; i++) forward_dots_block(w, i, scratch);
    rp__dots_end();
    rp__gemm_scratch_give(scratch);
}

/* ---- backward: all but the gradient of queries is added up over blocks of queries, as attention_core.h does */

static void backward_dots_block(const uint64_t *w, const totals_f32 *to, int64_t batch, int64_t head, int64_t first,
                                char *memory) {
    const int64_t heads = (int64_t)w[RP__ATTENTION_HEADS], rows = (int64_t)w[RP__ATTENTION_ROWS],
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES],
                  block_rows = (int64_t)w[RP__ATTENTION_BLOCK_ROWS], block_keys = (int64_t)w[RP__ATTENTION_BLOCK_KEYS],
                  kv = head / (int64_t)w[RP__ATTENTION_GROUP];
    const float scale = (float)double_of(w[RP__ATTENTION_SCALE]);
    block b = {.w = w, .dtype = RP_BF16, .number = batch * heads + head, .row = first};
    b.rows = rows - first < block_rows ? rows - first : block_rows;
    const operand q = operand_at(w, RP__ATTENTION_Q, batch, head, RP_BF16),
                  k = operand_at(w, RP__ATTENTION_K, batch, kv, RP_BF16),
                  v = operand_at(w, RP__ATTENTION_V, batch, kv, RP_BF16),
                  grad = operand_at(w, RP__ATTENTION_GRAD, batch, head, RP_BF16),
                  lse = operand_at(w, RP__ATTENTION_LSE, batch, head, RP_F32),
                  delta = operand_at(w, RP__ATTENTION_DELTA, batch, head, RP_F32);
    b.mask = mask_at(w, batch, head);
    const int64_t n = up_to(b.rows, STEP), deep = up_to(features, STEP), wide = up_to(values, STEP);
    b.ld = n + UNIT;
    uint16_t *copy_q = take(&memory, n * deep * 2), *copy_grad = take(&memory, n * wide * 2);
    uint32_t *queries = take(&memory, n * deep * 2), *grads = take(&memory, n * wide * 2),
             *query_rows = take(&memory, n * deep * 2), *grad_rows = take(&memory, n * wide * 2);
    float *dq = take(&memory, deep * b.ld * 4), *sum = take(&memory, n * 4), *less = take(&memory, n * 4),
          *scores = take(&memory, block_keys * b.ld * 4), *slopes = take(&memory, block_keys * b.ld * 4);
    float *kept = w[RP__ATTENTION_PLACE] ? take(&memory, block_keys * b.ld * 4) : NULL;
    uint16_t *weights = take(&memory, block_keys * n * 2), *changes = take(&memory, block_keys * n * 2),
             *copy_keys = take(&memory, block_keys * deep * 2), *copy_values = take(&memory, block_keys * wide * 2),
             *turned = take(&memory, block_keys * deep * 2);
    uint32_t *change_rows = take(&memory, block_keys * n * 2);
    copy_halves(&q, first, b.rows, features, copy_q, deep, n);
    copy_halves(&grad, first, b.rows, values, copy_grad, wide, n);
    pair_along_rows((halves){copy_q, deep}, n, deep, queries);
    pair_along_rows((halves){copy_grad, wide}, n, wide, grads);
    pair_rows((halves){copy_q, deep}, n, n, deep, query_rows);
    pair_rows((halves){copy_grad, wide}, n, n, wide, grad_rows);
    for (int64_t i = 0; i < n; i++) {
        /* a row that sees nothing, or is none, has weights of 0 */
        const float l = i < b.rows ? load_f32(lse.base, (first + i) * lse.row, RP_F32) : -__builtin_inff();
        sum[i] = l == -__builtin_inff() ? __builtin_inff() : l;
        less[i] = i < b.rows ? load_f32(delta.base, (first + i) * delta.row, RP_F32) : 0;
    }
    const int64_t seen = keys_seen(w, first, b.rows);
    if (seen == 0) memset(dq, 0, (size_t)(deep * b.ld) * sizeof *dq);
    for (b.key = 0; b.key < seen; b.key += block_keys) {
        b.keys = seen - b.key < block_keys ? seen - b.key : block_keys;
        const int64_t padded = up_to(b.keys, STEP), tiles = up_to(b.keys, UNIT);
        const parts keys = parts_of(&k, b.key, b.keys, features, copy_keys),
                    given = parts_of(&v, b.key, b.keys, values, copy_values);
        dots_of_parts(&keys, queries, n, deep, scores, b.ld);
        const float factor = prepare_scores(&b, scores);
        dots_of_parts(&given, grads, n, wide, slopes, b.ld);
        if (kept) draw_f32(&b, kept);
        const rp__vf32 by = rp__v_splat_f32(factor);
        for (int64_t j = 0; j < b.keys; j++) {
            for (int64_t i = 0; i < n; i += RP_VEC_F32) {
                const int64_t at = j * b.ld + i;
                const rp__vf32 l = rp__v_load_f32(sum + i), none = {0},
                               p = rp__v_sel_f32(l == __builtin_inff(),
                                                 none, /* whatever a key that it does not see is */
                                                 weight_of(rp__v_load_f32(scores + at) * by - l));
                rp__vf32 slope = rp__v_load_f32(slopes + at), weight = p;
                if (kept) {
                    const rp__vf32 m = rp__v_load_f32(kept + at);
                    slope = slope * m;
                    weight = weight * m;
                }
                rp__v_store_u16h(changes + j * n + i, rp__v_bf16_f32(p * (slope - rp__v_load_f32(less + i))));
                rp__v_store_u16h(weights + j * n + i, rp__v_bf16_f32(weight));
            }
        }
        memset(changes + b.keys * n, 0, (size_t)((padded - b.keys) * n) * sizeof *changes);
        memset(weights + b.keys * n, 0, (size_t)((padded - b.keys) * n) * sizeof *weights);
        dots((halves){weights, n}, tiles, grad_rows, to->ld_values, n, to->values + b.key * to->ld_values,
             to->ld_values, false);
        dots((halves){changes, n}, tiles, query_rows, to->ld_keys, n, to->keys + b.key * to->ld_keys, to->ld_keys,
             false);
        pair_rows((halves){changes, n}, padded, padded, n, change_rows);
        turn_parts(&keys, deep, turned, padded);
        dots((halves){turned, padded}, up_to(features, UNIT), change_rows, n, padded, dq, b.ld, b.key == 0);
    }
    const int64_t *s = strides_of(w, RP__ATTENTION_DQ);
    uint16_t *out = (uint16_t *)(uintptr_t)w[RP__ATTENTION_DQ] + batch * s[0] + head * s[1];
    give_turned(dq, b.ld, b.rows, features, scale, out + first * s[2], s[2], s[3]);
}

static void give_dots(const uint64_t *w, unsigned which, int64_t batch, int64_t head, const float *from, int64_t ld,
                      int64_t columns, float factor) {
    const int64_t *s = strides_of(w, which), keys = (int64_t)w[RP__ATTENTION_KEYS];
    uint16_t *out = (uint16_t *)(uintptr_t)w[which] + batch * s[0] + head * s[1];
    for (int64_t i = 0; i < keys; i++) give_line(from + i * ld, columns, factor, out + i * s[2], s[3]);
}

static void backward_dots(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    const int64_t group = (int64_t)w[RP__ATTENTION_GROUP], heads = (int64_t)w[RP__ATTENTION_HEADS] / group,
                  rows = (int64_t)w[RP__ATTENTION_ROWS], keys = rp__attention_sums((int64_t)w[RP__ATTENTION_KEYS]),
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES];
    totals_f32 to = {.ld_keys = rp__attention_padded(features), .ld_values = rp__attention_padded(values)};
    void *scratch = rp__gemm_scratch_take();
    rp__dots_begin(UNIT, false);
    for (int64_t item = begin; item < end; item++) {
        const int64_t batch = item / heads, head = item % heads;
        to.keys = (float *)(uintptr_t)w[RP__ATTENTION_SUMS] + item * keys * (to.ld_keys + to.ld_values);
        to.values = to.keys + keys * to.ld_keys;
        if (keys > 0) memset(to.keys, 0, (size_t)(keys * (to.ld_keys + to.ld_values)) * sizeof *to.keys);
        for (int64_t g = 0; g < group; g++)
            for (int64_t row = 0; row < rows; row += (int64_t)w[RP__ATTENTION_BLOCK_ROWS])
                backward_dots_block(w, &to, batch, head * group + g, row, scratch);
        give_dots(w, RP__ATTENTION_DK, batch, head, to.keys, to.ld_keys, features,
                  (float)double_of(w[RP__ATTENTION_SCALE]));
        give_dots(w, RP__ATTENTION_DV, batch, head, to.values, to.ld_values, values, 1);
    }
    rp__dots_end();
    rp__gemm_scratch_give(scratch);
}
