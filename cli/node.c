#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_own.h"
#include "cli/launch/children/children.h"
#include "cli/launch/launcher.h"
#include "cli/preflight/preflight.h"
#include "cli/run/job_files.h"
#include "cli/run/worker_program.h"
#include "cli/verb/job_load.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/process_name.h"
#include "common/base/sha256.h"
#include "common/base/value.h"
#include "common/program/options/map_option.h"
#include "common/program/shm_option.h"

#define METRICS_HOST_MAX 253
#define ASK_PERIOD_MS    250
#define ASK_DEADLINE_MS  1000

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that holds the job"),
    KELP_VERB_REQUIRED("job", "NAME", "the job, which kelp submit puts into etcd"),
    KELP_VERB_RUN(NULL, "the run's folder, if its path here differs from what kelp submit printed; "
                        "a host that runs only workers may use any folder, for their logs; after "
                        "kelp submit --no-shared-folder, a folder of this host"),
    KELP_MAP_PATH_OPTION(NULL, "; the run's folder too"),
    KELP_VERB_TEXT("host", "NAME", NULL,
                   "name of this host, unique in the job; its processes are NAME.shard-0 and so "
                   "on (default: the host's name)"),
    KELP_VERB_FLAG("coordinator", "Processes",
                   "start a coordinator; if several hosts do, one leads and writes the model"),
    KELP_VERB_NUMBER("shards", RANGE, 0, KELP_HOST_ROOM_MAX, "0", "Processes",
                     "N or MIN:MAX shards; with MIN:MAX, this host's share of the number that kelp "
                     "scale or the job asks for"),
    KELP_VERB_NUMBER("workers", RANGE, 0, KELP_HOST_ROOM_MAX, "0", "Processes",
                     "N or MIN:MAX workers, likewise"),
    KELP_VERB_TEXT("gpus", "LIST", "Processes",
                   "with cluster.device: cuda, the GPUs to use, such as 0,1; each worker here gets "
                   "one of them, in turn (default: those in CUDA_VISIBLE_DEVICES, or all)"),
    KELP_VERB_TEXT("zone", "NAME", "Processes",
                   "name that this host shares with hosts that fail together with it, such as its "
                   "rack (default: no such hosts)"),
    KELP_VERB_JOB_CERTS(
        "Processes", "use mutual TLS; the folder has coordinator/, shard/ and worker/, as far as "
                     "they are started, and operator/ with --coordinator or MIN:MAX, else reader/"),
    KELP_VERB_TEXT("listen", "HOST", "Processes",
                   "with --certs: address of this host on which its processes listen (default: the "
                   "one from which it reaches etcd)"),
    KELP_SHM_FOLDER_OPTION("Processes",
                           "; with --certs only, if several kelp node run on one machine, as in "
                           "containers (default: a folder for the processes of this kelp node)"),
    KELP_VERB_TEXT("metrics", "HOST:PORT", "Processes",
                   "serve /metrics, /healthz and /readyz; the processes take this port and the "
                   "following ones, in the order coordinator, shards, workers"),
    KELP_VERB_TEXT("spec-sha256", "HEX", "Processes",
                   "run the job only if its text has this SHA-256, which kelp submit prints; "
                   "required for a job with model.plugin or model.program"),
    KELP_VERB_NUMBER("grace", DURATION, 1000, 86400000, "30s", "Processes",
                     "after SIGTERM: time for shards to move their partitions to other hosts"),
    KELP_VERB_NUMBER(
        "left-status", INTEGER, 0, 255, "0", "Processes",
        "exit status after this host has left on SIGTERM, for a supervisor that takes 0 for the "
        "end of the job"),
    KELP_VERB_FLAG("no-restart", "Processes", "do not restart processes that die"),
    KELP_VERB_LOG_LEVEL("Processes", "lowest level that is written to the run's logs/"),
};

static const struct kelp_program program = {
    .name = "kelp node",
    .summary = "runs a job's processes on one host of a cluster, until the job is over",
    .examples =
        "  kelp node --etcd http://127.0.0.1:2379 --job mlp --coordinator --shards 1 "
        "--workers 2\n"
        "  kelp node --etcd https://10.0.0.5:2379 --job fare --workers 8 --certs /etc/kelp\n",
    KELP_VERB_OPTIONS(options),
};

