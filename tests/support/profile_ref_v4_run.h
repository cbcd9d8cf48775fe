/*
 * A whole folder through the slow reference of the profiles (profile_ref_v4.h), layer by layer, on
 * what the engine itself feeds its layers. Prints a line of figures; fails the running cmocka test.
 */
#ifndef TAMIS_TEST_PROFILE_REF_V4_RUN_H
#define TAMIS_TEST_PROFILE_REF_V4_RUN_H

#include "support/profile_ref_v4.h"

/* Tokens fed: two rows of ratio 128, more rows of ratio 4 than any indexer selects. */
enum { PV4_TOKENS = 264 };

/* Tokens whose stages are checked, [PV4_TOKENS], to be freed by the caller: the first ones, those
 * around every border of this layer, some between. */
uint8_t *pv4_wanted(const tamis_dsa_config *c);

/*
 * Attention of every layer. ids [PV4_TOKENS]; kv_cache_dtype as in tamis_cache_params. label: the
 * folder in messages.
 */
void pv4_check_folder_attention(const char *label, const char *dir, tamis_profile profile,
                                tamis_dtype kv_cache_dtype, const int32_t *ids);
/* Router, experts, hyper-connections, head, and the MTP block if the folder has one. ids [41] at
 * least. */
void pv4_check_folder_model(const char *label, const char *dir, tamis_profile profile,
                            const int32_t *ids);

#endif
