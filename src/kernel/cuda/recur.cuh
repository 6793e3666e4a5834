/* A recurrent layer along a sequence in one launch (library.h, RP__LIB_RECUR and _BACK; recur.c chooses the sizes). RP_BLOCKS blocks, a cluster,
 * have RP_ROWS sequences; each has some of the hidden units and keeps what it needs of the weights in registers for all steps. A unit is
 * RP_LANES neighbouring threads, which share what is summed. What a step leaves for the next one goes to the shared memory of all blocks, into the
 * buffer that nobody reads in this step: one barrier a step.
 *
 * Forward, a thread has a piece of the rows of its unit's gates, RP_SUMS vectors; backward of the column of its unit, one vector. RP_EACH elements of
 * them: lane l has those at 4 (i RP_LANES + l) .. + 3, so that neighbours read neighbours.
 *
 * Macros: RP_NAME RP_WORDS, RP_T float or double, RP_DOUBLE, RP_CELL 0 tanh, 1 relu, 2 gru, 3 lstm; RP_BACK, RP_GATES 1, 3 or 4; RP_BLOCKS RP_ROWS
 * RP_LANES RP_SUMS RP_EACH RP_THREADS, RP_VECTOR: rows of the weights are read 16 bytes at once; RP_FMA RP_EXP RP_TANH RP_SHFL RP_CLUSTER_WRITE;
 * W_..: words. */
typedef struct {
    rp_u64 w[RP_N_WORDS];
} RP_WORDS;

#define RP_PITCH (RP_LANES * RP_EACH)
#define RP_SHARED (RP_LANES < RP_ROWS ? RP_LANES : RP_ROWS) /* parts of the rows that lanes have in the end */
#define RP_LEFT (RP_ROWS / RP_SHARED)                       /* rows of a thread in the end */
#define RP_COPIES (RP_LANES / RP_SHARED)                    /* threads that have the same */
#define RP_CHAINS (RP_SUMS == 1 ? 4 : 1)                    /* independent sums of a thread: what is to do meanwhile */
#define RP_KEPT (RP_CELL >= 2 ? 4 : 0)                      /* of a unit, a step, for the way back */
#define RP_AT(type, word) ((type *)p.w[word])

#if RP_BLOCKS > 1
#define RP_CLUSTER __cluster_dims__(RP_BLOCKS, 1, 1)
#define RP_MEET() rp_cluster_barrier(RP_BLOCKS)
#else
#define RP_CLUSTER
#define RP_MEET() rp_barrier()
#endif

typedef struct {
    int lane, unit, row; /* lane of the unit; the unit; the first row of this thread, of all sequences */
    int copy;            /* which of the RP_COPIES threads */
    int place;           /* of row 0 of this thread in a buffer */
} rp_who;

