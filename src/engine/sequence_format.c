#include "engine/sequence_format.h"

#include <assert.h>
#include <string.h>

#include "caches/ring_history.h"
#include "core/checksum.h"
#include "core/compress.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian as memory is");

typedef struct file_header {
    char magic[8];
    uint32_t version, n_caches;
    uint64_t model;
    char family[TAMIS_SEQUENCE_FAMILY_BYTES]; /* zeros behind the name */
    int32_t kv_cache_dtype, block_tokens;
    int32_t len, floor;
    int32_t n_ids, profile;
    uint64_t zeros[2];
} file_header;
static_assert(sizeof(file_header) == 96, "no padding");

/* A cache, with the whole format of its rows: files of another layout have other bytes in them. */
typedef struct file_cache {
    int32_t life;
    int32_t rows; /* of a block; 0: a ring */
    int32_t align, lead;
    int32_t dtype, num_values, num_plain, group_size;
    int32_t scale_dtype, scale_rule;
    int32_t coded_at, plain_at, scale_at;
    int32_t row_bytes;
} file_cache;
enum { FILE_CACHE_FIELDS = 14 };
static_assert(sizeof(file_cache) == FILE_CACHE_FIELDS * sizeof(int32_t), "no padding");

static const char *const file_cache_fields[FILE_CACHE_FIELDS] = {
    "life",       "rows",        "align",      "lead",     "dtype",    "num_values", "num_plain",
    "group_size", "scale_dtype", "scale_rule", "coded_at", "plain_at", "scale_at",   "row_bytes"};

typedef enum section_kind {
    SECTION_TOKENS = 1,
    SECTION_BLOCK,
    SECTION_RING,
    SECTION_END
} section_kind;
typedef enum section_codec { CODEC_PLAIN = 0, CODEC_ZSTD } section_codec;

typedef struct section_head {
    uint32_t kind, index;
    uint32_t codec, zero;
    uint64_t stored_bytes;
    uint64_t checksum; /* of head and bytes with this field 0, seeded with the one before */
} section_head;
static_assert(sizeof(section_head) == 32, "no padding");

static const uint64_t zeros[2];
static const char magic[8] = {'t', 'a', 'm', 'i', 's', 's', 'e', 'q'};
static const char *const section_names[] = {"", "tokens", "block", "ring", "end"};

/* ---------------------------------------------------------------- what there is to store */

/* Rows of block number `block` of a sequence of `len` tokens that exist. */
static int32_t block_rows(const tamis_cache *cache, int32_t block_tokens, int32_t block,
                          int32_t len)
{
    const int32_t tokens_per_row = block_tokens / cache->desc.rows;
    const int32_t left = len / tokens_per_row - block * cache->desc.rows;
    return left < 0 ? 0 : left < cache->desc.rows ? left : cache->desc.rows;
}

/* First position whose row is stored of a ring. */
static int32_t ring_first(const tamis_cache *cache, int32_t floor)
{
    const int32_t first = tamis_history_first(&cache->desc, floor);
    return first > 0 ? first : 0;
}

static size_t block_bytes(const tamis_cache_store *store, int32_t block_tokens, int32_t block,
                          int32_t len)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        if (cache->desc.life == TAMIS_CACHE_PAGED)
            bytes += (size_t)block_rows(cache, block_tokens, block, len) * (size_t)cache->row_bytes;
    }
    return bytes;
}

static size_t ring_bytes(const tamis_cache *cache, int32_t len, int32_t floor)
{
    return (size_t)(len - ring_first(cache, floor)) * (size_t)cache->row_bytes;
}

/* The largest section. */
static size_t max_section_bytes(const tamis_cache_store *store, int32_t block_tokens, int32_t len,
                                int32_t floor)
{
    const size_t ids = (size_t)len * sizeof(int32_t);
    size_t most = block_bytes(store, block_tokens, 0, len);
    most = ids > most ? ids : most;
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        const size_t ring =
            cache->desc.life == TAMIS_CACHE_RING ? ring_bytes(cache, len, floor) : 0;
        most = ring > most ? ring : most;
    }
    return most;
}

