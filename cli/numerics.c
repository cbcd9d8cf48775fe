#include "numerics.h"

#include <stdio.h>
#include <string.h>

#include "output.h"

enum { N_COLUMNS = 8, CELL_BYTES = 96 };

static const char *const headings[N_COLUMNS] = {"layers", "stage",      "weights", "input",
                                                "output", "cache rows", "class",   "source"};

static const char *cell_of(const tamis_numerics_line *line, int column, char text[CELL_BYTES])
{
    const char *const texts[N_COLUMNS] = {line->layers, line->stage, line->weights, line->input,
                                          line->output, "-",         line->numeric, line->source};
    if (column != 5 || line->rows == NULL)
        return texts[column];
    snprintf(text, CELL_BYTES, "%s, %d bytes", line->rows, (int)line->row_bytes);
    return text;
}

static void measure(const tamis_inspection *in, size_t widths[N_COLUMNS])
{
    char text[CELL_BYTES];
    for (int c = 0; c < N_COLUMNS; c++) {
        widths[c] = strlen(headings[c]);
        for (int32_t i = 0; i < in->n_numerics; i++) {
            const size_t n = strlen(cell_of(&in->numerics[i], c, text));
            widths[c] = n > widths[c] ? n : widths[c];
        }
    }
}

static void print_cell(const char *text, size_t width, int column)
{
    const bool is_last = column + 1 == N_COLUMNS;
    cli_outf("%-*s%s", is_last ? 0 : (int)width, text, is_last ? "\n" : "  ");
}

void cli_print_numerics(const tamis_inspection *in)
{
    char text[CELL_BYTES];
    size_t widths[N_COLUMNS];
    measure(in, widths);
    cli_outf("\nnumerics, profile %s\n", in->info->profile);
    for (int c = 0; c < N_COLUMNS; c++)
        print_cell(headings[c], widths[c], c);
    for (int32_t i = 0; i < in->n_numerics; i++)
        for (int c = 0; c < N_COLUMNS; c++)
            print_cell(cell_of(&in->numerics[i], c, text), widths[c], c);
}
