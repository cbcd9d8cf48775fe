/*
 * How far profile ascend may take the logits of a W8A8 or W4A8 twin of a V3.2 or GLM folder from
 * those of the folder itself: the whole model in double precision, once with the folder's own
 * weights and no rounding, then some times with a random error at every place where the profile
 * rounds, as large as the twin's scales say:
 *
 *   weight of a row with scale s      +-s / 2, uniform        input of an int8 layer   +-s / 2
 *   weight that the twin holds BF16   +-half a BF16 step      result of a stage        likewise
 *
 * (s of an input: the token's largest magnitude / 127, or the fixed input_scale, with the clamp of
 * its range). No code of the twin is used, only its scales.
 *
 * Prompts are at most index_topk tokens long, so that every token attends to all before it, and
 * the experts are given, so that the logits are a smooth function of the errors. Then the spread
 * over the runs is what rounding explains, and an error of another kind stands out.
 */
#ifndef TAMIS_TEST_PROFILE_REF_SFA_MODEL_H
#define TAMIS_TEST_PROFILE_REF_SFA_MODEL_H

#include "support/oracle_v32.h"
#include "support/rng.h"

typedef struct profile_noise_model {
    const oracle_v32 *source; /* the numbers */
    const oracle_v32 *twin;   /* the scales */
    /* experts of a token, ascending: [num_experts_per_tok]; not asked for dense layers */
    const int32_t *(*experts)(const void *user, int32_t layer, int32_t token);
    const void *user;
} profile_noise_model;

/* Logits [n][vocab_size], to be freed by the caller. rng NULL: no errors, the twin is not read. */
double *profile_noise_run(const profile_noise_model *m, const int32_t *ids, int32_t n,
                          test_rng *rng);

#endif