static void copy_block(const tamis_cache_store *store, int32_t block_tokens, int32_t block,
                       int32_t len, int32_t id, uint8_t *bytes, bool to_cache)
{
    for (int32_t i = 0; i < store->n_caches; i++) {
        const tamis_cache *cache = &store->caches[i];
        if (cache->desc.life != TAMIS_CACHE_PAGED)
            continue;
        const size_t n =
            (size_t)block_rows(cache, block_tokens, block, len) * (size_t)cache->row_bytes;
        uint8_t *rows = tamis_cache_block_row(cache, id, 0);
        memcpy(to_cache ? rows : bytes, to_cache ? bytes : rows, n);
        bytes += n;
    }
}

/* ---------------------------------------------------------------- writing */

typedef struct section_writer {
    tamis_file_writer *file;
    uint8_t *section;  /* head and bytes */
    uint8_t *packed;   /* the same, or NULL: no compression */
    uint64_t checksum; /* of the part before */
    int level;
} section_writer;

/* Writes the section whose `bytes` bytes lie behind the head in w->section. */
static tamis_status write_section(section_writer *w, section_kind kind, int32_t index, size_t bytes,
                                  tamis_error *err)
{
    section_head head = {.kind = kind, .index = (uint32_t)index, .stored_bytes = bytes};
    uint8_t *stored = w->section;
    const size_t packed = w->packed == NULL || bytes < 2
                              ? 0
                              : tamis_compress(w->packed + sizeof head, bytes - 1,
                                               w->section + sizeof head, bytes, w->level);
    if (packed > 0) {
        stored = w->packed;
        head.codec = CODEC_ZSTD;
        head.stored_bytes = packed;
    }
    memcpy(stored, &head, sizeof head);
    const size_t all = sizeof head + (size_t)head.stored_bytes;
    head.checksum = w->checksum = tamis_checksum(stored, all, w->checksum);
    memcpy(stored, &head, sizeof head);
    return tamis_file_writer_write(w->file, stored, all, err);
}

static tamis_status write_tokens(section_writer *w, const tamis_sequence_rows *rows,
                                 tamis_error *err)
{
    const size_t bytes = (size_t)rows->len * sizeof *rows->ids;
    if (rows->ids == NULL || bytes == 0)
        return TAMIS_STATUS_OK;
    memcpy(w->section + sizeof(section_head), rows->ids, bytes);
    return write_section(w, SECTION_TOKENS, 0, bytes, err);
}

