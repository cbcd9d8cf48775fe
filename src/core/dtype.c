/* Names and sizes of data types, names of profiles. */
#include <string.h>

#include "tamis/base.h"

static const struct {
    const char *name;
    int bits;
} dtypes[TAMIS_NUM_DTYPES] = {
    [TAMIS_DTYPE_F32] = {"F32", 32},         [TAMIS_DTYPE_BF16] = {"BF16", 16},
    [TAMIS_DTYPE_F16] = {"F16", 16},         [TAMIS_DTYPE_F8_E4M3] = {"F8_E4M3", 8},
    [TAMIS_DTYPE_F4_E2M1] = {"F4_E2M1", 4},  [TAMIS_DTYPE_F8_E8M0] = {"F8_E8M0", 8},
    [TAMIS_DTYPE_F8_E5M2] = {"F8_E5M2", 8},  [TAMIS_DTYPE_F64] = {"F64", 64},
    [TAMIS_DTYPE_I64] = {"I64", 64},         [TAMIS_DTYPE_I32] = {"I32", 32},
    [TAMIS_DTYPE_I16] = {"I16", 16},         [TAMIS_DTYPE_I8] = {"I8", 8},
    [TAMIS_DTYPE_U8] = {"U8", 8},            [TAMIS_DTYPE_BOOL] = {"BOOL", 8},
    [TAMIS_DTYPE_I4] = {"I4", 4},
};

static bool is_known(tamis_dtype dtype)
{
    return (unsigned)dtype < (unsigned)TAMIS_NUM_DTYPES;
}

const char *tamis_dtype_name(tamis_dtype dtype)
{
    if (dtype == TAMIS_DTYPE_AUTO)
        return "AUTO";
    return is_known(dtype) ? dtypes[dtype].name : "unknown";
}

int tamis_dtype_bits(tamis_dtype dtype)
{
    return is_known(dtype) ? dtypes[dtype].bits : 0;
}

static const char *const profiles[TAMIS_NUM_PROFILES] = {"exact", "official", "ascend"};

const char *tamis_profile_name(tamis_profile profile)
{
    return (unsigned)profile < (unsigned)TAMIS_NUM_PROFILES ? profiles[profile] : "?";
}

tamis_profile tamis_profile_find(const char *name)
{
    int i = 0;
    while (i < TAMIS_NUM_PROFILES && (name == NULL || strcmp(name, profiles[i]) != 0))
        i++;
    return (tamis_profile)i;
}
