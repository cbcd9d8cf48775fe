#include "attention/common/row_choice.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* "BF16, F32": the types of a profile's lines. */
static void list_dtypes(char *text, size_t size, const tamis_row_choice *table, size_t n,
                        tamis_profile profile)
{
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(text);
        if (table[i].profile == profile)
            snprintf(text + used, size - used, "%s%s", used == 0 ? "" : ", ",
                     tamis_dtype_name(table[i].kv_cache_dtype));
    }
}

tamis_status tamis_row_choice_find(const tamis_row_choice **out, const tamis_row_choice *table,
                                   size_t n, const tamis_cache_params *params, tamis_error *err)
{
    char allowed[64];
    if ((unsigned)params->profile >= (unsigned)TAMIS_NUM_PROFILES)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "cache params: profile is %d, allowed 0..%d",
                          (int)params->profile, TAMIS_NUM_PROFILES - 1);
    for (size_t i = 0; i < n; i++)
        if (table[i].profile == params->profile &&
            (params->kv_cache_dtype == TAMIS_DTYPE_AUTO ||
             params->kv_cache_dtype == table[i].kv_cache_dtype)) {
            *out = &table[i];
            return TAMIS_STATUS_OK;
        }
    list_dtypes(allowed, sizeof allowed, table, n, params->profile);
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "cache params: kv_cache_dtype is %s, allowed %s (profile %s)",
                      tamis_dtype_name(params->kv_cache_dtype), allowed,
                      tamis_profile_name(params->profile));
}

tamis_status tamis_check_index_rotation(const tamis_cache_params *params, int32_t index_head_dim,
                                        tamis_error *err)
{
    if (params->profile == TAMIS_PROFILE_EXACT || (index_head_dim & (index_head_dim - 1)) == 0)
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "layer: index_head_dim is %d, must be a power of two (profile %s: Hadamard "
                      "rotation of the indexer)",
                      index_head_dim, tamis_profile_name(params->profile));
}
