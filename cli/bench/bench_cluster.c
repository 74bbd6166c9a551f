#include "cli/bench/bench_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/launch/children/children.h"
#include "cli/preflight/preflight.h"
#include "cli/run/log_tail.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/etcd/etcd.h"
#include "common/job/job.h"
#include "common/process/proc_file.h"

#define ETCD_MS       5000u
#define ETCD_GRACE_MS 400u
#define PATH_BYTES    (KELP_BENCH_LOG_MAX + 16)

/* ---- the folder and etcd --------------------------------------------------------------------- */

static bool is_stopped(void *user)
{
    return kelp_guard_stage(user) == KELP_GUARD_STOP;
}

kelp_status kelp_bench_home_start_etcd(struct kelp_bench_home *home, const char *etcd_program,
                                       struct kelp_error *reterr)
{
    char data[PATH_BYTES], log[PATH_BYTES];
    const struct kelp_etcd_server_options options = {.data_folder = data,
                                                     .log_path = log,
                                                     .program = etcd_program,
                                                     .socket_folder = home->folder,
                                                     .given_up = is_stopped,
                                                     .user = home->guard};

    (void)snprintf(data, sizeof(data), "%s/etcd", home->folder);
    (void)snprintf(log, sizeof(log), "%s/etcd.log", home->folder);
    return kelp_etcd_server_start(&options, &home->etcd, reterr);
}

kelp_status kelp_bench_home_open(struct kelp_bench_home *home, struct kelp_guard *guard,
                                 struct kelp_error *reterr)
{
    memset(home, 0, sizeof(*home));
    home->guard = guard;
    home->hold = -1;
    kelp_status status =
        kelp_preflight_bin_folder(home->bin_folder, sizeof(home->bin_folder), reterr);
    if (status == KELP_OK) {
        status = kelp_children_check_programs(home->bin_folder, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_socket_folder_make(home->folder, &home->hold, reterr);
    }
    return status;
}

void kelp_bench_home_close(struct kelp_bench_home *home)
{
    struct kelp_error error;

    kelp_etcd_server_stop(home->etcd, ETCD_GRACE_MS);
    home->etcd = NULL;
    if (home->folder[0] != '\0') {
        if (kelp_files_remove(home->folder, &error) != KELP_OK) {
            (void)fprintf(stderr, "kelp: %s\n", error.text);
        }
        if (home->hold >= 0) {
            (void)close(home->hold);
        }
        home->folder[0] = '\0';
    }
}

/* ---- processes ------------------------------------------------------------------------------- */

/* What differs between starts. */
struct way {
    const char *folder;     /* of its log */
    const char *const *set; /* for its environment; NULL: nothing */
    bool read_out;          /* true: its standard output is read; false: it goes to the log */
};

/* argv[0] is the program's name, beside this one. */
static kelp_status start_process(const struct kelp_bench_home *home, const char *id,
                                 const char **argv, const struct way *way,
                                 struct kelp_bench_process *ret_process, struct kelp_error *reterr)
{
    static const char *const unset[] = {"KELP_*", NULL};
    struct kelp_bench_process process = {.out = -1};
    char program[KELP_PROCESS_PATH_MAX];
    int ends[2] = {-1, -1};
    int log_fd = -1;
    long from = 0;

    const int length = snprintf(program, sizeof(program), "%s/%s", home->bin_folder, argv[0]);
    if (length < 0 || (size_t)length >= sizeof(program)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of %s is too long", argv[0]);
    }
    argv[0] = program;
    (void)snprintf(process.id, sizeof(process.id), "%s", id);
    (void)snprintf(process.log, sizeof(process.log), "%s/%s.log", way->folder, id);
    if (way->read_out && pipe2(ends, O_CLOEXEC) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "pipe: %s", strerror(errno));
    }
    kelp_status status = kelp_log_open(process.log, &log_fd, &from, reterr);
    if (status == KELP_OK) {
        const struct kelp_process_options options = {.argv = argv,
                                                     .set_environment = way->set,
                                                     .unset_environment = unset,
                                                     .stdout_fd = way->read_out ? ends[1] : log_fd,
                                                     .stderr_fd = log_fd};
        status = kelp_process_start(&options, &process.process, reterr);
        (void)close(log_fd);
    }
    if (ends[1] >= 0) {
        (void)close(ends[1]);
    }
    process.out = ends[0];
    if (status == KELP_OK) {
        *ret_process = process;
    } else if (ends[0] >= 0) {
        (void)close(ends[0]);
    }
    return status;
}

