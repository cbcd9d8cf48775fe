/* Experts, hyper-connections and head of V4 as the profiles round them: see profile_ref_v4.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_v4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_v4.h"

/* ---------------------------------------------------------------- router */

typedef struct experts {
    pv4_report *report;
    const tamis_model_config *c;
    const tamis_moe_weights *w;
    tamis_profile profile;
    const tamis_moe *moe;
    const float *x, *y;
    int64_t n;                    /* tokens of the step */
    pv4_weight gate, (*parts)[3]; /* w1, w3, w2 of every expert, the shared one last */
} experts;

static void check_scores(const experts *e, int64_t t, const pv4_span *x)
{
    const int32_t n = e->c->n_routed_experts;
    pv4_span *s = pv4_take(n, sizeof *s);
    assert_int_equal(e->c->scoring_func, TAMIS_SCORING_SQRTSOFTPLUS);
    pv4_linear(s, &e->gate, 0, n, x, PV4_AS_IS, e->profile);
    for (int32_t i = 0; i < n; i++) {
        const pv4_span plus = {log1p(exp(s[i].lo)), log1p(exp(s[i].hi))};
        const pv4_span known = pv4_loose(plus, 4); /* softplus: 2 ulp */
        s[i] = pv4_loose((pv4_span){sqrt(known.lo), sqrt(known.hi)}, 1);
    }
    pv4_compare_f32(e->report, "router", t, e->moe->scores + t * n, s, n);
    free(s);
}

/* Whether an expert stands in the token's row of the table, or among the k best with its bias. */
static bool is_chosen(const experts *e, int32_t token, const float *scores, int32_t id)
{
    const int32_t k = e->c->num_experts_per_tok;
    int32_t n_better = 0;
    for (int32_t i = 0; e->w->tid2eid != NULL && i < k; i++) {
        int64_t wide;
        memcpy(&wide, (const char *)e->w->tid2eid + ((int64_t)token * k + i) * 8, sizeof wide);
        if (wide == id)
            return true;
    }
    for (int32_t i = 0; e->w->tid2eid == NULL && i < e->c->n_routed_experts; i++) {
        const float other = scores[i] + e->w->bias[i], own = scores[id] + e->w->bias[id];
        n_better += other > own || (other == own && i < id);
    }
    return e->w->tid2eid == NULL && n_better < k;
}

/* From the engine's own scores. */
static void check_choice(const experts *e, int64_t t, int32_t token)
{
    const int32_t k = e->c->num_experts_per_tok;
    const float *scores = e->moe->scores + t * e->c->n_routed_experts;
    const int32_t *ids = e->moe->ids + t * k;
    double sum = 1e-20;
    for (int32_t i = 0; i < k; i++)
        sum += (double)scores[ids[i]];
    for (int32_t i = 0; i < k; i++) {
        if (!is_chosen(e, token, scores, ids[i]) || (i > 0 && ids[i] < ids[i - 1]))
            fail_msg("%s, layer %d: token %lld uses expert %d", e->report->folder, e->report->layer,
                     (long long)t, ids[i]);
        const double weight = (double)scores[ids[i]] / (e->c->norm_topk_prob ? sum : 1) *
                              (double)e->c->routed_scaling_factor;
        const pv4_span known = pv4_loose(pv4_number(weight), k + 3);
        pv4_compare_f32(e->report, "expert weight", t, e->moe->weights + t * k + i, &known, 1);
    }
}

/* ---------------------------------------------------------------- experts */

/* x / (1 + exp(-x)): falls to its lowest value, then rises. 3 ulp. */
static pv4_span silu(pv4_span x)
{
    const double a = x.lo / (1 + exp(-x.lo)), b = x.hi / (1 + exp(-x.hi));
    const bool has_lowest = x.lo < -1.2784645 && x.hi > -1.2784646;
    return pv4_loose((pv4_span){has_lowest ? -0.2784646 : fmin(a, b), fmax(a, b)}, 6);
}

/* h of one expert: weight is 1 but for official's routed experts. */
static void inner_values(const experts *e, pv4_span *h, const pv4_weight *parts, const pv4_span *x,
                         double weight)
{
    const int64_t width = parts[0].w->rows;
    const double limit = (double)e->c->swiglu_limit;
    pv4_span *u = pv4_take(width, sizeof *u);
    pv4_linear(h, &parts[0], 0, width, x, PV4_TABLE, e->profile);
    pv4_linear(u, &parts[1], 0, width, x, PV4_TABLE, e->profile);
    pv4_bf16_all(h, width);
    pv4_bf16_all(u, width);
    for (int64_t i = 0; i < width; i++) {
        const pv4_span gate = {fmin(h[i].lo, limit), fmin(h[i].hi, limit)};
        const pv4_span up = {fmax(fmin(u[i].lo, limit), -limit),
                             fmax(fmin(u[i].hi, limit), -limit)};
        h[i] = pv4_loose(pv4_mul(silu(gate), up), 1);
        if (weight != 1)
            h[i] = pv4_loose(pv4_mul(h[i], pv4_number(weight)), 1);
    }
    pv4_bf16_all(h, width);
    free(u);
}

