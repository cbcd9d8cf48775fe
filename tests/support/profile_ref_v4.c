/* One V4 attention layer as the profiles round it: see profile_ref_v4.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_v4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct check {
    pv4_report *report;
    const tamis_dsa_layer *layer;
    const tamis_dsa_config *c;
    tamis_profile profile;
    const float *x;
    const v4_stages *s;
    const uint8_t *want;
} check;

static bool is_official(const check *k)
{
    return k->profile == TAMIS_PROFILE_OFFICIAL;
}

static const float *row_of(const float *rows, int64_t i, int64_t width)
{
    return rows + i * width;
}

static lowbit_row row_layout(const tamis_row_format *format, tamis_profile profile)
{
    lowbit_layout layout = LOWBIT_ROW_BF16;
    if (format->dtype == TAMIS_DTYPE_F4_E2M1)
        layout = LOWBIT_ROW_INDEX_FP4;
    else if (format->dtype == TAMIS_DTYPE_I8)
        layout = LOWBIT_ROW_INDEX_INT8;
    else if (format->dtype == TAMIS_DTYPE_F8_E4M3)
        layout = profile == TAMIS_PROFILE_OFFICIAL ? LOWBIT_ROW_V4_584 : LOWBIT_ROW_V4_640;
    const lowbit_row row = lowbit_row_of(layout, format->num_values, format->num_plain);
    assert_int_equal(row.bytes, format->row_bytes);
    return row;
}

/* ---------------------------------------------------------------- Q1, Q2, K1, K2 */

/* Whether wq_b quantises every token's input to int8: then from f32. */
static bool quantises_query(const check *k)
{
    const tamis_matrix *w = &k->layer->weights.wq_b;
    return (w->dtype == TAMIS_DTYPE_I8 && w->input == NULL) || w->dtype == TAMIS_DTYPE_I4;
}

static void check_low_rank_query(const check *k)
{
    const int32_t rank = k->c->q_lora_rank;
    pv4_weight wq_a = pv4_weight_open(&k->layer->weights.wq_a);
    pv4_span *qr = pv4_take(rank, sizeof *qr);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *x = pv4_numbers(row_of(k->x, t, k->c->hidden_size), k->c->hidden_size);
        pv4_linear(qr, &wq_a, 0, rank, x, PV4_TABLE, k->profile);
        pv4_bf16_all(qr, rank);
        pv4_rmsnorm(qr, k->layer->weights.q_norm, rank, (double)k->c->rms_norm_eps);
        if (quantises_query(k)) {
            pv4_compare_f32(k->report, "qr", t, row_of(k->s->qr, t, rank), qr, rank);
        } else {
            pv4_bf16_all(qr, rank);
            pv4_compare(k->report, "qr", t, row_of(k->s->qr, t, rank), qr, rank);
        }
        free(x);
    }
    pv4_weight_close(&wq_a);
    free(qr);
}

/* Rotation and the BF16 of the rotated channels. */
static void rotate(const check *k, pv4_span *x, int32_t width, int32_t pos, bool inverse)
{
    pv4_rotate(x, width, k->c->rope_head_dim, &k->c->rope, pos, inverse);
    pv4_bf16_all(x + width - k->c->rope_head_dim, k->c->rope_head_dim);
}

static void check_window_rows(const check *k)
{
    const int32_t d = k->c->head_dim;
    const lowbit_row layout = row_layout(&k->s->kv_format, k->profile);
    pv4_weight wkv = pv4_weight_open(&k->layer->weights.wkv);
    pv4_span *kv = pv4_take(d, sizeof *kv);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *x = pv4_numbers(row_of(k->x, t, k->c->hidden_size), k->c->hidden_size);
        pv4_linear(kv, &wkv, 0, d, x, PV4_TABLE, k->profile);
        pv4_bf16_all(kv, d);
        pv4_rmsnorm(kv, k->layer->weights.kv_norm, d, (double)k->c->rms_norm_eps);
        pv4_bf16_all(kv, d);
        rotate(k, kv, d, t, false);
        pv4_compare_row(k->report, "window row", t, k->s->kv + (int64_t)t * layout.bytes, &layout,
                        kv);
        free(x);
    }
    pv4_weight_close(&wkv);
    free(kv);
}

