/* The public face of packed rows: the layouts, and loops of the row kernels. */
#include <string.h>

#include "core/error.h"
#include "core/size.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"

/* Parts in the order in which they lie; V: coded values, P: plain ones, S: scales. */
typedef struct layout_rule {
    const char *name;
    tamis_dtype dtype;
    int32_t group_size; /* 0: no scales; -1: the whole row */
    tamis_dtype scale_dtype;
    tamis_scale_rule scale_rule;
    char parts[4];
    int32_t align; /* of row_bytes */
} layout_rule;

static const layout_rule rules[TAMIS_NUM_ROW_LAYOUTS] = {
    [TAMIS_ROWS_F32] = {"f32", TAMIS_DTYPE_F32, 0, TAMIS_DTYPE_F32, TAMIS_SCALE_NONE, "V", 1},
    [TAMIS_ROWS_BF16] = {"bf16", TAMIS_DTYPE_BF16, 0, TAMIS_DTYPE_F32, TAMIS_SCALE_NONE, "V", 1},
    [TAMIS_ROWS_V4_FP8] = {"v4-fp8", TAMIS_DTYPE_F8_E4M3, 64, TAMIS_DTYPE_F8_E8M0, TAMIS_SCALE_POW2,
                           "VPS", 8},
    [TAMIS_ROWS_V4_A5] = {"v4-a5", TAMIS_DTYPE_F8_E4M3, 64, TAMIS_DTYPE_F8_E8M0,
                          TAMIS_SCALE_POW2_ABOVE, "PVS", 64},
    [TAMIS_ROWS_LATENT_FLASHMLA] = {"latent-flashmla", TAMIS_DTYPE_F8_E4M3, 128, TAMIS_DTYPE_F32,
                                    TAMIS_SCALE_POW2, "VSP", 1},
    [TAMIS_ROWS_LATENT_ASCEND] = {"latent-ascend", TAMIS_DTYPE_I8, 128, TAMIS_DTYPE_F32,
                                  TAMIS_SCALE_AMAX, "VPS", 1},
    [TAMIS_ROWS_INDEX_FP8] = {"index-fp8", TAMIS_DTYPE_F8_E4M3, -1, TAMIS_DTYPE_F32,
                              TAMIS_SCALE_POW2, "VS", 1},
    [TAMIS_ROWS_INDEX_FP4] = {"index-fp4", TAMIS_DTYPE_F4_E2M1, 32, TAMIS_DTYPE_F8_E8M0,
                              TAMIS_SCALE_POW2, "VS", 1},
    [TAMIS_ROWS_INDEX_INT8] = {"index-int8", TAMIS_DTYPE_I8, -1, TAMIS_DTYPE_F16, TAMIS_SCALE_AMAX,
                               "VS", 1},
};

const char *tamis_row_layout_name(tamis_row_layout layout)
{
    return (unsigned)layout < (unsigned)TAMIS_NUM_ROW_LAYOUTS ? rules[layout].name : "?";
}

static tamis_status check(tamis_row_layout layout, int32_t num_values, int32_t num_plain,
                          tamis_error *err)
{
    if ((unsigned)layout >= (unsigned)TAMIS_NUM_ROW_LAYOUTS)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "row format: layout is %d, allowed 0..%d",
                          (int)layout, TAMIS_NUM_ROW_LAYOUTS - 1);
    const layout_rule *rule = &rules[layout];
    const bool has_plain = strchr(rule->parts, 'P') != NULL;
    if (num_values < 1 || num_values > 65536)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "row format %s: num_values is %d, allowed 1..65536", rule->name,
                          num_values);
    if (num_plain < 0 || num_plain > (has_plain ? num_values - 1 : 0))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "row format %s: num_plain is %d, allowed 0..%d", rule->name, num_plain,
                          has_plain ? num_values - 1 : 0);
    if (rule->dtype == TAMIS_DTYPE_F4_E2M1 && num_values % 2 != 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "row format %s: num_values is %d, must be even", rule->name, num_values);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_row_format_make(tamis_row_format *out, tamis_row_layout layout,
                                   int32_t num_values, int32_t num_plain, tamis_error *err)
{
    TAMIS_TRY(check(layout, num_values, num_plain, err));
    const layout_rule *rule = &rules[layout];
    const int32_t num_coded = num_values - num_plain;
    tamis_row_format f = {.dtype = rule->dtype,
                          .num_values = num_values,
                          .num_plain = num_plain,
                          .group_size = rule->group_size < 0 ? num_coded : rule->group_size,
                          .scale_dtype = rule->scale_dtype,
                          .scale_rule = rule->scale_rule};
    int32_t at = 0;
    for (const char *part = rule->parts; *part != '\0'; part++) {
        if (*part == 'V') {
            f.coded_at = at;
            at += num_coded * tamis_dtype_bits(rule->dtype) / 8;
        } else if (*part == 'P') {
            f.plain_at = at;
            at += num_plain * 2;
        } else {
            f.scale_at = at;
            at += tamis_row_num_groups(&f) * tamis_dtype_bits(rule->scale_dtype) / 8;
        }
    }
    f.row_bytes = (int32_t)tamis_round_up(at, rule->align);
    *out = f;
    return TAMIS_STATUS_OK;
}
