/* Rows of caches in memory: pages, loops of the row kernels, moving rows between layouts. */
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "core/size.h"
#include "kernels/formats.h"
#include "kernels/kernels.h"

/* ---------------------------------------------------------------- where things lie */

static int32_t num_coded(const tamis_row_format *format)
{
    return format->num_values - format->num_plain;
}

static int32_t coded_bytes(const tamis_row_format *format)
{
    return (num_coded(format) * tamis_dtype_bits(format->dtype) + 7) / 8;
}

static int32_t scale_size(const tamis_row_format *format)
{
    return tamis_dtype_bits(format->scale_dtype) / 8;
}

static uint8_t *row_at(const tamis_rows *rows, int64_t i)
{
    return (uint8_t *)rows->data + i * rows->row_stride;
}

static uint8_t *scales_at(const tamis_rows *rows, int64_t i)
{
    return rows->scales ? (uint8_t *)rows->scales + i * rows->scale_stride
                        : row_at(rows, i) + rows->format.scale_at;
}

tamis_rows tamis_rows_contiguous(const tamis_row_format *format, void *data)
{
    return (tamis_rows){.format = *format, .data = data, .row_stride = format->row_bytes};
}

/* The format's parts close up where its scales were; scales get up to 8 bytes' alignment a row. */
tamis_rows tamis_rows_planar_page(const tamis_row_format *format, void *page, int32_t num_rows)
{
    tamis_rows rows = tamis_rows_contiguous(format, page);
    tamis_row_format *f = &rows.format;
    if (f->group_size == 0)
        return rows;
    const int32_t scale_bytes = tamis_row_num_groups(f) * scale_size(f);
    const int32_t values = coded_bytes(f) + 2 * f->num_plain;
    f->coded_at -= f->coded_at > f->scale_at ? scale_bytes : 0;
    f->plain_at -= f->plain_at > f->scale_at ? scale_bytes : 0;
    f->scale_at = 0; /* of a row's place in the plane */
    f->row_bytes = values;
    rows.row_stride = values;
    rows.scales = (uint8_t *)page + (int64_t)num_rows * values;
    rows.scale_stride = tamis_min_i64(tamis_round_up(scale_bytes, 8), format->row_bytes - values);
    return rows;
}

/* ---------------------------------------------------------------- f32 and back */

void tamis_rows_encode(const tamis_rows *rows, int64_t first, int64_t n, const float *x,
                       int64_t x_stride)
{
    const tamis_kernels *kernels = tamis_kernels_current();
    for (int64_t i = 0; i < n; i++)
        kernels->pack_row(row_at(rows, first + i), scales_at(rows, first + i), &rows->format,
                          x + i * x_stride);
}

void tamis_rows_decode(const tamis_rows *rows, int64_t first, int64_t n, float *x, int64_t x_stride)
{
    const tamis_kernels *kernels = tamis_kernels_current();
    for (int64_t i = 0; i < n; i++)
        kernels->unpack_row(x + i * x_stride, row_at(rows, first + i), scales_at(rows, first + i),
                            &rows->format);
}

/* ---------------------------------------------------------------- between layouts */

/* Values in one group, all of them where a group is longer than the row. */
static int32_t group_values(const tamis_row_format *f)
{
    return f->group_size < num_coded(f) ? f->group_size : num_coded(f);
}

static bool have_same_codes(const tamis_row_format *a, const tamis_row_format *b)
{
    return a->dtype == b->dtype && a->num_plain == b->num_plain &&
           (a->group_size == 0) == (b->group_size == 0) && group_values(a) == group_values(b);
}

/* Writes src's scales in dst's type; false if one of them has no exact equal there. */
static bool move_scales(uint8_t *to, const tamis_row_format *dst, const uint8_t *from,
                        const tamis_row_format *src)
{
    for (int32_t g = 0; g < tamis_row_num_groups(src); g++) {
        uint8_t *place = to + g * scale_size(dst);
        const float scale = tamis_scale_load(from + g * scale_size(src), src->scale_dtype);
        tamis_scale_store(place, dst->scale_dtype, scale);
        const float stored = tamis_scale_load(place, dst->scale_dtype);
        if (!(stored == scale || (stored != stored && scale != scale)))
            return false;
    }
    return true;
}

/* False, and the row is still to be written, if dst cannot hold the scales. */
static bool move_codes(const tamis_rows *dst, const tamis_rows *src, int64_t i)
{
    const tamis_row_format *to = &dst->format, *from = &src->format;
    uint8_t *row = row_at(dst, i);
    const uint8_t *old = row_at(src, i);
    if (!dst->scales)
        memset(row, 0, (size_t)to->row_bytes);
    if (!move_scales(scales_at(dst, i), to, scales_at(src, i), from))
        return false;
    memcpy(row + to->coded_at, old + from->coded_at, (size_t)coded_bytes(to));
    memcpy(row + to->plain_at, old + from->plain_at, 2 * (size_t)to->num_plain);
    return true;
}

tamis_status tamis_rows_convert(const tamis_rows *dst, const tamis_rows *src, int64_t n,
                                tamis_error *err)
{
    const tamis_row_format *to = &dst->format, *from = &src->format;
    const bool both_packed = to->group_size != 0 && from->group_size != 0;
    if (to->num_values != from->num_values)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "rows: num_values is %d, of the source %d",
                          to->num_values, from->num_values);
    if (both_packed && to->num_plain != from->num_plain)
        return tamis_fail(err, TAMIS_STATUS_INVALID, "rows: num_plain is %d, of the source %d",
                          to->num_plain, from->num_plain);
    float *x = tamis_mem_alloc(TAMIS_MEM_MISC, (size_t)to->num_values * sizeof *x);
    if (!x)
        return tamis_fail_memory(err, "a row between two layouts",
                                 (size_t)to->num_values * sizeof *x);
    const bool same = have_same_codes(to, from);
    for (int64_t i = 0; i < n; i++) {
        if (same && move_codes(dst, src, i))
            continue;
        tamis_rows_decode(src, i, 1, x, to->num_values);
        tamis_rows_encode(dst, i, 1, x, to->num_values);
    }
    tamis_mem_free(x);
    return TAMIS_STATUS_OK;
}

/* ---------------------------------------------------------------- rotated pairs */

void tamis_rope_pairs_to_halves(float *out, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n / 2; i++) {
        out[i] = x[2 * i];
        out[n / 2 + i] = x[2 * i + 1];
    }
}

void tamis_rope_halves_to_pairs(float *out, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n / 2; i++) {
        out[2 * i] = x[i];
        out[2 * i + 1] = x[n / 2 + i];
    }
}
