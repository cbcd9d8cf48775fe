/*
 * A family's network as the engine runs it: caches, plan and activations behind one table of calls,
 * so that the engine knows no family.
 *
 * Order of a step: tamis_net_plan (may fail; nothing has changed then), tamis_net_forward (fails on
 * a NaN only). Nothing is allocated after open.
 */
#ifndef TAMIS_MODEL_NET_H
#define TAMIS_MODEL_NET_H

#include <assert.h>

#include "attention/common/layer_caches.h"
#include "model/moe.h"
#include "model/tap.h"

typedef struct tamis_net tamis_net;

typedef struct tamis_net_params {
    tamis_cache_params cache;
    tamis_plan_params plan;
    int32_t max_logits; /* rows per step */
    bool draft;         /* take caches and buffers for the MTP block (weights->n_mtp must be 1) */
} tamis_net_params;

typedef struct tamis_net_bytes {
    tamis_cache_bytes caches;
    uint64_t workspace; /* plan and activations */
} tamis_net_bytes;

typedef struct tamis_net_step {
    const int32_t *tokens;     /* [n_tokens] ids, in range */
    int32_t n_tokens;          /* those of the plan */
    const int32_t *logit_rows; /* [n_logits] tokens whose logits are wanted */
    int32_t n_logits;
    float *logits; /* [n_logits][vocab_size] */
} tamis_net_step;

/*
 * One run of the MTP block: for each token, from the hidden state at its position and the token
 * that follows, the logits of the token after that, and the block's own cache rows at these
 * positions.
 *
 * over_step   over all tokens of the last forward, with its plan and its hidden states. Rows of
 *             rejected tokens are written, too; they are written again before they are read.
 * otherwise   over the tokens of tamis_net_plan_draft, one per request: request i goes on from the
 *             hidden state that row i of the previous call left.
 */
typedef struct tamis_net_draft {
    bool over_step;
    const int32_t *next_tokens; /* [n_tokens] ids, in range */
    int32_t n_tokens;
    const int32_t *rows; /* [n_rows] ascending: tokens whose logits are wanted and whose hidden
                            states the next call may go on from; n_rows <= max_num_seqs */
    int32_t n_rows;
    float *logits; /* [n_rows][vocab_size] */
} tamis_net_draft;

/* What tamis_net_forward and tamis_net_draft_forward return: all is well, or the part in which a
 * NaN or infinity came up: a layer, or the embedding and the head (numbered as
 * tamis_weights_find_fault does). */
#define TAMIS_NET_FINE       (-2)
#define TAMIS_NET_FAULT_ENDS (-1)

/* How far a layer is; see tamis_net_watch. */
typedef enum tamis_net_moment {
    TAMIS_NET_LAYER_BEGINS = 0, /* its caches have not been touched in this run */
    TAMIS_NET_ROWS_WRITTEN,     /* rows in blocks are in place, attention has not read any */
    TAMIS_NET_LAYER_DONE        /* its attention is; rings are written, too */
} tamis_net_moment;

/* Told of every layer that runs, MTP block included, in order; what it returns false for ends the
 * run, as a fault in that layer does. fn NULL: nobody. */
typedef struct tamis_net_watch {
    bool (*fn)(void *user, tamis_net_moment moment, int32_t layer);
    void *user;
} tamis_net_watch;

/* What a family provides; each call gets the whole object, of which tamis_net is the first part. */
typedef struct tamis_net_ops {
    size_t net_bytes; /* of the family's object */
    /* Bytes of caches and plan: what open takes besides the activations. */
    tamis_status (*measure)(const tamis_net *net, tamis_net_bytes *out, tamis_error *err);
    /* Opens caches and plan, sets net->store and net->layer_caches. */
    tamis_status (*open)(tamis_net *net, tamis_error *err);
    void (*close)(tamis_net *net); /* a half-open one too */
    /* The family's activations, and its need of scratch floats per thread. */
    size_t (*layout)(tamis_net *net, tamis_arena *arena);
    tamis_status (*plan)(tamis_net *net, const tamis_batch *batch, tamis_error *err);
    int32_t (*forward)(tamis_net *net, const tamis_net_step *step);
    /* Only if params.draft: a plan with buffers of its own, so that the step's plan stays. */
    tamis_status (*plan_draft)(tamis_net *net, const tamis_batch *batch, tamis_error *err);
    int32_t (*draft)(tamis_net *net, const tamis_net_draft *draft);
} tamis_net_ops;

extern const tamis_net_ops tamis_v4_ops, tamis_v32_ops;

