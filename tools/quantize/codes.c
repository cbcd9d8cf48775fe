#include "quantize/codes.h"

#include <math.h>

bool quant_row(int8_t *codes, float *scale, const float *x, int64_t n, int32_t top)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            *scale = (float)i;
            return false;
        }
        amax = fmaxf(amax, fabsf(x[i]));
    }
    *scale = amax / (float)top;
    if (*scale == 0) /* zeros, or so small that the scale is */
        *scale = 1;
    for (int64_t i = 0; i < n; i++)
        codes[i] = (int8_t)fminf(fmaxf(rintf(x[i] / *scale), (float)-top), (float)top);
    return true;
}

void quant_pack_rows(uint8_t *out, const int8_t *low, const int8_t *high, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint8_t)((low[i] & 15) | (high[i] & 15) << 4);
}

int32_t quant_sum(const int8_t *codes, int64_t begin, int64_t end)
{
    int32_t sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += codes[i];
    return sum;
}