/* h, then w2 of the engine's own h: y [hidden]. */
static void check_expert(const experts *e, int64_t t, pv4_span *y, const pv4_weight *parts,
                         const pv4_span *x, double weight, const float *seen_h)
{
    const int64_t width = parts[0].w->rows;
    pv4_span *h = pv4_take(width, sizeof *h);
    inner_values(e, h, parts, x, weight);
    pv4_compare(e->report, "expert product", t, seen_h, h, width);
    pv4_span *own = pv4_numbers(seen_h, width);
    pv4_linear(y, &parts[2], 0, e->c->hidden_size, own, PV4_TABLE, e->profile);
    pv4_bf16_all(y, e->c->hidden_size);
    free(own);
    free(h);
}

/* The sum in f32, experts ascending and the shared one last, from the engine's own outputs. */
static void check_sum(const experts *e, int64_t t, const pv4_span *shared)
{
    const int64_t hidden = e->c->hidden_size, k = e->c->num_experts_per_tok;
    pv4_span *y = pv4_take(hidden, sizeof *y);
    for (int64_t i = 0; i < hidden; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            const double out =
                (double)e->moe->rows[(int64_t)e->moe->row_of[t * k + j] * hidden + i];
            const double weight =
                e->profile == TAMIS_PROFILE_OFFICIAL ? 1 : (double)e->moe->weights[t * k + j];
            sum = lowbit_f32(sum + weight * out);
        }
        y[i] = pv4_bf16(pv4_f32(pv4_add(pv4_number(sum), shared[i])));
    }
    pv4_compare(e->report, "experts' sum", t, e->y + t * hidden, y, hidden);
    free(y);
}

static void check_token(const experts *e, int64_t t, int32_t token)
{
    const int64_t hidden = e->c->hidden_size, k = e->c->num_experts_per_tok;
    const int64_t width = e->c->moe_intermediate_size, n_experts = e->c->n_routed_experts;
    const int64_t shared_width = e->w->shared.w1.rows;
    pv4_span *x = pv4_numbers(e->x + t * hidden, hidden);
    pv4_span *y = pv4_take(hidden, sizeof *y);
    check_scores(e, t, x);
    check_choice(e, t, token);
    for (int64_t j = 0; j < k; j++) {
        const int64_t row = e->moe->row_of[t * k + j];
        const double weight =
            e->profile == TAMIS_PROFILE_OFFICIAL ? (double)e->moe->weights[t * k + j] : 1;
        check_expert(e, t, y, e->parts[e->moe->ids[t * k + j]], x, weight,
                     e->moe->gate + row * width);
        pv4_compare(e->report, "expert", t, e->moe->rows + row * hidden, y, hidden);
    }
    assert_true(shared_width > 0);
    check_expert(e, t, y, e->parts[n_experts], x, 1,
                 e->moe->gate + e->n * k * width + t * shared_width);
    check_sum(e, t, y);
    free(x);
    free(y);
}

void pv4_check_experts(pv4_report *report, const tamis_model_config *config,
                       const tamis_moe_weights *weights, tamis_profile profile,
                       const int32_t *tokens, const tamis_moe *moe, const float *x, const float *y,
                       int64_t n, const uint8_t *want)
{
    const int32_t n_experts = config->n_routed_experts;
    experts e = {report, config, weights, profile, moe, x, y, n, .gate = {.w = NULL}};
    e.gate = pv4_weight_open(&weights->gate);
    e.parts = pv4_take(n_experts + 1, sizeof *e.parts);
    for (int32_t i = 0; i <= n_experts; i++) {
        const tamis_expert_weights *w = i < n_experts ? &weights->experts[i] : &weights->shared;
        e.parts[i][0] = pv4_weight_open(&w->w1);
        e.parts[i][1] = pv4_weight_open(&w->w3);
        e.parts[i][2] = pv4_weight_open(&w->w2);
    }
    for (int64_t t = 0; t < n; t++)
        if (want[t])
            check_token(&e, t, tokens[t]);
    for (int32_t i = 0; i <= n_experts; i++)
        for (int p = 0; p < 3; p++)
            pv4_weight_close(&e.parts[i][p]);
    free(e.parts);
    pv4_weight_close(&e.gate);
}

/* ---------------------------------------------------------------- hyper-connections */

/* Roundings of r, the common factor of the streams: half of its sum's, a division, a root. */
static double factor_roundings(int64_t width)
{
    return (double)((width + 15) / 16 + 5) / 2 + 4;
}

