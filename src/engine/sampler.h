/*
 * The inside of tamis/sampler.h: the generator, apart so that tests can check its published values.
 */
#ifndef TAMIS_ENGINE_SAMPLER_H
#define TAMIS_ENGINE_SAMPLER_H

#include "tamis/sampler.h"

/** xoshiro256** (Blackman and Vigna, public domain), its state filled by splitmix64. */
typedef struct tamis_prng {
    uint64_t s[4];
} tamis_prng;

tamis_prng tamis_prng_start(uint64_t seed);
uint64_t tamis_prng_next(tamis_prng *prng);
/** The top 53 bits as a double in [0, 1). */
double tamis_prng_next_double(tamis_prng *prng);

#endif
