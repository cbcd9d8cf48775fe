/*
 * Driving a network's MTP block behind a session's steps: what a drafter does, with every row in
 * the test's hands. The session must have been opened with params.mtp.
 */
#ifndef TAMIS_TEST_MTP_RUN_H
#define TAMIS_TEST_MTP_RUN_H

#include "support/engine_run.h"

/* A session as test_session_params gives it, with the block and room for n_seqs sequences. */
tamis_session_params test_mtp_params(tamis_dtype kv_cache_dtype, int32_t max_len, int32_t n_seqs);

/*
 * Over the last step of n tokens, whose followers are next [n]: logits [n_rows][vocab_size] of the
 * tokens rows [n_rows]; rows NULL: of all. Fails the test if a NaN comes up.
 */
void test_mtp_over_step(test_engine *engine, const int32_t *next, int32_t n, const int32_t *rows,
                        int32_t n_rows, float *logits);
/*
 * One position more of n sequences, from what the last call left: sequence seqs[i] is then
 * seq_lens[i] long (within the blocks that it has), tokens next [n]. logits and rows as above.
 */
void test_mtp_go_on(test_engine *engine, const int32_t *seqs, const int32_t *seq_lens,
                    const int32_t *next, int32_t n, const int32_t *rows, int32_t n_rows,
                    float *logits);

/*
 * Feeds ids[0 .. n) in steps of `chunk` (0: one step) with the block behind every step; the token
 * after ids[i] is ids[i + 1], so n + 1 ids are read. logits [n][vocab_size] of the block at every
 * position; needs max_num_seqs >= chunk.
 */
void test_mtp_feed(test_engine *engine, int32_t seq, const int32_t *ids, int32_t n, int32_t chunk,
                   float *logits);

#endif
