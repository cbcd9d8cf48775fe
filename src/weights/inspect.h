/* What a folder holds, summed up by kind and number format: the data of tamis_model_inspect. */
#ifndef TAMIS_WEIGHTS_INSPECT_H
#define TAMIS_WEIGHTS_INSPECT_H

#include "config/model_config.h"
#include "tamis/engine.h"
#include "weights/checkpoint.h"

/* Owner of the arrays behind an inspection. */
typedef struct tamis_inspect tamis_inspect;

/*
 * After the weights are bound (that marks the used tensors). Kept: `info`; names of the checkpoint.
 * Caches and numerics of the inspection stay empty here; the engine knows them.
 * A scale tensor counts into the row of its weight. errors: NO_MEMORY
 */
tamis_status tamis_inspect_build(tamis_inspect **out, tamis_checkpoint *checkpoint,
                                 const tamis_model_config *config, const tamis_model_info *info,
                                 tamis_error *err);
tamis_inspection *tamis_inspect_get(tamis_inspect *inspect);
void tamis_inspect_free(tamis_inspect **inspect);

#endif
