/*
 * An authority: a folder with its certificate (ca.pem) and its key (ca-key.pem), and what it
 * issues. Keys are ECDSA on P-256. Certificates have no common name: etcd's gateway refuses those
 * that do.
 */
#ifndef KELP_CLI_CERTS_AUTHORITY_H
#define KELP_CLI_CERTS_AUTHORITY_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tls/spiffe.h"

#define KELP_AUTHORITY_PATH_MAX  900
#define KELP_AUTHORITY_HOSTS_MAX 64
#define KELP_AUTHORITY_HOST_MAX  253 /* bytes of a DNS name */

/* Make one; the folder may be there already. Errors: KELP_ERR_EXISTS (there is an authority in it),
 * KELP_ERR_INVALID (others may enter the folder), those of files, KELP_ERR_INTERNAL (OpenSSL). */
kelp_status kelp_authority_init(const char *folder, int64_t from_s, int64_t until_s,
                                struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_authority_request {
    const char *authority; /* its folder */
    const char *out;       /* folder of the certificate; made when it is not there */
    struct kelp_spiffe name;
    const char *hosts[KELP_AUTHORITY_HOSTS_MAX]; /* DNS names, or addresses as numbers */
    size_t host_count;
    int64_t from_s, until_s;
};

/* A new key, a certificate for it, and the authority's own, each file replaced whole. Errors:
 * KELP_ERR_NOT_FOUND (no authority), KELP_ERR_INVALID (a host; others may read the authority's key;
 * the authority's certificate ends before), those of files, KELP_ERR_INTERNAL (OpenSSL). */
kelp_status kelp_authority_issue(const struct kelp_authority_request *request,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
