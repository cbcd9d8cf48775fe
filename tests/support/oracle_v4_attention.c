/* One V4 attention layer in double precision: see oracle_v4.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_v4.h"

static void *take(int64_t n, size_t size)
{
    void *block = calloc((size_t)n + 1, size);
    if (block == NULL) {
        fprintf(stderr, "oracle: out of memory\n");
        abort();
    }
    return block;
}

/* ---------------------------------------------------------------- number formats */

/* sign, exponent, mantissa fields of an IEEE-like format without its special values */
static double fields_value(uint32_t bits, int exp_bits, int man_bits, int bias)
{
    const int exponent = (int)(bits >> man_bits & ((1u << exp_bits) - 1));
    const double mantissa = (double)(bits & ((1u << man_bits) - 1)) / (1u << man_bits);
    const double value =
        exponent == 0 ? ldexp(mantissa, 1 - bias) : ldexp(1 + mantissa, exponent - bias);
    return bits >> (exp_bits + man_bits) & 1 ? -value : value;
}

static double element(tamis_dtype dtype, const uint8_t *row, int64_t c)
{
    float wide;
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        memcpy(&wide, row + 4 * c, sizeof wide);
        return (double)wide;
    case TAMIS_DTYPE_BF16:
        return fields_value((uint32_t)row[2 * c] | (uint32_t)row[2 * c + 1] << 8, 8, 7, 127);
    case TAMIS_DTYPE_F16:
        return fields_value((uint32_t)row[2 * c] | (uint32_t)row[2 * c + 1] << 8, 5, 10, 15);
    case TAMIS_DTYPE_F8_E4M3:
        return (row[c] & 0x7f) == 0x7f ? NAN : fields_value(row[c], 4, 3, 7);
    case TAMIS_DTYPE_F4_E2M1:
        return fields_value(c % 2 == 0 ? row[c / 2] & 15u : row[c / 2] >> 4, 2, 1, 1);
    default:
        fprintf(stderr, "oracle: matrix of dtype %s\n", tamis_dtype_name(dtype));
        abort();
    }
}

static double scale_of(const tamis_matrix *w, int64_t r, int64_t c)
{
    if (w->scale == NULL)
        return 1;
    const uint8_t *row = (const uint8_t *)w->scale + r / w->block_rows * w->scale_row_bytes;
    const int64_t block = c / w->block_cols;
    if (w->scale_dtype == TAMIS_DTYPE_F32)
        return element(TAMIS_DTYPE_F32, row, block);
    return row[block] == 255 ? NAN : ldexp(1, row[block] - 127);
}

double *oracle_matrix(const tamis_matrix *w)
{
    double *out = take(w->rows * w->cols, sizeof *out);
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c++) {
            const uint8_t *row = (const uint8_t *)w->data + r * w->row_bytes;
            out[r * w->cols + c] = (double)(float)(element(w->dtype, row, c) * scale_of(w, r, c));
        }
    return out;
}

void oracle_multiply(double *y, const double *w, int64_t rows, int64_t cols, const double *x)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum[4] = {0};
        int64_t c = 0;
        for (; c + 4 <= cols; c += 4)
            for (int i = 0; i < 4; i++)
                sum[i] += w[r * cols + c + i] * x[c + i];
        for (; c < cols; c++)
            sum[0] += w[r * cols + c] * x[c];
        y[r] = sum[0] + sum[1] + sum[2] + sum[3];
    }
}

/* W x for every (wanted) token: [n][rows]. */
static double *project(const tamis_matrix *w, const double *x, int32_t n, const uint8_t *want)
{
    double *values = oracle_matrix(w), *y = take(n * w->rows, sizeof *y);
    for (int32_t t = 0; t < n; t++)
        if (want == NULL || want[t])
            oracle_multiply(y + t * w->rows, values, w->rows, w->cols, x + t * w->cols);
    free(values);
    return y;
}

void oracle_rmsnorm(double *y, const double *x, const float *weight, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    const double factor = 1 / sqrt(sum / (double)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor * (weight == NULL ? 1 : (double)weight[i]);
}

/* Nearest bf16, ties to even: 8 significant bits. */
static double round_bf16(double value)
{
    if (value == 0)
        return value;
    int exponent;
    frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8);
}

