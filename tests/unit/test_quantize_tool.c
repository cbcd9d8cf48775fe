/* tools/quantize: what it writes is what the source holds, up to the rounding of its scheme. */
#include "quantize_test.h"

#include <jansson.h>

#include "engine/session_internal.h"
#include "support/engine_run.h"
#include "support/sanitized.h"
#include "weights/quant_names.h"

static const char *const golden[] = {"tests/golden/v4-flash-bf16", "tests/golden/v4-pro-fp8",
                                     "tests/golden/v32-fp8", "tests/golden/glm5-bf16",
                                     "tests/golden/glm52-fp8"};
#define N_GOLDEN ((int)(sizeof golden / sizeof *golden))

/* ---------------------------------------------------------------- one tensor */

/* A weight of the source that has the written one's name. */
static tamis_matrix source_matrix(tamis_checkpoint *source, const tamis_tensor *tensor)
{
    tamis_matrix m;
    tamis_tensor *scale;
    tamis_error err;
    const bool is_fp4 = tensor->dtype == TAMIS_DTYPE_I8;
    if (tamis_tensor_to_matrix(&m, source, tensor, &scale, tensor->shape[0],
                               is_fp4 ? 2 * tensor->shape[1] : tensor->shape[1], is_fp4,
                               &err) != TAMIS_STATUS_OK)
        fail_msg("%s", err.text);
    return m;
}

static const tamis_tensor *companion_of(tamis_checkpoint *out, const char *weight,
                                        tamis_companion companion)
{
    char name[TAMIS_NAME_BYTES];
    assert_true(tamis_companion_spell(name, weight, companion));
    const tamis_tensor *tensor = tamis_checkpoint_find(out, name);
    if (tensor == NULL)
        fail_msg("%s is not there", name);
    return tensor;
}

static float f32_at(const tamis_tensor *tensor, int64_t i)
{
    return tamis_load_f32(tensor->data + 4 * i);
}

static int32_t i32_at(const tamis_tensor *tensor, int64_t i)
{
    int32_t value;
    memcpy(&value, tensor->data + 4 * i, 4);
    return value;
}

static int code_of(const tamis_tensor *tensor, bool is_int4, int64_t r, int64_t c, int64_t cols)
{
    if (!is_int4)
        return (int8_t)tensor->data[r * cols + c];
    const int nibble = tensor->data[r / 2 * cols + c] >> (r % 2 * 4) & 15;
    return nibble < 8 ? nibble : nibble - 16;
}

/* Codes reach the edge of their range and are the nearest ones, but for the f32 division that chose
 * among them. Returns their sum. */
static int64_t check_row(const tamis_tensor *tensor, bool is_int4, const float *x, float scale,
                         int64_t r, int64_t cols)
{
    const int top = is_int4 ? 7 : 127;
    int largest = 0;
    int64_t sum = 0;
    for (int64_t c = 0; c < cols; c++) {
        const int code = code_of(tensor, is_int4, r, c, cols);
        const double error = fabs((double)code * (double)scale - (double)x[c]);
        if (error > (double)scale * 0.50002)
            fail_msg("%s: row %lld, column %lld: code %d x %g, source %g", tensor->name,
                     (long long)r, (long long)c, code, (double)scale, (double)x[c]);
        largest = abs(code) > largest ? abs(code) : largest;
        sum += code;
    }
    if (largest != top)
        fail_msg("%s: row %lld: largest code %d", tensor->name, (long long)r, largest);
    return sum;
}

static void check_scale_bias(tamis_checkpoint *out, const tamis_tensor *tensor, int64_t rows,
                             int64_t cols, float scale, int64_t r, int64_t sum)
{
    const tamis_tensor *bias = companion_of(out, tensor->name, TAMIS_COMPANION_SCALE_BIAS);
    const int64_t n = bias->shape[1];
    double total = 0;
    assert_int_equal(bias->shape[0], rows);
    assert_true(cols % n == 0);
    for (int64_t i = 0; i < n; i++)
        total += (double)f32_at(bias, r * n + i);
    assert_true(fabs(total - 8.0 * (double)sum * (double)scale) <=
                1e-5 * 8.0 * 127 * (double)cols * (double)scale);
}

