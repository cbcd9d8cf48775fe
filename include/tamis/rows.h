/*
 * tamis/rows.h - rows of KV and index caches in the layouts that other engines use, and in tamis'
 * own: what a row looks like, writing and reading it, moving rows between layouts.
 *
 * A row is num_values numbers. The first ones are *coded*: stored in `dtype`, groups of group_size
 * of them times one scale. The last num_plain ones (the rotated part) stay BF16. Where the parts lie
 * is data of the format, so one function serves all layouts.
 */
#ifndef TAMIS_ROWS_H
#define TAMIS_ROWS_H

#include "tamis/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How the scale s of a group follows from its largest magnitude amax; codes are round(x / s). */
typedef enum tamis_scale_rule {
    TAMIS_SCALE_NONE = 0,
    /* 2^ceil(log2(max(amax, floor) * f32(1/max))): floor 1e-4 and max 448 for F8_E4M3, floor
     * 6 * 2^-126 and max 6 for F4_E2M1; exponent from the bits of the f32 product */
    TAMIS_SCALE_POW2,
    /* 2^ceil(log2(max(amax / 448, 1e-4))): the floor on the quotient, as FlashMLA's tests have it */
    TAMIS_SCALE_POW2_QUOTIENT,
    /* POW2 with the exponent always one up, as Ascend A5 writes its 640-byte rows */
    TAMIS_SCALE_POW2_ABOVE,
    /* amax / max (127 for I8, 448 for F8_E4M3), codes from the f32 scale, which is then rounded to
     * scale_dtype; a group of zeros has scale 0 and codes 0 */
    TAMIS_SCALE_AMAX
} tamis_scale_rule;

/** Layout of one row. Offsets are bytes from the row's first byte. */
typedef struct tamis_row_format {
    tamis_dtype dtype;       /* of the coded values: F32, BF16; with scales F8_E4M3, F4_E2M1, I8 */
    int32_t num_values;      /* coded and plain */
    int32_t num_plain;       /* the last so many, BF16 */
    int32_t group_size;      /* coded values of one scale, the last group may be short; 0: no scales */
    tamis_dtype scale_dtype; /* F8_E8M0, F32 or F16 */
    tamis_scale_rule scale_rule;
    int32_t coded_at, plain_at, scale_at;
    int32_t row_bytes; /* bytes between the end of the parts and here are zero */
} tamis_row_format;

/** The layouts. Byte counts are those of the real models' dimensions. */
typedef enum tamis_row_layout {
    TAMIS_ROWS_F32 = 0,
    TAMIS_ROWS_BF16,
    TAMIS_ROWS_V4_FP8,          /* 584: [448 e4m3 | 64 bf16 | 7 e8m0, pad to 8], groups of 64 */
    TAMIS_ROWS_V4_A5,           /* 640: [64 bf16 | 448 e4m3 | 7 e8m0 | 0], groups of 64 */
    TAMIS_ROWS_LATENT_FLASHMLA, /* 656: [512 e4m3 | 4 f32 | 64 bf16], groups of 128 */
    TAMIS_ROWS_LATENT_ASCEND,   /* 656: [512 int8 | 64 bf16 | 4 f32], groups of 128, amax / 127 */
    TAMIS_ROWS_INDEX_FP8,       /* 132: [128 e4m3 | f32] */
    TAMIS_ROWS_INDEX_FP4,       /* 68: [64 bytes of e2m1 pairs, low nibble first | 4 e8m0], groups of 32 */
    TAMIS_ROWS_INDEX_INT8,      /* 130: [128 int8 | f16], amax / 127 */
    TAMIS_NUM_ROW_LAYOUTS
} tamis_row_layout;

/** "f32", "v4-fp8", ..., never NULL. */
TAMIS_API const char *tamis_row_layout_name(tamis_row_layout layout);
/**
 * The format of rows of num_values values whose last num_plain are rotated (index layouts, F32 and
 * BF16: 0).
 * errors   INVALID: value seen and allowed (num_values 1..65536; num_plain 0..num_values - 1; FP4
 *          needs an even number of coded values)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_row_format_make(tamis_row_format *out,
                                                              tamis_row_layout layout,
                                                              int32_t num_values, int32_t num_plain,
                                                              tamis_error *err);

/** F32 or BF16 rows without scales. */
static inline tamis_row_format tamis_row_format_plain(tamis_dtype dtype, int32_t num_values)
{
    tamis_row_format format = {TAMIS_DTYPE_F32, 0, 0, 0, TAMIS_DTYPE_F32, TAMIS_SCALE_NONE, 0, 0, 0, 0};
    format.dtype = dtype;
    format.num_values = num_values;
    format.row_bytes = num_values * tamis_dtype_bits(dtype) / 8;
    return format;
}

/** Scales of a row. */
static inline int32_t tamis_row_num_groups(const tamis_row_format *format)
{
    const int32_t num_coded = format->num_values - format->num_plain;
    return format->group_size == 0 ? 0 : (num_coded + format->group_size - 1) / format->group_size;
}

/**
 * Rows in memory. Row i begins at data + i * row_stride; its scales at the format's scale_at, or, in
 * a planar layout, at scales + i * scale_stride.
 */
typedef struct tamis_rows {
    tamis_row_format format;
    void *data;
    int64_t row_stride;
    void *scales; /* NULL: within the row */
    int64_t scale_stride;
} tamis_rows;

/** Consecutive rows, format.row_bytes apart. */
TAMIS_API tamis_rows tamis_rows_contiguous(const tamis_row_format *format, void *data);
/**
 * A page of num_rows rows whose scales follow after all values, as vLLM, DeepGEMM and Ascend keep
 * them: coded and plain parts of a row side by side, then all scales (V4: 8 bytes a row, of which
 * the last is never touched). Bytes of the page: num_rows * format.row_bytes at most. The result's
 * format has its offsets and row_bytes adapted; without scales it is tamis_rows_contiguous.
 */
TAMIS_API tamis_rows tamis_rows_planar_page(const tamis_row_format *format, void *page,
                                            int32_t num_rows);

/**
 * Encode n rows x [n][num_values] f32 (x_stride floats apart) into rows first .. first + n - 1.
 * numeric  class exact: the result is fixed by the format, ties to even. A NaN or an infinity in a
 *          group makes its scale NaN (and F8_E4M3 codes NaN, others 0)
 */
TAMIS_API void tamis_rows_encode(const tamis_rows *rows, int64_t first, int64_t n, const float *x,
                                 int64_t x_stride);
/**
 * Decode: coded values times scale, rounded to BF16 where there are scales (exact for powers of
 * two), x as above.
 */
TAMIS_API void tamis_rows_decode(const tamis_rows *rows, int64_t first, int64_t n, float *x,
                                 int64_t x_stride);
/**
 * Rows 0 .. n - 1 of src into those of dst, which overlaps none of them. Codes are moved as they are
 * where both formats have the same dtype, groups and scales that dst can hold exactly; else rows are
 * decoded and encoded again.
 * errors   INVALID: num_values differ, or num_plain where both have scales; NO_MEMORY (one row)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_rows_convert(const tamis_rows *dst,
                                                           const tamis_rows *src, int64_t n,
                                                           tamis_error *err);

/**
 * Exchange neighbouring pairs (x0 y0 x1 y1 ...) and halves (x0 x1 ... y0 y1 ...) of n values, n even;
 * out does not overlap x.
 */
TAMIS_API void tamis_rope_pairs_to_halves(float *out, const float *x, int32_t n);
TAMIS_API void tamis_rope_halves_to_pairs(float *out, const float *x, int32_t n);

#ifdef __cplusplus
}
#endif
#endif
