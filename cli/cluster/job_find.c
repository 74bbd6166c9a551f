#include "cli/cluster/job_find.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/process_name.h"
#include "common/job/job.h"

#define ROOT      "/kelp/"
#define SPEC      "spec"
#define NAMES_MAX 8    /* that a message has */
#define LIST_MS   1000 /* for each key: the names are only a help */

/* Find the first key at or behind `from`. False: there is none, or etcd did not answer. */
static bool next_key(struct kelp_etcd *etcd, const char *from,
                     char ret_key[KELP_JOB_CLIENT_KEY_MAX + 1])
{
    struct kelp_etcd_range range = {.count = 0};

    if (kelp_etcd_get_next(etcd, from, LIST_MS, &range, NULL) != KELP_OK) {
        return false;
    }
    bool found = range.count > 0 && strlen(range.pairs[0].key) <= KELP_JOB_CLIENT_KEY_MAX;
    if (found) {
        (void)snprintf(ret_key, KELP_JOB_CLIENT_KEY_MAX + 1, "%s", range.pairs[0].key);
    }
    kelp_etcd_range_fini(&range);
    return found;
}

/* "/kelp/NAME/…": the name; false: it is no key of a job. */
static bool name_of(const char *key, char ret_name[KELP_JOB_NAME_MAX + 1])
{
    const char *name = key + strlen(ROOT);

    if (strncmp(key, ROOT, strlen(ROOT)) != 0) {
        return false;
    }
    size_t bytes = strcspn(name, "/");
    if (bytes > KELP_JOB_NAME_MAX || name[bytes] == '\0') {
        return false;
    }
    (void)snprintf(ret_name, KELP_JOB_NAME_MAX + 1, "%.*s", (int)bytes, name);
    return kelp_process_name_valid(ret_name);
}

/* "; it has fare, mlp": the submitted jobs. Hosts may wait under other names. */
static void list(struct kelp_etcd *etcd, char *text, size_t text_bytes)
{
    char from[KELP_JOB_CLIENT_KEY_MAX + 1] = ROOT, key[KELP_JOB_CLIENT_KEY_MAX + 1];
    char name[KELP_JOB_NAME_MAX + 1], spec[KELP_JOB_CLIENT_KEY_MAX + 1];
    size_t used = 0, count = 0;

    text[0] = '\0';
    while (next_key(etcd, from, key) && name_of(key, name)) {
        (void)snprintf(spec, sizeof(spec), ROOT "%s/" SPEC, name);
        (void)snprintf(from, sizeof(from), ROOT "%s0", name); /* '0' follows '/' */
        if (!next_key(etcd, spec, key) || strcmp(key, spec) != 0) {
            continue;
        }
        if (count++ == NAMES_MAX) {
            (void)snprintf(text + used, text_bytes - used, ", …");
            return;
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s",
                                 count == 1 ? "; it has " : ", ", name);
    }
}

kelp_status kelp_job_missing(struct kelp_job_client *client, struct kelp_error *reterr)
{
    char jobs[NAMES_MAX * (KELP_JOB_NAME_MAX + 2) + 32];

    list(kelp_job_client_etcd(client), jobs, sizeof(jobs));
    return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "etcd at %.150s has no job '%.80s'%.250s%s",
                     kelp_job_client_urls(client), kelp_job_client_job(client), jobs,
                     jobs[0] == '\0' ? "; kelp submit puts one there" : "");
}

kelp_status kelp_job_find(struct kelp_job_client *client, uint64_t timeout_ms,
                          struct kelp_error *reterr)
{
    const uint32_t deadline_ms =
        timeout_ms < KELP_JOB_CLIENT_REACH_MS ? (uint32_t)timeout_ms : KELP_JOB_CLIENT_REACH_MS;
    char *spec = NULL;

    kelp_status status = kelp_job_client_get(client, SPEC, deadline_ms, &spec, reterr);
    free(spec);
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_job_missing(client, reterr);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "job '%s' cannot be reached", kelp_job_client_job(client));
    }
    return status;
}
