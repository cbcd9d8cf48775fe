#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/profile_layer.h"

#include <string.h>

#include "kernels/formats.h"

const char *test_weight_form_name(test_weight_form form)
{
    static const char *const names[] = {"BF16", "FP8", "I8", "I4", "I8 static", "all static"};
    return names[form];
}

static void *keep(test_profile_layer *layer, int64_t n, size_t size)
{
    assert_true(layer->n_blocks < (int)(sizeof layer->blocks / sizeof *layer->blocks));
    return layer->blocks[layer->n_blocks++] = test_take(n, size);
}

void test_profile_layer_free(test_profile_layer *layer)
{
    while (layer->n_blocks > 0)
        free(layer->blocks[--layer->n_blocks]);
}

/* ---------------------------------------------------------------- matrices */

static tamis_matrix bf16_matrix(test_profile_layer *layer, int64_t rows, int64_t cols,
                                test_rng *rng)
{
    uint16_t *data = keep(layer, rows * cols, sizeof *data);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = tamis_f32_to_bf16(test_rng_normal(rng) / sqrtf((float)cols));
    return (tamis_matrix){.dtype = TAMIS_DTYPE_BF16,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols * (int64_t)sizeof *data};
}

/* Scales near the power of two that keeps activations near 1. */
static tamis_matrix fp8_matrix(test_profile_layer *layer, int64_t rows, int64_t cols, test_rng *rng)
{
    const int64_t block_rows = (rows + 127) / 128, block_cols = (cols + 127) / 128;
    uint8_t *data = keep(layer, rows * cols, 1), *scale = keep(layer, block_rows * block_cols, 1);
    for (int64_t i = 0; i < rows * cols; i++)
        data[i] = tamis_f32_to_f8_e4m3(test_rng_normal(rng));
    const int exponent = ilogbf(1.0f / sqrtf((float)cols));
    for (int64_t i = 0; i < block_rows * block_cols; i++)
        scale[i] = (uint8_t)(127 + exponent + (int)test_rng_int(rng, 0, 1));
    return (tamis_matrix){.dtype = TAMIS_DTYPE_F8_E4M3,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols,
                          .scale = scale,
                          .scale_dtype = TAMIS_DTYPE_F8_E8M0,
                          .block_rows = 128,
                          .block_cols = 128,
                          .scale_row_bytes = block_cols};
}

/* I8, or I4 with two rows in a byte. */
static tamis_matrix integer_matrix(test_profile_layer *layer, tamis_dtype dtype, int64_t rows,
                                   int64_t cols, test_rng *rng)
{
    const int64_t n_bytes = (dtype == TAMIS_DTYPE_I4 ? (rows + 1) / 2 : rows) * cols;
    const float deviation = dtype == TAMIS_DTYPE_I4 ? 4.6f : 74.0f; /* of equally likely codes */
    uint8_t *data = keep(layer, n_bytes, 1);
    float *scale = keep(layer, rows, sizeof *scale);
    for (int64_t i = 0; i < n_bytes; i++)
        data[i] = (uint8_t)test_rng_int(rng, 0, 255);
    for (int64_t i = 0; i < rows; i++)
        scale[i] = test_rng_float(rng, 0.5f, 1.5f) / (deviation * sqrtf((float)cols));
    return (tamis_matrix){.dtype = dtype,
                          .rows = rows,
                          .cols = cols,
                          .data = data,
                          .row_bytes = cols,
                          .scale = scale,
                          .scale_dtype = TAMIS_DTYPE_F32,
                          .block_rows = 1,
                          .block_cols = (int32_t)cols,
                          .scale_row_bytes = sizeof *scale};
}

static tamis_matrix static_matrix(test_profile_layer *layer, int64_t rows, int64_t cols,
                                  test_rng *rng)
{
    tamis_matrix w = integer_matrix(layer, TAMIS_DTYPE_I8, rows, cols, rng);
    tamis_static_quant *input = keep(layer, 1, sizeof *input);
    float *deq_scale = keep(layer, rows, sizeof *deq_scale);
    int32_t *bias = keep(layer, rows, sizeof *bias);
    input->input_scale = test_rng_float(rng, 0.02f, 0.04f);
    input->input_offset = (float)test_rng_int(rng, -20, 20);
    for (int64_t r = 0; r < rows; r++) {
        deq_scale[r] = input->input_scale * ((const float *)w.scale)[r];
        for (int64_t c = 0; c < cols; c++) /* takes the offset's share out again */
            bias[r] -= (int32_t)input->input_offset * ((const int8_t *)w.data)[r * cols + c];
    }
    input->deq_scale = deq_scale;
    input->quant_bias = bias;
    w.input = input;
    return w;
}

