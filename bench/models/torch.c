#include <stdio.h>
#include <stdlib.h>

#include "bench/models/models.h"
#include "tests/lib/bench_suite.h"

void models_add_pair(struct models_pairs *pairs, double kelp, double torch)
{
    pairs->kelp[pairs->count++] = kelp;
    if (torch > 0) {
        pairs->torch[pairs->torch_count] = torch;
        pairs->ratios[pairs->torch_count++] = kelp / torch;
    }
}

void models_print_pairs(const char *name, uint32_t batch, struct models_pairs *pairs,
                        uint32_t samples)
{
    const double steps = kelp_bench_median(pairs->kelp, pairs->count);
    printf("%-9s %5u %9.1f %10.0f", name, batch, steps, steps * samples);
    if (pairs->torch_count > 0) {
        const double other = kelp_bench_median(pairs->torch, pairs->torch_count);
        printf(" %9.1f %10.0f %6.2f", other, other * samples,
               kelp_bench_median(pairs->ratios, pairs->torch_count));
    } else {
        printf(" %9s %10s %6s", "-", "-", "-");
    }
}

const char *models_script_path(char path[400])
{
    const char *source = getenv("KELP_SOURCE");
    if (options.scripts) {
        (void)snprintf(path, 400, "%s/torch_models.py", options.scripts);
    } else {
        (void)snprintf(path, 400, "%s/bench/torch_models.py", source ? source : ".");
    }
    return path;
}