RP_FN void rp_four(RP_T *to, const RP_T *from) {
#if RP_DOUBLE
    const rp_f64x2 a = rp_ld_v2_f64(from), b = rp_ld_v2_f64(from + 2);
    to[0] = a.x, to[1] = a.y, to[2] = b.x, to[3] = b.y;
#else
    const rp_f32x4 v = rp_ld_v4_f32(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#endif
}
RP_FN RP_T rp_sigmoid(RP_T x) { return (RP_T)1 / ((RP_T)1 + RP_EXP(-x)); }

/* sum[v][i]: vector v times row i of the rows that this thread has in the end. Whatever RP_ROWS is, a row's sum has one order. */
RP_FN void rp_multiply(RP_T sum[RP_SUMS][RP_LEFT], RP_T w[RP_SUMS][RP_EACH], const RP_T *values, int lane) {
    RP_T x[RP_SUMS][RP_ROWS][RP_CHAINS];
    _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++) _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++)
        _Pragma("unroll") for (int c = 0; c < RP_CHAINS; c++) x[v][r][c] = 0;
    _Pragma("unroll") for (int i = 0; i < RP_EACH; i += 4) _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++) {
        RP_T h[4];
        rp_four(h, values + r * RP_PITCH + i * RP_LANES + 4 * lane);
        _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++) _Pragma("unroll") for (int j = 0; j < 4; j++)
            x[v][r][j % RP_CHAINS] = RP_FMA(w[v][i + j], h[j], x[v][r][j % RP_CHAINS]);
    }
    _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++)
        _Pragma("unroll") for (int r = 0; r < RP_ROWS; r++) if (RP_CHAINS == 4) x[v][r][0] =
            (x[v][r][0] + x[v][r][2 % RP_CHAINS]) + (x[v][r][1 % RP_CHAINS] + x[v][r][3 % RP_CHAINS]);
    /* Lanes add up what the others have; while there are rows to part, each half goes on with half of them. */
    int rows = RP_ROWS;
    _Pragma("unroll") for (int mask = RP_LANES / 2; mask > 0; mask /= 2) {
        const int upper = (lane & mask) != 0, half = rows / 2;
        _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++) {
            if (rows > 1) {
                _Pragma("unroll") for (int r = 0; r < RP_ROWS / 2; r++) {
                    if (r >= half) continue;
                    const RP_T mine = upper ? x[v][half + r][0] : x[v][r][0],
                               others = upper ? x[v][r][0] : x[v][half + r][0];
                    x[v][r][0] = mine + RP_SHFL(others, mask, 32);
                }
            } else {
                x[v][0][0] += RP_SHFL(x[v][0][0], mask, 32);
            }
        }
        if (rows > 1) rows = half;
    }
    _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++) _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) sum[v][i] =
        x[v][i][0];
}

/* Element `at` of row i of this thread, in the buffers of all blocks. */
RP_FN void rp_send(RP_T *buffer, const rp_who *me, int i, int at, RP_T x) {
    RP_T *to = buffer + me->place + i * RP_PITCH + at;
#if RP_BLOCKS > 1
    for (int b = me->copy; b < RP_BLOCKS; b += RP_COPIES) RP_CLUSTER_WRITE(to, x, b, RP_BLOCKS);
#else
    if (me->copy == 0) *to = x;
#endif
}

#if RP_BACK
typedef struct {
    RP_T grad, state, kept[RP_KEPT + 1],
        cell; /* of the states; the state after the step, of gru before it; the cell before it */
} rp_read;
#else
typedef struct {
    RP_T x[RP_GATES];
} rp_read;
#endif

/* What the step at time t reads of row n. */
RP_FN void rp_ahead(rp_read *to, const RP_WORDS p, const rp_who *me, int n, int t, int good) {
    const rp_i64 H = (rp_i64)p.w[W_UNITS], N = (rp_i64)p.w[W_SEQUENCES], reverse = (rp_i64)p.w[W_REVERSE];
#if RP_BACK
    const rp_i64 at = n * H + me->unit, after = (t + 1 - reverse) * N * H + at, before = (t + reverse) * N * H + at;
    to->grad = good && p.w[W_GRAD] ? RP_AT(const RP_T, W_GRAD)[after] : 0;
    to->state = good ? RP_AT(const RP_T, W_STATES)[RP_CELL == 2 ? before : after] : 0;
    _Pragma("unroll") for (int k = 0; k < RP_KEPT; k++) to->kept[k] =
        good ? RP_AT(const RP_T, W_KEPT)[(t * N + n) * 4 * H + k * H + me->unit] : 0;
    to->cell = good && RP_CELL == 3 ? RP_AT(const RP_T, W_CELLS)[before] : 0;
#else
    const RP_T *x = RP_AT(const RP_T, W_X) + t * (rp_i64)p.w[W_X_STEP] + n * (rp_i64)p.w[W_X_ROW] + me->unit;
    (void)N, (void)reverse;
    _Pragma("unroll") for (int g = 0; g < RP_GATES; g++) to->x[g] = good ? x[g * H] : 0;
#endif
}

