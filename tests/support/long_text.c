#include "support/long_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/temp_dir.h"
#include "tamis/tokenizer.h"

#define DEMO "models/demo"

static void die(const char *what)
{
    fprintf(stderr, "long text: %s\n", what);
    abort();
}

char *test_demo_with_max_len(int32_t max_len)
{
    char *dir = test_temp_dir_make(), *text = test_file_read(DEMO, "config.json", NULL);
    json_t *config = json_loads(text, 0, NULL);
    if (config == NULL)
        die("config.json is not JSON");
    json_object_set_new(config, "max_position_embeddings", json_integer(max_len));
    char *changed = json_dumps(config, JSON_INDENT(2));
    test_dir_copy_files(DEMO, dir);
    test_file_write_text(dir, "config.json", changed);
    free(changed);
    json_decref(config);
    free(text);
    return dir;
}

int32_t *test_long_ids(int32_t n)
{
    tamis_tokenizer *tokenizer;
    tamis_error err;
    int32_t *ids, *out = malloc((size_t)n * sizeof *out + 1);
    size_t bytes, n_ids;
    char *text = test_file_read(DEMO, "valid.txt", &bytes);
    if (out == NULL)
        die("out of memory");
    if (tamis_tokenizer_open(&tokenizer, DEMO, &err) != TAMIS_STATUS_OK ||
        tamis_tokenizer_encode(tokenizer, text, bytes, TAMIS_ENCODE_PLAIN, &ids, &n_ids, &err) !=
            TAMIS_STATUS_OK)
        die(err.text);
    for (int32_t i = 0; i < n; i++)
        out[i] = i == 0 ? tamis_tokenizer_get_info(tokenizer).bos_id : ids[(size_t)(i - 1) % n_ids];
    tamis_ids_free(ids);
    tamis_tokenizer_close(&tokenizer);
    free(text);
    return out;
}

uint64_t test_rss_anon(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    if (file == NULL)
        die("no /proc/self/status");
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}
