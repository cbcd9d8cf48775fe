/* tamis bench roof: what the machine gives to 1, 2, 4 .. N threads. */
#include "bench_machine.h"
#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"

enum { MAX_ROOFS = 16 };

static void print_text(const tamis_roof *roofs, int n)
{
    bench_print_machine();
    cli_outf("threads  f32 GFLOP/s  int8 GOP/s  stream GB/s  gather GB/s\n");
    for (int i = 0; i < n; i++)
        cli_outf("%7d %12.1f %11.1f %12.1f %12.1f\n", (int)roofs[i].n_threads, roofs[i].f32_gflops,
                 roofs[i].int8_gops, roofs[i].stream_gbs, roofs[i].gather_gbs);
}

static void print_json(const tamis_roof *roofs, int n)
{
    json_t *lines = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(lines, bench_roof_json(&roofs[i]));
    json_t *object = json_pack("{s:o, s:o}", "machine", bench_machine_json(), "roofs", lines);
    cli_out_json(object, 2);
    json_decref(object);
}

int cli_cmd_bench_roof(const cli_args *args)
{
    const int32_t most = cli_has(args, CLI_OPT_THREADS)
                             ? (int32_t)args->value[CLI_OPT_THREADS].integer
                             : bench_default_threads();
    tamis_roof roofs[MAX_ROOFS];
    int n = 0;
    for (int32_t threads = 1;; threads = 2 * threads < most ? 2 * threads : most) {
        if (cli_interrupted())
            return bench_end(CLI_EXIT_INTERRUPTED);
        const int code = bench_measure_roof(threads, bench_seconds(args, 1.0), &roofs[n++]);
        if (code != CLI_EXIT_OK)
            return code;
        if (threads == most)
            break;
    }
    if (cli_has(args, CLI_OPT_JSON))
        print_json(roofs, n);
    else
        print_text(roofs, n);
    return CLI_EXIT_OK;
}
