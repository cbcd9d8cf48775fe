/*
 * Linear layers of more tokens than few, AVX2, where tokens or rows are too few for panels
 * (linear_panels_avx2.c): ROWS rows are decoded K_BLOCK columns at a time to a buffer in the first
 * cache level and multiplied in tiles of 3 rows x 4 tokens or 2 x 6 - 12 accumulators of one half
 * of the lanes, the most that leaves registers for the operands. So the two halves, every other 32
 * columns, go one after the other. Between two column blocks the accumulators wait in memory.
 *
 * What is stored of BF16 and FP8 are words that one operation more makes f32 of, half the stores:
 * of FP8 numbers 2^120 too small, with inputs that have the scale (linear_fused_avx2.h). Anything
 * else, and blocks with NaN or with other scales, are stored as f32.
 *
 * The order of additions of one output is that of every path, quads16.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_fused_avx2.h"
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define ROWS        6
#define K_BLOCK     1024
#define TOKEN_BLOCK 24
#define MAX_PANEL   6 /* tokens */

/* What the buffer holds of 32 columns of a row: 4 planes of f32, or two registers of words. */
typedef enum block_form {
    BLOCK_F32 = 0,
    BLOCK_BF16, /* planes 0 and 1, 2 and 3 */
    BLOCK_E4M3  /* planes 0 and 2, 1 and 3 */
} block_form;

/* Bytes of 32 columns. */
static TAMIS_ALWAYS_INLINE int unit_bytes(block_form form)
{
    return form == BLOCK_F32 ? 128 : 64;
}

/* Rows of a tile for so many tokens in it. */
static TAMIS_ALWAYS_INLINE int tile_rows(int n_tokens)
{
    return n_tokens > 4 ? 2 : 3;
}

/* ---------------------------------------------------------------- tiles */

/* Keeps a value where it is: what is read again need not stay in a register meanwhile. */
static TAMIS_ALWAYS_INLINE const uint8_t *hidden(const uint8_t *p)
{
#if defined(__GNUC__)
    __asm__("" : "+r"(p));
#endif
    return p;
}

/* acc += a * b, in place: 12 accumulators and 4 operands are all registers, and gcc's own choice of
 * the register that is overwritten would need one more. */
static TAMIS_ALWAYS_INLINE __m256 fma_in_place(__m256 a, __m256 b, __m256 acc)
{
#if defined(__GNUC__)
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
#else
    return _mm256_fmadd_ps(a, b, acc);
#endif
}

/* Plane b of 32 columns that start at `unit`. */
static TAMIS_ALWAYS_INLINE __m256 unit_plane(block_form form, const uint8_t *unit, int b)
{
    static const _Alignas(32)
        uint32_t upper[8] = {0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u,
                             0xffff0000u, 0xffff0000u, 0xffff0000u, 0xffff0000u};
    const int word = form == BLOCK_BF16 ? b / 2 : b % 2;
    const bool is_upper = form == BLOCK_BF16 ? b % 2 : b / 2;
    const void *at = unit + 32 * (form == BLOCK_F32 ? b : word);
    if (form == BLOCK_F32)
        return _mm256_load_ps(at);
    if (!is_upper)
        return low_bf16(_mm256_load_si256(at));
    const void *mask = hidden((const uint8_t *)upper);
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256(at), _mm256_load_si256(mask)));
}

/*
 * acc[r][token][lane] += w * x of one half of the lanes: w [unit][row], x [unit][other half as
 * well][token][b][q].
 */
