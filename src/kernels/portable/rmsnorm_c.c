/* Root mean square norm and layer norm, portable. */
#include "kernels/body/lanes.h"

TAMIS_KERNEL_rmsnorm(tamis_rmsnorm_c)
{
    float acc[TAMIS_LANES] = {0};
    tamis_lanes_dot(acc, x, x, n);
    const float s = tamis_norm_factor(tamis_lanes_sum(acc), n, eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = weight ? (x[i] * s) * weight[i] : x[i] * s;
}

/* lanes16 of acc + x; a short group is padded with zeros. */
static float lanes_total(const float *x, int64_t n)
{
    float acc[TAMIS_LANES] = {0};
    for (int64_t i = 0; i < n; i += TAMIS_LANES)
        for (int k = 0; k < TAMIS_LANES; k++)
            acc[k] += i + k < n ? x[i + k] : 0.0f;
    return tamis_lanes_sum(acc);
}

TAMIS_KERNEL_layernorm(tamis_layernorm_c)
{
    float acc[TAMIS_LANES] = {0};
    const float mean = lanes_total(x, n) / (float)n;
    for (int64_t i = 0; i < n; i += TAMIS_LANES)
        for (int k = 0; k < TAMIS_LANES; k++) {
            const float d = i + k < n ? x[i + k] - mean : 0.0f;
            acc[k] = fmaf(d, d, acc[k]);
        }
    const float s = tamis_norm_factor(tamis_lanes_sum(acc), n, eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = fmaf((x[i] - mean) * s, weight[i], bias[i]);
}
