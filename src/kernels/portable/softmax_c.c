/* The portable level of the kernels in body/softmax_body.h. */
#define TAMIS_FN(name) tamis_##name##_c
#include "kernels/body/softmax_body.h"
