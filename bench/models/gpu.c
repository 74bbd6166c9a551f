#include <stdio.h>

#include "bench/models/lane.h"
#include "bench/models/models.h"
#include "bench/models/peer.h"
#include "tests/lib/bench_suite.h"

static bool lacks_deterministic; /* PyTorch, in a model so far */

void models_print_gpu_head(void)
{
    peer_start();
    printf("one lane on a GPU in %s, and PyTorch eager, deterministic; medians of %u rounds in "
           "turn\n"
           "steps/s: samples are copied to the GPU and the gradient to the host; weights: those "
           "too, to the GPU;\nahead: eight lanes that overlap, added up there; beside: the same "
           "on two streams;\nresident: PyTorch with the gradient left on the GPU\n",
           options.precision, options.rounds);
    printf("%-9s %5s %9s %10s %9s %10s %6s %9s %9s %9s %9s\n", "model", "batch", "steps/s",
           "samples/s", "torch", "samples/s", "ratio", "weights", "ahead", "beside", "resident");
    (void)fflush(stdout);
}

static void print_row(const struct bench_model *model, uint32_t batch)
{
    struct lane lane;
    struct models_pairs pairs = {.count = 0};
    double weights[MODELS_ROUNDS_MAX], resident[MODELS_ROUNDS_MAX];
    bool deterministic = true;
    lane_init(&lane, model, batch);
    for (unsigned i = 0; i < options.rounds; i++) {
        const double kelp = lane_rate(&lane, lane_step);
        weights[i] = lane_rate(&lane, lane_step_anew);
        const struct peer_steps steps = peer_ask(model, batch, LANE_SECONDS);
        models_add_pair(&pairs, kelp, steps.copied);
        if (steps.copied > 0) {
            resident[pairs.torch_count - 1] = steps.resident;
        }
        deterministic = deterministic && steps.deterministic;
    }
    const double ahead = lane_rate_ahead(&lane), beside = lane_rate_beside(&lane);
    lane_fini(&lane);
    models_print_pairs(model->name, batch, &pairs, batch);
    printf(" %9.1f %9.1f %9.1f", kelp_bench_median(weights, options.rounds), ahead, beside);
    if (pairs.torch_count > 0) {
        printf(" %9.1f%s\n", kelp_bench_median(resident, pairs.torch_count),
               deterministic ? "" : " *");
    } else {
        printf(" %9s\n", "-");
    }
    lacks_deterministic = lacks_deterministic || !deterministic;
    (void)fflush(stdout);
}

void models_print_gpu(const struct bench_model *model)
{
    print_row(model, model->batch);
    if (model->large_batch != 0) {
        print_row(model, model->large_batch);
    }
}

void models_print_gpu_foot(void)
{
    peer_stop();
    if (lacks_deterministic) {
        printf("* PyTorch has no deterministic algorithm for a part of it\n");
    }
}
