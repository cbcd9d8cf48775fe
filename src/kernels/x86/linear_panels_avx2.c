/*
 * Linear layers of many tokens as a matrix product, AVX2.
 *
 * An output's sum runs on 16 lanes: column k on lane k / 4 % 16, the lanes added at the end. So a
 * lane is a matrix product of its own, over four columns of every 64, whose outputs are one
 * ascending chain each, and it may be formed as such products are: from panels of 16 rows and of up
 * to 6 tokens that lie as they are read, 12 accumulators [token][16 rows], one column after the
 * other. Sixteen such products and their sum give the very bits of the quads16 order.
 *
 * The lanes go in the order of the tree's leaves, 0 8 4 12 2 10 6 14 1 9 ...: the sum of two lanes,
 * four, eight waits in a level of its own until its neighbour is complete.
 *
 * Where the operands are: a panel of rows, DEPTH_BLOCK columns of one lane, 16 KiB, and a panel of
 * tokens, 6 KiB, in the first cache level; tokens of a lane stream from the second or third. The
 * rows of the next panel are prefetched meanwhile; without that, packing waits for memory.
 */
#ifdef TAMIS_HAVE_AVX2
#include "kernels/x86/linear_panels_avx2.h"
#include "kernels/x86/table_x86.h"

#define PANEL_TOKENS 6
#define DEPTH_BLOCK  256
#define NUM_LEVELS   4  /* sums of 1, 2, 4, 8 lanes; one more place is for an unfinished lane */
#define LANE_PAD     16 /* floats between lanes: they shall not alias in the cache */

/* One panel of rows times a block of tokens. */
typedef struct product {
    float *w;               /* [lane][step][16 rows] */
    float *x;               /* [lane][panel of tokens][step][tokens of the panel] */
    int64_t w_lane, x_lane; /* floats from lane to lane */
    float *sums;            /* [level][token][16 rows] */
    int64_t n_steps;        /* columns of a lane */
    int64_t n_tokens, n_panels;
    const uint8_t *next; /* rows of the next panel */
    int64_t next_lines;
} product;

/* First token of a panel: tokens are spread evenly, a panel of 2 would leave half of the units
 * idle.
 */
static TAMIS_ALWAYS_INLINE int64_t panel_begin(const product *p, int64_t panel)
{
    return panel * p->n_tokens / p->n_panels;
}

/* CALL(n) for n tokens of a panel, with n known at compile time. */
#define WITH_PANEL_TOKENS(n, CALL)                                                                 \
    switch (n) {                                                                                   \
    case 1:                                                                                        \
        CALL(1);                                                                                   \
        break;                                                                                     \
    case 2:                                                                                        \
        CALL(2);                                                                                   \
        break;                                                                                     \
    case 3:                                                                                        \
        CALL(3);                                                                                   \
        break;                                                                                     \
    case 4:                                                                                        \
        CALL(4);                                                                                   \
        break;                                                                                     \
    case 5:                                                                                        \
        CALL(5);                                                                                   \
        break;                                                                                     \
    default:                                                                                       \
        CALL(6);                                                                                   \
    }

/* ---------------------------------------------------------------- tokens */

static TAMIS_ALWAYS_INLINE void transpose_8(__m256 v[8])
{
    __m256 a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            b[4 * i + 2 * k] = _mm256_shuffle_ps(a[4 * i + k], a[4 * i + 2 + k], 0x44);
            b[4 * i + 2 * k + 1] = _mm256_shuffle_ps(a[4 * i + k], a[4 * i + 2 + k], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x20);
        v[4 + i] = _mm256_permute2f128_ps(b[i], b[4 + i], 0x31);
    }
}

/*
 * 8 columns of n tokens: 4 steps of two lanes. A store writes 8 floats of which n count; the next
 * one, or the pad behind a lane, takes the rest.
 */
static TAMIS_ALWAYS_INLINE void pack_columns(int n, float *to, int64_t lane_stride, const float *x,
                                             int64_t x_stride, int64_t cols)
{
    __m256 v[8];
    for (int t = 0; t < 8; t++)
        v[t] = t >= n      ? _mm256_setzero_ps()
               : cols >= 8 ? _mm256_loadu_ps(x + t * x_stride)
                           : _mm256_maskload_ps(x + t * x_stride, first_lanes(cols));
    transpose_8(v);
    for (int i = 0; i < 8; i++)
        _mm256_storeu_ps(to + i / 4 * lane_stride + i % 4 * n, v[i]);
}

