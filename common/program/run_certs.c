#include "common/program/run_certs.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/tls/authority.h"

/* Nobody renews them: longer than any run, which takes them along when it ends. */
#define VALID_S INT64_C(315360000)
#define EARLY_S 300 /* a clock that is set back */

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

static kelp_status issue(const struct kelp_authority *authority, const char *socket_folder,
                         const char *job, enum kelp_role role, int64_t until_s,
                         struct kelp_error *reterr)
{
    char out[KELP_RUN_CERTS_MAX + 1];
    struct kelp_authority_request request = {.out = out,
                                             .name = {.role = role},
                                             .from_s = until_s - VALID_S - EARLY_S,
                                             .until_s = until_s,
                                             .unsynced = true};

    kelp_run_certs_role(socket_folder, role, out);
    if (role == KELP_ROLE_ETCD) {
        request.hosts[request.host_count++] = "127.0.0.1";
    } else {
        (void)snprintf(request.name.job, sizeof(request.name.job), "%s", job);
    }
    return kelp_authority_sign(authority, &request, reterr);
}

kelp_status kelp_run_certs_make(const char *socket_folder, const char *job,
                                struct kelp_error *reterr)
{
    int64_t until_s = (int64_t)time(NULL) + VALID_S;
    struct kelp_authority *authority = NULL;

    kelp_status status =
        kelp_authority_create(until_s - VALID_S - EARLY_S, until_s + EARLY_S, &authority, reterr);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles) && status == KELP_OK; i++) {
        status = issue(authority, socket_folder, job, roles[i], until_s, reterr);
    }
    kelp_authority_destroy(authority);
    return status;
}
