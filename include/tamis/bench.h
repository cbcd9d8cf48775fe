/*
 * tamis/bench.h - how fast this machine is, and how near to it tamis comes: the machine's roof, single
 * attention layers, experts and heads at the models' real dimensions against their floor, kernels,
 * model folders of real dimensions with random weights. What `tamis bench` is made of.
 *
 * A *floor* is the time that nothing can go below on this machine: for every stage the larger of
 * bytes read / stream and operations / roof of the arithmetic in use, summed over the stages, which
 * run one after the other. Both roofs are measured in the same run. docs/performance.md.
 *
 * These calls take real memory and seconds of time; they are for programs that measure.
 */
#ifndef TAMIS_BENCH_H
#define TAMIS_BENCH_H

#include "tamis/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- roof */

/** What the machine gives to n threads side by side. GFLOP/s count a multiply-add as two. */
typedef struct tamis_roof {
    int32_t n_threads;
    double f32_gflops;   /* fused multiply-adds out of registers */
    double int8_gops;    /* byte products with 32-bit sums; AVX2: vpmaddubsw, vpmaddwd, vpaddd */
    double stream_gbs;   /* reading memory in order, far more than the last cache holds; 10^9 bytes */
    double gather_gbs;   /* reading rows of 1 KiB in random order */
} tamis_roof;
/** Takes about `seconds` (0.05..60) for all four. errors: INVALID, NO_MEMORY (512 MiB) */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_roof_measure(tamis_team *team, double seconds,
                                                           tamis_roof *out, tamis_error *err);

/* ---------------------------------------------------------------- shapes */

/** The published models whose dimensions can be measured. */
typedef enum tamis_shape {
    TAMIS_SHAPE_V4_FLASH = 0,
    TAMIS_SHAPE_V4_PRO,
    TAMIS_SHAPE_V32,
    TAMIS_SHAPE_GLM5,
    TAMIS_SHAPE_GLM52,
    TAMIS_NUM_SHAPES
} tamis_shape;
/** "v4-flash", "v4-pro", "v32", "glm5", "glm52"; "?" for others. */
TAMIS_API const char *tamis_shape_name(tamis_shape shape);
/** TAMIS_NUM_SHAPES if there is none of that name, or name is NULL. */
TAMIS_API tamis_shape tamis_shape_find(const char *name);

/* ---------------------------------------------------------------- one layer */

typedef enum tamis_bench_kind {
    TAMIS_BENCH_WINDOW = 0, /* V4: layer of ratio 0 */
    TAMIS_BENCH_C4,
    TAMIS_BENCH_C128,
    TAMIS_BENCH_SFA,    /* V3.2, GLM: a layer that selects for itself */
    TAMIS_BENCH_SHARED, /* GLM-5.2: a layer that uses an earlier selection */
    TAMIS_BENCH_MOE,    /* router, routed and shared experts */
    TAMIS_BENCH_HEAD,   /* last norm and head, one row of logits per token */
    TAMIS_NUM_BENCH_KINDS
} tamis_bench_kind;
/** "window", "c4", "c128", "sfa", "shared", "moe", "head"; "?" for others. */
TAMIS_API const char *tamis_bench_kind_name(tamis_bench_kind kind);
/** TAMIS_NUM_BENCH_KINDS if there is none of that name, or name is NULL. */
TAMIS_API tamis_bench_kind tamis_bench_kind_find(const char *name);

typedef struct tamis_bench_layer_params {
    size_t struct_size;
    tamis_shape shape;
    tamis_bench_kind kind;
    tamis_profile profile;      /* int8 weights belong to ascend; others have the vendor's formats */
    tamis_dtype kv_cache_dtype; /* AUTO: the profile's first */
    int32_t context;            /* tokens before those that are measured, 0..2^20 */
    int32_t num_tokens;         /* of one step, one sequence: 1..4096 */
    int32_t n_threads;
    int32_t n_experts; /* moe: routed experts that there are, 0: the shape's; all must fit memory */
    int32_t vocab_size; /* head: tokens of the vocabulary, 0: the shape's */
    bool serial;       /* independent projections in a pass each instead of side by side */
    double seconds;    /* steps are repeated for about so long; the best of each stage counts; 0..3600,
                          at least three steps */
    uint64_t seed;     /* of weights, rows and inputs */
} tamis_bench_layer_params;
/** v4-flash, c4, exact, 4096 tokens of context, 1 token, 1 thread, 1 second, seed 1. */
TAMIS_API tamis_bench_layer_params tamis_bench_layer_params_default(void);

#define TAMIS_MAX_BENCH_STAGES 12

typedef struct tamis_bench_stage {
    const char *name;
    double ms;       /* best of the repeats; 0: not measured by itself */
    double f32_ops, int8_ops; /* operations by the roof they have, a multiply-add is two */
    double bytes;    /* read from weights and caches, each byte once a step */
    double floor_ms; /* the larger of bytes / stream and f32_ops / f32 + int8_ops / int8 */
} tamis_bench_stage;

