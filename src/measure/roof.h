/* The inner loops behind tamis_roof_measure, by CPU level: each does a fixed amount of work. */
#ifndef TAMIS_MEASURE_ROOF_H
#define TAMIS_MEASURE_ROOF_H

#include <stddef.h>
#include <stdint.h>

/* Rounds of the arithmetic loops; operations of a round are the functions' own. */
typedef struct tamis_roof_loops {
    double f32_ops, int8_ops; /* per round */
    void (*f32)(int64_t rounds);
    void (*int8)(int64_t rounds);
    void (*read)(const uint8_t *data, size_t bytes); /* a multiple of 256, 64-byte aligned */
} tamis_roof_loops;

extern const tamis_roof_loops tamis_roof_portable, tamis_roof_avx2;

#endif
