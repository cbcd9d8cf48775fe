/*
 * The second opinion on the other family: DeepSeek-V3.2 and GLM-5 / 5.2 in double precision, slow
 * and obvious. All tokens at once, K and V expanded for every head and token (the library absorbs
 * them and never does that), full score rows, no caches, no chunks, no kernels (oracle_math.h:
 * number formats, matrices). Written from the formulas of the specification alone (MLA, indexer,
 * sparse attention; whole model: dense layers, expert groups, head).
 *
 * One thing is single precision on purpose: the rotary angle, position times frequency, which the
 * model defines so. Everything it returns is malloc'ed and freed by the matching call.
 */
#ifndef TAMIS_TEST_ORACLE_V32_H
#define TAMIS_TEST_ORACLE_V32_H

#include "support/oracle_math.h"

/*
 * Indices of the k largest of n values, best first, of equal ones the lower first; values of -inf
 * are never chosen; -1 fills up. Returns how near the choice was: (last chosen - first rejected) /
 * largest |value|, 1 if nothing was rejected.
 */
double oracle_choose(int32_t *ids, int32_t k, const double *values, int32_t n);

/* ---------------------------------------------------------------- one attention layer */

typedef struct oracle_sfa_options {
    const uint8_t *want;       /* [n] queries whose output is computed; NULL: all */
    const int32_t *given_topk; /* [n][index_topk] attend to these positions, -1 skipped */
    bool bf16_rows;            /* round latent and key rows as bf16 caches do */
} oracle_sfa_options;

typedef struct oracle_sfa {
    int32_t n;
    double *out;    /* [n][hidden_size], zero where not wanted */
    double *lse;    /* [n][num_heads] log of the sum of exponentials of scaled scores */
    double *latent; /* [n][kv_lora_rank + rope]; the rotated part in neighbouring pairs */
    double *ikeys; /* [n][index_head_dim]; rotated part: GLM pairs, V3.2 halves; NULL: no indexer */
    double *scores;  /* [n][n], wanted queries, -inf after the query; NULL without indexer */
    int32_t *topk;   /* [n][index_topk] own choice, best first, then -1; NULL without indexer */
    double *margins; /* [n] of that choice as oracle_choose says; 1 where there was none */
} oracle_sfa;

/*
 * x [n][hidden_size]; options may be NULL. A reuse_topk layer attends to given_topk, which must be
 * there; with index_topk 0 every query attends to everything before it.
 */
oracle_sfa oracle_sfa_run(const tamis_sfa_layer *layer, const double *x, int32_t n,
                          const oracle_sfa_options *options);
void oracle_sfa_free(oracle_sfa *attention);

/* (nope + rope)^-0.5 m^2, m = 0.1 mscale_all_dim ln(yarn_factor) + 1 when YaRN is on. */
double oracle_sfa_softmax_scale(int32_t qk_head_dim, double yarn_factor, double mscale_all_dim);

/* ---------------------------------------------------------------- the whole model */

typedef struct oracle_v32 {
    tamis_model_config config;
    tamis_checkpoint *checkpoint;
    tamis_model_weights *weights;
} oracle_v32;

oracle_v32 oracle_v32_open(const char *dir);
void oracle_v32_close(oracle_v32 *model);

typedef struct oracle_v32_layer {
    double *attn_in, *ffn_in, *ffn_out, *hidden; /* [n][hidden_size]; hidden: after the layer */
    oracle_sfa attn;
    const int32_t *topk;    /* what was attended to: attn.topk, or that of the earlier layer */
    int32_t *experts;       /* [n][num_experts_per_tok], best first; NULL in a dense layer */
    double *expert_weights; /* [n][num_experts_per_tok] */
    double *margins;        /* [n] of expert groups and experts; 1 in a dense layer */
} oracle_v32_layer;

typedef struct oracle_v32_run {
    int32_t n, n_layers;
    oracle_v32_layer *layers;
    double *logits; /* [n][vocab_size] */
} oracle_v32_run;

oracle_v32_run oracle_v32_forward(const oracle_v32 *model, const int32_t *ids, int32_t n,
                                  bool bf16_rows);
void oracle_v32_run_free(oracle_v32_run *run);

/*
 * The MTP block on its own layer, whose inputs of all positions stand side by side: position i goes
 * on from the main model's normed hidden state at i and from token i + 1. Further positions (go_on)
 * go on from the block's own hidden state as it is; with index_share_for_mtp_iteration they attend
 * to what the last of the first n positions attended to.
 */
typedef struct oracle_v32_mtp {
    const oracle_v32 *model;
    int32_t n, n_first; /* positions so far, those of open */
    double *inputs;     /* [n][hidden_size] of the layer */
    int32_t *topk;      /* [n][index_topk] own choice of the first ones */
    oracle_v32_run run; /* one layer, logits [n][vocab_size] */
} oracle_v32_mtp;

/* Positions 0 .. n - 1 with tokens next[0 .. n); room for n_further more. run: of the main model,
 * at least n tokens. */
oracle_v32_mtp oracle_v32_mtp_open(const oracle_v32 *model, const oracle_v32_run *run,
                                   const int32_t *next, int32_t n, int32_t n_further);
/* One position more. */
void oracle_v32_mtp_go_on(oracle_v32_mtp *mtp, int32_t next);
void oracle_v32_mtp_close(oracle_v32_mtp *mtp);

/* Smallest margin of tokens first..last over all layers: of indexers, of expert choices. */
double oracle_v32_index_margin(const oracle_v32_run *run, int32_t first, int32_t last);
double oracle_v32_router_margin(const oracle_v32_run *run, int32_t first, int32_t last);

#endif
