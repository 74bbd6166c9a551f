#include "cli/cluster/run_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/verb/job_load.h"
#include "common/base/json.h"
#include "common/program/run_next.h"

#define PID_MAX (1 << 22) /* Linux has no larger process numbers */

static kelp_status parse_cluster(const cJSON *json, struct kelp_run_cluster *cluster,
                                 struct kelp_error *reterr)
{
    uint64_t pid = 0;

    kelp_status status = kelp_json_string(json, "job", cluster->job, sizeof(cluster->job), reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "etcd", cluster->etcd, sizeof(cluster->etcd), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_u64(json, "pid", PID_MAX, &pid, reterr);
    }
    cluster->sockets[0] = '\0';
    if (status == KELP_OK && cJSON_GetObjectItemCaseSensitive(json, "sockets")) {
        status =
            kelp_json_string(json, "sockets", cluster->sockets, sizeof(cluster->sockets), reterr);
    }
    cluster->certs[0] = '\0';
    if (status == KELP_OK && cJSON_GetObjectItemCaseSensitive(json, "certs")) {
        status = kelp_json_string(json, "certs", cluster->certs, sizeof(cluster->certs), reterr);
    }
    cluster->node[0] = '\0';
    if (status == KELP_OK && cJSON_GetObjectItemCaseSensitive(json, "node")) {
        status = kelp_json_string(json, "node", cluster->node, sizeof(cluster->node), reterr);
    }
    cluster->pid = (int64_t)pid;
    cluster->private_etcd = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "private"));
    return status;
}

kelp_status kelp_run_cluster_read(const char *run_path, struct kelp_run_cluster *ret_cluster,
                                  struct kelp_error *reterr)
{
    struct kelp_run_cluster cluster;
    char *text = NULL;
    cJSON *json = NULL;

    kelp_status status = kelp_run_dir_read(run_path, "cluster.json", &text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_json_parse(text, strlen(text), &json, reterr);
    if (status == KELP_OK) {
        status = parse_cluster(json, &cluster, reterr);
    }
    cJSON_Delete(json);
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s/cluster.json", run_path);
        return status;
    }
    *ret_cluster = cluster;
    return KELP_OK;
}

kelp_status kelp_run_job_read(const char *run_path, struct kelp_job_file **ret_file,
                              struct kelp_error *reterr)
{
    char path[KELP_RUN_PATH_MAX + 64];

    kelp_status status = kelp_run_dir_path(run_path, "job.yaml", path, sizeof(path), reterr);
    return status == KELP_OK
               ? kelp_job_load(&(struct kelp_job_source){.path = path}, ret_file, reterr)
               : status;
}

kelp_status kelp_run_begin_portable(const char *run_path, struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;

    if (kelp_run_job_read(run_path, &file, NULL) != KELP_OK) {
        return KELP_OK;
    }
    kelp_status status = kelp_job_begin_portable(kelp_job_file_job(file), NULL, reterr);
    kelp_job_file_destroy(file);
    return status;
}

bool kelp_run_is_inference(const char *run_path)
{
    struct kelp_job_file *file = NULL;

    if (kelp_run_job_read(run_path, &file, NULL) != KELP_OK) {
        return false;
    }
    bool inference = kelp_job_file_job(file)->run.mode != KELP_RUN_TRAIN;
    kelp_job_file_destroy(file);
    return inference;
}

kelp_status kelp_run_spec_digest(const char *run_path, uint64_t *ret_digest,
                                 struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    char path[KELP_RUN_PATH_MAX + 64];
    bool waits = kelp_run_next_waits(run_path); /* what the cluster has is that one */

    kelp_status status = kelp_run_dir_path(run_path, waits ? KELP_RUN_NEXT "/job.yaml" : "job.yaml",
                                           path, sizeof(path), reterr);
    if (status == KELP_OK) {
        status = kelp_job_load(&(struct kelp_job_source){.path = path}, &file, reterr);
    }
    if (status == KELP_OK) {
        *ret_digest = kelp_job_file_digest(file);
    }
    kelp_job_file_destroy(file);
    return status;
}

kelp_status kelp_run_result_read(const char *run_path, struct kelp_result *ret_result,
                                 struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status = kelp_run_dir_read(run_path, "result.json", &text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_result_parse(text, strlen(text), ret_result, reterr);
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s/result.json", run_path);
    }
    return status;
}

