#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/chaos/chaos_job.h"
#include "cli/chaos/chaos_net.h"
#include "cli/chaos/chaos_run.h"
#include "cli/chaos/chaos_run_hosts.h"
#include "cli/chaos/report/chaos_judge.h"
#include "cli/cluster/run_client.h"
#include "cli/launch/launcher.h"
#include "cli/preflight/preflight.h"
#include "cli/replay/digest_log.h"
#include "cli/verb/job_load.h"
#include "cli/verbs.h"
#include "common/base/files.h"
#include "common/process/process.h"

#define RUNS "Runs"

static const struct kelp_option options[] = {
    {.name = "plan",
     .type = KELP_OPTION_TEXT,
     .placeholder = "quick|all|hosts|FILE",
     .help = "the faults: a built-in plan (quick, all or hosts), or a YAML file as in "
             "docs/OPERATIONS.md (default: quick; with --hosts: hosts)"},
    KELP_VERB_NUMBER("faults", INTEGER, 1, KELP_CHAOS_FAULTS_MAX, NULL, NULL,
                     "how many faults the plan draws (overrides its draw.count)"),
    KELP_VERB_NUMBER("seed", INTEGER, 0, UINT64_MAX, "1", NULL,
                     "seed for the plan's random choices"),
    KELP_VERB_FLAG("print-plan", NULL, "print the faults; start nothing"),
    KELP_VERB_NUMBER("hosts", INTEGER, KELP_NETWORK_HOSTS_MIN, KELP_NETWORK_HOSTS_MAX, NULL, NULL,
                     "inject faults into whole hosts: N network namespaces on this machine, each "
                     "with an etcd member and a kelp node"),
    KELP_VERB_NUMBER("workers", INTEGER, 1, 1024, NULL, RUNS,
                     "workers (job key cluster.workers; default: as in the job, but at least 2, "
                     "and one on each host)"),
    KELP_VERB_SHARDS(RUNS, "shards (job key cluster.shards; default: as in the job, but at least "
                           "2, and one on each host)"),
    KELP_VERB_COORDINATORS(RUNS, "2",
                           "coordinators: one leads, the others stand by; each host has one"),
    KELP_VERB_NUMBER("epochs", INTEGER, 1, 1000000, NULL, RUNS,
                     "epochs of both runs (job key train.epochs; default: enough to outlast the "
                     "plan)"),
    KELP_VERB_SET(RUNS, "set a job key, such as checkpoint.steps=200"),
    KELP_VERB_TEXT("digest", "HEX", RUNS, "expected digest; no run without faults is made"),
    KELP_VERB_TEXT("quiet-run", "DIR", RUNS,
                   "an existing run of the same job without faults; no further one is made"),
    KELP_VERB_RUN(RUNS, "folder for both runs and the report (default: runs/NAME-chaos-TIME)"),
    KELP_VERB_NUMBER("stall", DURATION, 1000, 3600000, "60s", RUNS,
                     "a run without a step for this long counts as hanging; time while workers "
                     "start does not count"),
    KELP_VERB_JOB_CERTS(RUNS, "listen on loopback ports with mutual TLS; the folder has "
                              "coordinator/, shard/, worker/, operator/ and etcd/, made by kelp "
                              "certs for the job, etcd/ with --host 127.0.0.1"),
    KELP_VERB_ETCD_PROGRAM(RUNS),
    KELP_VERB_LOG_LEVEL(RUNS, "lowest level that is written to the runs' logs/"),
};

static const struct kelp_program program = {
    .name = "kelp chaos",
    .summary = "runs a job twice, the second time under faults, and compares the digests",
    .positional = "JOB.yaml",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp chaos examples/etth1-dlinear.yaml\n"
                "  kelp chaos examples/etth1-dlinear.yaml --plan all --seed 7\n"
                "  kelp chaos examples/etth1-dlinear.yaml --hosts 3 --set cluster.replicas=2\n",
    KELP_VERB_OPTIONS(options),
};

