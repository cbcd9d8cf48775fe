/*
 * The x axis is the logarithm of the context (1 + tokens, so that 0 has a place), the y axis
 * milliseconds per token from 0. Stages are stacked areas in the order in which they run, what is
 * left of the whole step lies on top; the floor is a dashed line. The legend names stages from the
 * top of the stack down. No style sheet, no script: any viewer shows it.
 */
#include "bench_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "message.h"

enum { WIDTH = 820, HEIGHT = 460, LEFT = 70, RIGHT = 190, TOP = 64, BOTTOM = 56 };
enum { MAX_AREAS = TAMIS_MAX_BENCH_STAGES + 1 };

/* Distinct in print and to colour-blind eyes (Okabe and Ito). */
static const char *const colours[] = {"#0072b2", "#56b4e9", "#e69f00", "#d55e00",
                                      "#009e73", "#cc79a7", "#f0e442", "#999999"};

typedef struct plot {
    FILE *file;
    const bench_plot_column *columns;
    size_t n;
    int n_areas; /* stages and the rest */
    double top;  /* ms at the upper end */
} plot;

static double per_token(const bench_plot_column *c, double ms)
{
    return ms / c->num_tokens;
}

/* Height of area i of a column: a stage, or, last, what no stage has. */
static double area_ms(const plot *p, const bench_plot_column *c, int i)
{
    const tamis_bench_layer_result *r = c->result;
    double rest = r->ms;
    if (i < p->n_areas - 1)
        return per_token(c, r->stages[i].ms);
    for (int s = 0; s < p->n_areas - 1; s++)
        rest -= r->stages[s].ms;
    return per_token(c, rest > 0 ? rest : 0);
}

static double x_of(const plot *p, const bench_plot_column *c)
{
    const double first = log2(1.0 + p->columns[0].context);
    const double last = log2(1.0 + p->columns[p->n - 1].context);
    return LEFT + (WIDTH - LEFT - RIGHT) * (log2(1.0 + c->context) - first) / (last - first);
}

static double y_of(const plot *p, double ms)
{
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ms / p->top;
}

/* ---------------------------------------------------------------- parts */

static void put_text(plot *p, double x, double y, const char *anchor, int size, const char *text)
{
    fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\">", x, y,
            anchor, size);
    for (; *text != '\0'; text++)
        if (*text == '&')
            fputs("&amp;", p->file);
        else if (*text == '<')
            fputs("&lt;", p->file);
        else
            fputc(*text, p->file);
    fputs("</text>\n", p->file);
}

static void put_area(plot *p, int area, double *below)
{
    fputs("<path d=\"", p->file);
    for (size_t i = 0; i < p->n; i++)
        fprintf(p->file, "%c%.1f %.1f ", i == 0 ? 'M' : 'L', x_of(p, &p->columns[i]),
                y_of(p, below[i]));
    for (size_t i = p->n; i-- > 0;) {
        below[i] += area_ms(p, &p->columns[i], area);
        fprintf(p->file, "L%.1f %.1f ", x_of(p, &p->columns[i]), y_of(p, below[i]));
    }
    fprintf(p->file, "Z\" fill=\"%s\" fill-opacity=\"0.85\"/>\n", colours[area % 8]);
}

static void put_floor(plot *p)
{
    fputs("<polyline fill=\"none\" stroke=\"black\" stroke-width=\"2\" stroke-dasharray=\"6 4\" "
          "points=\"",
          p->file);
    for (size_t i = 0; i < p->n; i++)
        fprintf(p->file, "%.1f,%.1f ", x_of(p, &p->columns[i]),
                y_of(p, per_token(&p->columns[i], p->columns[i].result->floor_ms)));
    fputs("\"/>\n", p->file);
}

/* 1, 2 or 5 times a power of ten, so that there are at most six of them. */
static double tick_step(double top)
{
    double step = pow(10, floor(log10(top / 6)));
    while (top / step > 6)
        step *= top / step > 30 ? 5 : 2;
    return step;
}

static void put_axes(plot *p)
{
    char text[32];
    const double step = tick_step(p->top);
    for (int i = 0; i * step <= p->top; i++) {
        const double y = y_of(p, i * step);
        fprintf(p->file, "<path d=\"M%d %.1fH%d\" stroke=\"#ccc\"/>\n", LEFT, y, WIDTH - RIGHT);
        snprintf(text, sizeof text, "%g", i * step);
        put_text(p, LEFT - 8, y + 4, "end", 12, text);
    }
    for (size_t i = 0; i < p->n; i++) {
        const int32_t n = p->columns[i].context;
        const double x = x_of(p, &p->columns[i]);
        fprintf(p->file, "<path d=\"M%.1f %dv6\" stroke=\"black\"/>\n", x, HEIGHT - BOTTOM);
        if (n >= 1 << 20 && n % (1 << 20) == 0)
            snprintf(text, sizeof text, "%dM", (int)(n >> 20));
        else if (n >= 1024 && n % 1024 == 0)
            snprintf(text, sizeof text, "%dK", (int)(n >> 10));
        else
            snprintf(text, sizeof text, "%d", (int)n);
        put_text(p, x, HEIGHT - BOTTOM + 20, "middle", 12, text);
    }
    put_text(p, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, "middle", 12, "context, tokens");
    put_text(p, 12, TOP - 12, "start", 12, "ms per token");
}

static void put_legend(plot *p)
{
    double y = TOP + 10;
    for (int i = p->n_areas - 1; i >= 0; i--, y += 22) {
        const bool is_rest = i == p->n_areas - 1;
        fprintf(p->file, "<rect x=\"%d\" y=\"%.1f\" width=\"14\" height=\"14\" fill=\"%s\"/>\n",
                WIDTH - RIGHT + 20, y - 11, colours[i % 8]);
        put_text(p, WIDTH - RIGHT + 42, y, "start", 13,
                 is_rest ? "everything else" : p->columns[0].result->stages[i].name);
    }
    fprintf(p->file,
            "<path d=\"M%d %.1fh14\" stroke=\"black\" stroke-width=\"2\" "
            "stroke-dasharray=\"6 4\"/>\n",
            WIDTH - RIGHT + 20, y - 4);
    put_text(p, WIDTH - RIGHT + 42, y, "start", 13, "floor");
}

static void put_all(plot *p, const char *title, const char *subtitle)
{
    double below[128] = {0};
    fprintf(p->file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_text(p, 12, 22, "start", 16, title);
    put_text(p, 12, 40, "start", 12, subtitle);
    put_axes(p);
    for (int i = 0; i < p->n_areas; i++)
        put_area(p, i, below);
    put_floor(p);
    put_legend(p);
    fputs("</svg>\n", p->file);
}

int bench_plot_write(const char *path, const char *title, const char *subtitle,
                     const bench_plot_column *columns, size_t n)
{
    plot p = {.columns = columns, .n = n, .n_areas = columns[0].result->n_stages + 1};
    for (size_t i = 0; i < n; i++) {
        double ms = 0;
        for (int a = 0; a < p.n_areas; a++)
            ms += area_ms(&p, &columns[i], a);
        p.top = fmax(p.top, 1.05 * fmax(ms, per_token(&columns[i], columns[i].result->floor_ms)));
    }
    p.file = fopen(path, "w");
    if (p.file == NULL)
        return cli_fail_errno(CLI_EXIT_RUN, path);
    put_all(&p, title, subtitle);
    const bool is_bad = ferror(p.file) != 0;
    if (fclose(p.file) != 0 || is_bad)
        return cli_fail_errno(CLI_EXIT_RUN, path);
    return CLI_EXIT_OK;
}
