#include "attention/common/profile_checks.h"

#include "core/error.h"

tamis_status tamis_check_profile_matrix(const char *object, const char *name, const tamis_matrix *w,
                                        tamis_profile profile, tamis_error *err)
{
    if (profile != TAMIS_PROFILE_OFFICIAL ||
        (w->dtype != TAMIS_DTYPE_I8 && w->dtype != TAMIS_DTYPE_I4))
        return TAMIS_STATUS_OK;
    return tamis_fail(err, TAMIS_STATUS_UNSUPPORTED,
                      "%s: %s is %s, allowed F32, BF16, F16, F8_E4M3, F4_E2M1 (profile %s)", object,
                      name, tamis_dtype_name(w->dtype), tamis_profile_name(profile));
}