/* The state of one `kelp chaos`; a field is empty until its stage has run. */
struct chaos {
    const struct kelp_options *given;
    struct kelp_job_file *file;
    struct kelp_chaos_plan plan;
    struct kelp_chaos_fault faults[KELP_CHAOS_FAULTS_MAX];
    uint32_t fault_count;
    uint32_t left_out;
    char bin_folder[KELP_PROCESS_PATH_MAX];
    char disk_library[KELP_PROCESS_PATH_MAX]; /* "": no faults of the disk */
    char certs[KELP_LAUNCH_CERTS_MAX + 1];    /* "": made for the run */
    struct kelp_run_dir folder;
    struct kelp_display display;
    struct kelp_chaos_report report;
    struct kelp_result quiet;
    struct kelp_result result;
    struct kelp_network *network; /* NULL: all is on this machine */
};

/* ---- before the start ---------------------------------------------------------------------- */

static bool on_hosts(const struct chaos *chaos)
{
    return kelp_options_given(chaos->given, "hosts");
}

static kelp_status parse_plan(struct chaos *chaos, struct kelp_error *reterr)
{
    const char *typed = kelp_options_text(chaos->given, "plan");
    const char *name = typed ? typed : on_hosts(chaos) ? "hosts" : "quick";
    const char *builtin = kelp_chaos_plan_builtin(name);
    char *text = NULL;
    size_t bytes = 0;

    if (builtin) {
        return kelp_chaos_plan_parse(name, builtin, strlen(builtin), &chaos->plan, reterr);
    }
    kelp_status status = kelp_files_read(name, KELP_CHAOS_PLAN_BYTES_MAX, &text, &bytes, reterr);
    if (status == KELP_ERR_NOT_FOUND || status == KELP_ERR_IO) {
        return kelp_fail(
            reterr, KELP_ERR_NOT_FOUND,
            "plan '%s' is neither built in (quick, all, hosts) nor a file that can be read", name);
    }
    if (status == KELP_OK) {
        status = kelp_chaos_plan_parse(name, text, bytes, &chaos->plan, reterr);
        free(text);
    }
    return status;
}

static kelp_status read_plan(struct chaos *chaos, struct kelp_error *reterr)
{
    kelp_status status = parse_plan(chaos, reterr);

    return status == KELP_OK && kelp_options_given(chaos->given, "faults")
               ? kelp_chaos_plan_set_count(
                     &chaos->plan, (uint32_t)kelp_options_integer(chaos->given, "faults"), reterr)
               : status;
}

static bool has_faults(const struct chaos *chaos, enum kelp_chaos_kind a, enum kelp_chaos_kind b)
{
    bool has = false;

    for (uint32_t i = 0; i < chaos->fault_count; i++) {
        has = has || chaos->faults[i].kind == a || chaos->faults[i].kind == b;
    }
    return has;
}

/* A fault that is not possible here: refuse it, or drop it if the plan allows that. */
static kelp_status cannot(struct chaos *chaos, enum kelp_chaos_kind a, enum kelp_chaos_kind b,
                          const char *why, struct kelp_error *reterr)
{
    bool drop[KELP_CHAOS_KIND_COUNT] = {false};

    if (!chaos->plan.if_possible) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "plan '%s': %s and %s are not possible here: %.200s; with "
                         "if_possible: true they are left out",
                         chaos->plan.name, kelp_chaos_kind_name(a), kelp_chaos_kind_name(b), why);
    }
    drop[a] = true;
    drop[b] = true;
    uint32_t left = kelp_chaos_faults_drop(chaos->faults, chaos->fault_count, drop);
    kelp_display_say(
        &chaos->display, "%" PRIu32 " faults (%s, %s) are left out, not possible here: %s",
        chaos->fault_count - left, kelp_chaos_kind_name(a), kelp_chaos_kind_name(b), why);
    chaos->left_out += chaos->fault_count - left;
    chaos->fault_count = left;
    return left > 0 ? KELP_OK
                    : kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                                "plan '%s': none of its faults is possible here", chaos->plan.name);
}

/* Next to kelp in a build; in ../lib/kelp once installed. */
static bool find_disk_library(struct chaos *chaos)
{
    static const char *const places[] = {"", "../lib/kelp/"};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(places); i++) {
        int length = snprintf(chaos->disk_library, sizeof(chaos->disk_library),
                              "%s/%skelp-faultdisk.so", chaos->bin_folder, places[i]);
        if (length > 0 && (size_t)length < sizeof(chaos->disk_library) &&
            access(chaos->disk_library, R_OK) == 0) {
            return true;
        }
    }
    chaos->disk_library[0] = '\0';
    return false;
}

