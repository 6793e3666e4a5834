/* The kernels of attention in one precision: R float or double of BYTES, S its suffix, V its vector of LANES, OWN its dtype. Included by attention.c. */
#define micro JOIN(micro_, S)
#define product JOIN(product_, S)
#define load JOIN(load_, S)
#define store JOIN(store_, S)
#define read_rows JOIN(read_rows_, S)
#define turn JOIN(turn_, S)
#define keys_of JOIN(keys_of_, S)
#define mask_scores JOIN(mask_scores_, S)
#define draw JOIN(draw_, S)
#define part JOIN(part_, S)
#define soften JOIN(soften_, S)
#define multiply JOIN(multiply_, S)
#define row_scores JOIN(row_scores_, S)
#define row_soften JOIN(row_soften_, S)
#define row_sums JOIN(row_sums_, S)
#define row_groups JOIN(row_groups_, S)
#define row_vectors JOIN(row_vectors_, S)
#define forward_rows JOIN(forward_rows_, S)
#define forward_block JOIN(forward_block_, S)
#define forward JOIN(forward_, S)
#define totals JOIN(totals_, S)
#define backward_block JOIN(backward_block_, S)
#define give JOIN(give_, S)
#define backward JOIN(backward_, S)
#define STRIP_NAME(columns) JOIN(JOIN(strip_, S), columns)

/* ---- c (m x n, rows ldc apart) = or += a (m x k) b (k x n, rows ldb apart); n counts vectors */

RP__VEC_FN void micro(int rows, int columns, int64_t k, const R *a, int64_t am, int64_t ak, const R *b, int64_t ldb,
                      R *c, int64_t ldc, bool add) {
    V sum[MICRO_ROWS][3];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < columns; j++) sum[i][j] =
        add ? JOIN(rp__v_load_, S)(c + i * ldc + j * LANES) : (V){0};
    for (int64_t p = 0; p < k; p++, a += ak, b += ldb) {
        V row[3];
        UNROLL for (int j = 0; j < columns; j++) row[j] = JOIN(rp__v_load_, S)(b + j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            const V x = JOIN(rp__v_splat_, S)(a[i * am]);
            UNROLL for (int j = 0; j < columns; j++) sum[i][j] = JOIN(FMA_, S)(x, row[j], sum[i][j]);
        }
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < columns; j++)
        JOIN(rp__v_store_, S)(c + i * ldc + j * LANES, sum[i][j]);
}
#define STRIP(columns)                                                                                                 \
    static void STRIP_NAME(columns)(int64_t m, int64_t k, const R *a, int64_t am, int64_t ak, const R *b, int64_t ldb, \
                                    R *c, int64_t ldc, bool add) {                                                     \
        int64_t i = 0;                                                                                                 \
        for (; i + MICRO_ROWS <= m; i += MICRO_ROWS)                                                                   \
            micro(MICRO_ROWS, columns, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add);                          \
        for (; i < m; i++) micro(1, columns, k, a + i * am, am, ak, b, ldb, c + i * ldc, ldc, add);                    \
    }
STRIP(1)
STRIP(2)
STRIP(3)
static void product(int64_t m, int64_t n, int64_t k, const R *a, int64_t am, int64_t ak, const R *b, int64_t ldb, R *c,
                    int64_t ldc, bool add) {
    while (n > 0) {
        const int64_t take = n == 4 ? 2 : n < 3 ? n : 3;
        (take == 1 ? STRIP_NAME(1) : take == 2 ? STRIP_NAME(2) : STRIP_NAME(3))(m, k, a, am, ak, b, ldb, c, ldc, add);
        b += take * LANES, c += take * LANES, n -= take;
    }
}

/* ---- operands */

static R load(const char *base, int64_t at, rp_dtype dtype) {
    if (dtype == RP_F32) return (R)((const float *)(const void *)base)[at];
    if (dtype == RP_F64) return (R)((const double *)(const void *)base)[at];
    return (R)float_of_half(((const uint16_t *)(const void *)base)[at], dtype);
}
static void store(char *base, int64_t at, R value, rp_dtype dtype) {
    if (dtype == OWN)
        ((R *)(void *)base)[at] = value;
    else
        ((uint16_t *)(void *)base)[at] = half_of_float((float)value, dtype);
}

