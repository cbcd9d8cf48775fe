/* Comparing, sums, norms, rotations and linear layers: see profile_ref_sfa.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_sfa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/linear.h"
#include "support/oracle_math.h"

/* One rounding to f32; the little more pays for products of errors. */
#define U (0x1p-24 * 1.001)

/* ---------------------------------------------------------------- comparing */

profile_case profile_case_open(const char *name, tamis_profile profile, tamis_dtype kv_cache_dtype)
{
    profile_case c = {.name = name, .profile = profile, .layer = -1};
    const bool is_official = profile == TAMIS_PROFILE_OFFICIAL;
    c.kv = is_official                        ? LOWBIT_ROW_656_FLASHMLA
           : kv_cache_dtype == TAMIS_DTYPE_I8 ? LOWBIT_ROW_656_ASCEND
                                              : LOWBIT_ROW_BF16;
    tamis_error err;
    oracle_stop_on(tamis_team_open(&c.team, 1, &err), &err);
    c.index_key = is_official ? LOWBIT_ROW_INDEX_FP8 : LOWBIT_ROW_INDEX_INT8;
    return c;
}

void profile_case_close(profile_case *c)
{
    int64_t n = 0, n_open = 0;
    double worst = 0;
    for (int32_t i = 0; i < c->n_tallies; i++) {
        n += c->tallies[i].n;
        n_open += c->tallies[i].n_open;
        worst = fmax(worst, c->tallies[i].worst);
    }
    printf("%s, %s: %lld values of %d stages, %lld open; f32 values within %.2f of their bounds\n",
           c->name, tamis_profile_name(c->profile), (long long)n, c->n_tallies, (long long)n_open,
           worst);
    tamis_team_close(&c->team);
    free(c->q);
    c->q = NULL;
}

/* Most calls name the stage of the call before. */
static profile_tally *tally_of(profile_case *c, const char *stage)
{
    if (c->n_tallies > 0 && c->tallies[c->latest].stage == stage)
        return &c->tallies[c->latest];
    for (c->latest = 0; c->latest < c->n_tallies; c->latest++)
        if (strcmp(c->tallies[c->latest].stage, stage) == 0)
            return &c->tallies[c->latest];
    assert_true(c->n_tallies < (int32_t)(sizeof c->tallies / sizeof *c->tallies));
    c->tallies[c->n_tallies++].stage = stage;
    return &c->tallies[c->latest];
}

static void fail_at(const profile_case *c, const char *stage, int64_t row, int64_t channel,
                    double seen, double low, double high)
{
    fail_msg("%s, %s: layer %d, stage %s, row %lld, channel %lld: %.9g, expected %.9g .. %.9g",
             c->name, tamis_profile_name(c->profile), c->layer, stage, (long long)row,
             (long long)channel, seen, low, high);
}

profile_value profile_bf16(profile_value x)
{
    const double low = lowbit_bf16(x.v - x.e), high = lowbit_bf16(x.v + x.e);
    return (profile_value){(low + high) / 2, (high - low) / 2};
}

void profile_expect_f32(profile_case *c, const char *stage, int64_t row, int64_t channel,
                        float seen, profile_value x)
{
    const double error = fabs((double)seen - x.v);
    profile_tally *t = tally_of(c, stage);
    t->n++;
    if (!(error <= x.e))
        fail_at(c, stage, row, channel, (double)seen, x.v - x.e, x.v + x.e);
    if (error > 0)
        t->worst = fmax(t->worst, error / x.e);
}

/* A BF16 value nearer to x, error included, than the nearest border of the rounding: half a step,
 * a quarter below a power of two. The quick answer to nearly all. */
static bool is_plainly(float seen, profile_value x)
{
    uint32_t bits;
    memcpy(&bits, &seen, sizeof bits);
    const int exponent = (int)(bits >> 23 & 255);
    const bool is_power = (bits & 0x7f0000) == 0;
    if ((bits & 0xffff) != 0 || exponent < 16 || exponent == 255)
        return false;
    bits = (uint32_t)(exponent - 8) << 23; /* 2^-8 of the power of two below */
    float half;
    memcpy(&half, &bits, sizeof half);
    return fabs((double)seen - x.v) + x.e < (double)(is_power ? half / 2 : half);
}

void profile_expect_bf16(profile_case *c, const char *stage, int64_t row, int64_t channel,
                         float seen, profile_value x)
{
    profile_tally *t = tally_of(c, stage);
    t->n++;
    if (is_plainly(seen, x))
        return;
    const double low = lowbit_bf16(x.v - x.e), high = lowbit_bf16(x.v + x.e);
    t->n_open += low != high;
    if (!((double)seen >= low && (double)seen <= high && lowbit_bf16((double)seen) == (double)seen))
        fail_at(c, stage, row, channel, (double)seen, low, high);
}

void profile_expect_same(profile_case *c, const char *stage, int64_t row, int64_t channel,
                         double seen, double expected)
{
    tally_of(c, stage)->n++;
    if (!(seen == expected))
        fail_at(c, stage, row, channel, seen, expected, expected);
}

