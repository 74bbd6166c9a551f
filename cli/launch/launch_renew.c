/*
 * A job that etcd has, and that nobody runs at present, goes on as another text of it: what kelp
 * submit --resume does for kelp node.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/launch/launcher_internal.h"
#include "cli/preflight/train_job.h"

#define NAMES_MAX 200 /* bytes of hosts' names in an error */

kelp_status kelp_launcher_unused(struct kelp_job_client *client, struct kelp_error *reterr)
{
    const char *job = kelp_job_client_job(client);
    struct kelp_hosts_list list;
    char names[NAMES_MAX];
    char *leader = NULL;

    kelp_status status =
        kelp_hosts_list(kelp_job_client_etcd(client), job, KELP_LAUNCH_ETCD_MS, &list, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_hosts_names(&list, names, sizeof(names));
    free(list.hosts);
    if (names[0] != '\0') {
        return kelp_fail(reterr, KELP_ERR_BUSY,
                         "job '%s' is run by kelp node on %s: end it first, with kelp stop; a host "
                         "that is lost counts for %d s more",
                         job, names, KELP_HOSTS_TTL_S);
    }
    status = kelp_job_client_get(client, "coordinator", KELP_LAUNCH_ETCD_MS, &leader, reterr);
    free(leader);
    if (status == KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_BUSY,
                         "job '%s' has a coordinator that leads it: end it first, with kelp stop",
                         job);
    }
    return status == KELP_ERR_NOT_FOUND ? KELP_OK : status;
}

/* Of what etcd has of a job: texts, owned; NULL what it does not have. */
struct renewed {
    struct kelp_etcd_range spec;
    struct kelp_etcd_range map;
    char *state; /* as it will be */
    char *place;
};

static kelp_status read_range(struct kelp_job_client *client, const char *name,
                              struct kelp_etcd_range *ret_range, struct kelp_error *reterr)
{
    char key[KELP_JOB_CLIENT_KEY_MAX + 1];

    kelp_job_client_key(client, name, key);
    return kelp_etcd_get(kelp_job_client_etcd(client), key, KELP_LAUNCH_ETCD_MS, ret_range, reterr);
}

/* May what etcd has become what is wanted? */
static kelp_status check_spec(const struct kelp_launch *launch, const struct renewed *renewed,
                              struct kelp_error *reterr)
{
    if (renewed->spec.count == 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "etcd has no job '%s' any more",
                         launch->job->name);
    }
    const char *spec = renewed->spec.pairs[0].value;
    bool never_held = launch->abandoned && strcmp(spec, launch->abandoned) == 0;
    return never_held ? KELP_OK
                      : kelp_train_job_may_follow("the job in etcd", spec, launch->spec, reterr);
}

static kelp_status read_all(struct kelp_job_client *client, const struct kelp_launch *launch,
                            const struct kelp_run_home *place, struct renewed *renewed,
                            struct kelp_error *reterr)
{
    struct kelp_etcd_range state = {0};

    kelp_status status = read_range(client, "spec", &renewed->spec, reterr);
    if (status == KELP_OK) {
        status = check_spec(launch, renewed, reterr);
    }
    if (status == KELP_OK) {
        status = read_range(client, "map", &renewed->map, reterr);
    }
    if (status == KELP_OK) {
        status = read_range(client, "state", &state, reterr);
    }
    if (status == KELP_OK && state.count > 0) {
        status =
            kelp__launch_print_state(state.pairs[0].value, "starting", "", &renewed->state, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_run_home_print(place, &renewed->place, reterr);
    }
    kelp_etcd_range_fini(&state);
    return status;
}

/* All at once, if nobody has changed it or begun to lead it meanwhile. The plan of a job that has
 * been under way stays: workers say how theirs differs. */
static kelp_status write_all(struct kelp_job_client *client, const struct kelp_launch *launch,
                             const struct renewed *renewed, struct kelp_error *reterr)
{
    enum { SPEC, PLACE, RESULT, PLAN, STATE, LEADER, KEYS };
    static const char *const names[KEYS] = {
        [SPEC] = "spec", [PLACE] = "run",   [RESULT] = KELP_RUN_RESULT_KEY,
        [PLAN] = "plan", [STATE] = "state", [LEADER] = "coordinator"};
    char keys[KEYS][KELP_JOB_CLIENT_KEY_MAX + 1];
    struct kelp_etcd_operation operations[KEYS];
    size_t count = 0;
    bool done = false;

    for (size_t i = 0; i < KEYS; i++) {
        kelp_job_client_key(client, names[i], keys[i]);
    }
    operations[count++] = (struct kelp_etcd_operation){.key = keys[SPEC], .value = launch->spec};
    operations[count++] = (struct kelp_etcd_operation){.key = keys[PLACE], .value = renewed->place};
    operations[count++] = (struct kelp_etcd_operation){.key = keys[RESULT]}; /* of before */
    if (renewed->map.count == 0) {
        operations[count++] =
            (struct kelp_etcd_operation){.key = keys[PLAN], .value = launch->plan};
    }
    if (renewed->state) {
        operations[count++] =
            (struct kelp_etcd_operation){.key = keys[STATE], .value = renewed->state};
    }
    const struct kelp_etcd_compare compares[] = {
        {.key = keys[SPEC],
         .what = KELP_ETCD_MOD_REVISION,
         .revision = renewed->spec.pairs[0].mod_revision},
        {.key = keys[LEADER], .what = KELP_ETCD_CREATE_REVISION}};
    kelp_status status = kelp_etcd_transaction(
        kelp_job_client_etcd(client),
        &(struct kelp_etcd_transaction){.compares = compares,
                                        .compare_count = KELP_ARRAY_COUNT(compares),
                                        .operations = operations,
                                        .operation_count = count,
                                        .deadline_ms = KELP_LAUNCH_ETCD_MS},
        &done, NULL, reterr);
    return status == KELP_OK && !done
               ? kelp_fail(reterr, KELP_ERR_BUSY,
                           "job '%s' has changed meanwhile: somebody is using it",
                           launch->job->name)
               : status;
}

kelp_status kelp_launcher_renew(struct kelp_job_client *client, const struct kelp_launch *launch,
                                const struct kelp_run_home *place, struct kelp_error *reterr)
{
    struct renewed renewed = {.state = NULL};

    kelp_status status = read_all(client, launch, place, &renewed, reterr);
    if (status == KELP_OK) {
        status = write_all(client, launch, &renewed, reterr);
    }
    kelp_etcd_range_fini(&renewed.spec);
    kelp_etcd_range_fini(&renewed.map);
    free(renewed.state);
    free(renewed.place);
    return status;
}
