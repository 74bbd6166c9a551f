#include "cli/bench/bench_rate.h"

#include <inttypes.h>

#include "common/base/json.h"
#include "common/base/value.h"

void kelp_bench_rate_head(const char *of_what, FILE *out)
{
    (void)fprintf(out, "%-14s %9s %8s %10s %9s %9s %9s %9s %7s\n", of_what, "size", "GB/s", "ops/s",
                  "p50 us", "p99 us", "CPU s/GB", "thread", "copy %");
}

void kelp_bench_rate_row(const struct kelp_bench_rate *rate, double copy_gb_per_s, FILE *out)
{
    char size[KELP_VALUE_TEXT_MAX], part[16] = "-", thread[16] = "-";

    kelp_value_print_size(rate->bytes, size);
    if (copy_gb_per_s > 0) {
        (void)snprintf(part, sizeof(part), "%.1f", 100 * rate->gb_per_s / copy_gb_per_s);
    }
    if (!rate->limit) {
        (void)snprintf(thread, sizeof(thread), "%.3f", rate->thread_s_per_gb);
    }
    (void)fprintf(out, "%-14s %9s %8.3f %10.1f %9.1f %9.1f %9.3f %9s %7s\n", rate->way, size,
                  rate->gb_per_s, rate->operations_per_s, rate->p50_us, rate->p99_us,
                  rate->cpu_s_per_gb, thread, part);
}

static void print_number(FILE *out, const char *name, double value)
{
    (void)fprintf(out, ",\"%s\":", name);
    kelp_json_print_double(out, value);
}

void kelp_bench_rate_json(const struct kelp_bench_rate *rate, FILE *out)
{
    kelp_json_print_member(out, "{", "way", rate->way);
    (void)fprintf(out, ",\"limit\":%s,\"bytes\":%" PRIu64, rate->limit ? "true" : "false",
                  rate->bytes);
    print_number(out, "gb_per_s", rate->gb_per_s);
    print_number(out, "operations_per_s", rate->operations_per_s);
    print_number(out, "p50_us", rate->p50_us);
    print_number(out, "p99_us", rate->p99_us);
    print_number(out, "cpu_s_per_gb", rate->cpu_s_per_gb);
    if (!rate->limit) {
        print_number(out, "thread_s_per_gb", rate->thread_s_per_gb);
    }
    (void)fputc('}', out);
}