kelp_status kelp_bench_home_start(struct kelp_bench_home *home, const char *id,
                                  const char *const *args, struct kelp_bench_process *ret_process,
                                  struct kelp_error *reterr)
{
    const char *argv[KELP_BENCH_ARGUMENTS_MAX + 1] = {"kelp"};

    for (uint32_t count = 1; *args && count < KELP_BENCH_ARGUMENTS_MAX; count++) {
        argv[count] = *args++;
    }
    return start_process(home, id, argv, &(struct way){.folder = home->folder}, ret_process,
                         reterr);
}

static kelp_status start(struct kelp_bench_cluster *cluster, const char *id, const char **argv,
                         bool read_out, const char *const *set, struct kelp_error *reterr)
{
    const struct way way = {.folder = cluster->folder, .set = set, .read_out = read_out};

    if (cluster->count == KELP_BENCH_PROCESSES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d processes",
                         KELP_BENCH_PROCESSES_MAX);
    }
    kelp_status status =
        start_process(cluster->home, id, argv, &way, &cluster->processes[cluster->count], reterr);
    cluster->count += status == KELP_OK ? 1 : 0;
    return status;
}

static kelp_status start_daemon(struct kelp_bench_cluster *cluster, const char *program,
                                const char *id, const char *run, struct kelp_error *reterr)
{
    char listen[PATH_BYTES];
    const char *argv[KELP_BENCH_ARGUMENTS_MAX] = {program,
                                                  "--etcd",
                                                  kelp_etcd_server_url(cluster->home->etcd),
                                                  "--job",
                                                  cluster->job,
                                                  "--id",
                                                  id,
                                                  "--listen",
                                                  listen,
                                                  "--one-machine",
                                                  "--log-level",
                                                  "warn"};

    (void)snprintf(listen, sizeof(listen), "unix:%s/%s.%s", cluster->home->folder, cluster->job,
                   id);
    if (run) {
        argv[12] = "--run";
        argv[13] = run;
    }
    return start(cluster, id, argv, false, NULL, reterr);
}

kelp_status kelp_bench_cluster_add(struct kelp_bench_cluster *cluster, const char *member,
                                   const char *id, const char *const *args,
                                   const char *const *environment, uint32_t *ret_index,
                                   struct kelp_error *reterr)
{
    const char *argv[KELP_BENCH_ARGUMENTS_MAX + 1] = {
        "kelp",  "bench",      member, "--etcd", kelp_etcd_server_url(cluster->home->etcd),
        "--job", cluster->job, "--id", id};

    for (uint32_t count = 9; *args && count < KELP_BENCH_ARGUMENTS_MAX; count++) {
        argv[count] = *args++;
    }
    *ret_index = cluster->count;
    return start(cluster, id, argv, true, environment, reterr);
}

/* ---- a job ----------------------------------------------------------------------------------- */