/* Rows [first, first + n) of `columns` elements `ld` apart, zeros up to whole vectors. */
static void read_rows(const operand *o, rp_dtype dtype, int64_t first, int64_t n, int64_t columns, R factor, R *to,
                      int64_t ld) {
    const size_t bytes = rp__dtypes[dtype].bytes;
    for (int64_t i = 0; i < n; i++, to += ld) {
        const char *from = o->base + (first + i) * o->row * (int64_t)bytes;
        int64_t j = 0;
        if (o->column == 1) {
            for (; j + LANES <= columns; j += LANES) {
                const char *at = from + j * (int64_t)bytes;
                const V x = dtype == OWN ? JOIN(rp__v_load_, S)(at) : VECTOR_OF_HALVES(at, dtype);
                JOIN(rp__v_store_, S)(to + j, x * factor);
            }
        }
        for (; j < columns; j++) to[j] = load(from, j * o->column, dtype) * factor;
        for (; j < ld; j++) to[j] = 0;
    }
}
/* to[j][i] = from[i][j]: rows of `n` columns each `ld` apart, zeros behind the last of `rows` up to ld. */
static void turn(const R *from, int64_t from_ld, int64_t rows, int64_t n, R *to, int64_t ld) {
    for (int64_t j = 0; j < n; j++) {
        R *row = to + j * ld;
        for (int64_t i = 0; i < rows; i++) row[i] = from[i * from_ld + j];
        for (int64_t i = rows; i < ld; i++) row[i] = 0;
    }
}

/* What a block of keys or values is multiplied as: itself where it is of the type computed in, else a copy. */
static const R *keys_of(const operand *o, rp_dtype dtype, int64_t first, int64_t n, int64_t columns, R *copy,
                        int64_t *row, int64_t *column) {
    if (dtype == OWN) {
        *row = o->row, *column = o->column;
        return (const R *)(const void *)o->base + first * o->row;
    }
    *row = rp__attention_padded(columns), *column = 1;
    read_rows(o, dtype, first, n, columns, 1, copy, *row);
    return copy;
}

/* ---- one block of scores: keys [key, key + keys) of queries [row, row + rows) */

/* Adds the mask, and puts -infinity where nothing is seen. */
static void mask_scores(const block *b, R *scores) {
    const int64_t kind = (int64_t)b->w[RP__ATTENTION_MASK_KIND];
    if (kind) {
        const rp_dtype dtype = mask_type(b->w);
        for (int64_t j = 0; j < b->keys; j++) {
            R *s = scores + j * b->ld;
            const int64_t column = (b->key + j) * b->mask.column;
            for (int64_t i = 0; i < b->rows; i++) {
                const int64_t at = (b->row + i) * b->mask.row + column;
                if (kind != RP__ATTENTION_BOOL)
                    s[i] += load(b->mask.base, at, dtype);
                else if (!b->mask.base[at])
                    s[i] = -INF;
            }
        }
    }
    if (!b->w[RP__ATTENTION_CAUSAL]) return;
    for (int64_t j = 0; j < b->keys; j++) { /* hidden from the queries before it */
        R *s = scores + j * b->ld;
        const int64_t hidden = b->key + j - b->row;
        for (int64_t i = 0; i < hidden && i < b->ld; i++) s[i] = -INF;
    }
}

/* 1 / keep where dropout keeps a weight, 0 elsewhere. */
static void draw(const block *b, R *kept) {
    const int64_t *place = (const int64_t *)(uintptr_t)b->w[RP__ATTENTION_PLACE];
    const double stays = double_of(b->w[RP__ATTENTION_KEEP]);
    const float keep = (float)stays;
    const R factor = (R)(1 / stays);
    const int64_t rows = (int64_t)b->w[RP__ATTENTION_ROWS], keys = (int64_t)b->w[RP__ATTENTION_KEYS];
    for (int64_t i = 0; i < b->ld; i++) {
        uint32_t word[4] = {0};
        uint64_t have = UINT64_MAX;
        for (int64_t j = 0; j < b->keys; j++) {
            if (i >= b->rows) {
                kept[j * b->ld + i] = 0;
                continue;
            }
            const uint64_t element = (uint64_t)((b->number * rows + b->row + i) * keys + b->key + j);
            if (element / 4 != have) {
                have = element / 4;
                rp__philox((uint64_t)place[0], (uint64_t)place[1] + have, word);
            }
            kept[j * b->ld + i] = (float)(word[element % 4] >> 8) * 0x1p-24f < keep ? factor : 0;
        }
    }
}

