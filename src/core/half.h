/* The 16-bit float formats, inline for loops that convert element by element where no vector can; dtype.h has the same as functions. */
#ifndef RP_CORE_HALF_H
#define RP_CORE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t rp__bits_of_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float rp__f32_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t rp__half_of_f32(float f) {
    uint32_t u = rp__bits_of_f32(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x1ff)); /* quiet, payload kept */
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24; adding 0.5 puts that unit at bit 0 and rounds */
        float unit = rp__f32_of_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (rp__bits_of_f32(unit) - 0x3f000000));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

static inline float rp__f32_of_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return rp__f32_of_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    return rp__f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t rp__brain_of_f32(float f) {
    uint32_t u = rp__bits_of_f32(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float rp__f32_of_brain(uint16_t h) { return rp__f32_of_bits((uint32_t)h << 16); }

#endif
