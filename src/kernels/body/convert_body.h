/*
 * Copies and conversions between storage types and f32: widen, narrow, pack_heads.
 * Included once per CPU level with TAMIS_FN(name) naming the functions.
 */
#include "kernels/body/lanes.h"
#include "kernels/formats.h"

TAMIS_KERNEL_widen(TAMIS_FN(widen))
{
    float *restrict to = dst;
    const uint8_t *restrict from = src;
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        memcpy(to, from, (size_t)n * sizeof *to);
        break;
    case TAMIS_DTYPE_BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = tamis_bf16_to_f32(tamis_load_u16(from + 2 * i));
        break;
    case TAMIS_DTYPE_F16:
        for (int64_t i = 0; i < n; i++)
            to[i] = tamis_f16_to_f32(tamis_load_u16(from + 2 * i));
        break;
    case TAMIS_DTYPE_F8_E4M3:
        for (int64_t i = 0; i < n; i++)
            to[i] = tamis_f8_e4m3_to_f32(from[i]);
        break;
    case TAMIS_DTYPE_F8_E8M0:
        for (int64_t i = 0; i < n; i++)
            to[i] = tamis_f8_e8m0_to_f32(from[i]);
        break;
    default:
        assert(!"dtype that widen does not have");
    }
}

TAMIS_KERNEL_narrow(TAMIS_FN(narrow))
{
    uint8_t *restrict to = dst;
    const float *restrict from = src;
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        memcpy(to, from, (size_t)n * sizeof *from);
        break;
    case TAMIS_DTYPE_BF16:
        for (int64_t i = 0; i < n; i++) {
            const uint16_t h = tamis_f32_to_bf16(from[i]);
            memcpy(to + 2 * i, &h, sizeof h);
        }
        break;
    case TAMIS_DTYPE_F16:
        for (int64_t i = 0; i < n; i++) {
            const uint16_t h = tamis_f32_to_f16(from[i]);
            memcpy(to + 2 * i, &h, sizeof h);
        }
        break;
    default:
        assert(!"dtype that narrow does not have");
    }
}

TAMIS_KERNEL_pack_heads(TAMIS_FN(pack_heads))
{
    for (int64_t first = 0; first < n_heads; first += TAMIS_LANES) {
        const int64_t here = n_heads - first < TAMIS_LANES ? n_heads - first : TAMIS_LANES;
        const float *restrict from = q + first * head_dim;
        float *restrict to = panels + first * head_dim;
        for (int64_t d = 0; d < head_dim; d++)
            for (int64_t h = 0; h < TAMIS_LANES; h++)
                to[d * TAMIS_LANES + h] = h < here ? from[h * head_dim + d] : 0.0f;
    }
}
