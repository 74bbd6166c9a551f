/* What the job does or waits for, as its leader says, or else as etcd has it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/doctor/cluster.h"
#include "common/base/json.h"

#define CHECK "job"

/* Of a job that does not go on by itself. */
static enum kelp_finding_state judge(const char *state, const char *reason)
{
    if (strcmp(state, "failed") == 0) {
        return KELP_FINDING_PROBLEM;
    }
    bool goes_on = strcmp(state, "running") == 0 && reason[0] == '\0';
    return goes_on || strcmp(state, "done") == 0 ? KELP_FINDING_OK : KELP_FINDING_WARNING;
}

static void tell_state(struct kelp_doctor_cluster *cluster, const char *state, const char *more,
                       const char *reason)
{
    kelp_findings_add(cluster->findings, CHECK, judge(state, reason), "%.32s%s%s%.250s", state,
                      more, reason[0] ? ": " : "", reason);
}

static const Kelp__V1__StatusReply *find_status(const struct kelp_doctor_cluster *cluster)
{
    for (size_t i = 0; i < cluster->process_count; i++) {
        if (cluster->processes[i].status) {
            return cluster->processes[i].status;
        }
    }
    return NULL;
}

/* What processes that answer to the leader have to say. */
static void tell_trouble(struct kelp_doctor_cluster *cluster, const Kelp__V1__StatusReply *status)
{
    for (size_t i = 0; i < status->n_workers; i++) {
        if (status->workers[i]->trouble[0]) {
            kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING, "worker %s: %.280s",
                              status->workers[i]->id, status->workers[i]->trouble);
        }
    }
    for (size_t i = 0; i < status->n_silent; i++) {
        kelp_findings_add(
            cluster->findings, CHECK, KELP_FINDING_WARNING,
            "shard %s at %s is lost, but its process may still exist: kill and restart it",
            status->silent[i]->shard, status->silent[i]->address);
    }
    if (status->checkpoint && status->checkpoint->error[0]) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "the last checkpoint failed: %.280s", status->checkpoint->error);
    }
}

static void tell_status(struct kelp_doctor_cluster *cluster, const Kelp__V1__StatusReply *status)
{
    char more[160] = "";

    if (status->word) {
        (void)snprintf(
            more, sizeof(more), ", step %" PRIu64 " of %" PRIu64 ", %zu workers, %zu shards",
            status->word->step, status->total_steps, status->n_workers, status->n_shards);
    }
    tell_state(cluster, status->state, more, status->reason);
    tell_trouble(cluster, status);
}

/* {"state","reason",…} */
static void tell_key(struct kelp_doctor_cluster *cluster)
{
    char state[32] = "", reason[256] = "";
    cJSON *json = NULL;

    if (kelp_json_parse(cluster->state, strlen(cluster->state), &json, NULL) == KELP_OK &&
        kelp_json_string(json, "state", state, sizeof(state), NULL) == KELP_OK) {
        (void)!kelp_json_string(json, "reason", reason, sizeof(reason), NULL);
        tell_state(cluster, state, ", as etcd has it without asking its leader", reason);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "its state in etcd cannot be read: it is damaged, or of another version");
    }
    cJSON_Delete(json);
}

void kelp_doctor_job(struct kelp_doctor_cluster *cluster)
{
    const Kelp__V1__StatusReply *status = find_status(cluster);

    if (cluster->over && (!status || strcmp(cluster->result, "paused") != 0)) {
        tell_state(cluster, cluster->result, "", cluster->reason);
    } else if (status) {
        tell_status(cluster, status);
    } else if (cluster->state) {
        tell_key(cluster);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "submitted but not begun: no coordinator has led it yet");
    }
}
