/* A drawing of layers over context: time per token, stages stacked, the floor as a line. */
#ifndef CLI_BENCH_PLOT_H
#define CLI_BENCH_PLOT_H

#include <tamis/bench.h>

typedef struct bench_plot_column {
    int32_t context, num_tokens;
    const tamis_bench_layer_result *result;
} bench_plot_column;

/* Columns ascend in context. Writes an SVG file; prints what is wrong, returns an exit code. */
int bench_plot_write(const char *path, const char *title, const char *subtitle,
                     const bench_plot_column *columns, size_t n);

#endif