/* Memory of a block, one part behind the other. */
static R *part(R **next, int64_t floats) {
    R *p = *next;
    *next += (floats + 15) / 16 * 16;
    return p;
}

/* ---- forward */

/* The weights of one more block, in place, and by what the sums before it shrink. */
static void soften(const block *b, R *scores, R *most, R *sum, R *shrink) {
    for (int64_t i = 0; i < b->ld; i += LANES) {
        const V old = JOIN(rp__v_load_, S)(most + i);
        V m = old, total = {0};
        for (int64_t j = 0; j < b->keys; j++)
            m = JOIN(rp__v_greater_, S)(JOIN(rp__v_load_, S)(scores + j * b->ld + i), m);
        const V from = JOIN(rp__v_sel_, S)(m == -INF, (V){0}, m);
        for (int64_t j = 0; j < b->keys; j++) {
            const V x = JOIN(rp__v_exp_, S)(JOIN(rp__v_load_, S)(scores + j * b->ld + i) - from);
            JOIN(rp__v_store_, S)(scores + j * b->ld + i, x);
            total += x;
        }
        const V less = JOIN(rp__v_exp_, S)(old - from);
        JOIN(rp__v_store_, S)(most + i, m);
        JOIN(rp__v_store_, S)(sum + i, JOIN(rp__v_load_, S)(sum + i) * less + total);
        JOIN(rp__v_store_, S)(shrink + i, less);
    }
}

static void multiply(R *a, const R *b, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        JOIN(rp__v_store_, S)(a + i, JOIN(rp__v_load_, S)(a + i) * JOIN(rp__v_load_, S)(b + i));
}

#if RP_VEC_BYTES >= 32
/* ---- few queries: one after the other, so that lanes are keys and then features; each element by the chain that a block gives it */

#define TURN(name) JOIN(name##_, S)
#define TURN_FROM R
#define TURN_V V
#define TURN_BYTES BYTES
#define TURN_LANES LANES
#define TURN_ELEMENT R
#include "kernel/cpu/isa/turn.h"

/* Scores of one query with groups * LANES keys, `row` elements apart. */
RP__VEC_FN void row_groups(const int groups, int64_t features, const R *keys, int64_t row, const R *query, R *scores) {
    enum { PIECE = 16 / BYTES };
    V sum[4];
    UNROLL for (int g = 0; g < groups; g++) sum[g] = (V){0};
    int64_t e = 0;
    for (; e + PIECE <= features; e += PIECE) {
        UNROLL for (int g = 0; g < groups; g++) {
            V turned[PIECE];
            JOIN(turn_piece_, S)(keys + g * LANES * row + e, row, turned);
            UNROLL for (int q = 0; q < PIECE; q++) sum[g] =
                JOIN(FMA_, S)(turned[q], JOIN(rp__v_splat_, S)(query[e + q]), sum[g]);
        }
    }
    for (; e < features; e++) {
        UNROLL for (int g = 0; g < groups; g++) {
            R line[LANES];
            for (int i = 0; i < LANES; i++) line[i] = keys[(g * LANES + i) * row + e];
            sum[g] = JOIN(FMA_, S)(JOIN(rp__v_load_, S)(line), JOIN(rp__v_splat_, S)(query[e]), sum[g]);
        }
    }
    UNROLL for (int g = 0; g < groups; g++) JOIN(rp__v_store_, S)(scores + g * LANES, sum[g]);
}
static void row_scores(int64_t n, int64_t features, const R *keys, int64_t row, const R *query, R *scores) {
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) row_groups(4, features, keys + j * row, row, query, scores + j);
    for (; j + LANES <= n; j += LANES) row_groups(1, features, keys + j * row, row, query, scores + j);
    if (j < n && n >= LANES) /* some of the keys before them again */
        row_groups(1, features, keys + (n - LANES) * row, row, query, scores + n - LANES);
    for (; j < n && n < LANES; j++) {
        V sum = {0};
        for (int64_t e = 0; e < features; e++)
            sum = JOIN(FMA_, S)(JOIN(rp__v_splat_, S)(keys[j * row + e]), JOIN(rp__v_splat_, S)(query[e]), sum);
        scores[j] = sum[0];
    }
}

