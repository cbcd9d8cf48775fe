/* Tensors of the model that binding had no use for. */
#ifndef TAMIS_WEIGHTS_LEFT_OVER_H
#define TAMIS_WEIGHTS_LEFT_OVER_H

#include "weights/binder.h"

/*
 * After all weights are bound: a tensor of a main layer, or one that begins like a weight of the
 * model around the layers, must be one of them. A bias, a further expert or a correction that
 * nobody reads would make the folder run as another model. Let be are tensors that change nothing:
 * the indexers of layers that share a selection (in GLM only if the caller made them
 * share), rotary frequencies, the bias of a hash router, in quantised folders a norm's bias of
 * zeros. errors: FORMAT, UNSUPPORTED (numbers of a quantised activation where nothing is quantised;
 * another bias of a norm); file and tensor are named
 */
tamis_status tamis_binder_refuse_left_over(const tamis_binder *b);

#endif