/* Faults of disk, network and hosts need more than signals. */
static kelp_status make_possible(struct chaos *chaos, struct kelp_error *reterr)
{
    struct kelp_error why = {.text = ""};
    kelp_status status = KELP_OK;

    if (on_hosts(chaos)) {
        return kelp_network_make((uint32_t)kelp_options_integer(chaos->given, "hosts"),
                                 &chaos->network, reterr);
    }
    if (has_faults(chaos, KELP_CHAOS_SLOW, KELP_CHAOS_FULL)) {
        if (!find_disk_library(chaos)) {
            status =
                cannot(chaos, KELP_CHAOS_SLOW, KELP_CHAOS_FULL,
                       "there is no kelp-faultdisk.so beside kelp, nor in ../lib/kelp", reterr);
        }
    }
    if (status == KELP_OK && has_faults(chaos, KELP_CHAOS_SPLIT, KELP_CHAOS_LOSS) &&
        kelp_chaos_net_enter(&why) != KELP_OK) {
        status = cannot(chaos, KELP_CHAOS_SPLIT, KELP_CHAOS_LOSS, why.text, reterr);
    }
    return status;
}

static kelp_status draw(struct chaos *chaos, struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(chaos->file);
    struct kelp_chaos_size size = {.workers = job->cluster.workers.max,
                                   .shards = job->cluster.shards,
                                   .coordinators =
                                       (uint32_t)kelp_options_integer(chaos->given, "coordinators"),
                                   .replicas = job->cluster.replicas,
                                   .lanes = job->cluster.lanes};

    if (on_hosts(chaos)) {
        size.hosts = (uint32_t)kelp_options_integer(chaos->given, "hosts");
    }
    return kelp_chaos_plan_draw(&chaos->plan, &size, kelp_options_integer(chaos->given, "seed"),
                                chaos->faults, &chaos->fault_count, reterr);
}

static kelp_status set_length(struct chaos *chaos, struct kelp_error *reterr)
{
    const char *quiet = kelp_options_text(chaos->given, "quiet-run");
    uint32_t last_step = chaos->faults[chaos->fault_count - 1].step;
    uint64_t epoch_steps = 0;
    uint32_t epochs = 0;
    kelp_status status = KELP_OK;

    if (quiet && !kelp_options_given(chaos->given, "epochs")) {
        status = kelp_chaos_job_epochs_of(quiet, &epochs, reterr);
        if (status == KELP_OK) {
            status = kelp_job_set_u64(chaos->file, "train.epochs", epochs, reterr);
        }
    }
    if (status == KELP_OK) {
        status = kelp_chaos_job_epoch_steps(kelp_job_file_job(chaos->file), &epoch_steps, reterr);
    }
    if (status == KELP_OK) {
        bool fixed = quiet || kelp_options_given(chaos->given, "digest") ||
                     kelp_options_given(chaos->given, "epochs");
        status = kelp_chaos_job_lengthen(chaos->file, epoch_steps, last_step,
                                         on_hosts(chaos) ? chaos->fault_count : 0, fixed, reterr);
    }
    return status == KELP_OK && quiet ? kelp_chaos_job_same(chaos->file, quiet, reterr) : status;
}

/* The certificates of the job's processes, and of the etcd that is started for it. */
static kelp_status find_certs(struct chaos *chaos, struct kelp_error *reterr)
{
    const char *folder = kelp_options_text(chaos->given, "certs");
    char etcd[KELP_CREDENTIALS_PATH_MAX + 1];
    struct kelp_credentials *credentials = NULL;

    if (!folder) {
        return KELP_OK;
    }
    kelp_status status = kelp_launcher_find_certs(folder, kelp_job_file_job(chaos->file)->name,
                                                  &kelp_launch_all_roles, chaos->certs, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(etcd, sizeof(etcd), "%s/%s", chaos->certs, kelp_role_names[KELP_ROLE_ETCD]);
    status = kelp_credentials_open(etcd, &credentials, reterr);
    if (status == KELP_OK && kelp_credentials_name(credentials)->role != KELP_ROLE_ETCD) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "'%.200s' is not for etcd", etcd);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--certs");
    }
    kelp_credentials_close(credentials);
    return status;
}

