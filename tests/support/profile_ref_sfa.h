/*
 * The slow reference of the profiles official and ascend for V3.2 and GLM: every stage of a layer
 * in double precision with the roundings that docs/numerics-profiles.md and the specification
 * name, fed with what the engine itself fed it, and compared with what the engine made of it.
 *
 * - Codes, scales, cache rows, integer sums and everything that follows from them by single f32,
 *   FP16 or BF16 steps: bit for bit.
 * - Sums in f32: |seen - value| <= error, where the error is 2^-24 times the sum of the magnitudes
 *   of all partial sums, in the order of docs/numerics.md (lanes16, quads16, chain), plus the error of the
 *   terms. Other f32 steps: 2^-24 each, functions as docs/numerics.md states them.
 * - Such a value rounded to BF16: what the engine holds lies between bf16(value - error) and
 *   bf16(value + error). Nearly always the two are the same number; where a border of the rounding
 *   lies between them the value is called open, and the tally counts it. An open value that is
 *   read further within a stage takes the distance along as its error.
 *
 * A projection that the engine overwrites before anybody can see it is made again by the library's
 * own linear operator from the engine's own input (same bits by the numerics contract), checked
 * itself, and serves as the input of the stage behind it.
 *
 * Every mismatch fails the running cmocka test with case, layer, stage, row and channel.
 */
#ifndef TAMIS_TEST_PROFILE_REF_SFA_H
#define TAMIS_TEST_PROFILE_REF_SFA_H

#include "attention/sfa/plan.h"
#include "support/engine_run.h"
#include "support/lowbit_ref.h"

/* ---------------------------------------------------------------- comparing */

typedef struct profile_tally {
    const char *stage;
    int64_t n, n_open;
    double worst; /* f32 values: largest error as a share of the bound */
} profile_tally;

/* One case: a folder or a layer in one profile with one cache type. */
typedef struct profile_case {
    const char *name;
    tamis_profile profile;
    lowbit_layout kv, index_key;
    int32_t layer; /* in messages */
    profile_tally tallies[48];
    int32_t n_tallies, latest;
    float *q;         /* queries of the running layer, kept for its attention */
    tamis_team *team; /* for replays: none may be opened while a step runs */
} profile_case;

/* kv_cache_dtype as in tamis_cache_params, which here is one that the profile has. */
profile_case profile_case_open(const char *name, tamis_profile profile, tamis_dtype kv_cache_dtype);
/* Prints what was compared. */
void profile_case_close(profile_case *c);

/* A number the engine holds, as far as the reference knows it: within v - e .. v + e. */
typedef struct profile_value {
    double v, e;
} profile_value;
profile_value profile_bf16(profile_value x);

/* row: token, or whatever the stage is over. */
void profile_expect_f32(profile_case *c, const char *stage, int64_t row, int64_t channel,
                        float seen, profile_value x);
void profile_expect_bf16(profile_case *c, const char *stage, int64_t row, int64_t channel,
                         float seen, profile_value x);
void profile_expect_same(profile_case *c, const char *stage, int64_t row, int64_t channel,
                         double seen, double expected);
void profile_expect_bytes(profile_case *c, const char *stage, int64_t row, const uint8_t *seen,
                          const uint8_t *expected, int64_t n);
/* Counts a decision, open if an error could have turned it. */
void profile_count(profile_case *c, const char *stage, bool is_open);

/* ---------------------------------------------------------------- sums, norms, rotations */

/* Dot products in the order of the kernels. */
profile_value profile_lanes16(const double *a, const double *b, int64_t n);
profile_value profile_quads16(const double *a, const double *b, int64_t n);
profile_value profile_chain(const double *a, const double *b, int64_t n);
/* out[i] = x[i] weight[i] / sqrt(mean of squares + eps), not rounded. */
void profile_rmsnorm(profile_value *out, const float *x, const float *weight, int64_t n,
                     double eps);
/* In place, not rounded. Pairs are neighbours or channels i and i + rope / 2. */
void profile_rope(profile_value *x, int32_t rope, int32_t pos, bool is_interleaved,
                  const tamis_rope_config *config);

/* ---------------------------------------------------------------- linear layers */

typedef enum profile_linear_flags {
    PROFILE_TABLE = 0,      /* as the table of the profiles has it */
    PROFILE_KEEP_INPUT = 1, /* exceptions of that table */
    PROFILE_KEEP_OUTPUT = 2
} profile_linear_flags;

/* y [n][row_end - row_begin] = rows of w times x [n][cols]; strides in floats. */
typedef struct profile_linear {
    const tamis_matrix *w;
    int64_t row_begin, row_end;
    const float *x, *y;
    int64_t x_stride, y_stride;
    int64_t n;
    int flags;
} profile_linear;
void profile_check_linear(profile_case *c, const char *stage, const profile_linear *job);
/* The same by the library: all rows of w, x and y contiguous; checked; to be freed by the caller.
 */
float *profile_replay_linear(profile_case *c, const char *stage, const tamis_matrix *w,
                             const float *x, int64_t n, int flags);
/* Elements as numbers, scaled but for I8 and I4; [rows][cols], to be freed by the caller. */
double *profile_matrix(const tamis_matrix *w);

/* ---------------------------------------------------------------- a layer */

/* What stands between the operators of one layer of the plan's step; x [n_tokens][hidden_size]. */
typedef struct profile_layer {
    const tamis_sfa_layer *layer;
    int32_t layer_idx;
    const tamis_sfa_plan *plan;
    const tamis_sfa_caches *caches;
    const float *x;
} profile_layer;

/* After preprocess: latents, index keys and queries, weights, absorbed and rotated queries. */
void profile_check_preprocess(profile_case *c, const profile_layer *l);
/* Part of it: indexer. */
void profile_check_index(profile_case *c, const profile_layer *l);
/* After output [n_tokens][hidden_size]: selection, attention, values, o_proj. */
void profile_check_output(profile_case *c, const profile_layer *l, const float *out);
/* Part of it: the plan's selection from the codes of queries and keys. */
void profile_check_selection(profile_case *c, const profile_layer *l);

/* Bytes of the row that a token's sequence has at pos; checks that the row is as long as `row`. */
const uint8_t *profile_cache_row(const profile_layer *l, tamis_sfa_role role, int32_t token,
                                 int32_t pos, const lowbit_row *row);

/* ---------------------------------------------------------------- a model */

/*
 * Runs n ids through the session in one step as a new sequence and checks every stage of every
 * layer as it passes: residual stream, norms, attention, experts, logits of all tokens. With
 * params.mtp also the MTP block behind the step: n + 1 ids are read, and the session must take 3
 * sequences.
 */
void profile_check_prompt(profile_case *c, test_engine *engine, const int32_t *ids, int32_t n);

#endif
