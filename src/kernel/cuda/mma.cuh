/* Tiles of matrices in shared memory and their fragments in registers, for kernels that multiply by tensor cores or by fma. A tile
 * has `rows` rows and `depth` elements along the inner index; in memory and in shared memory one of the two runs fastest. What lies
 * outside of the operand is zero. Every thread of the block calls what has a `t`, its number among `threads`; the ints behind it are
 * constants, so each call becomes straight code. Put behind the macros of a text that uses it, which have defined:
 *   RP_T element type; RP_INDEX type of offsets; RP_TK depth of a tile; RP_THREADS threads of a block. */
#define RP_C ((int)(16 / sizeof(RP_T))) /* elements of 16 bytes */

/* Elements that a thread takes of a tile by themselves. */
#define RP_TILE_ELEMENTS(rows) (((rows)*RP_TK + RP_THREADS - 1) / RP_THREADS)

/* 16 bytes at once straight into shared memory. What lies side by side in both memories is a line: a row's piece of the inner index (`along`),
 * or the rows at one place of it. A tile has `lines` of them, `width` elements each, read by `per` threads next to each other in blocks of
 * 8 * per, or RP_C * per, elements; `pitch` from line to line of shared memory, `block` from block to block. `at` and `place`: where the
 * thread's first piece lies, that of line t / per. Next to nothing is computed here but addresses: a block of few warps waits for
 * instructions. Rows outside of the operand are left as they are, since nobody reads what is computed of them; the inner index ends in zeros. */
RP_FN void rp_lines_copy(RP_T *place, const RP_T *at, const RP_T *readable, RP_INDEX line, RP_INDEX lines_left,
                         RP_INDEX width_left, int t, int lines, int width, int per, int pitch, int block, int along) {
    const int each = RP_THREADS / per, l0 = t / per, c0 = t % per * RP_C,
              blocks = (width + per * RP_C - 1) / (per * RP_C);
    if (lines_left >= lines && width_left >= width) {
        _Pragma("unroll") for (int i = 0; i < (lines + each - 1) / each; i++) {
            if (lines % each != 0 && l0 + i * each >= lines) continue;
            _Pragma("unroll") for (int b = 0; b < blocks; b++) {
                if (width % (per * RP_C) == 0 || c0 + b * per * RP_C < width)
                    rp_cp_async_16(place + (i * each * pitch + b * block),
                                   at + ((RP_INDEX)(i * each) * line + b * per * RP_C));
            }
        }
        return;
    }
    _Pragma("unroll 1") for (int i = 0; i < (lines + each - 1) / each; i++) {
        _Pragma("unroll 1") for (int b = 0; b < blocks; b++) {
            const int l = l0 + i * each, c = c0 + b * per * RP_C;
            if (l >= lines || c >= width || (along ? l >= lines_left : c >= width_left)) continue;
            const RP_INDEX left = l < lines_left ? width_left - c : 0;
            const int n = left <= 0 ? 0 : left < RP_C ? (int)left : RP_C;
            rp_cp_async_16_zfill(place + (i * each * pitch + b * block),
                                 n ? at + ((RP_INDEX)(i * each) * line + b * per * RP_C) : readable,
                                 (rp_u32)(n * (int)sizeof(RP_T)));
        }
    }
}

/* The same one element of 4 or 8 bytes at a time, for any strides: `along` says along which dim neighbours in a warp read, `k_fast`
 * which one runs fastest in shared memory. */
RP_FN void rp_tile_copy_elements(RP_T *to, const RP_T *from, RP_INDEX row_stride, RP_INDEX k_stride, RP_INDEX rows_left,
                                 RP_INDEX depth_left, int t, int rows, int along, int k_fast, int pitch) {
    _Pragma("unroll") for (int i = 0; i < RP_TILE_ELEMENTS(rows); i++) {
        const int e = i * RP_THREADS + t;
        if (rows * RP_TK % RP_THREADS != 0 && e >= rows * RP_TK) continue;
        const int r = along ? e / RP_TK : e % rows, k = along ? e % RP_TK : e / rows;
        RP_T *at = &to[k_fast ? r * pitch + k : k * pitch + r];
        const RP_T *x = from + (r * row_stride + k * k_stride);
        if (r >= rows_left || k >= depth_left)
            *at = 0;
        else if (sizeof(RP_T) == 8)
            rp_cp_async_8(at, x);
        else
            rp_cp_async_4(at, x);
    }
}

/* For any element: into registers, from there into shared memory once the tile before is read. */
RP_FN void rp_tile_get(RP_T *held, const RP_T *from, RP_INDEX row_stride, RP_INDEX k_stride, RP_INDEX rows_left,
                       RP_INDEX depth_left, int t, int rows, int along) {
    _Pragma("unroll") for (int i = 0; i < RP_TILE_ELEMENTS(rows); i++) {
        const int e = i * RP_THREADS + t;
        const int r = along ? e / RP_TK : e % rows, k = along ? e % RP_TK : e / rows;
        held[i] = 0;
        if ((rows * RP_TK % RP_THREADS == 0 || e < rows * RP_TK) && r < rows_left && k < depth_left)
            held[i] = from[r * row_stride + k * k_stride];
    }
}
RP_FN void rp_tile_put(RP_T *to, const RP_T *held, int t, int rows, int along, int k_fast, int pitch) {
    _Pragma("unroll") for (int i = 0; i < RP_TILE_ELEMENTS(rows); i++) {
        const int e = i * RP_THREADS + t;
        if (rows * RP_TK % RP_THREADS != 0 && e >= rows * RP_TK) continue;
        const int r = along ? e / RP_TK : e % rows, k = along ? e % RP_TK : e / rows;
        to[k_fast ? r * pitch + k : k * pitch + r] = held[i];
    }
}

