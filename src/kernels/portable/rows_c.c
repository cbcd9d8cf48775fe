/* The portable level of the kernels in body/rows_body.h. */
#define TAMIS_FN(name) tamis_##name##_c
#include "kernels/body/rows_body.h"