/* ---------------------------------------------------------------- C1, J1 */

/* u and z + ape, f32 throughout. */
static void check_state(const check *k, const char *stage, const tamis_compressor_weights *w,
                        const float *state, int32_t d)
{
    const int32_t r = k->c->compress_ratio, width = r == 4 ? 2 * d : d;
    pv4_weight wkv = pv4_weight_open(&w->wkv), wgate = pv4_weight_open(&w->wgate);
    pv4_span *uz = pv4_take(2 * width, sizeof *uz);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *x = pv4_numbers(row_of(k->x, t, k->c->hidden_size), k->c->hidden_size);
        pv4_linear(uz, &wkv, 0, width, x, PV4_AS_IS, k->profile);
        pv4_linear(uz + width, &wgate, 0, width, x, PV4_AS_IS, k->profile);
        for (int32_t i = 0; i < width; i++)
            uz[width + i] =
                pv4_loose(pv4_add(uz[width + i], pv4_number((double)w->ape[t % r * width + i])), 1);
        pv4_compare_f32(k->report, stage, t, row_of(state, t, 2 * (int64_t)width), uz, 2 * width);
        free(x);
    }
    pv4_weight_close(&wkv);
    pv4_weight_close(&wgate);
    free(uz);
}

/* ---------------------------------------------------------------- C2, J2 */

typedef struct slots {
    double value[256], score[256];
    int n;
} slots;

/* Slots of row j, channel ch: the previous window's first halves, the own window's last halves. */
static slots slots_of(const check *k, const float *state, int32_t d, int32_t j, int32_t ch)
{
    const int32_t r = k->c->compress_ratio, width = r == 4 ? 2 * d : d;
    slots s = {.n = 0};
    for (int32_t t = r == 4 && j > 0 ? (j - 1) * r : j * r; t < (j + 1) * r; t++) {
        const float *row = row_of(state, t, 2 * (int64_t)width);
        const int32_t at = t < j * r ? ch : width - d + ch;
        s.value[s.n] = (double)row[at];
        s.score[s.n++] = (double)row[width + at];
    }
    return s;
}

/* Softmax over slots: exp of a rounded difference, sums as chains, one division. */
static pv4_span pooled(const slots *s)
{
    double max = s->score[0], sum = 0, sum_error = 0, total = 0, total_error = 0, terms = 0;
    for (int i = 1; i < s->n; i++)
        max = fmax(max, s->score[i]);
    for (int i = 0; i < s->n; i++) {
        const double weight = exp(s->score[i] - max);
        const double error = (2.2 + (max - s->score[i])) * PV4_U * weight;
        sum += weight;
        sum_error += error;
        total += weight * s->value[i];
        total_error += error * fabs(s->value[i]);
        terms += weight * fabs(s->value[i]);
    }
    sum_error += s->n * PV4_U * sum;
    total_error += s->n * PV4_U * terms;
    const double value = total / sum;
    return pv4_around(value, total_error / sum + fabs(value) * (sum_error / sum + PV4_U));
}

/* Ascend keeps f32 between the stages of a row, the vendor does not. */
static void round_between(const check *k, pv4_span *row, int32_t d)
{
    if (is_official(k))
        pv4_bf16_all(row, d);
}

static void make_row(const check *k, pv4_span *row, const tamis_compressor_weights *w,
                     const float *state, int32_t d, int32_t j)
{
    for (int32_t ch = 0; ch < d; ch++) {
        const slots s = slots_of(k, state, d, j, ch);
        row[ch] = pooled(&s);
    }
    round_between(k, row, d);
    pv4_rmsnorm(row, w->norm, d, (double)k->c->rms_norm_eps);
    round_between(k, row, d);
    pv4_rotate(row, d, k->c->rope_head_dim, &k->c->rope, j * k->c->compress_ratio, false);
    pv4_bf16_all(row, d);
}

/* y [d]: official sum * d^-0.5 -> bf16; ascend the sum -> bf16, then times d^-0.5 -> bf16. */
static void hadamard(const check *k, pv4_span *x, int32_t d)
{
    const double scale = lowbit_f32(1 / sqrt((double)d));
    pv4_hadamard(x, d);
    if (!is_official(k))
        pv4_bf16_all(x, d);
    for (int32_t i = 0; i < d; i++)
        x[i] = pv4_bf16(pv4_f32(pv4_loose(pv4_mul(x[i], pv4_number(scale)), 1)));
}

