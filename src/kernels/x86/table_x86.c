/* Compiled without AVX2 flags: it runs on every x86 machine. */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/table_x86.h"

void tamis_kernels_fill_avx2(tamis_kernels *table)
{
#define AVX2_ENTRY(name) table->name = tamis_##name##_avx2;
    TAMIS_AVX2_LIST(AVX2_ENTRY)
#undef AVX2_ENTRY
    table->level_of_name = "avx2";
}
#endif