/* soften, of one row; scores have room for whole vectors. */
static R row_soften(int64_t n, R *scores, R *most, R *sum) {
    V m = JOIN(rp__v_splat_, S)(*most);
    for (int64_t j = n; j % LANES; j++) scores[j] = -INF;
    for (int64_t j = 0; j < n; j += LANES) m = JOIN(rp__v_greater_, S)(JOIN(rp__v_load_, S)(scores + j), m);
    R top = m[0], total = 0;
    for (int i = 1; i < LANES; i++) top = m[i] > top ? m[i] : top;
    const V from = JOIN(rp__v_splat_, S)(top == -INF ? 0 : top);
    for (int64_t j = 0; j < n; j += LANES)
        JOIN(rp__v_store_, S)(scores + j, JOIN(rp__v_exp_, S)(JOIN(rp__v_load_, S)(scores + j) - from));
    for (int64_t j = 0; j < n; j++) total += scores[j];
    const R less = JOIN(rp__v_exp_, S)(JOIN(rp__v_splat_, S)(*most) - from)[0];
    *most = top, *sum = *sum * less + total;
    return less;
}

/* Adds weights times values, rows `row` elements apart, to sums times `less`. */
RP__VEC_FN void row_vectors(const int vectors, int64_t n, const R *values, int64_t row, const R *weights, R less,
                            R *sums) {
    V sum[8];
    UNROLL for (int i = 0; i < vectors; i++) sum[i] =
        JOIN(rp__v_load_, S)(sums + i * LANES) * JOIN(rp__v_splat_, S)(less);
    for (int64_t j = 0; j < n; j++, values += row) {
        const V x = JOIN(rp__v_splat_, S)(weights[j]);
        UNROLL for (int i = 0; i < vectors; i++) sum[i] =
            JOIN(FMA_, S)(JOIN(rp__v_load_, S)(values + i * LANES), x, sum[i]);
    }
    UNROLL for (int i = 0; i < vectors; i++) JOIN(rp__v_store_, S)(sums + i * LANES, sum[i]);
}
static void row_sums(int64_t n, int64_t columns, const R *values, int64_t row, const R *weights, R less, R *sums) {
    int64_t e = 0;
    for (; e + 8 * LANES <= columns; e += 8 * LANES) row_vectors(8, n, values + e, row, weights, less, sums + e);
    for (; e + 2 * LANES <= columns; e += 2 * LANES) row_vectors(2, n, values + e, row, weights, less, sums + e);
    for (; e + LANES <= columns; e += LANES) row_vectors(1, n, values + e, row, weights, less, sums + e);
    if (e == columns) return;
    const int64_t rest = columns - e;
    V sum = JOIN(rp__v_load_, S)(sums + e) * JOIN(rp__v_splat_, S)(less);
    for (int64_t j = 0; j < n; j++) {
        R line[LANES] = {0};
        for (int64_t i = 0; i < rest; i++) line[i] = values[j * row + e + i];
        sum = JOIN(FMA_, S)(JOIN(rp__v_load_, S)(line), JOIN(rp__v_splat_, S)(weights[j]), sum);
    }
    JOIN(rp__v_store_, S)(sums + e, sum);
}

