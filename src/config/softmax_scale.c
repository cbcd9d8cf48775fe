#include <math.h>

#include "tamis/sfa.h"

float tamis_sfa_softmax_scale(int32_t qk_head_dim, float yarn_factor, float mscale_all_dim)
{
    double magnitude = 1.0;
    if (yarn_factor > 1.0f && mscale_all_dim != 0.0f)
        magnitude += 0.1 * (double)mscale_all_dim * log((double)yarn_factor);
    /* Rounded once, at the end. */
    return (float)(magnitude * magnitude / sqrt((double)qk_head_dim));
}
