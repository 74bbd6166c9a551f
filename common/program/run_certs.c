#include "common/program/run_certs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/tls/authority.h"

/* Not renewed: longer than any run, and removed at its end. */
#define VALID_S INT64_C(315360000)
#define EARLY_S 300 /* tolerates a clock that is set back */

static const enum kelp_role roles[] = {KELP_ROLE_COORDINATOR, KELP_ROLE_SHARD, KELP_ROLE_WORKER,
                                       KELP_ROLE_OPERATOR, KELP_ROLE_ETCD};

void kelp_run_certs_path(const char *socket_folder, char path[KELP_RUN_CERTS_MAX + 1])
{
    assert(strlen(socket_folder) <= KELP_SOCKET_FOLDER_MAX);
    (void)snprintf(path, KELP_RUN_CERTS_MAX + 1, "%s/" KELP_SOCKET_FOLDER_CERTS, socket_folder);
}

void kelp_run_certs_role(const char *socket_folder, enum kelp_role role,
                         char path[KELP_RUN_CERTS_MAX + 1])
{
    assert(strlen(socket_folder) <= KELP_SOCKET_FOLDER_MAX);
    (void)snprintf(path, KELP_RUN_CERTS_MAX + 1, "%s/" KELP_SOCKET_FOLDER_CERTS "/%s",
                   socket_folder, kelp_role_names[role]);
}

/* request: fields that all roles share. */
static kelp_status issue(const struct kelp_authority *authority, const char *socket_folder,
                         const char *job, struct kelp_authority_request request,
                         struct kelp_error *reterr)
{
    char out[KELP_RUN_CERTS_MAX + 1];

    kelp_run_certs_role(socket_folder, request.name.role, out);
    request.out = out;
    if (request.name.role != KELP_ROLE_ETCD) {
        request.host_count = 0;
        (void)snprintf(request.name.job, sizeof(request.name.job), "%s", job);
    }
    return kelp_authority_sign(authority, &request, reterr);
}

kelp_status kelp_run_certs_make_for(const char *socket_folder, const char *job,
                                    const char *const *addresses, size_t count,
                                    struct kelp_error *reterr)
{
    int64_t until_s = (int64_t)time(NULL) + VALID_S;
    struct kelp_authority_request request = {
        .from_s = until_s - VALID_S - EARLY_S, .until_s = until_s, .unsynced = true};
    struct kelp_authority *authority = NULL;

    assert(count <= KELP_AUTHORITY_HOSTS_MAX);
    memcpy(request.hosts, addresses, count * sizeof(*addresses));
    request.host_count = count;
    kelp_status status =
        kelp_authority_create(request.from_s, until_s + EARLY_S, &authority, reterr);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles) && status == KELP_OK; i++) {
        request.name.role = roles[i];
        status = issue(authority, socket_folder, job, request, reterr);
    }
    kelp_authority_destroy(authority);
    return status;
}

kelp_status kelp_run_certs_make(const char *socket_folder, const char *job,
                                struct kelp_error *reterr)
{
    static const char *const loopback[] = {"127.0.0.1"};

    return kelp_run_certs_make_for(socket_folder, job, loopback, 1, reterr);
}