static TAMIS_ALWAYS_INLINE void tile(block_form form, int n_tokens, float *acc, int64_t acc_stride,
                                     const uint8_t *w, const float *x, int64_t n_units)
{
    const int n_rows = tile_rows(n_tokens);
    __m256 sum[3][MAX_PANEL];
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++)
            sum[r][t] = _mm256_load_ps(acc + r * acc_stride + t * TAMIS_LANES);
    for (int64_t u = 0; u < n_units; u++) {
        for (int b = 0; b < 4; b++) {
            __m256 value[3];
            w = hidden(w);
            for (int r = 0; r < n_rows; r++)
                value[r] = in_register(unit_plane(form, w + r * unit_bytes(form), b));
            for (int t = 0; t < n_tokens; t++) {
                const __m256 in = in_register(_mm256_loadu_ps(x + t * PLANE_COLS + 8 * b));
                for (int r = 0; r < n_rows; r++)
                    sum[r][t] = fma_in_place(value[r], in, sum[r][t]);
            }
        }
        w += n_rows * unit_bytes(form);
        x += 2 * n_tokens * PLANE_COLS;
    }
    for (int r = 0; r < n_rows; r++)
        for (int t = 0; t < n_tokens; t++)
            _mm256_store_ps(acc + r * acc_stride + t * TAMIS_LANES, sum[r][t]);
}

typedef void tile_fn(float *acc, int64_t acc_stride, const uint8_t *w, const float *x,
                     int64_t n_units);

#define TILE(name, form, n_tokens)                                                                 \
    static void name##_##n_tokens(float *acc, int64_t acc_stride, const uint8_t *w,                \
                                  const float *x, int64_t n_units)                                 \
    {                                                                                              \
        tile(form, n_tokens, acc, acc_stride, w, x, n_units);                                      \
    }
#define TILES(name, form)                                                                          \
    TILE(name, form, 1)                                                                            \
    TILE(name, form, 2)                                                                            \
    TILE(name, form, 3)                                                                            \
    TILE(name, form, 4)                                                                            \
    TILE(name, form, 5)                                                                            \
    TILE(name, form, 6)
#define TILE_ROW(name)                                                                             \
    {                                                                                              \
        NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6                           \
    }
TILES(f32_tile, BLOCK_F32)
TILES(bf16_tile, BLOCK_BF16)
TILES(e4m3_tile, BLOCK_E4M3)
static tile_fn *const tiles[3][MAX_PANEL + 1] = {TILE_ROW(f32_tile), TILE_ROW(bf16_tile),
                                                 TILE_ROW(e4m3_tile)};

/* ---------------------------------------------------------------- rows */

/* A block of tokens, or the rows of it that share scaled inputs. */
typedef struct many_pass {
    float *y;
    int64_t y_stride, n_tokens, n_panels;
    int tile_rows;
    const float *x;      /* [panel][as planes_order_rows leaves them], zeros behind the columns */
    const float *scaled; /* the same times FP8 scales and 2^120; NULL: rows are not to use it */
    const tamis_matrix *w;
    int64_t row_begin, row_end;
} many_pass;

/* ROWS rows: their columns of a block, their sums, and what is asked for meanwhile. */
typedef struct row_group {
    _Alignas(64) uint8_t block[ROWS * K_BLOCK * sizeof(float)]; /* [half][tile][unit][row] */
    _Alignas(64) float acc[ROWS][TOKEN_BLOCK][TAMIS_LANES];
    int64_t row, n_rows;
    const uint8_t *next; /* rows of the next group */
    int64_t lines, lines_per_tile;
} row_group;

static int64_t panel_begin(const many_pass *pass, int64_t panel)
{
    return panel * pass->n_tokens / pass->n_panels;
}

/* Where a row's columns go in the block: bytes from 64 columns to 64, and to their other half. */
typedef struct row_place {
    uint8_t *to;
    int64_t stride, half;
} row_place;

/* Columns [begin, end) of a row as words, 64 at a time; false: a NaN of FP8. */
static TAMIS_ALWAYS_INLINE bool store_words(block_form form, row_place place, const uint8_t *row,
                                            int64_t begin, int64_t end)
{
    __m256i largest = _mm256_setzero_si256();
    for (int64_t c = begin; c < end; c += QUADS_COLS, place.to += place.stride)
        for (int h = 0; h < 2; h++) {
            __m256i *at = (__m256i *)(void *)(place.to + h * place.half);
            const int64_t first = c + h * PLANE_COLS;
            const word_pair v = form == BLOCK_BF16 ? bf16_words(row + 2 * first)
                                                   : e4m3_small_words(load_codes(row + first));
            if (form == BLOCK_E4M3)
                largest = e4m3_largest(largest, load_codes(row + first));
            _mm256_store_si256(at, v.first);
            _mm256_store_si256(at + 1, v.second);
        }
    return !e4m3_has_nan(largest);
}

