/* Allocator, arena, checked sizes, errors, data types, CPU level, thread team, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/error.h"
#include "core/file_map.h"
#include "core/mem.h"
#include "core/size.h"
#include "core/team.h"
#include "support/npy.h"
#include "support/rng.h"
#include "support/temp_dir.h"

/* ---------------------------------------------------------------- allocator */

static bool all_zero(const void *block, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const uint8_t *)block)[i] != 0)
            return false;
    return true;
}

static void mem_gives_aligned_zeroed_counted_blocks(void **state)
{
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100000, (size_t)3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int kind = 0; kind < TAMIS_NUM_MEM_KINDS; kind++) {
            const size_t before = tamis_mem_in_use(kind);
            const uint64_t calls = tamis_mem_num_allocs();
            uint8_t *block = tamis_mem_alloc(kind, sizes[i]);
            assert_non_null(block);
            assert_int_equal((uintptr_t)block % 64, 0);
            assert_true(all_zero(block, sizes[i]));
            assert_int_equal(tamis_mem_in_use(kind), before + sizes[i]);
            assert_int_equal(tamis_mem_num_allocs(), calls + 1);
            memset(block, 0xAB, sizes[i]); /* so that a reused block shows missing zeroing */
            tamis_mem_free(block);
            assert_int_equal(tamis_mem_in_use(kind), before);
        }
    }
    tamis_mem_free(NULL);
}

static void mem_refuses_sizes_that_overflow(void **state)
{
    assert_null(tamis_mem_alloc(TAMIS_MEM_MISC, SIZE_MAX));
    assert_null(tamis_mem_alloc(TAMIS_MEM_MISC, SIZE_MAX - 64));
    assert_null(tamis_mem_array(TAMIS_MEM_MISC, SIZE_MAX / 2, 3));
    assert_null(tamis_mem_array(TAMIS_MEM_MISC, (size_t)1 << 33, (size_t)1 << 33));
    void *block = tamis_mem_array(TAMIS_MEM_MISC, 0, 8);
    assert_non_null(block);
    tamis_mem_free(block);
}

static void mem_realloc_keeps_contents_and_zeroes_the_rest(void **state)
{
    const size_t before = tamis_mem_in_use(TAMIS_MEM_TOKENIZER);
    uint8_t *block = tamis_mem_realloc(TAMIS_MEM_TOKENIZER, NULL, 10);
    memset(block, 7, 10);
    block = tamis_mem_realloc(TAMIS_MEM_TOKENIZER, block, 1000);
    assert_int_equal((uintptr_t)block % 64, 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(block[i], 7);
    assert_true(all_zero(block + 10, 990));
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_TOKENIZER), before + 1000);

    tamis_mem_fail_at(1);
    assert_null(tamis_mem_realloc(TAMIS_MEM_TOKENIZER, block, 2000));
    assert_int_equal(block[9], 7); /* the old block is still there */
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_TOKENIZER), before + 1000);
    tamis_mem_free(block);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_TOKENIZER), before);
}

static void mem_fail_at_fails_exactly_the_nth_call(void **state)
{
    for (uint64_t n = 1; n <= 4; n++) {
        tamis_mem_fail_at(n);
        for (uint64_t i = 1; i <= 6; i++) {
            void *block = tamis_mem_alloc(TAMIS_MEM_MISC, 8);
            assert_int_equal(block == NULL, i == n);
            tamis_mem_free(block);
        }
    }
    tamis_mem_fail_at(2);
    tamis_mem_fail_at(0);
    for (int i = 0; i < 3; i++) {
        char *copy = tamis_mem_strdup(TAMIS_MEM_MISC, "text");
        assert_string_equal(copy, "text");
        tamis_mem_free(copy);
    }
}

