/*
 * The slow reference of DeepSeek-V4 in the profiles official and ascend: every stage of a layer in
 * double precision with the rounding points that docs/numerics-profiles.md names, written from that
 * table and the specification. Each stage is fed with what the engine itself put into it, and what
 * the engine made of it must lie in the span that the reference allows (profile_ref_v4_math.h): bit
 * for bit wherever no f32 sum is within its own error of a rounding border.
 *
 * Every check fails the running cmocka test with folder, profile, layer, stage, row and value.
 */
#ifndef TAMIS_TEST_PROFILE_REF_V4_H
#define TAMIS_TEST_PROFILE_REF_V4_H

#include "model/moe.h"
#include "support/profile_ref_v4_math.h"
#include "support/v4_stage_run.h"

/*
 * An attention layer: x [n][hidden_size] and what v4_stages_run saw. want [n]: tokens whose stages
 * are checked; rows that they complete are, too.
 */
void pv4_check_attention(pv4_report *report, const tamis_dsa_layer *layer, tamis_profile profile,
                         const float *x, const v4_stages *s, const uint8_t *want);

/*
 * A1 of one head, not yet rounded: q [d] over the rows in places [n], NULL where one is empty, in
 * chunks of 64 places under one running maximum; P is bf16 for the values, the sink comes last.
 */
void pv4_attend(pv4_span *out, const float *q, int32_t d, const double *const *places, int32_t n,
                double sink);

/* Router and experts of the tokens in want: moe as tamis_moe_forward left it for x and y
 * [n][hidden_size]. */
void pv4_check_experts(pv4_report *report, const tamis_model_config *config,
                       const tamis_moe_weights *weights, tamis_profile profile,
                       const int32_t *tokens, const tamis_moe *moe, const float *x, const float *y,
                       int64_t n, const uint8_t *want);

/* A hyper-connection site of one token: coefficients, and the collapsed and normed x that the
 * engine made with them. fn: oracle_matrix of site->fn. */
void pv4_check_collapse(pv4_report *report, const tamis_model_config *config,
                        const tamis_hc_weights *site, const double *fn, const float *norm,
                        int64_t token, const float *streams, const float *coefs, const float *x);
/* Streams after the sublayer's output v, from the engine's coefficients. */
void pv4_check_expand(pv4_report *report, const tamis_model_config *config, int64_t token,
                      const float *before, const float *coefs, const float *v, const float *after);
/* The head's collapse of one token. */
void pv4_check_head(pv4_report *report, const tamis_model_config *config,
                    const tamis_hc_weights *site, const double *fn, const float *norm,
                    int64_t token, const float *streams, const float *x);
/*
 * What the MTP block's layer begins with: x [hc_mult][hidden_size] from the streams after the main
 * model's last layer and embed [hidden_size] of the next token.
 */
void pv4_check_mtp_input(pv4_report *report, const tamis_model_config *config,
                         const tamis_mtp_weights *w, tamis_profile profile, int64_t token,
                         const float *embed, const float *streams, const float *x);
void pv4_check_logits(pv4_report *report, const pv4_weight *head, int64_t token, const float *x,
                      const float *logits);

#endif