/* The fragment of 16 rows from `row` on and 32 bytes of the inner index from k on, as the first factor of an mma. k_fast: K runs
 * fastest in the tile; else elements have 2 or 4 bytes. Conflict-free where pitches are 16 bytes more than a multiple of 128 (or of
 * 64), elements of 4 bytes with rows side by side 32. */
RP_FN void rp_fragment_a(rp_u32 *f, const RP_T *tile, int row, int k, int lane, int k_fast, int pitch) {
    if (k_fast) {
        rp_ldmatrix_x4(f, &tile[(row + lane % 16) * pitch + k + lane / 16 * RP_C]);
    } else if (sizeof(RP_T) == 2) {
        rp_ldmatrix_x4_trans(f, &tile[(k + lane / 16 * 8 + lane % 8) * pitch + row + lane / 8 % 2 * 8]);
    } else {
        const rp_u32 *x = (const rp_u32 *)tile + (k + lane % 4) * pitch + row + lane / 4;
        f[0] = x[0], f[1] = x[8], f[2] = x[4 * pitch], f[3] = x[4 * pitch + 8];
    }
}
/* Of 16 rows as the second factor: f[0..1] of the first eight, f[2..3] of the others. */
RP_FN void rp_fragment_b(rp_u32 *f, const RP_T *tile, int row, int k, int lane, int k_fast, int pitch) {
    if (k_fast) {
        rp_ldmatrix_x4(f, &tile[(row + lane / 16 * 8 + lane % 8) * pitch + k + lane / 8 % 2 * RP_C]);
    } else if (sizeof(RP_T) == 2) {
        rp_ldmatrix_x4_trans(f, &tile[(k + lane % 16) * pitch + row + lane / 16 * 8]);
    } else {
        const rp_u32 *x = (const rp_u32 *)tile + (k + lane % 4) * pitch + row + lane / 4;
        f[0] = x[0], f[1] = x[4 * pitch], f[2] = x[8], f[3] = x[4 * pitch + 8];
    }
}

/* Fragments of f32 as tf32; RP_EVEN: half to even, as bulk copies do, else half away, which is one addition. */
#ifndef RP_EVEN
#define RP_EVEN 0
#endif
RP_FN void rp_fragment_tf32(rp_u32 *f, int n) {
    _Pragma("unroll") for (int i = 0; i < n; i++) f[i] =
        RP_EVEN ? rp_cvt_f32_to_tf32_even(rp_bits_f32(f[i])) : rp_cvt_f32_to_tf32(rp_bits_f32(f[i]));
}
/* f32 as tf32, at most sixteen: only where one of them may be NaN is each looked at. */
RP_FN void rp_tf32_all(float *v, int n) {
    float part[4] = {0, 0, 0, 0};
    _Pragma("unroll") for (int i = 0; i < n; i++) part[i % 4] = part[i % 4] + v[i];
    const float sum = (part[0] + part[1]) + (part[2] + part[3]);
    if (sum == sum) {
        _Pragma("unroll") for (int i = 0; i < n; i++) v[i] =
            rp_bits_f32(rp_f32_bits(v[i]) + (RP_EVEN ? 0xfffu + (rp_f32_bits(v[i]) >> 13 & 1) : 0x1000u));
    } else {
        _Pragma("unroll") for (int i = 0; i < n; i++) v[i] =
            rp_bits_f32(RP_EVEN ? rp_cvt_f32_to_tf32_even(v[i]) : rp_cvt_f32_to_tf32(v[i]));
    }
}
/* So many floats between memory and registers: 1 or 4, put also 2. */
RP_FN void rp_floats_get(float *v, const RP_T *at, int each) {
    if (each == 4) {
        const rp_f32x4 four = *(const rp_f32x4 *)at;
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else {
        v[0] = *(const float *)at;
    }
}
RP_FN void rp_floats_put(RP_T *at, const float *v, int each) {
    if (each == 4) {
        const rp_f32x4 four = {v[0], v[1], v[2], v[3]};
        *(rp_f32x4 *)at = four;
    } else if (each == 2) {
        const rp_f32x2 two = {v[0], v[1]};
        *(rp_f32x2 *)at = two;
    } else {
        *(float *)at = v[0];
    }
}
/* Two f32 as two bf16 and what these leave, two bf16 again; nothing is left of what is not finite. */
RP_FN void rp_halve_f32(rp_u32 *high, rp_u32 *low, rp_u32 first, rp_u32 second) {
    const float x = rp_bits_f32(first), y = rp_bits_f32(second);
    const rp_u32 two = rp_cvt_f32_to_bf16x2(x, y);
    const float a = rp_bits_f32(two << 16), b = rp_bits_f32(two & 0xffff0000u);
    *high = two;
    *low = rp_cvt_f32_to_bf16x2(rp_isfinite_f32(a) ? x - a : 0, rp_isfinite_f32(b) ? y - b : 0);
}