/* The same as f32, of matrices that planes_can_fuse; false: a NaN or too large a scale of FP8. */
static TAMIS_ALWAYS_INLINE bool store_planes(tamis_dtype dtype, row_place place,
                                             const tamis_matrix *w, int64_t row, int64_t begin,
                                             int64_t end)
{
    const uint8_t *data = tamis_weight_row(w, row);
    __m256i largest = _mm256_setzero_si256();
    __m256 factor = _mm256_setzero_ps();
    for (int64_t c = begin, edge = begin; c < end; c += PLANE_COLS) {
        const uint8_t *at = data + c * weight_bits(dtype) / 8;
        const int64_t unit = c - begin, is_second = unit / PLANE_COLS % 2;
        if (takes_factor(dtype) && c >= edge) {
            if (!factor_of(&factor, dtype, w, row, c))
                return false;
            edge = w->scale ? (c / w->block_cols + 1) * w->block_cols : end;
        }
        if (dtype == TAMIS_DTYPE_F8_E4M3)
            largest = e4m3_largest(largest, load_codes(at));
        planes_store(
            (float *)(void *)(place.to + unit / QUADS_COLS * place.stride + is_second * place.half),
            weights_32(dtype, false, at, factor));
    }
    return !e4m3_has_nan(largest);
}

/* The same of any matrix, zeros behind the last column. */
static void store_expanded(row_place place, const tamis_matrix *w, int64_t row, int64_t begin,
                           int64_t end)
{
    _Alignas(64) float value[K_BLOCK];
    tamis_expand_span_avx2(value, w, row, begin, end);
    planes_order(value, value, end - begin);
    for (int64_t c = 0; c < end - begin; c += QUADS_COLS, place.to += place.stride) {
        planes_store((float *)(void *)place.to, planes_load(value + c));
        planes_store((float *)(void *)(place.to + place.half), planes_load(value + c + PLANE_COLS));
    }
}

static void store_floats(row_place place, const tamis_matrix *w, int64_t row, int64_t begin,
                         int64_t end)
{
    bool done = false;
#define STORE(dtype) store_planes(dtype, place, w, row, begin, end)
    if ((end - begin) % QUADS_COLS == 0 && planes_can_fuse(w))
        done = w->dtype == TAMIS_DTYPE_F32    ? STORE(TAMIS_DTYPE_F32)
               : w->dtype == TAMIS_DTYPE_BF16 ? STORE(TAMIS_DTYPE_BF16)
               : w->dtype == TAMIS_DTYPE_F16  ? STORE(TAMIS_DTYPE_F16)
               : w->dtype == TAMIS_DTYPE_I8   ? STORE(TAMIS_DTYPE_I8)
                                              : STORE(TAMIS_DTYPE_F8_E4M3);
#undef STORE
    if (!done)
        store_expanded(place, w, row, begin, end);
}

/* Fills the block with columns [begin, end) in that form; false: a NaN of FP8. */
static bool store_block(row_group *g, const many_pass *pass, block_form form, int64_t begin,
                        int64_t end)
{
    const int64_t n_units = planes_stride(end - begin) / QUADS_COLS, rows = pass->tile_rows;
    row_place place = {.stride = rows * unit_bytes(form),
                       .half = ROWS * n_units * unit_bytes(form)};
    bool plain = true;
    for (int64_t r = 0; r < (g->n_rows + rows - 1) / rows * rows; r++) {
        const int64_t row = g->row + (r < g->n_rows ? r : g->n_rows - 1);
        const uint8_t *data = tamis_weight_row(pass->w, row);
        place.to = g->block + r / rows * n_units * place.stride + r % rows * unit_bytes(form);
        if (form == BLOCK_F32)
            store_floats(place, pass->w, row, begin, end);
        else if (form == BLOCK_BF16)
            store_words(BLOCK_BF16, place, data, begin, end);
        else
            plain &= store_words(BLOCK_E4M3, place, data, begin, end);
    }
    return plain;
}