static tamis_status write_blocks(section_writer *w, const tamis_sequence_kin *kin,
                                 const tamis_sequence_rows *rows, tamis_error *err)
{
    const int32_t len = rows->len, n = (int32_t)tamis_ceil_div(len, kin->block_tokens);
    for (int32_t i = 0; i < n; i++) {
        copy_block(rows->store, kin->block_tokens, i, len, rows->table[i],
                   w->section + sizeof(section_head), false);
        TAMIS_TRY(write_section(w, SECTION_BLOCK, i,
                                block_bytes(rows->store, kin->block_tokens, i, len), err));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status write_ring(section_writer *w, const tamis_sequence_rows *rows, int32_t i,
                               tamis_error *err)
{
    const tamis_cache *cache = &rows->store->caches[i];
    uint8_t *at = w->section + sizeof(section_head);
    for (int32_t pos = ring_first(cache, rows->floor); pos < rows->len; pos++) {
        memcpy(at, tamis_cache_ring_row(cache, rows->slot, pos), (size_t)cache->row_bytes);
        at += cache->row_bytes;
    }
    return write_section(w, SECTION_RING, i, ring_bytes(cache, rows->len, rows->floor), err);
}

static void fill_family(char *family, const tamis_sequence_kin *kin)
{
    const size_t bytes = strlen(kin->family);
    assert(bytes < TAMIS_SEQUENCE_FAMILY_BYTES);
    memset(family, 0, TAMIS_SEQUENCE_FAMILY_BYTES);
    memcpy(family, kin->family, bytes);
}

static file_cache describe_cache(const tamis_cache_desc *d)
{
    const tamis_row_format *f = &d->format;
    return (file_cache){.life = (int32_t)d->life,
                        /* rings of any size hold the same */
                        .rows = d->life == TAMIS_CACHE_PAGED ? d->rows : 0,
                        .align = d->align,
                        .lead = d->lead,
                        .dtype = (int32_t)f->dtype,
                        .num_values = f->num_values,
                        .num_plain = f->num_plain,
                        .group_size = f->group_size,
                        .scale_dtype = (int32_t)f->scale_dtype,
                        .scale_rule = (int32_t)f->scale_rule,
                        .coded_at = f->coded_at,
                        .plain_at = f->plain_at,
                        .scale_at = f->scale_at,
                        .row_bytes = f->row_bytes};
}

/* Fills `bytes` (as measured by header_bytes) with the header up to and with its checksum. */
static void fill_header(uint8_t *bytes, const tamis_sequence_kin *kin,
                        const tamis_sequence_rows *rows, uint64_t *checksum)
{
    const tamis_cache_store *store = rows->store;
    file_header header = {.version = TAMIS_SEQUENCE_FILE_VERSION,
                          .n_caches = (uint32_t)store->n_caches,
                          .model = kin->model,
                          .kv_cache_dtype = (int32_t)kin->kv_cache_dtype,
                          .block_tokens = kin->block_tokens,
                          .len = rows->len,
                          .floor = rows->floor,
                          .n_ids = rows->ids != NULL ? rows->len : 0,
                          .profile = (int32_t)kin->profile};
    uint8_t *at = bytes + sizeof header;
    memcpy(header.magic, magic, sizeof magic);
    fill_family(header.family, kin);
    memcpy(bytes, &header, sizeof header);
    for (int32_t i = 0; i < store->n_caches; i++) {
        const file_cache cache = describe_cache(&store->caches[i].desc);
        memcpy(at, &cache, sizeof cache);
        at += sizeof cache;
    }
    *checksum = tamis_checksum(bytes, (size_t)(at - bytes), 0);
    memcpy(at, checksum, sizeof *checksum);
}

static size_t header_bytes(size_t n_caches)
{
    return sizeof(file_header) + n_caches * sizeof(file_cache) + sizeof(uint64_t);
}

static tamis_status write_sections(section_writer *w, const tamis_sequence_kin *kin,
                                   const tamis_sequence_rows *rows, tamis_error *err)
{
    const tamis_cache_store *store = rows->store;
    fill_header(w->section, kin, rows, &w->checksum);
    TAMIS_TRY(
        tamis_file_writer_write(w->file, w->section, header_bytes((size_t)store->n_caches), err));
    TAMIS_TRY(write_tokens(w, rows, err));
    TAMIS_TRY(write_blocks(w, kin, rows, err));
    for (int32_t i = 0; i < store->n_caches; i++)
        if (store->caches[i].desc.life == TAMIS_CACHE_RING)
            TAMIS_TRY(write_ring(w, rows, i, err));
    return write_section(w, SECTION_END, 0, 0, err);
}

tamis_status tamis_sequence_write(tamis_file_writer *file, const tamis_sequence_kin *kin,
                                  const tamis_sequence_rows *rows, int level, tamis_error *err)
{
    const size_t header = header_bytes((size_t)rows->store->n_caches);
    const size_t section = sizeof(section_head) + max_section_bytes(rows->store, kin->block_tokens,
                                                                    rows->len, rows->floor);
    const size_t bytes = section > header ? section : header;
    section_writer w = {.file = file, .level = level};
    w.section = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    w.packed = level > 0 ? tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes) : NULL;
    const tamis_status st = w.section == NULL || (level > 0 && w.packed == NULL)
                                ? tamis_fail_memory(err, "sequence file", 2 * bytes)
                                : write_sections(&w, kin, rows, err);
    tamis_mem_free(w.section);
    tamis_mem_free(w.packed);
    return st;
}

/* ---------------------------------------------------------------- reading the header */

static tamis_status check_magic(const file_header *h, const char *path, tamis_error *err)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: is no saved sequence, allowed: a file that begins with \"%.8s\"",
                          path, magic);
    if (h->version != TAMIS_SEQUENCE_FILE_VERSION)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED, "%s: version is %u, allowed %u", path,
                          h->version, TAMIS_SEQUENCE_FILE_VERSION);
    if (memcmp(h->zeros, zeros, sizeof zeros) != 0)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: header: unused bytes are not 0: the file is damaged", path);
    return TAMIS_STATUS_OK;
}

static tamis_status fail_profile(const file_header *h, const tamis_sequence_kin *kin,
                                 const char *path, tamis_error *err)
{
    return tamis_fail(
        err, TAMIS_STATUS_UNSUPPORTED, "%s: profile is %s, allowed %s (this session's)", path,
        (uint32_t)h->profile < TAMIS_NUM_PROFILES ? tamis_profile_name((tamis_profile)h->profile)
                                                  : "unknown",
        tamis_profile_name(kin->profile));
}

