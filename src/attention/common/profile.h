/*
 * Where the time of attention goes, for benchmarks: wall nanoseconds by layer kind and stage,
 * summed over layers and steps while a profile is attached to a plan (NULL: off, the default).
 */
#ifndef TAMIS_ATTENTION_COMMON_PROFILE_H
#define TAMIS_ATTENTION_COMMON_PROFILE_H

#include <stdint.h>
#include <time.h>

typedef enum tamis_attn_stage {
    TAMIS_STAGE_PROJECT_IN = 0, /* linear layers that read the layer's input */
    TAMIS_STAGE_ROWS,      /* norms, rotations, rows into caches */
    TAMIS_STAGE_PROJECT_Q, /* those of the queries */
    TAMIS_STAGE_SELECT,    /* index scores and top-k */
    TAMIS_STAGE_ATTEND,
    TAMIS_STAGE_PROJECT_OUT, /* those behind attention */
    TAMIS_NUM_STAGES
} tamis_attn_stage;

#define TAMIS_PROFILE_KINDS 3 /* V4: ratio 0, 4, 128; V3.2, GLM: own selection, reused one */
typedef struct tamis_attn_profile {
    uint64_t ns[TAMIS_PROFILE_KINDS][TAMIS_NUM_STAGES];
    uint64_t n_selections; /* runs of an indexer */
} tamis_attn_profile;

/* Now, in nanoseconds; free when no profile is attached. */
static inline uint64_t tamis_profile_clock(const tamis_attn_profile *profile)
{
    struct timespec now;
    if (profile == NULL)
        return 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Books the time since *since under a stage and starts the next. */
static inline void tamis_profile_add(tamis_attn_profile *profile, int kind, tamis_attn_stage stage,
                                     uint64_t *since)
{
    if (profile == NULL)
        return;
    const uint64_t now = tamis_profile_clock(profile);
    profile->ns[kind][stage] += now - *since;
    *since = now;
}

static inline void tamis_profile_count_selection(tamis_attn_profile *profile)
{
    if (profile != NULL)
        profile->n_selections++;
}

#endif
