/* What the tests of sequence files share: models, sessions, files and random tokens. */
#ifndef TAMIS_TEST_SEQUENCE_FILE_TEST_H
#define TAMIS_TEST_SEQUENCE_FILE_TEST_H

#include <stdlib.h>
#include <string.h>

#include "support/engine_run.h"
#include "support/rng.h"
#include "support/temp_dir.h"

#define GOLDEN   TAMIS_SOURCE_DIR "/tests/golden/"
#define V4_DIR   GOLDEN "v4-flash-bf16"
#define V32_DIR  GOLDEN "v32-bf16"
#define GLM5_DIR GOLDEN "glm5-bf16"

enum { MAX_LEN = 330 };

static inline tamis_session_params file_params(tamis_dtype dtype)
{
    tamis_session_params p = test_session_params(dtype, MAX_LEN);
    p.block_tokens = 128;
    p.max_num_seqs = 3;
    p.max_num_logits = 160;
    p.max_rollback = 12;
    p.block_order_seed = 5;
    return p;
}

static inline test_engine open_profile(const char *dir, tamis_profile profile, tamis_dtype dtype)
{
    const tamis_session_params session = file_params(dtype);
    return test_engine_open_as(dir, profile, &session);
}

static inline void random_ids(test_rng *rng, int32_t vocab, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)test_rng_int(rng, 0, vocab - 1);
}

static inline void save(const test_engine *e, int32_t seq, const char *path, int32_t level)
{
    tamis_error err;
    test_must(tamis_seq_save_packed(e->session, seq, path, level, &err), &err, "save");
}

static inline int32_t load_new(test_engine *e, const char *path)
{
    tamis_error err;
    const int32_t seq = test_seq_new(e);
    test_must(tamis_seq_load(e->session, seq, path, &err), &err, "load");
    return seq;
}

#endif