/* Another model, profile, dtype or block size. */
static tamis_status check_kin(const file_header *h, const tamis_sequence_kin *kin, const char *path,
                              tamis_error *err)
{
    char family[TAMIS_SEQUENCE_FAMILY_BYTES];
    fill_family(family, kin);
    if (memcmp(h->family, family, sizeof family) != 0)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: family is %.32s, allowed %s (this session's)", path, h->family,
                          kin->family);
    if (h->model != kin->model)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: saved with another model: its fingerprint is %016llx, allowed "
                          "%016llx (this session's)",
                          path, (unsigned long long)h->model, (unsigned long long)kin->model);
    if (h->profile != (int32_t)kin->profile)
        return fail_profile(h, kin, path, err);
    if (h->kv_cache_dtype != (int32_t)kin->kv_cache_dtype)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: kv_cache_dtype is %s, allowed %s (this session's)", path,
                          (uint32_t)h->kv_cache_dtype < TAMIS_NUM_DTYPES
                              ? tamis_dtype_name((tamis_dtype)h->kv_cache_dtype)
                              : "unknown",
                          tamis_dtype_name(kin->kv_cache_dtype));
    if (h->block_tokens != kin->block_tokens)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: block_tokens is %d, allowed %d (this session's)", path,
                          h->block_tokens, kin->block_tokens);
    return TAMIS_STATUS_OK;
}

static tamis_status check_len(const file_header *h, int32_t max_len, const char *path,
                              tamis_error *err)
{
    if (h->floor < 0 || h->floor > h->len)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: length is %d, floor %d, allowed: 0 <= floor <= length", path, h->len,
                          h->floor);
    if (h->n_ids != 0 && h->n_ids != h->len)
        return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: has %d token ids, allowed 0 or %d", path,
                          h->n_ids, h->len);
    if (h->len > max_len)
        return tamis_fail(err, TAMIS_STATUS_LIMIT,
                          "%s: length is %d, allowed 0..%d (this session's max_model_len)", path,
                          h->len, max_len);
    return TAMIS_STATUS_OK;
}

/* Field by field. */
static tamis_status check_cache(const char *path, int32_t cache, const int32_t *seen,
                                const int32_t *allowed, tamis_error *err)
{
    for (int32_t i = 0; i < FILE_CACHE_FIELDS; i++)
        if (seen[i] != allowed[i])
            return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                              "%s: cache %d: %s is %d, allowed %d (this session's)", path, cache,
                              file_cache_fields[i], seen[i], allowed[i]);
    return TAMIS_STATUS_OK;
}

static tamis_status check_caches(const tamis_sequence_reader *r, const file_header *h,
                                 tamis_error *err)
{
    const file_cache *caches = r->caches;
    if (h->n_caches != (uint32_t)r->store->n_caches)
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: has %u caches, allowed %d (this session's: is its mtp another?)",
                          r->file.path, h->n_caches, r->store->n_caches);
    for (int32_t i = 0; i < r->store->n_caches; i++) {
        const file_cache allowed = describe_cache(&r->store->caches[i].desc);
        TAMIS_TRY(check_cache(r->file.path, i, (const int32_t *)&caches[i],
                              (const int32_t *)&allowed, err));
    }
    return TAMIS_STATUS_OK;
}

static tamis_status read_caches(tamis_sequence_reader *r, const file_header *h, tamis_error *err)
{
    const size_t bytes = (size_t)h->n_caches * sizeof(file_cache);
    uint64_t seen = 0;
    if (bytes > r->file.bytes)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: has %u caches in %llu bytes, allowed: what fits", r->file.path,
                          h->n_caches, (unsigned long long)r->file.bytes);
    uint8_t *all = r->caches = tamis_mem_alloc(TAMIS_MEM_MISC, sizeof *h + bytes);
    if (all == NULL)
        return tamis_fail_memory(err, r->file.path, sizeof *h + bytes);
    memcpy(all, h, sizeof *h);
    TAMIS_TRY(tamis_file_reader_read(&r->file, all + sizeof *h, bytes, "the header", err));
    TAMIS_TRY(tamis_file_reader_read(&r->file, &seen, sizeof seen, "the header", err));
    r->checksum = tamis_checksum(all, sizeof *h + bytes, 0);
    if (seen != r->checksum)
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: header: checksum is %016llx, allowed %016llx: the file is damaged",
                          r->file.path, (unsigned long long)seen, (unsigned long long)r->checksum);
    memmove(all, all + sizeof *h, bytes);
    return TAMIS_STATUS_OK;
}

