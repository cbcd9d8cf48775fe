/*
 * tamis/base.h - what every other public header builds on: status and error text, data types,
 * weight matrices, CPU level, log, thread team.
 *
 * Everything here is thread-safe unless a comment says otherwise. The library never exits and
 * never prints; it reports through `tamis_status`, `tamis_error` and the log callback.
 */
#ifndef TAMIS_BASE_H
#define TAMIS_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TAMIS_VERSION "0.1.0"

#if defined(__GNUC__) || defined(__clang__)
#define TAMIS_API __attribute__((visibility("default")))
#define TAMIS_MUST_CHECK __attribute__((warn_unused_result))
#define TAMIS_PRINTF(fmt_idx, arg_idx) __attribute__((format(printf, fmt_idx, arg_idx)))
#else
#define TAMIS_API
#define TAMIS_MUST_CHECK
#define TAMIS_PRINTF(fmt_idx, arg_idx)
#endif

/* ---------------------------------------------------------------- status and errors */

typedef enum tamis_status {
    TAMIS_STATUS_OK = 0,
    TAMIS_STATUS_INVALID,     /* an argument the caller should not have passed */
    TAMIS_STATUS_NO_MEMORY,   /* the system or a stated memory limit refused */
    TAMIS_STATUS_NO_BLOCKS,   /* the block pool or the sequence slots are exhausted; try again later */
    TAMIS_STATUS_LIMIT,       /* more than a limit fixed at open: tokens per step, context length */
    TAMIS_STATUS_IO,          /* a file could not be opened, read or written */
    TAMIS_STATUS_FORMAT,      /* a file is damaged or inconsistent */
    TAMIS_STATUS_UNSUPPORTED, /* well formed, but not something tamis runs */
    TAMIS_STATUS_STATE,       /* not now: the object is in a state that forbids the call */
    TAMIS_STATUS_PEER,        /* another process or rank failed */
    TAMIS_STATUS_CANCELLED    /* stopped by the caller's request */
} tamis_status;

/** Short English name of a status, never NULL. */
TAMIS_API const char *tamis_status_name(tamis_status status);

/**
 * Where a failing call leaves its explanation: object, value seen, value allowed.
 *
 * Owned by the caller (usually on the stack). Every call that can fail for an outside reason takes
 * one as its last argument; NULL is allowed everywhere. Untouched on success.
 */
typedef struct tamis_error {
    tamis_status status;
    char text[504]; /* NUL-terminated UTF-8; the middle is left out if need be */
} tamis_error;

/* ---------------------------------------------------------------- data types and weights */

typedef enum tamis_dtype {
    TAMIS_DTYPE_F32 = 0,
    TAMIS_DTYPE_BF16,
    TAMIS_DTYPE_F16,
    TAMIS_DTYPE_F8_E4M3, /* fn: no infinity, 0x7f and 0xff are NaN */
    TAMIS_DTYPE_F4_E2M1, /* two per byte, low nibble = even column */
    TAMIS_DTYPE_F8_E8M0, /* 2^(byte-127), 255 is NaN; scales only */
    TAMIS_DTYPE_F8_E5M2,
    TAMIS_DTYPE_F64,
    TAMIS_DTYPE_I64,
    TAMIS_DTYPE_I32,
    TAMIS_DTYPE_I16,
    TAMIS_DTYPE_I8,
    TAMIS_DTYPE_U8,
    TAMIS_DTYPE_BOOL,
    TAMIS_DTYPE_I4, /* two rows per byte: low nibble = even row, signed */
    TAMIS_NUM_DTYPES,
    TAMIS_DTYPE_AUTO = TAMIS_NUM_DTYPES /* where it is allowed: what the profile prefers */
} tamis_dtype;

/** Name as safetensors spells it ("BF16", "F8_E4M3"; "F4_E2M1", "I4" are ours), never NULL. */
TAMIS_API const char *tamis_dtype_name(tamis_dtype dtype);
/** Bits of one element (4 for F4_E2M1 and I4). */
TAMIS_API int tamis_dtype_bits(tamis_dtype dtype);

/**
 * Whose arithmetic a model is run with. docs/numerics.md has the table: profile x stage x stored type.
 */