static void check_weight(tamis_checkpoint *source, tamis_checkpoint *out,
                         const tamis_tensor *tensor, tamis_quant_scheme scheme)
{
    const bool is_int4 = scheme == TAMIS_SCHEME_W4A8_DYNAMIC;
    const bool is_fixed = scheme == TAMIS_SCHEME_W8A8 || scheme == TAMIS_SCHEME_W8A8_MIX;
    const tamis_matrix m = source_matrix(source, tamis_checkpoint_find(source, tensor->name));
    const tamis_tensor *scales = companion_of(out, tensor->name, TAMIS_COMPANION_WEIGHT_SCALE);
    assert_int_equal(tensor->dtype, TAMIS_DTYPE_I8);
    assert_int_equal(tensor->shape[0], is_int4 ? m.rows / 2 : m.rows);
    assert_int_equal(tensor->shape[1], m.cols);
    for (int64_t r = 0; r < m.rows; r++) {
        float *x = quantize_row_of(&m, r);
        const float scale = f32_at(scales, r);
        const int64_t sum = check_row(tensor, is_int4, x, scale, r, m.cols);
        if (is_int4)
            check_scale_bias(out, tensor, m.rows, m.cols, scale, r, sum);
        free(x);
        if (!is_fixed)
            continue;
        const tamis_tensor *bias = companion_of(out, tensor->name, TAMIS_COMPANION_QUANT_BIAS);
        const tamis_tensor *deq = companion_of(out, tensor->name, TAMIS_COMPANION_DEQ_SCALE);
        const tamis_tensor *in = companion_of(out, tensor->name, TAMIS_COMPANION_INPUT_SCALE);
        const tamis_tensor *at = companion_of(out, tensor->name, TAMIS_COMPANION_INPUT_OFFSET);
        assert_true(f32_at(deq, r) == f32_at(in, 0) * scale);
        assert_int_equal(i32_at(bias, r), -(int8_t)at->data[0] * sum);
    }
}

/* Floats stay what they are, byte for byte; FP8 and FP4 become BF16. */
static void check_float(tamis_checkpoint *source, const tamis_tensor *tensor)
{
    const tamis_tensor *from = tamis_checkpoint_find(source, tensor->name);
    assert_non_null(from);
    if (from->dtype != TAMIS_DTYPE_F8_E4M3 && from->dtype != TAMIS_DTYPE_I8) {
        assert_int_equal(tensor->dtype, from->dtype);
        assert_int_equal(tensor->bytes, from->bytes);
        assert_memory_equal(tensor->data, from->data, from->bytes);
        return;
    }
    const tamis_matrix m = source_matrix(source, from);
    assert_int_equal(tensor->dtype, TAMIS_DTYPE_BF16);
    for (int64_t r = 0; r < m.rows; r++) {
        float *x = quantize_row_of(&m, r);
        for (int64_t c = 0; c < m.cols; c++)
            assert_int_equal(tamis_load_u16(tensor->data + 2 * (r * m.cols + c)),
                             tamis_f32_to_bf16(x[c]));
        free(x);
    }
}

/* Every tensor of the output against the source; how many there are of each scheme. */
static void check_folder(const char *source_dir, const char *dir,
                         int64_t n_weights[TAMIS_NUM_SCHEMES])
{
    tamis_checkpoint *source, *out;
    tamis_error err;
    assert_int_equal(tamis_checkpoint_open(&source, source_dir, &err), 0);
    assert_int_equal(tamis_checkpoint_open(&out, dir, &err), 0);
    memset(n_weights, 0, TAMIS_NUM_SCHEMES * sizeof *n_weights);
    for (int32_t i = 0; i < tamis_checkpoint_num_tensors(out); i++) {
        const tamis_tensor *tensor = tamis_checkpoint_tensor(out, i);
        const tamis_quant_description *d = tamis_checkpoint_description(out);
        tamis_quant_scheme scheme;
        char owner[TAMIS_NAME_BYTES];
        assert_true(tamis_quant_description_has(d, tensor->name));
        assert_int_equal(tamis_quant_description_scheme(d, tensor->name, &scheme, &err), 0);
        if (tamis_companion_owner(owner, tensor->name))
            continue;
        n_weights[scheme]++;
        if (scheme == TAMIS_SCHEME_FLOAT)
            check_float(source, tensor);
        else
            check_weight(source, out, tensor, scheme);
    }
    tamis_checkpoint_close(&source);
    tamis_checkpoint_close(&out);
}

/* ---------------------------------------------------------------- all of a folder */

static void check_profile(const char *dir, tamis_profile profile)
{
    const tamis_session_params p = test_session_params(TAMIS_DTYPE_AUTO, 64);
    int32_t ids[40];
    for (int i = 0; i < 40; i++)
        ids[i] = (i * 37 + 5) % 128;
    test_engine engine = test_engine_open_as(dir, profile, &p);
    float *logits = test_logits_of(&engine, ids, 40, 0);
    for (int64_t j = 0; j < (int64_t)40 * engine.info->vocab_size; j++)
        assert_true(isfinite(logits[j]));
    free(logits);
    test_engine_close(&engine);
}

