#include "support/kernel_ref.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---------------------------------------------------------------- formats */

/* sign, exponent and mantissa fields to a number: the definition of a binary format. */
static double from_fields(bool negative, int exponent, int mantissa, int mantissa_bits, int bias)
{
    const double fraction = ldexp(mantissa, -mantissa_bits);
    const double magnitude =
        exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1.0 + fraction, exponent - bias);
    return negative ? -magnitude : magnitude;
}

double kernel_ref_bf16(uint16_t h)
{
    const int exponent = h >> 7 & 255, mantissa = h & 127;
    if (exponent == 255)
        return mantissa ? (double)NAN : (h >> 15 ? -INFINITY : INFINITY);
    return from_fields(h >> 15, exponent, mantissa, 7, 127);
}

double kernel_ref_f16(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31)
        return mantissa ? (double)NAN : (h >> 15 ? -INFINITY : INFINITY);
    return from_fields(h >> 15, exponent, mantissa, 10, 15);
}

double kernel_ref_e4m3(uint8_t b)
{
    if ((b & 127) == 127)
        return (double)NAN;
    return from_fields(b >> 7, b >> 3 & 15, b & 7, 3, 7);
}

double kernel_ref_e2m1(uint8_t nibble)
{
    return from_fields(nibble >> 3 & 1, nibble >> 1 & 3, nibble & 1, 1, 1);
}

double kernel_ref_e8m0(uint8_t b)
{
    return b == 255 ? (double)NAN : ldexp(1.0, b - 127);
}

double kernel_ref_cached(const void *row, tamis_dtype dtype, int64_t c)
{
    const uint8_t *p = row;
    float f;
    uint16_t h;
    if (dtype == TAMIS_DTYPE_F32) {
        memcpy(&f, p + 4 * c, sizeof f);
        return (double)f;
    }
    memcpy(&h, p + 2 * c, sizeof h);
    return dtype == TAMIS_DTYPE_BF16 ? kernel_ref_bf16(h) : kernel_ref_f16(h);
}

double kernel_ref_weight(const tamis_matrix *w, int64_t row, int64_t c)
{
    const uint8_t *p = (const uint8_t *)w->data + row * w->row_bytes;
    double value;
    if (w->dtype == TAMIS_DTYPE_F8_E4M3)
        value = kernel_ref_e4m3(p[c]);
    else if (w->dtype == TAMIS_DTYPE_F4_E2M1)
        value = kernel_ref_e2m1(c % 2 ? p[c / 2] >> 4 : p[c / 2] & 15);
    else
        value = kernel_ref_cached(p, w->dtype, c);
    if (!w->scale)
        return value;
    const uint8_t *s = (const uint8_t *)w->scale + row / w->block_rows * w->scale_row_bytes;
    const int64_t block = c / w->block_cols;
    return value * (w->scale_dtype == TAMIS_DTYPE_F32 ? kernel_ref_cached(s, TAMIS_DTYPE_F32, block)
                                                      : kernel_ref_e8m0(s[block]));
}

/* ---------------------------------------------------------------- operators */

double kernel_ref_softmax(double *p, const double *scores, int64_t n, const float *sink)
{
    double top = sink ? (double)*sink : -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        top = fmax(top, scores[j]);
    for (int64_t j = 0; j < n; j++)
        sum += p[j] = exp(scores[j] - top);
    if (sink)
        sum += exp((double)*sink - top);
    for (int64_t j = 0; j < n; j++)
        p[j] /= sum;
    return top + log(sum);
}

double kernel_ref_attention(double *out, const float *q, int64_t head_dim, int64_t value_dim,
                            const void *const *rows, tamis_dtype dtype, int64_t n, double scale,
                            const float *sink)
{
    double *p = malloc((size_t)n * sizeof *p);
    for (int64_t j = 0; j < n; j++) {
        p[j] = 0;
        for (int64_t d = 0; d < head_dim; d++)
            p[j] += (double)q[d] * kernel_ref_cached(rows[j], dtype, d);
        p[j] *= scale;
    }
    const double lse = kernel_ref_softmax(p, p, n, sink);
    for (int64_t d = 0; d < value_dim; d++) {
        out[d] = 0;
        for (int64_t j = 0; j < n; j++)
            out[d] += p[j] * kernel_ref_cached(rows[j], dtype, d);
    }
    free(p);
    return lse;
}