/* Make the folder, with the job file for both runs. */
static kelp_status open_folder(struct chaos *chaos, struct kelp_error *reterr)
{
    const char *wanted = kelp_options_text(chaos->given, "run");
    char name[KELP_JOB_NAME_MAX + 16];
    char path[KELP_RUN_PATH_MAX + 1];
    char *spec = NULL;

    (void)snprintf(name, sizeof(name), "%s-chaos", kelp_job_file_job(chaos->file)->name);
    kelp_status status = wanted ? KELP_OK : kelp_run_dir_default(name, time(NULL), path, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_create(wanted ? wanted : path, !wanted, &chaos->folder, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_protect(&chaos->folder, kelp_job_file_job(chaos->file)->run.closed,
                                      reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_print(chaos->file, false, &spec, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_dir_write(&chaos->folder, "job.yaml", spec, reterr);
        free(spec);
    }
    return status;
}

static int print_plan(const struct chaos *chaos)
{
    char text[KELP_CHAOS_TEXT_MAX];

    for (uint32_t i = 0; i < chaos->fault_count; i++) {
        kelp_chaos_fault_print(&chaos->faults[i], text);
        (void)printf("step %-8" PRIu32 " %s\n", chaos->faults[i].step, text);
    }
    return KELP_EXIT_OK;
}

/* ---- the two runs -------------------------------------------------------------------------- */

static struct kelp_chaos_options run_options(struct chaos *chaos, struct kelp_guard *guard)
{
    const struct kelp_options *given = chaos->given;

    return (struct kelp_chaos_options){
        .folder = chaos->folder.path,
        .bin_folder = chaos->bin_folder,
        .job = kelp_job_file_job(chaos->file)->name,
        .etcd_program = kelp_options_text(given, "etcd-program"),
        .log_level = kelp_log_level_names[kelp_options_choice(given, "log-level")],
        .disk_library = chaos->disk_library[0] != '\0' ? chaos->disk_library : NULL,
        .ports = chaos->certs[0] != '\0' || has_faults(chaos, KELP_CHAOS_SPLIT, KELP_CHAOS_LOSS),
        .certs = chaos->certs[0] != '\0' ? chaos->certs : NULL,
        .coordinators = (uint32_t)kelp_options_integer(given, "coordinators"),
        .shards = kelp_job_file_job(chaos->file)->cluster.shards,
        .workers = kelp_job_file_job(chaos->file)->cluster.workers.max,
        .replicas = kelp_job_file_job(chaos->file)->cluster.replicas,
        .detect_ms = kelp_job_file_job(chaos->file)->failure.detect_ms,
        .faults = chaos->faults,
        .fault_count = chaos->fault_count,
        .batch_size = kelp_job_file_job(chaos->file)->train.batch_size,
        .stall_ms = (uint32_t)kelp_options_duration_ms(given, "stall"),
        .guard = guard,
        .display = &chaos->display};
}

static bool makes_quiet_run(const struct chaos *chaos)
{
    return !kelp_options_given(chaos->given, "digest") &&
           !kelp_options_given(chaos->given, "quiet-run");
}

/* The digest that the run with faults must reach. */
static kelp_status quiet_digest(struct chaos *chaos, const struct kelp_chaos_options *run,
                                struct kelp_error *reterr)
{
    const char *digest = kelp_options_text(chaos->given, "digest");
    const char *folder = kelp_options_text(chaos->given, "quiet-run");
    kelp_status status = KELP_OK;

    if (digest) {
        (void)snprintf(chaos->quiet.digest, sizeof(chaos->quiet.digest), "%s", digest);
    } else if (folder) {
        status = kelp_run_result_read(folder, &chaos->quiet, reterr);
        if (status == KELP_OK && strcmp(chaos->quiet.status, "done") != 0) {
            status = kelp_fail(reterr, KELP_ERR_INVALID, "the run in '%s' is not done", folder);
        }
    } else {
        kelp_display_say(&chaos->display, "run 1 of 2, without faults: %s/quiet",
                         chaos->folder.path);
        status = kelp_chaos_quiet(run, &chaos->quiet, reterr);
    }
    chaos->report.quiet_wall_s = chaos->quiet.wall_s;
    (void)snprintf(chaos->report.quiet_digest, sizeof(chaos->report.quiet_digest), "%s",
                   chaos->quiet.digest);
    return status;
}

/* Where the two runs first had different bits; "" when that is not known. */
static void first_difference(const struct chaos *chaos, char *text, size_t text_bytes)
{
    const char *folder = kelp_options_text(chaos->given, "quiet-run");
    char path[KELP_RUN_PATH_MAX + 64];
    struct kelp_digest_log quiet = {.count = 0};
    struct kelp_digest_log ours = {.count = 0};
    struct kelp_digest_log_comparison comparison = {.common = 0};
    struct kelp_error error = {.text = ""};

    (void)snprintf(path, sizeof(path), "%s/quiet", chaos->folder.path);
    text[0] = '\0';
    kelp_status status = kelp_options_given(chaos->given, "digest")
                             ? KELP_ERR_NOT_FOUND
                             : kelp_digest_log_read(folder ? folder : path, &quiet, &error);
    if (status == KELP_OK) {
        (void)snprintf(path, sizeof(path), "%s/chaos", chaos->folder.path);
        status = kelp_digest_log_read(path, &ours, &error);
    }
    if (status == KELP_OK) {
        kelp_digest_log_compare(&quiet, &ours, &comparison);
    }
    if (comparison.a) {
        (void)snprintf(text, text_bytes, "; first different at step %" PRIu64, comparison.a->step);
    } else if (status == KELP_ERR_CORRUPT) {
        (void)snprintf(text, text_bytes, "; %.200s", error.text);
    }
    kelp_digest_log_fini(&quiet);
    kelp_digest_log_fini(&ours);
}

/* Print one line with the verdict; true if the run is as it must be. */
static bool judge(struct chaos *chaos)
{
    char where[256];

    first_difference(chaos, where, sizeof(where));
    return kelp_chaos_judge(&chaos->report, chaos->result.digest, where,
                            kelp_job_file_job(chaos->file)->cluster.replicas);
}

static void print_json(const void *report, FILE *out)
{
    kelp_chaos_report_json(report, out);
}

static kelp_status write_svg(const struct chaos *chaos, struct kelp_error *reterr)
{
    char *text = NULL;
    size_t bytes = 0;

    kelp_status status = kelp_chaos_report_svg(&chaos->report, &text, &bytes, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_write(&chaos->folder, "chaos.svg", text, reterr);
    }
    free(text);
    return status;
}

static void write_report(struct chaos *chaos)
{
    struct kelp_error error;

    if (kelp_run_dir_print(&chaos->folder, "chaos.json", print_json, &chaos->report, &error) !=
            KELP_OK ||
        write_svg(chaos, &error) != KELP_OK) {
        kelp_display_say(&chaos->display, "%s", error.text);
    }
    (void)printf("\n");
    kelp_chaos_report_table(&chaos->report, stdout);
    (void)printf("\n%s\nreport     %s/chaos.json, chaos.svg\n", chaos->report.verdict,
                 chaos->folder.path);
}

static int exit_status_of(kelp_status status)
{
    switch (status) {
    case KELP_ERR_INVALID:
    case KELP_ERR_MISMATCH:
    case KELP_ERR_NOT_FOUND:
    case KELP_ERR_FORMAT:
    case KELP_ERR_LIMIT:
    case KELP_ERR_EXISTS:
    case KELP_ERR_UNSUPPORTED:
        return KELP_EXIT_USAGE;
    case KELP_ERR_UNREACHABLE:
        return KELP_EXIT_UNREACHABLE;
    default:
        return KELP_EXIT_FAILED;
    }
}

static int work(struct kelp_guard *guard, void *user)
{
    struct chaos *chaos = user;
    struct kelp_chaos_options run = run_options(chaos, guard);
    struct kelp_error error = {.text = ""};

    kelp_status status = quiet_digest(chaos, &run, &error);
    if (status != KELP_OK) {
        int exit_status =
            kelp_guard_signal(guard) ? 128 + kelp_guard_signal(guard) : exit_status_of(status);
        return kelp_complain(exit_status, "%s", error.text);
    }
    kelp_display_say(&chaos->display, "run %s, with %" PRIu32 " fault%s: %s/chaos",
                     makes_quiet_run(chaos) ? "2 of 2" : "1 of 1", chaos->fault_count,
                     chaos->fault_count == 1 ? "" : "s", chaos->folder.path);
    status = chaos->network ? kelp_chaos_run_hosts(&run, chaos->network, &chaos->report,
                                                   &chaos->result, &error)
                            : kelp_chaos_run(&run, &chaos->report, &chaos->result, &error);
    if (status != KELP_OK) {
        (void)snprintf(chaos->report.verdict, sizeof(chaos->report.verdict),
                       "the run with faults failed after %" PRIu32 " of %" PRIu32 ": %.400s",
                       chaos->report.event_count, chaos->report.planned, error.text);
    }
    bool good = status == KELP_OK && judge(chaos);
    write_report(chaos);
    if (kelp_guard_signal(guard)) {
        return 128 + kelp_guard_signal(guard);
    }
    return good ? KELP_EXIT_OK : KELP_EXIT_FAILED;
}

static kelp_status prepare(struct chaos *chaos, struct kelp_error *reterr)
{
    kelp_status status = kelp_chaos_job_read(chaos->given, &chaos->file, reterr);

    if (status == KELP_OK) {
        status = read_plan(chaos, reterr);
    }
    if (status == KELP_OK) {
        status = draw(chaos, reterr);
    }
    return status;
}

static kelp_status make_ready(struct chaos *chaos, struct kelp_error *reterr)
{
    kelp_status status =
        kelp_preflight_bin_folder(chaos->bin_folder, sizeof(chaos->bin_folder), reterr);

    if (status == KELP_OK) {
        status = find_certs(chaos, reterr);
    }
    if (status == KELP_OK) {
        status = set_length(chaos, reterr);
    }
    if (status == KELP_OK) {
        status = make_possible(chaos, reterr);
    }
    if (status == KELP_OK) {
        status = open_folder(chaos, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_chaos_report_init(&chaos->report, reterr);
    }
    return status;
}

/* Options that do not go together. */
static kelp_status check_options(const struct kelp_options *given, struct kelp_error *reterr)
{
    if (kelp_options_given(given, "digest") && kelp_options_given(given, "quiet-run")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--digest and --quiet-run: give only one of them");
    }
    if (kelp_options_given(given, "hosts") && kelp_options_given(given, "certs")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--certs: with --hosts certificates are made for the run");
    }
    if (kelp_options_given(given, "hosts") && kelp_options_given(given, "coordinators")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--coordinators: with --hosts each host has one");
    }
    return KELP_OK;
}

static int run(struct chaos *chaos)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_FAILED;

    kelp_status status = check_options(chaos->given, &error);
    if (status == KELP_OK) {
        status = prepare(chaos, &error);
    }
    if (status == KELP_OK && kelp_options_flag(chaos->given, "print-plan")) {
        return print_plan(chaos);
    }
    if (status == KELP_OK) {
        status = make_ready(chaos, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(exit_status_of(status), "%s", error.text);
    }
    chaos->report.job = kelp_job_file_job(chaos->file)->name;
    chaos->report.plan = chaos->plan.name;
    chaos->report.seed = kelp_options_integer(chaos->given, "seed");
    chaos->report.planned = chaos->fault_count;
    chaos->report.left_out = chaos->left_out;
    if (kelp_guard_run(work, chaos, &exit_status, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    return exit_status;
}

static int chaos(const struct kelp_options *given)
{
    struct chaos *chaos = calloc(1, sizeof(*chaos));

    if (!chaos) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    chaos->given = given;
    chaos->folder.lock_fd = -1;
    kelp_display_init(&chaos->display, STDERR_FILENO);
    int exit_status = run(chaos);
    kelp_network_close(chaos->network);
    kelp_chaos_report_fini(&chaos->report);
    kelp_run_dir_close(&chaos->folder);
    kelp_job_file_destroy(chaos->file);
    free(chaos);
    return exit_status;
}

const struct kelp_verb kelp_verb_chaos = {
    "chaos", "run a job twice, once under faults, and compare the digests", &program, chaos, NULL};
