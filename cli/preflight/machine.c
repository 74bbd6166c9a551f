#include "cli/preflight/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/footprint.h"

#define TEXT_MAX    8192
#define GROUPS      "/sys/fs/cgroup"
#define GROUP_BYTES 512

/* ---- what is there ------------------------------------------------------------------------- */

/* Bytes of "NAME:   123 kB"; 0: there is no such line. */
static uint64_t kib_of(const char *text, const char *name)
{
    const char *line = strstr(text, name);

    return line ? strtoull(line + strlen(name), NULL, 10) * 1024 : 0;
}

uint64_t kelp_machine_meminfo(const char *text)
{
    uint64_t memory = kib_of(text, "MemTotal:");

    return memory > 0 ? memory + kib_of(text, "SwapTotal:") : 0;
}

bool kelp_machine_group(const char *text, char *path, size_t path_bytes)
{
    const char *line = strncmp(text, "0::/", 4) == 0 ? text : strstr(text, "\n0::/");

    if (!line) {
        return false;
    }
    line = strchr(line, '/');
    int length = snprintf(path, path_bytes, GROUPS "%.*s", (int)strcspn(line, "\n"), line);
    while (length > 0 && (size_t)length < path_bytes && path[length - 1] == '/') {
        path[--length] = '\0';
    }
    return length > 0 && (size_t)length < path_bytes;
}

/* The beginning of a file; false when it cannot be read. */
static bool read_text(const char *path, char text[TEXT_MAX])
{
    FILE *in = fopen(path, "re");

    if (!in) {
        return false;
    }
    size_t count = fread(text, 1, TEXT_MAX - 1, in);
    (void)fclose(in); /* only read from */
    text[count] = '\0';
    return count > 0;
}

static uint64_t limit_of(const char *folder, const char *name)
{
    char path[GROUP_BYTES + 32], text[TEXT_MAX];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (!read_text(path, text) || text[0] < '0' || text[0] > '9') {
        return UINT64_MAX; /* "max", or no such file */
    }
    return strtoull(text, NULL, 10);
}

/* The least of the control group and of those above it. */
static uint64_t group_limit(void)
{
    char text[TEXT_MAX], folder[GROUP_BYTES];
    uint64_t least = limit_of(GROUPS "/memory", "memory.limit_in_bytes"); /* version 1 */

    if (!read_text("/proc/self/cgroup", text) ||
        !kelp_machine_group(text, folder, sizeof(folder))) {
        return least;
    }
    while (strlen(folder) >= strlen(GROUPS)) {
        uint64_t limit = limit_of(folder, "memory.max");
        uint64_t swap = limit_of(folder, "memory.swap.max");
        limit = limit < UINT64_MAX - swap ? limit + swap : limit;
        least = limit < least ? limit : least;
        *strrchr(folder, '/') = '\0';
    }
    return least;
}

void kelp_machine_read(struct kelp_machine *ret_machine)
{
    char text[TEXT_MAX];
    uint64_t memory = read_text("/proc/meminfo", text) ? kelp_machine_meminfo(text) : 0;
    uint64_t limit = group_limit();

    memory = memory > 0 ? memory : UINT64_MAX;
    *ret_machine = (struct kelp_machine){.memory_bytes = limit < memory ? limit : memory,
                                         .limited = limit < memory};
}

/* ---- what it takes ------------------------------------------------------------------------- */

static double gib(double bytes)
{
    return bytes / (1024.0 * 1024.0 * 1024.0);
}

/* What makes a worker smaller. */
static const char *remedy_of(const struct kelp_job *job)
{
    return job->run.mode == KELP_RUN_TRAIN
               ? "a smaller train.batch_size, more train.accumulate, or a smaller model (kelp "
                 "model show)"
               : "or smaller blocks of samples by --set train.batch_size=N";
}

kelp_status kelp_machine_check(const struct kelp_machine *machine, const struct kelp_job *job,
                               const struct kelp_plan *plan, const struct kelp_model *model,
                               const struct kelp_dataset *dataset, struct kelp_error *reterr)
{
    struct kelp_footprint footprint;
    uint32_t workers = job->cluster.workers.max;

    kelp_footprint(job, plan, model, dataset, &footprint);
    double worker = (double)footprint.total, shards = (double)kelp_footprint_shards(job, plan);
    double needed = worker * workers + shards, there = (double)machine->memory_bytes;
    if (machine->memory_bytes == UINT64_MAX || needed <= there) {
        return KELP_OK;
    }
    return kelp_fail(
        reterr, KELP_ERR_LIMIT,
        "the job takes %.2f GiB of memory on this machine (%" PRIu32
        " worker%s of %.2f GiB, shards %.2f GiB), but %s has %.2f GiB; use fewer --workers, %s",
        gib(needed), workers, workers == 1 ? "" : "s", gib(worker), gib(shards),
        machine->limited ? "its control group" : "it", gib(there), remedy_of(job));
}
