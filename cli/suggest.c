#include "suggest.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

#define MAX_WORD 40

/* Edit distance (insert, delete, replace) of two short words. */
static size_t edit_distance(const char *a, size_t n_a, const char *b, size_t n_b)
{
    size_t row[MAX_WORD + 1];
    for (size_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            const size_t shorter = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replaced < shorter ? replaced : shorter;
        }
    }
    return row[n_b];
}

typedef struct nearest {
    const char *word;
    size_t bytes;
    size_t distance; /* a name must be nearer than this */
    char name[MAX_WORD + 3];
} nearest;

static nearest start(const char *word, size_t bytes)
{
    const size_t near_enough = bytes < 4 ? 1 : bytes < 9 ? 2 : 3;
    return (nearest){.word = word, .bytes = bytes, .distance = near_enough + 1};
}

static void consider(nearest *best, const char *dashes, const char *name)
{
    char spelled[MAX_WORD + 1];
    const size_t bytes = (size_t)snprintf(spelled, sizeof spelled, "%s%s", dashes, name);
    if (bytes > MAX_WORD || best->bytes > MAX_WORD)
        return;
    const size_t distance = edit_distance(best->word, best->bytes, spelled, bytes);
    if (distance < best->distance) {
        best->distance = distance;
        memcpy(best->name, spelled, bytes + 1);
    }
}

static const char *result(const nearest *best)
{
    static char name[MAX_WORD + 3];
    memcpy(name, best->name, sizeof name);
    return name[0] == '\0' ? NULL : name;
}

const char *cli_suggest_option(const char *word, size_t bytes, unsigned command_bit)
{
    nearest best = start(word, bytes);
    for (int id = 0; id < CLI_NUM_OPTIONS; id++) {
        if ((cli_options[id].commands & command_bit) == 0)
            continue;
        consider(&best, "--", cli_options[id].name);
        for (int i = 0; i < CLI_MAX_NAMES; i++)
            if (cli_options[id].other[i] != NULL && bytes > 2)
                consider(&best, "", cli_options[id].other[i]);
    }
    return result(&best);
}

const char *cli_suggest_command(const char *word)
{
    nearest best = start(word, strlen(word));
    for (int id = 0; id < CLI_NUM_COMMANDS; id++)
        consider(&best, "", cli_commands[id].name);
    consider(&best, "", "bench");
    return result(&best);
}
