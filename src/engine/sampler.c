/*
 * Drawing a token: gather -> weigh -> cut -> pick.
 *
 * gather  the ids < num_ids as (logit, id), or with top_k the k best of them in descending order
 * weigh   w = exp((logit - max) / T), so the best candidate weighs exactly 1
 * cut     top_p keeps a prefix of the descending order, min_p whatever weighs >= min_p
 * pick    u * sum(w) against the running sum
 *
 * Descending means: larger logit first, then lower id; a total order, so every result is defined.
 * It comes from a max-heap (build O(n), each pop O(log n)) that is popped only as far as a filter
 * asks: k times for top_k, until the mass is reached for top_p, never without them.
 *
 * The same bits everywhere: the differences and sums are double operations in a fixed order, exp is
 * the project's own (kernels/math.h), and one draw uses one number of the generator.
 */
#include "engine/sampler.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "kernels/math.h"

typedef struct candidate {
    float logit;
    float weight;
    int32_t id;
} candidate;

struct tamis_sampler {
    tamis_sampler_params params;
    int32_t vocab_size;
    tamis_prng prng;
    candidate *candidates; /* [vocab_size], owned */
};

/* ---------------------------------------------------------------- generator */

static uint64_t rotate_left(uint64_t x, int bits)
{
    return (x << bits) | (x >> (64 - bits));
}

tamis_prng tamis_prng_start(uint64_t seed)
{
    tamis_prng prng;
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += UINT64_C(0x9E3779B97F4A7C15);
        z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
        prng.s[i] = z ^ (z >> 31);
    }
    return prng;
}

uint64_t tamis_prng_next(tamis_prng *prng)
{
    uint64_t *s = prng->s;
    const uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

double tamis_prng_next_double(tamis_prng *prng)
{
    return (double)(tamis_prng_next(prng) >> 11) * 0x1p-53;
}

/* ---------------------------------------------------------------- descending order */

static bool comes_before(const candidate *a, const candidate *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

static void sift_down(candidate *heap, int32_t n, int32_t at)
{
    const candidate moving = heap[at];
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && comes_before(&heap[child + 1], &heap[child]))
            child++;
        if (!comes_before(&heap[child], &moving))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

static void heap_build(candidate *heap, int32_t n)
{
    for (int32_t at = n / 2 - 1; at >= 0; at--)
        sift_down(heap, n, at);
}

/* Moves the best of heap[0 .. n) to heap[n-1]; the heap is then one shorter. */
static void heap_pop_to_end(candidate *heap, int32_t n)
{
    const candidate best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(heap, n - 1, 0);
    heap[n - 1] = best;
}

/* heap_pop_to_end leaves the best ones at the end, best last; this makes them the start. */
static void bring_to_front(candidate *list, int32_t n, int32_t n_popped)
{
    for (int32_t i = 0, j = n - 1; i < j && i < n_popped; i++, j--) {
        const candidate swap = list[i];
        list[i] = list[j];
        list[j] = swap;
    }
}

/* ---------------------------------------------------------------- filters */

static int32_t keep_top_k(candidate *list, int32_t n, int32_t k)
{
    heap_build(list, n);
    for (int32_t i = 0; i < k; i++)
        heap_pop_to_end(list, n - i);
    bring_to_front(list, n, k);
    return k;
}

static double weigh(candidate *list, int32_t n, float max_logit, float temperature)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        const double x = ((double)list[i].logit - (double)max_logit) / (double)temperature;
        list[i].weight = x < -110.0 ? 0.0f : tamis_math_exp((float)x); /* exp(-104) is 0 already */
        sum += (double)list[i].weight;
    }
    return sum;
}

/* The shortest prefix of the descending order whose weight reaches top_p of the sum. */
static int32_t keep_top_p(candidate *list, int32_t n, double enough, bool is_descending)
{
    double mass = 0.0;
    int32_t kept = 0;
    if (!is_descending)
        heap_build(list, n);
    do {
        if (!is_descending)
            heap_pop_to_end(list, n - kept);
        mass += (double)list[is_descending ? kept : n - 1 - kept].weight;
        kept++;
    } while (kept < n && mass < enough);
    if (!is_descending)
        bring_to_front(list, n, kept);
    return kept;
}

static int32_t keep_min_p(candidate *list, int32_t n, float min_p)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (list[i].weight >= min_p) /* the largest weight is 1 */
            list[kept++] = list[i];
    return kept;
}