/* Rows of `b` one by one; false: keys or values do not lie by rows. */
static bool forward_rows(block b, const operand *q, const operand *k, const operand *v, R *memory, char *out,
                         const int64_t *os, R *lse, int64_t lse_step) {
    const uint64_t *w = b.w;
    const int64_t features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES],
                  block_keys = (int64_t)w[RP__ATTENTION_BLOCK_KEYS], first = b.row, rows = b.rows;
    if (b.dtype == OWN && (k->column != 1 || v->column != 1)) return false;
    const int64_t seen = keys_seen(w, first, rows), wide = rp__attention_padded(features > values ? features : values);
    R *queries = part(&memory, rows * wide), *sums = part(&memory, rows * wide), *most = part(&memory, rows),
      *total = part(&memory, rows), *scores = part(&memory, block_keys);
    R *kept = w[RP__ATTENTION_PLACE] ? part(&memory, block_keys) : NULL;
    R *of_keys = part(&memory, block_keys * wide), *of_values = part(&memory, block_keys * wide);
    read_rows(q, b.dtype, first, rows, features, (R)double_of(w[RP__ATTENTION_SCALE]), queries, wide);
    for (int64_t i = 0; i < rows; i++) most[i] = -INF, total[i] = 0;
    for (int64_t i = 0; i < rows * wide; i++) sums[i] = 0;
    b.rows = b.ld = 1;
    for (b.key = 0; b.key < seen; b.key += block_keys) {
        int64_t key_row, value_row, column;
        b.keys = seen - b.key < block_keys ? seen - b.key : block_keys;
        const R *keys = keys_of(k, b.dtype, b.key, b.keys, features, of_keys, &key_row, &column);
        const R *given = keys_of(v, b.dtype, b.key, b.keys, values, of_values, &value_row, &column);
        for (int64_t i = 0; i < rows; i++) {
            b.row = first + i;
            row_scores(b.keys, features, keys, key_row, queries + i * wide, scores);
            mask_scores(&b, scores);
            const R less = row_soften(b.keys, scores, most + i, total + i);
            if (kept) {
                draw(&b, kept);
                for (int64_t j = 0; j < b.keys; j++) scores[j] *= kept[j];
            }
            row_sums(b.keys, values, given, value_row, scores, b.key ? less : 1, sums + i * wide);
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        const R by = total[i] == 0 ? 0 : 1 / total[i];
        const V of_total = JOIN(rp__v_log_, S)(JOIN(rp__v_splat_, S)(total[i]));
        lse[(first + i) * lse_step] = total[i] == 0 ? -INF : most[i] + of_total[0];
        for (int64_t e = 0; e < values; e++)
            store(out, (first + i) * os[2] + e * os[3], sums[i * wide + e] * by, b.dtype);
    }
    return true;
}
#endif

static void forward_block(const uint64_t *w, int64_t item, R *memory) {
    const int64_t heads = (int64_t)w[RP__ATTENTION_HEADS], rows = (int64_t)w[RP__ATTENTION_ROWS],
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES],
                  block_rows = (int64_t)w[RP__ATTENTION_BLOCK_ROWS], block_keys = (int64_t)w[RP__ATTENTION_BLOCK_KEYS],
                  blocks = (rows + block_rows - 1) / block_rows, wide = rp__attention_padded(features);
    const rp_dtype dtype = (rp_dtype)w[RP__ATTENTION_DTYPE];
    const size_t bytes = rp__dtypes[dtype].bytes;
    block b = {.w = w, .dtype = dtype, .number = item / blocks, .row = item % blocks * block_rows};
    const int64_t batch = b.number / heads, head = b.number % heads, kv = head / (int64_t)w[RP__ATTENTION_GROUP];
    b.rows = rows - b.row < block_rows ? rows - b.row : block_rows;
    b.ld = (b.rows + LANES - 1) / LANES * LANES;
    const operand q = operand_at(w, RP__ATTENTION_Q, batch, head, dtype),
                  k = operand_at(w, RP__ATTENTION_K, batch, kv, dtype),
                  v = operand_at(w, RP__ATTENTION_V, batch, kv, dtype);
    b.mask = mask_at(w, batch, head);
    const int64_t *os = strides_of(w, RP__ATTENTION_OUT), *ls = strides_of(w, RP__ATTENTION_LSE);
    char *out = (char *)(uintptr_t)w[RP__ATTENTION_OUT] + (batch * os[0] + head * os[1]) * (int64_t)bytes;
    R *lse = (R *)(uintptr_t)w[RP__ATTENTION_LSE] + batch * ls[0] + head * ls[1];
