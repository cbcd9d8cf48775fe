/*
 * The only allocator. Every block is 64-byte aligned, zeroed, counted and tagged by kind.
 *
 * Between tamis_mem_run_begin and tamis_mem_run_end (a step) nothing may allocate or free: the
 * calls are counted, and debug builds assert. tamis_mem_fail_at makes the n-th allocation from
 * now fail once (tests); 0 switches it off.
 */
#ifndef TAMIS_CORE_MEM_H
#define TAMIS_CORE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tamis_mem_kind {
    TAMIS_MEM_MISC = 0,  /* objects, parsers, names */
    TAMIS_MEM_WEIGHTS,   /* what had to be widened or repacked at load */
    TAMIS_MEM_CACHES,
    TAMIS_MEM_WORKSPACE,
    TAMIS_MEM_TOKENIZER,
    TAMIS_NUM_MEM_KINDS
} tamis_mem_kind;

void *tamis_mem_alloc(tamis_mem_kind kind, size_t bytes); /* NULL if refused; bytes 0 gives a block */
void *tamis_mem_array(tamis_mem_kind kind, size_t n, size_t size); /* checked product */
/* Grow; the old block stays valid and is returned unchanged by a failing call (NULL result). */
void *tamis_mem_realloc(tamis_mem_kind kind, void *block, size_t bytes);
char *tamis_mem_strdup(tamis_mem_kind kind, const char *text);
void tamis_mem_free(void *block); /* NULL is fine */

/* Gives back to the system what was freed, as far as the system's allocator can. Slow. */
void tamis_mem_trim(void);

size_t tamis_mem_in_use(tamis_mem_kind kind); /* bytes, without headers */
uint64_t tamis_mem_num_allocs(void);          /* calls since process start */
void tamis_mem_fail_at(uint64_t n);

void tamis_mem_run_begin(void); /* nests over threads: counts runs in progress */
void tamis_mem_run_end(void);
uint64_t tamis_mem_num_allocs_in_run(void); /* allocator calls made while a run was in progress */
/* false: only count, so that a test can look at the count itself. Default true. */
void tamis_mem_assert_in_run(bool on);

#endif
