/*
 * tamis/sampler.h - choosing the next token from logits.
 *
 * Order: logits / temperature -> top_k -> top_p -> min_p -> softmax -> draw, the order of
 * transformers. The generator is xoshiro256** seeded by splitmix64 from `seed`, one draw per token,
 * so a seed gives the same text at any thread count.
 */
#ifndef TAMIS_SAMPLER_H
#define TAMIS_SAMPLER_H

#include "tamis/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_sampler tamis_sampler;

typedef struct tamis_sampler_params {
    size_t struct_size;
    float temperature; /* <= 0: argmax, lowest id on ties */
    int32_t top_k;     /* keep the k largest (ties: lower id first); 0: off */
    float top_p;       /* keep the smallest set of largest probabilities that reaches top_p, the
                          crossing token included; >= 1: off; range 0..1 */
    float min_p;       /* keep probabilities >= min_p * the largest; 0: off; range 0..1 */
    uint64_t seed;
} tamis_sampler_params;
TAMIS_API tamis_sampler_params tamis_sampler_params_default(void); /* temperature 1, all filters off */

/** errors: INVALID (a parameter: value seen and allowed; NaN is refused), NO_MEMORY */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_sampler_open(tamis_sampler **out, int32_t vocab_size,
                                                           const tamis_sampler_params *params,
                                                           tamis_error *err);
TAMIS_API void tamis_sampler_close(tamis_sampler **sampler);
/**
 * Draw a token. Only ids < num_ids are considered (ids the tokenizer does not name; pass
 * vocab_size for all). At least one token always survives the filters.
 * logits [vocab_size] f32, no NaN (the engine has checked). Allocates nothing.
 */
TAMIS_API int32_t tamis_sampler_draw(tamis_sampler *sampler, const float *logits, int32_t num_ids);

#ifdef __cplusplus
}
#endif
#endif
