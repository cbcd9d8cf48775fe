/* Spans and what is done with them: see profile_ref_v4_math.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_ref_v4_math.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/oracle_math.h"

void *pv4_take(int64_t n, size_t size)
{
    return oracle_take(n, size);
}

pv4_span pv4_around(double centre, double radius)
{
    return (pv4_span){centre - radius, centre + radius};
}

double pv4_size(pv4_span x)
{
    return fmax(fabs(x.lo), fabs(x.hi));
}

pv4_span pv4_add(pv4_span a, pv4_span b)
{
    return (pv4_span){a.lo + b.lo, a.hi + b.hi};
}

/* 0 times infinity is 0: maxima start at -inf with a weight of 0. */
static double product(double a, double b)
{
    return a == 0 || b == 0 ? 0 : a * b;
}

pv4_span pv4_mul(pv4_span a, pv4_span b)
{
    const double c[4] = {product(a.lo, b.lo), product(a.lo, b.hi), product(a.hi, b.lo),
                         product(a.hi, b.hi)};
    return (pv4_span){fmin(fmin(c[0], c[1]), fmin(c[2], c[3])),
                      fmax(fmax(c[0], c[1]), fmax(c[2], c[3]))};
}

pv4_span pv4_f32(pv4_span x)
{
    return (pv4_span){lowbit_f32(x.lo), lowbit_f32(x.hi)};
}

pv4_span pv4_bf16(pv4_span x)
{
    return (pv4_span){lowbit_bf16(x.lo), lowbit_bf16(x.hi)};
}

pv4_span pv4_f16(pv4_span x)
{
    return (pv4_span){lowbit_f16(x.lo), lowbit_f16(x.hi)};
}

void pv4_bf16_all(pv4_span *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = pv4_bf16(x[i]);
}

pv4_span pv4_loose(pv4_span x, double roundings)
{
    return (pv4_span){x.lo - fabs(x.lo) * roundings * PV4_U, x.hi + fabs(x.hi) * roundings * PV4_U};
}

/* exp: 1.1 ulp; an ulp is 2 u at most. */
pv4_span pv4_exp(pv4_span x)
{
    return pv4_loose((pv4_span){exp(x.lo), exp(x.hi)}, 2.2);
}

pv4_span *pv4_numbers(const float *x, int64_t n)
{
    pv4_span *out = pv4_take(n, sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = pv4_number((double)x[i]);
    return out;
}

/* Roundings of a sum of n terms on 16 lanes, by ones or by fours. */
static double lane_roundings(int64_t n)
{
    return (double)((n + 63) / 64 * 4 + 4);
}

/* ---------------------------------------------------------------- norms, rotation, Hadamard */

static pv4_span square(pv4_span x)
{
    const double a = x.lo * x.lo, b = x.hi * x.hi;
    return (pv4_span){x.lo <= 0 && x.hi >= 0 ? 0 : fmin(a, b), fmax(a, b)};
}

/* 1 / sqrt(x): a falling function, three roundings. */
static pv4_span inverse_root(pv4_span x)
{
    return (pv4_span){1 / sqrt(x.hi), 1 / sqrt(x.lo)};
}

void pv4_rmsnorm(pv4_span *x, const float *weight, int64_t n, double eps)
{
    pv4_span sum = pv4_number(0);
    for (int64_t i = 0; i < n; i++)
        sum = pv4_add(sum, square(x[i]));
    sum = pv4_loose(sum, lane_roundings(n) + 1);
    sum = (pv4_span){sum.lo / (double)n + eps, sum.hi / (double)n + eps};
    const pv4_span factor = pv4_loose(inverse_root(pv4_loose(sum, 1)), 2);
    for (int64_t i = 0; i < n; i++) {
        x[i] = pv4_f32(pv4_mul(x[i], factor));
        if (weight != NULL)
            x[i] = pv4_f32(pv4_mul(x[i], pv4_number((double)weight[i])));
    }
}

void pv4_rmsnorm_bf16(pv4_span *x, int64_t n, double eps)
{
    pv4_span sum = pv4_number(0);
    for (int64_t i = 0; i < n; i++)
        sum = pv4_add(sum, pv4_bf16(square(x[i])));
    sum = pv4_loose(sum, lane_roundings(n) + 1);
    const pv4_span mean = pv4_bf16((pv4_span){sum.lo / (double)n, sum.hi / (double)n});
    const pv4_span shifted = pv4_bf16(pv4_f32((pv4_span){mean.lo + eps, mean.hi + eps}));
    const pv4_span factor = pv4_bf16(pv4_loose(inverse_root(shifted), 2));
    for (int64_t i = 0; i < n; i++)
        x[i] = pv4_bf16(pv4_mul(x[i], factor));
}

/* As the vendor's code computes them: every step an f32 number. */
static void frequencies(float *freq, int32_t rope_dim, const tamis_rope_config *rope)
{
    const double base = (double)rope->theta, turn = 2 * acos(-1);
    const double original = rope->original_max_position, width = rope_dim;
    double low = 0, high = 0;
    if (rope->yarn_factor > 1) {
        low = floor(width * log(original / ((double)rope->beta_fast * turn)) / (2 * log(base)));
        high = ceil(width * log(original / ((double)rope->beta_slow * turn)) / (2 * log(base)));
        low = fmax(low, 0);
        high = fmin(high, width - 1);
        high = high == low ? high + 0.001 : high;
    }
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        const float power = (float)pow(base, (double)((float)(2 * i) / (float)rope_dim));
        freq[i] = 1 / power;
        if (rope->yarn_factor > 1) {
            const float kept = 1 - (float)fmax(fmin((i - low) / (high - low), 1), 0);
            const float slow = freq[i] / rope->yarn_factor * (1 - kept), fast = freq[i] * kept;
            freq[i] = slow + fast;
        }
    }
}

