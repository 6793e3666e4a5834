/* Template: cells in one precision. recur.c includes it once a type with R element, S suffix of names, V vector, LANES its elements.
   Undefined here again. The last elements of a row pass through padded copies. */
#define F(name) JOIN(name, S)
#define SIGMOID F(rp__v_sigmoid_)
#define TANH F(rp__v_tanh_)
#define SEL F(rp__v_sel_)

RP__VEC_FN V F(take_)(const void *row, int64_t at, int64_t n) {
    const R *p = (const R *)row + at;
    if (n >= LANES) return F(rp__v_load_)(p);
    R some[LANES] = {0};
    memcpy(some, p, (size_t)n * sizeof *some);
    return F(rp__v_load_)(some);
}
RP__VEC_FN void F(give_)(void *row, int64_t at, int64_t n, V x) {
    R *p = (R *)row + at;
    if (n >= LANES) {
        F(rp__v_store_)(p, x);
        return;
    }
    R some[LANES];
    F(rp__v_store_)(some, x);
    memcpy(p, some, (size_t)n * sizeof *some);
}
#define TAKE(row, at) F(take_)((row), (at), n)
#define GIVE(row, at, x) F(give_)((row), (at), n, (x))

static void F(forward_)(rp__recurrent_cell cell, const rp__recur_row *r) {
    const int64_t H = r->units;
    for (int64_t u = 0; u < H; u += LANES) {
        const int64_t n = H - u;
        if (cell == RP__CELL_TANH || cell == RP__CELL_RELU) {
            const V y = TAKE(r->x, u) + TAKE(r->after, u);
            GIVE(r->after, u, cell == RP__CELL_TANH ? TANH(y) : SEL((y > 0) | (y != y), y, (V){0}));
        } else if (cell == RP__CELL_GRU) {
            const V sum = TAKE(r->kept, 2 * H + u), reset = SIGMOID(TAKE(r->x, u) + TAKE(r->kept, u)),
                    z = SIGMOID(TAKE(r->x, H + u) + TAKE(r->kept, H + u)),
                    fresh = TANH(TAKE(r->x, 2 * H + u) + reset * sum);
            GIVE(r->kept, u, reset), GIVE(r->kept, H + u, z), GIVE(r->kept, 2 * H + u, fresh);
            GIVE(r->kept, 3 * H + u, sum);
            GIVE(r->after, u, fresh + z * (TAKE(r->before, u) - fresh));
        } else {
            const V i = SIGMOID(TAKE(r->x, u) + TAKE(r->kept, u)),
                    f = SIGMOID(TAKE(r->x, H + u) + TAKE(r->kept, H + u)),
                    g = TANH(TAKE(r->x, 2 * H + u) + TAKE(r->kept, 2 * H + u)),
                    o = SIGMOID(TAKE(r->x, 3 * H + u) + TAKE(r->kept, 3 * H + u)),
                    c = f * TAKE(r->cell_before, u) + i * g;
            GIVE(r->kept, u, i), GIVE(r->kept, H + u, f), GIVE(r->kept, 2 * H + u, g), GIVE(r->kept, 3 * H + u, o);
            GIVE(r->cell_after, u, c);
            GIVE(r->after, u, o * TANH(c));
        }
    }
}

static void F(backward_)(rp__recurrent_cell cell, const rp__recur_row *r) {
    const int64_t H = r->units;
    for (int64_t u = 0; u < H; u += LANES) {
        const int64_t n = H - u;
        V d = TAKE(r->dh, u);
        if (r->more) d += TAKE(r->more, u);
        if (r->grad) d += TAKE(r->grad, u);
        if (cell == RP__CELL_TANH || cell == RP__CELL_RELU) {
            const V y = TAKE(r->after, u);
            GIVE(r->dx, u, cell == RP__CELL_TANH ? d * (1 - y * y) : SEL(y <= 0, (V){0}, d));
        } else if (cell == RP__CELL_GRU) {
            const V reset = TAKE(r->kept, u), z = TAKE(r->kept, H + u), fresh = TAKE(r->kept, 2 * H + u);
            const V of_fresh = d * (1 - z) * (1 - fresh * fresh),
                    of_z = d * (TAKE(r->before, u) - fresh) * (z * (1 - z)),
                    of_reset = of_fresh * TAKE(r->kept, 3 * H + u) * (reset * (1 - reset));
            GIVE(r->dx, u, of_reset), GIVE(r->dx, H + u, of_z), GIVE(r->dx, 2 * H + u, of_fresh);
            GIVE(r->dy, u, of_reset), GIVE(r->dy, H + u, of_z), GIVE(r->dy, 2 * H + u, of_fresh * reset);
            GIVE(r->dh, u, d * z);
        } else {
            const V i = TAKE(r->kept, u), f = TAKE(r->kept, H + u), g = TAKE(r->kept, 2 * H + u),
                    o = TAKE(r->kept, 3 * H + u), c = TANH(TAKE(r->cell_after, u)),
                    e = TAKE(r->dc, u) + d * o * (1 - c * c);
            GIVE(r->dx, u, e * g * (i * (1 - i)));
            GIVE(r->dx, H + u, e * TAKE(r->cell_before, u) * (f * (1 - f)));
            GIVE(r->dx, 2 * H + u, e * i * (1 - g * g)), GIVE(r->dx, 3 * H + u, d * c * (o * (1 - o)));
            GIVE(r->dc, u, e * f);
        }
    }
}

static void F(turn_)(int64_t rows, int64_t columns, const void *from, void *to) {
    enum { BLOCK = 8 };
    const R *a = from;
    R *b = to;
    for (int64_t i = 0; i < rows; i += BLOCK) {
        for (int64_t j = 0; j < columns; j += BLOCK) {
            if (rows - i >= BLOCK && columns - j >= BLOCK) {
                R block[BLOCK][BLOCK];
                for (int p = 0; p < BLOCK; p++)
                    for (int q = 0; q < BLOCK; q++) block[q][p] = a[(i + p) * columns + j + q];
                for (int q = 0; q < BLOCK; q++) memcpy(b + (j + q) * rows + i, block[q], sizeof block[q]);
                continue;
            }
            for (int64_t p = i; p < rows && p < i + BLOCK; p++)
                for (int64_t q = j; q < columns && q < j + BLOCK; q++) b[q * rows + p] = a[p * columns + q];
        }
    }
}

#undef TAKE
#undef GIVE
#undef SIGMOID
#undef TANH
#undef SEL
#undef F
#undef R
#undef S
#undef V
#undef LANES