static void round_row(double *row, int32_t n, const oracle_attention_options *options)
{
    for (int32_t i = 0; options->bf16_rows && i < n; i++)
        row[i] = round_bf16((double)(float)row[i]);
}

/* ---------------------------------------------------------------- rotation */

void oracle_rope_frequencies(double *freq, int32_t rope_dim, const tamis_rope_config *config)
{
    const double pi = acos(-1), base = (double)config->theta;
    const double original = config->original_max_position, width = rope_dim;
    double low = 0, high = 0;
    if (config->yarn_factor > 1) {
        low = floor(width * log(original / ((double)config->beta_fast * 2 * pi)) / (2 * log(base)));
        high = ceil(width * log(original / ((double)config->beta_slow * 2 * pi)) / (2 * log(base)));
        low = low < 0 ? 0 : low;
        high = high > width - 1 ? width - 1 : high;
        high = high == low ? high + 0.001 : high;
    }
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        const double plain = 1 / pow(base, 2.0 * i / width);
        double ramp = 0, factor = 1;
        if (config->yarn_factor > 1) {
            ramp = (i - low) / (high - low);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            factor = (double)config->yarn_factor;
        }
        freq[i] = (double)(float)(plain / factor * ramp + plain * (1 - ramp));
    }
}

/* The last rope_head_dim of `width` channels, pairs (2i, 2i + 1); direction -1 undoes it. */
static void rotate(double *x, int32_t width, int32_t pos, double direction,
                   const tamis_dsa_config *config)
{
    double freq[512];
    double *part = x + width - config->rope_head_dim;
    oracle_rope_frequencies(freq, config->rope_head_dim, &config->rope);
    for (int32_t i = 0; i < config->rope_head_dim / 2; i++) {
        const double angle = (double)((float)pos * (float)freq[i]);
        const double a = part[2 * i], b = part[2 * i + 1];
        part[2 * i] = a * cos(angle) - direction * b * sin(angle);
        part[2 * i + 1] = direction * a * sin(angle) + b * cos(angle);
    }
}

/* ---------------------------------------------------------------- compressor */

/* Value u and score z of token `token`, channel `channel` of the projections. */
typedef struct slots {
    double value[256], score[256];
    int n;
} slots;

static void add_slot(slots *s, double value, double score)
{
    s->value[s->n] = value;
    s->score[s->n++] = score;
}

static double pooled(const slots *s)
{
    double max = s->score[0], sum = 0, total = 0;
    for (int i = 1; i < s->n; i++)
        max = fmax(max, s->score[i]);
    for (int i = 0; i < s->n; i++) {
        const double weight = exp(s->score[i] - max);
        sum += weight;
        total += weight * s->value[i];
    }
    return total / sum;
}

/* Rows [n / ratio][d] after pooling, norm and rotation at the first token of each window. */
static double *compress(const tamis_compressor_weights *w, const tamis_dsa_config *config,
                        int32_t d, const double *x, int32_t n)
{
    const int32_t r = config->compress_ratio, width = r == 4 ? 2 * d : d, n_rows = n / r;
    double *u = project(&w->wkv, x, n, NULL), *z = project(&w->wgate, x, n, NULL);
    double *rows = take((int64_t)n_rows * d, sizeof *rows);
    for (int32_t t = 0; t < n; t++)
        for (int32_t c = 0; c < width; c++)
            z[(int64_t)t * width + c] += (double)w->ape[t % r * width + c];
    for (int32_t j = 0; j < n_rows; j++) {
        double *row = rows + (int64_t)j * d;
        for (int32_t c = 0; c < d; c++) {
            slots s = {.n = 0};
            for (int32_t t = (j - 1) * r; r == 4 && j > 0 && t < j * r; t++)
                add_slot(&s, u[(int64_t)t * width + c], z[(int64_t)t * width + c]);
            for (int32_t t = j * r; t < (j + 1) * r; t++)
                add_slot(&s, u[(int64_t)t * width + width - d + c],
                         z[(int64_t)t * width + width - d + c]);
            row[c] = pooled(&s);
        }
        oracle_rmsnorm(row, row, w->norm, d, (double)config->rms_norm_eps);
        rotate(row, d, j * r, 1, config);
    }
    free(u);
    free(z);
    return rows;
}

/* ---------------------------------------------------------------- indexer */

