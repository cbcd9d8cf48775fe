/* The demo model with a raised maximum, its held-out text repeated, and this process's memory. */
#ifndef TAMIS_TEST_LONG_TEXT_H
#define TAMIS_TEST_LONG_TEXT_H

#include <stdint.h>

/* A temporary copy of models/demo whose config allows max_len tokens; test_temp_dir_remove it. */
char *test_demo_with_max_len(int32_t max_len);
/* n ids: BOS, then the tokens of models/demo/valid.txt over and over; freed by the caller. */
int32_t *test_long_ids(int32_t n);
/* Anonymous resident memory of this process in bytes. */
uint64_t test_rss_anon(void);

#endif
