/*
 * A sequence as a file: what is in the caches for it, so that another session can go on with the
 * same bits. Little-endian. Every part has a checksum, which seeds that of the next, so that parts
 * of two files never mix.
 *
 *   header    96 bytes: "tamisseq", version, number of caches, model fingerprint, family, dtype,
 *             block_tokens, length, floor, number of token ids, profile
 *   caches    56 bytes each: their descriptions with the format of a row, in the order of the store
 *   checksum  8 bytes
 *   sections  a head of 32 bytes (kind, index, codec, bytes stored, checksum), then the bytes: one
 *             TOKENS if there are ids, one BLOCK per block of the table, one RING per ring, one END
 *             without any bytes
 *
 * TOKENS are the ids of all tokens or of none: sessions without prefix_caching do not know them. A
 * BLOCK holds the rows that exist of every paged cache, one cache after the other. A RING holds the
 * rows of positions from the history of the floor (caches/ring_history.h) to the last: all that
 * going on or back may read, whatever the size of the rings. A section is stored as it is or packed
 * with zstd, whichever is shorter.
 *
 * The version is that of the layout and of what the rows mean: it goes up when a file of before
 * would no longer give the same bits.
 */
#ifndef TAMIS_ENGINE_SEQUENCE_FORMAT_H
#define TAMIS_ENGINE_SEQUENCE_FORMAT_H

#include "caches/cache_store.h"
#include "core/file_stream.h"

#define TAMIS_SEQUENCE_FILE_VERSION 2 /* 1: no profile, and rows were plain numbers */
#define TAMIS_SEQUENCE_FAMILY_BYTES 32

/* What a file has in common with every session that may load it. */
typedef struct tamis_sequence_kin {
    uint64_t model; /* tamis_model_fingerprint */
    const char *family;
    tamis_profile profile;
    tamis_dtype kv_cache_dtype;
    int32_t block_tokens;
} tamis_sequence_kin;

/* A sequence over a store. */
typedef struct tamis_sequence_rows {
    const tamis_cache_store *store;
    int32_t len;    /* tokens */
    int32_t floor;  /* smallest length that it may be rolled back to, 0 apart */
    int32_t *table; /* [len / block_tokens, rounded up] */
    int32_t *ids;   /* [len] or NULL */
    int32_t slot;
} tamis_sequence_rows;

/* level 0: no compression. errors: IO, NO_MEMORY */
tamis_status tamis_sequence_write(tamis_file_writer *file, const tamis_sequence_kin *kin,
                                  const tamis_sequence_rows *rows, int level, tamis_error *err);

typedef struct tamis_sequence_reader {
    tamis_file_reader file;
    tamis_sequence_kin kin; /* of the session */
    const tamis_cache_store *store;
    void *caches;  /* [store->n_caches] descriptions in the file */
    void *section; /* head and bytes of one section */
    void *packed;
    uint64_t checksum; /* of the part before */
    int32_t len, floor;
    bool has_ids;
} tamis_sequence_reader;

/*
 * Opens a file and reads everything up to the sections; `path` must outlive the reader. errors: IO,
 * FORMAT (no such file, damaged, cut), UNSUPPORTED (version, another model, profile, dtype, block
 * size or layout), LIMIT (longer than max_len), NO_MEMORY: path, field, value seen and allowed
 */
tamis_status tamis_sequence_reader_open(tamis_sequence_reader *reader, const char *path,
                                        const tamis_sequence_kin *kin,
                                        const tamis_cache_store *store, int32_t max_len,
                                        tamis_error *err);
/*
 * Reads everything into rows->ids (if it is not NULL, the file must have ids) and the blocks and
 * slot of rows, and checks that the file ends there. On failure some of them hold rubbish.
 * Where ids or table is NULL or slot is -1, that part is only checked. rows->store is that of open;
 * its len and floor are not read. errors: FORMAT, IO, UNSUPPORTED
 * (packed, and this build has no zstd)
 */
tamis_status tamis_sequence_reader_rows(tamis_sequence_reader *reader,
                                        const tamis_sequence_rows *rows, tamis_error *err);
void tamis_sequence_reader_close(tamis_sequence_reader *reader); /* all-zero is fine */

#endif
