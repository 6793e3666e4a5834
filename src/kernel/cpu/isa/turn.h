/* Template: lines of memory as lanes. Pieces of each of TURN_LANES lines, TURN_PIECE elements, are read as they lie and turned in registers. Included
   where vectors hold 32 bytes or more, with TURN(name), TURN_FROM the type in memory, TURN_V the vector of TURN_LANES lanes of TURN_BYTES, and either
   TURN_ELEMENT, the same type as a vector's element, or TURN_JOINED, which widens the 16-bit elements of half a vector. Undefined here again. */
#define TURN_PIECE (16 / TURN_BYTES)

/* Elements of lines TURN_PIECE apart from each other, those of one behind those of the other. */
RP__VEC_FN TURN_V TURN(line_piece)(const TURN_FROM *at, int64_t pitch) {
#ifdef TURN_ELEMENT
    typedef TURN_ELEMENT one __attribute__((vector_size(16)));
    typedef one one_u __attribute__((aligned(1), may_alias));
    typedef TURN_ELEMENT two __attribute__((vector_size(32)));
#define ONE(i) (*(const one_u *)(const void *)(at + (i)*TURN_PIECE * pitch))
#if TURN_BYTES == 4
#define TWO(i) __builtin_shufflevector(ONE(i), ONE((i) + 1), 0, 1, 2, 3, 4, 5, 6, 7)
#else
#define TWO(i) __builtin_shufflevector(ONE(i), ONE((i) + 1), 0, 1, 2, 3)
#endif
    const two low = TWO(0);
#if RP_VEC_BYTES == 32
    return low;
#else
    const two high = TWO(2);
#if TURN_BYTES == 4
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#endif
#endif
#undef TWO
#else
    typedef uint64_t halves __attribute__((aligned(1), may_alias));
    typedef uint64_t joined __attribute__((vector_size(RP_VEC_BYTES / 2)));
#define ONE(i) (*(const halves *)(const void *)(at + (i)*TURN_PIECE * pitch))
#if RP_VEC_BYTES == 32
    const joined h = {ONE(0), ONE(1)};
#else
    const joined h = {ONE(0), ONE(1), ONE(2), ONE(3)};
#endif
    return TURN_JOINED((rp__vu16h)h);
#endif
#undef ONE
}
/* r[k] becomes element k of TURN_LANES lines, for TURN_PIECE of them. */
RP__VEC_FN void TURN(turn_piece)(const TURN_FROM *at, int64_t pitch, TURN_V *r) {
#if RP_VEC_BYTES == 64
#define ALL(f) f(0), f(TURN_PIECE), f(2 * TURN_PIECE), f(3 * TURN_PIECE)
#else
#define ALL(f) f(0), f(TURN_PIECE)
#endif
    const TURN_V x0 = TURN(line_piece)(at, pitch), x1 = TURN(line_piece)(at + pitch, pitch);
#if TURN_BYTES == 4
#define LOW(o) (o), TURN_LANES + (o), (o) + 1, TURN_LANES + (o) + 1
#define HIGH(o) (o) + 2, TURN_LANES + (o) + 2, (o) + 3, TURN_LANES + (o) + 3
#define FRONT(o) (o), (o) + 1, TURN_LANES + (o), TURN_LANES + (o) + 1
#define BACK(o) (o) + 2, (o) + 3, TURN_LANES + (o) + 2, TURN_LANES + (o) + 3
    const TURN_V x2 = TURN(line_piece)(at + 2 * pitch, pitch), x3 = TURN(line_piece)(at + 3 * pitch, pitch);
    const TURN_V low01 = __builtin_shufflevector(x0, x1, ALL(LOW)), high01 = __builtin_shufflevector(x0, x1, ALL(HIGH));
    const TURN_V low23 = __builtin_shufflevector(x2, x3, ALL(LOW)), high23 = __builtin_shufflevector(x2, x3, ALL(HIGH));
    r[0] = __builtin_shufflevector(low01, low23, ALL(FRONT));
    r[1] = __builtin_shufflevector(low01, low23, ALL(BACK));
    r[2] = __builtin_shufflevector(high01, high23, ALL(FRONT));
    r[3] = __builtin_shufflevector(high01, high23, ALL(BACK));
#undef FRONT
#undef BACK
#else
#define LOW(o) (o), TURN_LANES + (o)
#define HIGH(o) (o) + 1, TURN_LANES + (o) + 1
    r[0] = __builtin_shufflevector(x0, x1, ALL(LOW));
    r[1] = __builtin_shufflevector(x0, x1, ALL(HIGH));
#endif
#undef LOW
#undef HIGH
#undef ALL
}
#undef TURN_PIECE
#undef TURN
#undef TURN_FROM
#undef TURN_V
#undef TURN_BYTES
#undef TURN_LANES
#undef TURN_ELEMENT
#undef TURN_JOINED
