/*
 * Hyper-connections: m residual streams per token instead of one, mixed anew at every site.
 *
 *   z = (fn . flat(X)) r, r = 1 / sqrt(mean(X^2) + rms_norm_eps) over all m H values
 *   pre_s  = sigmoid(z_s scale_0 + base_s) + hc_eps          weights of the collapse
 *   post_s = 2 sigmoid(z_{m+s} scale_1 + base_{m+s})         weights of the sublayer's output
 *   C      = Sinkhorn(softmax over b of z_{2m+am+b} scale_2 + base_{2m+am+b})
 *   x = norm(sum_s pre_s X_s), v = sublayer(x), X'_b = sum_a C[a][b] X_a + post_b v
 *
 * Order of additions (docs/numerics-model.md): sums over streams, rows and columns ascend; X'_b is
 * the chain over a, then fma(post_b, v, .). Every token by itself, so batch and threads do not
 * show. In profiles other than exact streams, collapsed and normed rows are BF16 values;
 * coefficients are f32 in every profile (docs/numerics-profiles.md). Source: V4 reference
 * inference/model.py (Block.hc_pre, hc_post).
 */
#ifndef TAMIS_MODEL_HYPER_CONNECTION_H
#define TAMIS_MODEL_HYPER_CONNECTION_H

#include "config/model_config.h"
#include "ops/exec.h"
#include "weights/model_weights.h"

/* pre, post and C of one token: what z becomes in place. */
static inline int32_t tamis_hc_num_coefs(const tamis_model_config *config)
{
    return (2 + config->hc_mult) * config->hc_mult;
}
size_t tamis_hc_scratch_floats(const tamis_model_config *config); /* per thread */

/* One token: z [(2 + m) m] (r not yet applied) -> pre [m], post [m], C [m][m] in place. */
void tamis_hc_coefficients(const tamis_model_config *config, const tamis_hc_weights *site, float r,
                           float *z);

/*
 * Coefficients of every token and the sublayer's normed input; two barriers.
 * streams [n_tokens][m][H], norm [H], coefs [n_tokens][(2 + m) m], x [n_tokens][H].
 * false: a NaN or infinity came up.
 */
bool tamis_hc_collapse(const tamis_exec *exec, const tamis_model_config *config,
                       const tamis_hc_weights *site, const float *norm, const float *streams,
                       int64_t n_tokens, float *coefs, float *x);
/* X' in place of X from the sublayer's output v [n_tokens][H]; one barrier. false as above. */
bool tamis_hc_expand(const tamis_exec *exec, const tamis_model_config *config, const float *coefs,
                     const float *v, float *streams, int64_t n_tokens);
/*
 * The head's collapse, with `pre` alone: x [n_rows][H] = norm(sum_s pre_s X_s) of the tokens
 * rows[0..n_rows). One barrier. false as above.
 */
bool tamis_hc_head(const tamis_exec *exec, const tamis_model_config *config,
                   const tamis_hc_weights *site, const float *norm, const float *streams,
                   const int32_t *rows, int64_t n_rows, float *x);

#endif
