/* Checks of a layer's dimensions and weights that both back ends make before they trust them. */
#ifndef TAMIS_ATTENTION_COMMON_LAYER_CHECKS_H
#define TAMIS_ATTENTION_COMMON_LAYER_CHECKS_H

#include "tamis/attention.h"

typedef struct tamis_field_range {
    const char *name;
    int32_t value, min, max;
} tamis_field_range;

/* INVALID "<object>: <name> is <value>, allowed <min>..<max>" for the first field outside. */
tamis_status tamis_check_ranges(const char *object, const tamis_field_range *fields, size_t n,
                                tamis_error *err);
/* INVALID "layer: <name> is <value>, must be above <bound> and finite" */
tamis_status tamis_check_above(const char *name, float value, float bound, tamis_error *err);
/* Frequencies come out finite; the parameters of YaRN count where it is on. */
tamis_status tamis_check_rope(const tamis_rope_config *rope, tamis_error *err);
/* A matrix of that shape in a format that linear layers read, strides and scale grid included. */
tamis_status tamis_check_matrix(const char *name, const tamis_matrix *w, int64_t rows, int64_t cols,
                                tamis_error *err);
tamis_status tamis_check_vector(const char *name, const float *vector, tamis_error *err);
/* INVALID if the n values of out share memory with those of x */
tamis_status tamis_check_apart(const float *x, const float *out, int64_t n, tamis_error *err);

bool tamis_rope_config_equal(const tamis_rope_config *a, const tamis_rope_config *b);

#endif
