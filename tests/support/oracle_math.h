/*
 * What the double-precision references of both families (oracle_v4.h, oracle_v32.h) are made of:
 * number formats decoded by arithmetic on their fields, plain loops, nothing of the library.
 */
#ifndef TAMIS_TEST_ORACLE_MATH_H
#define TAMIS_TEST_ORACLE_MATH_H

#include "config/model_config.h"
#include "weights/model_weights.h"

/* n zeroed elements, to be freed by the caller; ends the program if there is no memory. */
void *oracle_take(int64_t n, size_t size);
/* Ends the program with the library's message unless status is OK. */
void oracle_stop_on(tamis_status status, const tamis_error *err);

/* All elements of a matrix, [rows][cols]. */
double *oracle_matrix(const tamis_matrix *w);
/* y[r] = sum over c of w[r][c] x[c] with w from oracle_matrix. */
void oracle_multiply(double *y, const double *w, int64_t rows, int64_t cols, const double *x);
/* W x for every token (want: only where it is not 0; NULL: all): [n][rows]. */
double *oracle_project(const tamis_matrix *w, const double *x, int32_t n, const uint8_t *want);
double oracle_dot(const double *a, const double *b, int32_t n);
/* y[i] = x[i] / sqrt(mean x^2 + eps) * weight[i] (weight may be NULL); y may be x. */
void oracle_rmsnorm(double *y, const double *x, const float *weight, int64_t n, double eps);
/* Nearest bf16, ties to even: 8 significant bits. */
double oracle_round_bf16(double value);
/* freq [rope_dim / 2], rounded to float as the tables of the model are. */
void oracle_rope_frequencies(double *freq, int32_t rope_dim, const tamis_rope_config *config);
double oracle_sigmoid(double x);

typedef struct oracle_expert {
    double *w1, *w2, *w3; /* NULL: no such expert */
    int64_t hidden, width;
} oracle_expert;
oracle_expert oracle_expert_open(const tamis_expert_weights *w);
void oracle_expert_close(oracle_expert *e);
/* y += weight * w2 (silu(min(g, limit)) * clamp(u, -limit, limit)) */
void oracle_expert_add(double *y, const oracle_expert *e, const double *x, double weight,
                       double limit);
/* Weights of the chosen experts from their scores: normalised, scaled. */
void oracle_weigh_experts(double *weights, const int32_t *ids, const double *score,
                          const tamis_model_config *config);

#endif
