#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch/launcher_internal.h"

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
                                     char path[KELP_LAUNCH_CERTS_MAX + 1],
                                     struct kelp_error *reterr)
{
    static const enum kelp_role roles[] = {KELP_ROLE_COORDINATOR, KELP_ROLE_SHARD, KELP_ROLE_WORKER,
                                           KELP_ROLE_OPERATOR};
    char *real = realpath(folder, NULL);
    kelp_status status = KELP_OK;

    if (!real || strlen(real) > KELP_LAUNCH_CERTS_MAX) {
        free(real);
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "--certs: '%.300s' is no folder", folder);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles) && status == KELP_OK; i++) {
        status = check(real, roles[i], job, reterr);
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
    (void)snprintf(launcher->roles, sizeof(launcher->roles), "%s", folder);
    (void)snprintf(launcher->certs, sizeof(launcher->certs), "%.*s/%s", KELP_LAUNCH_CERTS_MAX,
                   folder, kelp_role_names[KELP_ROLE_OPERATOR]);
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