/* Two f32 roundings and two of cos and sin (0.501 ulp each). */
static pv4_span turned(pv4_span a, double by_a, pv4_span b, double by_b)
{
    const pv4_span sum = pv4_add(pv4_mul(a, pv4_number(by_a)), pv4_mul(b, pv4_number(by_b)));
    const double terms = pv4_size(a) * fabs(by_a) + pv4_size(b) * fabs(by_b);
    return (pv4_span){sum.lo - 3.1 * PV4_U * terms, sum.hi + 3.1 * PV4_U * terms};
}

void pv4_rotate(pv4_span *x, int32_t width, int32_t rope_dim, const tamis_rope_config *rope,
                int32_t pos, bool inverse)
{
    float freq[512];
    pv4_span *part = x + width - rope_dim;
    frequencies(freq, rope_dim, rope);
    for (int32_t i = 0; i < rope_dim / 2 && pos != 0; i++) {
        const double angle = (double)((float)pos * freq[i]);
        const double c = cos(angle), s = inverse ? -sin(angle) : sin(angle);
        const pv4_span a = part[2 * i], b = part[2 * i + 1];
        part[2 * i] = turned(a, c, b, -s);
        part[2 * i + 1] = turned(a, s, b, c);
    }
}

void pv4_hadamard(pv4_span *x, int32_t n)
{
    double *lo = pv4_take(n, sizeof *lo), *half = pv4_take(n, sizeof *half);
    double *sum = pv4_take(n, sizeof *sum);
    double radius = 0, terms = 0;
    for (int32_t i = 0; i < n; i++) {
        lo[i] = (x[i].lo + x[i].hi) / 2;
        half[i] = (x[i].hi - x[i].lo) / 2;
        radius += half[i];
        terms += pv4_size(x[i]);
    }
    lowbit_hadamard(sum, lo, n);
    for (int32_t i = 0; i < n; i++)
        x[i] = pv4_around(sum[i], radius + log2(n) * PV4_U * terms);
    free(lo);
    free(half);
    free(sum);
}

/* ---------------------------------------------------------------- linear layers */

static bool is_integer(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4;
}

/* Element of an I8 or I4 matrix, unscaled; I4: two rows per byte, the low nibble is the even one.
 */
static double integer_at(const tamis_matrix *w, int64_t r, int64_t c)
{
    const uint8_t *data = w->data;
    if (w->dtype == TAMIS_DTYPE_I8)
        return (double)(int8_t)data[r * w->row_bytes + c];
    const uint8_t byte = data[r / 2 * w->row_bytes + c];
    const int nibble = r % 2 == 0 ? byte & 15 : byte >> 4;
    return nibble < 8 ? nibble : nibble - 16;
}

pv4_weight pv4_weight_open(const tamis_matrix *w)
{
    pv4_weight weight = {.w = w};
    if (!is_integer(w)) {
        weight.values = oracle_matrix(w);
        return weight;
    }
    weight.values = pv4_take(w->rows * w->cols, sizeof *weight.values);
    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t c = 0; c < w->cols; c++)
            weight.values[r * w->cols + c] = integer_at(w, r, c);
    return weight;
}