/* Rows that tokens in `want` complete. */
static void check_rows(const check *k, const char *stage, const tamis_compressor_weights *w,
                       const float *state, const uint8_t *rows, const tamis_row_format *format,
                       bool is_key)
{
    const int32_t d = format->num_values;
    const lowbit_row layout = row_layout(format, k->profile);
    pv4_span *row = pv4_take(d, sizeof *row);
    for (int32_t j = 0; j < k->s->n_rows; j++) {
        if (!k->want[(j + 1) * k->c->compress_ratio - 1])
            continue;
        make_row(k, row, w, state, d, j);
        if (is_key)
            hadamard(k, row, d);
        pv4_compare_row(k->report, stage, j, rows + (int64_t)j * layout.bytes, &layout, row);
    }
    free(row);
}

/* ---------------------------------------------------------------- Q3, Q4 */

static void check_query(const check *k)
{
    const int32_t d = k->c->head_dim, width = k->c->num_heads * d;
    pv4_weight wq_b = pv4_weight_open(&k->layer->weights.wq_b);
    pv4_span *q = pv4_take(width, sizeof *q);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *qr = pv4_numbers(row_of(k->s->qr, t, k->c->q_lora_rank), k->c->q_lora_rank);
        pv4_linear(q, &wq_b, 0, width, qr, PV4_TABLE, k->profile);
        pv4_bf16_all(q, width);
        for (int32_t h = 0; h < k->c->num_heads; h++) {
            pv4_span *head = q + (int64_t)h * d;
            if (is_official(k)) {
                pv4_rmsnorm_bf16(head, d, (double)k->c->rms_norm_eps);
            } else {
                pv4_rmsnorm(head, NULL, d, (double)k->c->rms_norm_eps);
                pv4_bf16_all(head, d);
            }
            rotate(k, head, d, t, false);
        }
        pv4_compare(k->report, "q", t, row_of(k->s->q, t, width), q, width);
        free(qr);
    }
    pv4_weight_close(&wq_b);
    free(q);
}

/* ---------------------------------------------------------------- I1, I2, W1 */

/* Codes of a head and, official, its scales against the engine's; returns ascend's scale. */
static pv4_span check_query_codes(const check *k, int32_t t, int32_t h, const pv4_span *q)
{
    const int32_t d = k->c->index_head_dim, group = is_official(k) ? 32 : d;
    const int64_t at = (int64_t)t * k->s->padded_heads + h;
    pv4_span codes[1024], scale = pv4_number(0);
    float seen[1024];
    for (int32_t first = 0, g = 0; first < d; first += group, g++) {
        const int32_t n = d - first < group ? d - first : group;
        scale = is_official(k)
                    ? pv4_quantize(codes + first, q + first, n, LOWBIT_E2M1, LOWBIT_POW2)
                    : pv4_quantize(codes + first, q + first, n, LOWBIT_INT8, LOWBIT_AMAX);
        if (is_official(k))
            pv4_compare(k->report, "index query scale", t,
                        &k->s->iq_scales[at * k->s->n_groups + g], &scale, 1);
    }
    for (int32_t i = 0; i < d;
         i++) /* the engine's FP4 codes are doubled, so that they are integers */
        seen[i] = (float)k->s->iq_codes[at * d + i] / (is_official(k) ? 2 : 1);
    pv4_compare(k->report, "index query", t, seen, codes, d);
    return scale;
}

/* w of the heads: weights_proj -> bf16, times the constant -> bf16. */
static void head_weights(const check *k, pv4_span *w, const pv4_weight *proj, int32_t t)
{
    const int32_t heads = k->c->index_n_heads;
    const double factor = 1 / sqrt((double)k->c->index_head_dim) / sqrt((double)heads);
    pv4_span *x = pv4_numbers(row_of(k->x, t, k->c->hidden_size), k->c->hidden_size);
    pv4_linear(w, proj, 0, heads, x, PV4_AS_IS, k->profile);
    pv4_bf16_all(w, heads);
    for (int32_t h = 0; h < heads; h++) /* the constant: f32 of some formula of three roundings */
        w[h] = pv4_bf16(pv4_loose(pv4_mul(w[h], pv4_number(factor)), 4));
    free(x);
}