static TAMIS_ALWAYS_INLINE void pack_panel(const product *p, int n, float *to, const float *x,
                                           int64_t x_stride, int64_t cols)
{
    for (int64_t s = 0; s < p->n_steps; s += LANE_COLS)
        for (int lane = 0; lane < TAMIS_LANES; lane += 2) {
            const int64_t c = s * TAMIS_LANES + lane * LANE_COLS;
            pack_columns(n, to + s * n + lane * p->x_lane, p->x_lane, x + c, x_stride, cols - c);
        }
}

static void pack_tokens(const product *p, const float *x, int64_t x_stride, int64_t cols)
{
    for (int64_t i = 0; i < p->n_panels; i++) {
        const int64_t first = panel_begin(p, i), n = panel_begin(p, i + 1) - first;
        float *to = p->x + first * p->n_steps;
        const float *from = x + first * x_stride;
#define CALL(tokens) pack_panel(p, tokens, to, from, x_stride, cols)
        WITH_PANEL_TOKENS(n, CALL)
#undef CALL
    }
}

/* ---------------------------------------------------------------- product */

/* What becomes of a tile: where it starts, which sums of lanes it completes, where it goes. */
typedef struct tile_job {
    float *sums;          /* the tile's place in level 0 */
    int64_t level_stride; /* floats */
    bool is_first;        /* starts at +0, else where the last columns of the lane left off */
    int n_added;          /* levels 0 .. n_added - 1 are complete with this lane and added */
    int level;            /* where it then waits; NUM_LEVELS + 1: the outputs are done */
    float *y;             /* of them the place, first row of the panel */
    int64_t y_stride, n_rows;
} tile_job;

static TAMIS_ALWAYS_INLINE void tile_end(int n, v16 *acc, const tile_job *job)
{
    for (int level = 0; level < job->n_added; level++)
        for (int t = 0; t < n; t++)
            acc[t] =
                v16_add(v16_load(job->sums + level * job->level_stride + t * PANEL_ROWS), acc[t]);
    for (int t = 0; t < n; t++) {
        if (job->level <= NUM_LEVELS)
            v16_store(job->sums + job->level * job->level_stride + t * PANEL_ROWS, acc[t]);
        else if (job->n_rows >= PANEL_ROWS)
            v16_store(job->y + t * job->y_stride, acc[t]);
        else
            v16_store_first(job->y + t * job->y_stride, job->n_rows, acc[t]);
    }
}

static TAMIS_ALWAYS_INLINE void tile(int n, const float *w, const float *x, int64_t n_steps,
                                     const tile_job *job)
{
    v16 acc[PANEL_TOKENS];
    for (int t = 0; t < n; t++)
        acc[t] = job->is_first
                     ? v16_zero()
                     : v16_load(job->sums + NUM_LEVELS * job->level_stride + t * PANEL_ROWS);
    for (int64_t s = 0; s < n_steps; s++) {
        const v16 value = v16_in_registers(v16_load(w + s * PANEL_ROWS));
        for (int t = 0; t < n; t++) {
            const __m256 in = _mm256_broadcast_ss(x + s * n + t);
            acc[t] = v16_fma(value, (v16){in, in}, acc[t]);
        }
    }
    tile_end(n, acc, job);
}

/* Steps [begin, end) of one lane against all tokens; job says what all tiles have in common. */
static void multiply_steps(const product *p, int64_t lane, int64_t begin, int64_t end, tile_job job,
                           int64_t *line, int64_t lines_per_tile)
{
    const float *w = p->w + lane * p->w_lane + begin * PANEL_ROWS;
    float *const sums = job.sums, *const y = job.y;
    for (int64_t i = 0; i < p->n_panels; i++) {
        const int64_t first = panel_begin(p, i), n = panel_begin(p, i + 1) - first;
        const float *x = p->x + lane * p->x_lane + first * p->n_steps + begin * n;
        const int64_t left = p->next_lines - *line;
        for (int64_t k = left < lines_per_tile ? left : lines_per_tile; k > 0; k--, ++*line)
            _mm_prefetch((const char *)p->next + 64 * *line, _MM_HINT_T0);
        job.sums = sums + first * PANEL_ROWS;
        job.y = y + first * job.y_stride;
#define CALL(tokens) tile(tokens, w, x, end - begin, &job)
        WITH_PANEL_TOKENS(n, CALL)
#undef CALL
    }
}

