#include "weights/weight_fault.h"

#include <string.h>

#include "kernels/formats.h"
#include "weights/names.h"

static const char *float_fault(float value)
{
    return value != value ? "NaN" : value - value != 0.0f ? "infinity" : NULL;
}

/* U8 and I8 tensors hold E8M0 bytes if their name says that they are scales. */
static bool is_e8m0(const tamis_tensor *tensor)
{
    char owner[TAMIS_NAME_BYTES];
    return tensor->dtype == TAMIS_DTYPE_F8_E8M0 ||
           ((tensor->dtype == TAMIS_DTYPE_U8 || tensor->dtype == TAMIS_DTYPE_I8) &&
            tamis_scale_owner(owner, tensor->name));
}

/* What is wrong with element i, or NULL. FP4 and integers have no invalid codes. */
static const char *element_fault(const tamis_tensor *tensor, uint64_t i)
{
    switch (tensor->dtype) {
    case TAMIS_DTYPE_F32:
        return float_fault(tamis_load_f32(tensor->data + 4 * i));
    case TAMIS_DTYPE_BF16:
        return float_fault(tamis_bf16_to_f32(tamis_load_u16(tensor->data + 2 * i)));
    case TAMIS_DTYPE_F16:
        return float_fault(tamis_f16_to_f32(tamis_load_u16(tensor->data + 2 * i)));
    case TAMIS_DTYPE_F8_E4M3:
        return (tensor->data[i] & 0x7f) == 0x7f ? "FP8 NaN" : NULL;
    default:
        return is_e8m0(tensor) && tensor->data[i] == 255 ? "E8M0 scale byte 255" : NULL;
    }
}

static bool find_in_tensor(const tamis_tensor *tensor, tamis_weight_fault *out)
{
    const uint64_t width = (uint64_t)tamis_dtype_bits(tensor->dtype) / 8;
    const bool may_be_damaged = tensor->dtype <= TAMIS_DTYPE_F8_E4M3 || is_e8m0(tensor);
    for (uint64_t i = 0; may_be_damaged && i < tensor->bytes / width; i++) {
        const char *what = element_fault(tensor, i);
        if (what != NULL) {
            *out = (tamis_weight_fault){tensor->name, (int64_t)i, what};
            return true;
        }
    }
    return false;
}

bool tamis_weights_find_fault(tamis_checkpoint *checkpoint, const tamis_model_config *config,
                              int32_t layer, tamis_weight_fault *out)
{
    const int32_t n = tamis_checkpoint_num_tensors(checkpoint);
    for (int32_t i = 0; i < n; i++) {
        const tamis_tensor *tensor = tamis_checkpoint_tensor(checkpoint, i);
        if (tensor->is_used && tamis_tensor_place_of(config, tensor->name).layer == layer &&
            find_in_tensor(tensor, out))
            return true;
    }
    return false;
}
