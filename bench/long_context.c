/*
 * A long context through the engine: anonymous memory against the printed plan, and the time of a
 * generated token at 1,000 and at the full length with its parts. Not a test; see long_context.sh.
 *
 *     long_context DIR IDS_FILE LENGTH [THREADS [f32|bf16]]
 *
 * Parts come from taps around each attention layer. At 256 tokens a ratio-4 layer of the demo model
 * sees exactly index_topk rows, so it scores nothing and attends to as many rows as ever after:
 * what it takes more later is scoring. Likewise a ratio-128 layer has two rows then. Layers of V3.2
 * and GLM stand where a ratio-4 layer does at index_topk tokens.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/session_internal.h"
#include "tamis/engine.h"

#define V4_BASE_LEN 256
#define SHORT_LEN   1000
#define N_TOKENS    41 /* generated at each length; medians */

typedef enum part { PART_WINDOW = 0, PART_SCORED, PART_C128, PART_REST, N_PARTS } part;

typedef struct timing {
    const tamis_model *model;
    bool is_v4;
    double started;          /* of the running attention layer */
    double seconds[N_PARTS]; /* of the running step */
} timing;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const char *why)
{
    fprintf(stderr, "long_context: %s: %s\n", what, why);
    exit(1);
}

static void must(tamis_status status, const tamis_error *err, const char *what)
{
    if (status != TAMIS_STATUS_OK)
        die(what, err->text);
}

static void on_stage(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                     int64_t n_tokens, int64_t width)
{
    timing *t = user;
    (void)data, (void)n_tokens, (void)width;
    if (stage == TAMIS_TAP_ATTN_IN)
        t->started = now();
    if (stage == TAMIS_TAP_ATTN_OUT) {
        const int32_t ratio = t->is_v4 ? tamis_model_layer_ratio(t->model, layer) : 4;
        t->seconds[ratio == 0   ? PART_WINDOW
                   : ratio == 4 ? PART_SCORED
                                : PART_C128] += now() - t->started;
    }
}