/* The state of one `kelp node`; a field is empty until its stage has run. */
struct node {
    const struct kelp_options *given;
    uint64_t start_ms;
    char host[KELP_HOST_NAME_MAX + 1];
    char bin_folder[KELP_PROCESS_PATH_MAX];
    char certs[KELP_LAUNCH_CERTS_MAX + 1]; /* "": none */
    const char *shm_folder;                /* NULL: none is named */
    char metrics[METRICS_HOST_MAX + 1];
    struct kelp_run_dir run;    /* its lock is the launcher's to take */
    struct kelp_run_home place; /* as etcd has it */
    struct kelp_path_map paths;
    struct kelp_job_client *client;
    struct kelp_job_file *file;
    char *spec;
    struct kelp_launch_node launch;
    struct kelp_worker_program program;
    struct kelp_gpus gpus;
    struct kelp_trials trials; /* none */
    struct kelp_display display;
    struct kelp_manager manager;
    struct kelp_result result;
};

/* ---- before anything starts ---------------------------------------------------------------- */

static kelp_status choose_host(struct node *node, struct kelp_error *reterr)
{
    const char *typed = kelp_options_text(node->given, "host");
    char own[256] = "";

    if (!typed && gethostname(own, sizeof(own) - 1) == 0) {
        own[strcspn(own, ".")] = '\0';
    }
    const char *host = typed ? typed : own;
    if (strlen(host) > KELP_HOST_NAME_MAX || !kelp_process_name_valid(host) || strchr(host, '.')) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s '%.64s': 1 to %d letters, digits, '-' or '_' are expected%s",
                         typed ? "--host" : "the host's name", host, KELP_HOST_NAME_MAX,
                         typed ? "" : "; give another one by --host");
    }
    (void)snprintf(node->host, sizeof(node->host), "%s", host);
    return KELP_OK;
}

static struct kelp_room read_room(const struct node *node, const char *option)
{
    struct kelp_range range = kelp_options_range(node->given, option);

    return (struct kelp_room){.least = range.min, .most = range.max};
}

static bool is_range(const struct kelp_room *room)
{
    return room->least < room->most;
}

static kelp_status choose_processes(struct node *node, struct kelp_error *reterr)
{
    const char *zone = kelp_options_text(node->given, "zone");

    if (zone && !kelp_process_name_valid(zone)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--zone '%.64s': 1 to %d letters, digits, '-', '_' or '.' are expected",
                         zone, KELP_PROCESS_NAME_MAX);
    }
    node->launch = (struct kelp_launch_node){.host = node->host,
                                             .zone = zone ? zone : node->host,
                                             .shards = read_room(node, "shards"),
                                             .workers = read_room(node, "workers"),
                                             .paths = &node->paths};
    node->launch.steers = kelp_options_flag(node->given, "coordinator") ||
                          !kelp_options_text(node->given, "certs") ||
                          is_range(&node->launch.shards) || is_range(&node->launch.workers);
    return kelp_options_flag(node->given, "coordinator") || node->launch.shards.most > 0 ||
                   node->launch.workers.most > 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "nothing to run: give --coordinator, --shards N or --workers N");
}

/* The ports of --metrics, one for each process. */
static kelp_status choose_metrics(struct node *node, struct kelp_error *reterr)
{
    const char *typed = kelp_options_text(node->given, "metrics");
    const char *colon = typed ? strrchr(typed, ':') : NULL;
    const uint64_t processes = (uint64_t)kelp_options_flag(node->given, "coordinator") +
                               node->launch.shards.most + node->launch.workers.most;
    uint64_t port = 0;

    if (!typed) {
        return KELP_OK;
    }
    if (!colon || colon == typed || colon - typed > METRICS_HOST_MAX ||
        kelp_value_u64(colon + 1, 0, UINT16_MAX, &port, NULL) != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--metrics '%.255s': expected HOST:PORT with a port from 0 to 65535",
                         typed);
    }
    if (port > 0 && port + processes - 1 > UINT16_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--metrics '%.255s': the last of %" PRIu64
                         " processes would have port %" PRIu64,
                         typed, processes, port + processes - 1);
    }
    (void)snprintf(node->metrics, sizeof(node->metrics), "%.*s", (int)(colon - typed), typed);
    node->launch.metrics_host = node->metrics;
    node->launch.metrics_port = (uint16_t)port;
    return KELP_OK;
}

