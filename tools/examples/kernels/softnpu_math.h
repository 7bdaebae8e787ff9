/* softnpu_math.h: exp and erf of four f32 at once, for kernels; there is no C library.
 *
 * A fused multiply-add is part of relaxed SIMD; softnpu runs it deterministically.
 */
#ifndef SOFTNPU_MATH_H
#define SOFTNPU_MATH_H

#include <stdint.h>
#include <wasm_simd128.h>

/* e to the power of x: within 4 units in the last place; 0 below -87.3, infinity above 88.7. */
static inline v128_t softnpu_exp(v128_t x) {
    const v128_t least = wasm_f32x4_const_splat(-87.33654f), most = wasm_f32x4_const_splat(88.72283f);
    v128_t inside = wasm_f32x4_pmin(wasm_f32x4_pmax(x, least), most);
    v128_t n = wasm_f32x4_nearest(wasm_f32x4_mul(inside, wasm_f32x4_splat(1.44269504f)));
    v128_t r = wasm_f32x4_relaxed_madd(n, wasm_f32x4_splat(-0.693359375f), inside);
    r = wasm_f32x4_relaxed_madd(n, wasm_f32x4_splat(2.12194440e-4f), r);
    v128_t p = wasm_f32x4_splat(1.3981999507e-3f);
    p = wasm_f32x4_relaxed_madd(p, r, wasm_f32x4_splat(8.3334519073e-3f));
    p = wasm_f32x4_relaxed_madd(p, r, wasm_f32x4_splat(4.1665795894e-2f));
    p = wasm_f32x4_relaxed_madd(p, r, wasm_f32x4_splat(1.6666665459e-1f));
    p = wasm_f32x4_relaxed_madd(p, r, wasm_f32x4_splat(5.0000001201e-1f));
    p = wasm_f32x4_relaxed_madd(p, wasm_f32x4_mul(r, r), wasm_f32x4_add(r, wasm_f32x4_splat(1.0f)));
    /* times 2 to the power of n, by its exponent */
    p = wasm_i32x4_add(p, wasm_i32x4_shl(wasm_i32x4_relaxed_trunc_f32x4(n), 23));
    p = wasm_v128_bitselect(wasm_f32x4_const_splat(__builtin_inff()), p, wasm_f32x4_gt(x, most));
    p = wasm_v128_andnot(p, wasm_f32x4_lt(x, least));
    return wasm_v128_bitselect(p, x, wasm_f32x4_eq(x, x));
}

/* The error function: at most 6e-7 off. A quotient of polynomials up to 3.8, then 1. */
static inline v128_t softnpu_erf(v128_t x) {
    v128_t z = wasm_f32x4_pmin(wasm_f32x4_pmax(x, wasm_f32x4_splat(-3.8f)), wasm_f32x4_splat(3.8f));
    v128_t u = wasm_f32x4_mul(z, z);
    v128_t p = wasm_f32x4_splat(-1.7073271536e-6f), q = wasm_f32x4_splat(2.7566588835e-3f);
    p = wasm_f32x4_relaxed_madd(p, u, wasm_f32x4_splat(2.9764916621e-4f));
    q = wasm_f32x4_relaxed_madd(q, u, wasm_f32x4_splat(3.0663716740e-2f));
    p = wasm_f32x4_relaxed_madd(p, u, wasm_f32x4_splat(1.1570351426e-2f));
    q = wasm_f32x4_relaxed_madd(q, u, wasm_f32x4_splat(1.9498316622e-1f));
    p = wasm_f32x4_relaxed_madd(p, u, wasm_f32x4_splat(7.6111267214e-2f));
    q = wasm_f32x4_relaxed_madd(q, u, wasm_f32x4_splat(6.8230172154e-1f));
    p = wasm_f32x4_relaxed_madd(p, u, wasm_f32x4_splat(3.9379806157e-1f));
    q = wasm_f32x4_relaxed_madd(q, u, wasm_f32x4_splat(1.0f));
    p = wasm_f32x4_relaxed_madd(p, u, wasm_f32x4_splat(1.1283769774f));
    v128_t sign = wasm_v128_and(x, wasm_i32x4_const_splat((int)0x80000000));
    v128_t one = wasm_v128_or(sign, wasm_f32x4_const_splat(1.0f));
    v128_t inside = wasm_f32x4_eq(x, z), any = wasm_f32x4_ne(x, x);
    return wasm_v128_bitselect(wasm_f32x4_div(wasm_f32x4_mul(z, p), q), one, wasm_v128_or(inside, any));
}

/* An f16 as an f32, exactly; and the nearest f16 of an f32. */
static inline float softnpu_from_f16(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } magnitude = {(uint32_t)(half & 0x7fff) << 13};
    magnitude.value *= 0x1p112f; /* the other exponent, also of what is denormal */
    if ((half & 0x7c00) == 0x7c00) magnitude.bits |= 0x7f800000;
    magnitude.bits |= (uint32_t)(half & 0x8000) << 16;
    return magnitude.value;
}

static inline uint16_t softnpu_to_f16(float value) {
    union {
        float value;
        uint32_t bits;
    } in = {value}, out;
    uint16_t sign = (uint16_t)(in.bits >> 16 & 0x8000);
    in.bits &= 0x7fffffff;
    if (in.bits > 0x7f800000) return 0x7e00;
    if (in.bits >= 0x47800000) return sign | 0x7c00;
    if (in.bits < 0x38800000) { /* denormal: the sum rounds at the right place */
        out.value = in.value + 0.5f;
        return sign | (uint16_t)(out.bits - 0x3f000000);
    }
    return sign | (uint16_t)((in.bits + 0xfff + (in.bits >> 13 & 1) - 0x38000000) >> 13);
}

/* For the last elements: a vector of up to four, and what is stored of one. */
static inline v128_t softnpu_load(const float *from, int64_t count, float fill) {
    if (count >= 4) return wasm_v128_load(from);
    float lanes[4] = {fill, fill, fill, fill};
    for (int64_t i = 0; i < count; i++) lanes[i] = from[i];
    return wasm_v128_load(lanes);
}

static inline void softnpu_store(float *to, int64_t count, v128_t vector) {
    if (count >= 4) {
        wasm_v128_store(to, vector);
        return;
    }
    float lanes[4];
    wasm_v128_store(lanes, vector);
    for (int64_t i = 0; i < count; i++) to[i] = lanes[i];
}

#endif