void pv4_weight_close(pv4_weight *weight)
{
    free(weight->values);
    *weight = (pv4_weight){.w = NULL};
}

/* Exponent of the lowest bit that is set. */
static int lowest_bit(double x)
{
    int exponent;
    int64_t mantissa = (int64_t)ldexp(frexp(x, &exponent), 53);
    for (exponent -= 53; mantissa % 2 == 0; exponent++)
        mantissa /= 2;
    return exponent;
}

/*
 * Whether every partial sum of the terms, in any order, is an f32 number: all are multiples of one
 * power of two and together below 2^24 of it. Sums of FP8 times FP4 often are, and then lie on
 * rounding borders more often than other numbers.
 */
static bool is_exact_sum(const double *w, const pv4_span *x, int64_t n, double terms)
{
    int low = 1024;
    for (int64_t i = 0; i < n; i++) {
        if (pv4_is_open(x[i]))
            return false;
        const int bit = w[i] * x[i].lo == 0 ? low : lowest_bit(w[i] * x[i].lo);
        low = bit < low ? bit : low;
    }
    return terms < ldexp(1, 24 + low);
}

/* Floats: fma on 16 lanes. */
static pv4_span dot_row(const double *w, const pv4_span *x, int64_t n)
{
    double centre = 0, radius = 0, terms = 0;
    for (int64_t i = 0; i < n; i++) {
        const double size = fabs(w[i]);
        centre += w[i] * (x[i].lo + x[i].hi) / 2;
        radius += size * (x[i].hi - x[i].lo) / 2;
        terms += size * pv4_size(x[i]);
    }
    const pv4_span sum = pv4_around(centre, radius + lane_roundings(n) * PV4_U * terms);
    if (pv4_is_open(pv4_bf16(sum)) && is_exact_sum(w, x, n, terms))
        return pv4_number(centre);
    return sum;
}

/* Integers: the sum is exact. */
static pv4_span integer_sum(const double *w, const pv4_span *x, int64_t n)
{
    double centre = 0, radius = 0; /* twice of both: whole numbers */
    for (int64_t i = 0; i < n; i++) {
        centre += w[i] * (x[i].lo + x[i].hi);
        radius += fabs(w[i]) * (x[i].hi - x[i].lo);
    }
    return (pv4_span){(centre - radius) / 2, (centre + radius) / 2};
}

static float f32_at(const void *data, int64_t i)
{
    float value;
    memcpy(&value, (const char *)data + 4 * i, sizeof value);
    return value;
}

static void linear_dynamic(pv4_span *y, const pv4_weight *w, int64_t begin, int64_t end,
                           const pv4_span *x)
{
    const int64_t cols = w->w->cols;
    pv4_span *codes = pv4_take(cols, sizeof *codes);
    const pv4_span token = pv4_quantize(codes, x, cols, LOWBIT_INT8, LOWBIT_AMAX);
    for (int64_t r = begin; r < end; r++) {
        const double row = (double)f32_at((const char *)w->w->scale + r * w->w->scale_row_bytes, 0);
        const pv4_span sum = pv4_f32(integer_sum(w->values + r * cols, codes, cols));
        y[r - begin] = pv4_f32(pv4_mul(pv4_f32(pv4_mul(sum, pv4_number(row))), token));
    }
    free(codes);
}

static void linear_static(pv4_span *y, const pv4_weight *w, int64_t begin, int64_t end,
                          const pv4_span *x)
{
    const tamis_static_quant *q = w->w->input;
    const int64_t cols = w->w->cols;
    pv4_span *codes = pv4_take(cols, sizeof *codes);
    for (int64_t i = 0; i < cols; i++) {
        lowbit_quantize_static(&codes[i].lo, &x[i].lo, 1, q->input_scale, q->input_offset, false);
        lowbit_quantize_static(&codes[i].hi, &x[i].hi, 1, q->input_scale, q->input_offset, false);
    }
    for (int64_t r = begin; r < end; r++) {
        const pv4_span sum = pv4_add(integer_sum(w->values + r * cols, codes, cols),
                                     pv4_number((double)q->quant_bias[r]));
        y[r - begin] = pv4_f32(pv4_mul(pv4_f32(sum), pv4_number((double)q->deq_scale[r])));
    }
    free(codes);
}

