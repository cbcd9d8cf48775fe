/*
 * The second opinion: DeepSeek-V4 in double precision, slow and obvious. All tokens at once, dense
 * masks, no caches, no chunks, no kernels (oracle_math.h: number formats, matrices).
 * Written from the formulas of the specification alone (attention: window, compressor, indexer,
 * sinks; whole model: hyper-connections, experts, head).
 *
 * One thing is single precision on purpose: the rotary angle, position times frequency, which the
 * model defines so. Everything it returns is malloc'ed and freed by the matching call.
 */
#ifndef TAMIS_TEST_ORACLE_V4_H
#define TAMIS_TEST_ORACLE_V4_H

#include "support/oracle_math.h"

/* ---------------------------------------------------------------- one attention layer */

typedef struct oracle_attention_options {
    const uint8_t *want;       /* [n] queries whose output is computed; NULL: all */
    const int32_t *given_topk; /* [n][index_topk] attend to these rows instead of the own choice */
    bool bf16_rows;            /* round window, compressed and key rows as bf16 caches do */
} oracle_attention_options;

typedef struct oracle_attention {
    int32_t n, n_rows; /* tokens; compressed rows n / ratio */
    double *out;       /* [n][hidden_size], zero where not wanted */
    double *ckv;       /* [n_rows][head_dim] */
    double *ikeys;     /* [n_rows][index_head_dim]; NULL without indexer */
    double *scores;    /* [n][n_rows], wanted queries, visible rows; NULL without indexer */
    int32_t *topk;     /* [n][index_topk] own choice, ascending, then -1; NULL without indexer */
    double
        index_margin; /* smallest (k-th minus next score) / largest |score|; 1 if none was near */
} oracle_attention;

/* x [n][hidden_size]; options may be NULL. */
oracle_attention oracle_attention_run(const tamis_dsa_layer *layer, const double *x, int32_t n,
                                      const oracle_attention_options *options);
void oracle_attention_free(oracle_attention *attention);

/* ---------------------------------------------------------------- the whole model */

typedef struct oracle_v4 {
    tamis_model_config config;
    tamis_checkpoint *checkpoint;
    tamis_model_weights *weights;
} oracle_v4;

oracle_v4 oracle_v4_open(const char *dir);
void oracle_v4_close(oracle_v4 *model);

typedef struct oracle_v4_layer {
    double *attn_in, *ffn_in, *ffn_out; /* [n][hidden_size] */
    oracle_attention attn;
    int32_t *experts;       /* [n][num_experts_per_tok] */
    double *expert_weights; /* [n][num_experts_per_tok] */
    double *hidden;         /* [n][hc_mult][hidden_size] streams after the layer */
} oracle_v4_layer;

typedef struct oracle_v4_run {
    int32_t n, n_layers;
    oracle_v4_layer *layers;
    double *logits;                     /* [n][vocab_size] */
    double index_margin, router_margin; /* smallest over all layers and positions */
} oracle_v4_run;

oracle_v4_run oracle_v4_forward(const oracle_v4 *model, const int32_t *ids, int32_t n,
                                bool bf16_rows);
void oracle_v4_run_free(oracle_v4_run *run);

/*
 * The MTP block on its own layer, whose inputs of all positions stand side by side: position i goes
 * on from the streams after the main model's last layer at i and from token i + 1.
 */
typedef struct oracle_v4_mtp {
    const oracle_v4 *model;
    int32_t n;         /* positions so far */
    double *inputs;    /* [n][hc_mult][hidden_size] of the layer */
    oracle_v4_run run; /* one layer, logits [n][vocab_size] */
} oracle_v4_mtp;

/* Positions 0 .. n - 1 with tokens next[0 .. n); room for n_further more. run: of the main model,
 * at least n tokens. */
oracle_v4_mtp oracle_v4_mtp_open(const oracle_v4 *model, const oracle_v4_run *run,
                                 const int32_t *next, int32_t n, int32_t n_further);
/* One position more, from the block's own streams at the last one. */
void oracle_v4_mtp_go_on(oracle_v4_mtp *mtp, int32_t next);
void oracle_v4_mtp_close(oracle_v4_mtp *mtp);

/*
 * The hyper-connection site of one token: streams [m][hidden] -> pre [m], post [m], combine [m][m]
 * (row = stream read, column = stream written). fn: oracle_matrix of hc->fn.
 */
void oracle_hyper_connection(double *pre, double *post, double *combine, const double *streams,
                             const double *fn, const tamis_hc_weights *hc,
                             const tamis_model_config *config);

#endif
