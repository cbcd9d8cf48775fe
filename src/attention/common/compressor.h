/*
 * The compressor: one row out of every `ratio` tokens, a softmax over slots per channel.
 *
 * Every token contributes u = wkv x and z = wgate x + ape[pos % ratio]. Row j pools, channel by
 * channel, the slots of its own tokens j r .. j r + r - 1 and, for ratio 4 (two halves), those of
 * the tokens before: the previous window's first halves and the own window's second halves. Row 0
 * has no previous window: its slots are left out, which is a weight of exactly zero.
 *
 * u and z of the step's tokens stand in the step's own buffer, those of earlier tokens in a ring
 * addressed by position; nothing else survives a step. z is stored with ape already added. Up to
 * the pooled row everything is f32 in every profile. Source: V4 reference inference/model.py
 * (Compressor).
 */
#ifndef TAMIS_ATTENTION_COMMON_COMPRESSOR_H
#define TAMIS_ATTENTION_COMMON_COMPRESSOR_H

#include "caches/cache_store.h"
#include "kernels/kernels.h"
#include "plan/step.h"
#include "tamis/dsa.h"

/* Halves of a token's projection: ratio 4 feeds the next row too. */
static inline int32_t tamis_compressor_halves(int32_t ratio)
{
    return ratio == 4 ? 2 : 1;
}

typedef struct tamis_compressor {
    const tamis_compressor_weights *weights;
    int32_t ratio, head_dim, rope_dim;
    float eps;
    float *state;            /* [num_tokens][2 * halves * head_dim]: u, then z, of this step */
    const tamis_cache *ring; /* the same rows of earlier tokens */
    const tamis_cache *out;  /* paged cache of the rows */
    tamis_profile profile;
    bool is_index; /* rows are keys of V4's indexer: rotated by Hadamard, profile exact excepted */
} tamis_compressor;

static inline int32_t tamis_compressor_width(const tamis_compressor *c)
{
    return tamis_compressor_halves(c->ratio) * c->head_dim;
}

/* z += ape row of the token's position. */
void tamis_compressor_add_ape(const tamis_compressor *c, const tamis_kernels *kernels,
                              const tamis_step *step, int32_t token);
/*
 * Pool, norm, rotate (cos, sin of position j * ratio) and store row j of a request in its block,
 * with the profile's roundings to BF16 in between. scratch: head_dim floats. false: a NaN or
 * infinity came out.
 */
bool tamis_compressor_close_row(const tamis_compressor *c, const tamis_kernels *kernels,
                                const tamis_step *step, int32_t req, int32_t j, const float *cos,
                                const float *sin, float *scratch);
/* Copy the token's state row into the ring, if the step's end still needs it there. */
void tamis_compressor_keep_state(const tamis_compressor *c, const tamis_step *step, int32_t token);

#endif