#if RP_VEC_BYTES >= 32
    if (b.rows * 8 <= 3 * LANES && forward_rows(b, &q, &k, &v, memory, out, os, lse, ls[2])) return;
#endif
    R *queries = part(&memory, wide * b.ld), *sums = part(&memory, values * b.ld), *most = part(&memory, b.ld),
      *total = part(&memory, b.ld), *shrink = part(&memory, b.ld), *scores = part(&memory, block_keys * b.ld);
    R *kept = w[RP__ATTENTION_PLACE] ? part(&memory, block_keys * b.ld) : NULL;
    /* the rows of the queries stand where sums will be, or keys */
    R *copy = part(&memory, block_keys * rp__attention_padded(features > values ? features : values));
    for (int64_t i = 0; i < b.rows; i += block_keys) {
        const int64_t n = b.rows - i < block_keys ? b.rows - i : block_keys;
        read_rows(&q, dtype, b.row + i, n, features, (R)double_of(w[RP__ATTENTION_SCALE]), copy, wide);
        for (int64_t e = 0; e < features; e++)
            for (int64_t r = 0; r < n; r++) queries[e * b.ld + i + r] = copy[r * wide + e];
    }
    for (int64_t e = 0; e < features; e++)
        for (int64_t r = b.rows; r < b.ld; r++) queries[e * b.ld + r] = 0;
    for (int64_t i = 0; i < b.ld; i++) most[i] = -INF, total[i] = 0;
    for (int64_t i = 0; i < values * b.ld; i++) sums[i] = 0;
    const int64_t seen = keys_seen(w, b.row, b.rows);
    for (b.key = 0; b.key < seen; b.key += block_keys) {
        int64_t row, column;
        b.keys = seen - b.key < block_keys ? seen - b.key : block_keys;
        const R *block_of = keys_of(&k, dtype, b.key, b.keys, features, copy, &row, &column);
        product(b.keys, b.ld / LANES, features, block_of, row, column, queries, b.ld, scores, b.ld, false);
        mask_scores(&b, scores);
        soften(&b, scores, most, total, shrink);
        if (kept) {
            draw(&b, kept);
            multiply(scores, kept, b.keys * b.ld);
        }
        if (b.key)
            for (int64_t e = 0; e < values; e++) multiply(sums + e * b.ld, shrink, b.ld);
        block_of = keys_of(&v, dtype, b.key, b.keys, values, copy, &row, &column);
        product(values, b.ld / LANES, b.keys, block_of, column, row, scores, b.ld, sums, b.ld, true);
    }
    for (int64_t i = 0; i < b.ld; i += LANES) { /* what they are divided by; the logarithm of the sum */
        const V t = JOIN(rp__v_load_, S)(total + i);
        JOIN(rp__v_store_, S)(shrink + i, JOIN(rp__v_sel_, S)(t == 0, (V){0}, 1 / t));
        JOIN(rp__v_store_, S)(most + i, JOIN(rp__v_load_, S)(most + i) + JOIN(rp__v_log_, S)(t));
    }
    for (int64_t e = 0; e < values; e++) multiply(sums + e * b.ld, shrink, b.ld);
    for (int64_t i = 0; i < b.rows; i++) {
        lse[(b.row + i) * ls[2]] = total[i] == 0 ? -INF : most[i];
        for (int64_t e = 0; e < values; e++) store(out, (b.row + i) * os[2] + e * os[3], sums[e * b.ld + i], dtype);
    }
}

static void forward(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    void *scratch = rp__gemm_scratch_take();
    for (int64_t i = begin; i < end; i++) forward_block(w, i, scratch);
    rp__gemm_scratch_give(scratch);
}

/* ---- backward */

typedef struct totals { /* of one head of keys: (S, features) and (S, values) */
    R *keys, *values;
    int64_t ld_keys, ld_values;
} totals;

