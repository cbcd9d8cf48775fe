/*
 * How far profile ascend may take the logits of a W8A8 or W4A8 twin of a V4 folder from those of
 * the folder itself: the whole model in double precision, once with the folder's own weights and no
 * rounding, then some times with a random error at every place where the profile rounds, as large
 * as the twin's scales and number formats say:
 *
 *   weight of a row with scale s      +-s / 2, uniform        input of an int8 layer   +-s / 2
 *   weight that the twin holds BF16   +-half a BF16 step      input of an FP8 layer    +-half a
 * step result of a stage                 +-half a BF16 step
 *
 * (s of an input: the token's largest magnitude / 127, or the fixed input_scale with the clamp of
 * its range). No code of the twin is used, only its scales.
 *
 * Prompts are short enough that every visible compressed row is selected, and the experts are
 * given, so that the logits are a smooth function of the errors. Then the spread over the runs is
 * what rounding explains, and an error of another kind stands out.
 */
#ifndef TAMIS_TEST_PROFILE_REF_V4_NOISE_H
#define TAMIS_TEST_PROFILE_REF_V4_NOISE_H

#include "support/oracle_v4.h"
#include "support/rng.h"

typedef struct pv4_noise {
    const oracle_v4 *source; /* the numbers */
    const oracle_v4 *twin;   /* the scales */
    /* experts of a token: [num_experts_per_tok] */
    const int32_t *(*experts)(const void *user, int32_t layer, int32_t token);
    const void *user;
} pv4_noise;

/* Logits [n][vocab_size], to be freed by the caller; n at most 4 index_topk and below 128. rng
 * NULL: no errors, the twin is not read. */
double *pv4_noise_run(const pv4_noise *m, const int32_t *ids, int32_t n, test_rng *rng);

#endif
