/*
 * THE kernel table: every kernel's contract, once. docs/numerics.md explains the classes.
 *
 * All kernels are class *exact* or *ordered*: portable C and every CPU level give the same bits.
 * "fma" is one rounding (fmaf); a + b, a * b, a / b, sqrt are IEEE single, round to nearest even;
 * nothing is contracted or reassociated beyond what is written here.
 *
 *   lanes16   a sum over an index k in ascending order on 16 accumulators that start at +0: term k
 *             goes to accumulator k % 16; then acc[i] += acc[i + 8] (i < 8), += acc[i + 4] (i < 4),
 *             += acc[i + 2] (i < 2), acc[0] + acc[1].
 *   quads16   the same with four neighbours on one accumulator: term k goes to accumulator
 *             k / 4 % 16. Terms behind the last one, up to a multiple of 64, are fma(+0, +0, acc).
 *   chain     one accumulator that starts at +0, terms in ascending order.
 *   exp, log1p, ...  the functions of kernels/math.h, the same operations at every level.
 *
 * Pointers: f32 arrays that tamis makes are 4-byte aligned at least; matrices and `const void *`
 * rows may start at any byte. Inputs never overlap outputs unless a contract says so. Kernels never
 * fail, allocate, lock or know a model; the caller has validated sizes. They write nothing but
 * their outputs and read nothing but the elements named.
 */
#ifndef TAMIS_KERNELS_KERNELS_H
#define TAMIS_KERNELS_KERNELS_H

#include "tamis/rows.h"

/* Heads that lie side by side in one panel of packed queries; also the lanes of lanes16. */
#define TAMIS_LANES 16
/* Entries of an attention list between two LSE merges: part of the numerics contract. */
#define TAMIS_ATTN_CHUNK 64
/* Weight rows that one call of the linear kernel expands at a time; threads share rows in groups. */
#define TAMIS_LINEAR_ROWS 8
/* Tokens that the linear kernel packs at a time, beside 16 rows. */
#define TAMIS_LINEAR_TOKENS(cols) ((size_t)(cols) <= 16384 ? (size_t)128 : (size_t)32)
/* Floats of scratch that linear, linear_t, index_score and attn_chunk need. */
#define TAMIS_LINEAR_SCRATCH(cols)                                                \
    ((16 + TAMIS_LINEAR_TOKENS(cols)) * (((size_t)(cols) + 127) / 128 * 128) +    \
     80 * TAMIS_LINEAR_TOKENS(cols) + 512)
#define TAMIS_LINEAR_T_SCRATCH ((size_t)64 * 64)
#define TAMIS_INDEX_SCRATCH(head_dim, n_heads) \
    ((size_t)64 * (((size_t)(head_dim) + 127) / 128 * 128 + ((size_t)(n_heads) + 15) / 16 * 16 + 16))
/* Bytes of a query that index_query_f4 or _i8 has prepared. */
#define TAMIS_INDEX_QUERY_BYTES(head_dim, n_heads)        \
    (64 + ((size_t)(n_heads) + 15) / 16 * 16 *            \
              (8 + 16 * (((size_t)(head_dim) + 3) / 4 * 4)))
#define TAMIS_ATTN_SCRATCH(n_heads, head_dim)                                             \
    ((size_t)TAMIS_ATTN_CHUNK * (((size_t)(head_dim) + 15) / 16 * 16 + 16) +              \
     (size_t)(TAMIS_ATTN_CHUNK + 2) * (((size_t)(n_heads) + 15) / 16 * 16 + 16))

/* What attn_chunk does with the m, l and o that are there. */
typedef enum tamis_attn_fold {
    TAMIS_ATTN_ALONE = 0, /* overwritten */
    TAMIS_ATTN_RUNNING,
    TAMIS_ATTN_MERGED
} tamis_attn_fold;

/*
 * Prototypes, written once: TAMIS_KERNEL(name) expands to the pointer type in the table and to
 * the declaration of every implementation, so that they cannot drift.
 */

