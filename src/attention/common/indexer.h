/*
 * The lightning indexer of both back ends once its query, head weights and keys stand: Hadamard
 * rotation and codes of queries and keys, scaling the weights, and the k best keys of every token.
 * V4 scores compressed rows, V3.2 and GLM every token; the keys lie in a paged cache either way.
 * What is rotated, rounded and scaled how follows from profile and family:
 * docs/numerics-profiles.md.
 */
#ifndef TAMIS_ATTENTION_COMMON_INDEXER_H
#define TAMIS_ATTENTION_COMMON_INDEXER_H

#include "caches/cache_store.h"
#include "core/arena.h"
#include "ops/index_select.h"
#include "plan/step.h"

/* Whose indexer: the profiles round V4's otherwise than V3.2's and GLM's. */
typedef enum tamis_index_family { TAMIS_INDEX_V4 = 0, TAMIS_INDEX_LATENT } tamis_index_family;

/* Buffers of the running layer; T = max_tokens. */
typedef struct tamis_indexer {
    tamis_index_family family; /* the plan's to set */
    float *q;                  /* [T][n_heads * head_dim] */
    float *w_raw;              /* [T][n_heads] weights_proj x */
    float *w;                  /* [T][round_up(n_heads, 16)] scaled, zeros after n_heads */
    int32_t *topk;             /* [T][topk]; survives between the layers of a step */
    tamis_candidate *partials;
    int32_t *n_partials;
    /* profiles other than exact, where keys are scored as integers; see tamis_index_job */
    int8_t *q_codes;
    float *q_scales;
} tamis_indexer;

/* Channels that share a scale in FP4 queries. */
#define TAMIS_INDEX_GROUP 32

/* Largest dimensions over the layers; all 0: no layer has an indexer. */
typedef struct tamis_indexer_dims {
    int32_t n_heads, head_dim, topk;
} tamis_indexer_dims;

void tamis_indexer_layout(tamis_indexer *indexer, tamis_profile profile, tamis_indexer_dims max,
                          int32_t max_tokens, int32_t n_threads, tamis_arena *arena);
/* Scratch floats of a thread. */
size_t tamis_indexer_scratch_floats(tamis_indexer_dims dims);

/* Selections are in descending order of score, so tokens that select all are scored, too. */
bool tamis_indexer_is_ranked(tamis_profile profile, tamis_index_family family);

/*
 * A rotated row (rotary embedding) of n values, a power of two, before pack_row codes it as a key:
 * rounding to BF16 and the Hadamard rotation; nothing in profile exact.
 */
void tamis_indexer_rotate_key(const tamis_kernels *kernels, tamis_profile profile,
                              tamis_index_family family, float *key, int32_t n);
/*
 * The token's queries after rotary embedding and its w_raw become what the scores need: w, and in
 * profiles other than exact the Hadamard rotation and codes of every head as the keys' format has
 * them - F4_E2M1: q_codes, q_scales; I8: q_codes; F8_E4M3: q, unscaled. Scales of I8 and F8_E4M3
 * are in w. Unused heads and lanes are zero. false: a NaN or infinity came out.
 */
bool tamis_indexer_prepare(const tamis_indexer *indexer, const tamis_exec *exec,
                           tamis_indexer_dims dims, const tamis_row_format *key_format,
                           int64_t token);
/*
 * Selects for every token of the step among its first visible[token] keys.
 * false: some token selects too few because scores are no numbers.
 */
bool tamis_indexer_select(const tamis_indexer *indexer, const tamis_exec *exec,
                          tamis_indexer_dims dims, const tamis_step *step, const tamis_cache *keys,
                          const int32_t *visible, const tamis_partition *partition);

#endif