/* "RssAnon" of /proc/self/status in bytes. */
static uint64_t rss_anon(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    if (file == NULL)
        die("/proc/self/status", "cannot be opened");
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

/* LENGTH ids, those of the file over and over. */
static int32_t *read_ids(const char *path, int32_t length)
{
    FILE *file = fopen(path, "r");
    int32_t *ids = malloc((size_t)length * sizeof *ids), n = 0, value;
    if (file == NULL || ids == NULL)
        die(path, "cannot be read");
    while (n < length && fscanf(file, "%d", &value) == 1)
        ids[n++] = value;
    fclose(file);
    if (n == 0)
        die(path, "holds no ids");
    for (int32_t i = n; i < length; i++)
        ids[i] = ids[i - n];
    return ids;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void feed(tamis_session *session, int32_t seq, const int32_t *ids, int32_t n,
                 tamis_logits_want want)
{
    const int32_t step = tamis_session_get_params(session)->max_num_batched_tokens;
    tamis_error err;
    for (int32_t first = 0; first < n; first += step) {
        const tamis_feed f = {seq, ids + first, n - first < step ? n - first : step, want, NULL};
        must(tamis_session_step(session, &f, 1, &err), &err, "step");
    }
}

/* Median seconds of each part over N_TOKENS tokens fed one by one. */
static void time_tokens(tamis_session *session, int32_t seq, const int32_t *ids, timing *t,
                        double median[N_PARTS])
{
    double all[N_PARTS][N_TOKENS];
    tamis_session_set_tap(session, on_stage, t);
    for (int i = 0; i < N_TOKENS; i++) {
        memset(t->seconds, 0, sizeof t->seconds);
        const double start = now();
        feed(session, seq, ids + i, 1, TAMIS_LOGITS_LAST);
        t->seconds[PART_REST] = now() - start;
        for (int p = 0; p < PART_REST; p++)
            t->seconds[PART_REST] -= t->seconds[p];
        for (int p = 0; p < N_PARTS; p++)
            all[p][i] = t->seconds[p];
    }
    tamis_session_set_tap(session, NULL, NULL);
    for (int p = 0; p < N_PARTS; p++) {
        qsort(all[p], N_TOKENS, sizeof(double), compare);
        median[p] = all[p][N_TOKENS / 2];
    }
}

static void print_parts(int32_t len, const double at[N_PARTS], const double base[N_PARTS])
{
    const double scoring = at[PART_SCORED] - base[PART_SCORED];
    const double rows = at[PART_C128] - base[PART_C128];
    const double total = at[PART_WINDOW] + at[PART_SCORED] + at[PART_C128] + at[PART_REST];
    printf("token at %7d: %7.3f ms = scoring %.3f + C128 rows %.3f + rest %.3f\n", len, 1e3 * total,
           1e3 * scoring, 1e3 * rows, 1e3 * (total - scoring - rows));
}

/* Length at which selecting begins; enough for the tokens that are timed. */
static int32_t base_length(const tamis_model_info *info, bool is_v4)
{
    const int32_t length = is_v4 ? V4_BASE_LEN : info->index_topk;
    if (length >= SHORT_LEN)
        die("model", "index_topk must be below 1000");
    return length > 2 * N_TOKENS ? length : 2 * N_TOKENS;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage", "long_context DIR IDS_FILE LENGTH [THREADS [f32|bf16]]");
    const int32_t length = atoi(argv[3]);
    tamis_session_params params = tamis_session_params_default();
    tamis_memory_plan plan;
    tamis_model *model;
    tamis_session *session;
    tamis_error err;
    double base[N_PARTS], small[N_PARTS], large[N_PARTS];
    int32_t seq;
    if (length < 2 * SHORT_LEN)
        die("LENGTH", "must be 2000 or more");
    int32_t *ids = read_ids(argv[2], length);
    params.max_model_len = length;
    params.n_threads = argc > 4 ? atoi(argv[4]) : params.n_threads;
    params.kv_cache_dtype =
        argc > 5 && strcmp(argv[5], "f32") == 0 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_BF16;

    const uint64_t before = rss_anon();
    must(tamis_model_open(&model, argv[1], &err), &err, argv[1]);
    must(tamis_session_plan_memory(model, &params, &plan, &err), &err, "plan");
    must(tamis_session_open(&session, model, &params, &err), &err, "open session");
    must(tamis_seq_create(session, &seq, &err), &err, "sequence");
    const tamis_model_info *info = tamis_model_get_info(model);
    timing t = {.model = model, .is_v4 = strcmp(info->family, "deepseek_v4") == 0};
    const int32_t base_len = base_length(info, t.is_v4);
    const double start = now();
    feed(session, seq, ids, base_len - N_TOKENS, TAMIS_LOGITS_NONE);
    time_tokens(session, seq, ids + base_len - N_TOKENS, &t, base);
    feed(session, seq, ids + base_len, SHORT_LEN - base_len, TAMIS_LOGITS_NONE);
    time_tokens(session, seq, ids + SHORT_LEN, &t, small);
    const int32_t fed = SHORT_LEN + N_TOKENS;
    feed(session, seq, ids + fed, length - N_TOKENS - fed, TAMIS_LOGITS_NONE);
    time_tokens(session, seq, ids + length - N_TOKENS, &t, large);
    const uint64_t growth = rss_anon() - before;

    const double mib = 1 << 20, off = (double)growth - (double)plan.total;
    printf("%d tokens in %.1f s, %d threads, %s caches, level %s\n", length, now() - start,
           params.n_threads, tamis_dtype_name(params.kv_cache_dtype),
           tamis_cpu_level_name(tamis_cpu_level_current()));
    printf("anonymous memory: grew by %.2f MiB, plan %.2f MiB (%+.2f MiB, %+.1f %%)\n",
           (double)growth / mib, (double)plan.total / mib, off / mib,
           100 * off / (double)plan.total);
    print_parts(SHORT_LEN, small, base);
    print_parts(length, large, base);
    tamis_session_close(&session);
    tamis_model_close(&model);
    free(ids);
    return 0;
}