static void backward_block(const uint64_t *w, const totals *to, int64_t batch, int64_t head, int64_t first, R *memory) {
    const int64_t heads = (int64_t)w[RP__ATTENTION_HEADS], rows = (int64_t)w[RP__ATTENTION_ROWS],
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES],
                  block_rows = (int64_t)w[RP__ATTENTION_BLOCK_ROWS], block_keys = (int64_t)w[RP__ATTENTION_BLOCK_KEYS],
                  kv = head / (int64_t)w[RP__ATTENTION_GROUP];
    const rp_dtype dtype = (rp_dtype)w[RP__ATTENTION_DTYPE];
    const size_t bytes = rp__dtypes[dtype].bytes;
    const R scale = (R)double_of(w[RP__ATTENTION_SCALE]);
    block b = {.w = w, .dtype = dtype, .number = batch * heads + head, .row = first};
    b.rows = rows - first < block_rows ? rows - first : block_rows;
    b.ld = (b.rows + LANES - 1) / LANES * LANES;
    const operand q = operand_at(w, RP__ATTENTION_Q, batch, head, dtype),
                  k = operand_at(w, RP__ATTENTION_K, batch, kv, dtype),
                  v = operand_at(w, RP__ATTENTION_V, batch, kv, dtype),
                  grad = operand_at(w, RP__ATTENTION_GRAD, batch, head, dtype),
                  lse = operand_at(w, RP__ATTENTION_LSE, batch, head, OWN),
                  delta = operand_at(w, RP__ATTENTION_DELTA, batch, head, OWN);
    b.mask = mask_at(w, batch, head);
    const int64_t wide = to->ld_keys, wide_values = to->ld_values;
    R *queries = part(&memory, b.rows * wide), *queries_turned = part(&memory, features * b.ld),
      *grads = part(&memory, b.rows * wide_values), *grads_turned = part(&memory, values * b.ld),
      *dq = part(&memory, features * b.ld), *sum = part(&memory, b.ld), *less = part(&memory, b.ld),
      *scores = part(&memory, block_keys * b.ld), *slopes = part(&memory, block_keys * b.ld);
    R *kept = w[RP__ATTENTION_PLACE] ? part(&memory, block_keys * b.ld) : NULL;
    R *copy_keys = part(&memory, block_keys * wide), *copy_values = part(&memory, block_keys * wide_values);
    read_rows(&q, dtype, first, b.rows, features, scale, queries, wide);
    read_rows(&grad, dtype, first, b.rows, values, 1, grads, wide_values);
    turn(queries, wide, b.rows, features, queries_turned, b.ld);
    turn(grads, wide_values, b.rows, values, grads_turned, b.ld);
    for (int64_t i = 0; i < b.ld; i++) {
        /* a row that sees nothing has weights of 0 */
        const R l = i < b.rows ? load(lse.base, (first + i) * lse.row, OWN) : INF;
        sum[i] = l == -INF ? INF : l;
        less[i] = i < b.rows ? load(delta.base, (first + i) * delta.row, OWN) : 0;
    }
    for (int64_t i = 0; i < features * b.ld; i++) dq[i] = 0;
    const int64_t seen = keys_seen(w, first, b.rows), n = b.ld / LANES;
    for (b.key = 0; b.key < seen; b.key += block_keys) {
        int64_t k_row, k_column, v_row, v_column;
        b.keys = seen - b.key < block_keys ? seen - b.key : block_keys;
        const R *keys = keys_of(&k, dtype, b.key, b.keys, features, copy_keys, &k_row, &k_column);
        product(b.keys, n, features, keys, k_row, k_column, queries_turned, b.ld, scores, b.ld, false);
        mask_scores(&b, scores);
        const R *of_values = keys_of(&v, dtype, b.key, b.keys, values, copy_values, &v_row, &v_column);
        product(b.keys, n, values, of_values, v_row, v_column, grads_turned, b.ld, slopes, b.ld, false);
        if (kept) draw(&b, kept);
        for (int64_t j = 0; j < b.keys; j++) {
            for (int64_t i = 0; i < b.ld; i += LANES) {
                const int64_t at = j * b.ld + i;
                const V p = JOIN(rp__v_exp_, S)(JOIN(rp__v_load_, S)(scores + at) - JOIN(rp__v_load_, S)(sum + i));
                V slope = JOIN(rp__v_load_, S)(slopes + at), weight = p;
                if (kept) {
                    const V m = JOIN(rp__v_load_, S)(kept + at);
                    slope = slope * m;
                    weight = weight * m;
                }
                JOIN(rp__v_store_, S)(slopes + at, p * (slope - JOIN(rp__v_load_, S)(less + i)));
                JOIN(rp__v_store_, S)(scores + at, weight);
            }
        }
        product(b.keys, wide_values / LANES, b.rows, scores, b.ld, 1, grads, wide_values,
                to->values + b.key * wide_values, wide_values, true);
        product(b.keys, wide / LANES, b.rows, slopes, b.ld, 1, queries, wide, to->keys + b.key * wide, wide, true);
        product(features, n, b.keys, keys, k_column, k_row, slopes, b.ld, dq, b.ld, true);
    }
    const int64_t *s = strides_of(w, RP__ATTENTION_DQ);
    char *out = (char *)(uintptr_t)w[RP__ATTENTION_DQ] + (batch * s[0] + head * s[1]) * (int64_t)bytes;
    for (int64_t i = 0; i < b.rows; i++)
        for (int64_t e = 0; e < features; e++)
            store(out, (first + i) * s[2] + e * s[3], dq[e * b.ld + i] * scale, dtype);
}

