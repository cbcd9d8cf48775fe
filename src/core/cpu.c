/* CPU level: what the machine has, lowered by TAMIS_CPU and by tamis_cpu_level_set. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

#if defined(TAMIS_HAVE_AVX2)
#include <cpuid.h>
#endif

#define LEVEL_UNKNOWN (-1)

static atomic_int current_level = LEVEL_UNKNOWN;

static const char *const level_names[TAMIS_NUM_CPU_LEVELS] = {
    [TAMIS_CPU_PORTABLE] = "portable",
    [TAMIS_CPU_AVX2] = "avx2",
};

const char *tamis_cpu_level_name(tamis_cpu_level level)
{
    return (unsigned)level < TAMIS_NUM_CPU_LEVELS ? level_names[level] : "unknown";
}

#if defined(TAMIS_HAVE_AVX2)
/* Not every compiler's __builtin_cpu_supports knows f16c; that the system saves the wide registers
 * is part of its answer for avx2. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

tamis_cpu_level tamis_cpu_level_available(void)
{
#if defined(TAMIS_HAVE_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        return TAMIS_CPU_AVX2;
#endif
    return TAMIS_CPU_PORTABLE;
}

/* False: TAMIS_CPU names no level. Unset and empty mean the available level. */
static bool level_from_environment(const char *text, tamis_cpu_level *level)
{
    *level = tamis_cpu_level_available();
    if (text == NULL || text[0] == '\0')
        return true;
    for (int i = 0; i < TAMIS_NUM_CPU_LEVELS; i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = (tamis_cpu_level)i;
            return true;
        }
    }
    return false;
}

tamis_status tamis_cpu_check_environment(tamis_error *err)
{
    const char *text = getenv("TAMIS_CPU");
    tamis_cpu_level level;
    if (!level_from_environment(text, &level))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "environment variable TAMIS_CPU is \"%s\", allowed: portable, avx2",
                          text);
    if (level > tamis_cpu_level_available())
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "environment variable TAMIS_CPU is \"%s\", this machine or build has "
                          "at most \"%s\"",
                          text, tamis_cpu_level_name(tamis_cpu_level_available()));
    return TAMIS_STATUS_OK;
}

tamis_cpu_level tamis_cpu_level_current(void)
{
    int level = atomic_load(&current_level);
    if (level != LEVEL_UNKNOWN)
        return (tamis_cpu_level)level;
    tamis_cpu_level wanted;
    /* A bad value is reported by tamis_cpu_check_environment; here the available level stays. */
    level_from_environment(getenv("TAMIS_CPU"), &wanted);
    const tamis_cpu_level available = tamis_cpu_level_available();
    int expected = LEVEL_UNKNOWN; /* another thread may have set the level meanwhile */
    atomic_compare_exchange_strong(&current_level, &expected,
                                   (int)(wanted < available ? wanted : available));
    return (tamis_cpu_level)atomic_load(&current_level);
}

tamis_status tamis_cpu_level_set(tamis_cpu_level level)
{
    if ((unsigned)level > (unsigned)tamis_cpu_level_available())
        return TAMIS_STATUS_INVALID;
    atomic_store(&current_level, (int)level);
    return TAMIS_STATUS_OK;
}