/*
 * Largest error of z_i scale + base over the rows of a site: the sum's on 16 lanes, r's, two
 * roundings of the line.
 */
static double argument_error(const tamis_model_config *c, const tamis_hc_weights *site,
                             const double *fn, const double *streams)
{
    const int64_t width = (int64_t)c->hc_mult * c->hidden_size;
    double squares = 0, worst = 0;
    for (int64_t i = 0; i < width; i++)
        squares += streams[i] * streams[i];
    const double r = 1 / sqrt(squares / (double)width + (double)c->rms_norm_eps);
    for (int64_t row = 0; row < site->fn.rows; row++) {
        double terms = 0;
        for (int64_t i = 0; i < width; i++)
            terms += fabs(fn[row * width + i] * streams[i]) * r;
        const double roundings = (double)((width + 15) / 16 + 4) + factor_roundings(width) + 1;
        const int32_t m = c->hc_mult;
        const double scale = fabs((double)site->scale[row < m ? 0 : row < 2 * m ? 1 : 2]);
        const double line = terms * scale + fabs((double)site->base[row]);
        worst = fmax(worst, terms * scale * roundings * PV4_U + 2 * PV4_U * line);
    }
    return worst;
}

/*
 * Relative error of the combination after all normalisations. Entries of the softmax are off by e:
 * the argument's and the maximum's error, exp, sum and division. A normalisation divides each line
 * by a sum of its entries, so the factor of a line is off by e, its own roundings and what the
 * factors of the other direction were off before: errors add up, they are not multiplied.
 */
static double combine_error(const tamis_model_config *c, double argument)
{
    const double entry = 4 * argument + (double)(c->hc_mult + 10) * PV4_U;
    const double steps = 2.0 * c->hc_sinkhorn_iters - 1;
    return entry + 2 * steps * (entry + (double)(c->hc_mult + 2) * PV4_U);
}

static void check_coefficients(pv4_report *report, const tamis_model_config *c,
                               const tamis_hc_weights *site, const double *fn, int64_t token,
                               const double *streams, const float *coefs)
{
    const int m = c->hc_mult;
    double pre[TAMIS_MAX_HC_MULT], post[TAMIS_MAX_HC_MULT];
    double combine[TAMIS_MAX_HC_MULT * TAMIS_MAX_HC_MULT];
    pv4_span want[(2 + TAMIS_MAX_HC_MULT) * TAMIS_MAX_HC_MULT];
    oracle_hyper_connection(pre, post, combine, streams, fn, site, c);
    const double argument = argument_error(c, site, fn, streams);
    for (int s = 0; s < m; s++) { /* a sigmoid rises by a quarter of its argument at most */
        want[s] = pv4_around(pre[s], argument / 4 + 8 * PV4_U * pre[s]);
        want[m + s] = pv4_around(post[s], argument / 2 + 8 * PV4_U * post[s]);
    }
    for (int i = 0; i < m * m; i++)
        want[2 * m + i] = pv4_around(combine[i], combine[i] * combine_error(c, argument));
    pv4_compare_f32(report, "coefficients", token, coefs, want, (2 + m) * m);
}

/* Chains of fma; then bf16. */
static void mix(pv4_span *u, const pv4_span *pre, const float *streams, int m, int64_t hidden)
{
    for (int64_t i = 0; i < hidden; i++) {
        double terms = 0;
        u[i] = pv4_number(0);
        for (int s = 0; s < m; s++) {
            const pv4_span term = pv4_mul(pre[s], pv4_number((double)streams[s * hidden + i]));
            u[i] = pv4_add(u[i], term);
            terms += pv4_size(term);
        }
        const double error = m * PV4_U * terms;
        u[i] = pv4_bf16((pv4_span){u[i].lo - error, u[i].hi + error});
    }
}

static void check_collapsed(pv4_report *report, const char *stage, const tamis_model_config *c,
                            const pv4_span *pre, const float *norm, int64_t token,
                            const float *streams, const float *x)
{
    pv4_span *u = pv4_take(c->hidden_size, sizeof *u);
    mix(u, pre, streams, c->hc_mult, c->hidden_size);
    pv4_rmsnorm(u, norm, c->hidden_size, (double)c->rms_norm_eps);
    pv4_bf16_all(u, c->hidden_size);
    pv4_compare(report, stage, token, x, u, c->hidden_size);
    free(u);
}

