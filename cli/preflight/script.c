#include "cli/preflight/script.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/preflight/train_job.h"
#include "cli/run/worker_program.h"
#include "cli/verb/job_load.h"
#include "common/base/environment.h"
#include "common/base/files.h"
#include "common/process/process.h"

#define VARIABLE "KELP_DESCRIBE"
#define PATTERN  "/kelp-run-XXXXXX"

#define GRACE_MS 1000 /* of a script that is interrupted */

static const int end_signals[KELP_SCRIPT_SIGNALS] = {SIGINT, SIGTERM, SIGHUP};

/* Only for the signal handler, which gets no argument of ours (docs/ARCHITECTURE.md, "Globals"). */
static int signal_pipe_end;

/* A script that runs. */
struct description {
    struct kelp_process *process;
    int said_fd;   /* its standard error; -1: it has closed that */
    int signal_fd; /* of struct kelp_script */
    bool said;     /* there was something in it */
    int signal;    /* the first one; 0: there was none */
};

/* ---- describing ---------------------------------------------------------------------------- */

static kelp_status find_script(struct kelp_script *script, struct kelp_error *reterr)
{
    const char *typed = kelp_options_positional(script->given, 0);

    if (!realpath(typed, script->path)) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "%.300s: %s", typed, strerror(errno));
    }
    return KELP_OK;
}

static kelp_status make_folder(struct kelp_script *script, struct kelp_error *reterr)
{
    const int length = snprintf(script->folder, sizeof(script->folder), "%s" PATTERN,
                                kelp_environment_temporary());

    if (length < 0 || (size_t)length >= sizeof(script->folder) || !mkdtemp(script->folder)) {
        script->folder[0] = '\0';
        return kelp_fail(reterr, KELP_ERR_IO, "cannot make a folder in %.200s: %s",
                         kelp_environment_temporary(), strerror(errno));
    }
    return KELP_OK;
}

static const char *name_of(const struct kelp_script *script)
{
    return kelp_options_positional(script->given, 0);
}

static void on_signal(int number)
{
    const int error = errno;
    const unsigned char byte = (unsigned char)number;
    ssize_t written = write(signal_pipe_end, &byte, 1);

    (void)written; /* a full pipe holds plenty of them */
    errno = error;
}

/* SIGHUP stays ignored, as under nohup. */
static kelp_status catch_signals(struct kelp_script *script, struct kelp_error *reterr)
{
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "pipe: %s", strerror(errno));
    }
    script->signal_fd = fds[0];
    signal_pipe_end = fds[1];
    for (size_t i = 0; i < KELP_ARRAY_COUNT(end_signals); i++) {
        (void)sigaction(end_signals[i], NULL, &script->before[i]);
        if (end_signals[i] != SIGHUP || script->before[i].sa_handler != SIG_IGN) {
            (void)sigaction(end_signals[i], &action, NULL);
        }
    }
    script->catches_signals = true;
    return KELP_OK;
}

/* Deliver the signals that came since the script ended. */
static void release_signals(struct kelp_script *script)
{
    unsigned char number = 0;

    if (!script->catches_signals) {
        return;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(end_signals); i++) {
        (void)sigaction(end_signals[i], &script->before[i], NULL);
    }
    if (read(script->signal_fd, &number, 1) == 1) {
        (void)raise(number);
    }
    (void)close(script->signal_fd); /* its other end stays open: a handler may still be running */
    script->catches_signals = false;
}

/* Pass its output to our standard error until it is interrupted. False: there is no more for
 * now. */
static bool pass_on(struct description *description)
{
    char text[4096];
    const ssize_t got = read(description->said_fd, text, sizeof(text));

    if (got > 0 && description->signal == 0) {
        for (ssize_t at = 0, wrote = 0; at < got && wrote >= 0; at += wrote) {
            wrote = write(STDERR_FILENO, text + at, (size_t)(got - at));
        }
        description->said = true;
    }
    if (got == 0) {
        (void)close(description->said_fd);
        description->said_fd = -1;
    }
    return got > 0;
}

/* Python raises KeyboardInterrupt then, and the script removes what it has made. */
static kelp_status interrupt(struct description *description, int *ret_wait_status)
{
    kelp_process_signal(description->process, SIGINT);
    return kelp_process_wait(description->process, GRACE_MS, ret_wait_status);
}

/* Returns once it has ended, or did not end although it was told to. */
static kelp_status follow(struct description *description, int *ret_wait_status)
{
    for (;;) {
        struct pollfd items[] = {{.fd = kelp_process_fd(description->process), .events = POLLIN},
                                 {.fd = description->said_fd, .events = POLLIN},
                                 {.fd = description->signal_fd, .events = POLLIN}};
        unsigned char number;
        if (poll(items, KELP_ARRAY_COUNT(items), -1) < 0) {
            continue; /* EINTR: the pipe has the signal */
        }
        if (items[2].revents && read(description->signal_fd, &number, 1) == 1) {
            description->signal = number;
            return interrupt(description, ret_wait_status);
        }
        if (items[1].revents) {
            (void)pass_on(description);
        }
        if (items[0].revents) {
            while (description->said_fd >= 0 && pass_on(description)) {
            }
            return kelp_process_wait(description->process, 0, ret_wait_status);
        }
    }
}

