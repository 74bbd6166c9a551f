#include "cli/launch/children.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/run/log_tail.h"
#include "cli/run/run_dir.h"
#include "common/base/clock.h"
#include "common/program/daemon.h"
#include "common/program/map_option.h"
#include "common/program/shm_option.h"
#include "common/tensors/digest.h"

#define LOG_LINES     6 /* of a child that ends for one reason again and again */
#define ARGUMENTS_MAX (32 + 2 * KELP_TRIALS_MAX + 2 * KELP_PATH_MAP_MAX)

#define LISTEN_BYTES  256
#define METRICS_BYTES 272

#define PROGRAM_WORDS_MAX 16 /* variables that a program of one's own gets */

/* Arguments of a child that is traced. */
struct trace_texts {
    char path[KELP_CHILDREN_TRACE_PATH_MAX];
    char steps[16];
};

/* Also of the roles of their certificates. */
static const char *const kind_names[] = {"coordinator", "shard", "worker"};
static const char *const kind_programs[] = {"kelp-coordinator", "kelp-ps", "kelp-worker"};

static kelp_status program_path(const char *bin_folder, enum kelp_child_kind kind,
                                char path[KELP_PROCESS_PATH_MAX], struct kelp_error *reterr)
{
    int length = snprintf(path, KELP_PROCESS_PATH_MAX, "%s/%s", bin_folder, kind_programs[kind]);

    if (length < 0 || length >= KELP_PROCESS_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of %s is longer than %d bytes",
                         kind_programs[kind], KELP_PROCESS_PATH_MAX - 1);
    }
    return KELP_OK;
}

kelp_status kelp_children_check_programs(const char *bin_folder, struct kelp_error *reterr)
{
    char path[KELP_PROCESS_PATH_MAX];

    for (int kind = 0; kind < 3; kind++) {
        kelp_status status = program_path(bin_folder, (enum kelp_child_kind)kind, path, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (access(path, X_OK) != 0) {
            return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                             "%s is not beside kelp in '%s'; build or install all programs",
                             kind_programs[kind], bin_folder);
        }
    }
    return KELP_OK;
}

kelp_status kelp_children_init(struct kelp_children *children,
                               const struct kelp_children_options *options,
                               struct kelp_error *reterr)
{
    memset(children, 0, sizeof(*children));
    children->options = *options;
    children->run_folder = realpath(options->run_path, NULL);
    if (!children->run_folder) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", options->run_path,
                         strerror(errno));
    }
    return kelp_failures_init(&children->failures, &options->policy, reterr);
}

static void log_path(const struct kelp_children *children, const struct kelp_child *child,
                     char *path, size_t path_bytes)
{
    (void)snprintf(path, path_bytes, "%s/logs/%s.log", children->options.run_path, child->id);
}

/* The faults asked for by --fault go to the first start alone: a child that is started again must
 * not die of the same fault. */
static void fault_arguments(const struct kelp_children *children, const struct kelp_child *child,
                            const char **argv, int *count)
{
    const struct kelp_trials *trials = children->options.trials;

    for (uint32_t i = 0; child->starts == 0 && i < trials->fault_count; i++) {
        if (strcmp(trials->faults[i].id, child->id) == 0) {
            argv[(*count)++] = "--fault";
            argv[(*count)++] = trials->faults[i].spec;
        }
    }
}

void kelp_children_trace_path(const char *run, const char *id,
                              char path[KELP_CHILDREN_TRACE_PATH_MAX])
{
    (void)snprintf(path, KELP_CHILDREN_TRACE_PATH_MAX, "%s/" KELP_RUN_TRACE "/%s", run, id);
}

/* The first start alone: what another one sees is no part of the same steps. */
static void trace_arguments(const struct kelp_children *children, const struct kelp_child *child,
                            struct trace_texts *texts, const char **argv, int *count)
{
    const uint32_t steps = children->options.trace_steps;

