/* Starts a child: its program, command line, environment and log. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/launch/children/children_internal.h"
#include "cli/run/log_tail.h"
#include "common/base/clock.h"
#include "common/process/memory_kills.h"
#include "common/program/options/map_option.h"
#include "common/program/shm_option.h"
#include "common/tls/credentials.h"

#define ARGUMENTS_MAX (32 + 2 * KELP_TRIALS_MAX + 2 * KELP_PATH_MAP_MAX)

#define LISTEN_BYTES  256
#define METRICS_BYTES 272

#define PROGRAM_WORDS_MAX 16 /* variables that a program of one's own gets */

/* The command line of a daemon, with the texts that it points to. */
struct command {
    const char *argv[ARGUMENTS_MAX];
    int count;
    char program[KELP_PROCESS_PATH_MAX];
    char listen[LISTEN_BYTES];
    char metrics[METRICS_BYTES];
    char certs[KELP_CREDENTIALS_PATH_MAX + 1];
    char trace[KELP_CHILDREN_TRACE_PATH_MAX];
    char trace_steps[16];
};

/* What is set and unset in the environment of a child. */
struct environment {
    const char *set[PROGRAM_WORDS_MAX + 3];
    const char *const *unset;
    char *words[PROGRAM_WORDS_MAX]; /* owned */
    char gpu[KELP_GPU_ENTRY_MAX + 1];
};

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

static void add_flag(struct command *command, const char *flag)
{
    command->argv[command->count++] = flag;
}

static void add_option(struct command *command, const char *option, const char *value)
{
    add_flag(command, option);
    add_flag(command, value);
}

/* Whom the child belongs to, and who it is. */
static void add_identity(const struct kelp_children *children, const struct kelp_child *child,
                         struct command *command)
{
    const struct kelp_children_options *options = &children->options;

    add_option(command, "--etcd", options->etcd_url);
    add_option(command, "--job", options->job);
    add_option(command, "--id", child->id);
    add_option(command, "--log-level", options->log_level);
    add_option(command, "--spec-sha256", options->spec_sha256);
    if (options->certs) {
        (void)snprintf(command->certs, sizeof(command->certs), "%s/%s", options->certs,
                       kelp__child_kinds[child->kind]);
        add_option(command, "--certs", command->certs);
    }
}

/* The run's folder, for those that write there. */
static void add_folder(const struct kelp_children *children, const struct kelp_child *child,
                       struct command *command)
{
    const bool apart = children->options.apart;

    if (child->kind == KELP_CHILD_COORDINATOR || (child->kind == KELP_CHILD_SHARD && !apart)) {
        add_option(command, "--run", children->run_folder);
    }
    if (child->kind == KELP_CHILD_COORDINATOR && apart) {
        add_flag(command, "--no-checkpoints");
    }
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

/* Where it serves, and where it can be watched. */
static void add_addresses(const struct kelp_children *children, const struct kelp_child *child,
                          struct command *command)
{
    const struct kelp_children_options *options = &children->options;

    if (child->kind != KELP_CHILD_WORKER && listen_address(children, child, command->listen)) {
        add_option(command, "--listen", command->listen);
    }
    if (child->kind != KELP_CHILD_WORKER && !options->host) {
        add_flag(command, "--one-machine"); /* all are here; etcd may be on another machine */
    }
    if (child->kind != KELP_CHILD_COORDINATOR && options->shm_folder) {
        add_option(command, "--" KELP_SHM_FOLDER, options->shm_folder);
    }
    if (options->metrics_host && !kelp__child_is_program(children, child)) {
        metrics_address(children, child, command->metrics);
        add_option(command, "--metrics", command->metrics);
    }
}

static void add_paths(const struct kelp_children *children, const struct kelp_child *child,
                      struct command *command)
{
    const struct kelp_path_map *paths = children->options.paths;

    if (child->kind == KELP_CHILD_COORDINATOR || kelp__child_is_program(children, child)) {
        return;
    }
    for (size_t i = 0; paths && i < paths->count; i++) {
        add_option(command, "--" KELP_MAP_PATH, paths->items[i].text);
    }
}

/* The faults asked for by --fault go to the first start alone: a child that is started again must
 * not die of the same fault. */
static void add_faults(const struct kelp_children *children, const struct kelp_child *child,
                       struct command *command)
{
    const struct kelp_trials *trials = children->options.trials;

    for (uint32_t i = 0; child->starts == 0 && i < trials->fault_count; i++) {
        if (strcmp(trials->faults[i].id, child->id) == 0) {
            add_option(command, "--fault", trials->faults[i].spec);
        }
    }
}

/* The first start alone: what another one sees is no part of the same steps. */
static void add_trace(const struct kelp_children *children, const struct kelp_child *child,
                      struct command *command)
{
    const uint32_t steps = children->options.trace_steps;

    if (steps == 0 || child->starts > 0 || child->number > 0 ||
        child->kind == KELP_CHILD_COORDINATOR) {
        return;
    }
    kelp_children_trace_path(children->run_folder, child->id, command->trace);
    (void)snprintf(command->trace_steps, sizeof(command->trace_steps), "%" PRIu32, steps);
    add_option(command, "--trace", command->trace);
    add_option(command, "--trace-steps", command->trace_steps);
}

static void make_command(const struct kelp_children *children, const struct kelp_child *child,
                         struct command *command)
{
    const struct kelp_children_options *options = &children->options;

