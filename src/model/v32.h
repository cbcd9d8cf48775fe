/*
 * DeepSeek-V3.2 and GLM-5 / 5.1 / 5.2, the main model: embedding -> layers -> head with one
 * residual stream; behind tamis_v32_ops (model/net.h).
 *
 *   h = embedding
 *   every layer:  h += attention(norm(h)), h += experts(norm(h))
 *   logits = head . norm(h)
 *
 * The MTP block goes on from h:
 *
 *   h = eh_proj . [enorm(embedding of the next token) ; hnorm(norm(h))], later hnorm(h)
 *   a sparse layer with an indexer of its own, its own norm, the head
 *
 * What is different between the two families is in the config. Source: V3.2 reference
 * inference/model.py (Transformer, Block); keys and tensors: docs/models.md.
 */
#ifndef TAMIS_MODEL_V32_H
#define TAMIS_MODEL_V32_H

#include "attention/sfa/sfa_internal.h"
#include "model/net.h"

/* For tests: caches and plan of a net of these families. */
tamis_sfa_caches *tamis_v32_caches(tamis_net *net);
tamis_sfa_plan *tamis_v32_plan(tamis_net *net);

#endif