    if (steps == 0 || child->starts > 0 || child->number > 0 ||
        child->kind == KELP_CHILD_COORDINATOR) {
        return;
    }
    kelp_children_trace_path(children->run_folder, child->id, texts->path);
    (void)snprintf(texts->steps, sizeof(texts->steps), "%" PRIu32, steps);
    argv[(*count)++] = "--trace";
    argv[(*count)++] = texts->path;
    argv[(*count)++] = "--trace-steps";
    argv[(*count)++] = texts->steps;
}

static bool is_program(const struct kelp_children *children, const struct kelp_child *child)
{
    const struct kelp_worker_program *program = children->options.worker_program;

    return child->kind == KELP_CHILD_WORKER && program && kelp_worker_program_is(program);
}

/* What a program of one's own gets instead of the options argv[1] to argv[count - 1]: "--job",
 * "mlp" becomes "KELP_JOB=mlp". Entries are owned. */
static kelp_status program_environment(const char *const *argv, int count,
                                       char *entries[PROGRAM_WORDS_MAX], struct kelp_error *reterr)
{
    for (int i = 1, used = 0; i + 1 < count; i += 2, used++) {
        const size_t bytes = strlen(argv[i]) + strlen(argv[i + 1]) + sizeof("KELP_=");
        char *entry = used < PROGRAM_WORDS_MAX ? malloc(bytes) : NULL;
        if (!entry) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        const int name = snprintf(entry, bytes, "KELP_%s", argv[i] + 2);
        for (int at = 0; at < name; at++) {
            entry[at] = entry[at] == '-' ? '_' : (char)toupper((unsigned char)entry[at]);
        }
        (void)snprintf(entry + name, bytes - (size_t)name, "=%s", argv[i + 1]);
        entries[used] = entry;
    }
    return KELP_OK;
}

static void path_arguments(const struct kelp_path_map *paths, const char **argv, int *count)
{
    for (size_t i = 0; paths && i < paths->count; i++) {
        argv[(*count)++] = "--" KELP_MAP_PATH;
        argv[(*count)++] = paths->items[i].text;
    }
}

bool kelp_children_faulted(const struct kelp_children *children, const struct kelp_fault *fault)
{
    char path[KELP_RUN_PATH_MAX + 64];

    for (uint32_t i = 0; i < children->count; i++) {
        const struct kelp_child *child = &children->items[i];
        if (strcmp(child->id, fault->id) == 0 && child->starts > 0) {
            log_path(children, child, path, sizeof(path));
            return kelp_log_has(path, child->log_first, KELP_WORKER_FAILING);
        }
    }
    return false;
}

/* Each start has a socket of its own: one that was taken for dead and is not must not be reached by
 * those who mean the next. False: it chooses its address itself. */
static bool listen_address(const struct kelp_children *children, const struct kelp_child *child,
                           char address[LISTEN_BYTES])
{
    const struct kelp_children_options *options = &children->options;

    if (options->listen) {
        (void)snprintf(address, LISTEN_BYTES, "%s:0", options->listen);
    } else if (options->sockets[0] != '\0') {
        (void)snprintf(address, LISTEN_BYTES, "unix:%s/%s.%" PRIu32, options->sockets, child->id,
                       child->starts);
    }
    return options->listen || options->sockets[0] != '\0';
}

/* A port stays a child's own over its starts. */
static void metrics_address(const struct kelp_children *children, const struct kelp_child *child,
                            char address[METRICS_BYTES])
{
    const struct kelp_children_options *options = &children->options;
    const unsigned place = (unsigned)(child - children->items);

    (void)snprintf(address, METRICS_BYTES, "%s:%u", options->metrics_host,
                   options->metrics_port == 0 ? 0 : options->metrics_port + place);
}

