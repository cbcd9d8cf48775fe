/*
 * tamis ppl: mean negative log-likelihood of a text.
 *
 * A file is encoded once and cut into windows of N ids. Each window is read from an empty sequence,
 * behind a BOS where the tokenizer adds one (then all N ids are predicted, and BOS is not counted
 * in N; N tokens are fed, because nothing follows the last id). Without a BOS the first id of a
 * window is given, not predicted. --ids measures the given ids as one sequence: all but the first
 * are predicted. Bits per byte divide by the bytes of the text that was predicted: those of the
 * file, less those of given tokens.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "output.h"
#include "run_engine.h"

typedef struct measurement {
    const cli_args *args;
    cli_engine engine;
    cli_ints ids; /* of the text, without BOS, or as given by --ids */
    bool has_bos; /* every window stands behind bos_id */
    int32_t bos_id;
    int64_t window; /* ids per window */
    int64_t n_windows;
    int64_t n_fed; /* tokens so far */
    cli_progress progress;
    int64_t n_predicted;
    uint64_t n_bytes; /* of the predicted tokens' text */
    double nats;
} measurement;

/* ---------------------------------------------------------------- input */

/* Length of the text of some ids; 0 without a tokenizer. */
static int text_bytes(const measurement *m, const int32_t *ids, size_t n, uint64_t *bytes)
{
    tamis_error err = {0};
    char *text;
    size_t n_bytes;
    *bytes = 0;
    if (m->engine.tokenizer == NULL)
        return CLI_EXIT_OK;
    const tamis_status st =
        tamis_tokenizer_decode(m->engine.tokenizer, ids, n, false, &text, &n_bytes, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    tamis_text_free(text);
    *bytes = n_bytes;
    return CLI_EXIT_OK;
}

/* Takes the BOS off the ids, since it goes in front of every window, and off the bytes if spelled.
 */
static int set_bos_apart(measurement *m, const cli_bos bos)
{
    uint64_t bytes = 0;
    if (bos == CLI_BOS_NONE)
        return CLI_EXIT_OK;
    m->has_bos = true;
    m->bos_id = m->ids.values[0];
    m->ids.n--;
    memmove(m->ids.values, m->ids.values + 1, m->ids.n * sizeof *m->ids.values);
    const int code = bos == CLI_BOS_IN_TEXT ? text_bytes(m, &m->bos_id, 1, &bytes) : CLI_EXIT_OK;
    m->n_bytes -= bytes;
    return code;
}

static int read_text(measurement *m)
{
    cli_buffer text;
    cli_bos bos = CLI_BOS_NONE;
    int code = cli_read_file(cli_text(m->args, CLI_OPT_FILE), &text);
    m->n_bytes = text.n;
    if (code == CLI_EXIT_OK)
        code = cli_engine_encode(&m->engine, text.bytes, text.n, &m->ids, &bos);
    cli_buffer_free(&text);
    return code == CLI_EXIT_OK ? set_bos_apart(m, bos) : code;
}

static int read_ids(measurement *m)
{
    const int code =
        cli_read_ints(cli_text(m->args, CLI_OPT_IDS), 0, m->engine.info->vocab_size - 1, &m->ids);
    return code == CLI_EXIT_OK ? text_bytes(m, m->ids.values, m->ids.n, &m->n_bytes) : code;
}

static int read_input(measurement *m)
{
    int code;
    if (cli_has(m->args, CLI_OPT_IDS) && cli_has(m->args, CLI_OPT_WINDOW))
        return cli_refuse(m->args, CLI_OPT_WINDOW,
                          "not together with --ids, which is one sequence");
    if (cli_has(m->args, CLI_OPT_IDS))
        code = read_ids(m);
    else
        code = read_text(m);
    const size_t least = m->has_bos ? 1 : 2;
    if (code == CLI_EXIT_OK && m->ids.n < least)
        return cli_fail(CLI_EXIT_RUN, "the text has %zu tokens, allowed: at least %zu", m->ids.n,
                        least);
    return code;
}

/* A window must fit the context; with a BOS its last id is not fed, so N tokens are fed either way.
 */
static int choose_window(measurement *m, int32_t *context)
{
    const int64_t n = (int64_t)m->ids.n;
    const bool is_given = cli_has(m->args, CLI_OPT_WINDOW);
    const bool has_ids = cli_has(m->args, CLI_OPT_IDS);
    m->window = has_ids ? n : is_given ? m->args->value[CLI_OPT_WINDOW].integer : 1024;
    const int32_t most = cli_engine_context(&m->engine, m->window); /* -c, or what the model has */
    if (has_ids && n > most)
        return cli_fail(CLI_EXIT_RUN, "%zu ids, allowed: %d (the context length)", m->ids.n,
                        (int)most);
    if (is_given && m->window > most)
        return cli_refuse(m->args, CLI_OPT_WINDOW,
                          "longer than the context (-c, and the model's "
                          "max_position_embeddings)");
    if (m->window > most)
        m->window = most;
    m->n_windows = (n + m->window - 1) / m->window;
    *context = cli_engine_context(&m->engine, m->window < n ? m->window : n);
    return CLI_EXIT_OK;
}

/* ---------------------------------------------------------------- measuring */

/* -log softmax(logits)[target], in double. */
static double negative_log_likelihood(const float *logits, int32_t n, int32_t target)
{
    float max = logits[0];
    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - (double)max);
    return log(sum) + (double)max - (double)logits[target];
}

