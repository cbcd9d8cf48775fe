/* Weights to f32, AVX2. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/table_x86.h"
#include "kernels/x86/weights_avx2.h"

/* dst[0..] = columns [begin, end) of one row, all under the same scale (NULL: none). */
static TAMIS_ALWAYS_INLINE void expand_block(tamis_dtype dtype, float *dst, const uint8_t *row,
                                             int64_t begin, int64_t end, const float *scale)
{
    int64_t c = begin;
    if (dtype == TAMIS_DTYPE_F4_E2M1 && c % 2 != 0 && c < end) {
        dst[0] = tamis_weight_decode(dtype, row, c) * (scale ? *scale : 1.0f);
        c++;
    }
    const __m256 table = e2m1_table(scale ? *scale : 1.0f);
    for (; c + TAMIS_LANES <= end; c += TAMIS_LANES) {
        v16 value;
        if (dtype == TAMIS_DTYPE_F4_E2M1)
            value = e2m1_widen(row + c / 2, table);
        else if (scale)
            value = v16_scale(decode_16(dtype, row, c), _mm256_set1_ps(*scale));
        else
            value = decode_16(dtype, row, c);
        v16_store(dst + (c - begin), value);
    }
    for (; c < end; c++) {
        const float value = tamis_weight_decode(dtype, row, c);
        dst[c - begin] = scale ? value * *scale : value;
    }
}

/* I4: dst[0..] = columns [begin, end) of one row out of the bytes of its pair. */
static void expand_nibbles(float *dst, const uint8_t *pair, int64_t row, int64_t begin, int64_t end,
                           const float *scale)
{
    const __m256i shift = _mm256_set1_epi32(row % 2 == 0 ? 28 : 24); /* the nibble to the top */
    int64_t c = begin;
    for (; c + 8 <= end; c += 8) {
        const __m256i bytes =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(pair + c)));
        const __m256i value = _mm256_srai_epi32(_mm256_sllv_epi32(bytes, shift), 28);
        const __m256 v = _mm256_cvtepi32_ps(value);
        _mm256_storeu_ps(dst + (c - begin), scale ? _mm256_mul_ps(v, _mm256_set1_ps(*scale)) : v);
    }
    for (; c < end; c++) {
        const float value = (float)tamis_i4_decode(pair, row, c);
        dst[c - begin] = scale ? value * *scale : value;
    }
}

static TAMIS_ALWAYS_INLINE void expand_any(tamis_dtype dtype, float *dst, const uint8_t *row,
                                           int64_t row_idx, int64_t begin, int64_t end,
                                           const float *scale)
{
    if (dtype == TAMIS_DTYPE_I4)
        expand_nibbles(dst, row, row_idx, begin, end, scale);
    else
        expand_block(dtype, dst, row, begin, end, scale);
}

static TAMIS_ALWAYS_INLINE void expand_typed(tamis_dtype dtype, float *dst, const tamis_matrix *w,
                                             int64_t row_idx, int64_t begin, int64_t end)
{
    const uint8_t *row = tamis_weight_row(w, row_idx);
    if (!w->scale) {
        expand_any(dtype, dst, row, row_idx, begin, end, NULL);
        return;
    }
    const uint8_t *scale_row = tamis_scale_row(w, row_idx);
    for (int64_t c = begin; c < end;) {
        const int64_t block = c / w->block_cols, edge = (block + 1) * w->block_cols;
        const int64_t stop = edge < end ? edge : end;
        const float scale = tamis_scale_decode(w, scale_row, block);
        expand_any(dtype, dst + (c - begin), row, row_idx, c, stop, &scale);
        c = stop;
    }
}

void tamis_expand_span_avx2(float *dst, const tamis_matrix *w, int64_t row, int64_t begin,
                            int64_t end)
{
    switch (w->dtype) {
    case TAMIS_DTYPE_F32:
        expand_typed(TAMIS_DTYPE_F32, dst, w, row, begin, end);
        break;
    case TAMIS_DTYPE_BF16:
        expand_typed(TAMIS_DTYPE_BF16, dst, w, row, begin, end);
        break;
    case TAMIS_DTYPE_F16:
        expand_typed(TAMIS_DTYPE_F16, dst, w, row, begin, end);
        break;
    case TAMIS_DTYPE_F8_E4M3:
        expand_typed(TAMIS_DTYPE_F8_E4M3, dst, w, row, begin, end);
        break;
    case TAMIS_DTYPE_I8:
        expand_typed(TAMIS_DTYPE_I8, dst, w, row, begin, end);
        break;
    case TAMIS_DTYPE_I4:
        expand_typed(TAMIS_DTYPE_I4, dst, w, row, begin, end);
        break;
    default:
        expand_typed(TAMIS_DTYPE_F4_E2M1, dst, w, row, begin, end);
    }
}

TAMIS_KERNEL_expand_row(tamis_expand_row_avx2)
{
    tamis_expand_span_avx2(dst, w, row, 0, w->cols);
}
#endif
