/* The AVX2 level of the kernels in body/softmax_body.h: the same C, compiled for AVX2 and FMA. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/table_x86.h"
#define TAMIS_FN(name) tamis_##name##_avx2
#include "kernels/body/softmax_body.h"
#endif
