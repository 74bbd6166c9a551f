/* `kelp doctor`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/exposure.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/program/options/map_option.h"

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("lines for people, or one JSON object"),
    KELP_VERB_RUN(NULL, "the run's folder; with --etcd, needed if its path here differs from what "
                        "kelp submit printed"),
    KELP_VERB_ETCD("A cluster",
                   "check a job in this etcd, and its hosts, as seen from this host; the argument "
                   "is then the job's name, not a run's folder"),
    KELP_VERB_CERTS("A cluster", "with --etcd: an operator's or reader's ca.pem, cert.pem and "
                                 "key.pem"),
    KELP_MAP_PATH_OPTION("A cluster", ", as for kelp node"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 600000, "5s", "A cluster",
                     "with --etcd: time for all checks; a peer that does not answer takes a "
                     "quarter of it"),
};

static const struct kelp_program program = {
    .name = "kelp doctor",
    .summary = "checks who can get into a run, or what is wrong with a cluster",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp doctor\n"
                "  kelp doctor runs/etth1-dlinear-20260131-120000 -o json\n"
                "  kelp doctor fare --etcd https://10.0.0.5:2379 --certs reader\n",
    KELP_VERB_OPTIONS(options),
};

/* ---- a run on this machine ----------------------------------------------------------------- */

static void look(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    kelp_exposure_ports(run, findings);
    kelp_exposure_sockets(run, findings);
    kelp_exposure_etcd(run, findings);
    kelp_exposure_folders(run, findings);
    kelp_exposure_certificates(run, findings);
    kelp_exposure_library(run, findings);
    kelp_exposure_machine(findings);
}

static void say(const char *run_path, const struct kelp_findings *findings, bool json)
{
    if (!json) {
        (void)printf("run          %s\n", run_path);
        kelp_findings_text(findings, &kelp_exposure_words, stdout);
        return;
    }
    kelp_json_print_member(stdout, "{", "run", run_path);
    (void)printf(",\"open\":%s,\"findings\":", findings->problem ? "true" : "false");
    kelp_findings_json(findings, &kelp_exposure_words, stdout);
    (void)printf("}\n");
}

static int examine(const char *run_path, struct kelp_findings *findings, bool json)
{
    struct kelp_job_file *file = NULL;
    struct kelp_error error;

    kelp_status status = kelp_run_job_read(run_path, &file, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    struct kelp_doctor_run run = {.path = run_path,
                                  .job = kelp_job_file_job(file),
                                  .running = kelp_run_dir_running(run_path)};
    run.has_cluster = kelp_run_cluster_read(run_path, &run.cluster, NULL) == KELP_OK;
    look(&run, findings);
    say(run_path, findings, json);
    kelp_job_file_destroy(file);
    return findings->problem ? KELP_EXIT_FAILED : KELP_EXIT_OK;
}

static int examine_run(const struct kelp_options *given, struct kelp_findings *findings)
{
    const char *typed = kelp_verb_typed(given);
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_error error;

    kelp_status status =
        kelp_run_choose(typed ? typed : kelp_options_text(given, "run"), run_path, &error);
    return status == KELP_OK ? examine(run_path, findings, kelp_verb_json(given))
                             : kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
}

/* ---- a cluster ----------------------------------------------------------------------------- */

static void say_cluster(const struct kelp_doctor_cluster *cluster, bool json)
{
    if (!json) {
        (void)printf("job          %s\n", cluster->job);
        kelp_findings_text(cluster->findings, &kelp_cluster_words, stdout);
        return;
    }
    kelp_json_print_member(stdout, "{", "job", cluster->job);
    (void)printf(",\"problem\":%s,\"findings\":", cluster->findings->problem ? "true" : "false");
    kelp_findings_json(cluster->findings, &kelp_cluster_words, stdout);
    (void)printf("}\n");
}

/* All that etcd can be asked for. Returns the exit status; *reterr has a line for standard error
 * unless it is 0 or 1. */
static int look_at_cluster(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr)
{
    kelp_doctor_certificates(cluster);
    if (!kelp_doctor_etcd(cluster, reterr)) {
        return KELP_EXIT_UNREACHABLE;
    }
    kelp_doctor_clock(cluster);
    if (!kelp_doctor_keys(cluster, reterr)) {
        const bool none = reterr->status == KELP_ERR_NOT_FOUND;
        kelp_findings_add(cluster->findings, "job", KELP_FINDING_PROBLEM, "%s%s",
                          none ? "" : "its keys cannot be read: ", reterr->text);
        return none ? KELP_EXIT_USAGE : KELP_EXIT_FAILED;
    }
    kelp_doctor_processes(cluster);
    kelp_doctor_versions(cluster);
    kelp_doctor_job(cluster);
    kelp_doctor_files(cluster);
    kelp_doctor_folder(cluster);
    return cluster->findings->problem ? KELP_EXIT_FAILED : KELP_EXIT_OK;
}

static int run_cluster(struct kelp_doctor_cluster *cluster, bool json)
{
    struct kelp_error error;

    kelp_status status = kelp_run_client_choose(cluster->job, cluster->etcd, cluster->certs,
                                                &cluster->client, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status = look_at_cluster(cluster, &error);
    say_cluster(cluster, json);
    if (exit_status == KELP_EXIT_UNREACHABLE) {
        return kelp_complain(exit_status, "job '%s' cannot be reached: %s", cluster->job,
                             error.text);
    }
    return exit_status == KELP_EXIT_USAGE ? kelp_complain(exit_status, "%s", error.text)
                                          : exit_status;
}

static int examine_cluster(const struct kelp_options *given, struct kelp_findings *findings)
{
    const uint32_t timeout_ms = (uint32_t)kelp_options_duration_ms(given, "timeout");
    struct kelp_doctor_cluster *cluster = calloc(1, sizeof(*cluster));
    struct kelp_error error;

    if (!cluster) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    cluster->job = kelp_verb_typed(given);
    cluster->etcd = kelp_options_text(given, "etcd");
    cluster->certs = kelp_options_text(given, "certs");
    cluster->run = kelp_options_text(given, "run");
    cluster->end_ms = kelp_clock_ms() + timeout_ms;
    cluster->share_ms = timeout_ms / 4;
    cluster->findings = findings;
    if (kelp_map_option_read(given, &cluster->paths, &error) != KELP_OK) {
        free(cluster);
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    int exit_status = run_cluster(cluster, kelp_verb_json(given));
    kelp_doctor_cluster_fini(cluster);
    free(cluster);
    return exit_status;
}

static int doctor(const struct kelp_options *given)
{
    struct kelp_findings *findings = calloc(1, sizeof(*findings));

    if (!findings) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    int exit_status =
        (kelp_options_text(given, "etcd") ? examine_cluster : examine_run)(given, findings);
    free(findings);
    return exit_status;
}

const struct kelp_verb kelp_verb_doctor = {
    "doctor", "check who can get into a run, or what is wrong with a cluster", &program, doctor,
    NULL};