typedef enum tamis_profile {
    TAMIS_PROFILE_EXACT = 0, /* weights dequantised exactly, f32 between the caches */
    TAMIS_PROFILE_OFFICIAL,  /* the vendor's rounding points: BF16 between stages, FP8 activations, FP8
                                cache rows, Hadamard and FP4 (V4) or FP8 (V3.2, GLM) of the indexer */
    TAMIS_PROFILE_ASCEND,    /* vllm-ascend's: W8A8 with integer sums, int8 indexer, BF16 between stages */
    TAMIS_NUM_PROFILES
} tamis_profile;

/** "exact", "official", "ascend"; "?" for others. */
TAMIS_API const char *tamis_profile_name(tamis_profile profile);
/** TAMIS_NUM_PROFILES if there is none of that name, or name is NULL. */
TAMIS_API tamis_profile tamis_profile_find(const char *name);

/** How the input of an I8 weight is quantised when that is fixed in the checkpoint (W8A8 static). */
typedef struct tamis_static_quant {
    float input_scale;         /* above 0 */
    float input_offset;        /* an integer, -128..127 */
    const float *deq_scale;    /* [rows] input_scale * weight scale */
    const int32_t *quant_bias; /* [rows] added to the integer sum, within +-2^30 */
} tamis_static_quant;

/**
 * A [rows][cols] weight exactly as a checkpoint stores it; y = W x, W row-major, one output per row.
 *
 * The value of element (r, c) is decode(data)[r][c] * scale[r / block_rows][c / block_cols], one
 * f32 multiplication. Owns nothing: data and scale usually point into a mapped file and may have
 * any alignment. Last blocks of a row or column may be short.
 */
typedef struct tamis_matrix {
    tamis_dtype dtype; /* F32, BF16, F16, F8_E4M3, F4_E2M1; I8, I4 with an F32 scale per row */
    int64_t rows, cols;
    const void *data;
    int64_t row_bytes;          /* distance of two rows; I4: of two pairs of rows */
    const void *scale;          /* NULL: no scale */
    tamis_dtype scale_dtype;    /* F8_E8M0 or F32 */
    int32_t block_rows, block_cols;
    int64_t scale_row_bytes;    /* distance of two rows of the scale grid */
    const tamis_static_quant *input; /* I8: NULL if each token's input gets its own scale */
} tamis_matrix;

/* ---------------------------------------------------------------- CPU level and log */

typedef enum tamis_cpu_level {
    TAMIS_CPU_PORTABLE = 0, /* plain C: the oracle */
    TAMIS_CPU_AVX2,         /* AVX2 + FMA + F16C */
    TAMIS_NUM_CPU_LEVELS
} tamis_cpu_level;

/** "portable", "avx2". */
TAMIS_API const char *tamis_cpu_level_name(tamis_cpu_level level);
/** Highest level this machine has. */
TAMIS_API tamis_cpu_level tamis_cpu_level_available(void);
/**
 * Level in use: the available one, lowered by the environment variable TAMIS_CPU
 * (portable|avx2; read once) or by tamis_cpu_level_set.
 */
TAMIS_API tamis_cpu_level tamis_cpu_level_current(void);
/**
 * Lower (or restore) the level. All levels give the same bits. Not while any step runs.
 * errors: INVALID if the machine lacks `level`.
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cpu_level_set(tamis_cpu_level level);
/** INVALID with the value seen and the values allowed if TAMIS_CPU holds something else. */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_cpu_check_environment(tamis_error *err);

typedef enum tamis_log_level {
    TAMIS_LOG_DEBUG = 0,
    TAMIS_LOG_INFO,
    TAMIS_LOG_WARNING
} tamis_log_level;
typedef void (*tamis_log_fn)(tamis_log_level level, const char *text, void *user);
/** Set the process-wide log callback (NULL: silent, the default). Call before other threads start. */
TAMIS_API void tamis_log_set(tamis_log_fn fn, void *user);

/* ---------------------------------------------------------------- thread team */

typedef struct tamis_team tamis_team;
/**
 * Start a team of n_threads threads, the caller included (so n_threads-1 are created).
 * One team runs one job at a time; sessions that share a team must not step at the same time.
 * range: n_threads 1..256. errors: INVALID, NO_MEMORY (threads refused by the system).
 */
TAMIS_API TAMIS_MUST_CHECK tamis_status tamis_team_open(tamis_team **out, int n_threads,
                                                        tamis_error *err);
/** Join the threads; NULL and *team == NULL are fine. */
TAMIS_API void tamis_team_close(tamis_team **team);
TAMIS_API int tamis_team_size(const tamis_team *team);

#ifdef __cplusplus
}
#endif
#endif
