/* Roofs of AVX2: twelve independent chains cover the latency of two multiply-adds per cycle. */
#ifdef TAMIS_HAVE_AVX2
#include <immintrin.h>

#include "measure/roof.h"

#define CHAINS 12

/* Keeps a value alive and opaque, so that no round is folded into another. */
#define KEEP(v) __asm__ volatile("" : "+x"(v))

static void run_f32(int64_t rounds)
{
    __m256 sum[CHAINS];
    __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps(0.01f * (float)i);
    KEEP(x);
    KEEP(y);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], x, y);
    for (int i = 0; i < CHAINS; i++)
        KEEP(sum[i]);
}

/* 8 accumulators leave room for operands and products. */
static void run_int8(int64_t rounds)
{
    enum { SUMS = 8 };
    __m256i sum[SUMS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm256_setzero_si256();
    KEEP(ones);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS; i++) {
            KEEP(a); /* else one product would serve all sums */
            const __m256i pairs = _mm256_maddubs_epi16(a, b);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
        }
    for (int i = 0; i < SUMS; i++)
        KEEP(sum[i]);
}

static void run_read(const uint8_t *data, size_t bytes)
{
    __m256i sum[8];
    for (int i = 0; i < 8; i++)
        sum[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < bytes; at += 256)
        for (int i = 0; i < 8; i++)
            sum[i] = _mm256_xor_si256(
                sum[i], _mm256_load_si256((const __m256i *)(const void *)(data + at + 32 * i)));
    for (int i = 0; i < 8; i++)
        KEEP(sum[i]);
}

const tamis_roof_loops tamis_roof_avx2 = {.f32_ops = CHAINS * 8 * 2,
                                          .int8_ops = 8 * 32 * 2,
                                          .f32 = run_f32,
                                          .int8 = run_int8,
                                          .read = run_read};
#else
typedef int tamis_roof_avx2_is_empty;
#endif
