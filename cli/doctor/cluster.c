/* What etcd holds of a job, and the time that all looks share. */
#include "cli/doctor/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/job_find.h"
#include "cli/cluster/run_client.h"
#include "cli/verb/job_load.h"
#include "common/base/clock.h"
#include "common/base/json.h"

uint32_t kelp_doctor_left(const struct kelp_doctor_cluster *cluster)
{
    const uint64_t now_ms = kelp_clock_ms();

    if (now_ms >= cluster->end_ms) {
        return 0;
    }
    return cluster->end_ms - now_ms < cluster->share_ms ? (uint32_t)(cluster->end_ms - now_ms)
                                                        : cluster->share_ms;
}

void kelp_doctor_version(const char *version, const char *commit,
                         char text[KELP_DOCTOR_VERSION_BYTES])
{
    (void)snprintf(text, KELP_DOCTOR_VERSION_BYTES, "%.31s%s%.47s%s", version,
                   commit[0] ? " (" : "", commit, commit[0] ? ")" : "");
}

static int compare(const void *a, const void *b)
{
    const uint64_t *values[] = {a, b};

    return (*values[0] > *values[1]) - (*values[0] < *values[1]);
}

uint64_t kelp_doctor_median(uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(values[0]), compare);
    return values[count / 2];
}

/* ---- who has registered -------------------------------------------------------------------- */

/* A decimal string of 64 bits; 0: it is none. */
static uint64_t get_incarnation(const cJSON *json)
{
    char text[32], *end = NULL;

    if (kelp_json_string(json, "incarnation", text, sizeof(text), NULL) != KELP_OK ||
        text[0] < '0' || text[0] > '9') {
        return 0;
    }
    uint64_t value = strtoull(text, &end, 10);
    return *end == '\0' ? value : 0;
}

/* What is left out, or too long, is "". */
static void get_text(const cJSON *json, const char *name, char *text, size_t text_bytes)
{
    if (kelp_json_string(json, name, text, text_bytes, NULL) != KELP_OK) {
        text[0] = '\0';
    }
}

static void read_entry(const struct kelp_etcd_pair *pair, struct kelp_doctor_process *process)
{
    cJSON *json = NULL;

    if (kelp_json_parse(pair->value, pair->value_bytes, &json, NULL) == KELP_OK) {
        get_text(json, "address", process->address, sizeof(process->address));
        get_text(json, "zone", process->zone, sizeof(process->zone));
        get_text(json, "build", process->build, sizeof(process->build));
        if (process->id[0] == '\0') { /* a shard's is in its key */
            get_text(json, "id", process->id, sizeof(process->id));
        }
        process->incarnation = get_incarnation(json);
    }
    cJSON_Delete(json);
}

static kelp_status read_range(struct kelp_doctor_cluster *cluster, enum kelp_role role,
                              const char *name, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];
    struct kelp_etcd_range range = {0};
    struct kelp_etcd *etcd = kelp_job_client_etcd(cluster->client);

    kelp_job_client_key(cluster->client, name, key);
    kelp_status status =
        role == KELP_ROLE_SHARD
            ? kelp_etcd_get_prefix(etcd, key, kelp_doctor_left(cluster), &range, reterr)
            : kelp_etcd_get(etcd, key, kelp_doctor_left(cluster), &range, reterr);
    for (size_t i = 0;
         status == KELP_OK && i < range.count && cluster->process_count < KELP_DOCTOR_PROCESSES_MAX;
         i++) {
        struct kelp_doctor_process *process = &cluster->processes[cluster->process_count++];
        process->role = role;
        if (role == KELP_ROLE_SHARD) {
            (void)snprintf(process->id, sizeof(process->id), "%s",
                           range.pairs[i].key + strlen(key));
        }
        read_entry(&range.pairs[i], process);
    }
    kelp_etcd_range_fini(&range);
    return status;
}

/* ---- the job's keys ------------------------------------------------------------------------ */