extern "C" __global__ void __launch_bounds__(RP_THREADS) RP_CLUSTER RP_NAME(const RP_WORDS p) {
    extern __shared__ __align__(16) RP_T room[]; /* [2][RP_ROWS][RP_PITCH] */
    const int thread = (int)threadIdx.x, H = (int)p.w[W_UNITS], T = (int)p.w[W_STEPS], N = (int)p.w[W_SEQUENCES],
              reverse = (int)p.w[W_REVERSE], rank = (int)blockIdx.x % RP_BLOCKS,
              first = (int)blockIdx.x / RP_BLOCKS * RP_ROWS;
    const rp_i64 step_size = (rp_i64)N * H;
    rp_who me;
    me.lane = thread % RP_LANES;
    me.unit = rank * (RP_THREADS / RP_LANES) + thread / RP_LANES;
    me.copy = me.lane % RP_COPIES;
    {
        int part = 0; /* the rows of a lane follow its bits, the highest first: those that parted first */
        _Pragma("unroll") for (int bit = RP_LANES / 2, rows = RP_ROWS; bit > 0 && rows > 1; bit /= 2, rows /= 2) part +=
            (me.lane & bit) != 0 ? rows / 2 : 0;
        me.row = first + part;
        me.place = part * RP_PITCH;
    }
    const int good = me.unit < H;
    RP_T w[RP_SUMS][RP_EACH], sum[RP_SUMS][RP_LEFT];
    rp_read now[RP_LEFT], next[RP_LEFT];
    rp_launch_dependents();
    rp_grid_wait();
    for (int i = thread; i < 2 * RP_ROWS * RP_PITCH; i += RP_THREADS)
        room[i] = 0; /* nothing stands behind the last element */
    _Pragma("unroll") for (int v = 0; v < RP_SUMS; v++) _Pragma("unroll") for (int i = 0; i < RP_EACH; i += 4) {
        const int k = i * RP_LANES + 4 * me.lane;
#if RP_BACK
        _Pragma("unroll") for (int j = 0; j < 4; j++) w[v][i + j] =
            good && k + j < RP_GATES * H ? RP_AT(const RP_T, W_W)[(rp_i64)(k + j) * H + me.unit] : 0;
#else
        const RP_T *from = RP_AT(const RP_T, W_W) + (rp_i64)(v * H + me.unit) * H + k;
#if RP_VECTOR
        if (good && k < H) {
            rp_four(&w[v][i], from);
            continue;
        }
#endif
        _Pragma("unroll") for (int j = 0; j < 4; j++) w[v][i + j] = good && k + j < H ? from[j] : 0;
#endif
    }
    rp_barrier();
#if RP_BACK
    /* The cell after the step, and its gradient; of gru the part of the state's gradient that passes the gates by. */
    RP_T cell[RP_LEFT], cell_grad[RP_LEFT], past[RP_LEFT];
    _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) {
        const int live = good && me.row + i < N;
        const rp_i64 at = (rp_i64)(me.row + i) * H + me.unit;
        cell_grad[i] = live && RP_CELL == 3 && p.w[W_GRAD_CELL] ? RP_AT(const RP_T, W_GRAD_CELL)[at] : 0;
        cell[i] = live && RP_CELL == 3 ? RP_AT(const RP_T, W_CELLS)[(reverse ? 0 : T) * step_size + at] : 0;
        past[i] = live && p.w[W_GRAD_LAST] ? RP_AT(const RP_T, W_GRAD_LAST)[at] : 0;
        rp_ahead(&now[i], p, &me, me.row + i, reverse ? 0 : T - 1, live);
    }
    RP_MEET(); /* all blocks run, and their buffers are empty */
    for (int step = 0; step <= T; step++) {
        const int t = reverse ? step : T - 1 - step;
        if (step + 1 < T) {
            _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++)
                rp_ahead(&next[i], p, &me, me.row + i, reverse ? t + 1 : t - 1, good && me.row + i < N);
        }
        rp_multiply(sum, w, room + (step & 1) * (RP_ROWS * RP_PITCH), me.lane); /* of the first step: of zeros */
        RP_T *buffer = room + (1 - (step & 1)) * (RP_ROWS * RP_PITCH);
        _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) {
            const int n = me.row + i;
            const rp_i64 at = (rp_i64)n * H + me.unit;
            if (!good || n >= N) continue;
            if (step == T) { /* what the state before the first step gets */
                if (me.copy) continue;
                RP_T dh = sum[0][i] + past[i];
                if (p.w[W_GRAD]) dh += RP_AT(const RP_T, W_GRAD)[(reverse ? T : 0) * step_size + at];
                RP_AT(RP_T, W_DH)[at] = dh;
                if (RP_CELL == 3) RP_AT(RP_T, W_DC)[at] = cell_grad[i];
                continue;
            }
            const rp_read *r = &now[i];
            const RP_T dh = sum[0][i] + past[i] + r->grad;
            RP_T of[RP_GATES], *dx = RP_AT(RP_T, W_DX) + ((rp_i64)t * N + n) * (RP_GATES * H) + me.unit;
            past[i] = 0;
#if RP_CELL == 0
            of[0] = dh * ((RP_T)1 - r->state * r->state);
#elif RP_CELL == 1
            of[0] = r->state <= 0 ? 0 : dh;
#elif RP_CELL == 2
            const RP_T reset = r->kept[0], z = r->kept[1], fresh = r->kept[2];
            of[2] = dh * ((RP_T)1 - z) * ((RP_T)1 - fresh * fresh);
            of[1] = dh * (r->state - fresh) * (z * ((RP_T)1 - z));
            of[0] = of[2] * r->kept[3] * (reset * ((RP_T)1 - reset));
            past[i] = dh * z;
#else
            const RP_T in = r->kept[0], forget = r->kept[1], fresh = r->kept[2], out = r->kept[3];
            const RP_T c = RP_TANH(cell[i]), dc = cell_grad[i] + dh * out * ((RP_T)1 - c * c);
            of[0] = dc * fresh * (in * ((RP_T)1 - in));
            of[1] = dc * r->cell * (forget * ((RP_T)1 - forget));
            of[2] = dc * in * ((RP_T)1 - fresh * fresh);
            of[3] = dh * c * (out * ((RP_T)1 - out));
            cell_grad[i] = dc * forget;
            cell[i] = r->cell;
#endif
            _Pragma("unroll") for (int g = 0; g < RP_GATES; g++) if (me.copy == g % RP_COPIES) dx[g * (rp_i64)H] =
                of[g];
#if RP_CELL == 2
            of[2] *= reset;
            RP_T *dy = RP_AT(RP_T, W_DY) + ((rp_i64)t * N + n) * (3 * H) + me.unit;
            _Pragma("unroll") for (int g = 0; g < 3; g++) if (me.copy == g % RP_COPIES) dy[g * (rp_i64)H] = of[g];
#endif
            _Pragma("unroll") for (int g = 0; g < RP_GATES; g++) rp_send(buffer, &me, i, g * H + me.unit, of[g]);
        }
        if (step == T) break;
        _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) now[i] = next[i];
        RP_MEET();
    }
