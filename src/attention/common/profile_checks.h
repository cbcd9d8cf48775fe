/* Whether a weight can be run in a profile. */
#ifndef TAMIS_ATTENTION_COMMON_PROFILE_CHECKS_H
#define TAMIS_ATTENTION_COMMON_PROFILE_CHECKS_H

#include "tamis/base.h"

/*
 * A matrix that a linear layer reads, its shape and strides already checked. Profile official has
 * no integer weights; ascend multiplies them as integers, for which they must be as kernel
 * linear_i8 reads them: one F32 scale per row side by side, or a static quantisation in range.
 * errors: UNSUPPORTED, INVALID "<object>: <name> is ...": the value seen and allowed
 */
tamis_status tamis_check_profile_matrix(const char *object, const char *name, const tamis_matrix *w,
                                        tamis_profile profile, tamis_error *err);

#endif
