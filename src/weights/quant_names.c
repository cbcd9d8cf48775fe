#include "weights/quant_names.h"

#include <string.h>

static const char *const endings[TAMIS_NUM_COMPANIONS] = {
    [TAMIS_COMPANION_WEIGHT_SCALE] = ".weight_scale",
    [TAMIS_COMPANION_WEIGHT_OFFSET] = ".weight_offset",
    [TAMIS_COMPANION_INPUT_SCALE] = ".input_scale",
    [TAMIS_COMPANION_INPUT_OFFSET] = ".input_offset",
    [TAMIS_COMPANION_DEQ_SCALE] = ".deq_scale",
    [TAMIS_COMPANION_QUANT_BIAS] = ".quant_bias",
    [TAMIS_COMPANION_SCALE_BIAS] = ".scale_bias",
    [TAMIS_COMPANION_SECOND_SCALE] = ".weight_scale_second",
    [TAMIS_COMPANION_SECOND_OFFSET] = ".weight_offset_second",
};
static const char weight_ending[] = ".weight";

/* `text` with the ending `from` replaced by `to`; false: it ends otherwise, or there is no room. */
static bool replace_ending(char out[TAMIS_NAME_BYTES], const char *text, const char *from,
                           const char *to)
{
    const size_t n = strlen(text), cut = strlen(from);
    if (n < cut || strcmp(text + n - cut, from) != 0 || n - cut + strlen(to) >= TAMIS_NAME_BYTES)
        return false;
    memcpy(out, text, n - cut);
    strcpy(out + n - cut, to);
    return true;
}

bool tamis_companion_spell(char out[TAMIS_NAME_BYTES], const char *weight,
                           tamis_companion companion)
{
    return replace_ending(out, weight, weight_ending, endings[companion]);
}

bool tamis_companion_owner(char out[TAMIS_NAME_BYTES], const char *name)
{
    for (int i = 0; i < TAMIS_NUM_COMPANIONS; i++)
        if (replace_ending(out, name, endings[i], weight_ending))
            return true;
    return false;
}
