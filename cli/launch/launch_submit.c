#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/launch/launcher_internal.h"
#include "cli/preflight/train_job.h"
#include "cli/verb/verb.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/process/process.h"

#define CLUSTER_BYTES_MAX 8192 /* of cluster.json */

/* etcd must hold this job, or a job that this one may continue, which is then replaced: no process
 * of the run is alive that could have read it. For our own etcd the comparison was made in the
 * run's folder, and what an unfinished resume left does not count. */
static kelp_status renew_spec(struct kelp_job_client *client, const char *key,
                              const struct kelp_launch *launch, struct kelp_error *reterr)
{
    char *spec = NULL;

    kelp_status status = kelp_job_client_get(client, "spec", KELP_LAUNCH_ETCD_MS, &spec, reterr);
    if (status != KELP_OK || strcmp(spec, launch->spec) == 0) {
        free(spec);
        return status;
    }
    if (!launch->resume) {
        status =
            kelp_fail(reterr, KELP_ERR_MISMATCH,
                      "etcd holds another job named '%s'; choose another name", launch->job->name);
    } else if (!launch->force && launch->etcd_url &&
               (!launch->abandoned || strcmp(spec, launch->abandoned) != 0)) {
        status = kelp_train_job_may_follow("the job in etcd", spec, launch->spec, reterr);
    }
    free(spec);
    if (status == KELP_OK) {
        status = kelp_etcd_put(kelp_job_client_etcd(client), key, launch->spec, 0,
                               KELP_LAUNCH_ETCD_MS, reterr);
    }
    return status;
}

/* A plan with which no generation was opened is not final: remove it, since the workers will say
 * what it is. Any other plan stays, and workers say how theirs differs. */
static kelp_status renew_plan(struct kelp_job_client *client, const char *key,
                              const struct kelp_launch *launch, struct kelp_error *reterr)
{
    char map_key[KELP_JOB_CLIENT_KEY_MAX + 1];
    bool succeeded = false;

    kelp_job_client_key(client, "map", map_key);
    struct kelp_etcd_compare compare = {.key = map_key, .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation operation = {.key = key, .value = launch->plan};
    return kelp_etcd_transaction(
        kelp_job_client_etcd(client),
        &(struct kelp_etcd_transaction){.compares = &compare,
                                        .compare_count = 1,
                                        .operations = &operation,
                                        .operation_count = 1,
                                        .deadline_ms = KELP_LAUNCH_ETCD_MS},
        &succeeded, NULL, reterr);
}

/* Write the job's text and its plan in one transaction, so that a reader of the text finds the plan
 * that belongs to it. If the plan is left to the workers, as for a user's program, the first one
 * that joins defines it. */
static kelp_status put_spec(struct kelp_job_client *client, const struct kelp_launch *launch,
                            struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1], plan_key[KELP_JOB_CLIENT_KEY_MAX + 1];
    bool succeeded = false;
    int64_t revision = 0;

    kelp_job_client_key(client, "spec", key);
    kelp_job_client_key(client, "plan", plan_key);
    struct kelp_etcd_compare compare = {.key = key, .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation operations[2] = {{.key = key, .value = launch->spec},
                                                {.key = plan_key, .value = launch->plan}};
    /* It does not matter who wrote the value as long as it is this job's, so no nonce is needed. */
    kelp_status status = kelp_etcd_transaction(
        kelp_job_client_etcd(client),
        &(struct kelp_etcd_transaction){.compares = &compare,
                                        .compare_count = 1,
                                        .operations = operations,
                                        .operation_count = launch->plan ? 2 : 1,
                                        .deadline_ms = KELP_LAUNCH_ETCD_MS},
        &succeeded, &revision, reterr);
    if (status == KELP_ERR_TIMEOUT || (status == KELP_OK && !succeeded)) {
        status = renew_spec(client, key, launch, reterr);
        if (status == KELP_OK) {
            status = renew_plan(client, plan_key, launch, reterr);
        }
    }
    return status;
}

kelp_status kelp__launch_print_state(const char *before, const char *state, const char *reason,
                                     char **ret_text, struct kelp_error *reterr)
{
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(before, strlen(before), &json, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the job's state in etcd");
        return status;
    }
    cJSON *values[] = {cJSON_CreateString(state), cJSON_CreateString(reason)};
    bool made = values[0] && values[1] &&
                cJSON_ReplaceItemInObjectCaseSensitive(json, "state", values[0]) &&
                cJSON_ReplaceItemInObjectCaseSensitive(json, "reason", values[1]);
    char *text = made ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    if (!text) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_text = text;
    return KELP_OK;
}

static kelp_status read_paused(const char *text, bool *ret_paused, struct kelp_error *reterr)
{
    char state[32];
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(text, strlen(text), &json, reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "state", state, sizeof(state), reterr);
    }
    cJSON_Delete(json);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the job's state in etcd");
        return status;
    }
    *ret_paused = strcmp(state, "paused") == 0;
    return KELP_OK;
}

