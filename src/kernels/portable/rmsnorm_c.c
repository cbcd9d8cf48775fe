/* Root mean square norm, portable. */
#include "kernels/body/lanes.h"

TAMIS_KERNEL_rmsnorm(tamis_rmsnorm_c)
{
    float acc[TAMIS_LANES] = {0};
    tamis_lanes_dot(acc, x, x, n);
    const float s = 1.0f / tamis_sqrt(tamis_lanes_sum(acc) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = weight ? (x[i] * s) * weight[i] : x[i] * s;
}
