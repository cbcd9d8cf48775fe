/* The kernel tables, filled once: portable first, then each level overwrites what it has. */
#include <pthread.h>

#include "kernels/kernels.h"

static tamis_kernels tables[TAMIS_NUM_CPU_LEVELS];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static const tamis_kernels portable = {
#define PORTABLE_ENTRY(name) .name = tamis_##name##_c,
    TAMIS_KERNEL_LIST(PORTABLE_ENTRY)
#undef PORTABLE_ENTRY
        .level_of_name = "portable",
};

static void fill_tables(void)
{
    for (int level = 0; level < TAMIS_NUM_CPU_LEVELS; level++)
        tables[level] = portable;
#ifdef TAMIS_HAVE_AVX2
    for (int level = TAMIS_CPU_AVX2; level < TAMIS_NUM_CPU_LEVELS; level++)
        tamis_kernels_fill_avx2(&tables[level]);
#endif
}

const tamis_kernels *tamis_kernels_for(tamis_cpu_level level)
{
    pthread_once(&tables_once, fill_tables);
    return &tables[level];
}

const tamis_kernels *tamis_kernels_current(void)
{
    return tamis_kernels_for(tamis_cpu_level_current());
}
