/*
 * Which jobs over one x share its quantised copy. Passes that put jobs side by side keep room for
 * one copy of each x (tamis_linear_input_bytes); jobs that would need two run one after the other.
 */
#ifndef TAMIS_OPS_LINEAR_INPUTS_H
#define TAMIS_OPS_LINEAR_INPUTS_H

#include "ops/linear.h"

static inline bool tamis_linear_is_integer(const tamis_matrix *w)
{
    return w->dtype == TAMIS_DTYPE_I8 || w->dtype == TAMIS_DTYPE_I4;
}
/* Whether any profile quantises the input of such a weight. */
static inline bool tamis_linear_is_quantized(const tamis_matrix *w)
{
    return tamis_linear_is_integer(w) || w->dtype == TAMIS_DTYPE_F8_E4M3 ||
           w->dtype == TAMIS_DTYPE_F4_E2M1;
}

/* Whether one x, quantised for a, serves b. */
static inline bool tamis_linear_same_form(const tamis_matrix *a, const tamis_matrix *b)
{
    if (tamis_linear_is_integer(a) != tamis_linear_is_integer(b))
        return false;
    if (!tamis_linear_is_integer(a) || a->input == NULL || b->input == NULL)
        return !tamis_linear_is_integer(a) || a->input == b->input;
    return a->input->input_scale == b->input->input_scale &&
           a->input->input_offset == b->input->input_offset;
}

/* Whether weights that read one x need one quantised copy of it at most. */
static inline bool tamis_linear_shares_input(const tamis_matrix *const *weights, int64_t n)
{
    const tamis_matrix *first = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (!tamis_linear_is_quantized(weights[i]))
            continue;
        if (first != NULL && !tamis_linear_same_form(first, weights[i]))
            return false;
        first = first == NULL ? weights[i] : first;
    }
    return true;
}

#endif