static kelp_status start(struct kelp_children *children, struct kelp_child *child,
                         struct kelp_error *reterr)
{
    const struct kelp_children_options *options = &children->options;
    char program[KELP_PROCESS_PATH_MAX];
    char log[KELP_RUN_PATH_MAX + 64];
    char listen[LISTEN_BYTES], metrics[METRICS_BYTES];
    char certs[KELP_CREDENTIALS_PATH_MAX + 1];
    char gpu[KELP_GPU_ENTRY_MAX + 1];
    struct trace_texts trace;
    char *entries[PROGRAM_WORDS_MAX] = {NULL};
    const char *argv[ARGUMENTS_MAX] = {program,   "--etcd",      options->etcd_url,
                                       "--job",   options->job,  "--id",
                                       child->id, "--log-level", options->log_level};
    int count = 9;
    int log_fd = -1;

    argv[count++] = "--spec-sha256";
    argv[count++] = options->spec_sha256;
    if (child->kind == KELP_CHILD_COORDINATOR ||
        (child->kind == KELP_CHILD_SHARD && !options->apart)) {
        argv[count++] = "--run";
        argv[count++] = children->run_folder;
    }
    if (child->kind == KELP_CHILD_COORDINATOR && options->apart) {
        argv[count++] = "--no-checkpoints";
    }
    if (child->kind != KELP_CHILD_WORKER) {
        if (listen_address(children, child, listen)) {
            argv[count++] = "--listen";
            argv[count++] = listen;
        }
        if (!options->host) { /* all of them are here, and etcd may be on another machine */
            argv[count++] = "--one-machine";
        }
    }
    if (child->kind == KELP_CHILD_SHARD && options->zone) {
        argv[count++] = "--zone";
        argv[count++] = options->zone;
    }
    if (child->kind == KELP_CHILD_COORDINATOR && options->force) {
        argv[count++] = "--force";
    }
    if (options->certs) {
        (void)snprintf(certs, sizeof(certs), "%s/%s", options->certs, kind_names[child->kind]);
        argv[count++] = "--certs";
        argv[count++] = certs;
    }
    if (options->metrics_host && !is_program(children, child)) {
        metrics_address(children, child, metrics);
        argv[count++] = "--metrics";
        argv[count++] = metrics;
    }
    if (child->kind != KELP_CHILD_COORDINATOR) {
        path_arguments(is_program(children, child) ? NULL : options->paths, argv, &count);
        if (options->shm_folder) {
            argv[count++] = "--" KELP_SHM_FOLDER;
            argv[count++] = options->shm_folder;
        }
    }
    fault_arguments(children, child, argv, &count);
    trace_arguments(children, child, &trace, argv, &count);
    argv[count] = NULL;
    kelp_status status = program_path(options->bin_folder, child->kind, program, reterr);
    if (status == KELP_OK && is_program(children, child)) {
        status = program_environment(argv, count, entries, reterr);
    }
    if (status == KELP_OK) {
        log_path(children, child, log, sizeof(log));
        status = kelp_log_open(log, &log_fd, &child->log_from, reterr);
    }
    if (status == KELP_OK) {
        /* What is set for `kelp train` by KELP_ variables stands in the job already; the daemons
         * must not take their own flags from them. A program of one's own has the others. */
        static const char *const all[] = {"KELP_*", NULL};
        static const char *const of_library[] = {
            "KELP_ETCD",       "KELP_JOB",       "KELP_ID",    "KELP_SPEC_SHA256", "KELP_CERTS",
            "KELP_SHM_FOLDER", "KELP_LOG_LEVEL", "KELP_GRACE", "KELP_DESCRIBE",    NULL};
        const bool computes =
            child->kind == KELP_CHILD_WORKER && options->gpus && options->gpus->count > 0;
        const char *set[PROGRAM_WORDS_MAX + 3] = {NULL};
        int set_count = 0;
        if (computes) {
            kelp_gpus_entry(options->gpus, child->number, gpu);
            set[set_count++] = gpu;
        }
        for (int i = 0; i < PROGRAM_WORDS_MAX && entries[i]; i++) {
            set[set_count++] = entries[i];
        }
        if (is_program(children, child) && options->worker_program->python) {
            set[set_count++] = "PYTHONUNBUFFERED=1"; /* what it prints is in its log at once */
        }
        struct kelp_process_options process = {
            .argv = is_program(children, child) ? options->worker_program->argv : argv,
            .set_environment = set,
            .unset_environment = is_program(children, child) ? of_library : all,
            .stdout_fd = log_fd,
            .stderr_fd = log_fd};
        status = kelp_process_start(&process, &child->process, reterr);
        (void)close(log_fd);
        if (status == KELP_ERR_NOT_FOUND && is_program(children, child)) {
            status = KELP_ERR_INVALID; /* as of all that the job names: the same comes again */
        }
    }
    for (int i = 0; i < PROGRAM_WORDS_MAX; i++) {
        free(entries[i]);
    }
    if (status != KELP_OK) {
        return status;
    }
    child->log_first = child->starts == 0 ? child->log_from : child->log_first;
    child->starts++;
    child->start_due = false;
    child->fenced = false;
    child->start_ms = kelp_clock_ms();
    return KELP_OK;
}