/*
 * linear: y[t][r - row_begin] = sum over c of w[r][c] * x[t][c]   for t < n_tokens and
 *   row_begin <= r < row_end.
 *   order   quads16 over c with acc = fma(w, x, acc); w = decode * scale in one f32 product (no
 *           product where there is no scale).
 *   blocks  F4_E2M1 with block_cols a multiple of 32, or one scale a row, or none
 *           (tamis_f4_in_blocks): columns in blocks of 32, those behind the last one count as
 *           x = 0. Of a token's block, with u and q of tamis_fixed_unit and tamis_fixed_round:
 *             T[h] = sum over its columns c with c / 8 % 2 == h of 2 value(w[c]) q[c], an int32
 *             acc[j] = fma((float)T[h] * u, scale, acc[j]), j = 4 (b % 2) + 2 (b / 2 % 2) + h,
 *           blocks b ascending from acc = +0; those behind the last one, up to a multiple of four,
 *           have T = 0, u = 1 and scale = 1 (no scale: 1 everywhere). Then acc[j] += acc[j + 4]
 *           (j < 4), += acc[j + 2] (j < 2), acc[0] + acc[1].
 *   shapes  x [n_tokens][cols], rows x_stride floats apart; y [n_tokens][row_end - row_begin],
 *           rows y_stride floats apart; w any tamis_matrix dtype, I8 and I4 included
 *   scratch TAMIS_LINEAR_SCRATCH(cols) floats, 64-byte aligned, private to the thread
 *   same_inputs: the last call with this scratch, which nobody else has touched since, had the same
 *           x, values too, x_stride, n_tokens and a w of the same dtype, cols, block_cols and scales
 *           or none: a level may use again what it made of the inputs
 *   class   ordered. A NaN weight or scale gives NaN; in blocks also an infinity or NaN among the
 *           32 inputs of a block does, whatever the weights.
 */
#define TAMIS_KERNEL_linear(F)                                                                 \
    void F(float *y, int64_t y_stride, const float *x, int64_t x_stride, int64_t n_tokens,     \
           const tamis_matrix *w, int64_t row_begin, int64_t row_end, float *scratch,          \
           bool same_inputs)
/*
 * linear_t: y[t][c] = sum over r of w[r][c] * x[t][r - row_begin]   for t < n_tokens, all columns c,
 *   row_begin <= r < row_end: the transposed product of some rows of w (MLA's absorbed query).
 *   order   chain over r of fma(w, x, acc) from +0; w as above
 *   shapes  x [n_tokens][row_end - row_begin], rows x_stride floats apart; y [n_tokens][cols], rows
 *           y_stride floats apart
 *   scratch TAMIS_LINEAR_T_SCRATCH floats, 64-byte aligned, private to the thread
 *   class   ordered
 */
#define TAMIS_KERNEL_linear_t(F)                                                               \
    void F(float *y, int64_t y_stride, const float *x, int64_t x_stride, int64_t n_tokens,     \
           const tamis_matrix *w, int64_t row_begin, int64_t row_end, float *scratch)
/*
 * expand_row: dst[c] = value of element (row, c) of w for c < cols, as above. class exact.
 */
#define TAMIS_KERNEL_expand_row(F) void F(float *dst, const tamis_matrix *w, int64_t row)
/*
 * widen / narrow: n values of a storage type to f32 and back. dtype F32 (copy), BF16, F16
 * (widen only: F8_E4M3, F8_E8M0). Narrowing rounds to nearest even, overflows to infinity, keeps
 * NaN a (quiet) NaN and keeps subnormals. class exact.
 */
#define TAMIS_KERNEL_widen(F) void F(float *dst, const void *src, tamis_dtype dtype, int64_t n)
#define TAMIS_KERNEL_narrow(F) void F(void *dst, const float *src, tamis_dtype dtype, int64_t n)
/*
 * rmsnorm: y[i] = (x[i] * s) * weight[i] (or x[i] * s if weight == NULL),
 *   s = 1 / sqrt(ss / n + eps) + (ss - ss), ss = lanes16 of fma(x, x, acc), n as f32. y may be x.
 *   ss - ss is +0, or NaN where the sum is not finite: a row too large never becomes zeros. ordered.
 */
#define TAMIS_KERNEL_rmsnorm(F) void F(float *y, const float *x, const float *weight, int64_t n, float eps)
/*
 * layernorm: y[i] = fma(d[i] * s, weight[i], bias[i]), d[i] = x[i] - mean, mean = sum / n with
 *   sum = lanes16 of acc + x, s = 1 / sqrt(ss / n + eps) + (ss - ss), ss = lanes16 of
 *   fma(d, d, acc), n as f32.
 *   Lanes beyond n get acc + +0 and fma(+0, +0, acc). y may be x. ordered.
 */
#define TAMIS_KERNEL_layernorm(F) \
    void F(float *y, const float *x, const float *weight, const float *bias, int64_t n, float eps)