/* Change the job's state, and nothing else in that value: progress and the cost of restores stay.
 * If there is no value, none is made. */
static kelp_status put_state(struct kelp_job_client *client, const char *state, const char *reason,
                             uint32_t deadline_ms, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *before = NULL;
    char *text = NULL;

    kelp_status status = kelp_job_client_get(client, "state", deadline_ms, &before, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    if (status == KELP_OK) {
        status = kelp__launch_print_state(before, state, reason, &text, reterr);
    }
    if (status == KELP_OK) {
        kelp_job_client_key(client, "state", key);
        status = kelp_etcd_put(kelp_job_client_etcd(client), key, text, 0, deadline_ms, reterr);
    }
    free(text);
    free(before);
    return status;
}

kelp_status kelp__launch_put_starting(struct kelp_job_client *client, struct kelp_error *reterr)
{
    return put_state(client, "starting", "", KELP_LAUNCH_ETCD_MS, reterr);
}

/* A result in etcd belongs to a pause, since a job that is done or failed is not continued; so
 * remove it. */
static kelp_status forget_pause(struct kelp_job_client *client, struct kelp_error *reterr)
{
    static struct kelp_result result; /* large; by the work's thread alone */

    kelp_status status = kelp_run_result_get(client, KELP_LAUNCH_ETCD_MS, NULL, &result, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    return status == KELP_OK && strcmp(result.status, "paused") == 0
               ? kelp_job_client_forget(client, KELP_RUN_RESULT_KEY, KELP_LAUNCH_ETCD_MS, reterr)
               : status;
}

kelp_status kelp__launch_take_up(struct kelp_job_client *client, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    struct kelp_etcd *etcd = kelp_job_client_etcd(client);
    struct kelp_etcd_range range = {0};
    char *text = NULL;
    bool paused = false, succeeded = false;

    kelp_status status = forget_pause(client, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_job_client_key(client, "state", key);
    status = kelp_etcd_get(etcd, key, KELP_LAUNCH_ETCD_MS, &range, reterr);
    if (status == KELP_OK && range.count > 0) {
        status = read_paused(range.pairs[0].value, &paused, reterr);
    }
    if (status == KELP_OK && paused) {
        status = kelp__launch_print_state(range.pairs[0].value, "starting", "", &text, reterr);
    }
    if (status == KELP_OK && paused) {
        const struct kelp_etcd_compare compare = {
            .key = key, .what = KELP_ETCD_MOD_REVISION, .revision = range.pairs[0].mod_revision};
        const struct kelp_etcd_operation operation = {.key = key, .value = text};
        /* Not applied: another host was first, which serves as well. */
        status = kelp_etcd_transaction(
            etcd,
            &(struct kelp_etcd_transaction){.compares = &compare,
                                            .compare_count = 1,
                                            .operations = &operation,
                                            .operation_count = 1,
                                            .deadline_ms = KELP_LAUNCH_ETCD_MS},
            &succeeded, NULL, reterr);
    }
    free(text);
    kelp_etcd_range_fini(&range);
    return status;
}

/* Forget how the job ended before: the reason of a failure may be fixed, and a finished job may
 * have more epochs now. */
static kelp_status forget_end(const struct kelp_launcher *launcher, struct kelp_job_client *client,
                              struct kelp_error *reterr)
{
    /* All users of our own etcd died with the launcher before us. Otherwise their leases would have
     * to expire, and nobody could lead for seconds. */
    static const char *const left_behind[] = {"coordinator", "ps/"};

    kelp_status status = kelp__launch_put_starting(client, reterr);
    for (size_t i = 0; !launcher->launch->etcd_url && i < KELP_ARRAY_COUNT(left_behind); i++) {
        if (status == KELP_OK) {
            status = kelp_job_client_forget(client, left_behind[i], KELP_LAUNCH_ETCD_MS, reterr);
        }
    }
    return status;
}

/* The value in etcd; NULL if there is none. */
static kelp_status read_key(struct kelp_job_client *client, const char *name, char **ret_text,
                            struct kelp_error *reterr)
{
    kelp_status status = kelp_job_client_get(client, name, KELP_LAUNCH_ETCD_MS, ret_text, reterr);

    if (status == KELP_ERR_NOT_FOUND) {
        *ret_text = NULL;
        return KELP_OK;
    }
    return status;
}

/* The job's initial state: its progress so far, and the cost of restores. NULL: no memory. */
static char *print_count(const struct kelp_result *before)
{
    cJSON *json = cJSON_CreateObject();

    bool made = cJSON_AddStringToObject(json, "state", "starting") &&
                cJSON_AddStringToObject(json, "reason", "") &&
                cJSON_AddNumberToObject(json, "version", 0) &&
                cJSON_AddNumberToObject(json, "step", (double)before->step) &&
                cJSON_AddNumberToObject(json, "steps_recomputed", (double)before->steps_recomputed);
    char *text = made ? cJSON_PrintUnformatted(json) : NULL;
    cJSON_Delete(json);
    return text;
}

/* A new etcd of our own continues the counts of the run. */
static kelp_status count_on(struct kelp_launcher *launcher, struct kelp_job_client *client,
                            struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *text = NULL;
    kelp_status status = KELP_OK;
    struct kelp_result *before = calloc(1, sizeof(*before));

    if (before && kelp_run_result_read(launcher->launch->run->path, before, NULL) != KELP_OK) {
        goto free_before; /* killed, or never begun */
    }
    text = before ? print_count(before) : NULL;
    if (!text) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_before;
    }
    kelp_job_client_key(client, "state", key);
    status = kelp_etcd_put(kelp_job_client_etcd(client), key, text, 0, KELP_LAUNCH_ETCD_MS, reterr);
    free(text);
free_before:
    free(before);
    return status;
}

/* Clear our own etcd if the run's folder has moved on without it, as with another etcd, or was set
 * back by hand: the folder has all that a leader needs. */
static kelp_status check_checkpoints(struct kelp_launcher *launcher, struct kelp_job_client *client,
                                     struct kelp_error *reterr)
{
    const struct kelp_launch *launch = launcher->launch;

    kelp_status status = kelp_launcher_check_checkpoints(client, launch->run->path, reterr);
    return status == KELP_ERR_MISMATCH && !launch->etcd_url
               ? kelp_job_client_forget(client, "", KELP_LAUNCH_ETCD_MS, reterr)
               : status;
}

static kelp_status before_resume(struct kelp_launcher *launcher, struct kelp_job_client *client,
                                 struct kelp_error *reterr)
{
    kelp_status status = check_checkpoints(launcher, client, reterr);

    if (status == KELP_OK) {
        status = read_key(client, "spec", &launcher->spec_before, reterr);
    }
    if (status == KELP_OK) {
        status = read_key(client, "state", &launcher->state_before, reterr);
    }
    if (status == KELP_OK && !launcher->launch->etcd_url && !launcher->state_before) {
        status = count_on(launcher, client, reterr);
    }
    return status;
}

kelp_status kelp__launch_submit(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    struct kelp_job_client *client = NULL;

    kelp_status status = kelp__launch_client(launcher, &client, reterr);
    if (status == KELP_OK && launcher->launch->resume) {
        status = before_resume(launcher, client, reterr);
    }
    if (status == KELP_OK) {
        launcher->submitted = true;
        status = put_spec(client, launcher->launch, reterr);
        if (status == KELP_OK && launcher->launch->resume) {
            status = forget_end(launcher, client, reterr);
        }
        if (status == KELP_OK && launcher->launch->resume && !launcher->launch->etcd_url) {
            status = kelp__launch_put_size(launcher, client, reterr);
        }
    }
    kelp_job_client_close(client);
    return status;
}

static kelp_status refuse_taken(const struct kelp_job_client *client, struct kelp_error *reterr)
{
    return kelp_fail(
        reterr, KELP_ERR_EXISTS,
        "etcd has a job '%s' already; choose another name, or remove it with kelp free",
        kelp_job_client_job(client));
}

kelp_status kelp_launcher_may_submit(struct kelp_job_client *client, struct kelp_error *reterr)
{
    char *spec = NULL;

    kelp_status status = read_key(client, "spec", &spec, reterr);
    if (spec) {
        status = refuse_taken(client, reterr);
    }
    free(spec);
    return status;
}

kelp_status kelp_launcher_submit(struct kelp_job_client *client, const struct kelp_launch *launch,
                                 const struct kelp_run_home *place,
                                 const struct kelp_result *before, struct kelp_error *reterr)
{
    char spec[KELP_JOB_CLIENT_KEY_MAX + 1], plan[KELP_JOB_CLIENT_KEY_MAX + 1];
    char run[KELP_JOB_CLIENT_KEY_MAX + 1], card[KELP_JOB_CLIENT_KEY_MAX + 1];
    char state[KELP_JOB_CLIENT_KEY_MAX + 1];
    char *where = NULL, *count = NULL;
    bool succeeded = false;

    kelp_job_client_key(client, "spec", spec);
    kelp_job_client_key(client, "plan", plan);
    kelp_job_client_key(client, KELP_RUN_HOME_KEY, run);
    kelp_job_client_key(client, KELP_RUN_CARD_KEY, card);
    kelp_job_client_key(client, "state", state);
    kelp_status status = kelp_run_home_print(place, &where, reterr);
    if (status == KELP_OK && before) {
        count = print_count(before);
        status = count ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    if (status != KELP_OK) {
        free(where);
        return status;
    }
    const struct kelp_etcd_compare compare = {.key = spec, .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_operation operations[5] = {{.key = run, .value = where},
                                                {.key = spec, .value = launch->spec}};
    size_t operation_count = 2;
    if (launch->plan) {
        operations[operation_count++] =
            (struct kelp_etcd_operation){.key = plan, .value = launch->plan};
    }
    if (before) {
        operations[operation_count++] = (struct kelp_etcd_operation){.key = state, .value = count};
    }
    if (launch->card) {
        operations[operation_count++] =
            (struct kelp_etcd_operation){.key = card, .value = launch->card};
    }
    status =
        kelp_etcd_transaction(kelp_job_client_etcd(client),
                              &(struct kelp_etcd_transaction){.compares = &compare,
                                                              .compare_count = 1,
                                                              .operations = operations,
                                                              .operation_count = operation_count,
                                                              .nonce_key = run,
                                                              .deadline_ms = KELP_LAUNCH_ETCD_MS},
                              &succeeded, NULL, reterr);
    free(where);
    free(count);
    return status == KELP_OK && !succeeded ? refuse_taken(client, reterr) : status;
}

void kelp__launch_put_failure(struct kelp_launcher *launcher, const char *reason)
{
    struct kelp_job_client *client = NULL;
    struct kelp_error error;

    kelp_status status = kelp__launch_client(launcher, &client, &error);
    if (status == KELP_OK) {
        status = put_state(client, "failed", reason, KELP_LAUNCH_FAILURE_MS, &error);
        kelp_job_client_close(client);
    }
    if (status != KELP_OK) {
        kelp_display_say(launcher->display, "the failure could not be written to etcd: %s",
                         error.text);
    }
}

/* ---- the way to the run ------------------------------------------------------------------- */

const char *kelp__launch_certs(const struct kelp_launcher *launcher)
{
    return launcher->certs[0] != '\0' ? launcher->certs : NULL;
}

kelp_status kelp__launch_client(const struct kelp_launcher *launcher,
                                struct kelp_job_client **ret_client, struct kelp_error *reterr)
{
    return kelp_job_client_open(kelp__launch_etcd_url(launcher), launcher->launch->job->name,
                                kelp__launch_certs(launcher), ret_client, reterr);
}

static void print_cluster(const void *what, FILE *out)
{
    const struct kelp_launcher *launcher = what;

    /* Neither the job's name nor an endpoint that etcd's client took holds quotes, and a folder of
     * sockets is plain. */
    (void)fprintf(out,
                  "{\"job\":\"%s\",\"etcd\":\"%s\",\"private\":%s,\"pid\":%ld,"
                  "\"sockets\":\"%s\",\"spec_sha256\":\"%s\"",
                  launcher->launch->job->name, kelp__launch_etcd_url(launcher),
                  launcher->launch->etcd_url ? "false" : "true", (long)getpid(), launcher->sockets,
                  launcher->spec_sha256);
    if (kelp__launch_certs(launcher)) {
        kelp_json_print_member(out, ",", "certs", launcher->certs);
    }
    if (launcher->launch->node) {
        kelp_json_print_member(out, ",", "node", launcher->launch->node->host);
    }
    (void)fputs("}\n", out);
}

kelp_status kelp__launch_write_cluster(const struct kelp_launcher *launcher,
                                       struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status = kelp_text_print(print_cluster, launcher, CLUSTER_BYTES_MAX, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_run_dir_write(launcher->launch->run, "cluster.json", text, reterr);
    }
    free(text);
    return status;
}

/* ---- before anything starts ---------------------------------------------------------------- */

static kelp_status check_etcd(const char *etcd_url, const char *certs, const char *job, bool resume,
                              struct kelp_error *reterr)
{
    struct kelp_etcd *etcd = NULL;
    struct kelp_etcd_range range = {0};
    char prefix[KELP_JOB_CLIENT_KEY_MAX + 1];

    kelp_status status = kelp_etcd_open_certified(etcd_url, certs, &etcd, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)snprintf(prefix, sizeof(prefix), "/kelp/%s/", job);
    status = kelp_etcd_get_prefix(etcd, prefix, KELP_LAUNCH_ETCD_MS, &range, reterr);
    if (status == KELP_OK && range.count > 0 && !resume) {
        status = kelp_fail(reterr, KELP_ERR_EXISTS,
                           "etcd at %s has a job '%s' already; continue it with --resume, or "
                           "choose another name",
                           etcd_url, job);
    }
    kelp_etcd_range_fini(&range);
    kelp_etcd_close(etcd);
    return status;
}

static kelp_status find_etcd(const struct kelp_options *given, const char *certs, const char *job,
                             bool resume, struct kelp_error *reterr)
{
    const char *url = kelp_options_text(given, "etcd");
    const char *etcd_program = kelp_options_text(given, "etcd-program");
    char path[KELP_PROCESS_PATH_MAX];
    struct stat info;

    if (url) {
        return check_etcd(url, certs, job, resume, reterr);
    }
    if (etcd_program &&
        (kelp_process_find(etcd_program, path, NULL) != KELP_OK || access(path, X_OK) != 0 ||
         stat(path, &info) != 0 || !S_ISREG(info.st_mode))) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "--etcd-program '%s' is not an executable program", etcd_program);
    }
    if (!etcd_program && kelp_process_find("etcd", path, NULL) != KELP_OK &&
        access("/usr/bin/etcd", X_OK) != 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "no etcd on PATH: install it (Debian: etcd-server), name it with "
                         "--etcd-program FILE, or use a running one with --etcd URL");
    }
    return KELP_OK;
}

int kelp_launcher_find_etcd(const struct kelp_options *given, const char *certs, const char *job,
                            bool resume)
{
    struct kelp_error error;

    kelp_status status = find_etcd(given, certs, job, resume, &error);
    if (status == KELP_OK) {
        return KELP_EXIT_OK;
    }
    bool usage = status == KELP_ERR_EXISTS || status == KELP_ERR_INVALID;
    return kelp_complain(usage ? KELP_EXIT_USAGE : KELP_EXIT_UNREACHABLE, "%s", error.text);
}