static tamis_status read_header(tamis_sequence_reader *r, int32_t max_len, tamis_error *err)
{
    file_header h;
    TAMIS_TRY(tamis_file_reader_read(&r->file, &h, sizeof h, "the header", err));
    TAMIS_TRY(check_magic(&h, r->file.path, err));
    TAMIS_TRY(read_caches(r, &h, err));
    TAMIS_TRY(check_kin(&h, &r->kin, r->file.path, err));
    TAMIS_TRY(check_caches(r, &h, err));
    TAMIS_TRY(check_len(&h, max_len, r->file.path, err));
    r->len = h.len;
    r->floor = h.floor;
    r->has_ids = h.n_ids == h.len;
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- reading the sections */

static tamis_status take_buffers(tamis_sequence_reader *r, tamis_error *err)
{
    const size_t bytes =
        sizeof(section_head) + max_section_bytes(r->store, r->kin.block_tokens, r->len, r->floor);
    r->section = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    r->packed = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, bytes);
    return r->section == NULL || r->packed == NULL ? tamis_fail_memory(err, r->file.path, 2 * bytes)
                                                   : TAMIS_STATUS_OK;
}

tamis_status tamis_sequence_reader_open(tamis_sequence_reader *reader, const char *path,
                                        const tamis_sequence_kin *kin,
                                        const tamis_cache_store *store, int32_t max_len,
                                        tamis_error *err)
{
    tamis_status st;
    *reader = (tamis_sequence_reader){.kin = *kin, .store = store};
    TAMIS_TRY_GOTO(tamis_file_reader_open(&reader->file, path, err));
    TAMIS_TRY_GOTO(read_header(reader, max_len, err));
    TAMIS_TRY_GOTO(take_buffers(reader, err));
    return TAMIS_STATUS_OK;
fail:
    tamis_sequence_reader_close(reader);
    return st;
}

void tamis_sequence_reader_close(tamis_sequence_reader *reader)
{
    tamis_file_reader_close(&reader->file);
    tamis_mem_free(reader->caches);
    tamis_mem_free(reader->section);
    tamis_mem_free(reader->packed);
    *reader = (tamis_sequence_reader){0};
}

static tamis_status fail_section(const tamis_sequence_reader *r, section_kind kind, int32_t index,
                                 const char *field, uint64_t seen, uint64_t allowed,
                                 tamis_error *err)
{
    return tamis_fail(err, TAMIS_STATUS_FORMAT,
                      "%s: section %s %d: %s is %llx, allowed %llx (hexadecimal): the file is "
                      "damaged",
                      r->file.path, section_names[kind], index, field, (unsigned long long)seen,
                      (unsigned long long)allowed);
}

/* The head says what comes at this place, and no more than there can be. */
static tamis_status check_head(const tamis_sequence_reader *r, const section_head *head,
                               section_kind kind, int32_t index, size_t bytes, tamis_error *err)
{
    if (head->kind != (uint32_t)kind)
        return fail_section(r, kind, index, "kind", head->kind, (uint64_t)kind, err);
    if (head->index != (uint32_t)index)
        return fail_section(r, kind, index, "index", head->index, (uint64_t)index, err);
    if (head->zero != 0)
        return fail_section(r, kind, index, "unused field", head->zero, 0, err);
    if (head->codec > CODEC_ZSTD)
        return fail_section(r, kind, index, "codec", head->codec, CODEC_ZSTD, err);
    if (head->codec == CODEC_PLAIN ? head->stored_bytes != bytes : head->stored_bytes >= bytes)
        return fail_section(r, kind, index, "size", head->stored_bytes, bytes, err);
    return TAMIS_STATUS_OK;
}

static tamis_status check_sum(tamis_sequence_reader *r, section_head head, uint8_t *stored,
                              section_kind kind, int32_t index, tamis_error *err)
{
    const uint64_t seen = head.checksum;
    head.checksum = 0;
    memcpy(stored, &head, sizeof head);
    r->checksum = tamis_checksum(stored, sizeof head + (size_t)head.stored_bytes, r->checksum);
    return seen == r->checksum ? TAMIS_STATUS_OK
                               : fail_section(r, kind, index, "checksum", seen, r->checksum, err);
}