double kernel_ref_index_score(const float *q, const float *weights, int64_t n_heads,
                              int64_t head_dim, const void *key, tamis_dtype dtype,
                              double *magnitude)
{
    double score = 0;
    *magnitude = 0;
    for (int64_t h = 0; h < n_heads; h++) {
        double dot = 0, terms = 0;
        for (int64_t d = 0; d < head_dim; d++) {
            const double term = (double)q[h * head_dim + d] * kernel_ref_cached(key, dtype, d);
            dot += term;
            terms += fabs(term);
        }
        score += (double)weights[h] * fmax(dot, 0);
        *magnitude += fabs((double)weights[h]) * terms;
    }
    return score;
}

/* ---------------------------------------------------------------- data */

static float one_value(test_rng *rng, kernel_data kind)
{
    static const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 3.0e38f, 1e-45f};
    const float normal = test_rng_normal(rng);
    switch (kind) {
    case KERNEL_DATA_WIDE:
        return ldexpf(normal, (int)test_rng_int(rng, -40, 40));
    case KERNEL_DATA_TINY:
        return test_rng_int(rng, 0, 3) == 0 ? copysignf(0.0f, normal) : ldexpf(normal, -130);
    case KERNEL_DATA_SPECIAL:
        return test_rng_int(rng, 0, 40) == 0 ? special[test_rng_int(rng, 0, 6)] : normal;
    default:
        return normal;
    }
}

void kernel_fill(test_rng *rng, kernel_data kind, float *out, size_t n)
{
    const float same = test_rng_normal(rng);
    for (size_t i = 0; i < n; i++)
        out[i] = kind == KERNEL_DATA_EQUAL ? same : one_value(rng, kind);
}

void kernel_fill_cached(test_rng *rng, kernel_data kind, void *out, tamis_dtype dtype, size_t n)
{
    const float same = test_rng_normal(rng);
    for (size_t i = 0; i < n; i++) {
        const float f = kind == KERNEL_DATA_EQUAL ? same : one_value(rng, kind);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        const uint16_t h = (uint16_t)(bits >> 16);
        if (dtype == TAMIS_DTYPE_F32)
            memcpy((uint8_t *)out + 4 * i, &f, sizeof f);
        else
            memcpy((uint8_t *)out + 2 * i, &h, sizeof h);
    }
}

/* ---------------------------------------------------------------- memory */

kernel_page kernel_page_new(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t used = (bytes + page - 1) / page * page;
    kernel_page result = {.map_bytes = used + page};
    uint8_t *map =
        mmap(NULL, result.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + used, page, PROT_NONE) != 0)
        abort();
    result.map = map;
    result.data = map + used - bytes;
    return result;
}

void kernel_page_free(kernel_page *page)
{
    if (page->map)
        munmap(page->map, page->map_bytes);
    *page = (kernel_page){0};
}

static size_t row_size(tamis_dtype dtype, int64_t cols)
{
    switch (dtype) {
    case TAMIS_DTYPE_F32:
        return (size_t)cols * 4;
    case TAMIS_DTYPE_BF16:
    case TAMIS_DTYPE_F16:
        return (size_t)cols * 2;
    case TAMIS_DTYPE_F8_E4M3:
        return (size_t)cols;
    default:
        return (size_t)(cols + 1) / 2;
    }
}

