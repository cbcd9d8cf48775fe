#include <string.h>

#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"
#include "tokenizer/tokenizer_impl.h"

tamis_status tamis_tokenizer_open_text(tamis_tokenizer **out, const char *json, size_t json_bytes,
                                       const char *json_path, const char *config,
                                       size_t config_bytes, const char *config_path,
                                       tamis_error *err)
{
    tamis_status st;
    tamis_tokenizer *tokenizer = tamis_mem_alloc(TAMIS_MEM_TOKENIZER, sizeof *tokenizer);
    if (tokenizer == NULL)
        return tamis_fail_memory(err, "the tokenizer", sizeof *tokenizer);
    tokenizer->bos_id = tokenizer->eos_id = -1;
    TAMIS_TRY_GOTO(tamis_splitter_init(&tokenizer->splitter, err));
    TAMIS_TRY_GOTO(tamis_tokenizer_read_json(tokenizer, json, json_bytes, json_path, err));
    if (config != NULL)
        TAMIS_TRY_GOTO(
            tamis_tokenizer_read_config(tokenizer, config, config_bytes, config_path, err));
    *out = tokenizer;
    return TAMIS_STATUS_OK;
fail:
    tamis_tokenizer_close(&tokenizer);
    return st;
}

/* A file of the folder and its path; text stays NULL if an optional one is not there. */
typedef struct folder_file {
    char *path, *text;
    size_t bytes;
} folder_file;

static tamis_status read_folder_file(folder_file *file, const char *dir, const char *name,
                                     bool optional, size_t max_bytes, tamis_error *err)
{
    file->path = tamis_path_join(dir, name);
    if (file->path == NULL)
        return tamis_fail_memory(err, "a path", strlen(dir) + strlen(name) + 2);
    if (optional && !tamis_file_exists(file->path))
        return TAMIS_STATUS_OK;
    return tamis_file_read(&file->text, &file->bytes, file->path, max_bytes, err);
}

static void free_folder_file(folder_file *file)
{
    tamis_mem_free(file->path);
    tamis_mem_free(file->text);
}

tamis_status tamis_tokenizer_open(tamis_tokenizer **out, const char *dir, tamis_error *err)
{
    folder_file json = {0}, config = {0};
    if (out == NULL || dir == NULL)
        return tamis_fail(err, TAMIS_STATUS_INVALID,
                          "tamis_tokenizer_open: out or dir is NULL, allowed: both given");
    *out = NULL;
    tamis_status st =
        read_folder_file(&json, dir, "tokenizer.json", false, TAMIS_MAX_TOKENIZER_JSON_BYTES, err);
    if (st == TAMIS_STATUS_OK)
        st = read_folder_file(&config, dir, "tokenizer_config.json", true,
                              TAMIS_MAX_TOKENIZER_CONFIG_BYTES, err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_tokenizer_open_text(out, json.text, json.bytes, json.path, config.text,
                                       config.bytes, config.path, err);
    free_folder_file(&json);
    free_folder_file(&config);
    return st;
}

void tamis_tokenizer_close(tamis_tokenizer **tokenizer)
{
    if (tokenizer == NULL || *tokenizer == NULL)
        return;
    tamis_vocab_free(&(*tokenizer)->vocab);
    tamis_added_tokens_free(&(*tokenizer)->added);
    tamis_splitter_free(&(*tokenizer)->splitter);
    tamis_mem_free(*tokenizer);
    *tokenizer = NULL;
}

tamis_tokenizer_info tamis_tokenizer_get_info(const tamis_tokenizer *tokenizer)
{
    return (tamis_tokenizer_info){
        .num_ids = tokenizer->vocab.num_ids,
        .bos_id = tokenizer->bos_id,
        .eos_id = tokenizer->eos_id,
        .add_bos_token = tokenizer->add_bos_token,
        .memory_bytes = sizeof *tokenizer + tamis_vocab_bytes(&tokenizer->vocab) +
                        tamis_added_tokens_bytes(&tokenizer->added) +
                        tamis_splitter_bytes(&tokenizer->splitter),
    };
}

int32_t tamis_tokenizer_find(const tamis_tokenizer *tokenizer, const char *text, size_t bytes)
{
    const int32_t added = tamis_added_tokens_find(&tokenizer->added, text, bytes);
    if (added >= 0)
        return added;
    const int32_t spelled = tamis_vocab_find(&tokenizer->vocab, text, bytes, true);
    return spelled >= 0 ? spelled : tamis_vocab_find(&tokenizer->vocab, text, bytes, false);
}
