/* Arithmetic of the double-precision references: see oracle_math.h. */
#include "support/oracle_math.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *oracle_take(int64_t n, size_t size)
{
    void *block = calloc((size_t)n + 1, size);
    if (block == NULL) {
        fprintf(stderr, "oracle: out of memory\n");
        abort();
    }
    return block;
}

void oracle_stop_on(tamis_status status, const tamis_error *err)
{
    if (status == TAMIS_STATUS_OK)
        return;
    fprintf(stderr, "oracle: %s: %s\n", tamis_status_name(status), err->text);
    abort();
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
    double *out = oracle_take(w->rows * w->cols, sizeof *out);
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

double *oracle_project(const tamis_matrix *w, const double *x, int32_t n, const uint8_t *want)
{
    double *values = oracle_matrix(w), *y = oracle_take(n * w->rows, sizeof *y);
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

double oracle_round_bf16(double value)
{
    if (value == 0)
        return value;
    int exponent;
    frexp(value, &exponent);
    return ldexp(nearbyint(ldexp(value, 8 - exponent)), exponent - 8);
}

double oracle_dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
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

/* ---------------------------------------------------------------- experts */

double oracle_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

oracle_expert oracle_expert_open(const tamis_expert_weights *w)
{
    oracle_expert e = {.hidden = w->w1.cols, .width = w->w1.rows};
    if (w->w1.rows > 0) {
        e.w1 = oracle_matrix(&w->w1);
        e.w2 = oracle_matrix(&w->w2);
        e.w3 = oracle_matrix(&w->w3);
    }
    return e;
}

void oracle_expert_close(oracle_expert *e)
{
    free(e->w1);
    free(e->w2);
    free(e->w3);
}

void oracle_expert_add(double *y, const oracle_expert *e, const double *x, double weight,
                       double limit)
{
    double *g = oracle_take(e->width, sizeof *g), *u = oracle_take(e->width, sizeof *u);
    double *out = oracle_take(e->hidden, sizeof *out);
    oracle_multiply(g, e->w1, e->width, e->hidden, x);
    oracle_multiply(u, e->w3, e->width, e->hidden, x);
    for (int64_t i = 0; i < e->width; i++) {
        const double gate = fmin(g[i], limit);
        u[i] = gate * oracle_sigmoid(gate) * fmax(fmin(u[i], limit), -limit);
    }
    oracle_multiply(out, e->w2, e->hidden, e->width, u);
    for (int64_t i = 0; i < e->hidden; i++)
        y[i] += weight * out[i];
    free(g);
    free(u);
    free(out);
}

void oracle_weigh_experts(double *weights, const int32_t *ids, const double *score,
                          const tamis_model_config *config)
{
    double sum = 1e-20;
    for (int32_t i = 0; i < config->num_experts_per_tok; i++)
        sum += weights[i] = score[ids[i]];
    for (int32_t i = 0; i < config->num_experts_per_tok; i++)
        weights[i] *= (double)config->routed_scaling_factor / (config->norm_topk_prob ? sum : 1);
}
