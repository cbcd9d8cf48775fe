/* Packed rows, AVX2: one row of a format from f32 and back. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/lowbit_avx2.h"
#include "kernels/x86/table_x86.h"

static int64_t scale_bytes(const tamis_row_format *format)
{
    return tamis_dtype_bits(format->scale_dtype) / 8;
}

/* Byte of coded value i; an even i if two values share a byte. */
static TAMIS_ALWAYS_INLINE int64_t byte_of(tamis_dtype dtype, int64_t i)
{
    return dtype == TAMIS_DTYPE_F4_E2M1 ? i / 2 : i;
}

/* Codes of n values under one scale; n even if two share a byte. */
static TAMIS_ALWAYS_INLINE void encode_group(tamis_dtype dtype, uint8_t *to, const float *x,
                                             int64_t n, float scale)
{
    if (!(scale > 0.0f)) { /* zeros, or a NaN in the group */
        memset(to, dtype == TAMIS_DTYPE_F8_E4M3 && scale != 0.0f ? 0x7f : 0,
               (size_t)byte_of(dtype, n));
        return;
    }
    for (int64_t i = 0; i < n; i += TAMIS_LANES) {
        const v16 v =
            quotient_16(v16_load_up_to(x + i, n - i), _mm256_set1_ps(scale), tamis_max_code(dtype));
        if (dtype == TAMIS_DTYPE_F8_E4M3) {
            const __m256i lo = e4m3_code_8(e4m3_round_8(v.lo)),
                          hi = e4m3_code_8(e4m3_round_8(v.hi));
            bytes_store_up_to(to + i, n - i, to_bytes(lo, hi, false));
        } else if (dtype == TAMIS_DTYPE_I8) {
            const __m256i lo = nearest_8(v.lo, -127.0f, 127.0f),
                          hi = nearest_8(v.hi, -127.0f, 127.0f);
            bytes_store_up_to(to + i, n - i, to_bytes(lo, hi, true));
        } else {
            const __m128i codes = to_bytes(e2m1_code_8(v.lo), e2m1_code_8(v.hi), false);
            bytes_store_up_to(to + i / 2, n - i < TAMIS_LANES ? (n - i) / 2 : 8,
                              pair_nibbles(codes));
        }
    }
}

static TAMIS_ALWAYS_INLINE void encode_groups(tamis_dtype dtype, uint8_t *to, uint8_t *scales,
                                              const tamis_row_format *format, const float *x)
{
    const int64_t n = format->num_values - format->num_plain, group = format->group_size;
    for (int64_t begin = 0; begin < n; begin += group) {
        const int64_t here = n - begin < group ? n - begin : group;
        const float scale =
            tamis_group_scale(format->scale_rule, dtype, max_bits_of(x + begin, here));
        tamis_scale_store(scales + begin / group * scale_bytes(format), format->scale_dtype, scale);
        encode_group(dtype, to + byte_of(dtype, begin), x + begin, here, scale);
    }
}

/* Groups of FP4 that begin within a byte: no layout has them, a format may. */
static bool splits_bytes(const tamis_row_format *format)
{
    return format->dtype == TAMIS_DTYPE_F4_E2M1 &&
           (format->group_size % 2 != 0 || (format->num_values - format->num_plain) % 2 != 0);
}

TAMIS_KERNEL_pack_row(tamis_pack_row_avx2)
{
    uint8_t *bytes = row, *to = bytes + format->coded_at;
    const int64_t n_coded = format->num_values - format->num_plain;
    if (format->group_size == 0) {
        tamis_narrow_avx2(to, x, format->dtype, n_coded);
        return;
    }
    if (splits_bytes(format)) {
        tamis_pack_row_c(row, scales, format, x);
        return;
    }
    if ((uint8_t *)scales == bytes + format->scale_at)
        memset(bytes, 0, (size_t)format->row_bytes);
    if (format->dtype == TAMIS_DTYPE_F8_E4M3)
        encode_groups(TAMIS_DTYPE_F8_E4M3, to, scales, format, x);
    else if (format->dtype == TAMIS_DTYPE_I8)
        encode_groups(TAMIS_DTYPE_I8, to, scales, format, x);
    else
        encode_groups(TAMIS_DTYPE_F4_E2M1, to, scales, format, x);
    tamis_narrow_avx2(bytes + format->plain_at, x + n_coded, TAMIS_DTYPE_BF16, format->num_plain);
}

/*
 * How products with a scale become BF16. Codes have at most 8 significant bits, so a power of two
 * leaves nothing to round; other scales of moderate size keep every product normal and far from
 * the largest number, and 2^16 + 1 times it and back rounds it.
 */
