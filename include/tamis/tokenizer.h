/*
 * tamis/tokenizer.h - text <-> ids for the byte-level BPE of a tokenizer.json (DeepSeek and GLM
 * kinds), streaming decode, and stop strings over streamed text.
 *
 * A tokenizer is immutable after open and may be used from several threads; a stream or a stop
 * matcher belongs to one thread at a time.
 */
#ifndef TAMIS_TOKENIZER_H
#define TAMIS_TOKENIZER_H

#include "tamis/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tamis_tokenizer tamis_tokenizer;

/**
 * Open dir/tokenizer.json and, if there, dir/tokenizer_config.json (bos, eos, add_bos_token).
 *
 * errors   IO (no tokenizer.json), FORMAT (damaged: path, key, value seen and allowed),
 *          UNSUPPORTED (another model type than BPE, byte_fallback, dropout, an unknown
 *          pre-tokenizer or normalizer: its name), NO_MEMORY
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_tokenizer_open(tamis_tokenizer **out, const char *dir,
                                                             tamis_error *err);
TAMIS_API void tamis_tokenizer_close(tamis_tokenizer **tokenizer);

typedef struct tamis_tokenizer_info {
    int32_t num_ids;        /* highest id + 1 */
    int32_t bos_id, eos_id; /* of tokenizer_config.json; -1: none */
    bool add_bos_token;
    size_t memory_bytes; /* what the tokenizer holds */
} tamis_tokenizer_info;
TAMIS_API tamis_tokenizer_info tamis_tokenizer_get_info(const tamis_tokenizer *tokenizer);

/** Id of a token by its exact (decoded) text, added tokens first; -1 if there is none. */
TAMIS_API int32_t tamis_tokenizer_find(const tamis_tokenizer *tokenizer, const char *text,
                                       size_t bytes);

typedef enum tamis_encode_mode {
    TAMIS_ENCODE_ADDED_TOKENS = 0, /* added tokens inside the text are recognised */
    TAMIS_ENCODE_PLAIN             /* none is: what a user typed */
} tamis_encode_mode;

/**
 * Encode UTF-8 text. Nothing is put in front (no BOS).
 *
 * text may hold any bytes; bytes that are not UTF-8 are first replaced by U+FFFD, one per maximal
 * invalid part.
 * owner    *ids is allocated here (also for 0 ids): tamis_ids_free. Untouched on error.
 * errors   NO_MEMORY; LIMIT (more than 341 MiB of text, or a split pattern of the file that
 *          backtracks without end on this text)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_tokenizer_encode(const tamis_tokenizer *tokenizer,
                                                               const char *text, size_t bytes,
                                                               tamis_encode_mode mode,
                                                               int32_t **ids, size_t *n_ids,
                                                               tamis_error *err);
TAMIS_API void tamis_ids_free(int32_t *ids);

/**
 * Decode ids to UTF-8 (NUL-terminated, *bytes without it); invalid bytes become U+FFFD per maximal
 * invalid part. Unknown ids give no text. skip_special leaves out tokens marked special.
 * owner    *text: free with tamis_text_free.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_tokenizer_decode(const tamis_tokenizer *tokenizer,
                                                               const int32_t *ids, size_t n_ids,
                                                               bool skip_special, char **text,
                                                               size_t *bytes, tamis_error *err);
TAMIS_API void tamis_text_free(char *text);

/* ---------------------------------------------------------------- streaming */

typedef struct tamis_stream tamis_stream;
/** A streaming decoder; the tokenizer must outlive it. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_stream_open(tamis_stream **out,
                                                          const tamis_tokenizer *tokenizer,
                                                          bool skip_special, tamis_error *err);
TAMIS_API void tamis_stream_close(tamis_stream **stream);
/**
 * Add one id; *text is what may be shown now (NUL-terminated, valid until the next call on this
 * stream). At most 3 bytes of a character that can still be completed are held back.
 * errors   NO_MEMORY (the id was not added; may be repeated)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_stream_push(tamis_stream *stream, int32_t id,
                                                          const char **text, size_t *bytes,
                                                          tamis_error *err);
/** What is held back, U+FFFD for an incomplete character; the stream is empty afterwards. */
TAMIS_API void tamis_stream_flush(tamis_stream *stream, const char **text, size_t *bytes);

/* ---------------------------------------------------------------- stop strings */

typedef struct tamis_stop tamis_stop;
/**
 * Watch streamed text for n_strings stop strings (any bytes but NUL; empty ones are INVALID; 0
 * strings is fine).
 * The strings are copied.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_stop_open(tamis_stop **out,
                                                        const char *const *strings,
                                                        size_t n_strings, tamis_error *err);
TAMIS_API void tamis_stop_close(tamis_stop **stop);
/**
 * Add text; *out is what may be shown (*out_bytes, valid until the next call): the longest suffix
 * that could still become a stop string is held back, also across calls. *hit is set as soon as a
 * stop string is complete (of several that end at the same byte, the one that starts first); it
 * ends the text: neither it nor anything after it is shown, now or later, and *hit stays set. How
 * the text is cut into calls makes no difference.
 * errors   NO_MEMORY (the text was not added; may be repeated)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_stop_push(tamis_stop *stop, const char *text,
                                                        size_t bytes, const char **out,
                                                        size_t *out_bytes, bool *hit,
                                                        tamis_error *err);
/** What is held back (nothing after a hit); the matcher holds nothing afterwards. */
TAMIS_API void tamis_stop_flush(tamis_stop *stop, const char **out, size_t *out_bytes);

#ifdef __cplusplus
}
#endif
#endif