static kelp_status choose_certs(struct node *node, struct kelp_error *reterr)
{
    const char *folder = kelp_options_text(node->given, "certs");
    const struct kelp_launch_roles roles = {kelp_options_flag(node->given, "coordinator"),
                                            node->launch.shards.most > 0,
                                            node->launch.workers.most > 0, node->launch.steers};

    if (!folder) {
        return kelp_options_text(node->given, "listen")
                   ? kelp_fail(reterr, KELP_ERR_INVALID,
                               "--listen needs --certs FOLDER; without it, all processes are on "
                               "this machine and use unix sockets")
                   : KELP_OK;
    }
    return kelp_launcher_find_certs(folder, kelp_options_text(node->given, "job"), &roles,
                                    node->certs, reterr);
}

static kelp_status choose_shm_folder(struct node *node, struct kelp_error *reterr)
{
    const kelp_status status = kelp_shm_option_read(node->given, &node->shm_folder, reterr);

    return status == KELP_OK && node->shm_folder && node->certs[0] == '\0'
               ? kelp_fail(reterr, KELP_ERR_INVALID,
                           "--shm-folder needs --certs FOLDER; without it, all processes use unix "
                           "sockets, and share memory without a folder")
               : status;
}

static kelp_status prepare(struct node *node, struct kelp_error *reterr)
{
    kelp_status status = choose_host(node, reterr);

    if (status == KELP_OK) {
        status = choose_processes(node, reterr);
    }
    if (status == KELP_OK && !kelp_process_name_valid(kelp_options_text(node->given, "job"))) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "--job must be 1 to %d letters, digits, '-', '_' or '.'",
                           KELP_PROCESS_NAME_MAX);
    }
    const char *sha256 = kelp_options_text(node->given, "spec-sha256");
    if (status == KELP_OK && sha256 && !kelp_sha256_is(sha256)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "--spec-sha256 must be 64 hexadecimal digits in lower case");
    }
    if (status == KELP_OK) {
        status = choose_metrics(node, reterr);
    }
    if (status == KELP_OK) {
        status = choose_certs(node, reterr);
    }
    if (status == KELP_OK) {
        status = choose_shm_folder(node, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_map_option_read(node->given, &node->paths, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_preflight_bin_folder(node->bin_folder, sizeof(node->bin_folder), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_children_check_programs(node->bin_folder, reterr);
    }
    return status;
}

/* ---- the job ------------------------------------------------------------------------------- */

static kelp_status open_client(struct node *node, struct kelp_error *reterr)
{
    char certs[KELP_CREDENTIALS_PATH_MAX + 1];

    (void)snprintf(certs, sizeof(certs), "%s/%s", node->certs,
                   node->launch.steers ? "operator" : "reader");
    return kelp_job_client_open(kelp_options_text(node->given, "etcd"),
                                kelp_options_text(node->given, "job"),
                                node->certs[0] ? certs : NULL, &node->client, reterr);
}

/* Whether asking again may help: the job is not there yet, or etcd is away. */
static bool may_come(kelp_status status)
{
    return status == KELP_ERR_NOT_FOUND || status == KELP_ERR_UNREACHABLE ||
           status == KELP_ERR_TIMEOUT || status == KELP_ERR_BUSY;
}

/* Looked up once: many hosts may wait for long. */
static const char *say_missing(struct node *node, struct kelp_error *missing)
{
    if (missing->status == KELP_OK) {
        (void)!kelp_job_missing(node->client, missing);
        kelp_error_prefix(missing, "waiting for the job");
    }
    return missing->text;
}

/* Wait for the job's text. False with KELP_OK: a signal came first. */
static bool wait_for_spec(struct node *node, struct kelp_guard *guard, struct kelp_error *reterr)
{
    struct pollfd signal = {.fd = kelp_guard_fd(guard), .events = POLLIN};
    struct kelp_error missing = {.status = KELP_OK};

    reterr->status = KELP_OK;
    while (kelp_guard_stage(guard) == KELP_GUARD_RUN) {
        kelp_manager_alive(&node->manager, kelp_clock_ms(), "waiting for the job");
        kelp_status status =
            kelp_job_client_get(node->client, "spec", ASK_DEADLINE_MS, &node->spec, reterr);
        if (status == KELP_OK || !may_come(status)) {
            break;
        }
        kelp_display_wait(&node->display,
                          status == KELP_ERR_NOT_FOUND ? say_missing(node, &missing) : reterr->text,
                          kelp_clock_ms());
        reterr->status = KELP_OK;
        (void)poll(&signal, 1, ASK_PERIOD_MS);
    }
    kelp_display_clear(&node->display);
    return node->spec != NULL;
}

/* Check that it is the expected job: workers load what it names. */
static kelp_status check_spec(const struct node *node, char sha256[KELP_SHA256_HEX_BYTES],
                              struct kelp_error *reterr)
{
    const char *meant = kelp_options_text(node->given, "spec-sha256");
    const struct kelp_job *job = kelp_job_file_job(node->file);

    kelp_status status = kelp_sha256(node->spec, strlen(node->spec), sha256, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (meant && strcmp(meant, sha256) != 0) {
        return kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "job '%s' in etcd is not the expected one: its SHA-256 is %s, but --spec-sha256 is %s",
            job->name, sha256, meant);
    }
    const char *named = job->model.python[0] ? job->model.python : job->model.program;
    if (meant || (!job->model.plugin[0] && !named[0])) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_DENIED,
                     "job '%s' %s, '%s': confirm it with --spec-sha256, which kelp submit prints",
                     job->name, named[0] ? "runs a program" : "loads a library",
                     named[0] ? named : job->model.plugin);
}

static kelp_status read_spec(struct node *node, struct kelp_error *reterr)
{
    const char *name = kelp_options_text(node->given, "job");
    char sha256[KELP_SHA256_HEX_BYTES];

    kelp_status status = kelp_job_load_text("the job in etcd", node->spec, &node->file, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_finish(node->file, reterr);
    }
    if (status == KELP_OK && strcmp(kelp_job_file_job(node->file)->name, name) != 0) {
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "/kelp/%s/spec in etcd is of job '%s'", name,
                           kelp_job_file_job(node->file)->name);
    }
    return status == KELP_OK ? check_spec(node, sha256, reterr) : status;
}