static kelp_status start(const struct kelp_script *script, const char *const *argv,
                         struct description *description, struct kelp_error *reterr)
{
    char variable[PATH_MAX + sizeof(VARIABLE "=")];
    const char *const set[] = {variable, NULL};
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "pipe: %s", strerror(errno));
    }
    description->said_fd = fds[0];
    const struct kelp_process_options options = {.argv = argv,
                                                 .set_environment = set,
                                                 .stdout_fd = KELP_PROCESS_INHERIT,
                                                 .stderr_fd = fds[1]};
    (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    (void)snprintf(variable, sizeof(variable), VARIABLE "=%s", script->folder);
    kelp_status status = kelp_process_start(&options, &description->process, reterr);
    (void)close(fds[1]);
    return status;
}

/* Python ends with 1 by itself, and with 2 by our packages, after it has said why. */
static bool has_told(const struct description *description, int wait_status)
{
    return description->said && WIFEXITED(wait_status) &&
           (WEXITSTATUS(wait_status) == 1 || WEXITSTATUS(wait_status) == 2);
}

/* Returns once it has ended. */
static kelp_status run_script(struct kelp_script *script, const char *const *argv,
                              struct kelp_error *reterr)
{
    struct description description = {.said_fd = -1, .signal_fd = script->signal_fd};
    char how[64];
    int wait_status = 0;

    kelp_status status = start(script, argv, &description, reterr);
    if (status == KELP_OK) {
        status = follow(&description, &wait_status);
    }
    kelp_process_destroy(description.process); /* with all of its group */
    if (description.said_fd >= 0) {
        (void)close(description.said_fd);
    }
    if (description.signal != 0) {
        script->signal = description.signal;
        return kelp_fail(reterr, KELP_ERR_CLOSED, "stopped while %.200s started; no run was begun",
                         name_of(script));
    }
    if (status == KELP_OK && (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)) {
        script->told = has_told(&description, wait_status);
        kelp_process_describe(wait_status, how, sizeof(how));
        return kelp_fail(reterr, KELP_ERR_INVALID, "%.200s: %s before it created a worker",
                         name_of(script), how);
    }
    return status;
}

static kelp_status check_described(const struct kelp_script *script, struct kelp_error *reterr)
{
    char path[PATH_MAX + 16];

    (void)snprintf(path, sizeof(path), "%s/job.yaml", script->folder);
    return access(path, F_OK) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "%.200s ended without creating a worker: a script for kelp run must "
                           "create one (kelp.Worker, kelp.torch.Worker)",
                           name_of(script));
}

/* The keys that make workers run it. */
static kelp_status set_program(struct kelp_job_file *file, const struct kelp_script *script,
                               struct kelp_error *reterr)
{
    char text[2 * KELP_JOB_TEXTS_MAX + 8] = "[";
    size_t used = 1;

    for (size_t i = 1; i < kelp_options_positional_count(script->given); i++) {
        const char *argument = kelp_options_positional(script->given, i);
        if (argument[0] == '\0') {
            return kelp_fail(reterr, KELP_ERR_INVALID, "argument %zu of the script is empty", i);
        }
        if (2 * strlen(argument) + 8 > sizeof(text) - used) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "the script's arguments have over %d bytes",
                             KELP_JOB_TEXTS_MAX);
        }
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s\"", i > 1 ? ", " : "");
        for (; *argument != '\0'; argument++) {
            if (*argument == '"' || *argument == '\\') {
                text[used++] = '\\';
            }
            text[used++] = *argument;
        }
        text[used++] = '"';
    }
    text[used++] = ']';
    text[used] = '\0';
    const struct kelp_job_setting settings[] = {
        {"model.program", ""}, {"model.python", script->path}, {"model.arguments", text}};
    return kelp_job_set(file, settings, KELP_ARRAY_COUNT(settings), reterr);
}

kelp_status kelp_script_describe(const struct kelp_options *given, struct kelp_script *ret_script,
                                 struct kelp_error *reterr)
{
    struct kelp_worker_program program;
    struct kelp_job_file *file = kelp_job_file_create();