static void fill_weights(test_rng *rng, uint8_t *p, size_t bytes, tamis_dtype dtype, bool special)
{
    test_rng_fill_bytes(rng, p, bytes);
    if (special && dtype != TAMIS_DTYPE_F16)
        return;
    if (dtype == TAMIS_DTYPE_F32 || dtype == TAMIS_DTYPE_BF16) {
        const size_t size = dtype == TAMIS_DTYPE_F32 ? 4 : 2;
        for (size_t i = 0; i + size <= bytes; i += size)
            kernel_fill_cached(rng, KERNEL_DATA_NORMAL, p + i, dtype, 1);
    } else if (dtype == TAMIS_DTYPE_F16) {
        for (size_t i = 1; i < bytes; i += 2) /* below 2, mostly */
            p[i] = special && test_rng_int(rng, 0, 20) == 0 ? 0x7c : p[i] & 0xbf;
    } else if (dtype == TAMIS_DTYPE_F8_E4M3) {
        for (size_t i = 0; i < bytes; i++)
            p[i] = (p[i] & 127) == 127 ? 0 : p[i];
    }
}

static void fill_scales(test_rng *rng, uint8_t *p, size_t n, tamis_dtype dtype, bool special)
{
    static const uint8_t extreme[] = {0, 1, 120, 127, 246, 247, 248, 254, 255};
    for (size_t i = 0; i < n; i++) {
        const bool extreme_here = special && test_rng_int(rng, 0, 3) == 0;
        const uint8_t byte =
            extreme_here ? extreme[test_rng_int(rng, 0, 8)] : (uint8_t)test_rng_int(rng, 118, 130);
        const float f = extreme_here ? ldexpf(1.5f, (int)test_rng_int(rng, -140, 127))
                                     : test_rng_float(rng, 0.001f, 0.02f);
        if (dtype == TAMIS_DTYPE_F32)
            memcpy(p + 4 * i, &f, sizeof f);
        else
            p[i] = byte;
    }
}

/* Scale grids as checkpoints have them, and a few that only the contract allows. */
static void random_blocks(test_rng *rng, tamis_matrix *w)
{
    static const int32_t block_rows[] = {128, 1, 128, 3, 7}, block_cols[] = {128, 32, 64, 16, 20};
    const int64_t kind =
        w->dtype == TAMIS_DTYPE_F4_E2M1 ? test_rng_int(rng, 1, 4) : test_rng_int(rng, 0, 4);
    w->block_rows = block_rows[kind];
    w->block_cols = block_cols[kind];
    w->scale_dtype = test_rng_int(rng, 0, 2) == 0 ? TAMIS_DTYPE_F32 : TAMIS_DTYPE_F8_E8M0;
}

kernel_matrix kernel_matrix_new(test_rng *rng, tamis_dtype dtype, int64_t rows, int64_t cols,
                                bool scaled, bool special)
{
    kernel_matrix m = {.view = {.dtype = dtype, .rows = rows, .cols = cols}};
    const size_t row = row_size(dtype, cols);
    m.view.row_bytes = (int64_t)row + test_rng_int(rng, 0, 1) * test_rng_int(rng, 0, 9);
    /* The last row has no gap behind it: its last element is the last readable byte. */
    const size_t bytes = (size_t)(rows - 1) * (size_t)m.view.row_bytes + row;
    m.data = kernel_page_new(bytes);
    m.view.data = m.data.data;
    for (int64_t r = 0; r < rows; r++)
        fill_weights(rng, (uint8_t *)m.data.data + r * m.view.row_bytes, row, dtype, special);
    if (!scaled)
        return m;
    random_blocks(rng, &m.view);
    const size_t size = m.view.scale_dtype == TAMIS_DTYPE_F32 ? 4 : 1;
    const size_t grid_rows = (size_t)((rows + m.view.block_rows - 1) / m.view.block_rows);
    const size_t grid_cols = (size_t)((cols + m.view.block_cols - 1) / m.view.block_cols);
    m.view.scale_row_bytes = (int64_t)(grid_cols * size);
    m.scale = kernel_page_new(grid_rows * grid_cols * size);
    m.view.scale = m.scale.data;
    fill_scales(rng, m.scale.data, grid_rows * grid_cols, m.view.scale_dtype, special);
    return m;
}

void kernel_matrix_free(kernel_matrix *matrix)
{
    kernel_page_free(&matrix->data);
    kernel_page_free(&matrix->scale);
}

/* ---------------------------------------------------------------- comparison */

bool kernel_same_f32(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

int64_t kernel_first_difference(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!kernel_same_f32(a[i], b[i]))
            return (int64_t)i;
    return -1;
}