static void check_index_query(const check *k)
{
    const int32_t d = k->c->index_head_dim, heads = k->c->index_n_heads, width = heads * d;
    pv4_weight wq_b = pv4_weight_open(&k->layer->weights.index_wq_b);
    pv4_weight proj = pv4_weight_open(&k->layer->weights.index_weights_proj);
    pv4_span *q = pv4_take(width, sizeof *q), *w = pv4_take(heads, sizeof *w);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *qr = pv4_numbers(row_of(k->s->qr, t, k->c->q_lora_rank), k->c->q_lora_rank);
        pv4_linear(q, &wq_b, 0, width, qr, PV4_TABLE, k->profile);
        pv4_bf16_all(q, width);
        head_weights(k, w, &proj, t);
        for (int32_t h = 0; h < heads; h++) {
            pv4_span *head = q + (int64_t)h * d;
            rotate(k, head, d, t, false);
            hadamard(k, head, d);
            const pv4_span scale = check_query_codes(k, t, h, head);
            if (!is_official(k))
                w[h] = pv4_f16(pv4_mul(pv4_f16(w[h]), pv4_f16(scale)));
        }
        pv4_compare(k->report, "index weights", t, row_of(k->s->w, t, k->s->padded_heads), w,
                    heads);
        free(qr);
    }
    pv4_weight_close(&wq_b);
    pv4_weight_close(&proj);
    free(q);
    free(w);
}

/* ---------------------------------------------------------------- S1 */

/* bf16(dot), bf16(w relu), bf16 of the sum over heads. Dots of codes are exact per group. */
static pv4_span score_fp4(const check *k, int32_t t, const double *codes, const double *scales)
{
    const int32_t d = k->c->index_head_dim, heads = k->c->index_n_heads;
    pv4_span sum = pv4_number(0);
    double terms = 0;
    for (int32_t h = 0; h < heads; h++) {
        const int64_t at = (int64_t)t * k->s->padded_heads + h;
        double dot = 0, partial_sums = 0;
        for (int32_t i = 0; i < d; i++) {
            const double scale = (double)k->s->iq_scales[at * k->s->n_groups + i / 32];
            dot += (double)k->s->iq_codes[at * d + i] / 2 * scale * codes[i] * scales[i / 32];
            partial_sums += i % 32 == 31 || i == d - 1 ? fabs(dot) : 0;
        }
        pv4_span relu = pv4_bf16(pv4_around(dot, PV4_U * partial_sums));
        relu = (pv4_span){fmax(relu.lo, 0), fmax(relu.hi, 0)};
        const pv4_span term = pv4_bf16(pv4_mul(relu, pv4_number((double)k->s->w[at])));
        sum = pv4_add(sum, term);
        terms += pv4_size(term);
    }
    const double radius = ((heads + 15) / 16 + 4) * PV4_U * terms;
    return pv4_bf16((pv4_span){sum.lo - radius, sum.hi + radius});
}

/* f16(relu(integer dot) 2^-10), f32 sum of its products with W, times the key's scale. */
static pv4_span score_int8(const check *k, int32_t t, const double *codes, const double *scales)
{
    const int32_t d = k->c->index_head_dim, heads = k->c->index_n_heads;
    double sum = 0, terms = 0;
    for (int32_t h = 0; h < heads; h++) {
        const int64_t at = (int64_t)t * k->s->padded_heads + h;
        double dot = 0;
        for (int32_t i = 0; i < d; i++)
            dot += (double)k->s->iq_codes[at * d + i] * codes[i];
        const double term = lowbit_f16(fmax(dot, 0) / 1024) * (double)k->s->w[at];
        sum += term;
        terms += fabs(term);
    }
    const pv4_span total = pv4_around(sum, ((heads + 15) / 16 + 4) * PV4_U * terms);
    return pv4_loose(pv4_mul(total, pv4_number(scales[0])), 1);
}

