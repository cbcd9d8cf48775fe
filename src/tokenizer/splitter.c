#include "tokenizer/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <assert.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/newer_unicode.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/utf8.h"

/*
 * What a hostile pattern may cost: backtracking steps for one start position (a sane pattern needs
 * a few per byte of its piece) and memory of the interpreter, which takes over where the JIT's
 * stack does not suffice.
 */
enum { STEPS_PER_MATCH = 100000, STEPS_PER_BYTE = 16, MAX_HEAP_KIB = 64 * 1024 };
enum { MAX_GROUP_DEPTH = 50 };

static void *pcre2_alloc(size_t bytes, void *user)
{
    return tamis_mem_alloc(TAMIS_MEM_TOKENIZER, bytes);
}

static void pcre2_release(void *block, void *user)
{
    tamis_mem_free(block);
}

tamis_status tamis_splitter_init(tamis_splitter *splitter, tamis_error *err)
{
    splitter->memory = pcre2_general_context_create(pcre2_alloc, pcre2_release, NULL);
    return splitter->memory != NULL ? TAMIS_STATUS_OK
                                    : tamis_fail_memory(err, "the pre-tokenizer", 0);
}

void tamis_splitter_free(tamis_splitter *splitter)
{
    for (int i = 0; i < splitter->n_codes; ++i)
        pcre2_code_free(splitter->codes[i]);
    pcre2_general_context_free(splitter->memory);
    *splitter = (tamis_splitter){0};
}

static tamis_status fail_compile(int code, size_t at, const char *where, tamis_error *err)
{
    if (code == PCRE2_ERROR_HEAP_FAILED)
        return tamis_fail_memory(err, "the pre-tokenizer", 0);
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(code, text, sizeof text);
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: the split pattern does not compile: %s at byte %zu of its translation, "
                      "allowed: a pattern PCRE2 takes",
                      where, (const char *)text, at);
}

static tamis_status compile(pcre2_code **out, pcre2_compile_context *context, const char *pattern,
                            const char *where, tamis_error *err)
{
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
    int code;
    PCRE2_SIZE at;
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, MAX_GROUP_DEPTH);
    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &at, context);
    if (*out == NULL)
        return fail_compile(code, at, where, err);
    /* Without a JIT (another CPU, no executable memory) matching is slower, nothing else. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_splitter_add(tamis_splitter *splitter, const char *pattern, size_t bytes,
                                const char *where, tamis_error *err)
{
    if (splitter->n_codes == TAMIS_MAX_SPLITS)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: one Split too many, allowed: at most %d", where, TAMIS_MAX_SPLITS);
    char *translated = NULL;
    TAMIS_TRY(tamis_split_pattern_translate(&translated, pattern, bytes, where, err));
    pcre2_compile_context *context = pcre2_compile_context_create(splitter->memory);
    pcre2_code *compiled = NULL;
    const tamis_status st = context != NULL ? compile(&compiled, context, translated, where, err)
                                            : tamis_fail_memory(err, "the pre-tokenizer", 0);
    pcre2_compile_context_free(context);
    tamis_mem_free(translated);
    if (st == TAMIS_STATUS_OK)
        splitter->codes[splitter->n_codes++] = compiled;
    return st;
}

size_t tamis_splitter_bytes(const tamis_splitter *splitter)
{
    size_t sum = 0;
    for (int i = 0; i < splitter->n_codes; ++i) {
        size_t code = 0, jit = 0;
        (void)pcre2_pattern_info(splitter->codes[i], PCRE2_INFO_SIZE, &code);
        (void)pcre2_pattern_info(splitter->codes[i], PCRE2_INFO_JITSIZE, &jit);
        sum += code + jit;
    }
    return sum;
}

tamis_status tamis_split_scratch_init(tamis_split_scratch *scratch, const tamis_splitter *splitter,
                                      tamis_error *err)
{
    scratch->context = pcre2_match_context_create(splitter->memory);
    bool ok = scratch->context != NULL;
    for (int i = 0; ok && i < splitter->n_codes; ++i) {
        scratch->matches[i] = pcre2_match_data_create(1, splitter->memory);
        ok = scratch->matches[i] != NULL;
    }
    if (!ok)
        return tamis_fail_memory(err, "the pre-tokenizer's matches", 0);
    pcre2_set_heap_limit(scratch->context, MAX_HEAP_KIB);
    return TAMIS_STATUS_OK;
}

void tamis_split_scratch_free(tamis_split_scratch *scratch)
{
    for (int i = 0; i < TAMIS_MAX_SPLITS; ++i)
        pcre2_match_data_free(scratch->matches[i]);
    pcre2_match_context_free(scratch->context);
    *scratch = (tamis_split_scratch){0};
}

typedef struct split_run {
    const tamis_splitter *splitter;
    tamis_split_scratch *scratch;
    const char *text;  /* what is cut */
    const char *match; /* the same bytes, or with stand-ins for newer characters: what is matched */
    tamis_piece_fn fn;
    void *user;
    tamis_error *err;
} split_run;