kelp_status kelp_children_add(struct kelp_children *children, enum kelp_child_kind kind,
                              struct kelp_error *reterr)
{
    if (children->count == KELP_CHILDREN_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "a run has at most %d processes",
                         KELP_CHILDREN_MAX);
    }
    struct kelp_child *items =
        realloc(children->items, (children->count + 1) * sizeof(*children->items));
    if (!items) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    children->items = items;
    struct kelp_child *child = &items[children->count];
    memset(child, 0, sizeof(*child));
    child->kind = kind;
    child->number = children->next_number[kind];
    child->supervise.worker = kind == KELP_CHILD_WORKER;
    child->supervise.shard = kind == KELP_CHILD_SHARD;
    const char *host = children->options.host;
    (void)snprintf(child->id, sizeof(child->id), "%s%s%s-%" PRIu32, host ? host : "",
                   host ? "." : "", kind_names[kind], child->number);
    kelp_status status = start(children, child, reterr);
    if (status == KELP_OK) {
        children->next_number[kind]++;
        children->count++;
    }
    return status;
}

/* Does it run, or will it be started again? */
static bool is_wanted(const struct kelp_child *child)
{
    return !child->retired && (child->process || child->start_due || child->down);
}

/* SIGTERM lets it finish and send what it computes. */
static void retire(struct kelp_child *child)
{
    child->retired = true;
    child->start_due = false;
    child->down = false;
    if (child->process) {
        kelp_process_signal(child->process, SIGTERM);
    }
}

/* One of those that left before, or a new one. */
static kelp_status add_one(struct kelp_children *children, enum kelp_child_kind kind,
                           struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && !child->process && !is_wanted(child)) {
            child->retired = false;
            child->left = false;
            child->start_due = true;
            child->start_ms = kelp_clock_ms();
            return KELP_OK;
        }
    }
    return kelp_children_add(children, kind, reterr);
}

uint32_t kelp_children_wanted(const struct kelp_children *children, enum kelp_child_kind kind)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < children->count; i++) {
        count += children->items[i].kind == kind && is_wanted(&children->items[i]) ? 1 : 0;
    }
    return count;
}

kelp_status kelp_children_grow(struct kelp_children *children, enum kelp_child_kind kind,
                               uint32_t count, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t there = kelp_children_wanted(children, kind); there < count && status == KELP_OK;
         there++) {
        status = add_one(children, kind, reterr);
    }
    return status;
}

bool kelp_children_retire(struct kelp_children *children, enum kelp_child_kind kind,
                          bool (*may_go)(const char *id, void *user), void *user)
{
    for (uint32_t i = children->count; i-- > 0;) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && is_wanted(child) && (!may_go || may_go(child->id, user))) {
            retire(child);
            return true;
        }
    }
    return false;
}

void kelp_children_need(struct kelp_children *children, uint32_t least)
{
    children->options.workers_min = least;
}

/* The child of that id when it runs, or NULL. */
static struct kelp_child *find_running(struct kelp_children *children, const char *id)
{
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process && strcmp(children->items[i].id, id) == 0) {
            return &children->items[i];
        }
    }
    return NULL;
}

