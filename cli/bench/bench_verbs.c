#include "cli/bench/bench_verbs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A gradient or two and two sets of weights in each worker, two sets, a sum and a gradient of each
 * worker in the shards, and as much under way. */
#define TIMES_OF_WORKER 6
#define TIMES_OF_SHARDS 3

#define FILES_BESIDE 128 /* the standard ones, etcd, those of libraries */

const struct kelp_verb *const kelp_bench_verbs[] = {
    &kelp_bench_verb_pushpull,
    &kelp_bench_verb_optimizer,
    &kelp_bench_verb_steps,
    &kelp_bench_verb_scale,
    &kelp_bench_verb_worker,
    &kelp_bench_verb_crowd,
    NULL,
};

enum { EACH, GRPC, SHM };
const char *const kelp_bench_transports[] = {
    [EACH] = "each", [GRPC] = "grpc", [SHM] = "shm", "auto", NULL};

bool kelp_bench_chosen(uint32_t given, uint32_t transport)
{
    return given == EACH ? transport == GRPC || transport == SHM : transport == given;
}

uint32_t kelp_bench_lanes(uint32_t workers)
{
    uint32_t lanes = 1;

    while (lanes < workers) {
        lanes *= 2;
    }
    return lanes;
}

kelp_status kelp_bench_size(const char *text, const char *option, uint64_t *ret_bytes,
                            struct kelp_error *reterr)
{
    uint64_t bytes = 0;

    kelp_status status =
        kelp_value_size(text, KELP_BENCH_BYTES_MIN, KELP_BENCH_BYTES_MAX, &bytes, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--%s", option);
        return status;
    }
    if (bytes % 64 != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--%s '%.64s': expected a multiple of 64 bytes",
                         option, text);
    }
    *ret_bytes = bytes;
    return KELP_OK;
}

kelp_status kelp_bench_sizes(const char *text, const char *option,
                             struct kelp_bench_sizes *ret_sizes, struct kelp_error *reterr)
{
    struct kelp_bench_sizes sizes = {.count = 0};
    char one[32];

    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        if (sizes.count == KELP_BENCH_SIZES_MAX) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "--%s: expected at most %d sizes", option,
                             KELP_BENCH_SIZES_MAX);
        }
        (void)snprintf(one, sizeof(one), "%.*s", (int)strcspn(at, ","), at);
        kelp_status status = kelp_bench_size(one, option, &sizes.bytes[sizes.count++], reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    *ret_sizes = sizes;
    return KELP_OK;
}

kelp_status kelp_bench_sizes_fit(const struct kelp_bench_sizes *sizes, uint32_t workers,
                                 uint64_t memory_bytes, struct kelp_error *reterr)
{
    const uint64_t times = TIMES_OF_WORKER * (uint64_t)workers + TIMES_OF_SHARDS;

    for (uint32_t i = 0; i < sizes->count; i++) {
        if (sizes->bytes[i] > memory_bytes / times) {
            char size[KELP_VALUE_TEXT_MAX];
            kelp_value_print_size(sizes->bytes[i], size);
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "--size %s with %" PRIu32
                             " workers takes about %.1f GiB of memory, but there are only %.1f; "
                             "use fewer workers or a smaller size",
                             size, workers, (double)(sizes->bytes[i] * times) / (1 << 30),
                             (double)memory_bytes / (1 << 30));
        }
    }
    return KELP_OK;
}

kelp_status kelp_bench_crowd_fits(uint32_t workers, uint64_t files_max, struct kelp_error *reterr)
{
    const uint64_t files = 2 * (uint64_t)workers + FILES_BESIDE;

    return files <= files_max
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT,
                           "%" PRIu32 " workers take %" PRIu64
                           " open files, and a process may have "
                           "%" PRIu64 "; use fewer workers, or raise the limit (ulimit -Hn)",
                           workers, files, files_max);
}

int kelp_bench_failed(kelp_status status, const struct kelp_error *error, int signal_number)
{
    if (signal_number != 0) {
        return kelp_complain(128 + signal_number, "stopped by a signal");
    }
    /* etcd, programs, or options that do not fit this machine */
    const bool usage =
        status == KELP_ERR_NOT_FOUND || status == KELP_ERR_INVALID || status == KELP_ERR_LIMIT;
    return kelp_complain(usage ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error->text);
}
