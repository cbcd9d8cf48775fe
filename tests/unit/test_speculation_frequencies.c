/*
 * Sampled text with drafts has the distribution of the model: over 100,000 draws from a model that
 * is tiny, so that this is cheap, the pairs of first two tokens come as often as the probabilities
 * without drafting say, computed in double from the logits of single steps (chi-square).
 */
#include "speculation_test.h"

#include "support/make_safetensors.h"
#include "support/temp_dir.h"

#include <math.h>

enum { VOCAB = 8, HIDDEN = 16, N_RUNS = 50000 };

/* ---------------------------------------------------------------- a tiny DeepSeek-V3.2 */

static const char config[] =
    "{\"model_type\": \"deepseek_v32\", \"vocab_size\": 8, \"hidden_size\": 16,"
    " \"num_hidden_layers\": 1, \"num_nextn_predict_layers\": 0, \"max_position_embeddings\": 64,"
    " \"rms_norm_eps\": 1e-6, \"num_attention_heads\": 2, \"q_lora_rank\": 8, \"kv_lora_rank\": 8,"
    " \"qk_nope_head_dim\": 4, \"qk_rope_head_dim\": 4, \"v_head_dim\": 4, \"index_n_heads\": 1,"
    " \"index_head_dim\": 8, \"index_topk\": 4, \"rope_theta\": 10000.0, "
    "\"first_k_dense_replace\": 1,"
    " \"intermediate_size\": 16, \"moe_intermediate_size\": 8, \"n_routed_experts\": 2,"
    " \"num_experts_per_tok\": 1, \"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1,"
    " \"scoring_func\": \"sigmoid\", \"norm_topk_prob\": true, \"routed_scaling_factor\": 1.0,"
    " \"hidden_act\": \"silu\"}";

static void add(test_safetensors *file, test_rng *rng, const char *name, int64_t rows, int64_t cols)
{
    const int64_t shape[] = {rows, cols};
    const size_t n = (size_t)(rows * (cols == 0 ? 1 : cols));
    float *data = malloc(n * sizeof *data);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) /* norms around 1 */
        data[i] = (cols == 0 ? 1.0f : 0.0f) + test_rng_float(rng, -0.5f, 0.5f);
    test_safetensors_add(file, name, "F32", cols == 0 ? 1 : 2, shape, data, n * sizeof *data);
    free(data);
}

static char *make_folder(test_rng *rng)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } tensors[] = {
        {"model.embed_tokens.weight", VOCAB, HIDDEN},
        {"lm_head.weight", VOCAB, HIDDEN},
        {"model.norm.weight", HIDDEN, 0},
        {"model.layers.0.input_layernorm.weight", HIDDEN, 0},
        {"model.layers.0.post_attention_layernorm.weight", HIDDEN, 0},
        {"model.layers.0.self_attn.q_a_proj.weight", 8, HIDDEN},
        {"model.layers.0.self_attn.q_a_layernorm.weight", 8, 0},
        {"model.layers.0.self_attn.q_b_proj.weight", 16, 8},
        {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 12, HIDDEN},
        {"model.layers.0.self_attn.kv_a_layernorm.weight", 8, 0},
        {"model.layers.0.self_attn.kv_b_proj.weight", 16, 8},
        {"model.layers.0.self_attn.o_proj.weight", HIDDEN, 8},
        {"model.layers.0.self_attn.indexer.wq_b.weight", 8, 8},
        {"model.layers.0.self_attn.indexer.wk.weight", 8, HIDDEN},
        {"model.layers.0.self_attn.indexer.k_norm.weight", 8, 0},
        {"model.layers.0.self_attn.indexer.k_norm.bias", 8, 0},
        {"model.layers.0.self_attn.indexer.weights_proj.weight", 1, HIDDEN},
        {"model.layers.0.mlp.gate_proj.weight", 16, HIDDEN},
        {"model.layers.0.mlp.up_proj.weight", 16, HIDDEN},
        {"model.layers.0.mlp.down_proj.weight", HIDDEN, 16},
    };
    char *dir = test_temp_dir_make();
    test_safetensors *file = test_safetensors_new();
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        add(file, rng, tensors[i].name, tensors[i].rows, tensors[i].cols);
    test_safetensors_write(file, dir, "model.safetensors");
    test_safetensors_free(file);
    test_file_write_text(dir, "config.json", config);
    return dir;
}

/* ---------------------------------------------------------------- expectation and counts */

static void softmax(const float *logits, double *p)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < VOCAB; i++)
        max = fmax(max, (double)logits[i]);
    for (int i = 0; i < VOCAB; i++)
        sum += p[i] = exp((double)logits[i] - max);
    for (int i = 0; i < VOCAB; i++)
        p[i] /= sum;
}