/* T = max_num_batched_tokens, R = max_logits. */
struct tamis_net {
    const tamis_net_ops *ops;
    const tamis_model_config *config;
    const tamis_model_weights *weights;
    tamis_net_params params;
    tamis_exec exec; /* team and kernels are the caller's to set before a step */
    tamis_tap tap;
    tamis_net_watch watch;
    tamis_cache_store *store; /* blocks and rings of all layers: fork, copies, rollback */
    const tamis_layer_caches *layer_caches; /* which of them a layer has */
    float *x;                 /* [T][H] normed input of the running sublayer */
    float *v;                 /* [T][H] its output */
    float *head_x;            /* [R][H]; with params.draft at least a row per draft token */
    tamis_moe moe;
    void *memory; /* the activations lie here */
};

/* errors: INVALID, LIMIT, UNSUPPORTED */
tamis_status tamis_net_measure(const tamis_model_config *config, const tamis_model_weights *weights,
                               const tamis_net_params *params, tamis_net_bytes *out,
                               tamis_error *err);
/* errors: the same, NO_MEMORY. config and weights must outlive the net. */
tamis_status tamis_net_open(tamis_net **out, const tamis_model_config *config,
                            const tamis_model_weights *weights, const tamis_net_params *params,
                            tamis_error *err);
void tamis_net_close(tamis_net **net);

static inline tamis_status tamis_net_plan(tamis_net *net, const tamis_batch *batch,
                                          tamis_error *err)
{
    return net->ops->plan(net, batch, err);
}
static inline int32_t tamis_net_forward(tamis_net *net, const tamis_net_step *step)
{
    return net->ops->forward(net, step);
}
static inline tamis_status tamis_net_plan_draft(tamis_net *net, const tamis_batch *batch,
                                                tamis_error *err)
{
    return net->ops->plan_draft(net, batch, err);
}
static inline int32_t tamis_net_draft_forward(tamis_net *net, const tamis_net_draft *draft)
{
    assert(net->params.draft && draft->n_rows <= net->params.plan.max_num_seqs);
    return net->ops->draft(net, draft);
}

/* ---------------------------------------------------------------- shared by the families */

/* Layers with caches: the main ones, and with params.draft the MTP block's. */
static inline int32_t tamis_net_num_layers(const tamis_net *net)
{
    return net->weights->n_layers + (net->params.draft ? 1 : 0);
}
/* Limits of the plan of plan_draft: a step of so many tokens has no more requests. */
tamis_plan_params tamis_net_draft_plan_params(const tamis_net *net);

/* In profiles official and ascend the embedding and normed rows are BF16 values, logits f32.
 *
 * The row of `embed` of every token, `copies` times side by side: out [n_tokens][copies][H]. false:
 * a NaN or infinity came up. */
bool tamis_net_embed(const tamis_net *net, const tamis_matrix *embed, const tamis_net_step *step,
                     int32_t copies, float *out);
/* out row i = norm(in row i), H wide; out rows lie out_stride floats apart; out may be in. false as
 * above. */
bool tamis_net_norm_rows(const tamis_net *net, const float *in, const float *norm, int64_t n_rows,
                         float *out, int64_t out_stride);
/* Logits of head_x [n_logits][H], already normed. false as above. */
bool tamis_net_head(const tamis_net *net, const tamis_matrix *head, const tamis_net_step *step);
/* Experts (or dense feed-forward) of a layer, x -> v, with their taps. false as above. */
bool tamis_net_experts(tamis_net *net, int32_t layer, const tamis_net_step *step);

/* A run of the MTP block as the step that its layer sees. */
static inline tamis_net_step tamis_net_draft_step(const tamis_net_draft *draft)
{
    return (tamis_net_step){.tokens = draft->next_tokens,
                            .n_tokens = draft->n_tokens,
                            .logit_rows = draft->rows,
                            .n_logits = draft->n_rows,
                            .logits = draft->logits};
}
/* Row i = row rows[i], ascending: what the next call goes on from. */
void tamis_net_keep_rows(void *data, size_t row_bytes, const int32_t *rows, int32_t n_rows);
/* Where a fault in the embedding or head of the MTP block lies: they may be the main model's. */
static inline int32_t tamis_net_mtp_fault(const tamis_net *net, const tamis_matrix *mtp,
                                          const tamis_matrix *main)
{
    return mtp->data == main->data ? TAMIS_NET_FAULT_ENDS : net->weights->n_layers;
}

static inline bool tamis_net_tell(const tamis_net *net, tamis_net_moment moment, int32_t layer)
{
    return net->watch.fn == NULL || net->watch.fn(net->watch.user, moment, layer);
}

static inline void tamis_net_emit(const tamis_net *net, int32_t layer, tamis_tap_stage stage,
                                  const void *data, const tamis_net_step *step, int64_t width)
{
    tamis_tap_emit(&net->tap, layer, stage, data, step->n_tokens, width);
}

#endif