/* The folder runs, in profile ascend where the model has the dimensions for it; whether it has. */
static bool check_runs(const char *dir)
{
    tamis_model_config config;
    tamis_error err;
    assert_int_equal(tamis_model_config_read(&config, dir, &err), 0);
    const int32_t dim = config.index_head_dim;
    check_profile(dir, TAMIS_PROFILE_EXACT);
    if ((dim & (dim - 1)) != 0)
        return false;
    check_profile(dir, TAMIS_PROFILE_ASCEND);
    return true;
}

static void test_every_family(void **state)
{
    (void)state;
    static const tamis_quant_scheme schemes[][2] = {
        {TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W4A8_DYNAMIC},
        {TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC},
        {TAMIS_SCHEME_W8A8_MIX, TAMIS_SCHEME_FLOAT},
        {TAMIS_SCHEME_FLOAT, TAMIS_SCHEME_W4A8_DYNAMIC},
    };
    const int n_schemes = TEST_IS_SANITIZED ? 1 : 4;
    const int step = TEST_IS_SANITIZED ? 2 : 1; /* one folder of each family */
    int n_ascend = 0;
    for (int i = 0; i < N_GOLDEN * n_schemes; i += step) {
        const tamis_quant_scheme attention = schemes[i % n_schemes][0];
        const tamis_quant_scheme experts = schemes[i % n_schemes][1];
        const char *source = golden[i / n_schemes];
        tamis_quantize_report report;
        int64_t n_weights[TAMIS_NUM_SCHEMES];
        char *dir = quantize_ok(quantize_params(source, attention, experts), &report);
        check_folder(source, dir, n_weights);
        for (int s = 0; s < TAMIS_NUM_SCHEMES; s++)
            assert_int_equal(report.n_weights[s], n_weights[s]);
        assert_true(n_weights[attention] > 0 && n_weights[experts] > 0);
        assert_int_equal(report.n_tokens > 0,
                         attention == TAMIS_SCHEME_W8A8 || attention == TAMIS_SCHEME_W8A8_MIX);
        n_ascend += check_runs(dir);
        test_temp_dir_remove(dir);
    }
    assert_true(n_ascend > 0);
}

/* The MTP block, too, and the indexer: without fixed inputs, which no calibration reaches. */
static void test_mtp_block(void **state)
{
    (void)state;
    tamis_quantize_params params =
        quantize_params("tests/golden/glm52-fp8", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC);
    params.others = TAMIS_SCHEME_W8A8;
    char *dir = quantize_ok(params, NULL);
    test_bound b = test_bind_ok(dir, NULL);
    assert_int_equal(b.weights->n_mtp, 1);
    const tamis_layer_weights *first = &b.weights->layers[0], *mtp = &b.weights->layers[6];
    assert_non_null(first->sfa.weights.q_a_proj.input);
    assert_non_null(first->moe.shared.w2.input);
    assert_null(first->sfa.weights.index_wq_b.input);
    assert_int_equal(first->sfa.weights.index_wq_b.dtype, TAMIS_DTYPE_I8);
    assert_int_equal(mtp->sfa.weights.q_a_proj.dtype, TAMIS_DTYPE_I8);
    assert_null(mtp->sfa.weights.q_a_proj.input);
    assert_int_equal(b.weights->mtp.eh_proj.dtype, TAMIS_DTYPE_I8);
    test_unbind(&b);
    test_temp_dir_remove(dir);
}

static void test_shards(void **state)
{
    (void)state;
    tamis_quantize_params params =
        quantize_params(golden[0], TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W4A8_DYNAMIC);
    tamis_quantize_report report;
    char *whole = quantize_ok(params, NULL);
    params.shard_bytes = 100000;
    char *parts = quantize_ok(params, &report);
    assert_true(report.n_files > 5);
    assert_int_equal(quantize_num_files(parts),
                     report.n_files + 3); /* index, description, config */
    assert_true(test_digest_of(whole, NULL) == test_digest_of(parts, NULL));
    test_temp_dir_remove(whole);
    test_temp_dir_remove(parts);
}

/* ---------------------------------------------------------------- calibration */

/* Range of the input of layer 1's attention, as q_a and kv_a read it. */
typedef struct input_range {
    float min, max;
} input_range;

