/* The table behind tamis inspect --profile: a profile's arithmetic, stage by stage. */
#ifndef CLI_NUMERICS_H
#define CLI_NUMERICS_H

#include <tamis/engine.h>

void cli_print_numerics(const tamis_inspection *inspection);

#endif
