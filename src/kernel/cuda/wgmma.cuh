/* Tiles of 16-bit matrices in shared memory as the instructions of a warpgroup read them, and the products of such tiles. A tile has `rows`
 * rows, a multiple of 64, and 64 elements along the inner index K; it starts at a multiple of 1024 and takes 128 bytes a row, pieces
 * of 16 bytes of each 1024 bytes exchanged (swizzle 128). `along`: K runs fastest, a row is a line of 128 bytes; else 64 rows
 * are one, 64 lines in turn. Either way 64 rows further is 8192 bytes further. What lies outside of the operand is zero. Put behind the
 * macros of a text that uses it, which have defined:
 *   RP_T rp_u16; RP_INDEX type of offsets; RP_THREADS threads of a block, whole warpgroups; RP_GROUP_MMA(d, a, b, accumulate, across_a,
 *   across_b) the instruction. */

/* Where an element lies, in elements. */
RP_FN int rp_swizzled(int r, int k, int along) {
    return along ? r * 64 + ((k / 8 ^ r) % 8) * 8 + k % 8 : r / 64 * 4096 + k * 64 + ((r / 8 ^ k) % 8) * 8 + r % 8;
}

/* The tile as a matrix; 8192 / 16 = 512 more is 64 rows further, rp_swizzled_step so many steps of 16 of K. */
RP_FN rp_u64 rp_swizzled_matrix(const RP_T *tile) { return rp_wgmma_desc(tile, 8192, 1024, 128); }
RP_FN rp_u64 rp_swizzled_step(int step, int along) { return (rp_u64)(step * (along ? 2 : 128)); }

/* Tiles times tiles, one group of instructions: d[i] += 64 rows of a, i further ones of b's `n` rows. */
#define RP_GROUP_PRODUCT(d, fragments, a, b, along_a, along_b, more)                                                   \
    {                                                                                                                  \
        const rp_u64 group_a = (a), group_b = (b);                                                                     \
        rp_wgmma_fence();                                                                                              \
        _Pragma("unroll") for (int step = 0; step < 4; step++) _Pragma("unroll") for (int i = 0; i < (fragments); i++) \
            RP_GROUP_MMA((d)[i], group_a + (i * 512 + rp_swizzled_step(step, along_a)),                                \
                         group_b + rp_swizzled_step(step, along_b), step > 0 || (more), !(along_a), !(along_b));       \
        rp_wgmma_commit();                                                                                             \
    }
/* Behind the last group, before its sums are read. */
#define RP_GROUP_END(d, fragments)                                                                                     \
    rp_wgmma_wait(0);                                                                                                  \
    _Pragma("unroll") for (int i = 0; i < (fragments); i++) rp_wgmma_hold((d)[i], RP_GROUP_D);
/* So many groups may still be in flight; what a thread has stored is there for matrices, behind a barrier. */
#define RP_GROUP_WAIT(n) rp_wgmma_wait(n)
#define RP_GROUP_SEES() rp_fence_proxy_async()
