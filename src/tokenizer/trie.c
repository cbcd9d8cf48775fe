#include "tokenizer/trie.h"

#include <assert.h>

#include "core/error.h"
#include "core/mem.h"

enum { FIRST_CAPACITY = 64, MAX_NODES = 1 << 28 };

static tamis_status reserve(tamis_trie *trie, size_t more, tamis_error *err)
{
    const size_t need = (size_t)trie->n_nodes + more + 1; /* the root too */
    if (need > MAX_NODES)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%zu bytes of strings to look for, allowed: at most %d", need, MAX_NODES);
    if (need <= (size_t)trie->capacity)
        return TAMIS_STATUS_OK;
    size_t capacity = trie->capacity ? (size_t)trie->capacity : FIRST_CAPACITY;
    while (capacity < need)
        capacity *= 2;
    void *grown =
        tamis_mem_realloc(TAMIS_MEM_TOKENIZER, trie->nodes, capacity * sizeof *trie->nodes);
    if (grown == NULL)
        return tamis_fail_memory(err, "a set of strings", capacity * sizeof *trie->nodes);
    trie->nodes = grown;
    trie->capacity = (int32_t)capacity;
    if (trie->n_nodes == 0) {
        trie->nodes[0] = (tamis_trie_node){.value = -1};
        trie->n_nodes = 1;
    }
    return TAMIS_STATUS_OK;
}

int32_t tamis_trie_child(const tamis_trie *trie, int32_t node, unsigned char byte)
{
    if (node == 0)
        return trie->root_child[byte];
    int32_t child = trie->nodes[node].first_child;
    while (child != 0 && trie->nodes[child].byte != byte)
        child = trie->nodes[child].next_sibling;
    return child;
}

static int32_t add_child(tamis_trie *trie, int32_t node, unsigned char byte)
{
    assert(trie->n_nodes < trie->capacity);
    const int32_t child = trie->n_nodes++;
    trie->nodes[child] =
        (tamis_trie_node){.next_sibling = trie->nodes[node].first_child, .value = -1, .byte = byte};
    trie->nodes[node].first_child = child;
    if (node == 0)
        trie->root_child[byte] = child;
    return child;
}

tamis_status tamis_trie_add(tamis_trie *trie, const char *text, size_t bytes, int32_t value,
                            int32_t *existing, tamis_error *err)
{
    assert(bytes > 0);
    TAMIS_TRY(reserve(trie, bytes, err));
    int32_t node = 0;
    for (size_t i = 0; i < bytes; ++i) {
        const int32_t child = tamis_trie_child(trie, node, (unsigned char)text[i]);
        node = child != 0 ? child : add_child(trie, node, (unsigned char)text[i]);
    }
    *existing = trie->nodes[node].value;
    if (*existing < 0)
        trie->nodes[node].value = value;
    return TAMIS_STATUS_OK;
}

int32_t tamis_trie_find(const tamis_trie *trie, const char *text, size_t bytes)
{
    int32_t node = 0;
    for (size_t i = 0; i < bytes; ++i) {
        node = tamis_trie_child(trie, node, (unsigned char)text[i]);
        if (node == 0)
            return -1;
    }
    return node != 0 ? trie->nodes[node].value : -1;
}

int32_t tamis_trie_longest(const tamis_trie *trie, const char *text, size_t bytes, size_t *len)
{
    int32_t node = 0, best = -1;
    for (size_t i = 0; i < bytes; ++i) {
        node = tamis_trie_child(trie, node, (unsigned char)text[i]);
        if (node == 0)
            break;
        if (trie->nodes[node].value >= 0) {
            best = trie->nodes[node].value;
            *len = i + 1;
        }
    }
    return best;
}

size_t tamis_trie_bytes(const tamis_trie *trie)
{
    return (size_t)trie->capacity * sizeof *trie->nodes;
}

void tamis_trie_free(tamis_trie *trie)
{
    tamis_mem_free(trie->nodes);
    *trie = (tamis_trie){0};
}