/* ---- the run's folder ---------------------------------------------------------------------- */

static kelp_status make_folder(const char *path, struct kelp_error *reterr)
{
    return mkdir(path, 0750) == 0 || errno == EEXIST
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot make folder '%s': %s", path,
                           strerror(errno));
}

/* The run's own files, such as its copy of a plug-in, are in its folder on this host. */
static kelp_status map_folder(struct node *node, const struct kelp_run_home *place,
                              struct kelp_error *reterr)
{
    char *real = realpath(node->run.path, NULL);

    if (!real) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot resolve '%s': %s", node->run.path,
                         strerror(errno));
    }
    kelp_status status = strcmp(real, place->folder) == 0
                             ? KELP_OK
                             : kelp_path_map_join(&node->paths, place->folder, real, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--run");
    }
    free(real);
    return status;
}

/* Read the model's card; *ret_card is owned, NULL if there is none. */
static kelp_status read_card(struct node *node, char **ret_card, struct kelp_error *reterr)
{
    kelp_status status =
        kelp_job_client_get(node->client, KELP_RUN_CARD_KEY, ASK_DEADLINE_MS, ret_card, reterr);

    if (status == KELP_ERR_NOT_FOUND) {
        *ret_card = NULL;
        return KELP_OK;
    }
    return status;
}