static void mem_counts_calls_during_a_run(void **state)
{
    const uint64_t before = tamis_mem_num_allocs_in_run();
    tamis_mem_free(tamis_mem_alloc(TAMIS_MEM_MISC, 8));
    assert_int_equal(tamis_mem_num_allocs_in_run(), before); /* no run in progress */

    tamis_mem_assert_in_run(false);
    tamis_mem_run_begin();
    tamis_mem_run_begin();
    void *block = tamis_mem_alloc(TAMIS_MEM_MISC, 8);
    tamis_mem_run_end();
    tamis_mem_free(block);
    tamis_mem_run_end();
    tamis_mem_assert_in_run(true);
    assert_int_equal(tamis_mem_num_allocs_in_run(), before + 2);

    tamis_mem_free(tamis_mem_alloc(TAMIS_MEM_MISC, 8));
    assert_int_equal(tamis_mem_num_allocs_in_run(), before + 2);
}

#ifndef NDEBUG
static void mem_asserts_on_a_call_during_a_run(void **state)
{
    const pid_t pid = fork();
    if (pid == 0) {
        close(STDERR_FILENO); /* the message of the assert */
        tamis_mem_run_begin();
        tamis_mem_alloc(TAMIS_MEM_MISC, 8);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
#endif

/* ---------------------------------------------------------------- arena, sizes */

static void lay_out(tamis_arena *arena, void *parts[3])
{
    parts[0] = tamis_arena_take(arena, 3, sizeof(float));
    parts[1] = tamis_arena_take(arena, 0, 8);
    parts[2] = tamis_arena_take(arena, 65, 1);
}

static void arena_measures_what_it_carves(void **state)
{
    void *parts[3];
    tamis_arena measure = {NULL, 0, 0};
    lay_out(&measure, parts);
    assert_int_equal(measure.used, 64 + 0 + 128);
    assert_null(parts[0]);

    uint8_t *block = tamis_mem_alloc(TAMIS_MEM_WORKSPACE, measure.used);
    tamis_arena carve = {block, measure.used, 0};
    lay_out(&carve, parts);
    assert_int_equal(carve.used, measure.used);
    assert_ptr_equal(parts[0], block);
    assert_ptr_equal(parts[1], block + 64);
    assert_ptr_equal(parts[2], block + 64);
    tamis_mem_free(block);
}

static void arena_notes_an_overflow(void **state)
{
    tamis_arena arena = {NULL, 0, 0};
    tamis_arena_take(&arena, SIZE_MAX / 4, 8);
    assert_int_equal(arena.used, SIZE_MAX);
    tamis_arena_take(&arena, 1, 1); /* and it stays */
    assert_int_equal(arena.used, SIZE_MAX);
}

static void sizes_are_checked(void **state)
{
    size_t out;
    assert_true(tamis_size_add(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_false(tamis_size_add(SIZE_MAX, 1, &out));
    assert_true(tamis_size_mul(SIZE_MAX, 1, &out) && out == SIZE_MAX);
    assert_true(tamis_size_mul(SIZE_MAX, 0, &out) && out == 0);
    assert_true(tamis_size_mul(0, SIZE_MAX, &out) && out == 0);
    assert_false(tamis_size_mul((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_false(tamis_size_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_int_equal(tamis_ceil_div(0, 4), 0);
    assert_int_equal(tamis_ceil_div(1, 4), 1);
    assert_int_equal(tamis_ceil_div(4, 4), 1);
    assert_int_equal(tamis_round_up(5, 4), 8);
    assert_int_equal(tamis_min_i64(-1, 1), -1);
    assert_int_equal(tamis_max_i64(-1, 1), 1);
}

/* ---------------------------------------------------------------- errors, log, data types */

static void errors_are_filled_and_cut_at_a_character(void **state)
{
    tamis_error err = {0};
    assert_int_equal(tamis_fail(&err, TAMIS_STATUS_IO, "%s: %d", "a", 5), TAMIS_STATUS_IO);
    assert_int_equal(err.status, TAMIS_STATUS_IO);
    assert_string_equal(err.text, "a: 5");
    assert_int_equal(tamis_fail(NULL, TAMIS_STATUS_LIMIT, "nobody listens"), TAMIS_STATUS_LIMIT);
}

/* Euro signs (3 bytes) in every position at both cuts: what stays is whole ones. */
static void long_texts_keep_both_ends(void **state)
{
    (void)state;
    tamis_error err;
    const size_t room = sizeof err.text - 1;
    for (size_t pad = 0; pad <= 3; pad++) {
        for (size_t n_signs = 150; n_signs <= 2000; n_signs += n_signs < 180 ? 1 : 607) {
            char text[6100] = "xxx";
            for (size_t i = 0; i < n_signs; i++)
                memcpy(text + pad + 3 * i, "\xE2\x82\xAC", 4);
            tamis_fail(&err, TAMIS_STATUS_IO, "%s: why", text);
            const size_t n = pad + 3 * n_signs + 5, gap = strcspn(err.text, ".");
            assert_string_equal(err.text + strlen(err.text) - 5, ": why");
            if (n <= room) {
                assert_int_equal(strlen(err.text), n);
                continue;
            }
            assert_in_range(strlen(err.text), room - 4, room);
            assert_memory_equal(err.text + gap - 1, " ... \xE2\x82\xAC", 8);
            assert_int_equal((gap - 1 - pad) % 3, 0);
            assert_memory_equal(err.text, text, gap - 1);
            assert_int_equal((strlen(err.text + gap + 4) - 5) % 3, 0);
        }
    }
}

static void errors_can_be_given_context(void **state)
{
    tamis_error err = {0};
    tamis_fail(&err, TAMIS_STATUS_FORMAT, "inner");
    tamis_fail(&err, err.status, "outer: %s", err.text);
    assert_string_equal(err.text, "outer: inner");
    tamis_fail_memory(&err, "cache pool", 4096);
    assert_int_equal(err.status, TAMIS_STATUS_NO_MEMORY);
    assert_non_null(strstr(err.text, "cache pool"));
    assert_non_null(strstr(err.text, "4096"));
}

static void every_status_and_dtype_has_a_name(void **state)
{
    for (int i = 0; i <= TAMIS_STATUS_CANCELLED; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(tamis_status_name(i), tamis_status_name(j));
    assert_non_null(tamis_status_name((tamis_status)99));
    for (int i = 0; i < TAMIS_NUM_DTYPES; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(tamis_dtype_name(i), tamis_dtype_name(j));
    assert_string_equal(tamis_dtype_name(TAMIS_DTYPE_F8_E4M3), "F8_E4M3");
    assert_int_equal(tamis_dtype_bits(TAMIS_DTYPE_F4_E2M1), 4);
    assert_int_equal(tamis_dtype_bits(TAMIS_DTYPE_BF16), 16);
    assert_int_equal(tamis_dtype_bits(TAMIS_DTYPE_I64), 64);
    assert_string_equal(tamis_dtype_name((tamis_dtype)(TAMIS_NUM_DTYPES + 1)), "unknown");
}

typedef struct log_seen {
    int n;
    tamis_log_level level;
    char text[64];
} log_seen;

static void note_log(tamis_log_level level, const char *text, void *user)
{
    log_seen *seen = user;
    seen->n++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

static void log_goes_to_the_callback_or_nowhere(void **state)
{
    log_seen seen = {0};
    tamis_log(TAMIS_LOG_WARNING, "nobody");
    tamis_log_set(note_log, &seen);
    tamis_log(TAMIS_LOG_INFO, "%d blocks", 3);
    tamis_log_set(NULL, NULL);
    tamis_log(TAMIS_LOG_WARNING, "nobody");
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.level, TAMIS_LOG_INFO);
    assert_string_equal(seen.text, "3 blocks");
}

/* ---------------------------------------------------------------- CPU level */

static void cpu_level_environment_is_obeyed_or_refused(void **state)
{
    const char *kept = getenv("TAMIS_CPU");
    char *saved = kept != NULL ? strdup(kept) : NULL;
    tamis_error err = {0};

    unsetenv("TAMIS_CPU");
    assert_int_equal(tamis_cpu_check_environment(&err), TAMIS_STATUS_OK);
    setenv("TAMIS_CPU", "portable", 1);
    assert_int_equal(tamis_cpu_check_environment(&err), TAMIS_STATUS_OK);
    setenv("TAMIS_CPU", tamis_cpu_level_name(tamis_cpu_level_available()), 1);
    assert_int_equal(tamis_cpu_check_environment(&err), TAMIS_STATUS_OK);
    const char *bad[] = {"AVX2", "avx512", "portable ", "1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("TAMIS_CPU", bad[i], 1);
        assert_int_equal(tamis_cpu_check_environment(&err), TAMIS_STATUS_INVALID);
        assert_int_equal(err.status, TAMIS_STATUS_INVALID);
        assert_non_null(strstr(err.text, bad[i]));           /* value seen */
        assert_non_null(strstr(err.text, "TAMIS_CPU"));      /* object */
        assert_non_null(strstr(err.text, "portable, avx2")); /* values allowed */
    }
    if (tamis_cpu_level_available() == TAMIS_CPU_PORTABLE) {
        setenv("TAMIS_CPU", "avx2", 1);
        assert_int_equal(tamis_cpu_check_environment(&err), TAMIS_STATUS_INVALID);
    }
    if (saved != NULL)
        setenv("TAMIS_CPU", saved, 1);
    else
        unsetenv("TAMIS_CPU");
    free(saved);
}

/* The level is read once per process, so every value needs its own. */
static int level_in_child(const char *value)
{
    const pid_t pid = fork();
    if (pid == 0) {
        setenv("TAMIS_CPU", value, 1);
        _exit((int)tamis_cpu_level_current());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Must run before any test that asks for the current level. */
static void cpu_level_follows_the_environment(void **state)
{
    assert_int_equal(level_in_child("portable"), TAMIS_CPU_PORTABLE);
    assert_int_equal(level_in_child(""), tamis_cpu_level_available());
    assert_int_equal(level_in_child("avx2"), tamis_cpu_level_available());
}

static void cpu_level_can_be_lowered_and_restored(void **state)
{
    const tamis_cpu_level before = tamis_cpu_level_current();
    assert_int_equal(tamis_cpu_level_set(TAMIS_CPU_PORTABLE), TAMIS_STATUS_OK);
    assert_int_equal(tamis_cpu_level_current(), TAMIS_CPU_PORTABLE);
    assert_int_equal(tamis_cpu_level_set(TAMIS_NUM_CPU_LEVELS), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_cpu_level_set((tamis_cpu_level)-1), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_cpu_level_current(), TAMIS_CPU_PORTABLE);
    assert_int_equal(tamis_cpu_level_set(before), TAMIS_STATUS_OK);
    assert_int_equal(tamis_cpu_level_current(), before);
    assert_string_equal(tamis_cpu_level_name(TAMIS_CPU_AVX2), "avx2");
}

/* ---------------------------------------------------------------- thread team */

#define MAX_TEAM 5

typedef struct team_job {
    int calls[MAX_TEAM]; /* plain: each thread writes its own, the barrier orders the rest */
    int64_t sums[MAX_TEAM];
    int64_t n;
    atomic_bool wrong_size;
    int n_threads;
} team_job;

static void count_and_sum(void *arg, int thread_idx, int n_threads)
{
    team_job *job = arg;
    if (n_threads != job->n_threads)
        atomic_store(&job->wrong_size, true);
    job->calls[thread_idx]++;
    int64_t begin, end;
    tamis_team_range(job->n, 7, thread_idx, n_threads, &begin, &end);
    job->sums[thread_idx] = 0;
    for (int64_t i = begin; i < end; i++)
        job->sums[thread_idx] += i;
}

static void team_calls_every_thread_once_per_job(void **state)
{
    for (int n_threads = 1; n_threads <= MAX_TEAM; n_threads++) {
        tamis_team *team;
        tamis_error err;
        assert_int_equal(tamis_team_open(&team, n_threads, &err), TAMIS_STATUS_OK);
        assert_int_equal(tamis_team_size(team), n_threads);
        team_job job = {.n_threads = n_threads};
        for (int i = 1; i <= 1000; i++) {
            job.n = i % 50;
            tamis_team_run(team, count_and_sum, &job);
            int64_t sum = 0;
            for (int t = 0; t < n_threads; t++) {
                assert_int_equal(job.calls[t], i);
                sum += job.sums[t];
            }
            assert_int_equal(sum, job.n * (job.n - 1) / 2);
        }
        assert_false(atomic_load(&job.wrong_size));
        tamis_team_close(&team);
        assert_null(team);
    }
}

/* Workers and caller both get the chance to park: some jobs wait, and so does the time between. */
static void sleepy_job(void *arg, int thread_idx, int n_threads)
{
    team_job *job = arg;
    if (thread_idx == job->calls[0] % n_threads)
        usleep(1000);
    if (thread_idx != 0)
        job->calls[thread_idx]++;
}

static void team_wakes_parked_threads(void **state)
{
    tamis_team *team;
    assert_int_equal(tamis_team_open(&team, 3, NULL), TAMIS_STATUS_OK);
    team_job job = {.n_threads = 3};
    for (int i = 1; i <= 60; i++) {
        tamis_team_run(team, sleepy_job, &job);
        job.calls[0]++;
        assert_int_equal(job.calls[1], i);
        assert_int_equal(job.calls[2], i);
        if (i % 3 == 0)
            usleep(1000);
    }
    tamis_team_close(&team);
}

static void several_teams_live_side_by_side(void **state)
{
    tamis_team *teams[MAX_TEAM];
    team_job jobs[MAX_TEAM] = {0};
    const size_t before = tamis_mem_in_use(TAMIS_MEM_MISC);
    for (int t = 0; t < MAX_TEAM; t++) {
        assert_int_equal(tamis_team_open(&teams[t], t + 1, NULL), TAMIS_STATUS_OK);
        jobs[t].n_threads = t + 1;
    }
    for (int i = 1; i <= 100; i++) {
        for (int t = 0; t < MAX_TEAM; t++) {
            jobs[t].n = 40;
            tamis_team_run(teams[t], count_and_sum, &jobs[t]);
            assert_int_equal(jobs[t].calls[t], i);
        }
    }
    for (int t = 0; t < MAX_TEAM; t++)
        tamis_team_close(&teams[t]);
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), before);
}

static void team_range_covers_everything_in_whole_grains(void **state)
{
    test_rng rng = test_rng_start("team_range", 1);
    for (int i = 0; i < 2000; i++) {
        const int64_t n = test_rng_int(&rng, 0, 300), grain = test_rng_int(&rng, 1, 20);
        const int n_threads = (int)test_rng_int(&rng, 1, 17);
        int64_t next = 0;
        for (int t = 0; t < n_threads; t++) {
            int64_t begin, end;
            tamis_team_range(n, grain, t, n_threads, &begin, &end);
            assert_int_equal(begin, next);
            assert_true(end >= begin && (end % grain == 0 || end == n));
            next = end;
        }
        assert_int_equal(next, n);
    }
}

typedef struct piece_job {
    tamis_team *team;
    int64_t n;
    atomic_int taken[1000];
    atomic_bool has_fault;
    int slow; /* thread that takes its time, or -1 */
} piece_job;

static void take_pieces(void *arg, int thread_idx, int n_threads)
{
    piece_job *job = arg;
    int64_t begin, end;
    (void)n_threads;
    while (tamis_team_take(job->team, thread_idx, &begin, &end)) {
        if (begin < 0 || begin >= end || end > job->n) {
            atomic_store(&job->has_fault, true);
            return;
        }
        for (int64_t i = begin; i < end; i++)
            atomic_fetch_add(&job->taken[i], 1);
        if (thread_idx == job->slow)
            usleep(2000);
    }
}

static void team_pieces_are_taken_once(void **state)
{
    const int64_t numbers[] = {0, 1, 2, 7, 64, 1000};
    (void)state;
    for (int n_threads = 1; n_threads <= 5; n_threads++)
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            for (int slow = -1; slow < n_threads; slow++) {
                static piece_job job;
                memset(&job, 0, sizeof job);
                job.n = numbers[i];
                job.slow = slow;
                assert_int_equal(tamis_team_open(&job.team, n_threads, NULL), TAMIS_STATUS_OK);
                tamis_team_deal(job.team, job.n);
                tamis_team_run_sized(job.team, i % 2 == 0 || slow >= 0, take_pieces, &job);
                for (int64_t k = 0; k < 1000; k++)
                    assert_int_equal(atomic_load(&job.taken[k]), k < job.n);
                assert_false(atomic_load(&job.has_fault));
                tamis_team_close(&job.team);
            }
}

static void team_open_refuses(void **state)
{
    tamis_team *team = (tamis_team *)8;
    tamis_error err = {0};
    const int bad[] = {0, -1, 257};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tamis_team_open(&team, bad[i], &err), TAMIS_STATUS_INVALID);
        assert_null(team);
        assert_non_null(strstr(err.text, "1 to 256"));
    }
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_team_open(&team, 2, &err), TAMIS_STATUS_NO_MEMORY);
    tamis_mem_fail_at(0);
    assert_int_equal(tamis_team_open(NULL, 2, &err), TAMIS_STATUS_INVALID);
    tamis_team_close(NULL);
    tamis_team_close(&team);
}

/* Sanitizers need the address space that the next test takes away. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SHADOW_MEMORY 1
#elif defined(__has_feature)
#define HAS_SHADOW_MEMORY (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define HAS_SHADOW_MEMORY 0
#endif

/* 200 stacks of 1 MiB do not fit into 40 MiB of address space: some thread is refused midway. */
static int open_large_team_in_little_space(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages;
    if (file == NULL || fscanf(file, "%lu", &pages) != 1)
        return 2;
    fclose(file);
    const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)40 << 20);
    if (setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes}) != 0)
        return 3;
    tamis_team *team;
    tamis_error err = {0};
    if (tamis_team_open(&team, 200, &err) != TAMIS_STATUS_NO_MEMORY || team != NULL)
        return 4;
    if (strstr(err.text, "of 200") == NULL || tamis_mem_in_use(TAMIS_MEM_MISC) != 0)
        return 5;
    return tamis_team_open(&team, 2, &err) == TAMIS_STATUS_OK ? 0 : 6; /* what started is gone */
}

static void team_open_closes_what_it_started(void **state)
{
    if (HAS_SHADOW_MEMORY)
        skip();
    const pid_t pid = fork();
    if (pid == 0)
        _exit(open_large_team_in_little_space());
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---------------------------------------------------------------- files */

static void expect_io_error(const char *path, const char *reason)
{
    tamis_error err = {0};
    tamis_file_map map = {(const uint8_t *)"x", 1};
    assert_int_equal(tamis_file_map_open(&map, path, &err), TAMIS_STATUS_IO);
    assert_null(map.data);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, reason));
    char *text = (char *)8;
    size_t bytes = 9;
    assert_int_equal(tamis_file_read(&text, &bytes, path, 100, &err), TAMIS_STATUS_IO);
    assert_null(text);
    assert_int_equal(bytes, 0);
    assert_non_null(strstr(err.text, reason));
}

static void files_that_cannot_be_read_are_named(void **state)
{
    char *dir = test_temp_dir_make();
    char *missing = test_path(dir, "missing");
    expect_io_error(missing, "No such file");
    expect_io_error(dir, "folder");
    expect_io_error("/dev/null", "not a regular file");
    assert_false(tamis_file_exists(missing));
    assert_false(tamis_file_exists(dir));
    free(missing);
    test_temp_dir_remove(dir);
}

static void files_are_mapped_and_read(void **state)
{
    char *dir = test_temp_dir_make();
    tamis_file_map map;
    char *text;
    size_t bytes;
    tamis_error err = {0};
    test_file_write_text(dir, "empty", "");
    test_file_write(dir, "some", "a\0b", 3);

    char *path = tamis_path_join(dir, "empty");
    assert_true(tamis_file_exists(path));
    assert_int_equal(tamis_file_map_open(&map, path, &err), TAMIS_STATUS_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    tamis_file_map_close(&map);
    assert_int_equal(tamis_file_read(&text, &bytes, path, 0, &err), TAMIS_STATUS_OK);
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    tamis_mem_free(text);
    tamis_mem_free(path);

    path = tamis_path_join(dir, "some");
    assert_int_equal(tamis_file_map_open(&map, path, &err), TAMIS_STATUS_OK);
    assert_int_equal(map.bytes, 3);
    assert_memory_equal(map.data, "a\0b", 3);
    tamis_file_map_close(&map);
    assert_null(map.data);
    tamis_file_map_close(&map); /* again is fine */
    assert_int_equal(tamis_file_read(&text, &bytes, path, 3, &err), TAMIS_STATUS_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "a\0b\0", 4);
    tamis_mem_free(text);

    assert_int_equal(tamis_file_read(&text, &bytes, path, 2, &err), TAMIS_STATUS_FORMAT);
    assert_non_null(strstr(err.text, "has 3 bytes, allowed at most 2"));
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_file_read(&text, &bytes, path, 3, &err), TAMIS_STATUS_NO_MEMORY);
    assert_null(text);
    tamis_mem_free(path);
    test_temp_dir_remove(dir);
}

static void paths_are_joined_with_one_slash(void **state)
{
    const char *cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = tamis_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        tamis_mem_free(path);
    }
    tamis_mem_fail_at(1);
    assert_null(tamis_path_join("a", "b"));
}

/* The support code that other tests read and write arrays with. */
static void npy_files_survive_a_round_trip(void **state)
{
    char *dir = test_temp_dir_make();
    char *path = test_path(dir, "x.npy");
    const float data[6] = {0, -1.5f, 3e38f, 1e-45f, 4, 5};
    const int64_t shapes[3][2] = {{2, 3}, {6, 0}, {1, 6}};
    const int n_dims[3] = {2, 1, 2};
    for (int i = 0; i < 3; i++) {
        test_npy_write(path, data, n_dims[i], shapes[i]);
        test_npy array = test_npy_read(path);
        assert_int_equal(array.n_dims, n_dims[i]);
        assert_int_equal(array.shape[0], shapes[i][0]);
        assert_int_equal(test_npy_count(&array), 6);
        assert_memory_equal(array.data, data, sizeof data);
        test_npy_free(&array);
    }
    free(path);
    test_temp_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_level_follows_the_environment),
        cmocka_unit_test(cpu_level_environment_is_obeyed_or_refused),
        cmocka_unit_test(cpu_level_can_be_lowered_and_restored),
        cmocka_unit_test(mem_gives_aligned_zeroed_counted_blocks),
        cmocka_unit_test(mem_refuses_sizes_that_overflow),
        cmocka_unit_test(mem_realloc_keeps_contents_and_zeroes_the_rest),
        cmocka_unit_test(mem_fail_at_fails_exactly_the_nth_call),
        cmocka_unit_test(mem_counts_calls_during_a_run),
#ifndef NDEBUG
        cmocka_unit_test(mem_asserts_on_a_call_during_a_run),
#endif
        cmocka_unit_test(arena_measures_what_it_carves),
        cmocka_unit_test(arena_notes_an_overflow),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(errors_are_filled_and_cut_at_a_character),
        cmocka_unit_test(long_texts_keep_both_ends),
        cmocka_unit_test(errors_can_be_given_context),
        cmocka_unit_test(every_status_and_dtype_has_a_name),
        cmocka_unit_test(log_goes_to_the_callback_or_nowhere),
        cmocka_unit_test(team_calls_every_thread_once_per_job),
        cmocka_unit_test(team_wakes_parked_threads),
        cmocka_unit_test(several_teams_live_side_by_side),
        cmocka_unit_test(team_range_covers_everything_in_whole_grains),
        cmocka_unit_test(team_pieces_are_taken_once),
        cmocka_unit_test(team_open_refuses),
        cmocka_unit_test(team_open_closes_what_it_started),
        cmocka_unit_test(files_that_cannot_be_read_are_named),
        cmocka_unit_test(files_are_mapped_and_read),
        cmocka_unit_test(paths_are_joined_with_one_slash),
        cmocka_unit_test(npy_files_survive_a_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
