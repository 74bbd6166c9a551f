#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/model_file.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/run_home.h"
#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "common/tensors/safetensors.h"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("out", "FILE", "where to write; an existing file is replaced atomically"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 3600000, "30s", NULL,
                     "how long to try to reach a running cluster"),
    KELP_VERB_ETCD(NULL, "find the job in this etcd; the argument is then a job's name, not a "
                         "run's folder"),
    KELP_VERB_CERTS(NULL, "with --etcd: an operator's or reader's ca.pem, cert.pem and key.pem"),
    KELP_VERB_RUN(
        NULL,
        "with --etcd: the run's folder, if its path here differs from what kelp submit printed"),
};

static const struct kelp_program program = {
    .name = "kelp export",
    .summary = "writes a run's weights as safetensors, also while it runs",
    .positional = "[RUN|JOB]",
    .positional_max = 1,
    .examples = "  kelp export --out model.safetensors\n"
                "  kelp export runs/etth1-dlinear-20260131-120000 --out dlinear.safetensors\n"
                "  kelp export fare --etcd https://10.0.0.5:2379 --certs ro --out f.safetensors\n",
    KELP_VERB_OPTIONS(options),
};

/* What has been written, read from the file itself. */
static int report(const char *path)
{
    struct kelp_safetensors *file = NULL;
    struct kelp_error error;
    char digest[KELP_DIGEST_HEX_BYTES];

    kelp_status status = kelp_model_file_digest(path, digest, &error);
    if (status == KELP_OK) {
        status = kelp_safetensors_open(path, &file, &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    const char *step = kelp_safetensors_metadata(file, "kelp.step");
    (void)printf("%s: step %s, digest %s\n", path, step ? step : "unknown", digest);
    kelp_out_file_tell_safetensors(path);
    kelp_safetensors_close(file);
    return KELP_EXIT_OK;
}

static kelp_status fetch_and_write(struct kelp_job_client *client, const char *run_path,
                                   uint64_t spec_digest, uint32_t timeout_ms, const char *out,
                                   struct kelp_error *reterr)
{
    struct kelp_model_copy copy;
    char *card = NULL;

    kelp_status status = kelp_model_fetch(client, spec_digest, timeout_ms, &copy, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_model_card_read(run_path, &card, reterr);
    if (status == KELP_OK) {
        const struct kelp_model_about about = {kelp_job_client_job(client), copy.step, card};
        status = kelp_model_write(out, &copy.plan, copy.flat, &about, reterr);
    }
    free(card);
    kelp_model_copy_fini(&copy);
    return status;
}

static int export_live(struct kelp_job_client *client, const char *run_path, uint32_t timeout_ms,
                       const char *out)
{
    struct kelp_error error;
    uint64_t spec_digest = 0;

    kelp_status status = kelp_run_spec_digest(run_path, &spec_digest, &error);
    if (status == KELP_OK) {
        status = fetch_and_write(client, run_path, spec_digest, timeout_ms, out, &error);
    }
    if (status == KELP_ERR_IO || status == KELP_ERR_NO_SPACE) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "the run in '%s' cannot be exported now: %s",
                             run_path, error.text);
    }
    return report(out);
}

static int export_finished(const char *run_path, const char *out)
{
    struct kelp_error error;
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status =
        kelp_run_dir_path(run_path, "model.safetensors", path, sizeof(path), &error);
    if (status == KELP_OK) {
        status = kelp_model_copy_file(path, out, NULL, &error);
    }
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "run '%s' neither runs nor has a model.safetensors; continue it with "
                             "kelp train --resume --run %s",
                             run_path, run_path);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    return report(out);
}

static uint32_t timeout_ms(const struct kelp_options *given)
{
    return (uint32_t)kelp_options_duration_ms(given, "timeout");
}

static int export_run(const struct kelp_options *given)
{
    const char *out = kelp_options_text(given, "out");
    struct kelp_job_client *client = NULL;
    struct kelp_error error;
    char run_path[KELP_RUN_PATH_MAX + 1];

    if (kelp_run_choose(kelp_verb_typed(given), run_path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (!kelp_run_dir_running(run_path)) {
        return export_finished(run_path, out);
    }
    if (kelp_run_client_open(run_path, &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "the run in '%s' cannot be exported now: %s",
                             run_path, error.text);
    }
    int exit_status = export_live(client, run_path, timeout_ms(given), out);
    kelp_job_client_close(client);
    return exit_status;
}

/* The weights are with the shards until the job is done; what else the model carries, such as its
 * scales, is in the run's folder. */
static int export_from(struct kelp_job_client *client, const char *run_path,
                       const struct kelp_options *given)
{
    static struct kelp_result result; /* large */
    const char *out = kelp_options_text(given, "out");
    struct kelp_error error;

    kelp_status status = kelp_run_result_get(client, timeout_ms(given), NULL, &result, &error);
    if (status == KELP_ERR_NOT_FOUND) {
        return export_live(client, run_path, timeout_ms(given), out);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "%s", error.text);
    }
    return strcmp(result.status, "done") == 0
               ? export_finished(run_path, out)
               : kelp_complain(KELP_EXIT_USAGE,
                               "job '%s' is %s: start kelp node again, or take the weights of its "
                               "newest checkpoint by kelp checkpoint export newest FILE --run %s",
                               kelp_job_client_job(client), result.status, run_path);
}

static int export_job(const struct kelp_options *given)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;
    char run_path[KELP_RUN_PATH_MAX + 1];

    if (kelp_run_client_choose(kelp_verb_typed(given), kelp_options_text(given, "etcd"),
                               kelp_options_text(given, "certs"), &client, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_status status = kelp_job_find(client, timeout_ms(given), &error);
    if (status == KELP_OK) {
        status = kelp_run_home_find(client, kelp_options_text(given, "run"), timeout_ms(given),
                                    run_path, &error);
    }
    int exit_status = status == KELP_OK
                          ? export_from(client, run_path, given)
                          : kelp_complain(kelp_verb_exit_status(status), "%s", error.text);
    kelp_job_client_close(client);
    return exit_status;
}

static int export(const struct kelp_options *given)
{
    struct kelp_error error;

    if (kelp_out_file_check("--out", kelp_options_text(given, "out"), &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    return kelp_options_text(given, "etcd") ? export_job(given) : export_run(given);
}

const struct kelp_verb kelp_verb_export = {
    "export", "write a run's weights as safetensors, with PyTorch's names", &program, export, NULL};
