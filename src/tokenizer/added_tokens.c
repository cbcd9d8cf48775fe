#include "tokenizer/added_tokens.h"

#include <utf8proc.h>

#include "core/error.h"
#include "core/mem.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/utf8.h"

tamis_status tamis_added_tokens_init(tamis_added_tokens *added, size_t capacity, tamis_error *err)
{
    added->tokens = tamis_mem_array(TAMIS_MEM_TOKENIZER, capacity, sizeof *added->tokens);
    return added->tokens != NULL
               ? TAMIS_STATUS_OK
               : tamis_fail_memory(err, "the added tokens", capacity * sizeof *added->tokens);
}

void tamis_added_tokens_free(tamis_added_tokens *added)
{
    tamis_mem_free(added->tokens);
    tamis_trie_free(&added->by_content);
    tamis_trie_free(&added->raw);
    tamis_trie_free(&added->normalized);
    *added = (tamis_added_tokens){0};
}

size_t tamis_added_tokens_bytes(const tamis_added_tokens *added)
{
    return added->n * sizeof *added->tokens + tamis_trie_bytes(&added->by_content) +
           tamis_trie_bytes(&added->raw) + tamis_trie_bytes(&added->normalized);
}

/* What is searched for in normalized text is the content in that form. */
static tamis_status add_normalized(tamis_added_tokens *added, const char *content, size_t bytes,
                                   tamis_error *err)
{
    char *normal = NULL;
    size_t normal_bytes = 0;
    int32_t twin;
    TAMIS_TRY(tamis_normalize_nfc(&normal, &normal_bytes, content, bytes, err));
    const tamis_status st =
        tamis_trie_add(&added->normalized, normal, normal_bytes, (int32_t)added->n, &twin, err);
    tamis_mem_free(normal);
    return st;
}

tamis_status tamis_added_tokens_add(tamis_added_tokens *added, const tamis_added_token *token,
                                    const char *content, size_t bytes, bool normalize_nfc,
                                    int32_t *existing, tamis_error *err)
{
    int32_t twin;
    const int32_t idx = (int32_t)added->n;
    TAMIS_TRY(tamis_trie_add(&added->by_content, content, bytes, idx, existing, err));
    if (*existing >= 0)
        return TAMIS_STATUS_OK;
    if (token->normalized && normalize_nfc)
        TAMIS_TRY(add_normalized(added, content, bytes, err));
    else
        TAMIS_TRY(tamis_trie_add(token->normalized ? &added->normalized : &added->raw, content,
                                 bytes, idx, &twin, err));
    added->tokens[added->n++] = *token;
    return TAMIS_STATUS_OK;
}

int32_t tamis_added_tokens_find(const tamis_added_tokens *added, const char *text, size_t bytes)
{
    const int32_t idx = tamis_trie_find(&added->by_content, text, bytes);
    return idx < 0 ? -1 : added->tokens[idx].id;
}

/* Letters, marks, decimal digits, connectors, letter numbers and the two joiners: UTS 18's \w. */
static bool is_word(uint32_t code_point)
{
    switch (utf8proc_category((int32_t)code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    case UTF8PROC_CATEGORY_SO: /* circled and squared letters are Alphabetic */
        return (code_point >= 0x24b6 && code_point <= 0x24e9) ||
               (code_point >= 0x1f130 && code_point <= 0x1f149) ||
               (code_point >= 0x1f150 && code_point <= 0x1f169) ||
               (code_point >= 0x1f170 && code_point <= 0x1f189);
    default:
        return code_point == 0x200c || code_point == 0x200d;
    }
}

/* Start of the character that ends at `end` (> 0). */
static size_t char_before(const char *text, size_t end)
{
    do
        --end;
    while (((unsigned char)text[end] & 0xc0) == 0x80);
    return end;
}

static uint32_t char_at(const char *text, size_t at)
{
    return tamis_utf8_code_point(text + at, tamis_utf8_len(text[at]));
}

static bool stands_alone(const tamis_added_scan *scan, size_t from, size_t to)
{
    if (from > 0 && is_word(char_at(scan->text, char_before(scan->text, from))))
        return false;
    return to == scan->bytes || !is_word(char_at(scan->text, to));
}

static size_t skip_spaces_back(const tamis_added_scan *scan, size_t from)
{
    while (from > scan->covered) {
        const size_t before = char_before(scan->text, from);
        if (!tamis_is_white_space(char_at(scan->text, before)))
            break;
        from = before;
    }
    return from;
}

static size_t skip_spaces(const tamis_added_scan *scan, size_t to)
{
    while (to < scan->bytes && tamis_is_white_space(char_at(scan->text, to)))
        to += tamis_utf8_len(scan->text[to]);
    return to;
}

/* The next pattern as such, whatever its flags say. */
static int32_t next_pattern(tamis_added_scan *scan, size_t *from)
{
    for (size_t at = scan->at; at < scan->bytes; ++at) {
        if (scan->patterns->root_child[(unsigned char)scan->text[at]] == 0)
            continue;
        size_t len = 0;
        const int32_t idx =
            tamis_trie_longest(scan->patterns, scan->text + at, scan->bytes - at, &len);
        if (idx >= 0) {
            *from = at;
            scan->at = at + len;
            return idx;
        }
    }
    scan->at = scan->bytes;
    return -1;
}

bool tamis_added_scan_next(tamis_added_scan *scan, tamis_added_match *match)
{
    for (;;) {
        size_t from;
        const int32_t idx = next_pattern(scan, &from);
        if (idx < 0)
            return false;
        const tamis_added_token *token = &scan->added->tokens[idx];
        size_t to = scan->at;
        if (token->single_word && !stands_alone(scan, from, to))
            continue;
        if (token->lstrip)
            from = skip_spaces_back(scan, from);
        if (token->rstrip)
            to = skip_spaces(scan, to);
        /* White space a token before has taken along may hold this one: it counts all the same. */
        *match = (tamis_added_match){.from = from < scan->covered ? scan->covered : from,
                                     .to = to < scan->covered ? scan->covered : to,
                                     .id = token->id};
        scan->covered = match->to;
        return true;
    }
}
