/* A tamis_exec for tests: team, kernel table, scratch. A refused call ends the program. */
#ifndef TAMIS_TEST_EXEC_H
#define TAMIS_TEST_EXEC_H

#include <stdlib.h>

#include "ops/exec.h"

static inline tamis_exec test_exec_open(int n_threads, tamis_cpu_level level, size_t scratch_floats)
{
    tamis_exec exec = {.kernels = tamis_kernels_for(level)};
    exec.scratch_floats = (scratch_floats + 15) / 16 * 16;
    exec.scratch = aligned_alloc(64, (size_t)n_threads * exec.scratch_floats * sizeof(float) + 64);
    if (exec.scratch == NULL || tamis_team_open(&exec.team, n_threads, NULL) != TAMIS_STATUS_OK)
        abort();
    return exec;
}
static inline void test_exec_close(tamis_exec *exec)
{
    tamis_team_close(&exec->team);
    free(exec->scratch);
}

#endif
