#include "bench_machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include <tamis/engine.h>

#include "message.h"
#include "output.h"

/* ---------------------------------------------------------------- machine */

const char *bench_cpu_name(void)
{
    static char name[256];
    struct utsname system;
    char line[512];
    if (name[0] != '\0')
        return name;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && name[0] == '\0' && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "model name : %255[^\n]", name) != 1)
            name[0] = '\0';
    if (file != NULL)
        fclose(file);
    if (name[0] == '\0' && uname(&system) == 0)
        snprintf(name, sizeof name, "%s", system.machine);
    return name;
}

const char *bench_date(char text[BENCH_DATE_BYTES])
{
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(text, BENCH_DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return text;
}

int32_t bench_default_threads(void)
{
    return tamis_session_params_default().n_threads;
}

void bench_print_machine(void)
{
    char date[BENCH_DATE_BYTES];
    cli_outf("machine  %s, %d CPUs for this process, %s kernels, tamis %s, %s\n", bench_cpu_name(),
             (int)bench_default_threads(), tamis_cpu_level_name(tamis_cpu_level_current()),
             TAMIS_VERSION, bench_date(date));
}

json_t *bench_machine_json(void)
{
    char date[BENCH_DATE_BYTES];
    return json_pack("{s:s, s:i, s:s, s:s, s:s}", "cpu", bench_cpu_name(), "cpus",
                     (int)bench_default_threads(), "level",
                     tamis_cpu_level_name(tamis_cpu_level_current()), "version", TAMIS_VERSION,
                     "date", bench_date(date));
}

/* ---------------------------------------------------------------- roofs */

int bench_measure_roof(int32_t n_threads, double seconds, tamis_roof *out)
{
    tamis_team *team = NULL;
    tamis_error err = {0};
    tamis_status st = tamis_team_open(&team, n_threads, &err);
    if (st == TAMIS_STATUS_OK)
        st = tamis_roof_measure(team, seconds, out, &err);
    tamis_team_close(&team);
    return st == TAMIS_STATUS_OK ? CLI_EXIT_OK : cli_fail(cli_exit_code(st), "%s", err.text);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

int bench_roofs_begin(bench_roofs *roofs, int32_t n_threads, double seconds)
{
    const int code = bench_measure_roof(n_threads, seconds, &roofs->before);
    roofs->after = roofs->best = roofs->before;
    return code;
}

int bench_roofs_end(bench_roofs *roofs, double seconds)
{
    const tamis_roof *a = &roofs->before, *b = &roofs->after;
    const int code = bench_measure_roof(a->n_threads, seconds, &roofs->after);
    roofs->best = (tamis_roof){.n_threads = a->n_threads,
                               .f32_gflops = larger(a->f32_gflops, b->f32_gflops),
                               .int8_gops = larger(a->int8_gops, b->int8_gops),
                               .stream_gbs = larger(a->stream_gbs, b->stream_gbs),
                               .gather_gbs = larger(a->gather_gbs, b->gather_gbs)};
    return code;
}

void bench_print_roofs(const bench_roofs *roofs)
{
    const tamis_roof *a = &roofs->before, *b = &roofs->after;
    cli_outf("roof     %d thread%s, before and after: f32 %.1f %.1f GFLOP/s, int8 %.1f %.1f GOP/s, "
             "stream %.1f %.1f GB/s, gather %.1f %.1f GB/s\n",
             (int)a->n_threads, a->n_threads == 1 ? "" : "s", a->f32_gflops, b->f32_gflops,
             a->int8_gops, b->int8_gops, a->stream_gbs, b->stream_gbs, a->gather_gbs,
             b->gather_gbs);
}

json_t *bench_roof_json(const tamis_roof *roof)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:f}", "threads", (int)roof->n_threads, "f32_gflops",
                     roof->f32_gflops, "int8_gops", roof->int8_gops, "stream_gbs", roof->stream_gbs,
                     "gather_gbs", roof->gather_gbs);
}

json_t *bench_roofs_json(const bench_roofs *roofs)
{
    return json_pack("{s:o, s:o}", "before", bench_roof_json(&roofs->before), "after",
                     bench_roof_json(&roofs->after));
}

/* ---------------------------------------------------------------- options */

bench_list bench_list_of(const cli_args *args, cli_option_id id, const int32_t *default_value)
{
    const cli_value *value = &args->value[id];
    if (value->is_set)
        return (bench_list){value->ints, value->n_ints};
    return (bench_list){default_value, 1};
}

int bench_end(int code)
{
    if (code == CLI_EXIT_INTERRUPTED)
        cli_info("interrupted");
    return code;
}

double bench_seconds(const cli_args *args, double default_value)
{
    return cli_has(args, CLI_OPT_SECONDS) ? args->value[CLI_OPT_SECONDS].real : default_value;
}