kelp_status kelp_run_result_get(struct kelp_job_client *client, uint32_t deadline_ms,
                                char **ret_text, struct kelp_result *ret_result,
                                struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status =
        kelp_job_client_get(client, KELP_RUN_RESULT_KEY, deadline_ms, &text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_result_parse(text, strlen(text), ret_result, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the result of job '%s' in etcd", kelp_job_client_job(client));
    }
    if (status == KELP_OK && ret_text) {
        *ret_text = text;
        text = NULL;
    }
    free(text);
    return status;
}

kelp_status kelp_run_client_open(const char *run_path, struct kelp_job_client **ret_client,
                                 struct kelp_error *reterr)
{
    struct kelp_run_cluster cluster;

    kelp_status status = kelp_run_cluster_read(run_path, &cluster, reterr);
    if (status != KELP_OK) {
        return status;
    }
    return kelp_job_client_open(cluster.etcd, cluster.job, cluster.certs[0] ? cluster.certs : NULL,
                                ret_client, reterr);
}

/* A run of runs/ by its name alone, as kelp ls shows it. */
static bool is_name(const char *typed, char ret_path[KELP_RUN_PATH_MAX + 1])
{
    return typed[0] != '\0' && !strchr(typed, '/') &&
           kelp_run_dir_path("runs", typed, ret_path, KELP_RUN_PATH_MAX + 1, NULL) == KELP_OK &&
           kelp_run_dir_is_run(ret_path);
}

kelp_status kelp_run_choose(const char *typed, char ret_path[KELP_RUN_PATH_MAX + 1],
                            struct kelp_error *reterr)
{
    const char *path = typed ? typed : KELP_RUN_LATEST;
    char named[KELP_RUN_PATH_MAX + 1];

    if (typed && !kelp_run_dir_is_run(typed) && is_name(typed, named)) {
        path = named;
    }
    if (kelp_run_dir_is_closed(path)) {
        return kelp_fail(reterr, KELP_ERR_DENIED, "this user may not look into '%s': %s", path,
                         strerror(EACCES));
    }
    if (!kelp_run_dir_is_run(path)) {
        struct stat info;

        if (typed && stat(typed, &info) == 0 && !S_ISDIR(info.st_mode)) {
            return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                             "'%s' is a file, not the folder of a run (runs/NAME-TIME)", typed);
        }
        if (typed) {
            return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                             "'%s' is not a run folder: it has no job.yaml of a run", typed);
        }
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "there is no run at " KELP_RUN_LATEST
                         " in this folder; name a run folder, or start a run: kelp train JOB.yaml");
    }
    return kelp_run_dir_resolve(path, ret_path, reterr);
}

static kelp_status refuse_ended(const char *run_path, struct kelp_error *reterr)
{
    static struct kelp_result result; /* large */

    if (kelp_run_result_read(run_path, &result, NULL) == KELP_OK &&
        strcmp(result.status, "done") == 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "run '%s' is done", run_path);
    }
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                     "run '%s' is not running; continue it with kelp train --resume --run %s",
                     run_path, run_path);
}

kelp_status kelp_run_client_choose(const char *typed, const char *etcd, const char *certs,
                                   struct kelp_job_client **ret_client, struct kelp_error *reterr)
{
    char run_path[KELP_RUN_PATH_MAX + 1];

    if (etcd) {
        return typed ? kelp_job_client_open(etcd, typed, certs, ret_client, reterr)
                     : kelp_fail(reterr, KELP_ERR_INVALID, "--etcd needs the name of a job");
    }
    kelp_status status = kelp_run_choose(typed, run_path, reterr);
    if (status == KELP_OK && !kelp_run_dir_running(run_path)) {
        return refuse_ended(run_path, reterr);
    }
    return status != KELP_OK ? status : kelp_run_client_open(run_path, ret_client, reterr);
}

Kelp__V1__StatusReply *kelp_run_client_ask(const char *run_path, struct kelp_job_client **client,
                                           uint32_t timeout_ms)
{
    Kelp__V1__StatusReply *reply = NULL;

    if (!*client && kelp_run_client_open(run_path, client, NULL) != KELP_OK) {
        return NULL;
    }
    if (kelp_job_client_status(*client, timeout_ms, &reply, NULL) != KELP_OK) {
        kelp_job_client_close(*client);
        *client = NULL;
        return NULL;
    }
    return reply;
}
