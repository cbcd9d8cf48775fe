/*
 * Weights of folders that Ascend's quantiser wrote: int8 and int4 with a scale per row, and, where
 * the input's scale is fixed (W8A8), what turns integer sums into outputs.
 */
#ifndef TAMIS_WEIGHTS_BIND_QUANTISED_H
#define TAMIS_WEIGHTS_BIND_QUANTISED_H

#include "weights/binder.h"

/*
 * The scheme of a weight's tensor by the folder's description; FLOAT if there is none. errors:
 * UNSUPPORTED (a scheme that this weight cannot have: the allowed ones), FORMAT (the description
 * says FLOAT and the tensor is not)
 */
tamis_status tamis_binder_scheme(const tamis_binder *b, tamis_weight weight,
                                 const tamis_tensor *tensor, tamis_quant_scheme *out);
/*
 * The matrix of a tensor whose scheme is another than FLOAT, with its companions. While measuring
 * every number beside the weight is checked; in profile exact also that the bias is nothing but the
 * correction of the offset, for the weight alone is the layer then.
 * errors: FORMAT, UNSUPPORTED (profile official; a bias folded in; scales of groups)
 */
tamis_status tamis_bind_quantised(tamis_binder *b, tamis_matrix *out, const tamis_tensor *tensor,
                                  tamis_quant_scheme scheme, int64_t rows, int64_t cols);
/*
 * Two weights that run as one module have one scheme and, where it is fixed, one input. The
 * binder's place counts for `weight`, `first` is the tensor of the other one.
 */
tamis_status tamis_binder_expect_fused(const tamis_binder *b, const tamis_tensor *first,
                                       tamis_weight weight);
/*
 * I8 that no description calls int8 and that is not FP4 either. errors: UNSUPPORTED (the file that
 * is missing), FORMAT (the description does not name the tensor)
 */
tamis_status tamis_binder_refuse_undescribed(const tamis_binder *b, const tamis_tensor *tensor,
                                             bool may_be_fp4);

#endif