static int32_t pick(const candidate *list, int32_t n, double uniform)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)list[i].weight;
    const double target = uniform * sum;
    double running = 0.0;
    int32_t chosen = 0;
    for (int32_t i = 0; i < n && running <= target; i++) {
        running += (double)list[i].weight;
        if (list[i].weight > 0.0f)
            chosen = list[i].id;
    }
    return chosen;
}

/* ---------------------------------------------------------------- draw */

static int32_t find_max(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

int32_t tamis_sampler_draw(tamis_sampler *sampler, const float *logits, int32_t num_ids)
{
    assert(sampler != NULL && logits != NULL);
    const tamis_sampler_params *p = &sampler->params;
    int32_t n = num_ids < 1 ? 1 : num_ids;
    if (n > sampler->vocab_size)
        n = sampler->vocab_size;
    const int32_t best = find_max(logits, n);
    if (p->temperature <= 0.0f)
        return best;
    const double uniform = tamis_prng_next_double(&sampler->prng);
    if (!isfinite(logits[best])) /* all -inf, or a +inf: there is no distribution */
        return best;

    candidate *list = sampler->candidates;
    for (int32_t i = 0; i < n; i++)
        list[i] = (candidate){.logit = logits[i], .id = i};
    const bool has_top_k = p->top_k > 0 && p->top_k < n;
    if (has_top_k)
        n = keep_top_k(list, n, p->top_k);
    const double sum = weigh(list, n, logits[best], p->temperature);
    if (p->top_p < 1.0f)
        n = keep_top_p(list, n, (double)p->top_p * sum, has_top_k);
    if (p->min_p > 0.0f)
        n = keep_min_p(list, n, p->min_p);
    return pick(list, n, uniform);
}

/* ---------------------------------------------------------------- open, close */

tamis_sampler_params tamis_sampler_params_default(void)
{
    return (tamis_sampler_params){
        .struct_size = sizeof(tamis_sampler_params), .temperature = 1.0f, .top_p = 1.0f};
}

static tamis_status check_params(const tamis_sampler_params *p, int32_t vocab_size,
                                 tamis_error *err)
{
    if (vocab_size < 1)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sampler: vocab_size is %d, allowed is 1 or more", (int)vocab_size);
    if (p->struct_size != sizeof *p)
        return tamis_fail(
            err, TAMIS_STATUS_INVALID,
            "sampler: struct_size is %zu, allowed is %zu (tamis_sampler_params_default)",
            p->struct_size, sizeof *p);
    if (!isfinite(p->temperature))
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "sampler: temperature is %g, allowed is a finite number",
                          (double)p->temperature);
    if (p->top_k < 0)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sampler: top_k is %d, allowed is 0 or more",
                          (int)p->top_k);
    if (!(p->top_p >= 0.0f && p->top_p <= 1.0f))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sampler: top_p is %g, allowed is 0 to 1",
                          (double)p->top_p);
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f))
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sampler: min_p is %g, allowed is 0 to 1",
                          (double)p->min_p);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_sampler_open(tamis_sampler **out, int32_t vocab_size,
                                const tamis_sampler_params *params, tamis_error *err)
{
    if (out == NULL || params == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sampler: out or params is NULL");
    *out = NULL;
    TAMIS_TRY(check_params(params, vocab_size, err));
    tamis_sampler *sampler = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *sampler);
    if (sampler == NULL)
        return tamis_fail_memory(err, "sampler", sizeof *sampler);
    *sampler = (tamis_sampler){
        .params = *params, .vocab_size = vocab_size, .prng = tamis_prng_start(params->seed)};
    if (params->temperature > 0.0f) { /* argmax looks at the logits only */
        const size_t n = (size_t)vocab_size;
        sampler->candidates = tamis_mem_array(TAMIS_MEM_MISC, n, sizeof *sampler->candidates);
        if (sampler->candidates == NULL) {
            tamis_sampler_close(&sampler);
            return tamis_fail_memory(err, "sampler candidates", n * sizeof(candidate));
        }
    }
    *out = sampler;
    return TAMIS_STATUS_OK;
}

void tamis_sampler_close(tamis_sampler **sampler)
{
    if (sampler == NULL || *sampler == NULL)
        return;
    tamis_mem_free((*sampler)->candidates);
    tamis_mem_free(*sampler);
    *sampler = NULL;
}
