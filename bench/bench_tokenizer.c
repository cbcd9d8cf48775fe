/*
 * Speed of opening, encoding and decoding on varied text: prose of several scripts, code, numbers,
 * white space, emoji, drawn with a fixed seed.
 *
 *   bench_tokenizer FOLDER [MEGABYTES] [FILE]      FILE: encode this text instead
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tamis/tokenizer.h"

static const char *const pieces[] = {
    "the attention window keeps ",
    "sparse blocks of the cache, ",
    "Donaudampfschifffahrt ",
    "aujourd'hui l'élève ",
    "внимание и память ",
    "注意力稀疏索引压缩缓存模型，",
    "日本語のテストです。",
    "한국어 텍스트 ",
    "اللغة العربية ",
    "हिन्दी भाषा में ",
    "for (size_t i = 0; i < n_rows; ++i)\n",
    "    out[i] = fmaf(x[i], y[i], acc);\n",
    "\t\treturn top_k(scores, k=64)\n",
    "{\"id\": 1234567, ",
    "3.14159, 2026-11-30, 0x1F2e ",
    "\n\n\n",
    "        ",
    "😀👍🏽👩‍💻 ",
    "don't we've it's ",
    "https://example.org/path?x=1&y=2 ",
    "---------------- ",
    "ΕΛΛΗΝΙΚΑ γλώσσα ",
    "tiếng Việt ",
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *make_text(size_t bytes, size_t *n)
{
    char *text = malloc(bytes + 64);
    uint64_t state = 1;
    if (text == NULL)
        exit(1);
    for (*n = 0; *n < bytes;) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
        const char *piece = pieces[(state >> 33) % (sizeof pieces / sizeof *pieces)];
        memcpy(text + *n, piece, strlen(piece));
        *n += strlen(piece);
    }
    return text;
}

static char *read_text(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*n + 1);
    if (text == NULL || fread(text, 1, *n, f) != *n)
        exit(1);
    fclose(f);
    return text;
}

static void check(tamis_status status, const tamis_error *err)
{
    if (status != TAMIS_STATUS_OK) {
        fprintf(stderr, "%s: %s\n", tamis_status_name(status), err->text);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [MEGABYTES] [FILE]\n", argv[0]);
        return 2;
    }
    tamis_error err = {0};
    tamis_tokenizer *tokenizer = NULL;
    double start = now();
    check(tamis_tokenizer_open(&tokenizer, argv[1], &err), &err);
    const tamis_tokenizer_info info = tamis_tokenizer_get_info(tokenizer);
    printf("open    %7.1f ms, %" PRId32 " ids, %.1f MiB\n", 1e3 * (now() - start), info.num_ids,
           (double)info.memory_bytes / (1 << 20));
    size_t bytes, n_ids = 0, decoded_bytes = 0;
    const size_t megabytes = argc > 2 ? (size_t)atoi(argv[2]) : 10;
    char *text = argc > 3 ? read_text(argv[3], &bytes) : make_text(megabytes * 1000000, &bytes);
    int32_t *ids = NULL;
    char *decoded = NULL;
    start = now();
    check(tamis_tokenizer_encode(tokenizer, text, bytes, TAMIS_ENCODE_ADDED_TOKENS, &ids, &n_ids,
                                 &err),
          &err);
    double seconds = now() - start;
    printf("encode  %7.2f MB/s, %zu bytes, %zu ids, %.2f s\n", 1e-6 * (double)bytes / seconds,
           bytes, n_ids, seconds);
    start = now();
    check(tamis_tokenizer_decode(tokenizer, ids, n_ids, false, &decoded, &decoded_bytes, &err),
          &err);
    seconds = now() - start;
    printf("decode  %7.2f MB/s, %s\n", 1e-6 * (double)decoded_bytes / seconds,
           decoded_bytes == bytes && memcmp(decoded, text, bytes) == 0 ? "equal to the text"
                                                                       : "another text");
    tamis_text_free(decoded);
    tamis_ids_free(ids);
    free(text);
    tamis_tokenizer_close(&tokenizer);
    return 0;
}
