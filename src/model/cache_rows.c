#include "model/cache_rows.h"

#include <string.h>

#include "attention/dsa/caches.h"
#include "attention/sfa/caches.h"

tamis_status tamis_cache_rows_find(tamis_cache_rows *out, const tamis_model_config *config,
                                   int32_t layer, tamis_dtype kv_cache_dtype, tamis_error *err)
{
    tamis_cache_params params = tamis_cache_params_default();
    params.profile = config->profile;
    params.kv_cache_dtype = kv_cache_dtype;
    *out = (tamis_cache_rows){0};
    if (config->family == TAMIS_FAMILY_DEEPSEEK_V4) {
        const tamis_dsa_config dsa = tamis_model_config_dsa(config, layer);
        return tamis_dsa_row_formats(&out->kv, &out->index_key, &dsa, &params, err);
    }
    const tamis_sfa_config sfa = tamis_model_config_sfa(config, layer);
    return tamis_sfa_row_formats(&out->kv, &out->index_key, &sfa, &params, err);
}

tamis_row_layout tamis_row_layout_of(const tamis_row_format *format)
{
    for (int i = 0; i < TAMIS_NUM_ROW_LAYOUTS; i++) {
        tamis_row_format made;
        const tamis_status st = tamis_row_format_make(&made, (tamis_row_layout)i,
                                                      format->num_values, format->num_plain, NULL);
        if (st == TAMIS_STATUS_OK && memcmp(&made, format, sizeof made) == 0)
            return (tamis_row_layout)i;
    }
    return TAMIS_NUM_ROW_LAYOUTS;
}
