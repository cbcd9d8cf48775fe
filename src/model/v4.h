/*
 * DeepSeek-V4, the main model: embedding -> layers -> head, for the tokens of one planned step.
 *
 * Source: V4 reference inference/model.py (Transformer, Block, ParallelHead); keys and tensors:
 * docs/models.md.
 */
#ifndef TAMIS_MODEL_V4_H
#define TAMIS_MODEL_V4_H

#include "attention/dsa/dsa_internal.h"
#include "model/moe.h"
#include "model/tap.h"

/* What tamis_v4_forward returns: all is well, or the part in which a NaN or infinity came up: a
 * layer, or the embedding and the head (numbered as tamis_weights_find_fault does). */
#define TAMIS_V4_FINE       (-2)
#define TAMIS_V4_FAULT_ENDS (-1)

/* A model with its activations; T = max_tokens, R = max_logits, m = hc_mult. */
typedef struct tamis_v4 {
    const tamis_model_config *config;
    const tamis_model_weights *weights;
    int32_t max_tokens, max_logits, n_threads;
    tamis_exec exec; /* team and kernels are the caller's to set */
    tamis_tap tap;
    float *streams; /* [T][m][H] */
    float *coefs;   /* [T][(2 + m) m] of the running site */
    float *x;       /* [T][H] normed input of the running sublayer */
    float *v;       /* [T][H] its output */
    float *head_x;  /* [R][H] */
    tamis_moe moe;
} tamis_v4;

/* Takes the arrays, scratch of the threads included; the fields above exec must be set. */
void tamis_v4_layout(tamis_v4 *v4, tamis_arena *arena);

typedef struct tamis_v4_step {
    const int32_t *tokens;     /* [n_tokens] ids, in range */
    int32_t n_tokens;          /* those of the plan */
    const int32_t *logit_rows; /* [n_logits] tokens whose logits are wanted */
    int32_t n_logits;
    float *logits; /* [n_logits][vocab_size] */
    tamis_dsa_plan *plan;
    tamis_dsa_caches *caches;
} tamis_v4_step;

/* TAMIS_V4_FINE, or where it stopped; the rows written so far must then not be used. */
int32_t tamis_v4_forward(tamis_v4 *v4, const tamis_v4_step *step);

#endif
