/* Random W8A8 matrices for layers of V3.2 and GLM, as Ascend's quantiser leaves them. */
#ifndef TAMIS_TEST_INT8_WEIGHTS_H
#define TAMIS_TEST_INT8_WEIGHTS_H

#include <math.h>
#include <string.h>

#include "support/sfa_rig.h"

static inline void *int8_keep(test_owned *owned, int64_t n, size_t size)
{
    assert_true(owned->n_blocks < (int)(sizeof owned->blocks / sizeof *owned->blocks));
    return owned->blocks[owned->n_blocks++] = test_take(n, size);
}

/* W8A8 dynamic: bytes over the whole range, a scale per row that keeps activations near 1. */
static inline tamis_matrix int8_dynamic(test_owned *owned, int64_t rows, int64_t cols,
                                        test_rng *rng)
{
    int8_t *data = int8_keep(owned, rows * cols, 1);
    float *scale = int8_keep(owned, rows, sizeof *scale);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = (int8_t)test_rng_int(rng, -127, 127);
    for (int64_t r = 0; r < rows; r++)
        scale[r] = test_rng_float(rng, 0.8f, 1.2f) / (73.0f * sqrtf((float)cols));
    return (tamis_matrix){.dtype = TAMIS_DTYPE_I8,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols,
                          .scale = scale,
                          .scale_dtype = TAMIS_DTYPE_F32,
                          .block_rows = 1,
                          .block_cols = (int32_t)cols,
                          .scale_row_bytes = sizeof(float)};
}

/* W8A8 static: the quantiser folds -offset * (sum of a row) into quant_bias. */
static inline tamis_matrix int8_static(test_owned *owned, int64_t rows, int64_t cols,
                                       float input_scale, float input_offset, test_rng *rng)
{
    tamis_matrix w = int8_dynamic(owned, rows, cols, rng);
    tamis_static_quant *input = int8_keep(owned, 1, sizeof *input);
    float *deq_scale = int8_keep(owned, rows, sizeof *deq_scale);
    int32_t *quant_bias = int8_keep(owned, rows, sizeof *quant_bias);
    for (int64_t r = 0; r < rows; r++) {
        int32_t sum = 0;
        for (int64_t c = 0; c < cols; c++)
            sum += ((const int8_t *)w.data)[r * cols + c];
        deq_scale[r] = input_scale * ((const float *)w.scale)[r];
        quant_bias[r] = -(int32_t)input_offset * sum;
    }
    *input = (tamis_static_quant){input_scale, input_offset, deq_scale, quant_bias};
    w.input = input;
    return w;
}

/* The matrices that MLAPO replaces: W8A8 static, q_a and kv_a quantise x alike. */
static inline void int8_make_static(test_sfa_layer *layer, test_rng *rng)
{
    const tamis_sfa_config *c = &layer->layer.config;
    tamis_sfa_weights *w = &layer->layer.weights;
    test_owned *owned = &layer->owned;
    w->q_a_proj = int8_static(owned, w->q_a_proj.rows, c->hidden_size, 0.03f, 3, rng);
    w->kv_a_proj = int8_static(owned, w->kv_a_proj.rows, c->hidden_size, 0.03f, 3, rng);
    w->q_b_proj = int8_static(owned, w->q_b_proj.rows, c->q_lora_rank, 0.035f, -5, rng);
}

/* n BF16 values, which profiles other than exact read: f32 values cut off. */
static inline void int8_to_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&x[i], &bits, sizeof bits);
    }
}

/* Odd dimensions whose indexer has a Hadamard rotation: 32 channels. */
static inline tamis_sfa_config int8_config(test_sfa_family family)
{
    tamis_sfa_config c = test_sfa_odd_config(family);
    c.index_head_dim = 32;
    return c;
}

static inline tamis_cache_params int8_params(tamis_profile profile, tamis_dtype kv_cache_dtype,
                                             int32_t max_len, int32_t block_tokens)
{
    tamis_cache_params params = test_sfa_params(max_len);
    params.profile = profile;
    params.kv_cache_dtype = kv_cache_dtype;
    params.block_tokens = block_tokens;
    params.num_blocks = 1 + TEST_SFA_MAX_SEQS * ((max_len + block_tokens - 1) / block_tokens);
    return params;
}

#endif