static kelp_status print_spec(const struct kelp_bench_cluster *cluster, const char *keys,
                              char **ret_spec, struct kelp_error *reterr)
{
    struct kelp_job_file *file = kelp_job_file_create();

    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_job_file_parse(file, "job of the bench", keys, strlen(keys), reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_set(file, "name", cluster->job, KELP_ORIGIN_FLAG, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_print(file, false, ret_spec, reterr);
    }
    kelp_job_file_destroy(file);
    return status;
}

static kelp_status put_spec(const struct kelp_bench_cluster *cluster, const char *spec,
                            struct kelp_error *reterr)
{
    struct kelp_etcd *etcd = NULL;
    char key[64];

    (void)snprintf(key, sizeof(key), "/kelp/%s/spec", cluster->job);
    kelp_status status = kelp_etcd_open(kelp_etcd_server_url(cluster->home->etcd), &etcd, reterr);
    if (status == KELP_OK) {
        status = kelp_etcd_put(etcd, key, spec, 0, ETCD_MS, reterr);
        kelp_etcd_close(etcd);
    }
    return status;
}

kelp_status kelp_bench_cluster_open(struct kelp_bench_cluster *cluster,
                                    struct kelp_bench_home *home, const char *keys, uint32_t shards,
                                    struct kelp_error *reterr)
{
    char id[KELP_BENCH_ID_MAX + 1];
    char *spec = NULL;

    memset(cluster, 0, sizeof(*cluster));
    cluster->home = home;
    cluster->shards = shards;
    (void)snprintf(cluster->job, sizeof(cluster->job), "bench-%" PRIu32, ++home->jobs);
    (void)snprintf(cluster->folder, sizeof(cluster->folder), "%s/%s", home->folder, cluster->job);
    kelp_status status = kelp_files_make_folder(cluster->folder, reterr);
    if (status == KELP_OK) {
        status = print_spec(cluster, keys, &spec, reterr);
    }
    if (status == KELP_OK) {
        status = put_spec(cluster, spec, reterr);
    }
    free(spec);
    if (status == KELP_OK) {
        status =
            start_daemon(cluster, "kelp-coordinator", "coordinator-0", cluster->folder, reterr);
    }
    for (uint32_t i = 0; i < shards && status == KELP_OK; i++) {
        (void)snprintf(id, sizeof(id), "shard-%" PRIu32, i);
        status = start_daemon(cluster, "kelp-ps", id, NULL, reterr);
    }
    if (status != KELP_OK) {
        kelp_bench_cluster_close(cluster);
    }
    return status;
}

void kelp_bench_cluster_kill(struct kelp_bench_cluster *cluster, uint32_t index)
{
    struct kelp_bench_process *process = &cluster->processes[index];

    kelp_process_destroy(process->process);
    process->process = NULL;
    if (process->out >= 0) {
        (void)close(process->out);
        process->out = -1;
    }
}

void kelp_bench_cluster_close(struct kelp_bench_cluster *cluster)
{
    for (uint32_t i = cluster->count; i-- > 0;) {
        kelp_bench_cluster_kill(cluster, i); /* there is nothing to save */
    }
    cluster->count = 0;
}

/* ---- looking --------------------------------------------------------------------------------- */

static kelp_status ended(const struct kelp_bench_process *process, struct kelp_error *reterr)
{
    char how[64] = "has ended";
    char words[256];
    int wait_status = 0;

    if (kelp_process_wait(process->process, 1000, &wait_status) == KELP_OK) {
        kelp_process_describe(wait_status, how, sizeof(how));
    }
    kelp_log_tail_read(process->log, 0, words, sizeof(words));
    return kelp_fail(reterr, KELP_ERR_CLOSED, "%s %s: %s", process->id, how,
                     words[0] ? words : "it logged nothing");
}

#define NOBODY (UINT32_MAX - 1)

/* The process whose output kelp_bench_cluster_await() reads, until it ends. */
static void fill_poll(const struct kelp_bench_cluster *cluster, uint32_t only, struct pollfd *items)
{
    for (uint32_t i = 0; i < cluster->count; i++) {
        const struct kelp_bench_process *process = &cluster->processes[i];
        const bool heard = only == i || only == KELP_BENCH_ANYBODY;
        items[2 * i] = (struct pollfd){.fd = heard ? process->out : -1, .events = POLLIN};
        items[2 * i + 1] = (struct pollfd){
            .fd = process->process ? kelp_process_fd(process->process) : -1, .events = POLLIN};
    }
    items[2 * cluster->count] =
        (struct pollfd){.fd = kelp_guard_fd(cluster->home->guard), .events = POLLIN};
}

kelp_status kelp_bench_cluster_await(struct kelp_bench_cluster *cluster, uint32_t only,
                                     uint64_t deadline_ms, uint32_t *ret_index,
                                     struct kelp_error *reterr)
{
    struct pollfd items[2 * KELP_BENCH_PROCESSES_MAX + 1];

    for (;;) {
        const uint64_t now_ms = kelp_clock_ms();
        if (kelp_guard_stage(cluster->home->guard) == KELP_GUARD_STOP) {
            return kelp_fail(reterr, KELP_ERR_CLOSED, "stopped by a signal");
        }
        if (now_ms >= deadline_ms) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "%s says nothing",
                             only < cluster->count ? cluster->processes[only].id : "nobody");
        }
        fill_poll(cluster, only, items);
        (void)poll(items, 2 * cluster->count + 1, (int)(deadline_ms - now_ms));
        for (uint32_t i = 0; i < cluster->count; i++) {
            if (items[2 * i].revents) {
                *ret_index = i;
                return KELP_OK;
            }
        }
        for (uint32_t i = 0; i < cluster->count; i++) {
            if (items[2 * i + 1].revents) {
                return ended(&cluster->processes[i], reterr);
            }
        }
    }
}

