/* tamis logits: ids -> steps -> rows of a .npy file. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "interrupt.h"
#include "memory.h"
#include "message.h"
#include "npy_writer.h"
#include "run_engine.h"

typedef struct wanted_row {
    int32_t pos;
    int64_t row; /* in the output */
} wanted_row;

typedef struct logits_run {
    const cli_args *args;
    cli_engine engine;
    cli_ints ids;
    wanted_row *rows; /* ascending positions; a position may come twice */
    size_t n_rows;
    int32_t n_fed; /* tokens up to the last wanted position */
    uint8_t *mask; /* [n_fed] 1: a logits row is wanted */
    cli_npy npy;
} logits_run;

/* ---------------------------------------------------------------- which rows */

static int compare_rows(const void *a, const void *b)
{
    const wanted_row *x = a, *y = b;
    if (x->pos != y->pos)
        return x->pos < y->pos ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static int choose_positions(const logits_run *run, cli_ints *positions)
{
    const char *which =
        cli_has(run->args, CLI_OPT_POSITIONS) ? cli_text(run->args, CLI_OPT_POSITIONS) : "all";
    const int32_t n = (int32_t)run->ids.n;
    if (strcmp(which, "all") != 0 && strcmp(which, "last") != 0)
        return cli_read_ints(which, 0, n - 1, positions);
    for (int32_t pos = strcmp(which, "all") == 0 ? 0 : n - 1; pos < n; pos++)
        cli_ints_push(positions, pos);
    return CLI_EXIT_OK;
}

static int choose_rows(logits_run *run)
{
    cli_ints positions = {0};
    const int code = choose_positions(run, &positions);
    run->n_rows = positions.n;
    if (code == CLI_EXIT_OK && positions.n > 0) {
        run->rows = cli_alloc(positions.n, sizeof *run->rows);
        for (size_t i = 0; i < positions.n; i++)
            run->rows[i] = (wanted_row){positions.values[i], (int64_t)i};
        qsort(run->rows, run->n_rows, sizeof *run->rows, compare_rows);
        run->n_fed = run->rows[run->n_rows - 1].pos + 1;
        run->mask = cli_alloc((size_t)run->n_fed, 1);
        for (size_t i = 0; i < run->n_rows; i++)
            run->mask[run->rows[i].pos] = 1;
    }
    cli_ints_free(&positions);
    if (code == CLI_EXIT_OK && run->n_rows == 0)
        return cli_fail(CLI_EXIT_RUN, "%s: no positions, allowed: at least 1",
                        cli_text(run->args, CLI_OPT_POSITIONS));
    return code;
}

/* Logits rows that the fullest step needs. */
static int32_t most_rows_per_step(const logits_run *run, int32_t step_tokens)
{
    int32_t most = 1;
    for (int32_t at = 0; at < run->n_fed; at += step_tokens) {
        int32_t n = 0;
        for (int32_t i = at; i < run->n_fed && i - at < step_tokens; i++)
            n += run->mask[i];
        most = n > most ? n : most;
        if (run->n_fed - at <= step_tokens)
            break;
    }
    return most;
}

static int open_session(logits_run *run)
{
    const int32_t context = cli_engine_context(&run->engine, (int64_t)run->ids.n);
    if ((int64_t)run->ids.n > context)
        return cli_fail(CLI_EXIT_RUN, "%s: %zu ids, allowed: %d (the context length)",
                        cli_text(run->args, CLI_OPT_IDS), run->ids.n, (int)context);
    const int32_t step_tokens = cli_engine_step_tokens(&run->engine, context, run->n_rows > 8);
    return cli_engine_open_session(&run->engine, context, step_tokens,
                                   most_rows_per_step(run, step_tokens));
}

/* ---------------------------------------------------------------- running */

/* Writes the rows of the step that ended at `end`; *next is the first row not yet written. */
static int write_rows(logits_run *run, int32_t end, size_t *next)
{
    int32_t n_positions = 0;
    for (; *next < run->n_rows && run->rows[*next].pos < end; ++*next) {
        const bool is_new = *next == 0 || run->rows[*next].pos != run->rows[*next - 1].pos;
        n_positions += is_new;
        const float *logits = tamis_session_logits(run->engine.session, n_positions - 1);
        const int code = cli_npy_write_row(&run->npy, run->rows[*next].row, logits);
        if (code != CLI_EXIT_OK)
            return code;
    }
    return CLI_EXIT_OK;
}

static int run_steps(logits_run *run, cli_progress *progress)
{
    size_t next = 0;
    for (int32_t at = 0; at < run->n_fed;) {
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        const int32_t left = run->n_fed - at;
        const int32_t n = left < run->engine.step_tokens ? left : run->engine.step_tokens;
        int code = cli_engine_step(&run->engine, run->ids.values + at, n, TAMIS_LOGITS_MASK,
                                   run->mask + at);
        at += n;
        if (code == CLI_EXIT_OK)
            code = write_rows(run, at, &next);
        if (code != CLI_EXIT_OK)
            return code;
        cli_progress_show(progress, at);
    }
    return cli_npy_commit(&run->npy);
}

static int run_all(logits_run *run)
{
    int code = cli_engine_open_model(&run->engine, run->args, cli_profile(run->args, 0));
    if (code == CLI_EXIT_OK)
        code = cli_read_ints(cli_text(run->args, CLI_OPT_IDS), 0, run->engine.info->vocab_size - 1,
                             &run->ids);
    if (code == CLI_EXIT_OK && run->ids.n == 0)
        return cli_fail(CLI_EXIT_RUN, "%s: no ids, allowed: at least 1",
                        cli_text(run->args, CLI_OPT_IDS));
    if (code == CLI_EXIT_OK)
        code = choose_rows(run);
    if (code == CLI_EXIT_OK)
        code = open_session(run);
    if (code == CLI_EXIT_OK)
        code = cli_npy_open(&run->npy, cli_text(run->args, CLI_OPT_OUTPUT), (int64_t)run->n_rows,
                            run->engine.info->vocab_size);
    if (code != CLI_EXIT_OK)
        return code;
    cli_progress progress;
    cli_progress_start(&progress, "logits", run->n_fed);
    code = run_steps(run, &progress);
    cli_progress_clear(&progress);
    return code;
}

int cli_cmd_logits(const cli_args *args)
{
    logits_run run = {.args = args};
    const int code = run_all(&run);
    if (code == CLI_EXIT_INTERRUPTED)
        cli_info("interrupted");
    cli_npy_close(&run.npy);
    cli_engine_close(&run.engine);
    cli_ints_free(&run.ids);
    free(run.rows);
    free(run.mask);
    return code;
}