void profile_expect_bytes(profile_case *c, const char *stage, int64_t row, const uint8_t *seen,
                          const uint8_t *expected, int64_t n)
{
    tally_of(c, stage)->n += n;
    for (int64_t i = 0; i < n; i++)
        if (seen[i] != expected[i])
            fail_at(c, stage, row, i, seen[i], expected[i], expected[i]);
}

void profile_count(profile_case *c, const char *stage, bool is_open)
{
    profile_tally *t = tally_of(c, stage);
    t->n++;
    t->n_open += is_open;
}

/* ---------------------------------------------------------------- sums, norms, rotations */

/* 16 accumulators; `run` terms in a row go to one. */
static profile_value lanes(const double *a, const double *b, int64_t n, int run)
{
    double acc[16] = {0}, sizes[16] = {0}, partials = 0;
    for (int64_t first = 0; first < n; first += 16 * run)
        for (int i = 0; i < 16; i++)
            for (int64_t k = first + i * run; k < first + (i + 1) * run && k < n; k++) {
                acc[i] += a[k] * b[k];
                sizes[i] += fabs(acc[i]);
            }
    for (int i = 0; i < 16; i++)
        partials += sizes[i];
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) {
            acc[i] += acc[i + step];
            partials += fabs(acc[i]);
        }
    return (profile_value){acc[0], partials * U};
}

profile_value profile_lanes16(const double *a, const double *b, int64_t n)
{
    return lanes(a, b, n, 1);
}

profile_value profile_quads16(const double *a, const double *b, int64_t n)
{
    return lanes(a, b, n, 4);
}

profile_value profile_chain(const double *a, const double *b, int64_t n)
{
    double sum = 0, partials = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        partials += fabs(sum);
    }
    return (profile_value){sum, partials * U};
}

/* Squares: lanes16, all terms positive, so the error is relative. Then: / n, + eps, sqrt, 1 /, two
 * products. */
void profile_rmsnorm(profile_value *out, const float *x, const float *weight, int64_t n, double eps)
{
    double *wide = oracle_take(n, sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    const profile_value squares = profile_lanes16(wide, wide, n);
    const double factor = 1 / sqrt(squares.v / (double)n + (double)(float)eps);
    const double relative = squares.v > 0 ? squares.e / squares.v / 2 + 5 * U : 5 * U;
    for (int64_t i = 0; i < n; i++) {
        out[i].v = wide[i] * factor * (weight == NULL ? 1 : (double)weight[i]);
        out[i].e = fabs(out[i].v) * relative;
    }
    free(wide);
}

/* cos and sin rounded to f32, a product, an fma; the angle is the f32 product that the model has.
 */
static void turn(profile_value *a, profile_value *b, double angle)
{
    const double co = cos(angle), si = sin(angle);
    const profile_value first = *a, second = *b;
    const double slack = 3 * U * (fabs(first.v) + fabs(second.v));
    *a = (profile_value){first.v * co - second.v * si,
                         first.e * fabs(co) + second.e * fabs(si) + slack};
    *b = (profile_value){first.v * si + second.v * co,
                         first.e * fabs(si) + second.e * fabs(co) + slack};
}

/* theta^(2j/d), its inverse and YaRN's mix, each step an f32 number as in the vendor's code. */
static float rope_frequency(int32_t j, int32_t rope, const tamis_rope_config *c)
{
    const float exponent = (float)(2 * j) / (float)rope;
    const float plain = 1.0f / (float)pow((double)c->theta, (double)exponent);
    if (c->yarn_factor <= 1)
        return plain;
    double turns[2];
    for (int i = 0; i < 2; i++) {
        const double rounds = i == 0 ? (double)c->beta_fast : (double)c->beta_slow;
        turns[i] = rope * log(c->original_max_position / (rounds * 2 * 3.14159265358979323846)) /
                   (2 * log((double)c->theta));
    }
    const double low = fmax(floor(turns[0]), 0), high = fmin(ceil(turns[1]), rope - 1);
    const double ramp = fmin(fmax((j - low) / (high == low ? 0.001 : high - low), 0), 1);
    const float kept = 1.0f - (float)ramp;
    return plain / c->yarn_factor * (1.0f - kept) + plain * kept;
}

void profile_rope(profile_value *x, int32_t rope, int32_t pos, bool is_interleaved,
                  const tamis_rope_config *config)
{
    for (int32_t j = 0; j < rope / 2; j++) {
        const double angle = (double)((float)pos * rope_frequency(j, rope, config));
        turn(is_interleaved ? x + 2 * j : x + j, is_interleaved ? x + 2 * j + 1 : x + j + rope / 2,
             angle);
    }
}

/* ---------------------------------------------------------------- linear layers */

static double integer_element(const tamis_matrix *w, int64_t r, int64_t col)
{
    const int8_t *data = w->data;
    if (w->dtype == TAMIS_DTYPE_I8)
        return data[r * w->row_bytes + col];
    const int byte = (uint8_t)data[r / 2 * w->row_bytes + col];
    const int nibble = r % 2 == 0 ? byte & 15 : byte >> 4;
    return nibble >= 8 ? nibble - 16 : nibble;
}

static bool is_integer(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4;
}

double *profile_matrix(const tamis_matrix *w)
{
    if (!is_integer(w))
        return oracle_matrix(w);
    double *out = oracle_take(w->rows * w->cols, sizeof *out);
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t col = 0; col < w->cols; col++)
            out[r * w->cols + col] = integer_element(w, r, col);
    return out;
}

