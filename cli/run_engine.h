/* From options to an open model, tokenizer, session and one sequence; shared by the commands. */
#ifndef CLI_RUN_ENGINE_H
#define CLI_RUN_ENGINE_H

#include <tamis/tamis.h>

#include "args.h"
#include "input.h"
#include "progress.h"

/* Start with {0}; cli_engine_close copes with every half-open state. Not to be copied. */
typedef struct cli_engine {
    const cli_args *args;
    const char *dir;
    tamis_model *model;
    const tamis_model_info *info;
    tamis_tokenizer *tokenizer; /* NULL: the folder has none */
    tamis_session *session;
    int32_t seq;
    int32_t max_model_len; /* in force, once the session is open */
    int32_t step_tokens;   /* same */
    /* generate sets these before the session is opened */
    tamis_drafter drafter;
    int32_t draft_tokens; /* per step; 0: none */
} cli_engine;

/* The i-th profile that was asked for; exact if none was. */
tamis_profile cli_profile(const cli_args *args, size_t i);
/* Model, and tokenizer if the folder has one. */
int cli_engine_open_model(cli_engine *engine, const cli_args *args, tamis_profile profile);
bool cli_has_tokenizer(const char *dir); /* the file; it may be bad */
/* The folder's tokenizer alone; bad or missing: CLI_EXIT_MODEL. */
int cli_open_tokenizer(const char *dir, tamis_tokenizer **tokenizer);

/* max_model_len: -c, or else `wanted` up to the model's maximum. */
int32_t cli_engine_context(const cli_engine *engine, int64_t wanted);
/*
 * Tokens per step: -ub, or else 512, fewer where every token gets a logits row and 512 rows would
 * take more than 64 MiB.
 */
int32_t cli_engine_step_tokens(const cli_engine *engine, int32_t context, bool all_logits);
/* What a session would take; refuses what no session can have. */
int cli_engine_plan(const cli_engine *engine, int32_t context, int32_t step_tokens,
                    int32_t num_logits, tamis_memory_plan *plan);
/* Plans, prints the report, refuses what does not fit, opens session and sequence. */
int cli_engine_open_session(cli_engine *engine, int32_t context, int32_t step_tokens,
                            int32_t num_logits);

/* Of JSON output: "none", "config" or "approximate". */
const char *cli_engine_index_cache(const cli_engine *engine);

typedef enum cli_bos {
    CLI_BOS_NONE = 0, /* the ids do not start with it */
    CLI_BOS_IN_TEXT,  /* the text spells it */
    CLI_BOS_ADDED
} cli_bos;
/*
 * Text to ids; the id of the beginning of text comes first where tokenizer_config.json says
 * add_bos_token and the text does not start with it. *bos (NULL allowed): what the ids start with.
 */
int cli_engine_encode(const cli_engine *engine, const char *text, size_t bytes, cli_ints *ids,
                      cli_bos *bos);
int32_t cli_engine_bos_id(const cli_engine *engine); /* -1: none */

/* One step of the sequence; prints what is wrong. */
int cli_engine_step(cli_engine *engine, const int32_t *tokens, int32_t n, tamis_logits_want want,
                    const uint8_t *mask);
void cli_engine_close(cli_engine *engine);

#endif
