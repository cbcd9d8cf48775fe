/* The portable level of the kernels in body/convert_body.h. */
#define TAMIS_FN(name) tamis_##name##_c
#include "kernels/body/convert_body.h"
