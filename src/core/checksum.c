#include "core/checksum.h"

#include <xxhash.h>

uint64_t tamis_checksum(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
