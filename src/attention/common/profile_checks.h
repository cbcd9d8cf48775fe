/* Whether a weight can be run in a profile. */
#ifndef TAMIS_ATTENTION_COMMON_PROFILE_CHECKS_H
#define TAMIS_ATTENTION_COMMON_PROFILE_CHECKS_H

#include "tamis/base.h"

/*
 * A matrix that a linear layer reads, already checked by itself (layer_checks.h). Profile official
 * has no integer weights: a rounding of their inputs would be invented.
 * errors: UNSUPPORTED "<object>: <name> is I8, allowed ... (profile official)"
 */
tamis_status tamis_check_profile_matrix(const char *object, const char *name, const tamis_matrix *w,
                                        tamis_profile profile, tamis_error *err);

#endif