/* x through FP8 and back, groups of `group`. */
static void round_fp8(pv4_span *y, const pv4_span *x, int64_t n, int64_t group)
{
    for (int64_t first = 0; first < n; first += group) {
        const int64_t count = n - first < group ? n - first : group;
        const pv4_span scale = pv4_quantize(y + first, x + first, count, LOWBIT_E4M3, LOWBIT_POW2);
        for (int64_t i = first; i < first + count; i++)
            y[i] = pv4_mul(y[i], scale);
    }
}

void pv4_linear(pv4_span *y, const pv4_weight *w, int64_t begin, int64_t end, const pv4_span *x,
                pv4_input input, tamis_profile profile)
{
    const tamis_matrix *m = w->w;
    if (is_integer(m)) {
        if (m->input != NULL)
            linear_static(y, w, begin, end, x);
        else
            linear_dynamic(y, w, begin, end, x);
        return;
    }
    const bool is_low = m->dtype == TAMIS_DTYPE_F8_E4M3 || m->dtype == TAMIS_DTYPE_F4_E2M1;
    pv4_span *rounded = NULL;
    if (is_low && input == PV4_TABLE) {
        rounded = pv4_take(m->cols, sizeof *rounded);
        round_fp8(rounded, x, m->cols, profile == TAMIS_PROFILE_OFFICIAL ? 128 : 32);
        x = rounded;
    }
    for (int64_t r = begin; r < end; r++)
        y[r - begin] = dot_row(w->values + r * m->cols, x, m->cols);
    free(rounded);
}

/* ---------------------------------------------------------------- quantisation */

/* Scale of the group when every magnitude is its smallest, or its largest. */
static double scale_at_end(const pv4_span *x, int64_t n, bool largest, lowbit_kind kind,
                           lowbit_rule rule)
{
    double amax = 0;
    for (int64_t i = 0; i < n; i++) {
        const double low = x[i].lo <= 0 && x[i].hi >= 0 ? 0 : fmin(fabs(x[i].lo), fabs(x[i].hi));
        amax = fmax(amax, largest ? pv4_size(x[i]) : low);
    }
    return lowbit_scale(&amax, 1, kind, rule);
}

static double code_of(double x, double scale, lowbit_kind kind)
{
    const double top = kind == LOWBIT_E4M3 ? 448 : kind == LOWBIT_E2M1 ? 6 : 127;
    const double clamped = scale == 0 ? 0 : fmax(fmin(lowbit_f32(x / scale), top), -top);
    return kind == LOWBIT_E4M3   ? lowbit_e4m3(clamped)
           : kind == LOWBIT_E2M1 ? lowbit_e2m1(clamped)
                                 : nearbyint(clamped);
}

/* Codes rise with x and fall in size with the scale, so the ends of both decide. */
pv4_span pv4_quantize(pv4_span *codes, const pv4_span *x, int64_t n, lowbit_kind kind,
                      lowbit_rule rule)
{
    const pv4_span scale = {scale_at_end(x, n, false, kind, rule),
                            scale_at_end(x, n, true, kind, rule)};
    for (int64_t i = 0; i < n; i++) {
        const pv4_span at = x[i]; /* codes may be x */
        codes[i].lo = fmin(code_of(at.lo, scale.lo, kind), code_of(at.lo, scale.hi, kind));
        codes[i].hi = fmax(code_of(at.hi, scale.lo, kind), code_of(at.hi, scale.hi, kind));
    }
    return scale;
}

/* ---------------------------------------------------------------- comparison */

static int stage_of(pv4_report *report, const char *name)
{
    for (int i = 0; i < report->n_stages; i++)
        if (strcmp(report->stages[i].name, name) == 0)
            return i;
    if (report->n_stages == PV4_MAX_STAGES)
        fail_msg("more than %d stages", PV4_MAX_STAGES);
    report->stages[report->n_stages].name = name;
    return report->n_stages++;
}

static void check_value(pv4_report *report, const char *stage, int64_t token, int64_t i,
                        double seen, pv4_span expected)
{
    const int s = stage_of(report, stage);
    report->stages[s].n++;
    report->stages[s].n_open += pv4_is_open(expected);
    if (!(seen >= expected.lo && seen <= expected.hi))
        fail_msg("%s, profile %s, layer %d, stage %s, row %lld, value %lld: %.9g, expected %.9g "
                 "to %.9g",
                 report->folder, report->profile, report->layer, stage, (long long)token,
                 (long long)i, seen, expected.lo, expected.hi);
}

void pv4_compare(pv4_report *report, const char *stage, int64_t token, const float *seen,
                 const pv4_span *expected, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        check_value(report, stage, token, i, (double)seen[i], expected[i]);
}