bool kelp_children_kill(struct kelp_children *children, const char *id)
{
    const struct kelp_child *child = find_running(children, id);

    if (child) {
        kelp_process_signal(child->process, SIGKILL);
    }
    return child != NULL;
}

bool kelp_children_fence(struct kelp_children *children, const char *id, uint64_t asked_ms,
                         uint64_t silent_ms)
{
    struct kelp_child *child = find_running(children, id);

    if (!child || child->fenced || child->start_ms + silent_ms >= asked_ms) {
        return false;
    }
    child->fenced = true;
    kelp_process_signal(child->process, SIGKILL);
    return true;
}

void kelp_children_take_down(struct kelp_children *children, enum kelp_child_kind kind, bool hard)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (child->kind == kind && child->process) {
            kelp_process_signal(child->process, hard ? SIGKILL : SIGTERM);
        }
        child->down = child->down || (child->kind == kind && is_wanted(child));
        child->start_due = child->start_due && !child->down;
    }
}

bool kelp_children_any(const struct kelp_children *children, enum kelp_child_kind kind)
{
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].kind == kind && children->items[i].process) {
            return true;
        }
    }
    return false;
}

void kelp_children_bring_up(struct kelp_children *children, uint64_t now)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        if (!child->retired && (child->down || child->left)) {
            child->start_due = true;
            child->start_ms = now;
        }
        child->down = false;
        child->left = false;
    }
}

uint32_t kelp_children_poll(const struct kelp_children *children, struct pollfd *items,
                            uint32_t room)
{
    uint32_t used = 0;

    for (uint32_t i = 0; i < children->count && used < room; i++) {
        if (children->items[i].process) {
            items[used++] = (struct pollfd){.fd = kelp_process_fd(children->items[i].process),
                                            .events = POLLIN};
        }
    }
    return used;
}

int kelp_children_wait_ms(const struct kelp_children *children, uint64_t now)
{
    int wait_ms = -1;

    for (uint32_t i = 0; i < children->count; i++) {
        const struct kelp_child *child = &children->items[i];
        if (child->start_due) {
            int own = child->start_ms <= now ? 0 : (int)(child->start_ms - now);
            wait_ms = wait_ms < 0 || own < wait_ms ? own : wait_ms;
        }
    }
    return wait_ms;
}

static uint32_t workers_running(const struct kelp_children *children)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < children->count; i++) {
        count += children->items[i].kind == KELP_CHILD_WORKER && children->items[i].process;
    }
    return count;
}

static kelp_status fail_of_input(const struct kelp_children *children,
                                 const struct kelp_child *child, const char *how,
                                 struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char reason[384];

    log_path(children, child, path, sizeof(path));
    kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    if (child->supervise.idle > 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s: the program ended and took no part%s%s",
                         child->id, reason[0] ? "; its last line: " : "", reason);
    }
    return reason[0]
               ? kelp_fail(reterr, KELP_ERR_INVALID, "%s: %s", child->id, reason)
               : kelp_fail(reterr, KELP_ERR_INVALID, "%s: %s and logged nothing", child->id, how);
}

/* What a log says, without the numbers that differ from time to time. */
static uint64_t digest_of_words(const char *text)
{
    char words[512];
    size_t count = 0;

    for (; *text != '\0' && count < sizeof(words); text++) {
        if (*text < '0' || *text > '9') {
            words[count++] = *text;
        }
    }
    return kelp_digest_bytes(words, count);
}

/* Why it ended; 0 when that was no doing of its own. */
static uint64_t cause_of(const struct kelp_children *children, const struct kelp_child *child,
                         int wait_status)
{
    static const int own[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    char path[KELP_RUN_PATH_MAX + 64];
    char reason[384];

    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) != 0) {
        log_path(children, child, path, sizeof(path));
        kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
        return digest_of_words(reason) + (uint64_t)WEXITSTATUS(wait_status);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(own) && WIFSIGNALED(wait_status); i++) {
        if (WTERMSIG(wait_status) == own[i]) {
            return (uint64_t)own[i];
        }
    }
    return 0;
}

