/*
 * Stop strings over streamed text: an Aho-Corasick automaton, one step per byte.
 *
 * The state after some text is the longest suffix that begins a stop string; its depth is what must
 * be held back. fail(state) is the next shorter such suffix, so a stop string is complete when one
 * ends on the chain of fails, and the first on the chain is the longest, that is the one that
 * starts first. The result does not depend on how the text is cut into calls.
 */
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "tamis/tokenizer.h"
#include "tokenizer/trie.h"

struct tamis_stop {
    tamis_trie trie;     /* values are lengths of the strings that end there */
    int32_t *fail;       /* [n_nodes] */
    int32_t *depth;      /* [n_nodes] */
    int32_t *hit_length; /* [n_nodes] of the longest string that ends here, 0: none */
    int32_t state;
    bool is_hit;
    char *text; /* [capacity]: what the last call showed, then what is held back */
    size_t held_at;
    size_t capacity;
};

static int32_t step(const tamis_stop *stop, int32_t state, unsigned char byte)
{
    int32_t child;
    while ((child = tamis_trie_child(&stop->trie, state, byte)) == 0 && state != 0)
        state = stop->fail[state];
    return child;
}

/* Breadth first: the fail of a node is nearer to the root, so it is known when it is needed. */
static void link_nodes(tamis_stop *stop, int32_t *queue)
{
    const tamis_trie_node *nodes = stop->trie.nodes;
    size_t n_queue = 1;
    queue[0] = 0;
    for (size_t i = 0; i < n_queue; ++i) {
        const int32_t parent = queue[i];
        for (int32_t c = nodes[parent].first_child; c != 0; c = nodes[c].next_sibling) {
            stop->fail[c] = parent == 0 ? 0 : step(stop, stop->fail[parent], nodes[c].byte);
            stop->depth[c] = stop->depth[parent] + 1;
            stop->hit_length[c] =
                nodes[c].value > 0 ? nodes[c].value : stop->hit_length[stop->fail[c]];
            queue[n_queue++] = c;
        }
    }
}

static tamis_status add_strings(tamis_stop *stop, const char *const *strings, size_t n_strings,
                                tamis_error *err)
{
    for (size_t i = 0; i < n_strings; ++i) {
        const size_t bytes = strings[i] != NULL ? strlen(strings[i]) : 0;
        int32_t existing;
        if (bytes == 0)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "stop string %zu is empty, allowed: at least one byte", i);
        if (bytes > INT32_MAX)
            return tamis_fail(err, TAMIS_STATUS_INVALID,
                              "stop string %zu has %zu bytes, allowed: at most %d", i, bytes,
                              INT32_MAX);
        TAMIS_TRY(tamis_trie_add(&stop->trie, strings[i], bytes, (int32_t)bytes, &existing, err));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status link_strings(tamis_stop *stop, tamis_error *err)
{
    const size_t n = (size_t)stop->trie.n_nodes;
    if (n == 0)
        return TAMIS_STATUS_OK;
    stop->fail = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *stop->fail);
    stop->depth = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *stop->depth);
    stop->hit_length = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *stop->hit_length);
    int32_t *queue = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *queue);
    const bool ok = stop->fail && stop->depth && stop->hit_length && queue;
    if (ok)
        link_nodes(stop, queue);
    tamis_mem_free(queue);
    return ok ? TAMIS_STATUS_OK : tamis_fail_memory(err, "the stop strings", 16 * n);
}

tamis_status tamis_stop_open(tamis_stop **out, const char *const *strings, size_t n_strings,
                             tamis_error *err)
{
    tamis_status st;
    if (out == NULL || (strings == NULL && n_strings > 0))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "tamis_stop_open: out or strings is NULL, allowed: both given");
    tamis_stop *stop = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *stop);
    *out = NULL;
    if (stop == NULL)
        return tamis_fail_memory(err, "the stop strings", sizeof *stop);
    TAMIS_TRY_GOTO(add_strings(stop, strings, n_strings, err));
    TAMIS_TRY_GOTO(link_strings(stop, err));
    *out = stop;
    return TAMIS_STATUS_OK;
fail:
    tamis_stop_close(&stop);
    return st;
}

void tamis_stop_close(tamis_stop **stop)
{
    if (stop == NULL || *stop == NULL)
        return;
    tamis_trie_free(&(*stop)->trie);
    tamis_mem_free((*stop)->fail);
    tamis_mem_free((*stop)->depth);
    tamis_mem_free((*stop)->hit_length);
    tamis_mem_free((*stop)->text);
    tamis_mem_free(*stop);
    *stop = NULL;
}

static size_t held_bytes(const tamis_stop *stop)
{
    return stop->state == 0 ? 0 : (size_t)stop->depth[stop->state];
}

static tamis_status reserve_text(tamis_stop *stop, size_t bytes, tamis_error *err)
{
    if (bytes <= stop->capacity && stop->text != NULL)
        return TAMIS_STATUS_OK;
    const size_t capacity = bytes < 32 ? 64 : 2 * bytes;
    char *grown = tamis_mem_realloc(TAMIS_MEM_MISC, stop->text, capacity);
    if (grown == NULL)
        return tamis_fail_memory(err, "text before a stop string", capacity);
    stop->text = grown;
    stop->capacity = capacity;
    return TAMIS_STATUS_OK;
}

/* Bring the held text to the front and put the new text behind it. */
static void append_text(tamis_stop *stop, const char *text, size_t bytes)
{
    const size_t n_held = held_bytes(stop);
    memmove(stop->text, stop->text + stop->held_at, n_held);
    if (bytes > 0)
        memcpy(stop->text + n_held, text, bytes);
}

tamis_status tamis_stop_push(tamis_stop *stop, const char *text, size_t bytes, const char **out,
                             size_t *out_bytes, bool *hit, tamis_error *err)
{
    const size_t n_held = held_bytes(stop);
    TAMIS_TRY(reserve_text(stop, n_held + bytes, err));
    append_text(stop, text, bytes);
    size_t n_shown = 0;
    for (size_t i = 0; i < bytes && !stop->is_hit; ++i) {
        stop->state = step(stop, stop->state, (unsigned char)stop->text[n_held + i]);
        const int32_t length = stop->state == 0 ? 0 : stop->hit_length[stop->state];
        if (length > 0) {
            stop->is_hit = true;
            n_shown = n_held + i + 1 - (size_t)length;
            stop->state = 0;
        }
    }
    if (!stop->is_hit)
        n_shown = n_held + bytes - held_bytes(stop);
    stop->held_at = n_shown;
    *out = stop->text;
    *out_bytes = n_shown;
    *hit = stop->is_hit;
    return TAMIS_STATUS_OK;
}

void tamis_stop_flush(tamis_stop *stop, const char **out, size_t *out_bytes)
{
    *out_bytes = held_bytes(stop);
    *out = *out_bytes > 0 ? stop->text + stop->held_at : "";
    stop->state = 0;
}
