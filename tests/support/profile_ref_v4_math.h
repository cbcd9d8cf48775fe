/*
 * Arithmetic of the slow reference of the profiles (profile_ref_v4.h): numbers known to lie in a
 * span, because the order of single-precision sums is not the reference's business. A span without
 * width is a number that the engine must meet bit for bit. Rounding maps the ends of a span, so one
 * that holds no border between two results closes again, and one that does stays open and allows
 * both: what is open is counted, and tests bound the share.
 *
 * Widths are bounds of single precision: u = 2^-24 per rounding, sums of n terms on 16 lanes
 * (ceil(n / 16) + 4) u sum |terms|, functions as docs/numerics.md states them in ulp.
 */
#ifndef TAMIS_TEST_PROFILE_REF_V4_MATH_H
#define TAMIS_TEST_PROFILE_REF_V4_MATH_H

#include "support/lowbit_ref.h"
#include "tamis/attention.h"

#define PV4_U 5.9604644775390625e-08 /* 2^-24 */

typedef struct pv4_span {
    double lo, hi;
} pv4_span;

/* n zeroed elements, to be freed by the caller. */
void *pv4_take(int64_t n, size_t size);

static inline pv4_span pv4_number(double value)
{
    return (pv4_span){value, value};
}
static inline bool pv4_is_open(pv4_span x)
{
    return x.lo != x.hi;
}
pv4_span pv4_around(double centre, double radius);
double pv4_size(pv4_span x); /* largest magnitude */
pv4_span pv4_add(pv4_span a, pv4_span b);
pv4_span pv4_mul(pv4_span a, pv4_span b);
/* One f32 rounding of the ends. */
pv4_span pv4_f32(pv4_span x);
pv4_span pv4_bf16(pv4_span x);
pv4_span pv4_f16(pv4_span x);
void pv4_bf16_all(pv4_span *x, int64_t n);
/* Wider by a relative error of `roundings` times u. */
pv4_span pv4_loose(pv4_span x, double roundings);
pv4_span pv4_exp(pv4_span x);
/* n floats as numbers; to be freed by the caller. */
pv4_span *pv4_numbers(const float *x, int64_t n);

/* ---------------------------------------------------------------- norms, rotation, Hadamard */

/* x * (1 / sqrt(mean x^2 + eps)) * weight, f32 inside; weight may be NULL; in place. */
void pv4_rmsnorm(pv4_span *x, const float *weight, int64_t n, double eps);
/* The vendor's norm of a query head, every step rounded to bf16; in place. */
void pv4_rmsnorm_bf16(pv4_span *x, int64_t n, double eps);
/* Pairs (2i, 2i + 1) of the last rope_dim of `width` channels at a position; in place. */
void pv4_rotate(pv4_span *x, int32_t width, int32_t rope_dim, const tamis_rope_config *rope,
                int32_t pos, bool inverse);
/* Unscaled sums; in place. */
void pv4_hadamard(pv4_span *x, int32_t n);

/* ---------------------------------------------------------------- linear layers */

/* A matrix with its values expanded: f32 values, or the integers of I8 and I4. */
typedef struct pv4_weight {
    const tamis_matrix *w;
    double *values;
} pv4_weight;
pv4_weight pv4_weight_open(const tamis_matrix *w);
void pv4_weight_close(pv4_weight *weight);

typedef enum pv4_input {
    PV4_TABLE, /* as docs/numerics-profiles.md, "Linear layers", has it for profile and weight */
    PV4_AS_IS
} pv4_input;

/* y [end - begin] = rows begin .. end - 1 of w times x [cols]; result f32, not yet rounded to
 * bf16. */
void pv4_linear(pv4_span *y, const pv4_weight *w, int64_t begin, int64_t end, const pv4_span *x,
                pv4_input input, tamis_profile profile);

/* ---------------------------------------------------------------- quantisation */

/* Codes and scale of a group; a scale that is stored is rounded by the caller. */
pv4_span pv4_quantize(pv4_span *codes, const pv4_span *x, int64_t n, lowbit_kind kind,
                      lowbit_rule rule);

/* ---------------------------------------------------------------- comparison */

enum { PV4_MAX_STAGES = 24 };

/* What was compared, by stage. */
typedef struct pv4_report {
    const char *folder, *profile;
    int32_t layer;
    int n_stages;
    struct {
        const char *name;
        int64_t n, n_open;
        double worst; /* f32 sums: largest error as a share of the bound */
    } stages[PV4_MAX_STAGES];
} pv4_report;

/* Every value within its span, else the running cmocka test fails, naming the place. */
void pv4_compare(pv4_report *report, const char *stage, int64_t token, const float *seen,
                 const pv4_span *expected, int64_t n);
/* The same of f32 values that nothing rounds: their spans are error bounds, never numbers. */
void pv4_compare_f32(pv4_report *report, const char *stage, int64_t token, const float *seen,
                     const pv4_span *expected, int64_t n);
/* A packed row: scales, codes and plain values, and every byte where nothing is open. */
void pv4_compare_row(pv4_report *report, const char *stage, int64_t token, const uint8_t *seen,
                     const lowbit_row *row, const pv4_span *expected);
/* A line: of every stage the values and the share that was open, or the worst f32 error. */
void pv4_report_print(const pv4_report *report);
/* Largest share of open values over the stages. */
double pv4_report_worst_share(const pv4_report *report);

#endif