void pv4_compare_f32(pv4_report *report, const char *stage, int64_t token, const float *seen,
                     const pv4_span *expected, int64_t n)
{
    const int s = stage_of(report, stage);
    for (int64_t i = 0; i < n; i++) {
        const pv4_span e = expected[i];
        check_value(report, stage, token, i, (double)seen[i], e);
        report->stages[s].n_open -= pv4_is_open(e);
        if (pv4_is_open(e))
            report->stages[s].worst =
                fmax(report->stages[s].worst,
                     fabs((double)seen[i] - (e.lo + e.hi) / 2) / ((e.hi - e.lo) / 2));
    }
}

static lowbit_kind kind_of(const lowbit_row *row)
{
    if (row->layout == LOWBIT_ROW_656_ASCEND || row->layout == LOWBIT_ROW_INDEX_INT8)
        return LOWBIT_INT8;
    return row->layout == LOWBIT_ROW_INDEX_FP4 ? LOWBIT_E2M1 : LOWBIT_E4M3;
}

static lowbit_rule rule_of(const lowbit_row *row)
{
    if (row->layout == LOWBIT_ROW_V4_640)
        return LOWBIT_POW2_ABOVE;
    return kind_of(row) == LOWBIT_INT8 ? LOWBIT_AMAX : LOWBIT_POW2;
}

static void compare_coded(pv4_report *report, const char *stage, int64_t token, const uint8_t *seen,
                          const lowbit_row *row, const pv4_span *x)
{
    const int32_t n_coded = row->n - row->n_plain;
    double codes[1024], scales[64];
    pv4_span want[1024];
    lowbit_row_codes(codes, scales, row, seen);
    for (int32_t g = 0; g < row->n_groups; g++) {
        const int32_t first = g * row->group;
        const int32_t n = n_coded - first < row->group ? n_coded - first : row->group;
        pv4_span scale = pv4_quantize(want + first, x + first, n, kind_of(row), rule_of(row));
        scale = row->scale_bytes == 2 ? pv4_f16(scale) : scale;
        check_value(report, stage, token, -1 - g, scales[g], scale);
    }
    for (int32_t i = 0; i < n_coded; i++)
        check_value(report, stage, token, i, codes[i], want[i]);
}

/* Every byte, padding included, of a row of which every value is known. */
static void compare_bytes(const pv4_report *report, const char *stage, int64_t token,
                          const uint8_t *seen, const lowbit_row *row, const pv4_span *x)
{
    double values[1024];
    uint8_t bytes[4096];
    for (int32_t i = 0; i < row->n; i++) {
        if (pv4_is_open(x[i]))
            return;
        values[i] = x[i].lo;
    }
    lowbit_row_encode(bytes, row, values);
    for (int32_t i = 0; i < row->bytes; i++)
        if (bytes[i] != seen[i])
            fail_msg("%s, profile %s, layer %d, stage %s, row %lld, byte %d: 0x%02x, expected "
                     "0x%02x",
                     report->folder, report->profile, report->layer, stage, (long long)token, i,
                     seen[i], bytes[i]);
}

void pv4_compare_row(pv4_report *report, const char *stage, int64_t token, const uint8_t *seen,
                     const lowbit_row *row, const pv4_span *expected)
{
    double x[1024];
    lowbit_row_decode(x, row, seen);
    const int32_t n_coded = row->n_groups > 0 ? row->n - row->n_plain : 0;
    if (row->n_groups > 0)
        compare_coded(report, stage, token, seen, row, expected);
    for (int32_t i = n_coded; i < row->n; i++)
        check_value(report, stage, token, i, x[i], pv4_bf16(expected[i]));
    compare_bytes(report, stage, token, seen, row, expected);
}

void pv4_report_print(const pv4_report *report)
{
    printf("%s, %s:", report->folder, report->profile);
    for (int i = 0; i < report->n_stages; i++) {
        printf("%s %s %lld values, ", i == 0 ? "" : ";", report->stages[i].name,
               (long long)report->stages[i].n);
        if (report->stages[i].worst > 0)
            printf("errors %.2f of the bound", report->stages[i].worst);
        else
            printf("%.2f %% open",
                   100.0 * (double)report->stages[i].n_open / (double)report->stages[i].n);
    }
    printf("\n");
}

double pv4_report_worst_share(const pv4_report *report)
{
    double worst = 0;
    for (int i = 0; i < report->n_stages; i++)
        worst = fmax(worst, (double)report->stages[i].n_open / (double)report->stages[i].n);
    return worst;
}
