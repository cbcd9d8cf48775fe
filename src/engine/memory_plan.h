/*
 * Session parameters with their defaults filled in, and what the session will take.
 *
 * The plan is made by the same layout and measuring functions that later carve the memory, so it
 * cannot drift from it.
 */
#ifndef TAMIS_ENGINE_MEMORY_PLAN_H
#define TAMIS_ENGINE_MEMORY_PLAN_H

#include "engine/model_internal.h"
#include "model/net.h"

/* errors: INVALID, LIMIT, UNSUPPORTED; the parameter, its value and what is allowed. */
tamis_status tamis_session_params_resolve(tamis_session_params *out, const tamis_model *model,
                                          const tamis_session_params *params, tamis_error *err);
/* The view of resolved parameters that the network takes. */
tamis_net_params tamis_session_net_params(const tamis_model *model,
                                          const tamis_session_params *params);
/* Bytes of all snapshots of the rings' history, history_bytes each; 0 without prefix_caching. */
uint64_t tamis_session_snapshot_bytes(const tamis_session_params *params, uint64_t history_bytes);
/* Blocks of a sequence of max_model_len. */
int32_t tamis_session_table_width(const tamis_session_params *params);

/* `params` are resolved. errors: INVALID, LIMIT (address space) */
tamis_status tamis_memory_plan_make(tamis_memory_plan *out, const tamis_model *model,
                                    const tamis_session_params *params, tamis_error *err);

/* Bytes this process may still take: MemAvailable, or what the memory cgroups leave if that is
 * less; UINT64_MAX if the system does not say. */
uint64_t tamis_available_memory(void);

#endif
