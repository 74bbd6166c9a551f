#include "cli/bench/bench_threads.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/process/proc_file.h"

/* The first number of schedstat is the time on a processor, in nanoseconds. */
static double read_cpu_s(pid_t pid, const char *thread)
{
    char name[300], text[128] = "";
    uint64_t ns = 0;

    (void)snprintf(name, sizeof(name), "%ld/task/%.20s/schedstat", (long)pid, thread);
    (void)kelp_proc_file_read(name, text, sizeof(text));
    return sscanf(text, "%" SCNu64, &ns) == 1 ? (double)ns * 1e-9 : 0;
}

void kelp_bench_threads_add(struct kelp_bench_threads *threads, pid_t pid)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%ld/task", (long)pid);
    DIR *folder = opendir(path);
    if (!folder) {
        return;
    }
    for (const struct dirent *entry;
         threads->count < KELP_BENCH_THREADS_MAX && (entry = readdir(folder)) != NULL;) {
        const int64_t id = strtoll(entry->d_name, NULL, 10);
        if (id > 0) {
            threads->items[threads->count].id = id;
            threads->items[threads->count++].cpu_s = read_cpu_s(pid, entry->d_name);
        }
    }
    (void)closedir(folder);
}

static double spent_before(const struct kelp_bench_threads *before, int64_t id)
{
    for (size_t i = 0; i < before->count; i++) {
        if (before->items[i].id == id) {
            return before->items[i].cpu_s;
        }
    }
    return 0;
}

double kelp_bench_threads_busiest_s(const struct kelp_bench_threads *before,
                                    const struct kelp_bench_threads *after)
{
    double most = 0;

    for (size_t i = 0; i < after->count; i++) {
        const double spent = after->items[i].cpu_s - spent_before(before, after->items[i].id);
        most = spent > most ? spent : most;
    }
    return most;
}