typedef struct tamis_bench_layer_result {
    int32_t n_stages;
    tamis_bench_stage stages[TAMIS_MAX_BENCH_STAGES]; /* in the order in which they run */
    double ms;       /* best whole step */
    double floor_ms; /* sum over the stages */
    double other_ms; /* of `ms`, what is neither projection nor scoring nor attention */
    uint64_t planned_bytes; /* weights, caches, plan, inputs and outputs as computed beforehand */
    uint64_t taken_bytes;   /* as really allocated */
} tamis_bench_layer_result;
/**
 * Builds the layer with random weights and a cache of random rows, runs it, takes it down again.
 * `roof` must be of as many threads. errors: INVALID (value seen and allowed; a kind the shape does
 * not have), UNSUPPORTED (profile and dtype), NO_MEMORY (what it needs)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_bench_layer(const tamis_bench_layer_params *params,
                                                          const tamis_roof *roof,
                                                          tamis_bench_layer_result *out,
                                                          tamis_error *err);
/** Floors anew, by another roof: on a busy machine the better of one measured before and after. */
TAMIS_API void tamis_bench_layer_set_roof(tamis_bench_layer_result *result, const tamis_roof *roof);

/* ---------------------------------------------------------------- kernels */

/** One kernel, or an operator made of kernels ("project", "select_...", "attend"), at one shape. */
typedef struct tamis_bench_kernel_line {
    const char *kernel, *shape; /* valid during the call */
    tamis_cpu_level level;
    int32_t n_threads;
    double us;        /* best of the repeats */
    double gops, gbs; /* 10^9 operations, 10^9 bytes of weights or rows a second; 0: does not apply */
    bool is_int8;     /* the roof of gops: int8, else f32 */
    bool is_cold;     /* gbs come from memory, the roof of gbs is stream; else from caches */
} tamis_bench_kernel_line;
/** false stops. */
typedef bool (*tamis_bench_kernel_fn)(const tamis_bench_kernel_line *line, void *user);
/**
 * Calls fn for every kernel, shape and level of this machine. Kernels run on one thread; the
 * operators, at the level in use, on one and, if that is more, on n_threads (1..256).
 * `only` (NULL: all): a text that the kernel's name contains. About seconds_each (0..60) a line.
 * errors: INVALID (n_threads, seconds_each; no kernel of such a name), NO_MEMORY (1.3 GiB),
 * CANCELLED (fn stopped)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_bench_kernels(double seconds_each, int32_t n_threads,
                                                            const char *only,
                                                            tamis_bench_kernel_fn fn, void *user,
                                                            tamis_error *err);

/* ---------------------------------------------------------------- whole models */

/**
 * Pretend that an empty sequence had n tokens: blocks are taken and all rows of its caches filled
 * with random numbers of the right format, so that a step at depth n can be timed without n tokens
 * of prefill. Its text means nothing. errors: INVALID, NO_BLOCKS, LIMIT, STATE (not empty)
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_seq_fill_random(tamis_session *session, int32_t seq,
                                                              int32_t n, uint64_t seed,
                                                              tamis_error *err);

/** Operations and bytes of one step of a model, layers, experts and head included, by its config. */
typedef struct tamis_model_work {
    double f32_ops, int8_ops, bytes;
    double floor_ms; /* stage by stage, as for a layer */
} tamis_model_work;
/**
 * A step of num_tokens tokens of one sequence behind `context` tokens that asks for num_logits rows of
 * logits. Routed experts count as often as they are expected to be read if tokens choose at random.
 * Rows are those of kv_cache_dtype AUTO. errors: INVALID
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_model_count_work(const tamis_model *model,
                                                               int32_t context, int32_t num_tokens,
                                                               int32_t num_logits,
                                                               const tamis_roof *roof,
                                                               tamis_model_work *out,
                                                               tamis_error *err);

typedef struct tamis_synth_params {
    size_t struct_size;
    tamis_shape shape;
    const int32_t *layers; /* [n_layers] V4: ratio of each layer, 0, 4 or 128; V3.2, GLM: ignored */
    int32_t n_layers;      /* 0: 0, 4, 128, 4 (V4), four layers (others) */
    int32_t n_experts;     /* 0: 8; at least num_experts_per_tok of the shape, multiple of n_group */
    int32_t vocab_size;    /* 0: the shape's */
    uint64_t seed;
} tamis_synth_params;
TAMIS_API tamis_synth_params tamis_synth_params_default(void); /* v4-flash, all defaults, seed 1 */
/** Called now and then with bytes written and in all; false stops (CANCELLED, nothing is left). */
typedef bool (*tamis_synth_progress_fn)(uint64_t done, uint64_t total, void *user);
/**
 * Write a model folder at the shape's real dimensions with few layers and experts and random weights
 * in the vendor's formats; the same seed gives the same bytes. The folder appears complete or not at
 * all; `dir` must not exist. Memory: a few MiB. errors: INVALID, IO (no space: bytes needed), CANCELLED
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_synth_write(const tamis_synth_params *params,
                                                          const char *dir,
                                                          tamis_synth_progress_fn progress,
                                                          void *user, tamis_error *err);

#ifdef __cplusplus
}
#endif
#endif
