#include "ops/topk.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void tamis_topk_init(tamis_topk *topk, tamis_candidate *items, int32_t k)
{
    *topk = (tamis_topk){items, k, 0, tamis_topk_capacity(k), NAN};
}

/* A strict total order (-0 equals +0), so the selected set is unique. */
static bool is_better(tamis_candidate a, tamis_candidate b)
{
    return a.score > b.score || (a.score == b.score && a.id < b.id);
}

static void swap(tamis_candidate *a, tamis_candidate *b)
{
    const tamis_candidate t = *a;
    *a = *b;
    *b = t;
}

/* The median of three guards against sorted input, the common case of repeated text. */
static tamis_candidate pivot_of(const tamis_candidate *a, int32_t lo, int32_t hi)
{
    const tamis_candidate x = a[lo], y = a[lo + (hi - lo) / 2], z = a[hi];
    if (is_better(x, y) == is_better(y, z))
        return y;
    return is_better(x, y) == is_better(z, x) ? x : z;
}

/* Quickselect: afterwards the k best stand in front, the k-th at index k - 1. */
static void select_best(tamis_candidate *a, int32_t n, int32_t k)
{
    int32_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const tamis_candidate pivot = pivot_of(a, lo, hi);
        int32_t i = lo, j = hi;
        while (i <= j) {
            while (is_better(a[i], pivot))
                i++;
            while (is_better(pivot, a[j]))
                j--;
            if (i <= j)
                swap(&a[i++], &a[j--]);
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

void tamis_topk_reduce(tamis_topk *topk)
{
    if (topk->n < topk->k)
        return;
    select_best(topk->items, topk->n, topk->k);
    topk->n = topk->k;
    topk->threshold = topk->items[topk->k - 1].score;
}

void tamis_topk_push(tamis_topk *topk, const tamis_kernels *kernels, const float *scores, int32_t n,
                     int32_t first_id)
{
    int32_t passed[TAMIS_TOPK_BLOCK];
    assert(n <= TAMIS_TOPK_BLOCK);
    const int32_t n_passed = (int32_t)kernels->scan_above(passed, scores, n, topk->threshold);
    for (int32_t i = 0; i < n_passed; i++)
        topk->items[topk->n++] = (tamis_candidate){scores[passed[i]], first_id + passed[i]};
    if (topk->n > topk->capacity - TAMIS_TOPK_BLOCK)
        tamis_topk_reduce(topk);
}

void tamis_topk_absorb(tamis_topk *topk, const tamis_candidate *items, int32_t n)
{
    tamis_topk_reduce(topk);
    assert(topk->n + n <= topk->capacity);
    if (n > 0)
        memcpy(topk->items + topk->n, items, (size_t)n * sizeof *items);
    topk->n += n;
}

static void sift_down(int32_t *a, int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && a[child + 1] > a[child])
            child++;
        if (a[root] >= a[child])
            return;
        const int32_t t = a[root];
        a[root] = a[child];
        a[child] = t;
    }
}

static void sort_ascending(int32_t *a, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift_down(a, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        const int32_t t = a[0];
        a[0] = a[end];
        a[end] = t;
        sift_down(a, 0, end);
    }
}

int32_t tamis_topk_finish(tamis_topk *topk, int32_t *out)
{
    tamis_topk_reduce(topk);
    for (int32_t i = 0; i < topk->n; i++)
        out[i] = topk->items[i].id;
    sort_ascending(out, topk->n);
    for (int32_t i = topk->n; i < topk->k; i++)
        out[i] = -1;
    return topk->n;
}

/* A heap whose root is the worst. */
static void sift_down_worst(tamis_candidate *a, int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && is_better(a[child], a[child + 1]))
            child++;
        if (!is_better(a[root], a[child]))
            return;
        swap(&a[root], &a[child]);
    }
}

static void sort_best_first(tamis_candidate *a, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift_down_worst(a, i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        swap(&a[0], &a[end]);
        sift_down_worst(a, 0, end);
    }
}

int32_t tamis_topk_finish_ranked(tamis_topk *topk, int32_t *out)
{
    tamis_topk_reduce(topk);
    sort_best_first(topk->items, topk->n);
    for (int32_t i = 0; i < topk->k; i++)
        out[i] = i < topk->n ? topk->items[i].id : -1;
    return topk->n;
}
