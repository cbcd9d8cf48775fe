/*
 * The allocator: a 64-byte header in front of every block keeps its size and kind, so that free
 * and realloc can count. Blocks are written (memset) when they are made, large ones too: the
 * memory plan that is printed before a session opens is then what the process really holds, and
 * no step pays for a page fault.
 */
#include "core/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/size.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define BLOCK_ALIGN 64
#define HUGE_PAGE   ((size_t)2 << 20)
#define BLOCK_MAGIC 0x74616d69u

typedef struct block_header {
    size_t bytes; /* asked for, without header and padding */
    uint32_t kind;
    uint32_t magic;
} block_header;

static_assert(sizeof(block_header) <= BLOCK_ALIGN, "the header lives in one alignment unit");

static atomic_size_t in_use[TAMIS_NUM_MEM_KINDS];
static atomic_uint_fast64_t num_allocs;
static atomic_uint_fast64_t fail_countdown; /* 0: off; 1: the next allocation fails */
static atomic_int runs_in_progress;
static atomic_uint_fast64_t num_calls_in_run;
static atomic_bool assert_in_run = true;
static _Thread_local int runs_of_this_thread;

static block_header *header_of(void *block)
{
    block_header *header = (block_header *)((uint8_t *)block - BLOCK_ALIGN);
    assert(header->magic == BLOCK_MAGIC);
    return header;
}

/* The count sees every thread; the assert only the one whose step it is, because another session
 * may rightly open meanwhile. */
static void note_call(void)
{
    if (atomic_load(&runs_in_progress) == 0)
        return;
    atomic_fetch_add(&num_calls_in_run, 1);
    assert(runs_of_this_thread == 0 || !atomic_load(&assert_in_run));
}

static bool must_fail(void)
{
    uint_fast64_t n = atomic_load(&fail_countdown);
    while (n != 0 && !atomic_compare_exchange_weak(&fail_countdown, &n, n - 1))
        ;
    return n == 1;
}

/* The address sanitizer watches what comes from malloc. */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_MAPPED_BLOCKS false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_MAPPED_BLOCKS false
#endif
#endif
#ifndef HAS_MAPPED_BLOCKS
#define HAS_MAPPED_BLOCKS true
#endif

static bool is_mapped(size_t bytes)
{
    return HAS_MAPPED_BLOCKS && bytes >= HUGE_PAGE;
}

/* Mapped blocks end at a multiple of any system's page. */
static size_t mapped_bytes(size_t bytes)
{
    const size_t page = (size_t)64 << 10;
    return (bytes + page - 1) / page * page;
}

/*
 * From one huge page on, blocks are mapped for themselves, in huge pages where the kernel gives
 * them: rows that are gathered and tables that are read at random then cost no page walks. What
 * the mapping has too much, to begin at a huge page, goes back at once.
 */
static void *block_map(size_t bytes)
{
    const size_t all = mapped_bytes(bytes);
    uint8_t *base =
        mmap(NULL, all + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    const size_t before = (HUGE_PAGE - (uintptr_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        munmap(base, before);
    munmap(base + before + all, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    (void)madvise(base + before, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return base + before;
}

static void *block_alloc(size_t bytes)
{
    return is_mapped(bytes) ? block_map(bytes) : aligned_alloc(BLOCK_ALIGN, bytes);
}

static void block_free(void *base, size_t bytes)
{
    if (is_mapped(bytes))
        munmap(base, mapped_bytes(bytes));
    else
        free(base);
}

/* With header and padding. */
static size_t whole_bytes(size_t bytes)
{
    return BLOCK_ALIGN + (bytes + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
}

void *tamis_mem_alloc(tamis_mem_kind kind, size_t bytes)
{
    assert((unsigned)kind < TAMIS_NUM_MEM_KINDS);
    note_call();
    atomic_fetch_add(&num_allocs, 1);
    if (must_fail() || bytes > SIZE_MAX / 2)
        return NULL;
    uint8_t *base = block_alloc(whole_bytes(bytes));
    if (base == NULL)
        return NULL;
    memset(base, 0, whole_bytes(bytes));
    *(block_header *)base = (block_header){bytes, (uint32_t)kind, BLOCK_MAGIC};
    atomic_fetch_add(&in_use[kind], bytes);
    return base + BLOCK_ALIGN;
}

void *tamis_mem_array(tamis_mem_kind kind, size_t n, size_t size)
{
    size_t bytes;
    /* An overflowing product still counts as a call, and can only be refused. */
    return tamis_mem_alloc(kind, tamis_size_mul(n, size, &bytes) ? bytes : SIZE_MAX);
}

void *tamis_mem_realloc(tamis_mem_kind kind, void *block, size_t bytes)
{
    uint8_t *grown = tamis_mem_alloc(kind, bytes);
    if (grown == NULL || block == NULL)
        return grown;
    const block_header *old = header_of(block);
    assert(old->kind == (uint32_t)kind);
    memcpy(grown, block, old->bytes < bytes ? old->bytes : bytes);
    tamis_mem_free(block);
    return grown;
}

char *tamis_mem_strdup(tamis_mem_kind kind, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = tamis_mem_alloc(kind, bytes);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

void tamis_mem_free(void *block)
{
    if (block == NULL)
        return;
    note_call();
    block_header *header = header_of(block);
    atomic_fetch_sub(&in_use[header->kind], header->bytes);
    header->magic = 0; /* a second free asserts as long as the page is not reused */
    block_free(header, whole_bytes(header->bytes));
}

void tamis_mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

size_t tamis_mem_in_use(tamis_mem_kind kind) { return atomic_load(&in_use[kind]); }

uint64_t tamis_mem_num_allocs(void) { return atomic_load(&num_allocs); }

void tamis_mem_fail_at(uint64_t n) { atomic_store(&fail_countdown, n); }

void tamis_mem_run_begin(void)
{
    runs_of_this_thread++;
    atomic_fetch_add(&runs_in_progress, 1);
}

void tamis_mem_run_end(void)
{
    assert(runs_of_this_thread > 0);
    runs_of_this_thread--;
    atomic_fetch_sub(&runs_in_progress, 1);
}

uint64_t tamis_mem_num_allocs_in_run(void) { return atomic_load(&num_calls_in_run); }

void tamis_mem_assert_in_run(bool on) { atomic_store(&assert_in_run, on); }