static double row_scale(const tamis_matrix *w, int64_t r)
{
    float scale;
    assert_int_equal(w->scale_dtype, TAMIS_DTYPE_F32);
    memcpy(&scale, (const uint8_t *)w->scale + r / w->block_rows * w->scale_row_bytes,
           sizeof scale);
    return (double)scale;
}

/* x as the product reads it; returns the scale of its codes, 1 where there is none. */
static double quantize_input(double *codes, const profile_case *c, const profile_linear *job,
                             const float *x)
{
    const tamis_matrix *w = job->w;
    double *wide = oracle_take(w->cols, sizeof *wide), scale = 1;
    for (int64_t i = 0; i < w->cols; i++)
        codes[i] = wide[i] = (double)x[i];
    if (is_integer(w) && w->input == NULL)
        scale = lowbit_quantize(codes, wide, w->cols, LOWBIT_INT8, LOWBIT_AMAX);
    else if (is_integer(w))
        lowbit_quantize_static(codes, wide, w->cols, w->input->input_scale, w->input->input_offset,
                               false);
    else if ((w->dtype == TAMIS_DTYPE_F8_E4M3 || w->dtype == TAMIS_DTYPE_F4_E2M1) &&
             !(job->flags & PROFILE_KEEP_INPUT))
        lowbit_round_trip(codes, wide, w->cols, c->profile == TAMIS_PROFILE_OFFICIAL ? 128 : 32,
                          LOWBIT_E4M3, LOWBIT_POW2);
    free(wide);
    return scale;
}

/* ((float)(sum + bias) row scale) token scale, each step f32. */
static double integer_row(const tamis_matrix *w, int64_t r, const double *row, const double *codes,
                          double token_scale)
{
    double sum = oracle_dot(row, codes, (int32_t)w->cols); /* below 2^53: exact */
    if (w->input == NULL)
        return lowbit_f32(lowbit_f32(lowbit_f32(sum) * row_scale(w, r)) * token_scale);
    sum += w->input->quant_bias[r];
    return lowbit_f32(lowbit_f32(sum) * (double)w->input->deq_scale[r]);
}

static void check_token(profile_case *c, const char *stage, const profile_linear *job,
                        const double *w, int64_t token)
{
    const int64_t cols = job->w->cols;
    const float *y = job->y + token * job->y_stride;
    double *codes = oracle_take(cols, sizeof *codes);
    const double scale = quantize_input(codes, c, job, job->x + token * job->x_stride);
    for (int64_t r = job->row_begin; r < job->row_end; r++) {
        const double *row = w + r * cols;
        const int64_t i = r - job->row_begin;
        if (is_integer(job->w))
            profile_expect_same(c, stage, token, i, (double)y[i],
                                lowbit_bf16(integer_row(job->w, r, row, codes, scale)));
        else if (job->flags & PROFILE_KEEP_OUTPUT)
            profile_expect_f32(c, stage, token, i, y[i], profile_quads16(row, codes, cols));
        else
            profile_expect_bf16(c, stage, token, i, y[i], profile_quads16(row, codes, cols));
    }
    free(codes);
}

void profile_check_linear(profile_case *c, const char *stage, const profile_linear *job)
{
    double *w = profile_matrix(job->w);
    for (int64_t t = 0; t < job->n; t++)
        check_token(c, stage, job, w, t);
    free(w);
}

float *profile_replay_linear(profile_case *c, const char *stage, const tamis_matrix *w,
                             const float *x, int64_t n, int flags)
{
    float *y = oracle_take(n * w->rows, sizeof *y);
    tamis_exec exec = {.team = c->team,
                       .kernels = tamis_kernels_current(),
                       .scratch_floats = (TAMIS_LINEAR_SCRATCH((size_t)w->cols) + 15) / 16 * 16,
                       .profile = c->profile,
                       .input_bytes = tamis_linear_input_bytes(1, n, w->cols)};
    exec.scratch = aligned_alloc(64, exec.scratch_floats * sizeof *exec.scratch + 64);
    exec.inputs = aligned_alloc(64, (exec.input_bytes + 63) / 64 * 64);
    assert_true(exec.scratch != NULL && exec.inputs != NULL);
    tamis_linear_job job = tamis_linear_full(w, x, y, n);
    job.keep_input = flags & PROFILE_KEEP_INPUT;
    job.keep_output = flags & PROFILE_KEEP_OUTPUT;
    tamis_linear_run(&exec, &job, 1);
    free(exec.inputs);
    free(exec.scratch);
    profile_check_linear(c, stage,
                         &(profile_linear){.w = w,
                                           .row_end = w->rows,
                                           .x = x,
                                           .y = y,
                                           .x_stride = w->cols,
                                           .y_stride = w->rows,
                                           .n = n,
                                           .flags = flags});
    return y;
}