/* Whether a row with score a and number i certainly stands before one with b and j. */
static bool is_before(pv4_span a, int32_t i, pv4_span b, int32_t j)
{
    const bool are_known = !pv4_is_open(a) && !pv4_is_open(b);
    return a.lo > b.hi || (are_known && a.lo == b.lo && i < j);
}

/* Official: in descending order of score; ascend: ascending; no row left out that beats one in. */
static void check_selection(const check *k, int32_t t, const pv4_span *score, int32_t visible)
{
    const int32_t topk = k->c->index_topk, n = visible < topk ? visible : topk;
    const int32_t *seen = k->s->topk + (int64_t)t * topk;
    uint8_t *is_chosen = pv4_take(visible, 1);
    for (int32_t i = 0; i < topk; i++) {
        if (i < n ? seen[i] < 0 || seen[i] >= visible || is_chosen[seen[i]]++ : seen[i] != -1)
            fail_msg("%s, layer %d: token %d selects %d at place %d of %d", k->report->folder,
                     k->report->layer, t, seen[i], i, n);
        if (i == 0 || i >= n)
            continue;
        const int32_t a = seen[i - 1], b = seen[i];
        if (is_official(k) ? is_before(score[b], b, score[a], a) : b < a)
            fail_msg("%s, profile %s, layer %d: token %d has row %d before row %d",
                     k->report->folder, k->report->profile, k->report->layer, t, a, b);
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < visible; j++)
            if (!is_chosen[j] && is_before(score[j], j, score[seen[i]], seen[i]))
                fail_msg("%s, profile %s, layer %d: token %d selects row %d, not row %d",
                         k->report->folder, k->report->profile, k->report->layer, t, seen[i], j);
    free(is_chosen);
}

static void check_scores(const check *k)
{
    const lowbit_row layout = row_layout(&k->s->key_format, k->profile);
    const int64_t d = layout.n, groups = layout.n_groups;
    double *codes = pv4_take(k->s->n_rows * d, sizeof *codes);
    double *scales = pv4_take(k->s->n_rows * groups, sizeof *scales);
    pv4_span *score = pv4_take(k->s->n_rows, sizeof *score);
    for (int64_t j = 0; j < k->s->n_rows; j++)
        lowbit_row_codes(codes + j * d, scales + j * groups, &layout,
                         k->s->keys + j * layout.bytes);
    for (int32_t t = 0; t < k->s->n; t++) {
        const int32_t visible = (t + 1) / 4;
        if (!k->want[t])
            continue;
        for (int32_t j = 0; j < visible; j++)
            score[j] = is_official(k) ? score_fp4(k, t, codes + j * d, scales + j * groups)
                                      : score_int8(k, t, codes + j * d, scales + j * groups);
        check_selection(k, t, score, visible);
    }
    free(codes);
    free(scales);
    free(score);
}

/* ---------------------------------------------------------------- A1 */

/* Rows as attention reads them, [n][d]; to be freed by the caller. */
static double *decoded(const check *k, const uint8_t *bytes, const tamis_row_format *format,
                       int32_t n)
{
    const lowbit_row layout = row_layout(format, k->profile);
    double *rows = pv4_take((int64_t)n * layout.n, sizeof *rows);
    for (int64_t i = 0; i < n; i++)
        lowbit_row_decode(rows + i * layout.n, &layout, bytes + i * layout.bytes);
    return rows;
}

/*
 * Places of the list of the token at position t; an empty place is NULL. Official: the window has
 * as many places as it is wide. Returns their number.
 */
static int32_t list_places(const check *k, const double **places, const double *kv,
                           const double *ckv, int32_t t)
{
    const tamis_dsa_config *c = k->c;
    const int32_t first = t - c->sliding_window + 1 > 0 ? t - c->sliding_window + 1 : 0;
    const int32_t visible = c->compress_ratio == 0 ? 0 : (t + 1) / c->compress_ratio;
    int32_t n = 0;
    for (int32_t pos = first; pos <= t; pos++)
        places[n++] = kv + (int64_t)pos * c->head_dim;
    while (is_official(k) && n < c->sliding_window)
        places[n++] = NULL;
    for (int32_t i = 0; c->compress_ratio == 128 && i < visible; i++)
        places[n++] = ckv + (int64_t)i * c->head_dim;
    for (int32_t i = 0; c->compress_ratio == 4 && i < c->index_topk; i++) {
        const int32_t j = k->s->topk[(int64_t)t * c->index_topk + i];
        if (j >= 0)
            places[n++] = ckv + (int64_t)j * c->head_dim;
    }
    return n;
}

