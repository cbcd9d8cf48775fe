/*
 * tamis ppl: mean negative log-likelihood of a text.
 *
 * A file is encoded once and cut into windows of N ids. Each window is read from an empty sequence,
 * behind a BOS where the tokenizer adds one (then all N ids are predicted, and BOS is not counted
 * in N; N tokens are fed, because nothing follows the last id). Without a BOS the first id of a
 * window is given, not predicted. --ids measures the given ids as one sequence: all but the first
 * are predicted. Bits per byte divide by the bytes of the text that was predicted: those of the
 * file, less those of given tokens.
 *
 * Several profiles read the same ids one after the other. All models are opened and all sessions
 * planned first, so that a profile which the folder or an option does not allow is refused before
 * anything runs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "ppl.h"

/* A run in progress: where it is in the text. */
typedef struct measurement {
    cli_ppl *ppl;
    cli_ppl_run *run;
    int64_t n_done; /* tokens predicted so far */
    cli_progress progress;
} measurement;

/* ---------------------------------------------------------------- input */

/* The engine that the text is read with; its tokenizer is that of all. */
static const cli_engine *first(const cli_ppl *m)
{
    return &m->runs[0].engine;
}

/* Length of the text of some ids; 0 without a tokenizer. */
static int text_bytes(const cli_ppl *m, const int32_t *ids, size_t n, uint64_t *bytes)
{
    tamis_error err = {0};
    char *text;
    size_t n_bytes;
    *bytes = 0;
    if (first(m)->tokenizer == NULL)
        return CLI_EXIT_OK;
    const tamis_status st =
        tamis_tokenizer_decode(first(m)->tokenizer, ids, n, false, &text, &n_bytes, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    tamis_text_free(text);
    *bytes = n_bytes;
    return CLI_EXIT_OK;
}

/* Takes the BOS off the ids, since it goes in front of every window, and off the bytes if spelled.
 */
static int set_bos_apart(cli_ppl *m, const cli_bos bos)
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

static int read_text(cli_ppl *m)
{
    cli_buffer text;
    cli_bos bos = CLI_BOS_NONE;
    int code = cli_read_file(cli_text(m->args, CLI_OPT_FILE), &text);
    m->n_bytes = text.n;
    if (code == CLI_EXIT_OK)
        code = cli_engine_encode(first(m), text.bytes, text.n, &m->ids, &bos);
    cli_buffer_free(&text);
    return code == CLI_EXIT_OK ? set_bos_apart(m, bos) : code;
}

static int read_ids(cli_ppl *m)
{
    const int code =
        cli_read_ints(cli_text(m->args, CLI_OPT_IDS), 0, first(m)->info->vocab_size - 1, &m->ids);
    return code == CLI_EXIT_OK ? text_bytes(m, m->ids.values, m->ids.n, &m->n_bytes) : code;
}

static int read_input(cli_ppl *m)
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
static int choose_window(cli_ppl *m, int32_t *context)
{
    const int64_t n = (int64_t)m->ids.n;
    const bool is_given = cli_has(m->args, CLI_OPT_WINDOW);
    const bool has_ids = cli_has(m->args, CLI_OPT_IDS);
    m->window = has_ids ? n : is_given ? m->args->value[CLI_OPT_WINDOW].integer : 1024;
    const int32_t most = cli_engine_context(first(m), m->window); /* -c, or what the model has */
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
    m->n_predicted = m->has_bos ? n : n - m->n_windows;
    *context = cli_engine_context(first(m), m->window < n ? m->window : n);
    return CLI_EXIT_OK;
}

/* Without a BOS the first id of every window is given: its text is not predicted. */
static int subtract_given_bytes(cli_ppl *m)
{
    int code = CLI_EXIT_OK;
    for (int64_t w = 0; !m->has_bos && w < m->n_windows && code == CLI_EXIT_OK; w++) {
        uint64_t given;
        code = text_bytes(m, m->ids.values + w * m->window, 1, &given);
        m->n_bytes -= given < m->n_bytes ? given : m->n_bytes;
    }
    return code;
}

/* ---------------------------------------------------------------- measuring */

/* -log softmax(logits)[target], in double; *argmax: the lowest of the largest. */
static double negative_log_likelihood(const float *logits, int32_t n, int32_t target,
                                      int32_t *argmax)
{
    *argmax = 0;
    for (int32_t i = 1; i < n; i++)
        *argmax = logits[i] > logits[*argmax] ? i : *argmax;
    const double max = (double)logits[*argmax];
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return log(sum) + max - (double)logits[target];
}

/* The first run is what the others are compared with. */
static void add_token(measurement *m, double nll, int32_t argmax)
{
    cli_ppl *ppl = m->ppl;
    const int64_t at = m->n_done++;
    m->run->nats += nll;
    if (ppl->nll == NULL)
        return;
    if (m->run == &ppl->runs[0]) {
        ppl->nll[at] = nll;
        ppl->argmax[at] = argmax;
    }
    const double diff = fabs(nll - ppl->nll[at]);
    m->run->n_same_argmax += argmax == ppl->argmax[at];
    m->run->diff_sum += diff;
    m->run->diff_max = diff > m->run->diff_max ? diff : m->run->diff_max;
}

/* Feeds tokens[0 .. n) and measures how well each step predicts tokens[1 .. n] that it can see. */
static int measure_sequence(measurement *m, const int32_t *tokens, int32_t n_tokens)
{
    cli_engine *engine = &m->run->engine;
    const int32_t n_fed = n_tokens - 1; /* nothing follows the last one */
    for (int32_t at = 0; at < n_fed;) {
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        const int32_t n = n_fed - at < engine->step_tokens ? n_fed - at : engine->step_tokens;
        const int code = cli_engine_step(engine, tokens + at, n, TAMIS_LOGITS_ALL, NULL);
        if (code != CLI_EXIT_OK)
            return code;
        for (int32_t i = 0; i < n; i++) {
            int32_t argmax;
            const double nll =
                negative_log_likelihood(tamis_session_logits(engine->session, i),
                                        engine->info->vocab_size, tokens[at + i + 1], &argmax);
            add_token(m, nll, argmax);
        }
        at += n;
        cli_progress_show(&m->progress, m->n_done);
    }
    return CLI_EXIT_OK;
}

/* From an empty sequence; scratch holds n + 1 tokens. */
static int measure_window(measurement *m, const int32_t *ids, int32_t n, int32_t *scratch)
{
    tamis_error err = {0};
    const cli_engine *engine = &m->run->engine;
    const tamis_status st = tamis_seq_rollback(engine->session, engine->seq, 0, &err);
    if (st != TAMIS_STATUS_OK)
        return cli_fail(cli_exit_code(st), "%s", err.text);
    if (!m->ppl->has_bos)
        return measure_sequence(m, ids, n);
    scratch[0] = m->ppl->bos_id;
    memcpy(scratch + 1, ids, (size_t)n * sizeof *ids);
    return measure_sequence(m, scratch, n + 1);
}

static int measure_all(measurement *m)
{
    const cli_ppl *ppl = m->ppl;
    int32_t *scratch = cli_alloc((size_t)ppl->window + 1, sizeof *scratch);
    int code = CLI_EXIT_OK;
    const double started = cli_seconds();
    cli_progress_start(&m->progress, ppl->n_runs > 1 ? m->run->engine.info->profile : "text",
                       ppl->n_predicted);
    for (int64_t w = 0; w < ppl->n_windows && code == CLI_EXIT_OK; w++) {
        const int64_t left = (int64_t)ppl->ids.n - w * ppl->window;
        code = measure_window(m, ppl->ids.values + w * ppl->window,
                              (int32_t)(left < ppl->window ? left : ppl->window), scratch);
    }
    cli_progress_clear(&m->progress);
    m->run->seconds = cli_seconds() - started;
    free(scratch);
    return code;
}

/* ---------------------------------------------------------------- profiles */

static int open_models(cli_ppl *ppl)
{
    const size_t n_given = ppl->args->value[CLI_OPT_PROFILE].n_choices;
    int code = CLI_EXIT_OK;
    ppl->n_runs = n_given == 0 ? 1 : (int)n_given;
    for (int i = 0; i < ppl->n_runs && code == CLI_EXIT_OK; i++)
        code = cli_engine_open_model(&ppl->runs[i].engine, ppl->args,
                                     cli_profile(ppl->args, (size_t)i));
    return code;
}

static int plan_sessions(cli_ppl *ppl, int32_t context, int32_t step_tokens)
{
    int code = CLI_EXIT_OK;
    for (int i = 0; i < ppl->n_runs && code == CLI_EXIT_OK; i++)
        code = cli_engine_plan(&ppl->runs[i].engine, context, step_tokens, step_tokens,
                               &ppl->runs[i].plan);
    return code;
}

/* A session at a time. */
static int run_profiles(cli_ppl *ppl, int32_t context, int32_t step_tokens)
{
    int code = CLI_EXIT_OK;
    for (int i = 0; i < ppl->n_runs && code == CLI_EXIT_OK; i++) {
        measurement m = {.ppl = ppl, .run = &ppl->runs[i]};
        code = cli_engine_open_session(&m.run->engine, context, step_tokens, step_tokens);
        if (code == CLI_EXIT_OK)
            code = measure_all(&m);
        tamis_session_close(&m.run->engine.session);
    }
    return code;
}

static int run(cli_ppl *ppl)
{
    int32_t context = 0;
    int code = open_models(ppl);
    if (code == CLI_EXIT_OK)
        code = read_input(ppl);
    if (code == CLI_EXIT_OK)
        code = choose_window(ppl, &context);
    if (code == CLI_EXIT_OK)
        code = subtract_given_bytes(ppl);
    const int32_t step_tokens =
        code == CLI_EXIT_OK ? cli_engine_step_tokens(first(ppl), context, true) : 0;
    if (code == CLI_EXIT_OK)
        code = plan_sessions(ppl, context, step_tokens);
    if (code != CLI_EXIT_OK)
        return code;
    if (ppl->n_runs > 1) {
        ppl->nll = cli_alloc((size_t)ppl->n_predicted, sizeof *ppl->nll);
        ppl->argmax = cli_alloc((size_t)ppl->n_predicted, sizeof *ppl->argmax);
    }
    code = run_profiles(ppl, context, step_tokens);
    if (code == CLI_EXIT_OK)
        cli_ppl_print(ppl);
    return code;
}

int cli_cmd_ppl(const cli_args *args)
{
    cli_ppl ppl = {.args = args};
    const int code = run(&ppl);
    if (code == CLI_EXIT_INTERRUPTED)
        cli_info("interrupted");
    for (int i = 0; i < ppl.n_runs; i++)
        cli_engine_close(&ppl.runs[i].engine);
    cli_ints_free(&ppl.ids);
    free(ppl.nll);
    free(ppl.argmax);
    return code;
}
