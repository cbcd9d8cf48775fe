#include "weights/name_table.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"

static uint32_t hash_of(const char *name) /* FNV-1a, folded */
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return (uint32_t)(h ^ h >> 32);
}

tamis_status tamis_name_table_open(tamis_name_table *out, size_t max_names, tamis_error *err)
{
    size_t n_slots = 16;
    while (n_slots < 2 * max_names)
        n_slots *= 2;
    out->n_slots = n_slots;
    out->slots = tamis_mem_array(TAMIS_MEM_MISC, n_slots, sizeof *out->slots);
    return out->slots != NULL
               ? TAMIS_STATUS_OK
               : tamis_fail_memory(err, "table of tensor names", n_slots * sizeof *out->slots);
}

void tamis_name_table_close(tamis_name_table *table)
{
    tamis_mem_free(table->slots);
    *table = (tamis_name_table){NULL, 0};
}

/* The slot that holds the name, or the free one where it would go. */
static tamis_name_slot *slot_of(const tamis_name_table *table, const char *name, uint32_t hash)
{
    size_t i = hash & (table->n_slots - 1);
    while (table->slots[i].name != NULL &&
           (table->slots[i].hash != hash || strcmp(table->slots[i].name, name) != 0))
        i = (i + 1) & (table->n_slots - 1);
    return &table->slots[i];
}

int32_t tamis_name_table_add(tamis_name_table *table, const char *name, int32_t value)
{
    const uint32_t hash = hash_of(name);
    tamis_name_slot *slot = slot_of(table, name, hash);
    if (slot->name != NULL)
        return slot->value;
    *slot = (tamis_name_slot){name, hash, value};
    return -1;
}

int32_t tamis_name_table_find(const tamis_name_table *table, const char *name)
{
    const tamis_name_slot *slot = slot_of(table, name, hash_of(name));
    return slot->name != NULL ? slot->value : -1;
}
