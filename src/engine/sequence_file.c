/*
 * Saving a sequence to a file and loading it into an empty one; the file itself is
 * engine/sequence_format.h.
 *
 * A load takes its blocks and fills them while the sequence is still empty; only when the whole
 * file was read and found right does it get its length. A load that needs the blocks of kept
 * prefixes reads the file twice.
 */
#include "core/compress.h"
#include "core/error.h"
#include "core/size.h"
#include "engine/fingerprint.h"
#include "engine/sequence_format.h"
#include "engine/session_internal.h"

static tamis_sequence_kin kin_of(const tamis_session *session)
{
    return (tamis_sequence_kin){.model = tamis_model_fingerprint(session->model),
                                .family = session->model->info.family,
                                .profile = session->model->config.profile,
                                .kv_cache_dtype = session->params.kv_cache_dtype,
                                .block_tokens = session->params.block_tokens};
}

static tamis_sequence_rows rows_of(const tamis_session *session, int32_t seq)
{
    const tamis_sequence *s = &session->sequences[seq];
    return (tamis_sequence_rows){.store = session->net->store,
                                 .len = s->len,
                                 .floor = tamis_seq_rollback_floor(session, seq),
                                 .table = s->table,
                                 .ids = s->ids,
                                 .slot = seq};
}

static tamis_status check_path(const char *path, int32_t seq, tamis_error *err)
{
    if (path != NULL && path[0] != '\0')
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence %d: path is %s", seq,
                      path == NULL ? "NULL" : "empty, allowed: the name of a file");
}

/* ---------------------------------------------------------------- save */

static tamis_status check_level(int32_t level, tamis_error *err)
{
    if (level < 0 || level > TAMIS_COMPRESS_MAX_LEVEL)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "sequence file: level is %d, allowed 0..%d",
                          level, TAMIS_COMPRESS_MAX_LEVEL);
    if (level > 0 && !tamis_compress_is_available())
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "sequence file: level is %d, allowed 0 (this build has no zstd)", level);
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_save_packed(const tamis_session *session, int32_t seq, const char *path,
                                   int32_t level, tamis_error *err)
{
    tamis_sequence *s = NULL;
    tamis_file_writer file = {0};
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    TAMIS_TRY(check_path(path, seq, err));
    TAMIS_TRY(check_level(level, err));
    const tamis_sequence_kin kin = kin_of(session);
    const tamis_sequence_rows rows = rows_of(session, seq);
    TAMIS_TRY(tamis_file_writer_open(&file, path, err));
    const tamis_status st = tamis_sequence_write(&file, &kin, &rows, level, err);
    if (st == TAMIS_STATUS_OK)
        return tamis_file_writer_commit(&file, err);
    tamis_file_writer_abandon(&file);
    return st;
}

tamis_status tamis_seq_save(const tamis_session *session, int32_t seq, const char *path,
                            tamis_error *err)
{
    return tamis_seq_save_packed(session, seq, path, 0, err);
}

/* ---------------------------------------------------------------- load */

static tamis_status check_target(const tamis_sequence *s, int32_t seq, const char *path,
                                 tamis_error *err)
{
    TAMIS_TRY(check_path(path, seq, err));
    if (s->len != 0)
        return tamis_fail(err, TAMIS_STATUS_STATE,
                          "sequence %d has %d tokens, allowed 0: only an empty one can be loaded",
                          seq, s->len);
    return TAMIS_STATUS_OK;
}

static tamis_status open_reader(const tamis_session *session, tamis_sequence_reader *reader,
                                const char *path, tamis_error *err)
{
    const tamis_sequence_kin kin = kin_of(session);
    return tamis_sequence_reader_open(reader, path, &kin, session->net->store,
                                      session->params.max_model_len, err);
}

/* Blocks for the file may cost kept prefixes: then it is read through before any goes, since they
 * must not go for one that is damaged. */
static tamis_status check_before_eviction(const tamis_session *session,
                                          tamis_sequence_reader *reader, const char *path,
                                          tamis_error *err)
{
    const tamis_sequence_rows nowhere = {.store = session->net->store, .slot = -1};
    if (tamis_ceil_div(reader->len, session->params.block_tokens) <= session->pool.n_free)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(tamis_sequence_reader_rows(reader, &nowhere, err));
    tamis_sequence_reader_close(reader);
    return open_reader(session, reader, path, err);
}

/* Reads everything into blocks that are taken for it. */
static tamis_status fill(tamis_session *session, int32_t seq, tamis_sequence_reader *reader,
                         const char *path, tamis_error *err)
{
    tamis_sequence *s = &session->sequences[seq];
    const tamis_sequence_rows rows = rows_of(session, seq);
    if (s->ids != NULL && !reader->has_ids)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: has 0 token ids, allowed %d: this session's prefix_caching needs "
                          "them (the saving one's was off)",
                          path, reader->len);
    TAMIS_TRY(check_before_eviction(session, reader, path, err));
    tamis_status st = tamis_session_fill_table(session, seq, reader->len, err);
    if (st != TAMIS_STATUS_OK)
        return err != NULL ? tamis_fail(err, st, "%s: %s", path, err->text) : st;
    st = tamis_sequence_reader_rows(reader, &rows, err);
    if (st != TAMIS_STATUS_OK) {
        tamis_session_trim_blocks(session, seq); /* the length is still 0 */
        tamis_cache_store_clear_slot(session->net->store, seq);
        return st;
    }
    s->len = s->high = reader->len;
    s->base = reader->floor; /* the rings begin with the history there */
    session->hidden_of = session->draft_of = -1;
    return TAMIS_STATUS_OK;
}

tamis_status tamis_seq_load(tamis_session *session, int32_t seq, const char *path, tamis_error *err)
{
    tamis_sequence *s = NULL;
    tamis_sequence_reader reader;
    TAMIS_TRY(tamis_session_find_seq(session, seq, &s, err));
    TAMIS_TRY(check_target(s, seq, path, err));
    TAMIS_TRY(open_reader(session, &reader, path, err));
    const tamis_status st = fill(session, seq, &reader, path, err);
    tamis_sequence_reader_close(&reader);
    return st;
}
