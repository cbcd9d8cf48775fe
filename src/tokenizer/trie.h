/*
 * A set of byte strings as a tree, one node per byte; children hang in a list of siblings.
 * Small next to the vocabulary tables, and fast enough because nearly all text leaves at the root.
 */
#ifndef TAMIS_TOKENIZER_TRIE_H
#define TAMIS_TOKENIZER_TRIE_H

#include <stddef.h>
#include <stdint.h>

#include "tamis/base.h"

typedef struct tamis_trie_node {
    int32_t first_child, next_sibling; /* 0: none (node 0 is the root, nobody's child) */
    int32_t value;                     /* -1: no string ends here */
    unsigned char byte;
} tamis_trie_node;

typedef struct tamis_trie {
    tamis_trie_node *nodes; /* NULL: empty set */
    int32_t n_nodes, capacity;
    int32_t root_child[256]; /* the root's children by byte, 0: none */
} tamis_trie;

/* Add a non-empty string; *existing is the value it had before, which is kept, or -1. */
tamis_status tamis_trie_add(tamis_trie *trie, const char *text, size_t bytes, int32_t value,
                            int32_t *existing, tamis_error *err);
/* The child of a node by byte, 0 if there is none. */
int32_t tamis_trie_child(const tamis_trie *trie, int32_t node, unsigned char byte);
/* Value of exactly this string, -1 if it is not in the set. */
int32_t tamis_trie_find(const tamis_trie *trie, const char *text, size_t bytes);
/* Value of the longest string that begins at text[0] and its length; -1 if there is none. */
int32_t tamis_trie_longest(const tamis_trie *trie, const char *text, size_t bytes, size_t *len);
size_t tamis_trie_bytes(const tamis_trie *trie);
void tamis_trie_free(tamis_trie *trie); /* an all-zero one is fine */

#endif
