/* Candidates for the top-k, portable. */
#include "kernels/kernels.h"

TAMIS_KERNEL_scan_above(tamis_scan_above_c)
{
    int64_t found = 0;
    const bool any = threshold != threshold; /* NaN: every score that is not NaN */
    for (int64_t i = 0; i < n; i++)
        if (any ? scores[i] == scores[i] : scores[i] > threshold)
            out[found++] = (int32_t)i;
    return found;
}
