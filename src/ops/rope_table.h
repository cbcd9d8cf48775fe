/* Rotary frequencies of a layer kind and the cos and sin rows of a step's positions. */
#ifndef TAMIS_OPS_ROPE_TABLE_H
#define TAMIS_OPS_ROPE_TABLE_H

#include <stdint.h>

#include "tamis/attention.h"

/*
 * freq[i], i < rope_dim / 2: theta^(-2i / rope_dim); with YaRN, frequencies that turn less than
 * beta_slow times over the original context are divided by the factor, those that turn more than
 * beta_fast times are kept, a linear ramp between. No magnitude factor. Computed in double,
 * rounded once.
 */
void tamis_rope_frequencies(float *freq, int32_t rope_dim, const tamis_rope_config *config);

/*
 * The same as the vendor's code computes them, every step rounded to f32: up to two units in the
 * last place away, which at position 300 moves one rotated BF16 value in some thousand.
 */
void tamis_rope_frequencies_f32(float *freq, int32_t rope_dim, const tamis_rope_config *config);

/* cos, sin [rope_dim / 2] of one position: angle = (float)pos * freq in f32, then exact sincos. */
void tamis_rope_row(float *cos, float *sin, const float *freq, int32_t n_pairs, int32_t pos);
/* cos, sin [n][n_pairs]: rows of the positions pos[i] * step. */
void tamis_rope_rows(float *cos, float *sin, const float *freq, int32_t n_pairs, const int32_t *pos,
                     int32_t n, int32_t step);

#endif
