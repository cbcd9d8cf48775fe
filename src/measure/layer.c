/* tamis_bench_layer: runs a rig for some time and sets its best times beside their floors. */
#include <string.h>
#include <time.h>

#include "core/error.h"
#include "core/mem.h"
#include "measure/rig.h"

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* Names of the profile's stages as the work list has them; NULL: neither of them. */
static const char *const stage_names[TAMIS_NUM_STAGES] = {
    [TAMIS_STAGE_PROJECT_IN] = "project_in",   [TAMIS_STAGE_PROJECT_Q] = "project_q",
    [TAMIS_STAGE_SELECT] = "select",           [TAMIS_STAGE_ATTEND] = "attend",
    [TAMIS_STAGE_PROJECT_OUT] = "project_out",
};

typedef struct best_times {
    double total, other; /* of the best step */
    double stage[TAMIS_NUM_STAGES];
} best_times;

static double stage_ms(const tamis_attn_profile *profile, int stage)
{
    uint64_t ns = 0;
    for (int kind = 0; kind < TAMIS_PROFILE_KINDS; kind++)
        ns += profile->ns[kind][stage];
    return 1e-6 * (double)ns;
}

static void note(best_times *best, const tamis_attn_profile *profile, double total)
{
    double known = 0;
    for (int s = 0; s < TAMIS_NUM_STAGES; s++) {
        const double ms = stage_ms(profile, s);
        best->stage[s] = ms < best->stage[s] ? ms : best->stage[s];
        known += stage_names[s] != NULL ? ms : 0;
    }
    if (total < best->total) {
        best->total = total;
        best->other = known > 0 ? total - known : 0;
    }
}

/* A layer that shares reads the selection of the one before it, which runs once. */
static tamis_status run_for(tamis_rig *rig, best_times *best, tamis_error *err)
{
    const double start = now_ms();
    *best = (best_times){.total = 1e300};
    for (int s = 0; s < TAMIS_NUM_STAGES; s++)
        best->stage[s] = 1e300;
    TAMIS_TRY(tamis_rig_prepare(rig, err));
    TAMIS_TRY(tamis_rig_run(rig, err)); /* pages and caches are warm from here on */
    for (int n = 0; n < 3 || now_ms() - start < 1e3 * rig->params.seconds; n++) {
        memset(&rig->profile, 0, sizeof rig->profile);
        const double begin = now_ms();
        TAMIS_TRY(tamis_rig_run(rig, err));
        note(best, &rig->profile, now_ms() - begin);
    }
    return TAMIS_STATUS_OK;
}

static void report(const tamis_rig *rig, const tamis_roof *roof, const best_times *best,
                   tamis_bench_layer_result *out)
{
    tamis_work_list list = {0};
    tamis_rig_count(rig, &list);
    out->n_stages = list.n;
    for (int32_t i = 0; i < list.n; i++) {
        out->stages[i] = list.stages[i];
        for (int s = 0; s < TAMIS_NUM_STAGES; s++)
            if (stage_names[s] != NULL && strcmp(stage_names[s], list.stages[i].name) == 0)
                out->stages[i].ms = best->stage[s];
    }
    if (list.n == 1)
        out->stages[0].ms = best->total;
    tamis_bench_layer_set_roof(out, roof);
    out->ms = best->total;
    out->other_ms = best->other;
    out->planned_bytes = rig->planned_bytes;
}

void tamis_bench_layer_set_roof(tamis_bench_layer_result *result, const tamis_roof *roof)
{
    result->floor_ms = tamis_stages_set_floors(result->stages, result->n_stages, roof);
}

static uint64_t bytes_in_use(void)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++)
        bytes += tamis_mem_in_use((tamis_mem_kind)kind);
    return bytes;
}

tamis_status tamis_bench_layer(const tamis_bench_layer_params *params, const tamis_roof *roof,
                               tamis_bench_layer_result *out, tamis_error *err)
{
    tamis_status st;
    best_times best;
    if (params == NULL || roof == NULL || out == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "bench: params, roof or out is NULL");
    if (roof->n_threads != params->n_threads)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "bench: n_threads is %d, that of the roof %d, must be equal",
                          params->n_threads, roof->n_threads);
    const uint64_t before = bytes_in_use();
    tamis_rig *rig = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *rig);
    if (rig == NULL)
        return tamis_fail_memory(err, "bench", sizeof *rig);
    memset(out, 0, sizeof *out);
    TAMIS_TRY_GOTO(tamis_rig_open(rig, params, err));
    out->taken_bytes = bytes_in_use() - before;
    TAMIS_TRY_GOTO(run_for(rig, &best, err));
    report(rig, roof, &best, out);
fail:
    tamis_rig_close(rig);
    tamis_mem_free(rig);
    return st;
}
