/* Attention of one head under a running maximum, as the profiles round it: see profile_ref_v4.h. */
#include <math.h>
#include <stdlib.h>

#include "support/profile_ref_v4.h"

/* A head on its way through the list: running maximum, sum, and values within radius of centre. */
typedef struct running {
    pv4_span max, sum;
    double *centre, *radius;
    int32_t d;
} running;

/* Every value times a factor. */
static void shrink(running *r, pv4_span by)
{
    const double mid = (by.lo + by.hi) / 2, half = (by.hi - by.lo) / 2;
    for (int32_t i = 0; i < r->d; i++) {
        r->radius[i] = r->radius[i] * by.hi + fabs(r->centre[i]) * (half + PV4_U * by.hi);
        r->centre[i] *= mid;
    }
}

static void add_value(running *r, pv4_span p, const double *row)
{
    const double mid = (p.lo + p.hi) / 2, half = (p.hi - p.lo) / 2;
    for (int32_t i = 0; i < r->d; i++) {
        r->centre[i] += mid * row[i];
        r->radius[i] += half * fabs(row[i]) + PV4_U * (fabs(r->centre[i]) + r->radius[i]);
    }
}

/* q . row as a chain: each step rounds the sum so far. */
static pv4_span score_of(const float *q, const double *row, int32_t d)
{
    double sum = 0, partial_sums = 0;
    for (int32_t i = 0; i < d; i++) {
        sum += (double)q[i] * row[i];
        partial_sums += fabs(sum);
    }
    const double scale = 1 / sqrt((double)d);
    return pv4_loose(pv4_around(sum * scale, partial_sums * scale * PV4_U), 3);
}

/* exp(a - b) of numbers of which b is the larger one; is_same: they are one number. */
static pv4_span weight_of(pv4_span a, pv4_span b, bool is_same)
{
    if (is_same)
        return pv4_number(1);
    if (isinf(a.hi))
        return pv4_number(0);
    const pv4_span difference = {a.lo - b.hi, fmin(a.hi - b.lo, 0)};
    const pv4_span weight = pv4_exp(pv4_loose(difference, 1));
    return (pv4_span){weight.lo, fmin(weight.hi, 1)};
}

static bool is_largest(const pv4_span *s, int32_t n, int32_t i, pv4_span before)
{
    if (!(s[i].lo > before.hi))
        return false;
    for (int32_t j = 0; j < n; j++)
        if (j != i && s[j].hi >= s[i].lo)
            return false;
    return true;
}

/* One chunk of at most 64 places: n of them hold rows. */
static void run_chunk(running *r, const float *q, const double *const *rows, int32_t n)
{
    pv4_span s[64], max = r->max, sum = pv4_number(0);
    bool is_kept = true; /* the maximum stays what it was */
    for (int32_t i = 0; i < n; i++) {
        s[i] = score_of(q, rows[i], r->d);
        is_kept &= s[i].hi <= r->max.lo;
        max = (pv4_span){fmax(max.lo, s[i].lo), fmax(max.hi, s[i].hi)};
    }
    const pv4_span factor = weight_of(r->max, max, is_kept);
    shrink(r, factor);
    for (int32_t i = 0; i < n; i++) {
        const pv4_span p = weight_of(s[i], max, is_largest(s, n, i, r->max));
        sum = pv4_add(sum, p);
        add_value(r, pv4_bf16(p), rows[i]);
    }
    r->sum = pv4_loose(pv4_add(pv4_mul(r->sum, factor), pv4_loose(sum, n)), 1);
    r->max = max;
}

/* The sink joins the sum, then the division. */
static void finish(const running *r, pv4_span *out, double sink)
{
    const pv4_span s = pv4_number(sink);
    const pv4_span max = {fmax(r->max.lo, sink), fmax(r->max.hi, sink)};
    const pv4_span factor = weight_of(r->max, max, sink <= r->max.lo);
    const pv4_span added = weight_of(s, max, sink > r->max.hi);
    const pv4_span sum = pv4_loose(pv4_add(pv4_mul(r->sum, factor), added), 1);
    const pv4_span inverse = {1 / sum.hi, 1 / sum.lo};
    for (int32_t i = 0; i < r->d; i++) {
        const pv4_span value =
            pv4_loose(pv4_mul(pv4_around(r->centre[i], r->radius[i]), factor), 1);
        out[i] = pv4_loose(pv4_mul(value, inverse), 1);
    }
}

void pv4_attend(pv4_span *out, const float *q, int32_t d, const double *const *places, int32_t n,
                double sink)
{
    running r = {.max = pv4_number(-INFINITY), .d = d};
    r.centre = pv4_take(d, sizeof *r.centre);
    r.radius = pv4_take(d, sizeof *r.radius);
    for (int32_t first = 0; first < n; first += 64) {
        const double *rows[64];
        int32_t n_rows = 0;
        for (int32_t i = first; i < n && i < first + 64; i++)
            if (places[i] != NULL)
                rows[n_rows++] = places[i];
        if (n_rows > 0)
            run_chunk(&r, q, rows, n_rows);
    }
    finish(&r, out, sink);
    free(r.centre);
    free(r.radius);
}
