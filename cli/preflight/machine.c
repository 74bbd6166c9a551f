#include "cli/preflight/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/footprint.h"

#define TEXT_MAX    8192
#define GROUPS      "/sys/fs/cgroup"
#define GROUP_BYTES 512
#define NO_LIMIT    (UINT64_C(1) << 62) /* version 1 has a number of about 2^63 for it */

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
    const uint64_t limit = strtoull(text, NULL, 10);
    return limit >= NO_LIMIT ? UINT64_MAX : limit;
}

/* Memory and swap are limited apart. */
static uint64_t limit_of_two(const char *folder)
{
    const uint64_t limit = limit_of(folder, "memory.max");
    const uint64_t swap = limit_of(folder, "memory.swap.max");

    return limit < UINT64_MAX - swap ? limit + swap : limit;
}

/* Both together may have a limit beside that of memory. */
static uint64_t limit_of_one(const char *folder)
{
    const uint64_t limit = limit_of(folder, "memory.limit_in_bytes");
    const uint64_t both = limit_of(folder, "memory.memsw.limit_in_bytes");

    return both < UINT64_MAX ? both : limit;
}

/* Does "HIERARCHY:CONTROLLERS:/PATH" say where the memory of the process counts? Version 2 has
 * hierarchy 0 and names no controllers. */
static bool is_of(int version, const char *line)
{
    const char *controllers = strchr(line, ':');

    if (version == 2 || !controllers) {
        return version == 2 && strncmp(line, "0::/", 4) == 0;
    }
    for (const char *at = controllers + 1; *at != '\0' && *at != ':' && *at != '\n';) {
        const size_t bytes = strcspn(at, ",:\n");
        if (bytes == strlen("memory") && strncmp(at, "memory", bytes) == 0) {
            return true;
        }
        at += bytes + (at[bytes] == ',' ? 1 : 0);
    }
    return false;
}

/* The path of the group, from its '/' on to the end of the line; NULL: it is in none. */
static const char *path_of(int version, const char *text)
{
    while (text && *text != '\0') {
        const char *path = strchr(text, '/');
        if (path && is_of(version, text)) {
            return path;
        }
        text = strchr(text, '\n');
        text += text ? 1 : 0;
    }
    return NULL;
}

/* Of the group and of those above it, up to `mount`. A container may see the path that its group
 * has outside, and its own group at `mount`. */
static uint64_t least_of(int version, const char *mount, const char *text)
{
    const char *path = path_of(version, text);
    char folder[GROUP_BYTES];
    uint64_t least = UINT64_MAX;

    int length = snprintf(folder, sizeof(folder), "%s%.*s", mount,
                          path ? (int)strcspn(path, "\n") : 0, path ? path : "");
    if (length < 0 || (size_t)length >= sizeof(folder)) {
        (void)snprintf(folder, sizeof(folder), "%s", mount);
    }
    while (strlen(folder) >= strlen(mount)) {
        const uint64_t limit = version == 2 ? limit_of_two(folder) : limit_of_one(folder);
        least = limit < least ? limit : least;
        *strrchr(folder, '/') = '\0';
    }
    return least;
}

uint64_t kelp_machine_group_limit(const char *root, const char *text)
{
    char mount[GROUP_BYTES];

    (void)snprintf(mount, sizeof(mount), "%s/memory", root);
    const uint64_t one = least_of(1, mount, text), two = least_of(2, root, text);
    return one < two ? one : two;
}

void kelp_machine_read(struct kelp_machine *ret_machine)
{
    char text[TEXT_MAX];
    uint64_t memory = read_text("/proc/meminfo", text) ? kelp_machine_meminfo(text) : 0;
    uint64_t limit =
        kelp_machine_group_limit(GROUPS, read_text("/proc/self/cgroup", text) ? text : "");

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
