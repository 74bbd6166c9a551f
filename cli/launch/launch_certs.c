#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch/launcher.h"

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