typedef enum rounding { ROUND_ANY, ROUND_MODERATE, ROUND_NOTHING } rounding;

static rounding rounding_of(float scale)
{
    const uint32_t bits = tamis_bits_of(scale), exponent = bits >> 23; /* 256.. if negative */
    if (exponent < 127 - 90 || exponent > 127 + 90)
        return ROUND_ANY;
    return (bits & 0x7fffffu) == 0 ? ROUND_NOTHING : ROUND_MODERATE;
}

static TAMIS_ALWAYS_INLINE __m256 round_8(rounding how, __m256 x)
{
    if (how == ROUND_NOTHING)
        return x;
    return how == ROUND_MODERATE ? bf16_round_moderate_8(x) : bf16_round_8(x);
}

/* 16 codes times the scale; the factor of e4m3_to_halves goes with a scale of moderate size. */
static TAMIS_ALWAYS_INLINE v16 decode_16(tamis_dtype dtype, rounding how, const uint8_t *codes,
                                         float scale, __m256 table)
{
    if (dtype == TAMIS_DTYPE_F4_E2M1)
        return e2m1_widen(codes, table);
    if (dtype == TAMIS_DTYPE_I8)
        return v16_scale((v16){i8_widen_8(codes), i8_widen_8(codes + 8)}, _mm256_set1_ps(scale));
    if (how == ROUND_ANY)
        return v16_scale(e4m3_widen(codes), _mm256_set1_ps(scale));
    return v16_scale(halves_widen(e4m3_to_halves_nan(codes)), _mm256_set1_ps(256.0f * scale));
}

/* n values of one group, rounded to BF16. */
static TAMIS_ALWAYS_INLINE void decode_values(tamis_dtype dtype, rounding how, float *x,
                                              const uint8_t *from, int64_t n, float scale)
{
    const __m256 table = e2m1_table(scale);
    int64_t i = 0;
    for (; i + TAMIS_LANES <= n; i += TAMIS_LANES) {
        const v16 v = decode_16(dtype, how, from + byte_of(dtype, i), scale, table);
        v16_store(x + i, (v16){round_8(how, v.lo), round_8(how, v.hi)});
    }
    if (i < n) {
        uint8_t last[TAMIS_LANES] = {0};
        memcpy(last, from + byte_of(dtype, i), (size_t)byte_of(dtype, n - i));
        const v16 v = decode_16(dtype, how, last, scale, table);
        v16_store_first(x + i, n - i, (v16){round_8(how, v.lo), round_8(how, v.hi)});
    }
}

static TAMIS_ALWAYS_INLINE void decode_group(tamis_dtype dtype, float *x, const uint8_t *from,
                                             int64_t n, float scale)
{
    switch (rounding_of(scale)) {
    case ROUND_NOTHING:
        decode_values(dtype, ROUND_NOTHING, x, from, n, scale);
        break;
    case ROUND_MODERATE:
        decode_values(dtype, ROUND_MODERATE, x, from, n, scale);
        break;
    default:
        decode_values(dtype, ROUND_ANY, x, from, n, scale);
    }
}

static TAMIS_ALWAYS_INLINE void decode_groups(tamis_dtype dtype, float *x, const uint8_t *from,
                                              const uint8_t *scales, const tamis_row_format *format)
{
    const int64_t n = format->num_values - format->num_plain, group = format->group_size;
    for (int64_t begin = 0; begin < n; begin += group)
        decode_group(
            dtype, x + begin, from + byte_of(dtype, begin), n - begin < group ? n - begin : group,
            tamis_scale_load(scales + begin / group * scale_bytes(format), format->scale_dtype));
}

TAMIS_KERNEL_unpack_row(tamis_unpack_row_avx2)
{
    const uint8_t *bytes = row, *from = bytes + format->coded_at;
    const int64_t n_coded = format->num_values - format->num_plain;
    if (format->group_size == 0) {
        tamis_widen_avx2(x, from, format->dtype, n_coded);
        return;
    }
    if (splits_bytes(format)) {
        tamis_unpack_row_c(x, row, scales, format);
        return;
    }
    if (format->dtype == TAMIS_DTYPE_F8_E4M3)
        decode_groups(TAMIS_DTYPE_F8_E4M3, x, from, scales, format);
    else if (format->dtype == TAMIS_DTYPE_I8)
        decode_groups(TAMIS_DTYPE_I8, x, from, scales, format);
    else
        decode_groups(TAMIS_DTYPE_F4_E2M1, x, from, scales, format);
    tamis_widen_avx2(x + n_coded, bytes + format->plain_at, TAMIS_DTYPE_BF16, format->num_plain);
}
#endif
