/* 64-bit checksums (XXH3): against damage, not against forgery. */
#ifndef TAMIS_CORE_CHECKSUM_H
#define TAMIS_CORE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* `seed` chains: the checksum of what came before, or 0. */
uint64_t tamis_checksum(const void *data, size_t bytes, uint64_t seed);

#endif
