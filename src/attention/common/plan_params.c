#include "attention/common/plan_params.h"

#include "attention/common/layer_checks.h"
#include "core/error.h"

tamis_plan_params tamis_plan_params_default(void)
{
    return (tamis_plan_params){.struct_size = sizeof(tamis_plan_params),
                               .max_num_batched_tokens = 512,
                               .max_num_seqs = 1,
                               .max_model_len = 4096,
                               .n_threads = 1};
}

tamis_status tamis_plan_params_check(const tamis_plan_params *p, tamis_error *err)
{
    const tamis_field_range fields[] = {
        {"max_num_batched_tokens", p->max_num_batched_tokens, 1, 1 << 20},
        {"max_num_seqs", p->max_num_seqs, 1, 1 << 20},
        {"max_model_len", p->max_model_len, 1, 1 << 30},
        {"n_threads", p->n_threads, 1, 256}};
    if (p->struct_size != sizeof *p)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "plan params: struct_size is %zu, must be %zu",
                          p->struct_size, sizeof *p);
    return tamis_check_ranges("plan params", fields, sizeof fields / sizeof *fields, err);
}