static bool has_logged(const struct kelp_children *children, const struct kelp_child *child,
                       const char *words)
{
    char path[KELP_RUN_PATH_MAX + 64];

    log_path(children, child, path, sizeof(path));
    return kelp_log_has(path, child->log_from, words);
}

/* A program whose job is over is on its own: what comes of it is no matter of the run. */
static void note_after(struct kelp_children *children, const struct kelp_child *child,
                       int wait_status)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char how[64], reason[384];

    if (children->after_failed) {
        return;
    }
    log_path(children, child, path, sizeof(path));
    kelp_log_tail_printed(path, child->log_from, reason, sizeof(reason));
    kelp_process_describe(wait_status, how, sizeof(how));
    children->after_failed = true;
    (void)snprintf(children->after, sizeof(children->after),
                   "%s: %s; training is done, and this came after the loop", child->id,
                   reason[0] ? reason : how);
}

/* The end of its log for people, and the reason in one line. */
static kelp_status fail_of_same(const struct kelp_children *children,
                                const struct kelp_child *child, const char *how,
                                struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char text[4096];
    char reason[160];
    char *rest = text;

    log_path(children, child, path, sizeof(path));
    kelp_log_tail_lines(path, child->log_from, LOG_LINES, text, sizeof(text));
    if (text[0] != '\0') {
        kelp_display_say(children->options.display, "the end of %s:", path);
    }
    for (char *line = strsep(&rest, "\n"); line; line = strsep(&rest, "\n")) {
        if (line[0] != '\0') {
            kelp_display_say(children->options.display, "  %s", line);
        }
    }
    kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    return kelp_fail(reterr, KELP_ERR_LIMIT, "%s %s, %d times in a row%s%s; see logs/%s.log",
                     child->id, how, KELP_SUPERVISE_SAME_MAX, reason[0] ? ": " : "", reason,
                     child->id);
}

static void say_stays_away(struct kelp_children *children, const struct kelp_child *child,
                           const char *how)
{
    char path[KELP_RUN_PATH_MAX + 64], reason[384] = "";

    if (child->supervise.lost) {
        log_path(children, child, path, sizeof(path));
        kelp_log_tail_read(path, child->log_from, reason, sizeof(reason));
    }
    kelp_display_say(children->options.display, "%s %s; it stays away%s%s", child->id, how,
                     reason[0] ? ": " : "", reason);
}

/* The child is gone: what now? */
static kelp_status handle_end(struct kelp_children *children, struct kelp_child *child,
                              int wait_status, uint64_t now, bool *ret_gave_up,
                              struct kelp_error *reterr)
{
    char how[64];
    char limit[128];
    uint32_t delay_ms = 0;