static void fetch_ahead(row_group *g)
{
    const int64_t n = g->lines < g->lines_per_tile ? g->lines : g->lines_per_tile;
    for (int64_t i = 0; i < n; i++)
        _mm_prefetch(g->next + 64 * i, _MM_HINT_T1);
    g->next += 64 * n;
    g->lines -= n;
}

/* The block, columns [begin, end), times all tokens. */
static void multiply_block(row_group *g, const many_pass *pass, block_form form, int64_t begin,
                           int64_t end)
{
    const int64_t n_units = planes_stride(end - begin) / QUADS_COLS, rows = pass->tile_rows;
    const int64_t n_bytes = rows * n_units * unit_bytes(form);
    const float *inputs = form == BLOCK_E4M3 ? pass->scaled : pass->x;
    for (int64_t panel = 0; panel < pass->n_panels; panel++) {
        const int64_t first = panel_begin(pass, panel), n = panel_begin(pass, panel + 1) - first;
        const float *x = inputs + first * planes_stride(pass->w->cols) + begin * n;
        for (int half = 0; half < 2; half++)
            for (int64_t r = 0; r < g->n_rows; r += rows) {
                fetch_ahead(g);
                tiles[form][n](g->acc[r][first] + 8 * half, TOKEN_BLOCK * TAMIS_LANES,
                               g->block + half * ROWS / rows * n_bytes + r / rows * n_bytes,
                               x + half * n * PLANE_COLS, n_units);
            }
    }
}

/* The form of columns [begin, end), stored; a last block that is not of whole 64 is expanded. */
static block_form store_any(row_group *g, const many_pass *pass, int64_t begin, int64_t end)
{
    const tamis_dtype dtype = pass->w->dtype;
    block_form form = BLOCK_F32;
    if (dtype == TAMIS_DTYPE_BF16 && !pass->w->scale)
        form = BLOCK_BF16;
    if (dtype == TAMIS_DTYPE_F8_E4M3 && pass->scaled)
        form = BLOCK_E4M3;
    if ((end - begin) % QUADS_COLS != 0)
        form = BLOCK_F32;
    if (!store_block(g, pass, form, begin, end)) {
        form = BLOCK_F32;
        store_block(g, pass, form, begin, end);
    }
    return form;
}

static void group_start(row_group *g, const many_pass *pass, int64_t row)
{
    const tamis_matrix *w = pass->w;
    const int64_t left = pass->row_end - row;
    g->row = row;
    g->n_rows = left < ROWS ? left : ROWS;
    const int64_t after = left - g->n_rows < ROWS ? left - g->n_rows : ROWS;
    const int64_t n_tiles = (w->cols + K_BLOCK - 1) / K_BLOCK * pass->n_panels * 2 *
                            ((g->n_rows + pass->tile_rows - 1) / pass->tile_rows);
    g->next = tamis_weight_row(w, row + g->n_rows);
    g->lines = after * w->row_bytes / 64;
    g->lines_per_tile = (g->lines + n_tiles - 1) / n_tiles;
    for (int64_t r = 0; r < ROWS; r++)
        memset(g->acc[r], 0, (size_t)pass->n_tokens * sizeof g->acc[r][0]);
}