static void give(const uint64_t *w, unsigned which, int64_t batch, int64_t head, const R *from, int64_t ld,
                 int64_t columns) {
    const rp_dtype dtype = (rp_dtype)w[RP__ATTENTION_DTYPE];
    const int64_t *s = strides_of(w, which), keys = (int64_t)w[RP__ATTENTION_KEYS];
    char *out = (char *)(uintptr_t)w[which] + (batch * s[0] + head * s[1]) * (int64_t)rp__dtypes[dtype].bytes;
    for (int64_t i = 0; i < keys; i++)
        for (int64_t e = 0; e < columns; e++) store(out, i * s[2] + e * s[3], from[i * ld + e], dtype);
}

static void backward(const rp__kernel *kernel, const uint64_t *w, int64_t begin, int64_t end) {
    (void)kernel;
    const int64_t group = (int64_t)w[RP__ATTENTION_GROUP], heads = (int64_t)w[RP__ATTENTION_HEADS] / group,
                  rows = (int64_t)w[RP__ATTENTION_ROWS], keys = (int64_t)w[RP__ATTENTION_KEYS],
                  features = (int64_t)w[RP__ATTENTION_FEATURES], values = (int64_t)w[RP__ATTENTION_VALUES];
    totals to = {.ld_keys = rp__attention_padded(features), .ld_values = rp__attention_padded(values)};
    void *scratch = rp__gemm_scratch_take();
    for (int64_t item = begin; item < end; item++) {
        const int64_t batch = item / heads, head = item % heads;
        to.keys = (R *)(uintptr_t)w[RP__ATTENTION_SUMS] + item * keys * (to.ld_keys + to.ld_values);
        to.values = to.keys + keys * to.ld_keys;
        if (keys > 0) memset(to.keys, 0, (size_t)(keys * (to.ld_keys + to.ld_values)) * sizeof *to.keys);
        for (int64_t g = 0; g < group; g++)
            for (int64_t row = 0; row < rows; row += (int64_t)w[RP__ATTENTION_BLOCK_ROWS])
                backward_block(w, &to, batch, head * group + g, row, scratch);
        give(w, RP__ATTENTION_DK, batch, head, to.keys, to.ld_keys, features);
        give(w, RP__ATTENTION_DV, batch, head, to.values, to.ld_values, values);
    }
    rp__gemm_scratch_give(scratch);
}

#undef micro
#undef product
#undef load
#undef store
#undef read_rows
#undef turn
#undef keys_of
#undef mask_scores
#undef draw
#undef part
#undef soften
#undef multiply
#undef row_scores
#undef row_soften
#undef row_sums
#undef row_groups
#undef row_vectors
#undef forward_rows
#undef forward_block
#undef forward
#undef totals
#undef backward_block
#undef give
#undef backward
#undef STRIP_NAME
#undef STRIP
#undef VECTOR_OF_HALVES
#undef R
#undef BYTES
#undef S
#undef V
#undef LANES
#undef OWN
