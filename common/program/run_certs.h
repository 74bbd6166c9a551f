/*
 * Certificates for one run on this machine: an authority whose key is never written, and which is
 * forgotten once it has issued a certificate to each role of the run. They are in the run's private
 * folder (socket_folder.h) and go with it.
 */
#ifndef KELP_COMMON_PROGRAM_RUN_CERTS_H
#define KELP_COMMON_PROGRAM_RUN_CERTS_H

#include "common/base/status.h"
#include "common/program/socket_folder.h"
#include "common/tls/credentials.h"

#define KELP_RUN_CERTS_MAX (KELP_SOCKET_FOLDER_MAX + 32) /* bytes of the path of a role */

/* FOLDER/certs, which has a folder for each role. */
void kelp_run_certs_path(const char *socket_folder, char path[KELP_RUN_CERTS_MAX + 1]);
/* FOLDER/certs/ROLE. */
void kelp_run_certs_role(const char *socket_folder, enum kelp_role role,
                         char path[KELP_RUN_CERTS_MAX + 1]);

/* Make them, for servers at loopback. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_INTERNAL (OpenSSL),
 * those of files. */
kelp_status kelp_run_certs_make(const char *socket_folder, const char *job,
                                struct kelp_error *reterr) KELP_MUST_USE;
/* The same where etcd serves at these addresses, at most KELP_AUTHORITY_HOSTS_MAX. */
kelp_status kelp_run_certs_make_for(const char *socket_folder, const char *job,
                                    const char *const *addresses, size_t count,
                                    struct kelp_error *reterr) KELP_MUST_USE;

#endif
