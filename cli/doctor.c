/* `kelp doctor`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/doors.h"
#include "cli/verbs.h"
#include "common/base/json.h"

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("lines for people, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp doctor",
    .summary = "says which doors of a run are open: who else reaches, reads or writes it",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp doctor\n"
                "  kelp doctor runs/etth1-dlinear-20260131-120000 -o json\n",
    KELP_VERB_OPTIONS(options),
};

static void look(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    kelp_doors_ports(run, findings);
    kelp_doors_sockets(run, findings);
    kelp_doors_etcd(run, findings);
    kelp_doors_folders(run, findings);
    kelp_doors_certificates(run, findings);
    kelp_doors_library(run, findings);
    kelp_doors_machine(findings);
}

static void say(const char *run_path, const struct kelp_findings *findings, bool json)
{
    if (!json) {
        (void)printf("run          %s\n", run_path);
        kelp_findings_text(findings, stdout);
        return;
    }
    kelp_json_print_member(stdout, "{", "run", run_path);
    (void)printf(",\"open\":%s,\"doors\":", findings->open ? "true" : "false");
    kelp_findings_json(findings, stdout);
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
    return findings->open ? KELP_EXIT_FAILED : KELP_EXIT_OK;
}

static int doctor(const struct kelp_options *given)
{
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_error error;

    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    struct kelp_findings *findings = calloc(1, sizeof(*findings));
    if (!findings) {
        return kelp_complain(KELP_EXIT_FAILED, "out of memory");
    }
    int exit_status = examine(run_path, findings, kelp_verb_json(given));
    free(findings);
    return exit_status;
}

const struct kelp_verb kelp_verb_doctor = {"doctor", "say which doors of a run are open to others",
                                           &program, doctor, NULL};
