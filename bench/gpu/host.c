#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/gpu/gpu.h"

#define TRANSFER_BYTES (64u * GPU_MI)

static struct kelp_stream *stream;
static struct gpu_memory memory;

static double measure(void (*run)(const void *), const void *argument)
{
    return gpu_measure(stream, run, argument);
}

static void wait_all(void)
{
    struct kelp_error error = {KELP_OK, ""};
    if (stream->table->wait(stream, &error) != KELP_OK) {
        gpu_fail(&error);
    }
}

/* A copy of TRANSFER_BYTES in pieces. */
struct transfer {
    const char *name;
    bool in, pinned;
    size_t piece;
    void *host;
};

static void run_transfer(const void *argument)
{
    const struct transfer *transfer = argument;
    char *host = transfer->host, *more = (char *)memory.more;
    for (size_t at = 0; at < TRANSFER_BYTES; at += transfer->piece) {
        if (transfer->in) {
            stream->table->copy_in(stream, more + at, host + at, transfer->piece);
        } else {
            stream->table->copy_out(stream, host + at, more + at, transfer->piece);
        }
    }
}

static void run_tiny(const void *argument)
{
    (void)argument;
    stream->table->fill(stream, memory.small, 0.5f, 1);
}

static void run_tiny_and_wait(const void *argument)
{
    run_tiny(argument);
    wait_all();
}

/* The last column is relative to one copy of pinned memory, which is measured first. */
static void bench_transfers(struct kelp_device *device)
{
    static struct transfer transfers[] = {
        {"copy_in 64 MiB of pinned memory", true, true, TRANSFER_BYTES, NULL},
        {"copy_in 64 x 1 MiB of pinned memory", true, true, GPU_MI, NULL},
        {"copy_in 64 MiB of ordinary memory", true, false, TRANSFER_BYTES, NULL},
        {"copy_out 64 MiB to pinned memory", false, true, TRANSFER_BYTES, NULL},
        {"copy_out 64 x 1 MiB to pinned memory", false, true, GPU_MI, NULL},
        {"copy_out 64 MiB to ordinary memory", false, false, TRANSFER_BYTES, NULL},
    };
    struct kelp_error error = {KELP_OK, ""};
    void *pinned = NULL, *ordinary = malloc(TRANSFER_BYTES);
    if (ordinary == NULL) {
        gpu_fail(&(struct kelp_error){KELP_ERR_NO_MEMORY, "out of memory"});
    }
    if (device->table->host_alloc(device, TRANSFER_BYTES, &pinned, &error) != KELP_OK) {
        gpu_fail(&error);
    }
    memset(ordinary, 0, TRANSFER_BYTES); /* touches all pages */
    memset(pinned, 0, TRANSFER_BYTES);
    double pinned_gbs = 0.0;
    printf("\n| the host | us | GB/s | of a pinned copy |\n|---|--:|--:|--:|\n");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(transfers); i++) {
        struct transfer *transfer = &transfers[i];
        transfer->host = transfer->pinned ? pinned : ordinary;
        const double seconds = measure(run_transfer, transfer);
        const double gbs = 1e-9 * TRANSFER_BYTES / seconds;
        pinned_gbs = transfer->pinned && transfer->piece == TRANSFER_BYTES ? gbs : pinned_gbs;
        printf("| %s | %.1f | %.1f | %.1f %% |\n", transfer->name, seconds * 1e6, gbs,
               100.0 * gbs / pinned_gbs);
    }
    device->table->host_free(device, pinned);
    free(ordinary);
}

void gpu_bench_host(struct kelp_device *device, struct kelp_stream *on,
                    const struct gpu_memory *room)
{
    stream = on;
    memory = *room;
    bench_transfers(device);
    printf("| one of many launches | %.2f | | |\n", measure(run_tiny, NULL) * 1e6);
    printf("| a launch and wait() | %.2f | | |\n", measure(run_tiny_and_wait, NULL) * 1e6);
}