static void watch_input(void *user, int32_t layer, tamis_tap_stage stage, const void *data,
                        int64_t n_tokens, int64_t width)
{
    input_range *range = user;
    if (layer != 1 || stage != TAMIS_TAP_ATTN_IN)
        return;
    for (int64_t i = 0; i < n_tokens * width; i++) {
        range->min = fminf(range->min, ((const float *)data)[i]);
        range->max = fmaxf(range->max, ((const float *)data)[i]);
    }
}

/* The written input scale lays what a tap saw over -128..127. */
static void test_calibration(void **state)
{
    (void)state;
    static const int32_t ids[] = {3, 150, 17, 99, 4, 4, 101, 33};
    const char *source = "tests/golden/v32-fp8";
    char *folder = test_temp_dir_make();
    test_file_write_text(folder, "few.ids", "3 150\n17\t99 4 4\n101 33\n");
    char *path = test_path(folder, "few.ids");
    tamis_quantize_params params =
        quantize_params(source, TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC);
    tamis_quantize_report report;
    params.calibrate = path;
    char *dir = quantize_ok(params, &report);
    assert_int_equal(report.n_tokens, 8);
    const tamis_session_params p = test_session_params(TAMIS_DTYPE_BF16, 64);
    test_engine engine = test_engine_open(source, &p);
    input_range range = {0, 0};
    tamis_session_set_tap(engine.session, watch_input, &range);
    free(test_logits_of(&engine, ids, 8, 0));
    test_engine_close(&engine);
    test_bound b = test_bind_ok(dir, NULL);
    const tamis_sfa_weights *w = &b.weights->layers[1].sfa.weights;
    const tamis_static_quant *q = w->q_a_proj.input, *kv = w->kv_a_proj.input;
    assert_true(range.max > range.min);
    assert_true(q->input_scale == (range.max - range.min) / 255.0f);
    assert_true(q->input_offset == rintf(-128.0f - range.min / q->input_scale));
    assert_true(kv->input_scale == q->input_scale && kv->input_offset == q->input_offset);
    assert_true(w->q_b_proj.input->input_scale != q->input_scale);
    test_unbind(&b);
    test_temp_dir_remove(dir);
    test_temp_dir_remove(folder);
    free(path);
}

/* A text goes through the folder's tokenizer; the demo model's twin keeps its predictions. */
static void test_text(void **state)
{
    (void)state;
    char *folder = test_temp_dir_make();
    test_file_write_text(folder, "text.txt", "And the king said unto them, What is this?");
    char *path = test_path(folder, "text.txt");
    tamis_quantize_params params =
        quantize_params("models/demo", TAMIS_SCHEME_W8A8, TAMIS_SCHEME_W8A8_DYNAMIC);
    tamis_quantize_report report;
    params.calibrate = path;
    char *dir = quantize_ok(params, &report);
    assert_true(report.n_tokens > 8 && report.n_tokens < 42);
    char *tokenizer = test_file_read(dir, "tokenizer.json", NULL);
    char *source = test_file_read("models/demo", "tokenizer.json", NULL);
    assert_string_equal(tokenizer, source);
    free(tokenizer);
    free(source);
    test_temp_dir_remove(dir);
    test_temp_dir_remove(folder);
    free(path);
}

/* ---------------------------------------------------------------- files around the tensors */

static json_t *read_json(const char *dir, const char *name)
{
    char *text = test_file_read(dir, name, NULL);
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    free(text);
    return json;
}

static void test_config(void **state)
{
    (void)state;
    char *dir = quantize_ok(
        quantize_params("models/demo", TAMIS_SCHEME_W8A8_DYNAMIC, TAMIS_SCHEME_W8A8_DYNAMIC), NULL);
    json_t *before = read_json("models/demo", "config.json");
    json_t *after = read_json(dir, "config.json");
    json_t *description = read_json(dir, "quant_model_description.json");
    assert_non_null(json_object_get(before, "quantization_config"));
    assert_null(json_object_get(after, "quantization_config"));
    assert_null(json_object_get(after, "expert_dtype"));
    json_object_del(before, "quantization_config");
    json_object_del(before, "expert_dtype");
    assert_true(json_equal(before, after));
    assert_string_equal(json_string_value(json_object_get(description, "model_quant_type")),
                        "W8A8_DYNAMIC");
    assert_string_equal(json_string_value(json_object_get(description, "norm.weight")), "FLOAT");
    json_decref(before);
    json_decref(after);
    json_decref(description);
    char *generation = test_file_read(dir, "generation_config.json", NULL);
    free(generation);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family), cmocka_unit_test(test_mtp_block),
        cmocka_unit_test(test_shards),       cmocka_unit_test(test_calibration),
        cmocka_unit_test(test_text),         cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
