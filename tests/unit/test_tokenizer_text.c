/* Properties of encoding and decoding that hold for any text. */
#include "tokenizer_test.h"

#include <pthread.h>

#include "support/rng.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

/* ---------------------------------------------------------------- BPE against a slow one */

/* Merge the lowest rank, leftmost first, looking at every pair every time. */
static size_t slow_bpe(const tamis_vocab *vocab, const char *piece, size_t n, int32_t *ids)
{
    for (size_t i = 0; i < n; ++i)
        ids[i] = vocab->byte_id[(unsigned char)piece[i]];
    for (;;) {
        const tamis_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; ++i) {
            const tamis_merge *merge = tamis_vocab_merge(vocab, ids[i], ids[i + 1]);
            if (merge != NULL && (best == NULL || merge->rank < best->rank)) {
                best = merge;
                at = i;
            }
        }
        if (best == NULL)
            return n;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        --n;
    }
}

/* Text that merges a lot: tokens of the vocabulary in a row, cut anywhere between characters. */
static size_t text_of_tokens(test_rng *rng, const tamis_tokenizer *tokenizer, char *text,
                             size_t room)
{
    size_t n = 0;
    for (;;) {
        size_t bytes;
        const int32_t id = (int32_t)test_rng_int(rng, 0, tokenizer->vocab.num_ids - 1);
        const char *token = tamis_vocab_text(&tokenizer->vocab, id, &bytes);
        if (n + bytes > room)
            return n;
        if (tamis_utf8_valid_prefix(token, bytes) < bytes)
            continue;
        memcpy(text + n, token, bytes);
        n += bytes;
    }
}