/* One that may be missing; *ret_value is NULL then. */
static kelp_status read_key(struct kelp_doctor_cluster *cluster, const char *name, char **ret_value,
                            struct kelp_error *reterr)
{
    kelp_status status =
        kelp_job_client_get(cluster->client, name, kelp_doctor_left(cluster), ret_value, reterr);

    return status == KELP_ERR_NOT_FOUND ? KELP_OK : status;
}

static kelp_status read_spec(struct kelp_doctor_cluster *cluster, bool *ret_is_there,
                             struct kelp_error *reterr)
{
    struct kelp_error error;
    char *spec = NULL;

    kelp_status status = read_key(cluster, "spec", &spec, reterr);
    *ret_is_there = spec != NULL;
    if (spec) {
        kelp_status read = kelp_job_load_text("the job in etcd", spec, &cluster->file, &error);
        if (read == KELP_OK) {
            read = kelp_job_file_finish(cluster->file, &error);
        }
        if (read == KELP_OK) {
            read = kelp_job_file_map(cluster->file, &cluster->paths, &error);
        }
        if (read != KELP_OK) {
            kelp_job_file_destroy(cluster->file);
            cluster->file = NULL;
            kelp_findings_add(cluster->findings, "job", KELP_FINDING_PROBLEM,
                              "this kelp cannot read the job's text: %.250s", error.text);
        }
    }
    free(spec);
    return status;
}

static kelp_status read_result(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr)
{
    static struct kelp_result result; /* large */

    kelp_status status =
        kelp_run_result_get(cluster->client, kelp_doctor_left(cluster), NULL, &result, reterr);
    if (status == KELP_OK) {
        cluster->over = true;
        (void)snprintf(cluster->result, sizeof(cluster->result), "%s", result.status);
        (void)snprintf(cluster->reason, sizeof(cluster->reason), "%s", result.reason);
    }
    return status == KELP_ERR_NOT_FOUND || status == KELP_ERR_FORMAT ? KELP_OK : status;
}

static kelp_status read_all(struct kelp_doctor_cluster *cluster, bool *ret_spec,
                            struct kelp_error *reterr)
{
    kelp_status status = read_spec(cluster, ret_spec, reterr);

    if (status == KELP_OK) {
        status = read_range(cluster, KELP_ROLE_COORDINATOR, "coordinator", reterr);
    }
    if (status == KELP_OK) {
        status = read_range(cluster, KELP_ROLE_SHARD, "ps/", reterr);
    }
    if (status == KELP_OK) {
        status = read_key(cluster, "plan", &cluster->plan, reterr);
    }
    if (status == KELP_OK) {
        status = read_key(cluster, "state", &cluster->state, reterr);
    }
    return status == KELP_OK ? read_result(cluster, reterr) : status;
}

/* Who may write its keys: that is known once some of them were read. */
static void tell_users(struct kelp_doctor_cluster *cluster)
{
    const bool users = kelp_etcd_has_login(kelp_job_client_etcd(cluster->client));

    kelp_findings_add(cluster->findings, "etcd", KELP_FINDING_OK,
                      users ? "it has users, and accepted this one"
                            : "it has no users: anybody who can reach it may write every key");
}

bool kelp_doctor_keys(struct kelp_doctor_cluster *cluster, struct kelp_error *reterr)
{
    bool has_spec = false;

    cluster->processes = calloc(KELP_DOCTOR_PROCESSES_MAX, sizeof(*cluster->processes));
    if (!cluster->processes) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory") == KELP_OK;
    }
    kelp_status status = read_all(cluster, &has_spec, reterr);
    if (status == KELP_OK && !has_spec && cluster->process_count == 0) {
        status = kelp_job_missing(cluster->client, reterr);
    }
    if (status == KELP_OK) {
        tell_users(cluster);
    }
    return status == KELP_OK;
}

void kelp_doctor_cluster_fini(struct kelp_doctor_cluster *cluster)
{
    for (size_t i = 0; i < cluster->process_count; i++) {
        kelp_job_client_status_free(cluster->processes[i].status);
    }
    free(cluster->processes);
    free(cluster->plan);
    free(cluster->state);
    kelp_job_file_destroy(cluster->file);
    kelp_job_client_close(cluster->client);
}
