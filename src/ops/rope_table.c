#include "ops/rope_table.h"

#include <math.h>

#include "kernels/math.h"

/* The (fractional) pair index whose frequency turns `turns` times over the original context. */
static double pair_of_turns(const tamis_rope_config *config, int32_t rope_dim, double turns)
{
    const double two_pi = 6.283185307179586476925;
    return rope_dim * log(config->original_max_position / (turns * two_pi)) /
           (2 * log((double)config->theta));
}

/* Share of interpolation (0: kept, 1: divided by the factor) of pair i. */
static double yarn_ramp(const tamis_rope_config *config, int32_t rope_dim, int32_t i)
{
    const double low = fmax(floor(pair_of_turns(config, rope_dim, (double)config->beta_fast)), 0);
    double high = ceil(pair_of_turns(config, rope_dim, (double)config->beta_slow));
    high = fmin(high, rope_dim - 1);
    if (high == low)
        high += 0.001;
    return fmin(fmax((i - low) / (high - low), 0), 1);
}

void tamis_rope_frequencies(float *freq, int32_t rope_dim, const tamis_rope_config *config)
{
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        const double plain = pow((double)config->theta, -2.0 * i / rope_dim);
        double mixed = plain;
        if (config->yarn_factor > 1) {
            const double ramp = yarn_ramp(config, rope_dim, i);
            mixed = plain / (double)config->yarn_factor * ramp + plain * (1 - ramp);
        }
        freq[i] = (float)mixed;
    }
}

void tamis_rope_frequencies_f32(float *freq, int32_t rope_dim, const tamis_rope_config *config)
{
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)rope_dim;
        const float plain = 1.0f / (float)pow((double)config->theta, (double)exponent);
        freq[i] = plain;
        if (config->yarn_factor > 1) {
            const float kept = 1.0f - (float)yarn_ramp(config, rope_dim, i);
            freq[i] = plain / config->yarn_factor * (1.0f - kept) + plain * kept;
        }
    }
}

void tamis_rope_row(float *cos, float *sin, const float *freq, int32_t n_pairs, int32_t pos)
{
    for (int32_t i = 0; i < n_pairs; i++) {
        const float angle = (float)pos * freq[i];
        tamis_math_sincos(angle, &sin[i], &cos[i]);
    }
}

void tamis_rope_rows(float *cos, float *sin, const float *freq, int32_t n_pairs, const int32_t *pos,
                     int32_t n, int32_t step)
{
    for (int64_t i = 0; i < n; i++)
        tamis_rope_row(cos + i * n_pairs, sin + i * n_pairs, freq, n_pairs, pos[i] * step);
}
