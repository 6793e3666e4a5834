/* What texts share whose blocks have slices (RP_SLICES of product.cuh and conv.cuh): put behind the macros of a row that has more than one. */

/* Sums of RP_TM x RP_TN in each slice's part of `sums`, rows `pitch` apart, become one in the first: in rising order, four neighbours at once. Of rows
 * that there are; m0: number of the first among `rows`. All threads of the block call it, behind a barrier. */
RP_FN void rp_add_slices(float *sums, int pitch, int t, RP_INDEX m0, RP_INDEX rows) {
    _Pragma("unroll 2") for (int i = 0; i < RP_TM * RP_TN / 4 / RP_THREADS; i++) {
        const int e = i * RP_THREADS + t, r = e / (RP_TN / 4), at = r * pitch + e % (RP_TN / 4) * 4;
        if (m0 + r >= rows) continue;
        rp_f32x4 sum = rp_ld_v4_f32(&sums[at]);
        _Pragma("unroll") for (int other = 1; other < RP_SLICES; other++) {
            const rp_f32x4 four = rp_ld_v4_f32(&sums[other * RP_TM * pitch + at]);
            sum.x = sum.x + four.x, sum.y = sum.y + four.y, sum.z = sum.z + four.z, sum.w = sum.w + four.w;
        }
        rp_st_v4_f32(&sums[at], sum);
    }
}
