/*
 * DeepSeek-V4, the main model: embedding -> layers -> head; behind tamis_v4_ops (model/net.h).
 *
 * The MTP block goes on from the streams X after the last layer (before the head's collapse):
 *
 *   X_s = e_proj . enorm(embedding of the next token) + h_proj . hnorm(X_s)
 *   a layer with window attention and learned routing, its own head collapse and norm, the head
 *
 * and what it leaves in X is what a further call goes on from.
 *
 * Source: V4 reference inference/model.py (Transformer, Block, ParallelHead); keys and tensors:
 * docs/models.md.
 */
#ifndef TAMIS_MODEL_V4_H
#define TAMIS_MODEL_V4_H

#include "attention/dsa/dsa_internal.h"
#include "model/net.h"

/* For tests: caches and plan of a net of this family. */
tamis_dsa_caches *tamis_v4_caches(tamis_net *net);
tamis_dsa_plan *tamis_v4_plan(tamis_net *net);

#endif
