/* What the tests of tools/quantize share: a run into a temporary folder, and looking into it. */
#ifndef TAMIS_TEST_QUANTIZE_H
#define TAMIS_TEST_QUANTIZE_H

#include <dirent.h>
#include <math.h>

#include "kernels/formats.h"
#include "quantize/quantize.h"
#include "weights/tensor_matrix.h"
#include "weights_test.h"

static inline tamis_quantize_params
quantize_params(const char *source, tamis_quant_scheme attention, tamis_quant_scheme experts)
{
    return (tamis_quantize_params){.source = source,
                                   .attention = attention,
                                   .experts = experts,
                                   .others = TAMIS_SCHEME_W8A8_DYNAMIC,
                                   .shard_bytes = INT64_C(1) << 30,
                                   .n_threads = 1};
}

/* A new folder, to be removed with test_temp_dir_remove. */
static inline char *quantize_ok(tamis_quantize_params params, tamis_quantize_report *report)
{
    tamis_quantize_report own;
    tamis_error err;
    char *dir = test_temp_dir_make();
    params.output = dir;
    if (tamis_quantize_folder(&params, report != NULL ? report : &own, &err) != TAMIS_STATUS_OK)
        fail_msg("%s: %s", params.source, err.text);
    return dir;
}

static inline int quantize_num_files(const char *dir)
{
    DIR *folder = opendir(dir);
    int n = 0;
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        n++;
    closedir(folder);
    return n - 2;
}

static inline float *quantize_row_of(const tamis_matrix *m, int64_t row)
{
    float *values = calloc((size_t)m->cols + 1, sizeof *values);
    assert_non_null(values);
    tamis_kernels_current()->expand_row(values, m, row);
    return values;
}

#endif