/* Hosts share none. */
static kelp_status open_own_folder(struct node *node, struct kelp_error *reterr)
{
    const char *typed = kelp_options_text(node->given, "run");
    char *card = NULL;

    kelp_status status = read_card(node, &card, reterr);
    const struct kelp_run_own own = {.place = &node->place, .file = node->file, .card = card};
    if (status == KELP_OK) {
        status = kelp_run_own_path(&own, typed, node->host, &node->paths, node->run.path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_own_make(&own, node->run.path, reterr);
    }
    free(card);
    if (status == KELP_OK) {
        node->launch.apart = &node->place;
        kelp_display_say(&node->display,
                         "no checkpoints, since the hosts share no folder: a job that loses all "
                         "copies of a partition begins again; this host's folder is %s",
                         node->run.path);
    }
    return status;
}

/* Coordinators and shards meet in the run's folder; workers have their logs in one. */
static kelp_status open_folder(struct node *node, struct kelp_error *reterr)
{
    const struct kelp_run_home *place = &node->place;
    const char *typed = kelp_options_text(node->given, "run");
    bool shared = kelp_options_flag(node->given, "coordinator") || node->launch.shards.most > 0;
    char logs[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_home_path(place, typed, &node->paths, node->run.path, reterr);
    if (status == KELP_OK) {
        status = shared ? kelp_run_home_check(place, node->run.path, reterr)
                        : make_folder(node->run.path, reterr);
    }
    if (status == KELP_OK && shared && typed) {
        status = map_folder(node, place, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_path(node->run.path, "logs", logs, sizeof(logs), reterr);
    }
    return status == KELP_OK ? make_folder(logs, reterr) : status;
}

/* ---- the job's files ----------------------------------------------------------------------- */

static bool is_used(const struct node *node, const struct kelp_path_map_entry *entry,
                    const char *folder)
{
    struct kelp_job_path path;
    bool used = kelp_path_map_covers(entry, folder);

    for (size_t i = 0; !used && kelp_job_file_path(node->file, i, &path); i++) {
        used = kelp_path_map_covers(entry, path.named);
    }
    return used;
}

/* One that says nothing about this job is probably mistyped, or is there for another job. */
static void tell_unused(struct node *node, const char *folder)
{
    for (size_t i = 0; i < node->paths.count; i++) {
        const struct kelp_path_map_entry *entry = &node->paths.items[i];
        if (!is_used(node, entry, folder)) {
            kelp_display_say(&node->display, "--map-path %s: no path of the job begins with %.*s",
                             entry->text, (int)(entry->from_bytes > 0 ? entry->from_bytes : 1),
                             entry->text);
        }
    }
}

/* Workers will say it too, in their logs. */
static void tell_missing(struct node *node)
{
    struct kelp_job_path path;

    for (size_t i = 0; node->launch.workers.most > 0 && kelp_job_file_path(node->file, i, &path);
         i++) {
        const bool mapped = strcmp(path.named, path.here) != 0;
        if (kelp_job_files_needed(&path) && kelp_job_files_missing(path.here)) {
            kelp_display_say(&node->display,
                             "%s: %s is not on this host%s%s%s; --map-path FROM=TO says where it "
                             "is",
                             path.key, path.here, mapped ? " (the job has " : "",
                             mapped ? path.named : "", mapped ? ")" : "");
        }
    }
}

/* Resolve all paths of the job on this host. */
static kelp_status find_files(struct node *node, struct kelp_error *reterr)
{
    kelp_status status = kelp_run_home_get(node->client, ASK_DEADLINE_MS, &node->place, reterr);

    if (status != KELP_OK) {
        return status;
    }
    tell_unused(node, node->place.folder);
    status = (node->place.apart ? open_own_folder : open_folder)(node, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_map(node->file, &node->paths, reterr);
    }
    if (status == KELP_OK) {
        tell_missing(node);
    }
    return status;
}

/* Check that workers that share a GPU fit it together. If this cannot be derived on this host, and
 * for one worker alone, the workers report it themselves. */
static kelp_status check_gpus(const struct node *node, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(node->file);
    const uint32_t sharing = kelp_gpus_sharing(&node->gpus, node->launch.workers.most);
    struct kelp_derived derived;

    if (sharing < 2 || kelp_worker_program_is(&node->program) ||
        kelp_derived_open(job, NULL, &derived, NULL) != KELP_OK) {
        return KELP_OK;
    }
    const kelp_status status = kelp_derived_check_device(
        job, &derived, sharing, kelp_model_device_memory(derived.model), reterr);
    kelp_derived_close(&derived);
    return status;
}

/* ---- the work ------------------------------------------------------------------------------ */

/* A job that is done or has failed needs no processes. */
static bool is_over(struct node *node)
{
    return kelp_run_result_get(node->client, ASK_DEADLINE_MS, NULL, &node->result, NULL) ==
               KELP_OK &&
           strcmp(node->result.status, "paused") != 0;
}

static int start(struct node *node, struct kelp_guard *guard)
{
    const struct kelp_launch launch = {
        .node = &node->launch,
        .job = kelp_job_file_job(node->file),
        .spec = node->spec,
        .spec_digest = kelp_job_file_digest(node->file),
        .run = &node->run,
        .bin_folder = node->bin_folder,
        .worker_program = &node->program,
        .etcd_url = kelp_options_text(node->given, "etcd"),
        .log_level = kelp_log_level_names[kelp_options_choice(node->given, "log-level")],
        .listen = kelp_options_text(node->given, "listen"),
        .shm_folder = node->shm_folder,
        .certs = node->certs[0] ? node->certs : NULL,
        .trials = &node->trials,
        .gpus = &node->gpus,
        .coordinators = kelp_options_flag(node->given, "coordinator") ? 1 : 0,
        .no_restart = kelp_options_flag(node->given, "no-restart"),
        .pause_ms = (uint32_t)kelp_options_duration_ms(node->given, "grace"),
        .start_ms = node->start_ms,
        .manager = &node->manager,
    };

    return kelp_launcher_run(&launch, guard, &node->display, &node->result);
}

static int work(struct kelp_guard *guard, void *user)
{
    struct node *node = user;
    struct kelp_error error = {.status = KELP_OK};

    kelp_status status = open_client(node, &error);
    if (status == KELP_OK && !wait_for_spec(node, guard, &error)) {
        if (error.status == KELP_OK) {
            (void)snprintf(node->result.status, sizeof(node->result.status), "left");
            return KELP_EXIT_OK; /* told to end before the job was there */
        }
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (status == KELP_OK) {
        status = read_spec(node, &error);
    }
    if (status == KELP_OK) {
        status = kelp_gpus_find(kelp_options_text(node->given, "gpus"),
                                kelp_job_file_job(node->file)->cluster.device == KELP_DEVICE_CUDA,
                                &node->gpus, &error);
    }
    if (status == KELP_OK && is_over(node)) {
        return kelp_launch_result_exit_status(&node->result);
    }
    memset(&node->result, 0, sizeof(node->result));
    if (status == KELP_OK) {
        status = find_files(node, &error);
    }
    if (status == KELP_OK && node->launch.workers.most > 0) {
        status =
            kelp_worker_program_find(kelp_job_file_job(node->file), NULL, &node->program, &error);
    }
    if (status == KELP_OK) {
        status = check_gpus(node, &error);
    }
    if (status != KELP_OK) {
        bool failed = status == KELP_ERR_IO || status == KELP_ERR_NO_MEMORY ||
                      (may_come(status) && status != KELP_ERR_NOT_FOUND);
        return kelp_complain(failed ? KELP_EXIT_FAILED : KELP_EXIT_USAGE, "%s", error.text);
    }
    return start(node, guard);
}

/* Say where the model is: perhaps on another host, if hosts share no folder. */
static void say_done(struct node *node)
{
    char where[KELP_RUN_HOME_TEXT_MAX + 1];
    struct kelp_run_home place;

    (void)snprintf(where, sizeof(where), "%s", node->run.path);
    if ((node->place.apart || where[0] == '\0') &&
        kelp_run_home_get(node->client, ASK_DEADLINE_MS, &place, NULL) == KELP_OK) {
        kelp_run_home_text(&place, where);
    }
    kelp_result_summary(&node->result, where, stdout);
}

static void say_outcome(struct node *node)
{
    const struct kelp_result *result = &node->result;

    if (strcmp(result->status, "done") == 0) {
        say_done(node);
    } else if (result->status[0] != '\0') {
        (void)kelp_complain(KELP_EXIT_OK, "job %s: %s%s%s", kelp_options_text(node->given, "job"),
                            result->status, result->reason[0] ? ": " : "", result->reason);
    }
}

/* Has it left, while the job goes on? */
static bool has_left(const struct node *node)
{
    return strcmp(node->result.status, "left") == 0;
}

static int run(struct node *node)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    if (prepare(node, &error) != KELP_OK || kelp_manager_open(&node->manager, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_manager_ready(&node->manager);
    if (kelp_guard_run(work, node, &exit_status, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    say_outcome(node);
    if (node->result.after[0] != '\0') {
        kelp_display_say(&node->display, "%s", node->result.after);
    }
    return has_left(node) ? (int)kelp_options_integer(node->given, "left-status") : exit_status;
}

static int node(const struct kelp_options *given)
{
    struct node *node = calloc(1, sizeof(*node));

    if (!node) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    node->given = given;
    node->start_ms = kelp_clock_ms();
    node->run.lock_fd = -1;
    node->manager.fd = -1;
    kelp_display_init(&node->display, STDERR_FILENO);
    int exit_status = run(node);
    kelp_manager_close(&node->manager);
    kelp_job_client_close(node->client);
    kelp_job_file_destroy(node->file);
    free(node->spec);
    free(node);
    return exit_status;
}

const struct kelp_verb kelp_verb_node = {"node", "run a job's processes on one host of a cluster",
                                         &program, node, NULL};