static void check_attention(const check *k)
{
    const tamis_dsa_config *c = k->c;
    const int32_t d = c->head_dim, width = c->num_heads * d;
    double *kv = decoded(k, k->s->kv, &k->s->kv_format, k->s->n);
    double *ckv = k->s->ckv == NULL ? NULL : decoded(k, k->s->ckv, &k->s->ckv_format, k->s->n_rows);
    const double **places = pv4_take(c->sliding_window + k->s->n_rows, sizeof *places);
    pv4_span *o = pv4_take(width, sizeof *o);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        const int32_t n = list_places(k, places, kv, ckv, t);
        for (int32_t h = 0; h < c->num_heads; h++) {
            pv4_span *head = o + (int64_t)h * d;
            pv4_attend(head, row_of(k->s->q, t, width) + (int64_t)h * d, d, places, n,
                       (double)k->layer->weights.attn_sink[h]);
            pv4_bf16_all(head, d);
            rotate(k, head, d, t, true);
        }
        pv4_compare(k->report, "attention", t, row_of(k->s->o, t, width), o, width);
    }
    free(kv);
    free(ckv);
    free(places);
    free(o);
}

/* ---------------------------------------------------------------- O1 */

static void check_output(const check *k)
{
    const tamis_dsa_config *c = k->c;
    const int64_t width = (int64_t)c->num_heads * c->head_dim, group = width / c->o_groups;
    const int64_t rank = c->o_lora_rank, low_width = c->o_groups * rank;
    pv4_weight wo_a = pv4_weight_open(&k->layer->weights.wo_a);
    pv4_weight wo_b = pv4_weight_open(&k->layer->weights.wo_b);
    pv4_span *low = pv4_take(low_width, sizeof *low);
    pv4_span *out = pv4_take(c->hidden_size, sizeof *out);
    for (int32_t t = 0; t < k->s->n; t++) {
        if (!k->want[t])
            continue;
        pv4_span *o = pv4_numbers(row_of(k->s->o, t, width), width);
        for (int64_t g = 0; g < c->o_groups; g++)
            pv4_linear(low + g * rank, &wo_a, g * rank, (g + 1) * rank, o + g * group,
                       is_official(k) ? PV4_AS_IS : PV4_TABLE, k->profile);
        pv4_bf16_all(low, low_width);
        pv4_compare(k->report, "wo_a", t, row_of(k->s->low, t, low_width), low, low_width);
        pv4_span *seen = pv4_numbers(row_of(k->s->low, t, low_width), low_width);
        pv4_linear(out, &wo_b, 0, c->hidden_size, seen, PV4_TABLE, k->profile);
        pv4_bf16_all(out, c->hidden_size);
        pv4_compare(k->report, "wo_b", t, row_of(k->s->out, t, c->hidden_size), out,
                    c->hidden_size);
        free(o);
        free(seen);
    }
    pv4_weight_close(&wo_a);
    pv4_weight_close(&wo_b);
    free(low);
    free(out);
}

void pv4_check_attention(pv4_report *report, const tamis_dsa_layer *layer, tamis_profile profile,
                         const float *x, const v4_stages *s, const uint8_t *want)
{
    const check k = {report, layer, &layer->config, profile, x, s, want};
    const tamis_dsa_weights *w = &layer->weights;
    check_low_rank_query(&k);
    check_window_rows(&k);
    if (s->ckv != NULL) {
        check_state(&k, "state", &w->compressor, s->state, k.c->head_dim);
        check_rows(&k, "compressed row", &w->compressor, s->state, s->ckv, &s->ckv_format, false);
    }
    if (s->keys != NULL) {
        check_state(&k, "index state", &w->index_compressor, s->index_state, k.c->index_head_dim);
        check_rows(&k, "index key", &w->index_compressor, s->index_state, s->keys, &s->key_format,
                   true);
        check_index_query(&k);
        check_scores(&k);
    }
    check_query(&k);
    check_attention(&k);
    check_output(&k);
}
