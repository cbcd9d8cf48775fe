#include "engine/speculation.h"

/* Tokens before position `end` that equal the last ones, most_tokens at most. */
static int32_t common_end(const int32_t *tokens, int32_t n_tokens, int32_t end, int32_t most_tokens)
{
    int32_t n = 0;
    while (n < most_tokens && n < end && tokens[end - 1 - n] == tokens[n_tokens - 1 - n])
        n++;
    return n;
}

int32_t tamis_draft_lookup(const int32_t *tokens, int32_t n_tokens, int32_t ngram_min,
                           int32_t ngram_max, int32_t *draft, int32_t max_draft)
{
    int32_t best = ngram_min - 1, best_end = 0;
    for (int32_t end = n_tokens - 1; end > 0 && best < ngram_max; end--) {
        const int32_t n = common_end(tokens, n_tokens, end, ngram_max);
        if (n > best) {
            best = n;
            best_end = end;
        }
    }
    if (best_end == 0)
        return 0;
    for (int32_t i = 0; i < max_draft; i++)
        draft[i] = best_end + i < n_tokens ? tokens[best_end + i] : draft[best_end + i - n_tokens];
    return max_draft;
}