static double dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void score_rows(oracle_attention *a, const tamis_dsa_layer *layer, const double *x,
                       const double *qr, const uint8_t *want)
{
    const tamis_dsa_config *c = &layer->config;
    const int32_t heads = c->index_n_heads, d = c->index_head_dim;
    double *q = project(&layer->weights.index_wq_b, qr, a->n, want);
    double *weight = project(&layer->weights.index_weights_proj, x, a->n, want);
    a->scores = take((int64_t)a->n * a->n_rows, sizeof *a->scores);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        for (int32_t h = 0; h < heads; h++)
            rotate(q + ((int64_t)t * heads + h) * d, d, t, 1, c);
        for (int32_t j = 0; j < (t + 1) / 4; j++) {
            double sum = 0;
            for (int32_t h = 0; h < heads; h++)
                sum += weight[(int64_t)t * heads + h] *
                       fmax(dot(q + ((int64_t)t * heads + h) * d, a->ikeys + (int64_t)j * d, d), 0);
            a->scores[(int64_t)t * a->n_rows + j] = sum / sqrt((double)d) / sqrt((double)heads);
        }
    }
    free(q);
    free(weight);
}

/* Row j is chosen if fewer than k visible rows are better: larger score, or equal and lower. */
static void choose_rows(oracle_attention *a, int32_t k, const uint8_t *want)
{
    a->topk = take((int64_t)a->n * k, sizeof *a->topk);
    for (int32_t t = 0; t < a->n; t++) {
        const double *score = a->scores + (int64_t)t * a->n_rows;
        const int32_t visible = (t + 1) / 4;
        double worst_in = INFINITY, best_out = -INFINITY, largest = 0;
        int32_t n = 0;
        for (int32_t j = 0; (want == NULL || want[t]) && j < visible; j++) {
            int32_t n_better = 0;
            for (int32_t i = 0; i < visible; i++)
                n_better += score[i] > score[j] || (score[i] == score[j] && i < j);
            if (n_better < k)
                a->topk[(int64_t)t * k + n++] = j;
            worst_in = n_better < k ? fmin(worst_in, score[j]) : worst_in;
            best_out = n_better < k ? best_out : fmax(best_out, score[j]);
            largest = fmax(largest, fabs(score[j]));
        }
        while (n < k)
            a->topk[(int64_t)t * k + n++] = -1;
        if (visible > k && (want == NULL || want[t]))
            a->index_margin = fmin(a->index_margin, (worst_in - best_out) / largest);
    }
}

/* ---------------------------------------------------------------- attention */

/* Softmax over `n` rows with the head's sink in the denominator. */
static void attend(double *out, const double *q, const double *const *rows, int32_t n, double sink,
                   int32_t d)
{
    double max = sink, *weight = take(n, sizeof *weight), sum;
    for (int32_t i = 0; i < n; i++) {
        weight[i] = dot(q, rows[i], d) / sqrt((double)d);
        max = fmax(max, weight[i]);
    }
    sum = exp(sink - max);
    for (int32_t i = 0; i < n; i++)
        sum += weight[i] = exp(weight[i] - max);
    memset(out, 0, (size_t)d * sizeof *out);
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < d; c++)
            out[c] += weight[i] / sum * rows[i][c];
    free(weight);
}

/* Everything the query at position t attends to: its window, then compressed or selected rows. */
static int32_t list_rows(const double **rows, const oracle_attention *a, const tamis_dsa_config *c,
                         const double *kv, const int32_t *topk, int32_t t)
{
    int32_t n = 0;
    for (int32_t s = 0; s <= t; s++)
        if (t - s < c->sliding_window)
            rows[n++] = kv + (int64_t)s * c->head_dim;
    const int32_t visible = c->compress_ratio == 0 ? 0 : (t + 1) / c->compress_ratio;
    for (int32_t j = 0; j < visible; j++) {
        bool is_chosen = c->compress_ratio == 128;
        for (int32_t i = 0; !is_chosen && topk != NULL && i < c->index_topk; i++)
            is_chosen = topk[(int64_t)t * c->index_topk + i] == j;
        if (is_chosen)
            rows[n++] = a->ckv + (int64_t)j * c->head_dim;
    }
    return n;
}