    command->count = 0;
    add_flag(command, command->program);
    add_identity(children, child, command);
    add_folder(children, child, command);
    add_addresses(children, child, command);
    if (child->kind == KELP_CHILD_SHARD && options->zone) {
        add_option(command, "--zone", options->zone);
    }
    if (child->kind == KELP_CHILD_COORDINATOR && options->force) {
        add_flag(command, "--force");
    }
    add_paths(children, child, command);
    add_faults(children, child, command);
    add_trace(children, child, command);
    command->argv[command->count] = NULL;
}

/* What a program of one's own gets instead of a daemon's options: "--job", "mlp" becomes
 * "KELP_JOB=mlp". All of its options have values. */
static kelp_status words_of(const struct command *command, char *words[PROGRAM_WORDS_MAX],
                            struct kelp_error *reterr)
{
    for (int i = 1, used = 0; i + 1 < command->count; i += 2, used++) {
        const size_t bytes =
            strlen(command->argv[i]) + strlen(command->argv[i + 1]) + sizeof("KELP_=");
        char *word = used < PROGRAM_WORDS_MAX ? malloc(bytes) : NULL;
        if (!word) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        const int name = snprintf(word, bytes, "KELP_%s", command->argv[i] + 2);
        for (int at = 0; at < name; at++) {
            word[at] = word[at] == '-' ? '_' : (char)toupper((unsigned char)word[at]);
        }
        (void)snprintf(word + name, bytes - (size_t)name, "=%s", command->argv[i + 1]);
        words[used] = word;
    }
    return KELP_OK;
}

static kelp_status make_environment(const struct kelp_children *children,
                                    const struct kelp_child *child, const struct command *command,
                                    struct environment *environment, struct kelp_error *reterr)
{
    /* What is set for `kelp train` by KELP_ variables stands in the job already; the daemons must
     * not take their own flags from them. A program of one's own has the others. */
    static const char *const all[] = {"KELP_*", NULL};
    static const char *const of_library[] = {
        "KELP_ETCD",       "KELP_JOB",       "KELP_ID",    "KELP_SPEC_SHA256", "KELP_CERTS",
        "KELP_SHM_FOLDER", "KELP_LOG_LEVEL", "KELP_GRACE", "KELP_DESCRIBE",    NULL};
    const struct kelp_children_options *options = &children->options;
    const bool program = kelp__child_is_program(children, child);
    int count = 0;

    environment->unset = program ? of_library : all;
    if (child->kind == KELP_CHILD_WORKER && options->gpus && options->gpus->count > 0) {
        kelp_gpus_entry(options->gpus, child->number, environment->gpu);
        environment->set[count++] = environment->gpu;
    }
    if (!program) {
        return KELP_OK;
    }
    kelp_status status = words_of(command, environment->words, reterr);
    for (int i = 0; i < PROGRAM_WORDS_MAX && environment->words[i]; i++) {
        environment->set[count++] = environment->words[i];
    }
    if (options->worker_program->python) {
        environment->set[count++] = "PYTHONUNBUFFERED=1"; /* what it prints is in its log at once */
    }
    return status;
}

static void free_environment(struct environment *environment)
{
    for (int i = 0; i < PROGRAM_WORDS_MAX; i++) {
        free(environment->words[i]);
    }
}

static kelp_status start_process(const struct kelp_children *children, struct kelp_child *child,
                                 const struct command *command,
                                 const struct environment *environment, struct kelp_error *reterr)
{
    const bool program = kelp__child_is_program(children, child);
    char log[KELP_RUN_PATH_MAX + 64];
    int log_fd = -1;

    kelp__child_log(children, child, log, sizeof(log));
    kelp_status status = kelp_log_open(log, &log_fd, &child->log_from, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_process_options process = {
        .argv = program ? children->options.worker_program->argv : command->argv,
        .set_environment = environment->set,
        .unset_environment = environment->unset,
        .stdout_fd = log_fd,
        .stderr_fd = log_fd};
    status = kelp_process_start(&process, &child->process, reterr);
    (void)close(log_fd);
    /* A program that is not there is an error of the job, which names it: the same comes again. */
    return status == KELP_ERR_NOT_FOUND && program ? KELP_ERR_INVALID : status;
}

kelp_status kelp__child_start(const struct kelp_children *children, struct kelp_child *child,
                              struct kelp_error *reterr)
{
    struct command command;
    struct environment environment = {0};

    kelp_status status =
        program_path(children->options.bin_folder, child->kind, command.program, reterr);
    if (status == KELP_OK) {
        make_command(children, child, &command);
        status = make_environment(children, child, &command, &environment, reterr);
    }
    if (status == KELP_OK) {
        status = start_process(children, child, &command, &environment, reterr);
    }
    free_environment(&environment);
    if (status != KELP_OK) {
        return status;
    }
    child->log_first = child->starts == 0 ? child->log_from : child->log_first;
    child->starts++;
    child->start_due = false;
    child->fenced = false;
    child->start_ms = kelp_clock_ms();
    child->memory_kills = kelp_memory_kills();
    return KELP_OK;
}