static void test_long_pieces(void **state)
{
    enum { ROOM = 400 };
    test_rng rng = test_rng_start("long pieces", 11);
    tamis_tokenizer *ds = open_golden("ds");
    tamis_bpe_scratch scratch = {0};
    for (int round = 0; round < 400; ++round) {
        char text[ROOM];
        int32_t slow[ROOM];
        tamis_id_list fast = {0};
        const size_t n = text_of_tokens(&rng, ds, text, (size_t)test_rng_int(&rng, 30, ROOM));
        if (n == 0)
            continue;
        assert_int_equal(tamis_bpe_encode(&ds->vocab, &scratch, text, n, &fast, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(slow_bpe(&ds->vocab, text, n, slow), fast.n);
        assert_memory_equal(slow, fast.ids, fast.n * sizeof *slow);
        tamis_ids_free(fast.ids);
    }
    tamis_bpe_scratch_free(&scratch);
    tamis_tokenizer_close(&ds);
}

/* ---------------------------------------------------------------- round trips */

/* Encode, decode, compare with what the text is after repair. */
static void check_round_trip(const tamis_tokenizer *tokenizer, const char *text, size_t n,
                             tamis_encode_mode mode)
{
    int32_t *ids;
    size_t n_ids, decoded_bytes, cut;
    char *decoded, *valid = malloc(3 * n + 1);
    const size_t n_valid = tamis_utf8_repair(valid, text, n, false, &cut);
    assert_int_equal(tamis_tokenizer_encode(tokenizer, text, n, mode, &ids, &n_ids, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(
        tamis_tokenizer_decode(tokenizer, ids, n_ids, false, &decoded, &decoded_bytes, NULL),
        TAMIS_STATUS_OK);
    assert_int_equal(decoded_bytes, n_valid);
    assert_memory_equal(decoded, valid, n_valid);
    assert_int_equal(decoded[n_valid], 0);
    tamis_text_free(decoded);
    tamis_ids_free(ids);
    free(valid);
}

static size_t random_text(test_rng *rng, char *text, size_t room)
{
    size_t n = 0;
    const int kind = (int)test_rng_int(rng, 0, 2);
    const size_t want = (size_t)test_rng_int(rng, 0, (int64_t)room - 4);
    while (n < want) {
        if (kind == 0 || test_rng_int(rng, 0, 40) == 0) {
            text[n++] = (char)test_rng_u64(rng);
            continue;
        }
        const uint32_t limit = kind == 1 ? 0x10ffff : 0x3100;
        const uint32_t c = (uint32_t)test_rng_int(rng, 0, limit);
        if (c < 0x80) {
            text[n++] = (char)c;
        } else if (c < 0x800) {
            text[n++] = (char)(0xc0 | c >> 6);
            text[n++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            text[n++] = (char)(0xe0 | c >> 12);
            text[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            text[n++] = (char)(0x80 | (c & 0x3f));
        } else {
            text[n++] = (char)(0xf0 | c >> 18);
            text[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            text[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            text[n++] = (char)(0x80 | (c & 0x3f));
        }
    }
    return n;
}

static void test_random_text(void **state)
{
    enum { ROOM = 300 };
    test_rng rng = test_rng_start("random text", 12);
    tamis_tokenizer *ds = open_golden("ds"), *glm = open_golden("glm");
    for (int round = 0; round < 3000; ++round) {
        char text[ROOM];
        const size_t n = random_text(&rng, text, ROOM);
        check_round_trip(ds, text, n, TAMIS_ENCODE_ADDED_TOKENS);
        check_round_trip(glm, text, n, TAMIS_ENCODE_PLAIN);
    }
    tamis_tokenizer_close(&ds);
    tamis_tokenizer_close(&glm);
}

/* With a normalizer and white space taken along the text is not kept, but nothing may break. */
static void test_random_text_normalized(void **state)
{
    enum { ROOM = 300 };
    test_rng rng = test_rng_start("normalized text", 13);
    tamis_tokenizer *flags = open_golden("flags");
    for (int round = 0; round < 3000; ++round) {
        char text[ROOM], *decoded;
        int32_t *ids;
        size_t n_ids, bytes;
        const size_t n = random_text(&rng, text, ROOM);
        assert_int_equal(
            tamis_tokenizer_encode(flags, text, n, TAMIS_ENCODE_ADDED_TOKENS, &ids, &n_ids, NULL),
            TAMIS_STATUS_OK);
        assert_int_equal(tamis_tokenizer_decode(flags, ids, n_ids, true, &decoded, &bytes, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(tamis_utf8_valid_prefix(decoded, bytes), bytes);
        tamis_ids_free(ids);
        tamis_text_free(decoded);
    }
    tamis_tokenizer_close(&flags);
}

/* Any ids, cut anywhere: the stream's text is the text of decoding at once. */
static void test_random_streams(void **state)
{
    enum { N = 24 };
    test_rng rng = test_rng_start("random streams", 14);
    tamis_tokenizer *ds = open_golden("ds");
    for (int round = 0; round < 3000; ++round) {
        int32_t ids[N];
        char streamed[1 << 14], *decoded;
        size_t n_streamed = 0, n_decoded, bytes;
        const char *text;
        tamis_stream *stream = NULL;
        const bool skip = test_rng_int(&rng, 0, 1) == 1;
        assert_int_equal(tamis_stream_open(&stream, ds, skip, NULL), TAMIS_STATUS_OK);
        for (int i = 0; i < N; ++i) {
            /* Mostly single bytes; some beyond both ends of the vocabulary. */
            ids[i] = (int32_t)test_rng_int(&rng, -3, i % 3 ? 260 : 3000);
            assert_int_equal(tamis_stream_push(stream, ids[i], &text, &bytes, NULL),
                             TAMIS_STATUS_OK);
            memcpy(streamed + n_streamed, text, bytes);
            n_streamed += bytes;
        }
        tamis_stream_flush(stream, &text, &bytes);
        memcpy(streamed + n_streamed, text, bytes);
        n_streamed += bytes;
        assert_int_equal(tamis_tokenizer_decode(ds, ids, N, skip, &decoded, &n_decoded, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(n_streamed, n_decoded);
        assert_memory_equal(streamed, decoded, n_decoded);
        tamis_text_free(decoded);
        tamis_stream_close(&stream);
        assert_null(stream);
    }
    tamis_tokenizer_close(&ds);
}

/* Every maximal invalid part is one U+FFFD, before anything is split. */
static void test_invalid_utf8(void **state)
{
    static const struct {
        const char *bytes;
        const char *valid;
    } cases[] = {
        {"a\x80z", "a\ufffdz"},
        {"\xff\xfe", "\ufffd\ufffd"},
        {"\xc3", "\ufffd"},
        {"\xe4\xb8", "\ufffd"},
        {"\xe4\xb8 x", "\ufffd x"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\ufffd\U0001f600"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
        {"\xc0\x80", "\ufffd\ufffd"},
        {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
        {"\xf0\x9f\x98", "\ufffd"},
    };
    tamis_tokenizer *glm = open_golden("glm");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        int32_t *ids, *want;
        size_t n, n_want;
        assert_int_equal(tamis_tokenizer_encode(glm, cases[i].bytes, strlen(cases[i].bytes),
                                                TAMIS_ENCODE_PLAIN, &ids, &n, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(tamis_tokenizer_encode(glm, cases[i].valid, strlen(cases[i].valid),
                                                TAMIS_ENCODE_PLAIN, &want, &n_want, NULL),
                         TAMIS_STATUS_OK);
        assert_int_equal(n, n_want);
        assert_memory_equal(ids, want, n * sizeof *ids);
        tamis_ids_free(ids);
        tamis_ids_free(want);
    }
    tamis_tokenizer_close(&glm);
}

static void test_edges(void **state)
{
    tamis_tokenizer *ds = open_golden("ds");
    int32_t *ids = NULL, *untouched = NULL;
    char *text = NULL;
    size_t n = 7, bytes = 7;
    assert_int_equal(tamis_tokenizer_encode(ds, NULL, 0, TAMIS_ENCODE_PLAIN, &ids, &n, NULL),
                     TAMIS_STATUS_OK);
    assert_non_null(ids);
    assert_int_equal(n, 0);
    tamis_ids_free(ids);
    tamis_ids_free(NULL);
    assert_int_equal(tamis_tokenizer_decode(ds, NULL, 0, false, &text, &bytes, NULL),
                     TAMIS_STATUS_OK);
    assert_string_equal(text, "");
    tamis_text_free(text);
    const int32_t unknown[] = {-1, 2973, INT32_MAX, INT32_MIN};
    assert_int_equal(tamis_tokenizer_decode(ds, unknown, 4, false, &text, &bytes, NULL),
                     TAMIS_STATUS_OK);
    assert_int_equal(bytes, 0);
    tamis_text_free(text);
    tamis_error err = {0};
    assert_int_equal(
        tamis_tokenizer_encode(ds, "", (size_t)1 << 40, TAMIS_ENCODE_PLAIN, &untouched, &n, &err),
        TAMIS_STATUS_LIMIT);
    assert_null(untouched);
    assert_int_equal(tamis_tokenizer_encode(ds, NULL, 1, TAMIS_ENCODE_PLAIN, &untouched, &n, NULL),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_tokenizer_decode(NULL, unknown, 1, false, &text, &bytes, NULL),
                     TAMIS_STATUS_INVALID);
    tamis_tokenizer_close(&ds);
}

/* ---------------------------------------------------------------- threads */

typedef struct worker {
    const tamis_tokenizer *tokenizer;
    const char *text;
    size_t bytes, n_ids;
    int32_t *ids;
} worker;

static void *encode_often(void *arg)
{
    worker *w = arg;
    for (int i = 0; i < 20; ++i) {
        tamis_ids_free(w->ids);
        w->ids = NULL;
        if (tamis_tokenizer_encode(w->tokenizer, w->text, w->bytes, TAMIS_ENCODE_ADDED_TOKENS,
                                   &w->ids, &w->n_ids, NULL) != TAMIS_STATUS_OK)
            return NULL;
    }
    return w;
}

static void test_threads(void **state)
{
    enum { N = 3, ROOM = 4000 };
    test_rng rng = test_rng_start("threads", 15);
    tamis_tokenizer *ds = open_golden("ds");
    char text[ROOM];
    const size_t n = text_of_tokens(&rng, ds, text, ROOM);
    worker workers[N];
    pthread_t threads[N];
    for (int i = 0; i < N; ++i) {
        workers[i] = (worker){.tokenizer = ds, .text = text, .bytes = n};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &workers[i]), 0);
    }
    for (int i = 0; i < N; ++i) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, &workers[i]);
        assert_int_equal(workers[i].n_ids, workers[0].n_ids);
        assert_memory_equal(workers[i].ids, workers[0].ids, workers[0].n_ids * sizeof(int32_t));
    }
    for (int i = 0; i < N; ++i)
        tamis_ids_free(workers[i].ids);
    tamis_tokenizer_close(&ds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_random_text),
        cmocka_unit_test(test_random_text_normalized),
        cmocka_unit_test(test_random_streams),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
