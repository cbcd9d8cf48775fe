/* Open-addressing hash table from names to numbers; names are borrowed. */
#ifndef TAMIS_WEIGHTS_NAME_TABLE_H
#define TAMIS_WEIGHTS_NAME_TABLE_H

#include "tamis/base.h"

typedef struct tamis_name_slot {
    const char *name; /* NULL: free */
    uint32_t hash;
    int32_t value;
} tamis_name_slot;

typedef struct tamis_name_table {
    tamis_name_slot *slots;
    size_t n_slots; /* a power of two, at least twice the names */
} tamis_name_table;

/* Room for max_names names. errors: NO_MEMORY */
tamis_status tamis_name_table_open(tamis_name_table *out, size_t max_names, tamis_error *err);
void tamis_name_table_close(tamis_name_table *table);
/* The number already stored under that name, or -1 after storing `value`. */
int32_t tamis_name_table_add(tamis_name_table *table, const char *name, int32_t value);
/* -1: not there. */
int32_t tamis_name_table_find(const tamis_name_table *table, const char *name);

#endif