/* Feeds tokens[0 .. n) and measures how well each step predicts tokens[1 .. n] that it can see. */
static int measure_sequence(measurement *m, const int32_t *tokens, int32_t n_tokens)
{
    const int32_t n_fed = n_tokens - 1; /* nothing follows the last one */
    for (int32_t at = 0; at < n_fed;) {
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        const int32_t n = n_fed - at < m->engine.step_tokens ? n_fed - at : m->engine.step_tokens;
        const int code = cli_engine_step(&m->engine, tokens + at, n, TAMIS_LOGITS_ALL, NULL);
        if (code != CLI_EXIT_OK)
            return code;
        for (int32_t i = 0; i < n; i++)
            m->nats += negative_log_likelihood(tamis_session_logits(m->engine.session, i),
                                               m->engine.info->vocab_size, tokens[at + i + 1]);
        at += n;
        m->n_fed += n;
        cli_progress_show(&m->progress, m->n_fed);
    }
    m->n_predicted += n_fed;
    return CLI_EXIT_OK;
}

/* From an empty sequence; scratch holds n + 1 tokens. */
static int measure_window(measurement *m, const int32_t *ids, int32_t n, int32_t *scratch)
{
    tamis_error err = {0};
    const tamis_status st = tamis_seq_rollback(m->engine.session, m->engine.seq, 0, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    if (m->has_bos) {
        scratch[0] = m->bos_id;
        memcpy(scratch + 1, ids, (size_t)n * sizeof *ids);
        return measure_sequence(m, scratch, n + 1);
    }
    uint64_t given;
    const int code = text_bytes(m, ids, 1, &given);
    m->n_bytes -= given < m->n_bytes ? given : m->n_bytes;
    return code == CLI_EXIT_OK ? measure_sequence(m, ids, n) : code;
}

static int measure_all(measurement *m)
{
    int32_t *scratch = cli_alloc((size_t)m->window + 1, sizeof *scratch);
    int code = CLI_EXIT_OK;
    cli_progress_start(&m->progress, "text", (int64_t)m->ids.n);
    for (int64_t w = 0; w < m->n_windows && code == CLI_EXIT_OK; w++) {
        const int64_t left = (int64_t)m->ids.n - w * m->window;
        code = measure_window(m, m->ids.values + w * m->window,
                              (int32_t)(left < m->window ? left : m->window), scratch);
    }
    cli_progress_clear(&m->progress);
    free(scratch);
    return code;
}

/* ---------------------------------------------------------------- result */

static void print_result(const measurement *m)
{
    const double mean = m->nats / (double)m->n_predicted;
    const double bits = m->n_bytes > 0 ? m->nats / log(2.0) / (double)m->n_bytes : 0.0;
    if (!cli_has(m->args, CLI_OPT_JSON)) {
        cli_outf("nats per token %.6f\n", mean);
        if (m->n_bytes > 0)
            cli_outf("bits per byte  %.6f\n", bits);
        cli_outf("perplexity     %.4f\n", exp(mean));
        cli_outf("tokens         %lld predicted, in %lld window%s of %lld\n",
                 (long long)m->n_predicted, (long long)m->n_windows, m->n_windows == 1 ? "" : "s",
                 (long long)m->window);
        return;
    }
    json_t *object = json_object();
    json_object_set_new(object, "nats_per_token", json_real(mean));
    if (m->n_bytes > 0) {
        json_object_set_new(object, "bits_per_byte", json_real(bits));
        json_object_set_new(object, "bytes", json_integer((json_int_t)m->n_bytes));
    }
    json_object_set_new(object, "perplexity", json_real(exp(mean)));
    json_object_set_new(object, "tokens", json_integer(m->n_predicted));
    json_object_set_new(object, "windows", json_integer(m->n_windows));
    json_object_set_new(object, "window", json_integer(m->window));
    json_object_set_new(object, "index_cache", json_string(cli_engine_index_cache(&m->engine)));
    cli_out_json(object, 0);
    json_decref(object);
}

static int run(measurement *m)
{
    int32_t context = 0;
    int code = cli_engine_open_model(&m->engine, m->args, cli_profile(m->args, 0));
    if (code == CLI_EXIT_OK)
        code = read_input(m);
    if (code == CLI_EXIT_OK)
        code = choose_window(m, &context);
    if (code == CLI_EXIT_OK) {
        const int32_t step_tokens = cli_engine_step_tokens(&m->engine, context, true);
        code = cli_engine_open_session(&m->engine, context, step_tokens, step_tokens);
    }
    if (code == CLI_EXIT_OK)
        code = measure_all(m);
    if (code == CLI_EXIT_OK)
        print_result(m);
    return code;
}

int cli_cmd_ppl(const cli_args *args)
{
    measurement m = {.args = args};
    const int code = run(&m);
    if (code == CLI_EXIT_INTERRUPTED)
        cli_info("interrupted");
    cli_engine_close(&m.engine);
    cli_ints_free(&m.ids);
    return code;
}