static double *widened(const float *x, int64_t n)
{
    double *wide = pv4_take(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    return wide;
}

void pv4_check_collapse(pv4_report *report, const tamis_model_config *config,
                        const tamis_hc_weights *site, const double *fn, const float *norm,
                        int64_t token, const float *streams, const float *coefs, const float *x)
{
    pv4_span pre[TAMIS_MAX_HC_MULT];
    double *wide = widened(streams, (int64_t)config->hc_mult * config->hidden_size);
    check_coefficients(report, config, site, fn, token, wide, coefs);
    for (int s = 0; s < config->hc_mult; s++)
        pre[s] = pv4_number((double)coefs[s]);
    check_collapsed(report, "collapsed", config, pre, norm, token, streams, x);
    free(wide);
}

void pv4_check_expand(pv4_report *report, const tamis_model_config *config, int64_t token,
                      const float *before, const float *coefs, const float *v, const float *after)
{
    const int m = config->hc_mult;
    const int64_t hidden = config->hidden_size;
    const float *post = coefs + m, *combine = coefs + 2 * m;
    pv4_span *want = pv4_take(hidden, sizeof *want);
    for (int b = 0; b < m; b++) {
        for (int64_t i = 0; i < hidden; i++) {
            double sum = (double)post[b] * (double)v[i], terms = fabs(sum);
            for (int a = 0; a < m; a++) {
                const double term = (double)combine[a * m + b] * (double)before[a * hidden + i];
                sum += term;
                terms += fabs(term);
            }
            want[i] = pv4_bf16(pv4_around(sum, (m + 1) * PV4_U * terms));
        }
        pv4_compare(report, "expanded", token, after + b * hidden, want, hidden);
    }
    free(want);
}

/* ---------------------------------------------------------------- head */

void pv4_check_head(pv4_report *report, const tamis_model_config *config,
                    const tamis_hc_weights *site, const double *fn, const float *norm,
                    int64_t token, const float *streams, const float *x)
{
    const int m = config->hc_mult;
    const int64_t width = (int64_t)m * config->hidden_size;
    double *wide = widened(streams, width), *normed = pv4_take(width, sizeof *normed);
    double z[TAMIS_MAX_HC_MULT];
    pv4_span pre[TAMIS_MAX_HC_MULT];
    oracle_rmsnorm(normed, wide, NULL, width, (double)config->rms_norm_eps);
    oracle_multiply(z, fn, m, width, normed);
    const double argument = argument_error(config, site, fn, wide);
    for (int s = 0; s < m; s++) {
        const double value = oracle_sigmoid(z[s] * (double)site->scale[0] + (double)site->base[s]) +
                             (double)config->hc_eps;
        pre[s] = pv4_around(value, argument / 4 + 8 * PV4_U * value);
    }
    check_collapsed(report, "head input", config, pre, norm, token, streams, x);
    free(wide);
    free(normed);
}

/* proj . norm(x), each rounded: y [hidden]. */
static void norm_and_project(pv4_span *y, const tamis_model_config *c, const float *weight,
                             const pv4_weight *proj, const float *x, tamis_profile profile)
{
    pv4_span *own = pv4_numbers(x, c->hidden_size);
    pv4_rmsnorm(own, weight, c->hidden_size, (double)c->rms_norm_eps);
    pv4_bf16_all(own, c->hidden_size);
    pv4_linear(y, proj, 0, c->hidden_size, own, PV4_TABLE, profile);
    pv4_bf16_all(y, c->hidden_size);
    free(own);
}

void pv4_check_mtp_input(pv4_report *report, const tamis_model_config *config,
                         const tamis_mtp_weights *w, tamis_profile profile, int64_t token,
                         const float *embed, const float *streams, const float *x)
{
    const int64_t hidden = config->hidden_size;
    pv4_weight e_proj = pv4_weight_open(&w->e_proj), h_proj = pv4_weight_open(&w->h_proj);
    pv4_span *e = pv4_take(hidden, sizeof *e), *h = pv4_take(hidden, sizeof *h);
    norm_and_project(e, config, w->enorm, &e_proj, embed, profile);
    for (int64_t s = 0; s < config->hc_mult; s++) {
        norm_and_project(h, config, w->hnorm, &h_proj, streams + s * hidden, profile);
        for (int64_t i = 0; i < hidden; i++)
            h[i] = pv4_bf16(pv4_f32(pv4_add(e[i], h[i])));
        pv4_compare(report, "MTP input", token, x + s * hidden, h, hidden);
    }
    pv4_weight_close(&e_proj);
    pv4_weight_close(&h_proj);
    free(e);
    free(h);
}

void pv4_check_logits(pv4_report *report, const pv4_weight *head, int64_t token, const float *x,
                      const float *logits)
{
    const int64_t n = head->w->rows;
    pv4_span *own = pv4_numbers(x, head->w->cols), *y = pv4_take(n, sizeof *y);
    pv4_linear(y, head, 0, n, own, PV4_AS_IS, TAMIS_PROFILE_OFFICIAL);
    pv4_compare_f32(report, "logits", token, logits, y, n);
    free(own);
    free(y);
}