/*
 * rope: rotate n_pairs interleaved pairs in place, x[2i], x[2i+1] by (cos[i], sin[i]):
 *   y0 = fma(x0, cos, -(x1 * sin)), y1 = fma(x0, sin, x1 * cos); inverse uses -sin. ordered.
 */
#define TAMIS_KERNEL_rope(F) \
    void F(float *x, const float *cos, const float *sin, int64_t n_pairs, bool inverse)
/*
 * rope_halves: the same rotation of the pairs x[i], x[i + n_pairs] (half-split, "NeoX"). ordered.
 */
#define TAMIS_KERNEL_rope_halves(F) \
    void F(float *x, const float *cos, const float *sin, int64_t n_pairs, bool inverse)
/*
 * pool: the compressor's softmax over slots, per channel.
 *   m = max over s of score[s][c] (ascending, m = score > m ? score : m, starting with slot 0; a
 *   NaN score makes the channel NaN), e_s = exp(score[s][c] - m), l = chain of l + e_s,
 *   o = chain of fma(e_s, value[s][c], o), out[c] = o / l.
 *   shapes  value, score: n_slots (1..256) pointers to n_channels floats. ordered.
 */
#define TAMIS_KERNEL_pool(F)                                                               \
    void F(float *out, const float *const *value, const float *const *score, int n_slots, \
           int64_t n_channels)
/*
 * pack_heads: q [n_heads][head_dim] f32 -> panels [ceil(n_heads/16)][head_dim][16], missing heads
 *   zero. n_heads == padding rules of index_score and attn_chunk. class exact.
 */
#define TAMIS_KERNEL_pack_heads(F) void F(float *panels, const float *q, int64_t n_heads, int64_t head_dim)
/*
 * index_score: score[j] = (sum over heads h of weight[h] * relu(q[h] . key[j])) * scale[j], j < n_keys.
 *   order   dot: chain over d of fma(q[h][d], key[j][d], acc); relu(v) = v > 0 or NaN ? v : +0;
 *           sum: lanes16 over h of fma(weight[h], relu, acc); lanes without a head: relu = +0; times
 *           the key's scale only if the format has one
 *   shapes  q panels as pack_heads makes them; weights [ceil(n_heads/16)*16], zeros after n_heads;
 *           keys: n_keys (1..64) rows of head_dim values, key_stride bytes apart, of a format with
 *           dtype F32 or BF16, or F8_E4M3 (codes, unscaled) with one F32 scale a row;
 *           next: where the keys of the next call lie, or NULL; a level may bring as many as these
 *           towards the caches, and reads nothing of them
 *   scratch TAMIS_INDEX_SCRATCH floats, 64-byte aligned. class ordered.
 */
#define TAMIS_KERNEL_index_score(F)                                                        \
    void F(float *scores, const float *q_panels, const float *weights, int64_t n_heads,    \
           int64_t head_dim, const void *keys, const tamis_row_format *format,             \
           int64_t key_stride, int64_t n_keys, const void *next, float *scratch)
/*
 * index_query_f4, index_query_i8: what the two kernels below read of one token's index query. The
 *   contents are a level's own; the arrays given stay where they are as long as the query is used.
 *   shapes  query TAMIS_INDEX_QUERY_BYTES, 64-byte aligned;
 *           f4: q [ceil(n_heads/16)*16][head_dim] doubled codes (2 * e2m1, -12..12), q_scale
 *           [same][num groups]; i8: q [same][head_dim] int8 (a query with a -128, which quantize_i8
 *           does not make, may take a slow path); both zero after n_heads;
 *           weights as in index_score, values of bf16 (f4) or FP16 (i8)
 */
#define TAMIS_KERNEL_index_query_f4(F)                                                     \
    void F(void *query, const int8_t *q, const float *q_scale, const float *weights,       \
           int64_t n_heads, int64_t head_dim, int64_t group_size)
#define TAMIS_KERNEL_index_query_i8(F)                                                     \
    void F(void *query, const int8_t *q, const float *weights, int64_t n_heads, int64_t head_dim)
