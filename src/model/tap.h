/*
 * Looking into a running model (tests, diagnosis): the stages that the golden files hold.
 * f32 stages: data is [n_tokens][width] floats of the tokens of this step in batch order. The
 * INDEX stages are those of V3.2 and GLM layers with an indexer of their own.
 */
#ifndef TAMIS_MODEL_TAP_H
#define TAMIS_MODEL_TAP_H

#include <stdint.h>

typedef enum tamis_tap_stage {
    TAMIS_TAP_ATTN_IN = 0,    /* f32 [hidden_size]: input of attention, after its norm */
    TAMIS_TAP_ATTN_OUT,       /* f32 [hidden_size]: output of attention */
    TAMIS_TAP_TOPK,           /* int32 [index_topk]: ascending (V4 official: best score first), -1
                                 padded; V4: ratio-4 layers */
    TAMIS_TAP_INDEX_QUERY,    /* f32 [index_n_heads * index_head_dim]: rotated; official: codes */
    TAMIS_TAP_INDEX_WEIGHTS,  /* f32 [round_up(index_n_heads, 16)]: scaled, then zeros */
    TAMIS_TAP_FFN_IN,         /* f32 [hidden_size] */
    TAMIS_TAP_FFN_OUT,        /* f32 [hidden_size]: routed + shared */
    TAMIS_TAP_EXPERTS,        /* int32 [num_experts_per_tok]; not of dense layers */
    TAMIS_TAP_EXPERT_WEIGHTS, /* f32 [num_experts_per_tok], same order */
    TAMIS_TAP_HIDDEN /* f32 [hidden_size], V4 [hc_mult * hidden_size]: residual after the layer; of
                        V3.2 and GLM the f32 sum in every profile, which the next norm reads */
} tamis_tap_stage;

/* Called on the stepping thread between stages; may read, must not keep the pointer. */
typedef void (*tamis_tap_fn)(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                             int64_t n_tokens, int64_t width);

typedef struct tamis_tap {
    tamis_tap_fn fn; /* NULL: off */
    void *user;
} tamis_tap;

static inline void tamis_tap_emit(const tamis_tap *tap, int32_t layer, tamis_tap_stage stage,
                                  const void *data, int64_t n_tokens, int64_t width)
{
    if (tap->fn != NULL)
        tap->fn(tap->user, layer, stage, data, n_tokens, width);
}

#endif
