/*
 * Which stage of which layers does what in which profile: the one table that the program prints and
 * docs/numerics-table.md is made from. What linear layers do with their input follows from the
 * weights (ops/linear.h) and is not repeated per stage.
 */
#ifndef TAMIS_MODEL_NUMERICS_TABLE_H
#define TAMIS_MODEL_NUMERICS_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "tamis/base.h"

/* Where a stage runs. A kind of attention or feed-forward is a bit, so that a rule may name
 * several. */
enum {
    TAMIS_AT_ENDS = 1 << 0, /* embedding and head */
    TAMIS_AT_WINDOW = 1 << 1,
    TAMIS_AT_C4 = 1 << 2,
    TAMIS_AT_C4_SHARED = 1 << 3, /* an earlier layer's selection */
    TAMIS_AT_C128 = 1 << 4,
    TAMIS_AT_FULL = 1 << 5, /* V3.2, GLM: an indexer of its own */
    TAMIS_AT_SHARED = 1 << 6,
    TAMIS_AT_ALL = 1 << 7, /* no selection */
    TAMIS_AT_EXPERTS_V4 = 1 << 8,
    TAMIS_AT_EXPERTS_LATENT = 1 << 9,
    TAMIS_AT_DENSE = 1 << 10,
    TAMIS_AT_MTP = 1 << 11,
    TAMIS_AT_V4 = TAMIS_AT_WINDOW | TAMIS_AT_C4 | TAMIS_AT_C4_SHARED | TAMIS_AT_C128,
    TAMIS_AT_LATENT = TAMIS_AT_FULL | TAMIS_AT_SHARED | TAMIS_AT_ALL,
    TAMIS_AT_EXPERTS = TAMIS_AT_EXPERTS_V4 | TAMIS_AT_EXPERTS_LATENT
};

/* What the offset of a stage's weights counts from. */
typedef enum tamis_stage_base {
    TAMIS_BASE_NONE = 0, /* no matrix */
    TAMIS_BASE_MODEL,    /* tamis_model_weights */
    TAMIS_BASE_LAYER,    /* tamis_layer_weights */
    TAMIS_BASE_EXPERT    /* tamis_expert_weights of every routed expert */
} tamis_stage_base;

typedef enum tamis_stage_rows {
    TAMIS_STAGE_ROWS_NONE = 0,
    TAMIS_STAGE_ROWS_KV,
    TAMIS_STAGE_ROWS_INDEX
} tamis_stage_rows;

/* Texts by profile; NULL: as the profile before. */
typedef struct tamis_stage_rule {
    unsigned where;
    const char *stage;
    tamis_stage_base base;
    size_t weight_at;
    const char
        *input[TAMIS_NUM_PROFILES]; /* first NULL: what the weights' format says, but where */
    unsigned kept;                  /* ... the profile's bit is set: the input as it is */
    const char *output[TAMIS_NUM_PROFILES];
    tamis_stage_rows rows;
    const char *numeric; /* NULL: what the weights' format says */
    const char *source[TAMIS_NUM_PROFILES];
} tamis_stage_rule;

extern const tamis_stage_rule tamis_stage_rules[];
extern const size_t tamis_num_stage_rules;

#endif