/*
 * index_score_f4: the official profile's scores of FP4 queries and keys, every step a BF16 value.
 *   dot     per group g of group_size channels the integer sum of q[h][d] * key[j][d], both codes
 *           doubled (2 * e2m1 is an integer up to 12), as f32 times (q_scale[h][g] * key_scale[j][g])
 *           times 0.25; groups added up as a chain; rounded to bf16
 *   score   bf16(weight[h] * relu(dot)), summed over heads as lanes16 of acc + x, rounded to bf16
 *   shapes  query as the same level's index_query_f4 made it; keys n_keys (1..64) rows of that
 *           format, key_stride bytes apart (F4_E2M1, F8_E8M0 scales); next as in index_score
 *   scratch TAMIS_INDEX_SCRATCH floats. class ordered (the integer sums are exact).
 */
#define TAMIS_KERNEL_index_score_f4(F)                                                     \
    void F(float *scores, const void *query, int64_t n_heads, int64_t head_dim,            \
           const void *keys, const tamis_row_format *format, int64_t key_stride,           \
           int64_t n_keys, const void *next, float *scratch)
/*
 * index_score_i8: the ascend profile's C8 scores: integer dots, their FP16 step, f32 sums.
 *   score[j] = (lanes16 over h of fma(weight[h], f16(relu(dot) * 2^-10), acc)) * key_scale[j];
 *   dot = integer sum of q[h][d] * key[j][d], as f32 (exact below 2^24); no pair of bytes saturates
 *   shapes  query as the same level's index_query_i8 made it; keys n_keys (1..64) rows of that
 *           format (I8, one F16 scale a row); next as in index_score
 *   scratch TAMIS_INDEX_SCRATCH floats. class ordered.
 */
#define TAMIS_KERNEL_index_score_i8(F)                                                     \
    void F(float *scores, const void *query, int64_t n_heads, int64_t head_dim,            \
           const void *keys, const tamis_row_format *format, int64_t key_stride,           \
           int64_t n_keys, const void *next, float *scratch)
/*
 * scan_above: writes the indices i (ascending) with score[i] > threshold, or with any non-NaN score
 *   if threshold is NaN, to out; returns their number. out has room for n. class exact.
 */
#define TAMIS_KERNEL_scan_above(F) \
    int64_t F(int32_t *out, const float *scores, int64_t n, float threshold)
/*
 * attn_chunk: un-normalised attention of all heads over at most TAMIS_ATTN_CHUNK rows that are key
 *   and value at once (MQA; a value row is the first value_dim channels of the key row).
 *   s[h][j] = chain over d of fma(q[h][d], row[j][d], acc), times scale;
 *   m[h] = max over j ascending (m = s > m ? s : m from -inf; NaN scores make everything NaN),
 *   p[h][j] = exp(s - m); l[h] = chain of l + p; o[h][d] = chain over j of fma(p, row[j][d], o).
 *   MERGED folds that into what m, l and o hold, as attn_merge does.
 *   RUNNING: m, l and o go on from what they hold (the rows before; at first -inf, 0, 0) and p is
 *   rounded to bf16 for the values: m' = the maximum from m on; a = exp(m - m');
 *   l' = fma(l, a, chain of l + p from +0); o' = chain of fma(bf16(p), row, o) from o * a.
 *   shapes  q panels as pack_heads; rows: n_rows (1..TAMIS_ATTN_CHUNK) pointers to rows of that
 *           format (read as unpack_row does), head_dim values; m, l [n_heads];
 *           o [n_heads][o_stride >= value_dim]; ahead: n_ahead (0..TAMIS_ATTN_CHUNK) pointers to
 *           rows that the next call will read, which a level may bring towards the caches
 *   scratch TAMIS_ATTN_SCRATCH floats, 64-byte aligned. class ordered.
 */
#define TAMIS_KERNEL_attn_chunk(F)                                                           \
    void F(float *m, float *l, float *o, int64_t o_stride, const float *q_panels,            \
           int64_t n_heads, int64_t head_dim, int64_t value_dim, const void *const *rows,    \
           const tamis_row_format *format, int64_t n_rows, const void *const *ahead,        \
           int64_t n_ahead, float scale, tamis_attn_fold fold, float *scratch)
/*
 * attn_merge: fold the next chunk (m_c, l_c, o_c) into the running (m, l, o), list order:
 *   m' = m_c > m ? m_c : m; a = exp(m - m'), b = exp(m_c - m'); l = fma(l, a, l_c * b);
 *   o[d] = fma(o[d], a, o_c[d] * b); m = m'. The running state starts as m = -inf, l = 0, o = 0
 *   (a = exp(-inf) = 0); a chunk without rows is never merged. ordered.
 */
