/* Reading one entry of a tid2eid table that may lie at any byte. */
#ifndef TAMIS_WEIGHTS_EXPERT_IDS_H
#define TAMIS_WEIGHTS_EXPERT_IDS_H

#include <stdint.h>
#include <string.h>

static inline int32_t tamis_expert_id(const void *tid2eid, int64_t entry)
{
    int64_t id;
    memcpy(&id, (const uint8_t *)tid2eid + entry * 8, sizeof id);
    return (int32_t)id;
}

#endif
