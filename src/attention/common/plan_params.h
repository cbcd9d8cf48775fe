/* Limits of a plan, checked once for both back ends. */
#ifndef TAMIS_ATTENTION_COMMON_PLAN_PARAMS_H
#define TAMIS_ATTENTION_COMMON_PLAN_PARAMS_H

#include "tamis/attention.h"

/* errors: INVALID; the parameter, the value seen and allowed */
tamis_status tamis_plan_params_check(const tamis_plan_params *params, tamis_error *err);

#endif
