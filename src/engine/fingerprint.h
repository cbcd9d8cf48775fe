/*
 * A number that tells models apart, for files that only make sense with one of them.
 *
 * It covers what changes the rows of caches: the fields of the config that the forward pass reads
 * (shared selections as they are in force included), and name, number format, shape and a sample of
 * every tensor: all of it up to 256 bytes, else 256 bytes from its middle. Models trained apart
 * differ there in nearly every tensor, and 600 GB need not be read. Where the tensors lie, in how
 * many files, does not count; under other names they make another model.
 */
#ifndef TAMIS_ENGINE_FINGERPRINT_H
#define TAMIS_ENGINE_FINGERPRINT_H

#include "engine/model_internal.h"

uint64_t tamis_model_fingerprint(const tamis_model *model);

#endif
