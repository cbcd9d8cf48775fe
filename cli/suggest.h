/* "Did you mean": the nearest of some names. */
#ifndef CLI_SUGGEST_H
#define CLI_SUGGEST_H

#include <stddef.h>

/* Option (spelled with dashes) or command nearest to `word`; NULL if none is near. */
const char *cli_suggest_option(const char *word, size_t bytes, unsigned command_bit);
const char *cli_suggest_command(const char *word);

#endif
