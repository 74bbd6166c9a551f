#include <stdio.h>
#include <string.h>

#include <check.h>

#include "bench/models/lane.h"
#include "bench/models/models.h"
#include "bench/models/roofline.h"
#include "bench/models/trace.h"
#include "common/base/clock.h"

#define TRACED_SECONDS 0.1
#define TRACED_NODES   1000u
#define WARM_NODES     2
#define SHOWN          12

/* Of one step that is not recorded: the operators that it asks for. */
static void count(const struct bench_model *model, uint32_t batch)
{
    struct lane lane;
    roofline_count(true);
    lane_init(&lane, model, batch);
    roofline_count(false);
    roofline.seconds = 0;
    roofline.operators = 0;
    lane_step(&lane);
    lane_fini(&lane);
}

static double measure(const struct bench_model *model, uint32_t batch)
{
    struct lane lane;
    lane_init(&lane, model, batch);
    const double seconds = 1 / lane_rate_ahead(&lane);
    lane_fini(&lane);
    return seconds;
}

/* The lanes that were traced; 0: no CUPTI. It watches from the beginning, so that it knows what was
 * recorded. */
static unsigned trace(const struct bench_model *model, uint32_t batch, struct trace *ret)
{
    struct lane lane;
    unsigned nodes = 0;
    if (!trace_begin()) {
        return 0;
    }
    lane_init(&lane, model, batch);
    for (unsigned i = 0; i < WARM_NODES; i++) {
        lane_node(&lane);
    }
    trace_forget();
    const uint64_t begin_us = kelp_clock_us();
    do {
        lane_node(&lane);
        nodes++;
    } while (1e-6 * (double)(kelp_clock_us() - begin_us) < TRACED_SECONDS && nodes < TRACED_NODES);
    trace_end(ret);
    lane_fini(&lane);
    return nodes * NODE_LANES;
}

static void print_kernels(const struct trace *trace, unsigned lanes)
{
    double others = 0;
    for (size_t i = 0; i < trace->count; i++) {
        const struct trace_kernel *kernel = &trace->by_name[i];
        if (i >= SHOWN) {
            others += kernel->seconds;
            continue;
        }
        printf("    %9.2f us %5.1f %% %7.2f times  %.120s\n", 1e6 * kernel->seconds / lanes,
               100 * kernel->seconds / trace->running, (double)kernel->count / lanes, kernel->name);
    }
    if (trace->count > SHOWN) {
        printf("    %9.2f us %5.1f %%  %zu others\n", 1e6 * others / lanes,
               100 * others / trace->running, trace->count - SHOWN);
    }
}

static void print_row(const struct bench_model *model, uint32_t batch)
{
    struct trace seen = {0};
    count(model, batch);
    const double seconds = measure(model, batch);
    const unsigned lanes = trace(model, batch, &seen);
    printf("%-9s %5u %9.1f %9u %9.1f %6.1f %%", model->name, batch, 1e6 * seconds,
           roofline.operators, 1e6 * roofline.seconds, 100 * roofline.seconds / seconds);
    if (lanes > 0 && seen.window > 0) {
        printf(" %9.1f %9.1f %9.1f %6.1f %%\n", 1e6 * seen.window / lanes,
               1e6 * seen.running / lanes, 1e6 * seen.kernels / lanes,
               100 * (1 - seen.running / seen.window));
        print_kernels(&seen, lanes);
    } else {
        printf(" %9s %9s %9s %8s\n", "-", "-", "-", "-");
    }
    if (seen.lost > 0) {
        printf("    CUPTI lost %llu records\n", (unsigned long long)seen.lost);
    }
    (void)fflush(stdout);
    trace_fini(&seen);
}

static enum kelp_product_precision precision(void)
{
    return strcmp(options.precision, "tf32") == 0       ? KELP_PRODUCT_TF32
           : strcmp(options.precision, "bfloat16") == 0 ? KELP_PRODUCT_BFLOAT16
                                                        : KELP_PRODUCT_FLOAT32;
}

static void measure_device(void)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_device *device = NULL;
    struct kelp_stream *stream = NULL;
    kelp_status status = kelp_device_cuda_create(0, &device, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    if (device->table->set_precision) {
        status = device->table->set_precision(device, precision(), &error);
        ck_assert_msg(status == KELP_OK, "%s", error.text);
    }
    status = device->table->stream_create(device, &stream, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    roofline_measure(stream);
    device->table->stream_destroy(stream);
    device->table->destroy(device);
}

void models_print_kernels_head(void)
{
    measure_device();
    printf("one lane of eight on a GPU in %s, in us; a large product runs at %.1f TFLOP/s, a large "
           "copy at %.0f GB/s\n"
           "lane: measured; limit: what its operators need at these speeds; the rest with CUPTI, "
           "which slows it:\n"
           "traced: from the first kernel's or copy's begin to the last one's end; running: at "
           "least one runs;\nkernels: at least one kernel runs; idle: nothing runs\n",
           options.precision, 1e-12 * roofline.flop_s, 1e-9 * roofline.byte_s);
    printf("%-9s %5s %9s %9s %9s %8s %9s %9s %9s %8s\n", "model", "batch", "lane", "operators",
           "limit", "of lane", "traced", "running", "kernels", "idle");
    (void)fflush(stdout);
}

void models_print_kernels(const struct bench_model *model)
{
    print_row(model, model->batch);
    if (model->large_batch != 0) {
        print_row(model, model->large_batch);
    }
}
