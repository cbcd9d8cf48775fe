/*
 * One V4 attention layer of a folder run alone through the public layer API, with everything that
 * its stages leave behind: workspace buffers, rows as cached, selection. What a test of rounding
 * points compares stage by stage. Refused calls fail the running cmocka test.
 */
#ifndef TAMIS_TEST_V4_STAGE_RUN_H
#define TAMIS_TEST_V4_STAGE_RUN_H

#include "support/engine_run.h"
#include "tamis/dsa.h"
#include "weights/model_weights.h"

/* test_engine_open in a profile. */
test_engine v4_engine_open_with(const char *dir, tamis_profile profile,
                                const tamis_session_params *params);
/* The same with one sequence of at most max_len tokens. */
test_engine v4_engine_open(const char *dir, tamis_profile profile, tamis_dtype kv_cache_dtype,
                           int32_t max_len);

/* A folder's weights, without an engine around them. */
typedef struct v4_folder {
    tamis_model_config config;
    tamis_checkpoint *checkpoint;
    tamis_model_weights *weights;
} v4_folder;
v4_folder v4_folder_open(const char *dir, tamis_profile profile);
void v4_folder_close(v4_folder *folder);

/* Of n tokens, one row each; NULL where the layer has no such stage. */
typedef struct v4_stages {
    int32_t n, n_rows;                                  /* tokens; compressed rows n / ratio */
    tamis_row_format kv_format, ckv_format, key_format; /* rows lie row_bytes apart */
    uint8_t *kv, *ckv, *keys;                           /* [n], [n_rows], [n_rows] rows as cached */
    float *qr;                                          /* [q_lora_rank] */
    float *state, *index_state;                         /* [2 width] u | z with ape */
    float *q;                                           /* [num_heads * head_dim] rotated */
    int32_t padded_heads, n_groups;                     /* of the index query */
    int8_t *iq_codes;                                   /* [padded_heads][index_head_dim] */
    float *iq_scales;                                   /* [padded_heads][n_groups] */
    float *w;                                           /* [padded_heads] */
    int32_t *topk;                                      /* [index_topk] */
    float *o;                                           /* [num_heads * head_dim] unrotated */
    float *low, *out; /* [o_groups * o_lora_rank], [hidden_size] */
} v4_stages;

/* x [n][hidden_size] in steps of chunk tokens (0: one step); kv_cache_dtype as in
 * tamis_cache_params. */
v4_stages v4_stages_run(const tamis_dsa_layer *layer, tamis_profile profile,
                        tamis_dtype kv_cache_dtype, const float *x, int32_t n, int32_t chunk);
void v4_stages_free(v4_stages *stages);
/* Fails with stage and token of the first bit that differs. */
void v4_stages_same_bits(const tamis_dsa_layer *layer, const v4_stages *a, const v4_stages *b,
                         const char *what);

#endif
