#include "measure/random_rows.h"

#include "kernels/kernels.h"

/* One row; values of size 1, as norms leave them. */
static void fill_row(uint8_t *row, const tamis_row_format *format, tamis_noise *noise,
                     float *values)
{
    for (int32_t i = 0; i < format->num_values; i++)
        values[i] = 1.7f * tamis_noise_unit(noise);
    tamis_kernels_current()->pack_row(row, row + format->scale_at, format, values);
}

static void fill(const tamis_cache *cache, int32_t number, tamis_noise *noise)
{
    float values[1 << 16];
    uint8_t *row = cache->base + number * cache->stride;
    for (int32_t r = 0; r < cache->desc.rows; r++, row += cache->row_bytes)
        fill_row(row, &cache->desc.format, noise, values);
}

static void fill_all(const tamis_cache_store *store, tamis_cache_life life, int32_t number,
                     tamis_noise *noise)
{
    for (int32_t i = 0; i < store->n_caches; i++)
        if (store->caches[i].desc.life == life)
            fill(&store->caches[i], number, noise);
}

void tamis_fill_block(const tamis_cache_store *store, int32_t block, tamis_noise *noise)
{
    fill_all(store, TAMIS_CACHE_PAGED, block, noise);
}

void tamis_fill_slot(const tamis_cache_store *store, int32_t slot, tamis_noise *noise)
{
    fill_all(store, TAMIS_CACHE_RING, slot, noise);
}