/* The panel of rows against all tokens of the block; y is the place of its first row. */
static void multiply(const product *p, float *y, int64_t y_stride, int64_t n_rows)
{
    static const uint8_t leaves[TAMIS_LANES] = {0, 8, 4, 12, 2, 10, 6, 14,
                                                1, 9, 5, 13, 3, 11, 7, 15};
    const int64_t n_blocks = (p->n_steps + DEPTH_BLOCK - 1) / DEPTH_BLOCK;
    const int64_t n_tiles = TAMIS_LANES * n_blocks * p->n_panels;
    const int64_t lines_per_tile = (p->next_lines + n_tiles - 1) / n_tiles;
    tile_job job = {.sums = p->sums,
                    .level_stride = p->n_tokens * PANEL_ROWS,
                    .y = y,
                    .y_stride = y_stride,
                    .n_rows = n_rows};
    int64_t line = 0;
    for (int i = 0; i < TAMIS_LANES; i++) {
        int n_complete = 0; /* sums that end with this leaf: ones at the end of its number */
        for (; i >> n_complete & 1; n_complete++)
            ;
        for (int64_t block = 0; block < n_blocks; block++) {
            const bool is_last = block + 1 == n_blocks;
            job.is_first = block == 0;
            job.n_added = is_last ? n_complete : 0;
            job.level = !is_last                   ? NUM_LEVELS
                        : n_complete == NUM_LEVELS ? NUM_LEVELS + 1
                                                   : n_complete;
            multiply_steps(p, leaves[i], block * p->n_steps / n_blocks,
                           (block + 1) * p->n_steps / n_blocks, job, &line, lines_per_tile);
        }
    }
}

/* ---------------------------------------------------------------- all of it */

/* Rows [begin, end) of w, panel by panel, against the packed tokens. */
static void multiply_rows(product *p, float *y, int64_t y_stride, const tamis_matrix *w,
                          int64_t begin, int64_t end)
{
    for (int64_t row = begin, n; row < end; row += n) {
        n = end - row < PANEL_ROWS ? end - row : PANEL_ROWS;
        const int64_t after = end - row - n < PANEL_ROWS ? end : row + n + PANEL_ROWS;
        tamis_linear_pack_rows_avx2(p->w, p->w_lane, w, row, n);
        p->next = tamis_weight_row(w, row + n);
        p->next_lines = (tamis_weight_row(w, after) - p->next + 63) / 64;
        multiply(p, y + (row - begin), y_stride, n);
    }
}

TAMIS_KERNEL_linear(tamis_linear_panels_avx2)
{
    (void)same_inputs;
    const int64_t largest = (int64_t)TAMIS_LINEAR_TOKENS(w->cols);
    const int64_t n_blocks = (n_tokens + largest - 1) / largest;
    product p = {.n_steps = panel_steps(w->cols)};
    p.w = scratch;
    p.w_lane = p.n_steps * PANEL_ROWS + LANE_PAD;
    p.sums = p.w + TAMIS_LANES * p.w_lane;
    p.x = p.sums + (NUM_LEVELS + 1) * largest * PANEL_ROWS;
    for (int64_t block = 0; block < n_blocks; block++) {
        const int64_t first = block * n_tokens / n_blocks;
        p.n_tokens = (block + 1) * n_tokens / n_blocks - first;
        p.n_panels = (p.n_tokens + PANEL_TOKENS - 1) / PANEL_TOKENS;
        p.x_lane = p.n_tokens * p.n_steps + LANE_PAD;
        pack_tokens(&p, x + first * x_stride, x_stride, w->cols);
        multiply_rows(&p, y + first * y_stride, y_stride, w, row_begin, row_end);
    }
}
#endif
