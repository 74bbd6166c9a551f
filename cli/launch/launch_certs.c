#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"

const struct kelp_launch_roles kelp_launch_all_roles = {true, true, true, true};

/* Of the launcher itself. */
static enum kelp_role client_role(bool steers)
{
    return steers ? KELP_ROLE_OPERATOR : KELP_ROLE_READER;
}

static kelp_status check(const char *folder, enum kelp_role role, const char *job,
                         struct kelp_error *reterr)
{
    char path[KELP_CREDENTIALS_PATH_MAX + 1];
    char text[KELP_SPIFFE_MAX + 1];
    struct kelp_credentials *credentials = NULL;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, kelp_role_names[role]);
    kelp_status status = kelp_credentials_open(path, &credentials, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--certs");
        return status;
    }
    const struct kelp_spiffe *name = kelp_credentials_name(credentials);
    if (name->role != role || strcmp(name->job, job) != 0 || name->id[0] != '\0') {
        kelp_spiffe_print(name, text);
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "--certs: '%.200s' is for %s, not for every %s of job %s", path, text,
                           kelp_role_names[role], job);
    }
    kelp_credentials_close(credentials);
    return status;
}

kelp_status kelp_launcher_find_certs(const char *folder, const char *job,
                                     const struct kelp_launch_roles *roles,
                                     char path[KELP_LAUNCH_CERTS_MAX + 1],
                                     struct kelp_error *reterr)
{
    const struct {
        enum kelp_role role;
        bool needed;
    } needs[] = {{KELP_ROLE_COORDINATOR, roles->coordinators},
                 {KELP_ROLE_SHARD, roles->shards},
                 {KELP_ROLE_WORKER, roles->workers},
                 {client_role(roles->steers), true}};
    char *real = realpath(folder, NULL);
    kelp_status status = KELP_OK;

    if (!real || strlen(real) > KELP_LAUNCH_CERTS_MAX) {
        free(real);
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "--certs: '%.300s' is not a folder", folder);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(needs) && status == KELP_OK; i++) {
        status = needs[i].needed ? check(real, needs[i].role, job, reterr) : KELP_OK;
    }
    if (status == KELP_OK) {
        (void)snprintf(path, KELP_LAUNCH_CERTS_MAX + 1, "%s", real);
    }
    free(real);
    return status;
}

bool kelp__launch_own_certs(const struct kelp_launch *launch)
{
    return launch->listen && !launch->certs;
}

static void set_certs(struct kelp_launcher *launcher, const char *folder)
{
    enum kelp_role role = client_role(!launcher->launch->node || launcher->launch->node->steers);

    (void)snprintf(launcher->roles, sizeof(launcher->roles), "%s", folder);
    (void)snprintf(launcher->certs, sizeof(launcher->certs), "%.*s/%s", KELP_LAUNCH_CERTS_MAX,
                   folder, kelp_role_names[role]);
}

kelp_status kelp__launch_make_certs(struct kelp_launcher *launcher, struct kelp_error *reterr)
{
    char folder[KELP_RUN_CERTS_MAX + 1];

    if (launcher->launch->certs) {
        set_certs(launcher, launcher->launch->certs);
    }
    if (!kelp__launch_own_certs(launcher->launch)) {
        return KELP_OK;
    }
    kelp_run_certs_path(launcher->sockets, folder);
    set_certs(launcher, folder);
    return kelp_run_certs_make(launcher->sockets, launcher->launch->job->name, reterr);
}