/* p [VOCAB][VOCAB]: of the two tokens behind the prompt, by single steps without drafts. */
static void expect_pairs(test_engine *engine, int32_t prompt, double *p)
{
    double first[VOCAB];
    float row[VOCAB];
    for (int32_t a = 0; a < VOCAB; a++) {
        const int32_t seq = test_seq_new(engine);
        test_feed(engine, seq, &prompt, 1, 1, row);
        softmax(row, first);
        test_feed(engine, seq, &a, 1, 1, row);
        softmax(row, p + (ptrdiff_t)a * VOCAB);
        for (int i = 0; i < VOCAB; i++)
            p[a * VOCAB + i] *= first[a];
        test_seq_drop(engine, seq);
    }
}

static int32_t draft_any(void *user, const int32_t *tokens, int32_t n_tokens, int32_t *draft,
                         int32_t max_draft)
{
    (void)tokens;
    (void)n_tokens;
    for (int32_t i = 0; i < max_draft; i++)
        draft[i] = (int32_t)test_rng_int(user, 0, VOCAB - 1);
    return max_draft;
}

/* counts [VOCAB][VOCAB]; one sampler for all runs. */
static tamis_spec_stats count_pairs(test_engine *engine, int32_t prompt, uint64_t seed, int n_runs,
                                    test_rng *rng, int32_t *counts)
{
    const tamis_sampler_params sampling = spec_sampling(1, seed);
    tamis_sampler *sampler = spec_sampler(engine->info, &sampling);
    tamis_spec_params p = spec_params(TAMIS_DRAFTER_CUSTOM, 2, NULL);
    tamis_spec_stats sum = {0};
    p.fn = draft_any;
    p.user = rng;
    for (int run = 0; run < n_runs; run++) {
        tamis_spec *spec = NULL;
        int32_t tokens[6], n = 0, more;
        const int32_t seq = test_seq_new(engine);
        tamis_error err;
        test_must(tamis_spec_open(&spec, engine->session, seq, &p, &err), &err, "open");
        test_must(tamis_spec_prompt(spec, &prompt, 1, &err), &err, "prompt");
        for (; n < 2; n += more)
            test_must(tamis_spec_next(spec, sampler, VOCAB, tokens + n, &more, &err), &err, "next");
        counts[tokens[0] * VOCAB + tokens[1]]++;
        sum.n_accepted += tamis_spec_get_stats(spec).n_accepted;
        sum.n_drafted += tamis_spec_get_stats(spec).n_drafted;
        tamis_spec_close(&spec);
        test_seq_drop(engine, seq);
    }
    tamis_sampler_close(&sampler);
    return sum;
}

static void test_frequencies(void **state)
{
    (void)state;
    test_rng rng = test_rng_start("frequencies", 20261);
    char *dir = make_folder(&rng);
    const int n_runs = TEST_IS_SANITIZED ? 2000 : N_RUNS, n_cells = VOCAB * VOCAB;
    const tamis_session_params params = spec_session(TAMIS_DTYPE_F32, 16, 2, false);
    test_engine engine = test_engine_open(dir, &params);
    double p[VOCAB * VOCAB], chi2 = 0, least = 1;
    int32_t counts[VOCAB * VOCAB] = {0};
    expect_pairs(&engine, 3, p);
    const uint64_t seed = test_rng_u64(&rng);
    const tamis_spec_stats stats = count_pairs(&engine, 3, seed, n_runs, &rng, counts);
    for (int i = 0; i < n_cells; i++) {
        const double expected = p[i] * n_runs, diff = counts[i] - expected;
        chi2 += diff * diff / expected;
        least = fmin(least, p[i]);
    }
    /* Wilson and Hilferty: exceeded once in 10,000 times */
    const double dof = n_cells - 1, t = 1 - 2 / (9 * dof) + 3.719 * sqrt(2 / (9 * dof));
    printf("%d draws, %llu of %llu guesses right, seed %llu: chi-square %.1f of %.0f degrees, "
           "allowed %.1f\n",
           2 * n_runs, (unsigned long long)stats.n_accepted, (unsigned long long)stats.n_drafted,
           (unsigned long long)seed, chi2, dof, dof * t * t * t);
    assert_true(least * n_runs > 5 || TEST_IS_SANITIZED);
    assert_true(stats.n_accepted > 0 && stats.n_accepted < stats.n_drafted);
    assert_true(chi2 < dof * t * t * t);
    test_engine_close(&engine);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequencies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