    kelp_process_destroy(child->process);
    child->process = NULL;
    if (child->down || child->retired) {
        return KELP_OK;
    }
    kelp_process_describe(wait_status, how, sizeof(how));
    const bool program = is_program(children, child);
    const bool joined = program && has_logged(children, child, KELP_WORKER_JOINED);
    struct kelp_supervise_end end = {
        .now_ms = now,
        .exited = WIFEXITED(wait_status),
        .exit_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0,
        .lived_ms = now - child->start_ms,
        .enough_left = workers_running(children) >= children->options.workers_min,
        .goes_on = children->begun && workers_running(children) > 0,
        .program = program,
        .python = program && children->options.worker_program->python,
        .joined = joined,
        .over = program && has_logged(children, child, KELP_WORKER_ENDED),
        .early = !children->begun && !joined,
        .cause = cause_of(children, child, wait_status),
    };
    if (end.over && end.exited && end.exit_status != 0) {
        note_after(children, child, wait_status);
    }
    switch (kelp_supervise(&children->options.policy, &end, &child->supervise, &children->failures,
                           &delay_ms)) {
    case KELP_SUPERVISE_FAIL:
        return fail_of_input(children, child, how, reterr);
    case KELP_SUPERVISE_LEAVE:
        child->left = end.exited && (end.exit_status == 0 || end.over);
        if (!child->left) { /* in order: also how a run ends */
            say_stays_away(children, child, how);
        }
        return KELP_OK;
    case KELP_SUPERVISE_STUCK:
        *ret_gave_up = true;
        return fail_of_same(children, child, how, reterr);
    case KELP_SUPERVISE_GIVE_UP:
        kelp_supervise_limit_text(&children->options.policy, limit, sizeof(limit));
        *ret_gave_up = true;
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s %s, and %s; see %s/logs/%s.log", child->id,
                         how, limit, children->options.run_path, child->id);
    case KELP_SUPERVISE_RESTART:
        child->start_due = true;
        child->start_ms = now + delay_ms;
        if (end.exited && (end.exit_status == 0 || end.over) && child->supervise.worker) {
            return KELP_OK; /* mostly the end of the job, which is known in a moment */
        }
        if (end.exited && end.exit_status == 0 && child->supervise.shard) {
            kelp_display_say(children->options.display,
                             "%s has left in order; another one takes its place", child->id);
        } else if (delay_ms == 0) {
            kelp_display_say(children->options.display, "%s %s; it is started again", child->id,
                             how);
        } else {
            kelp_display_say(children->options.display,
                             "%s %s; it is started again in %" PRIu32 " ms", child->id, how,
                             delay_ms);
        }
        return KELP_OK;
    }
    return KELP_OK;
}

kelp_status kelp_children_tend(struct kelp_children *children, uint64_t now, bool *ret_gave_up,
                               struct kelp_error *reterr)
{
    for (uint32_t i = 0; i < children->count; i++) {
        struct kelp_child *child = &children->items[i];
        kelp_status status = KELP_OK;
        int wait_status = 0;
        if (child->process && kelp_process_wait(child->process, 0, &wait_status) == KELP_OK) {
            status = handle_end(children, child, wait_status, now, ret_gave_up, reterr);
        }
        if (status == KELP_OK && child->start_due && child->start_ms <= now) {
            status = start(children, child, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* Of a program that was told to end: had it come to the lines after its loop, and what of them? */
static void tell_end(struct kelp_children *children, const struct kelp_child *child,
                     uint32_t grace_ms)
{
    int wait_status = 0;

    if (!is_program(children, child) ||
        kelp_process_wait(child->process, 0, &wait_status) != KELP_OK ||
        (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) ||
        !has_logged(children, child, KELP_WORKER_ENDED)) {
        return;
    }
    if (WIFEXITED(wait_status)) {
        note_after(children, child, wait_status);
    } else if (WTERMSIG(wait_status) == SIGKILL && children->after[0] == '\0') {
        (void)snprintf(children->after, sizeof(children->after),
                       "%s was ended in what its program does after the loop: that has %g s from "
                       "the end of the job on",
                       child->id, grace_ms / 1000.0);
    }
}

void kelp_children_stop(struct kelp_children *children, uint32_t grace_ms)
{
    uint64_t end_ms = kelp_clock_ms() + grace_ms;

    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process) {
            /* A shard is to end with what it has: SIGTERM would have it drained, and the
             * coordinator wait for that. */
            kelp_process_signal(children->items[i].process,
                                children->items[i].kind == KELP_CHILD_WORKER ? SIGTERM : SIGINT);
        }
    }
    for (uint32_t i = 0; i < children->count; i++) {
        if (children->items[i].process) {
            uint64_t now = kelp_clock_ms();
            uint32_t left_ms = now < end_ms ? (uint32_t)(end_ms - now) : 0;
            kelp_process_stop(children->items[i].process, left_ms);
            tell_end(children, &children->items[i], grace_ms);
            kelp_process_destroy(children->items[i].process);
        }
    }
    free(children->items);
    free(children->run_folder);
    kelp_failures_fini(&children->failures);
    children->items = NULL;
    children->run_folder = NULL;
    children->count = 0;
}
