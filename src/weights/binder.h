/*
 * Tensors found by their weight's name, checked, and marked as used: the tools of binding.
 *
 * Binding runs twice over the same code: once with a measuring arena, which checks every tensor and
 * adds up the vectors, and once with the arena in place. Nothing is copied before all is checked.
 */
#ifndef TAMIS_WEIGHTS_BINDER_H
#define TAMIS_WEIGHTS_BINDER_H

#include "core/arena.h"
#include "weights/checkpoint.h"
#include "weights/names.h"

typedef struct tamis_binder {
    tamis_checkpoint *checkpoint;
    const tamis_model_config *config;
    const tamis_names *names;
    tamis_arena arena;     /* f32 copies of vectors */
    uint64_t mapped_bytes; /* of the tensors used in place so far */
    tamis_weight_place at; /* whose tensors are looked for */
    tamis_error *err;
} tamis_binder;

/* NULL: none of its spellings is there. */
tamis_tensor *tamis_binder_find(const tamis_binder *b, tamis_weight weight);
/* errors: FORMAT (missing) */
tamis_status tamis_binder_require(const tamis_binder *b, tamis_weight weight, tamis_tensor **out);
/*
 * Where the config leaves a part out, its tensors must be absent: one of the two is damaged.
 * errors: FORMAT "... is there, allowed: none of this part where config.json has <field> <value>"
 */
tamis_status tamis_binder_refuse(const tamis_binder *b, tamis_weight weight, const char *field,
                                 int32_t value);
/* A tensor used in place. */
void tamis_binder_use(tamis_binder *b, tamis_tensor *tensor);

/* A linear layer's weight: floats, FP8 with its scales, or as the folder's description says; FP4
 * only V4's experts. */
tamis_status tamis_bind_matrix(tamis_binder *b, tamis_matrix *out, tamis_weight weight,
                               int64_t rows, int64_t cols);
/* A matrix that is never quantised: floats only. */
tamis_status tamis_bind_float_matrix(tamis_binder *b, tamis_matrix *out, tamis_weight weight,
                                     int64_t rows, int64_t cols);
/* An f32 copy of a tensor of that shape; NULL while measuring. */
tamis_status tamis_bind_floats(tamis_binder *b, const float **out, tamis_weight weight,
                               int32_t rank, const int64_t *shape);
tamis_status tamis_bind_vector(tamis_binder *b, const float **out, tamis_weight weight, int64_t n);

#endif