    *ret_script = (struct kelp_script){.given = given};
    if (!file) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = find_script(ret_script, reterr);
    if (status == KELP_OK) {
        status = set_program(file, ret_script, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status == KELP_OK) { /* as workers will run it */
        status = kelp_worker_program_find(kelp_job_file_job(file), NULL, &program, reterr);
    }
    if (status == KELP_OK) {
        status = catch_signals(ret_script, reterr);
    }
    if (status == KELP_OK) {
        status = make_folder(ret_script, reterr);
    }
    if (status == KELP_OK) {
        status = run_script(ret_script, program.argv, reterr);
    }
    kelp_job_file_destroy(file);
    return status == KELP_OK ? check_described(ret_script, reterr) : status;
}

void kelp_script_fini(struct kelp_script *script)
{
    if (script->folder[0] != '\0') {
        (void)kelp_files_remove(script->folder, NULL); /* it lies where such folders are cleared */
        script->folder[0] = '\0';
    }
    release_signals(script);
}

/* ---- the job ------------------------------------------------------------------------------- */

/* "train" of "/home/me/train.py": what a name may not have becomes '-'. */
static kelp_status name_job(struct kelp_job_file *file, const struct kelp_script *script,
                            struct kelp_error *reterr)
{
    char name[KELP_JOB_NAME_MAX + 1];

    (void)snprintf(name, sizeof(name), "%.*s", KELP_JOB_NAME_MAX, strrchr(script->path, '/') + 1);
    char *dot = strrchr(name, '.');
    if (dot && dot != name) {
        *dot = '\0';
    }
    for (char *at = name; *at != '\0'; at++) {
        const char c = *at;
        const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '_' || (c == '.' && at != name);
        *at = fits ? c : '-';
    }
    return kelp_job_set(file, &(struct kelp_job_setting){"name", name}, 1, reterr);
}

static kelp_status lay(struct kelp_job_file *file, const void *user, struct kelp_error *reterr)
{
    const struct kelp_script *script = user;

    kelp_status status = KELP_OK;
    if (kelp_job_file_origin(file, "name") == KELP_ORIGIN_DEFAULT) {
        status = name_job(file, script, reterr);
    }
    if (status == KELP_OK) {
        status = set_program(file, script, reterr);
    }
    return status == KELP_OK ? kelp_train_job_lay(file, script->given, reterr) : status;
}

kelp_status kelp_script_job(const struct kelp_script *script, struct kelp_job_file **ret_file,
                            struct kelp_error *reterr)
{
    char path[PATH_MAX + 16];
    const struct kelp_job_source source = {
        .path = path, .environment = true, .lay = lay, .user = script};

    (void)snprintf(path, sizeof(path), "%s/job.yaml", script->folder);
    return kelp_job_load(&source, ret_file, reterr);
}

/* ---- the weights to begin with ------------------------------------------------------------- */

/* The path of a file that the script has written, "/…/run/init/init.safetensors"; false if it wrote
 * none. */
static bool name_copy(const struct kelp_script *script, const struct kelp_job_file *file,
                      const char *run_path, char folder[PATH_MAX], char path[PATH_MAX])
{
    const char *init = kelp_job_file_job(file)->model.init;
    const size_t length = strlen(script->folder);
    char run[PATH_MAX];

    if (strncmp(init, script->folder, length) != 0 || init[length] != '/' ||
        !realpath(run_path, run)) {
        return false;
    }
    return snprintf(folder, PATH_MAX, "%s/" KELP_SCRIPT_INIT_FOLDER, run) < PATH_MAX &&
           snprintf(path, PATH_MAX, "%s/%s", folder, strrchr(init, '/') + 1) < PATH_MAX;
}

static kelp_status use_copy(struct kelp_job_file *file, const char *path, struct kelp_error *reterr)
{
    return kelp_job_set(file, &(struct kelp_job_setting){"model.init", path}, 1, reterr);
}

kelp_status kelp_script_init_find(const struct kelp_script *script, struct kelp_job_file *file,
                                  const char *run_path, struct kelp_error *reterr)
{
    char folder[PATH_MAX], path[PATH_MAX];

    return name_copy(script, file, run_path, folder, path) && access(path, F_OK) == 0
               ? use_copy(file, path, reterr)
               : KELP_OK;
}

static kelp_status copy_file(const char *from, const char *to, struct kelp_error *reterr)
{
    int in = -1;

    kelp_status status = kelp_files_open(from, 0, &in, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    status = out < 0 ? kelp_files_error(errno, "write", to, reterr)
                     : kelp_files_pour(in, from, out, to, reterr);
    if (status == KELP_OK && fsync(out) != 0) {
        status = kelp_files_error(errno, "write", to, reterr);
    }
    (void)close(in); /* only read from */
    if (out >= 0 && close(out) != 0 && status == KELP_OK) {
        status = kelp_files_error(errno, "write", to, reterr);
    }
    return status;
}

kelp_status kelp_script_init_keep(const struct kelp_script *script, struct kelp_job_file *file,
                                  const char *run_path, struct kelp_error *reterr)
{
    char folder[PATH_MAX], path[PATH_MAX];

    if (!name_copy(script, file, run_path, folder, path)) {
        return KELP_OK;
    }
    kelp_status status = kelp_files_make_folder(folder, reterr);
    if (status == KELP_OK) {
        status = copy_file(kelp_job_file_job(file)->model.init, path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_files_sync_above(path, 2, reterr);
    }
    return status == KELP_OK ? use_copy(file, path, reterr) : status;
}