/* Rows [row, end). */
static void many_rows(const many_pass *pass, int64_t row, int64_t end)
{
    row_group g;
    for (; row < end; row += g.n_rows) {
        group_start(&g, pass, row);
        if (g.n_rows > end - row)
            g.n_rows = end - row;
        for (int64_t begin = 0, stop; begin < pass->w->cols; begin = stop) {
            const int64_t left = pass->w->cols - begin;
            stop = left >= K_BLOCK      ? begin + K_BLOCK
                   : left >= QUADS_COLS ? begin + left / QUADS_COLS * QUADS_COLS
                                        : pass->w->cols;
            multiply_block(&g, pass, store_any(&g, pass, begin, stop), begin, stop);
        }
        float *y = pass->y + (row - pass->row_begin);
        for (int64_t t = 0; t < pass->n_tokens; t++)
            for (int64_t r = 0; r < g.n_rows; r++)
                y[t * pass->y_stride + r] = v16_sum(v16_load(g.acc[r][t]));
    }
}

/* ---------------------------------------------------------------- tokens */

/* x times the scales of the block row that `row` lies in, into dst; NULL: not to be had. */
static const float *scaled_inputs(float *dst, const many_pass *pass, int64_t row, int64_t end)
{
    const tamis_matrix *w = pass->w;
    if (w->dtype != TAMIS_DTYPE_F8_E4M3 || !planes_can_fuse(w) || end - row < FOLD_ROWS ||
        (w->scale && w->block_rows < FOLD_ROWS))
        return NULL;
    for (int64_t panel = 0; panel < pass->n_panels; panel++) {
        const int64_t first = panel_begin(pass, panel), n = panel_begin(pass, panel + 1) - first;
        const int64_t at = first * planes_stride(w->cols);
        if (!tamis_fold_scales_avx2(dst + at, pass->x + at, n, w, row))
            return NULL;
    }
    return dst;
}

/* A block of at most TOKEN_BLOCK tokens. */
static void many_tokens(many_pass *pass, const float *x, int64_t x_stride, float *scratch)
{
    const int64_t stride = planes_stride(pass->w->cols);
    const int largest = pass->n_tokens == 5 || pass->n_tokens == 6 ? MAX_PANEL : 4;
    pass->tile_rows = tile_rows(largest);
    pass->n_panels = (pass->n_tokens + largest - 1) / largest;
    for (int64_t panel = 0; panel < pass->n_panels; panel++) {
        const int64_t first = panel_begin(pass, panel), n = panel_begin(pass, panel + 1) - first;
        planes_order_rows(scratch + first * stride, x + first * x_stride, x_stride, n,
                          pass->w->cols);
    }
    pass->x = scratch;
    for (int64_t row = pass->row_begin, end; row < pass->row_end; row = end) {
        end = fold_end(pass->w, row, pass->row_end);
        pass->scaled = scaled_inputs(scratch + pass->n_tokens * stride, pass, row, end);
        many_rows(pass, row, end);
    }
}

/* From so many tokens on panels are faster: what is stored as f32 costs more here. */
static int64_t min_panel_tokens(const tamis_matrix *w)
{
    const bool powers = !w->scale || w->scale_dtype == TAMIS_DTYPE_F8_E8M0;
    return w->dtype == TAMIS_DTYPE_BF16 || (w->dtype == TAMIS_DTYPE_F8_E4M3 && powers)
               ? TOKEN_BLOCK + 1
               : 16;
}

TAMIS_KERNEL_linear(tamis_linear_many_avx2)
{
    (void)same_inputs;
    if (n_tokens >= min_panel_tokens(w) && row_end - row_begin >= PANEL_ROWS) {
        tamis_linear_panels_avx2(y, y_stride, x, x_stride, n_tokens, w, row_begin, row_end,
                                 scratch, false);
        return;
    }
    const int64_t n_blocks = (n_tokens + TOKEN_BLOCK - 1) / TOKEN_BLOCK;
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * n_tokens / n_blocks;
        many_pass pass = {.y = y + first * y_stride,
                          .y_stride = y_stride,
                          .n_tokens = (block + 1) * n_tokens / n_blocks - first,
                          .w = w,
                          .row_begin = row_begin,
                          .row_end = row_end};
        many_tokens(&pass, x + first * x_stride, x_stride, scratch);
    }
}
#endif