static tamis_status fail_match(int code, tamis_error *err)
{
    if (code == PCRE2_ERROR_NOMEMORY)
        return tamis_fail_memory(err, "the pre-tokenizer's matches", 0);
    PCRE2_UCHAR text[128];
    pcre2_get_error_message(code, text, sizeof text);
    return tamis_fail(err, TAMIS_STATUS_LIMIT,
                      "a split pattern of tokenizer.json fails on this text: %s",
                      (const char *)text);
}

/* Find the next match from `start`: 1 found, 0 none, < 0 a PCRE2 error. */
static int find(const split_run *run, int level, const char *text, size_t bytes, size_t start,
                size_t *from, size_t *to)
{
    pcre2_match_data *match = run->scratch->matches[level];
    const pcre2_code *code = run->splitter->codes[level];
    int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, start, PCRE2_NO_UTF_CHECK, match,
                         run->scratch->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         match, run->scratch->context);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return rc;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    *from = range[0];
    *to = range[1];
    assert(start <= *from && *from <= *to && *to <= bytes);
    return 1;
}

static void set_limit(const split_run *run, size_t bytes)
{
    const size_t steps = STEPS_PER_MATCH + bytes * STEPS_PER_BYTE;
    pcre2_set_match_limit(run->scratch->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
}

/* Split the stretch text[at .. at + bytes) by the patterns from `level` on. */
static tamis_status split(const split_run *run, int level, size_t at, size_t bytes)
{
    if (bytes == 0)
        return TAMIS_STATUS_OK;
    if (level == run->splitter->n_codes)
        return run->fn(run->user, run->text + at, bytes, run->err);
    const char *text = run->match + at;
    size_t done = 0, start = 0;
    size_t last_end = SIZE_MAX; /* of the last match: an empty one right there does not count */
    while (start <= bytes) {
        size_t from, to;
        set_limit(run, bytes);
        const int found = find(run, level, text, bytes, start, &from, &to);
        if (found < 0)
            return fail_match(found, run->err);
        if (found == 0)
            break;
        if (from == to && to == last_end) {
            start += start < bytes ? tamis_utf8_len(text[start]) : 1;
            continue;
        }
        TAMIS_TRY(split(run, level + 1, at + done, from - done));
        TAMIS_TRY(split(run, level + 1, at + from, to - from));
        start = done = last_end = to;
    }
    return split(run, level + 1, at + done, bytes - done);
}

/* A copy of text with old stand-ins; the first newer character is at `first`. */
static char *copy_with_stand_ins(const char *text, size_t bytes, size_t first)
{
    char *copy = tamis_mem_alloc(TAMIS_MEM_MISC, bytes);
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, bytes);
    for (size_t at = first; at < bytes; at = tamis_newer_unicode_find(copy, bytes, at))
        tamis_newer_unicode_replace(copy + at);
    return copy;
}

tamis_status tamis_splitter_run(const tamis_splitter *splitter, tamis_split_scratch *scratch,
                                const char *text, size_t bytes, tamis_piece_fn fn, void *user,
                                tamis_error *err)
{
    split_run run = {splitter, scratch, text, text, fn, user, err};
    const size_t first = tamis_newer_unicode_find(text, bytes, 0);
    if (first == bytes)
        return split(&run, 0, 0, bytes);
    char *copy = copy_with_stand_ins(text, bytes, first);
    if (copy == NULL)
        return tamis_fail_memory(err, "a text with new characters", bytes);
    run.match = copy;
    const tamis_status st = split(&run, 0, 0, bytes);
    tamis_mem_free(copy);
    return st;
}