#define TAMIS_KERNEL_attn_merge(F)                                                              \
    void F(float *m, float *l, float *o, int64_t o_stride, const float *m_c, const float *l_c,  \
           const float *o_c, int64_t o_c_stride, int64_t n_heads, int64_t value_dim)
/*
 * attn_finish: add the sinks and normalise in place.
 *   m' = sink > m ? sink : m; a = exp(m - m'); l' = fma(l, a, exp(sink - m'));
 *   o[d] = (o[d] * a) / l'; lse = m' + log(l') (natural; kernels/math.h) if lse != NULL.
 *   sink == NULL: m' = m, l' = l. A head with l' == 0 (no row, no sink) gives zeros and lse -inf;
 *   with m == -inf (no row) and a sink it gives zeros and lse = sink. ordered.
 */
#define TAMIS_KERNEL_attn_finish(F)                                                        \
    void F(float *o, int64_t o_stride, float *lse, const float *m, const float *l,         \
           const float *sink, int64_t n_heads, int64_t value_dim)
/*
 * swiglu: h[i] = silu(g') * u' with g' = min(g, limit), u' = clamp(u, -limit, limit), silu(g) =
 *   g * (1 / (1 + exp(-g))). limit = +inf: no clamp. NaN stays NaN. h may be g or u. ordered.
 */
#define TAMIS_KERNEL_swiglu(F) void F(float *h, const float *g, const float *u, int64_t n, float limit)
/* axpy: y[i] = fma(a, x[i], y[i]). scale: y[i] = a * x[i] (y may be x). add: y[i] += x[i]. ordered. */
#define TAMIS_KERNEL_axpy(F) void F(float *y, float a, const float *x, int64_t n)
#define TAMIS_KERNEL_scale(F) void F(float *y, float a, const float *x, int64_t n)
#define TAMIS_KERNEL_add(F) void F(float *y, const float *x, int64_t n)
/*
 * mix: out[i] = chain over s < n_streams of fma(coef[s], streams[s][i], out). streams lie `stride`
 *   floats apart; out overlaps nothing. ordered. (Hyper-connection collapse; head.)
 */
#define TAMIS_KERNEL_mix(F)                                                                   \
    void F(float *out, const float *coef, const float *streams, int64_t stride, int n_streams, \
           int64_t n)
/*
 * all_finite: true if no x[i] is NaN or infinite. class exact.
 */
#define TAMIS_KERNEL_all_finite(F) bool F(const float *x, int64_t n)


/* ---------------------------------------------------------------- roundings and low-bit numbers */

/* round_bf16: x[i] = bf16(x[i]), nearest even, as narrow and widen would. class exact. */
#define TAMIS_KERNEL_round_bf16(F) void F(float *x, int64_t n)
/*
 * round_f8: y = x through FP8 and back: per group of `group` values (the last may be short)
 *   s = TAMIS_SCALE_POW2 (tamis/rows.h); y = e4m3(clamp(x / s, -448, 448)) * s. y may be x. NaN and
 *   infinities in a group make the whole group NaN. class exact.
 */
#define TAMIS_KERNEL_round_f8(F) void F(float *y, const float *x, int64_t n, int64_t group)
/*
 * pack_row / unpack_row: one row of a format, tamis_rows_encode and _decode with one row; scales
 *   is where the scales lie (row + scale_at when they are within the row). Unused bytes at the end
 *   of the row are written as zero if the scales are within the row. class exact.
 */
#define TAMIS_KERNEL_pack_row(F) \
    void F(void *row, void *scales, const tamis_row_format *format, const float *x)
#define TAMIS_KERNEL_unpack_row(F) \
    void F(float *x, const void *row, const void *scales, const tamis_row_format *format)
/*
 * quantize_i8: scale = amax / 127, q[i] = rne(x[i] / scale) (one f32 division), within -127..127;
 *   scale 0 (a row of zeros, or of amax below 2^-143) and NaN (one with a NaN or an infinity) have
 *   codes 0. class exact.
 */
#define TAMIS_KERNEL_quantize_i8(F) void F(int8_t *q, float *scale, const float *x, int64_t n)
/*
 * quantize_i8_static: q[i] = clamp(rne(x[i] * (1 / input_scale) + input_offset), -128, 127), three
 *   f32 roundings; with through_f16 the sum is rounded to FP16 first (MLAPO). NaN gives 0. exact.
 */
#define TAMIS_KERNEL_quantize_i8_static(F)                                                 \
    void F(int8_t *q, const float *x, int64_t n, float input_scale, float input_offset,    \
           bool through_f16)