/* ---------------------------------------------------------------- layers */

static tamis_matrix projection(test_profile_layer *layer, test_weight_form form, bool is_first,
                               int64_t rows, int64_t cols, test_rng *rng)
{
    switch (form) {
    case TEST_WEIGHTS_FP8:
        return fp8_matrix(layer, rows, cols, rng);
    case TEST_WEIGHTS_I8:
        return integer_matrix(layer, TAMIS_DTYPE_I8, rows, cols, rng);
    case TEST_WEIGHTS_I4:
        return integer_matrix(layer, TAMIS_DTYPE_I4, rows, cols, rng);
    case TEST_WEIGHTS_I8_STATIC:
        return is_first ? static_matrix(layer, rows, cols, rng)
                        : integer_matrix(layer, TAMIS_DTYPE_I8, rows, cols, rng);
    case TEST_WEIGHTS_ALL_STATIC:
        return static_matrix(layer, rows, cols, rng);
    default:
        return bf16_matrix(layer, rows, cols, rng);
    }
}

/* What checkpoints keep in BF16. */
static tamis_matrix plain(test_profile_layer *layer, test_weight_form form, int64_t rows,
                          int64_t cols, test_rng *rng)
{
    return projection(layer, form == TEST_WEIGHTS_ALL_STATIC ? form : TEST_WEIGHTS_BF16, false,
                      rows, cols, rng);
}

static const float *vector(test_profile_layer *layer, int64_t n, float mean, float deviation,
                           test_rng *rng)
{
    float *values = keep(layer, n, sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = tamis_bf16_to_f32(tamis_f32_to_bf16(mean + deviation * test_rng_normal(rng)));
    return values;
}

static tamis_compressor_weights compressor(test_profile_layer *layer, test_weight_form form,
                                           int32_t d, test_rng *rng)
{
    const tamis_dsa_config *c = &layer->layer.config;
    const int32_t width = c->compress_ratio == 4 ? 2 * d : d;
    return (tamis_compressor_weights){
        .wkv = plain(layer, form, width, c->hidden_size, rng),
        .wgate = plain(layer, form, width, c->hidden_size, rng),
        .ape = vector(layer, (int64_t)c->compress_ratio * width, 0, 1, rng),
        .norm = vector(layer, d, 1, 0.2f, rng)};
}

test_profile_layer test_profile_layer_random(const tamis_dsa_config *c, test_weight_form form,
                                             test_rng *rng)
{
    test_profile_layer layer = {.layer.config = *c};
    tamis_dsa_weights *w = &layer.layer.weights;
    const int64_t q_width = (int64_t)c->num_heads * c->head_dim;
    const int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    w->wq_a = projection(&layer, form, true, c->q_lora_rank, c->hidden_size, rng);
    w->wq_b = projection(&layer, form, true, q_width, c->q_lora_rank, rng);
    w->wkv = projection(&layer, form, true, c->head_dim, c->hidden_size, rng);
    w->wo_a = projection(&layer, form, false, low, q_width / c->o_groups, rng);
    w->wo_b = projection(&layer, form, false, c->hidden_size, low, rng);
    w->q_norm = vector(&layer, c->q_lora_rank, 1, 0.2f, rng);
    w->kv_norm = vector(&layer, c->head_dim, 1, 0.2f, rng);
    w->attn_sink = vector(&layer, c->num_heads, 0, 1, rng);
    if (c->compress_ratio != 0)
        w->compressor = compressor(&layer, form, c->head_dim, rng);
    if (c->compress_ratio != 4 || c->reuse_topk)
        return layer;
    w->index_wq_b = projection(&layer, form, false, (int64_t)c->index_n_heads * c->index_head_dim,
                               c->q_lora_rank, rng);
    w->index_weights_proj = plain(&layer, form, c->index_n_heads, c->hidden_size, rng);
    w->index_compressor = compressor(&layer, form, c->index_head_dim, rng);
    return layer;
}

tamis_dsa_config test_profile_config(int32_t ratio)
{
    tamis_dsa_config config = test_odd_config(ratio);
    config.hidden_size = 150;
    config.index_head_dim = 32;
    config.sliding_window = 70;
    config.index_topk = 11;
    return config;
}

float *test_bf16_inputs(int64_t n, test_rng *rng)
{
    float *x = test_take(n, sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = tamis_bf16_to_f32(tamis_f32_to_bf16(test_rng_normal(rng)));
    return x;
}
