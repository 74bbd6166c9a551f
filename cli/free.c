#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cluster/job_find.h"
#include "cli/verbs.h"
#include "common/base/json.h"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("etcd", "URL", "the etcd that holds the job"),
    KELP_VERB_CERTS(NULL, "an operator's ca.pem, cert.pem and key.pem of the job"),
    KELP_VERB_FLAG("dry-run", NULL, "say what would be removed; remove nothing"),
    KELP_VERB_NUMBER("timeout", DURATION, 100, 600000, "5s", NULL, "how long to try to reach etcd"),
};

static const struct kelp_program program = {
    .name = "kelp free",
    .summary = "removes a job from a shared etcd, so that its name may be used again",
    .positional = "JOB",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp free fare --etcd https://10.0.0.7:2379 --certs operator\n"
                "  kelp free fare --etcd https://10.0.0.7:2379 --certs operator --dry-run\n",
    KELP_VERB_OPTIONS(options),
};

/* What a job's keys say. */
struct holding {
    size_t keys;
    const char *lived; /* a key with a lease, borrowed: somebody lives; NULL: nobody does */
    char state[32];    /* "" when it never came so far */
    uint64_t step;
};

static void read_state(const char *text, struct holding *holding)
{
    cJSON *json = NULL;

    if (kelp_json_parse(text, strlen(text), &json, NULL) == KELP_OK &&
        (kelp_json_string(json, "state", holding->state, sizeof(holding->state), NULL) != KELP_OK ||
         kelp_json_u64(json, "step", KELP_JSON_INTEGER_MAX, &holding->step, NULL) != KELP_OK)) {
        holding->step = 0;
    }
    cJSON_Delete(json);
}

static void look(const struct kelp_etcd_range *range, const char *prefix, struct holding *holding)
{
    memset(holding, 0, sizeof(*holding));
    holding->keys = range->count;
    for (size_t i = 0; i < range->count; i++) {
        const char *name = range->pairs[i].key + strlen(prefix);
        if (range->pairs[i].lease != 0 && !holding->lived) {
            holding->lived = name;
        }
        if (strcmp(name, "state") == 0) {
            read_state(range->pairs[i].value, holding);
        }
    }
}

static void print_loss(const char *job, const char *prefix, const struct holding *holding)
{
    (void)printf("job        %s\nkeys       %zu below %s\nstate      %s", job, holding->keys,
                 prefix, holding->state[0] ? holding->state : "it never began");
    if (holding->state[0]) {
        (void)printf(" at step %" PRIu64, holding->step);
    }
    (void)printf("\nlost       what etcd knows of it: its text, its state, where its checkpoints "
                 "are\nkept       all files: its run goes on by kelp train --resume --run DIR\n");
}

#define AT_ONCE 100 /* keys of one transaction: etcd takes 128 operations */

/* All of it at once, if nobody has begun to use it meanwhile: its text is as it was, and nobody
 * leads it. Without its text nobody can. */
static kelp_status remove_keys(struct kelp_etcd *etcd, const char *prefix,
                               const struct kelp_etcd_range *range, uint32_t deadline_ms,
                               struct kelp_error *reterr)
{
    struct kelp_etcd_operation operations[AT_ONCE];
    struct kelp_etcd_compare compares[AT_ONCE + 1];
    char leader[KELP_JOB_CLIENT_KEY_MAX + 1];
    bool done = false;
    size_t count = range->count < AT_ONCE ? range->count : AT_ONCE;

    for (size_t i = 0; i < count; i++) {
        operations[i] = (struct kelp_etcd_operation){.key = range->pairs[i].key};
        compares[i] = (struct kelp_etcd_compare){.key = range->pairs[i].key,
                                                 .what = KELP_ETCD_MOD_REVISION,
                                                 .revision = range->pairs[i].mod_revision};
    }
    (void)snprintf(leader, sizeof(leader), "%scoordinator", prefix);
    compares[count] = (struct kelp_etcd_compare){.key = leader, .what = KELP_ETCD_CREATE_REVISION};
    struct kelp_etcd_transaction transaction = {.compares = compares,
                                                .compare_count = count + 1,
                                                .operations = operations,
                                                .operation_count = count,
                                                .deadline_ms = deadline_ms};
    kelp_status status = kelp_etcd_transaction(etcd, &transaction, &done, NULL, reterr);
    if (status == KELP_OK && !done) {
        return kelp_fail(reterr, KELP_ERR_BUSY,
                         "the job has changed meanwhile: somebody is using it");
    }
    return status == KELP_OK && count < range->count
               ? kelp_etcd_delete_prefix(etcd, prefix, deadline_ms, reterr)
               : status;
}

static int remove_job(struct kelp_job_client *client, const char *prefix,
                      const struct kelp_options *given)
{
    uint32_t deadline_ms = (uint32_t)kelp_options_duration_ms(given, "timeout");
    struct kelp_etcd *etcd = kelp_job_client_etcd(client);
    const char *job = kelp_job_client_job(client);
    struct kelp_etcd_range range = {.count = 0};
    struct holding holding;
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    kelp_status status = kelp_etcd_get_prefix(etcd, prefix, deadline_ms, &range, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_UNREACHABLE, "%s", error.text);
    }
    look(&range, prefix, &holding);
    if (holding.keys == 0) {
        (void)!kelp_job_missing(client, &error);
        exit_status = kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    } else if (holding.lived) {
        exit_status = kelp_complain(KELP_EXIT_USAGE,
                                    "job '%s' is in use: %s is alive; end its run first (kelp "
                                    "stop), or wait until the leases of killed processes expire",
                                    job, holding.lived);
    } else {
        print_loss(job, prefix, &holding);
        if (!kelp_options_flag(given, "dry-run")) {
            status = remove_keys(etcd, prefix, &range, deadline_ms, &error);
            exit_status = status == KELP_OK
                              ? KELP_EXIT_OK
                              : kelp_complain(KELP_EXIT_UNREACHABLE, "%s", error.text);
        }
    }
    kelp_etcd_range_fini(&range);
    return exit_status;
}

static int free_job(const struct kelp_options *given)
{
    struct kelp_job_client *client = NULL;
    char prefix[KELP_JOB_CLIENT_KEY_MAX + 1];
    struct kelp_error error;

    if (strlen(kelp_verb_typed(given)) > 63) {
        return kelp_complain(KELP_EXIT_USAGE, "a job's name has at most 63 bytes");
    }
    kelp_status status =
        kelp_job_client_open(kelp_options_text(given, "etcd"), kelp_verb_typed(given),
                             kelp_options_text(given, "certs"), &client, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    kelp_job_client_key(client, "", prefix);
    int exit_status = remove_job(client, prefix, given);
    kelp_job_client_close(client);
    return exit_status;
}

const struct kelp_verb kelp_verb_free = {
    "free", "remove a job from a shared etcd, so that its name is free", &program, free_job, NULL};
