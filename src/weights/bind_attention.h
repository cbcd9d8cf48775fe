/* The attention weights of one layer (binder->at), by family. */
#ifndef TAMIS_WEIGHTS_BIND_ATTENTION_H
#define TAMIS_WEIGHTS_BIND_ATTENTION_H

#include "weights/binder.h"

/* Config and weights of the layer. errors: as tamis_model_weights_bind */
tamis_status tamis_bind_dsa(tamis_binder *b, tamis_dsa_layer *layer);
tamis_status tamis_bind_sfa(tamis_binder *b, tamis_sfa_layer *layer);

#endif
