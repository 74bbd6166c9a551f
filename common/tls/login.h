/*
 * With which name and password a process logs in to an etcd that has users: the file "etcd-login"
 * in the folder of its certificate, two lines, which its owner alone may read.
 */
#ifndef KELP_COMMON_TLS_LOGIN_H
#define KELP_COMMON_TLS_LOGIN_H

#include "common/base/status.h"

#define KELP_LOGIN_FILE         "etcd-login"
#define KELP_LOGIN_USER_MAX     191 /* bytes; as many as a name in a certificate has */
#define KELP_LOGIN_PASSWORD_MAX 127

struct kelp_login {
    char user[KELP_LOGIN_USER_MAX + 1];         /* letters, digits, '-', '_', '.', '/' */
    char password[KELP_LOGIN_PASSWORD_MAX + 1]; /* visible ASCII without quotes and '\' */
};

/* Errors: KELP_ERR_NOT_FOUND, KELP_ERR_INVALID (others may read it), KELP_ERR_FORMAT,
 * KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_login_read(const char *folder, struct kelp_login *ret_login,
                            struct kelp_error *reterr) KELP_MUST_USE;

/* Draw a password for that user, and write both. Errors: KELP_ERR_INVALID (the user's name), those
 * of files, KELP_ERR_INTERNAL (no random numbers). */
kelp_status kelp_login_make(const char *folder, const char *user, struct kelp_login *ret_login,
                            struct kelp_error *reterr) KELP_MUST_USE;

void kelp_login_wipe(struct kelp_login *login);

#endif