/* Group g of the low-rank projection sees the heads of group g only. */
static void project_output(double *out, const double *o, const tamis_dsa_config *c,
                           const double *wo_a, const double *wo_b)
{
    const int64_t rank = c->o_lora_rank, width = (int64_t)c->num_heads * c->head_dim / c->o_groups;
    double *low = take(c->o_groups * rank, sizeof *low);
    for (int32_t g = 0; g < c->o_groups; g++)
        oracle_multiply(low + g * rank, wo_a + g * rank * width, rank, width, o + g * width);
    oracle_multiply(out, wo_b, c->hidden_size, c->o_groups * rank, low);
    free(low);
}

static void attend_all(oracle_attention *a, const tamis_dsa_layer *layer, double *q,
                       const double *kv, const int32_t *topk, const uint8_t *want)
{
    const tamis_dsa_config *c = &layer->config;
    const int32_t d = c->head_dim;
    double *wo_a = oracle_matrix(&layer->weights.wo_a), *wo_b = oracle_matrix(&layer->weights.wo_b);
    double *o = take((int64_t)c->num_heads * d, sizeof *o);
    const double **rows = take(a->n + a->n_rows, sizeof *rows);
    for (int32_t t = 0; t < a->n; t++) {
        if (want != NULL && !want[t])
            continue;
        const int32_t n_rows = list_rows(rows, a, c, kv, topk, t);
        for (int32_t h = 0; h < c->num_heads; h++) {
            double *head = q + ((int64_t)t * c->num_heads + h) * d;
            oracle_rmsnorm(head, head, NULL, d, (double)c->rms_norm_eps);
            rotate(head, d, t, 1, c);
            attend(o + (int64_t)h * d, head, rows, n_rows, (double)layer->weights.attn_sink[h], d);
            rotate(o + (int64_t)h * d, d, t, -1, c);
        }
        project_output(a->out + (int64_t)t * c->hidden_size, o, c, wo_a, wo_b);
    }
    free(rows);
    free(o);
    free(wo_a);
    free(wo_b);
}

static void compress_all(oracle_attention *a, const tamis_dsa_layer *layer, const double *x,
                         const oracle_attention_options *options)
{
    const tamis_dsa_config *c = &layer->config;
    a->n_rows = a->n / c->compress_ratio;
    a->ckv = compress(&layer->weights.compressor, c, c->head_dim, x, a->n);
    round_row(a->ckv, a->n_rows * c->head_dim, options);
    if (c->compress_ratio == 4 && !c->reuse_topk) {
        a->ikeys = compress(&layer->weights.index_compressor, c, c->index_head_dim, x, a->n);
        round_row(a->ikeys, a->n_rows * c->index_head_dim, options);
    }
}

oracle_attention oracle_attention_run(const tamis_dsa_layer *layer, const double *x, int32_t n,
                                      const oracle_attention_options *options)
{
    const oracle_attention_options none = {0};
    const tamis_dsa_config *c = &layer->config;
    const double eps = (double)c->rms_norm_eps;
    options = options == NULL ? &none : options;
    oracle_attention a = {.n = n, .index_margin = 1};
    a.out = take((int64_t)n * c->hidden_size, sizeof *a.out);
    double *qr = project(&layer->weights.wq_a, x, n, options->want);
    double *kv = project(&layer->weights.wkv, x, n, NULL);
    for (int32_t t = 0; t < n; t++) {
        double *row = kv + (int64_t)t * c->head_dim, *rank = qr + (int64_t)t * c->q_lora_rank;
        oracle_rmsnorm(row, row, layer->weights.kv_norm, c->head_dim, eps);
        rotate(row, c->head_dim, t, 1, c);
        oracle_rmsnorm(rank, rank, layer->weights.q_norm, c->q_lora_rank, eps);
    }
    round_row(kv, n * c->head_dim, options);
    if (c->compress_ratio != 0)
        compress_all(&a, layer, x, options);
    if (a.ikeys != NULL) {
        score_rows(&a, layer, x, qr, options->want);
        choose_rows(&a, c->index_topk, options->want);
    }
    double *q = project(&layer->weights.wq_b, qr, n, options->want);
    attend_all(&a, layer, q, kv, options->given_topk != NULL ? options->given_topk : a.topk,
               options->want);
    free(q);
    free(kv);
    free(qr);
    return a;
}

void oracle_attention_free(oracle_attention *attention)
{
    free(attention->out);
    free(attention->ckv);
    free(attention->ikeys);
    free(attention->scores);
    free(attention->topk);
    *attention = (oracle_attention){0};
}