/* *out: the `bytes` bytes of the section that must come now. */
static tamis_status read_section(tamis_sequence_reader *r, section_kind kind, int32_t index,
                                 size_t bytes, uint8_t **out, tamis_error *err)
{
    section_head head;
    uint8_t *section = r->section, *packed = r->packed;
    const char *name = section_names[kind];
    TAMIS_TRY(tamis_file_reader_read(&r->file, &head, sizeof head, name, err));
    TAMIS_TRY(check_head(r, &head, kind, index, bytes, err));
    uint8_t *stored = head.codec == CODEC_PLAIN ? section : packed;
    TAMIS_TRY(tamis_file_reader_read(&r->file, stored + sizeof head, (size_t)head.stored_bytes,
                                     name, err));
    TAMIS_TRY(check_sum(r, head, stored, kind, index, err));
    *out = section + sizeof head;
    if (head.codec == CODEC_PLAIN)
        return TAMIS_STATUS_OK;
    if (!tamis_compress_is_available())
        return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                          "%s: section %s %d is packed with zstd, allowed: plain ones (this build "
                          "has no zstd)",
                          r->file.path, name, index);
    if (!tamis_decompress(*out, bytes, packed + sizeof head, (size_t)head.stored_bytes))
        return tamis_fail(err, TAMIS_STATUS_FORMAT,
                          "%s: section %s %d: does not unpack to %zu bytes", r->file.path, name,
                          index, bytes);
    return TAMIS_STATUS_OK;
}

static tamis_status read_tokens(tamis_sequence_reader *r, int32_t *ids, tamis_error *err)
{
    const size_t n = r->has_ids ? (size_t)r->len * sizeof *ids : 0;
    uint8_t *bytes = NULL;
    if (n == 0)
        return TAMIS_STATUS_OK;
    TAMIS_TRY(read_section(r, SECTION_TOKENS, 0, n, &bytes, err));
    if (ids != NULL)
        memcpy(ids, bytes, n);
    return TAMIS_STATUS_OK;
}

static tamis_status read_blocks(tamis_sequence_reader *r, const int32_t *table, tamis_error *err)
{
    const int32_t block_tokens = r->kin.block_tokens, len = r->len;
    for (int32_t i = 0; i < tamis_ceil_div(len, block_tokens); i++) {
        uint8_t *bytes = NULL;
        TAMIS_TRY(read_section(r, SECTION_BLOCK, i, block_bytes(r->store, block_tokens, i, len),
                               &bytes, err));
        if (table != NULL)
            copy_block(r->store, block_tokens, i, len, table[i], bytes, true);
    }
    return TAMIS_STATUS_OK;
}

/* Rows that this ring cannot keep are passed over, all of them without a slot. */
static tamis_status read_ring(tamis_sequence_reader *r, int32_t i, int32_t slot, tamis_error *err)
{
    const tamis_cache *cache = &r->store->caches[i];
    uint8_t *bytes = NULL;
    TAMIS_TRY(read_section(r, SECTION_RING, i, ring_bytes(cache, r->len, r->floor), &bytes, err));
    for (int32_t pos = ring_first(cache, r->floor); pos < r->len; pos++) {
        if (slot >= 0 && pos >= r->len - cache->desc.rows)
            memcpy(tamis_cache_ring_row(cache, slot, pos), bytes, (size_t)cache->row_bytes);
        bytes += cache->row_bytes;
    }
    return TAMIS_STATUS_OK;
}

tamis_status tamis_sequence_reader_rows(tamis_sequence_reader *r, const tamis_sequence_rows *rows,
                                        tamis_error *err)
{
    uint8_t *bytes = NULL;
    assert(rows->store == r->store && (rows->ids == NULL || r->has_ids));
    TAMIS_TRY(read_tokens(r, rows->ids, err));
    TAMIS_TRY(read_blocks(r, rows->table, err));
    for (int32_t i = 0; i < r->store->n_caches; i++)
        if (r->store->caches[i].desc.life == TAMIS_CACHE_RING)
            TAMIS_TRY(read_ring(r, i, rows->slot, err));
    TAMIS_TRY(read_section(r, SECTION_END, 0, 0, &bytes, err));
    if (r->file.at != r->file.bytes)
        return tamis_fail(err, TAMIS_STATUS_FORMAT, "%s: has %llu bytes, allowed %llu: its end",
                          r->file.path, (unsigned long long)r->file.bytes,
                          (unsigned long long)r->file.at);
    return TAMIS_STATUS_OK;
}
