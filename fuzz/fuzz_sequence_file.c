/*
 * A saved sequence, loaded into a small store of its own kind. Checksums would hide everything
 * behind them, so the input is loaded as it is, and then with its checksums put right. What is
 * accepted must be sound, and if it is not packed, saving it again gives the same bytes.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/checksum.h"
#include "engine/sequence_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BLOCK_TOKENS = 128, MAX_TOKENS = 300, N_BLOCKS = 4, HEADER = 96, CACHE = 56, HEAD = 32 };
enum { FITS_RINGS = 8 }; /* tokens above the floor whose history is shorter than the rings */

static const tamis_cache_desc descs[] = {
    {TAMIS_CACHE_RING, {.dtype = TAMIS_DTYPE_BF16, .num_values = 2, .row_bytes = 4}, 32, 1, 7},
    {TAMIS_CACHE_RING, {.dtype = TAMIS_DTYPE_F32, .num_values = 1, .row_bytes = 4}, 16, 4, 4},
    {TAMIS_CACHE_PAGED,
     {.dtype = TAMIS_DTYPE_BF16, .num_values = 2, .row_bytes = 4},
     BLOCK_TOKENS / 4,
     0,
     0},
    {TAMIS_CACHE_PAGED,
     {TAMIS_DTYPE_F8_E4M3, 8, 2, 4, TAMIS_DTYPE_F8_E8M0, TAMIS_SCALE_POW2, 0, 6, 10, 12},
     1,
     0,
     0},
};
static const tamis_sequence_kin kin = {0x5eed, "fuzz", TAMIS_PROFILE_EXACT, TAMIS_DTYPE_BF16,
                                       BLOCK_TOKENS};

static tamis_cache_store store;
static int32_t table[N_BLOCKS] = {2, 3, 1, 0}, ids[MAX_TOKENS];

static void require(bool is_true)
{
    if (!is_true)
        abort();
}

static void open_store(void)
{
    require(tamis_cache_store_describe(&store, descs, sizeof descs / sizeof *descs, N_BLOCKS, 1, 0,
                                       NULL) == TAMIS_STATUS_OK);
    require(tamis_cache_store_allocate(&store, NULL) == TAMIS_STATUS_OK);
}

static void close_store(void)
{
    tamis_cache_store_close(&store);
}

/* ---------------------------------------------------------------- checksums */

static uint64_t read_u64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void put_checksums_right(uint8_t *file, size_t size)
{
    uint32_t n_caches;
    if (size < HEADER)
        return;
    memcpy(&n_caches, file + 12, sizeof n_caches);
    size_t at = HEADER + (size_t)n_caches * CACHE;
    if (at + 8 > size)
        return;
    uint64_t sum = tamis_checksum(file, at, 0);
    memcpy(file + at, &sum, sizeof sum);
    for (at += 8; size - at >= HEAD; at += HEAD + (size_t)read_u64(file + at + 16)) {
        const uint64_t stored_bytes = read_u64(file + at + 16);
        if (stored_bytes > size - at - HEAD)
            return;
        memset(file + at + 24, 0, 8);
        sum = tamis_checksum(file + at, HEAD + (size_t)stored_bytes, sum);
        memcpy(file + at + 24, &sum, sizeof sum);
    }
}

static bool is_packed(const uint8_t *file, size_t size)
{
    for (size_t at = HEADER + sizeof descs / sizeof *descs * CACHE + 8; at < size;
         at += HEAD + (size_t)read_u64(file + at + 16))
        if (file[at + 8] != 0)
            return true;
    return false;
}

/* ---------------------------------------------------------------- loading */

/* The same again, through a file of its own in memory. */
static void check_saved_again(const tamis_sequence_rows *rows, const uint8_t *file, size_t size)
{
    tamis_file_writer writer = {.path = NULL, .fd = memfd_create("again", 0)};
    uint8_t *seen = malloc(size + 1);
    require(seen != NULL && writer.fd >= 0);
    require(tamis_sequence_write(&writer, &kin, rows, 0, NULL) == TAMIS_STATUS_OK);
    require(pread(writer.fd, seen, size + 1, 0) == (ssize_t)size);
    require(memcmp(seen, file, size) == 0);
    close(writer.fd);
    free(seen);
}

static void load(const uint8_t *file, size_t size)
{
    const int fd = memfd_create("sequence", 0);
    char path[64];
    tamis_sequence_reader reader;
    tamis_error err = {TAMIS_STATUS_OK, ""};
    require(fd >= 0 && write(fd, file, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tamis_status st = tamis_sequence_reader_open(&reader, path, &kin, &store, MAX_TOKENS, &err);
    if (st == TAMIS_STATUS_OK) {
        const tamis_sequence_rows rows = {.store = &store,
                                          .len = reader.len,
                                          .floor = reader.floor,
                                          .table = table,
                                          .ids = reader.has_ids ? ids : NULL};
        require(rows.len >= 0 && rows.len <= MAX_TOKENS);
        require(rows.floor >= 0 && rows.floor <= rows.len);
        st = tamis_sequence_reader_rows(&reader, &rows, &err);
        if (st == TAMIS_STATUS_OK && !is_packed(file, size) && rows.len - rows.floor < FITS_RINGS)
            check_saved_again(&rows, file, size);
        tamis_sequence_reader_close(&reader);
    }
    require(st == TAMIS_STATUS_OK || (err.status == st && strstr(err.text, path) != NULL));
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (store.caches == NULL) {
        open_store();
        atexit(close_store);
    }
    uint8_t *file = malloc(size + 1);
    require(file != NULL);
    memcpy(file, data, size);
    load(file, size);
    put_checksums_right(file, size);
    load(file, size);
    free(file);
    return 0;
}