#else
    RP_T bias[RP_GATES], h[RP_LEFT], c[RP_LEFT];
    rp_read later[RP_LEFT];
    const rp_i64 begin = (rp_i64)(reverse ? T : 0) * step_size;
    _Pragma("unroll") for (int g = 0; g < RP_GATES; g++) bias[g] =
        good && p.w[W_B] ? RP_AT(const RP_T, W_B)[g * H + me.unit] : 0;
    _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) {
        const int live = good && me.row + i < N, t = reverse ? T - 1 : 0;
        const rp_i64 at = (rp_i64)(me.row + i) * H + me.unit;
        rp_ahead(&now[i], p, &me, me.row + i, t, live);
        rp_ahead(&next[i], p, &me, me.row + i, reverse ? t - 1 : t + 1, live && T > 1);
        h[i] = live && p.w[W_H] ? RP_AT(const RP_T, W_H)[at] : 0;
        c[i] = live && RP_CELL == 3 && p.w[W_C] ? RP_AT(const RP_T, W_C)[at] : 0;
        if (!live || me.copy) continue;
        RP_AT(RP_T, W_STATES)[begin + at] = h[i];
        if (RP_CELL == 3) RP_AT(RP_T, W_CELLS)[begin + at] = c[i];
    }
    /* Each block takes the whole state by itself. */
    for (int i = p.w[W_H] ? thread : RP_ROWS * H; i < RP_ROWS * H; i += RP_THREADS) {
        const int r = i / H, k = i % H;
        if (first + r < N) room[r * RP_PITCH + k] = RP_AT(const RP_T, W_H)[(rp_i64)(first + r) * H + k];
    }
    RP_MEET();
    for (int step = 0; step < T; step++) {
        const int t = reverse ? T - 1 - step : step;
        /* Two steps ahead: a step may be shorter than a way to memory. */
        _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++)
            rp_ahead(&later[i], p, &me, me.row + i, reverse ? t - 2 : t + 2, good && me.row + i < N && step + 2 < T);
        rp_multiply(sum, w, room + (step & 1) * (RP_ROWS * RP_PITCH), me.lane);
        RP_T *buffer = room + (1 - (step & 1)) * (RP_ROWS * RP_PITCH);
        const rp_i64 after = (rp_i64)(t + 1 - reverse) * step_size;
        _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) {
            const int n = me.row + i;
            const rp_i64 at = (rp_i64)n * H + me.unit;
            const RP_T *x = now[i].x;
            if (!good || n >= N) continue;
#if RP_CELL == 0
            h[i] = RP_TANH(x[0] + (sum[0][i] + bias[0]));
#elif RP_CELL == 1
            h[i] = x[0] + (sum[0][i] + bias[0]);
            h[i] = h[i] != h[i] || h[i] > 0 ? h[i] : 0;
#else
            RP_T kept[4], *to = RP_AT(RP_T, W_KEPT) + ((rp_i64)t * N + n) * (4 * H) + me.unit;
#if RP_CELL == 2
            kept[3] = sum[2][i] + bias[2];
            kept[0] = rp_sigmoid(x[0] + (sum[0][i] + bias[0]));
            kept[1] = rp_sigmoid(x[1] + (sum[1][i] + bias[1]));
            kept[2] = RP_TANH(RP_FMA(kept[0], kept[3], x[2]));
            h[i] = RP_FMA(kept[1], h[i] - kept[2], kept[2]);
#else
            kept[0] = rp_sigmoid(x[0] + (sum[0][i] + bias[0]));
            kept[1] = rp_sigmoid(x[1] + (sum[1][i] + bias[1]));
            kept[2] = RP_TANH(x[2] + (sum[2][i] + bias[2]));
            kept[3] = rp_sigmoid(x[3] + (sum[3][i] + bias[3]));
            c[i] = RP_FMA(kept[1], c[i], kept[0] * kept[2]);
            h[i] = kept[3] * RP_TANH(c[i]);
#endif
            _Pragma("unroll") for (int g = 0; g < 4; g++) if (me.copy == g % RP_COPIES) to[g * (rp_i64)H] = kept[g];
#endif
            if (step + 1 < T) rp_send(buffer, &me, i, me.unit, h[i]);
            if (me.copy) continue;
            RP_AT(RP_T, W_STATES)[after + at] = h[i];
            if (RP_CELL == 3) RP_AT(RP_T, W_CELLS)[after + at] = c[i];
            if (step + 1 < T) continue;
            RP_AT(RP_T, W_LAST)[at] = h[i];
            if (RP_CELL == 3) RP_AT(RP_T, W_LAST_CELL)[at] = c[i];
        }
        if (step + 1 == T) break;
        _Pragma("unroll") for (int i = 0; i < RP_LEFT; i++) now[i] = next[i], next[i] = later[i];
        RP_MEET();
    }
#endif
}
