/* The bench lines: every kernel of the table has one on every CPU level, figures are finite; roofs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "kernels/kernels.h"
#include "support/sanitized.h"
#include "tamis/bench.h"

typedef struct search {
    const char *kernel;
    int n_lines, n_levels, most; /* stop at so many lines */
} search;

static bool see(const tamis_bench_kernel_line *line, void *user)
{
    search *s = user;
    assert_non_null(strstr(line->kernel, s->kernel));
    assert_true(strlen(line->shape) > 0);
    assert_true(line->us > 0 && isfinite(line->us));
    const bool has_rate = strncmp(line->kernel, "index_query", 11) != 0;
    assert_true(line->gops >= 0 && line->gbs >= 0);
    assert_int_equal(line->gops + line->gbs > 0, has_rate);
    assert_true(isfinite(line->gops) && isfinite(line->gbs));
    if (strcmp(line->kernel, s->kernel) == 0)
        s->n_levels += (int)line->level == s->n_levels; /* 0, 1, ... in this order */
    return ++s->n_lines < s->most;
}

static bool is_slow(const char *kernel)
{
    static const char *const words[] = {"linear", "expand", "index", "attn", "pack_heads"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(kernel, words[i]) != NULL)
            return true;
    return false;
}

/* The first shape of each. */
static void test_every_kernel(void **state)
{
    (void)state;
#define NAME(name) #name,
    static const char *const kernels[] = {TAMIS_KERNEL_LIST(NAME)};
#undef NAME
    const int n_levels = (int)tamis_cpu_level_current() + 1;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        search s = {.kernel = kernels[i], .most = 64};
        tamis_error err = {0};
        if (TEST_IS_SANITIZED && is_slow(kernels[i]))
            continue;
        /* linear's further shapes take a minute; its name is in those of others, that come later */
        if (is_slow(kernels[i]))
            s.most = n_levels;
        const tamis_status st = tamis_bench_kernels(0, 1, kernels[i], see, &s, &err);
        if (st != TAMIS_STATUS_OK && (st != TAMIS_STATUS_CANCELLED || s.n_lines != s.most))
            fail_msg("kernel %s: %s", kernels[i], err.text);
        if (s.n_levels < n_levels)
            fail_msg("kernel %s: %d of %d levels", kernels[i], s.n_levels, n_levels);
    }
    assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), 0);
}

/* Selection and attention as layers run them. */
static void test_operators(void **state)
{
    (void)state;
    search s = {.kernel = "select_topk", .most = 3}, project = {.kernel = "project", .most = 1};
    if (TEST_IS_SANITIZED)
        skip();
    assert_int_equal(tamis_bench_kernels(0, 2, "project", see, &project, NULL),
                     TAMIS_STATUS_CANCELLED);
    assert_int_equal(tamis_bench_kernels(0, 2, "select_topk", see, &s, NULL),
                     TAMIS_STATUS_CANCELLED);
    assert_int_equal(s.n_lines, 3);
}

static void test_refusals(void **state)
{
    (void)state;
    search s = {.kernel = "", .most = 1};
    tamis_error err = {0};
    assert_int_equal(tamis_bench_kernels(0, 1, "no-such", see, &s, &err), TAMIS_STATUS_INVALID);
    assert_non_null(strstr(err.text, "no-such"));
    assert_int_equal(tamis_bench_kernels(0, 1, NULL, NULL, &s, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_kernels(-1, 1, NULL, see, &s, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_kernels((double)NAN, 1, NULL, see, &s, NULL),
                     TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_kernels(0, 0, NULL, see, &s, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_bench_kernels(0, 257, NULL, see, &s, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(s.n_lines, 0);
}

static void test_no_memory(void **state)
{
    (void)state;
    tamis_status st = TAMIS_STATUS_NO_MEMORY;
    for (uint64_t n = 1; st != TAMIS_STATUS_OK; n++) {
        search s = {.kernel = "rmsnorm", .most = 64};
        assert_true(n < 100);
        tamis_mem_fail_at(n);
        st = tamis_bench_kernels(0, 1, "rmsnorm", see, &s, NULL);
        tamis_mem_fail_at(0);
        assert_true(st == TAMIS_STATUS_OK || st == TAMIS_STATUS_NO_MEMORY);
        assert_int_equal(tamis_mem_in_use(TAMIS_MEM_MISC), 0);
    }
}

static void test_roof(void **state)
{
    (void)state;
    tamis_team *team = NULL;
    tamis_roof roof;
    assert_int_equal(tamis_team_open(&team, 2, NULL), TAMIS_STATUS_OK);
    assert_int_equal(tamis_roof_measure(NULL, 1, &roof, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_roof_measure(team, 1, NULL, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_roof_measure(team, 0.01, &roof, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_roof_measure(team, 61, &roof, NULL), TAMIS_STATUS_INVALID);
    assert_int_equal(tamis_roof_measure(team, (double)NAN, &roof, NULL), TAMIS_STATUS_INVALID);
    tamis_mem_fail_at(1);
    assert_int_equal(tamis_roof_measure(team, 0.05, &roof, NULL), TAMIS_STATUS_NO_MEMORY);
    tamis_mem_fail_at(0);
    if (!TEST_IS_SANITIZED) {
        assert_int_equal(tamis_roof_measure(team, 0.05, &roof, NULL), TAMIS_STATUS_OK);
        assert_int_equal(roof.n_threads, 2);
        assert_true(roof.f32_gflops > 0 && isfinite(roof.f32_gflops));
        assert_true(roof.int8_gops > 0 && isfinite(roof.int8_gops));
        assert_true(roof.stream_gbs > 0 && isfinite(roof.stream_gbs));
        assert_true(roof.gather_gbs > 0 && isfinite(roof.gather_gbs));
    }
    tamis_team_close(&team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel), cmocka_unit_test(test_operators),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_roof),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