/*
 * quantize_f4: doubled e2m1 codes (integers -12..12) and scales of groups (TAMIS_SCALE_POW2; the last
 *   group may be short) of n values. NaN and infinities: the group's scale is NaN, its codes 0.
 *   class exact.
 */
#define TAMIS_KERNEL_quantize_f4(F) \
    void F(int8_t *q, float *scale, const float *x, int64_t n, int64_t group)
/*
 * linear_i8: y[t][r - row_begin] = ((float)(acc + bias[r]) * row_scale[r]) * token_scale[t],
 *   acc = integer sum over c of w[r][c] * x[t][c]; bias NULL: none; token_scale NULL: no product.
 *   shapes  x int8 [n_tokens][cols], rows x_stride bytes apart; y as in linear; w I8 or I4
 *   range   cols up to 2^16: no integer sum leaves 32 bits, the one with the bias is of 64; no
 *           saturation for any pair of bytes
 *   scratch as linear; NULL is allowed for one token
 *   class   exact (integers, then two f32 products).
 */
#define TAMIS_KERNEL_linear_i8(F)                                                              \
    void F(float *y, int64_t y_stride, const int8_t *x, int64_t x_stride,                      \
           const float *token_scale, int64_t n_tokens, const tamis_matrix *w,                  \
           const float *row_scale, const int32_t *bias, int64_t row_begin, int64_t row_end,    \
           float *scratch)
/*
 * hadamard: x = Walsh-Hadamard transform of x (natural order) times scale, in place. Stages h = 1, 2,
 *   4, ... n / 2: (x[i], x[i + h]) = (a + b, a - b), then one product with scale. n a power of two.
 *   ordered.
 */
#define TAMIS_KERNEL_hadamard(F) void F(float *x, int64_t n, float scale)
/*
 * rmsnorm_bf16: the vendor's norm of a query head, every step a bf16 value: sq = bf16(x * x),
 *   mean = bf16((lanes16 of acc + sq) / n), r = bf16(1 / sqrt(bf16(mean + eps))), y = bf16(x * r).
 *   y may be x. ordered.
 */
#define TAMIS_KERNEL_rmsnorm_bf16(F) void F(float *y, const float *x, int64_t n, float eps)

#define TAMIS_KERNEL_LIST(X) \
    X(linear)                \
    X(linear_t)              \
    X(expand_row)            \
    X(widen)                 \
    X(narrow)                \
    X(rmsnorm)               \
    X(layernorm)             \
    X(rope)                  \
    X(rope_halves)           \
    X(pool)                  \
    X(pack_heads)            \
    X(index_score)           \
    X(index_query_f4)        \
    X(index_query_i8)        \
    X(index_score_f4)        \
    X(index_score_i8)        \
    X(scan_above)            \
    X(attn_chunk)            \
    X(attn_merge)            \
    X(attn_finish)           \
    X(swiglu)                \
    X(axpy)                  \
    X(scale)                 \
    X(add)                   \
    X(mix)                   \
    X(all_finite)            \
    X(round_bf16)            \
    X(round_f8)              \
    X(pack_row)              \
    X(unpack_row)            \
    X(quantize_i8)           \
    X(quantize_i8_static)    \
    X(quantize_f4)           \
    X(linear_i8)             \
    X(hadamard)              \
    X(rmsnorm_bf16)

typedef struct tamis_kernels {
#define TAMIS_KERNEL_FIELD(name) TAMIS_KERNEL_##name((*name));
    TAMIS_KERNEL_LIST(TAMIS_KERNEL_FIELD)
#undef TAMIS_KERNEL_FIELD
    const char *level_of_name; /* name of the highest level in the table, for the start message */
} tamis_kernels;

/* Table of one level (<= what the machine has): portable first, overwritten by what the level has. */
const tamis_kernels *tamis_kernels_for(tamis_cpu_level level);
/* Table of tamis_cpu_level_current(). */
const tamis_kernels *tamis_kernels_current(void);

/* Implementations: tamis_<name>_c, tamis_<name>_avx2. A level's fill function overwrites entries. */
#define TAMIS_KERNEL_DECLARE_C(name) TAMIS_KERNEL_##name(tamis_##name##_c);
TAMIS_KERNEL_LIST(TAMIS_KERNEL_DECLARE_C)
#undef TAMIS_KERNEL_DECLARE_C
void tamis_kernels_fill_avx2(tamis_kernels *table);

#endif