kelp_status kelp_bench_cluster_read(struct kelp_bench_cluster *cluster, uint32_t index, void *bytes,
                                    size_t count, uint64_t deadline_ms, struct kelp_error *reterr)
{
    const struct kelp_bench_process *process = &cluster->processes[index];
    char *at = bytes;

    while (count > 0) {
        uint32_t who = index;
        kelp_status status = kelp_bench_cluster_await(cluster, index, deadline_ms, &who, reterr);
        if (status != KELP_OK) {
            return status;
        }
        const ssize_t got = read(process->out, at, count);
        if (got == 0) {
            return ended(process, reterr);
        }
        if (got < 0 && errno != EINTR) {
            return kelp_fail(reterr, KELP_ERR_IO, "read: %s", strerror(errno));
        }
        at += got > 0 ? got : 0;
        count -= got > 0 ? (size_t)got : 0;
    }
    return KELP_OK;
}

kelp_status kelp_bench_cluster_pass(struct kelp_bench_cluster *cluster, uint32_t ms,
                                    struct kelp_error *reterr)
{
    uint32_t nobody = NOBODY;
    kelp_status status =
        kelp_bench_cluster_await(cluster, NOBODY, kelp_clock_ms() + ms, &nobody, reterr);

    return status == KELP_ERR_TIMEOUT ? KELP_OK : status;
}

uint64_t kelp_bench_process_memory(const struct kelp_bench_process *process)
{
    char name[64], text[256] = "";
    unsigned long pages = 0;

    if (process->process) {
        (void)snprintf(name, sizeof(name), "%ld/statm", (long)kelp_process_pid(process->process));
        (void)kelp_proc_file_read(name, text, sizeof(text));
    }
    return sscanf(text, "%*u %lu", &pages) == 1 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE)
                                                : 0;
}

double kelp_bench_process_cpu_s(const struct kelp_bench_process *process)
{
    struct timespec time = {.tv_sec = 0};
    clockid_t clock;

    if (!process->process || clock_getcpuclockid(kelp_process_pid(process->process), &clock) != 0 ||
        clock_gettime(clock, &time) != 0) {
        return 0;
    }
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

double kelp_bench_cluster_cpu_s(const struct kelp_bench_cluster *cluster)
{
    double sum = 0;

    for (uint32_t i = 0; i < cluster->count && i <= cluster->shards; i++) {
        sum += kelp_bench_process_cpu_s(&cluster->processes[i]);
    }
    return sum;
}
