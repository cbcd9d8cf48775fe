/* An open model folder. Immutable after open, but for the inspection that is made on demand. */
#ifndef TAMIS_ENGINE_MODEL_INTERNAL_H
#define TAMIS_ENGINE_MODEL_INTERNAL_H

#include "config/model_config.h"
#include "model/numerics.h"
#include "tamis/engine.h"
#include "weights/checkpoint.h"
#include "weights/inspect.h"
#include "weights/model_weights.h"

#define TAMIS_MAX_CACHE_CHOICES 4

struct tamis_model {
    tamis_model_info info;
    tamis_model_config config;
    tamis_checkpoint *checkpoint;
    tamis_model_weights *weights;
    tamis_inspect *inspect; /* NULL until asked for, and with it the two below */
    tamis_numerics numerics;
    tamis_cache_choice caches[TAMIS_MAX_CACHE_CHOICES];
};

#endif
