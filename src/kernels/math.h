/*
 * The project's own exp, log, log1p, softplus, sigmoid, silu and sincos.
 *
 * Every function is a fixed sequence of fmaf, IEEE + - * / and bit moves: no libm, no contraction,
 * so a translation unit compiled for baseline and one compiled for AVX2+FMA give the same bits.
 * The f32 functions have no branches, so a loop over them vectorises. Coefficients are minimax
 * fits of the stated expressions (Remez exchange with the error measured relative to the result),
 * rounded to f32. Error bounds in ulp, held by sweeps in tests/unit/test_kernels_math.c:
 * exp 1.1, log 1, log1p 1.5, softplus 2, sigmoid and silu 3, sincos 0.501.
 *
 * NaN gives NaN everywhere. Needs -ffp-contract=off and never -ffast-math, FTZ or DAZ.
 */
#ifndef TAMIS_KERNELS_MATH_H
#define TAMIS_KERNELS_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t tamis_bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float tamis_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ln 2 in two parts; 16 bits in the first, so that its product with an exponent is exact. */
#define TAMIS_LN2_HI 0x1.62e400p-1f
#define TAMIS_LN2_LO 0x1.7f7d1cp-20f
#define TAMIS_LOG2E  0x1.715476p+0f

/*
 * x = n ln2 + r with |r| <= ln2/2, exp(r) = 1 + r + r^2 q(r), then times 2^n as two exact powers.
 * Above 88.72284 +inf; below -87.34 gradual underflow with one rounding; 0 from -103.98 on;
 * exp(-inf) = 0.
 */
static inline float tamis_math_exp(float x)
{
    const float magic = 0x1.8p+23f; /* adding it rounds to an integer, held in the low bits */
    float c = x > 90.0f ? 90.0f : x;
    c = c < -110.0f ? -110.0f : c;
    const float t = fmaf(c, TAMIS_LOG2E, magic);
    const float n = t - magic;
    float r = fmaf(n, -TAMIS_LN2_HI, c);
    r = fmaf(n, -TAMIS_LN2_LO, r);
    float p = 0x1.6a23f2p-10f;
    p = fmaf(p, r, 0x1.123a0ap-7f);
    p = fmaf(p, r, 0x1.5558f2p-5f);
    p = fmaf(p, r, 0x1.555492p-3f);
    p = fmaf(p, r, 0x1.fffffcp-2f);
    p = fmaf(p * r, r, r) + 1.0f;
    /* n in [-159, 130]; n + 256 halves without a sign. p * 2^half is exact, the second rounds. */
    const uint32_t biased = tamis_bits_of(t) - tamis_bits_of(magic) + 256u;
    const uint32_t half = biased >> 1;
    const float scale1 = tamis_float_of((half - 1u) << 23);
    const float scale2 = tamis_float_of((biased - half - 1u) << 23);
    return p * scale1 * scale2;
}

/*
 * x = m 2^e with m in [sqrt(1/2), sqrt(2)); f = m - 1, s = f / (2 + f), z = s^2 and
 * log(1 + f) = f - (f^2/2 - s (f^2/2 + z R(z))). log(0) = -inf, log(negative) = NaN.
 */
static inline float tamis_math_log(float x)
{
    const int tiny = x < 0x1p-126f;
    const float scaled = tiny ? x * 0x1p+23f : x;
    const uint32_t bits = tamis_bits_of(scaled);
    const uint32_t sqrt_half = 0x3f3504f3u;
    const uint32_t shifted = (bits - sqrt_half) & 0xff800000u;
    const float f = tamis_float_of(bits - shifted) - 1.0f;
    /* The exponent, biased by 128 while it is shifted: no shift of a negative value. */
    const float e = (float)((int32_t)((shifted + 0x40000000u) >> 23) - 128) - (tiny ? 23.0f : 0.0f);
    const float half_square = 0.5f * f * f;
    const float s = f / (2.0f + f);
    const float z = s * s;
    float r = 0x1.31e678p-2f;
    r = fmaf(r, z, 0x1.995e9cp-2f);
    r = fmaf(r, z, 0x1.55557ap-1f);
    r *= z;
    const float low = fmaf(s, half_square + r, e * TAMIS_LN2_LO);
    const float y = fmaf(e, TAMIS_LN2_HI, f - (half_square - low));
    const float special = x == 0.0f ? -INFINITY : (x > 0.0f ? x : NAN); /* 0, inf; else NaN */
    return x > 0.0f && x < INFINITY ? y : special;
}

/* log(1 + x) for x > -1: log of the rounded sum, corrected by what the rounding lost. */
static inline float tamis_math_log1p(float x)
{
    const float u = 1.0f + x;
    const float lost = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f);
    const float y = tamis_math_log(u);
    return u > 0.0f && u < INFINITY ? y + lost / u : y;
}

/* log(1 + exp(x)); x itself above 20, where the difference is below half an ulp. */
static inline float tamis_math_softplus(float x)
{
    const float y = tamis_math_log1p(tamis_math_exp(x));
    return x > 20.0f ? x : y;
}

/* 1 / (1 + exp(-x)); 0 below -88.72284, where exp(-x) overflows. */
static inline float tamis_math_sigmoid(float x)
{
    return 1.0f / (1.0f + tamis_math_exp(-x));
}

static inline float tamis_math_silu(float x)
{
    return x * tamis_math_sigmoid(x);
}

/*
 * Sine and cosine of an f32 angle, rounded from a double computation without fma: angle =
 * n pi/2 + r, |r| <= pi/4, pi/2 in three parts of which n times the first two are exact up to
 * |angle| = 1e8; Taylor series to r^15 and r^16. Beyond 1e8 the reduction loses accuracy slowly;
 * inf gives NaN.
 */
static inline void tamis_math_sincos(float angle, float *sin_out, float *cos_out)
{
    const double magic = 0x1.8p+52;
    const double a = (double)angle;
    const double t = a * 0x1.45f306dc9c883p-1 + magic;
    const double n = t - magic;
    const double r = ((a - n * 0x1.921fb54p+0) - n * 0x1.10b461p-30) - n * 0x1.a62633145c06ep-58;
    const double z = r * r;
    double s = -1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * z * s;
    double c = 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = 1.0 - (0.5 * z - z * z * c);
    uint64_t quadrant;
    memcpy(&quadrant, &t, sizeof quadrant);
    const double s_abs = quadrant & 1 ? c : s;
    const double c_abs = quadrant & 1 ? s : c;
    *sin_out = (float)(quadrant & 2 ? -s_abs : s_abs);
    *cos_out = (float)((quadrant + 1) & 2 ? -c_abs : c_abs);
}

#endif
