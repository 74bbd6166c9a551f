/*
 * An authority, and the certificates that it issues: in a folder, with its certificate (ca.pem) and
 * its key (ca-key.pem), or in memory alone. Keys are ECDSA on P-256. Certificates have no common
 * name: etcd's gateway refuses those that do.
 */
#ifndef KELP_COMMON_TLS_AUTHORITY_H
#define KELP_COMMON_TLS_AUTHORITY_H

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

/* One in memory, to be freed. Errors: KELP_ERR_NO_MEMORY, KELP_ERR_INTERNAL (OpenSSL). */
struct kelp_authority;
kelp_status kelp_authority_create(int64_t from_s, int64_t until_s,
                                  struct kelp_authority **ret_authority,
                                  struct kelp_error *reterr) KELP_MUST_USE;
void kelp_authority_destroy(struct kelp_authority *authority); /* NULL does nothing */

struct kelp_authority_request {
    const char *authority; /* its folder; not looked at by kelp_authority_sign() */
    const char *out;       /* folder of the certificate; made when it is not there */
    struct kelp_spiffe name;
    const char *hosts[KELP_AUTHORITY_HOSTS_MAX]; /* DNS names, or addresses as numbers */
    size_t host_count;
    int64_t from_s, until_s;
    bool unsynced; /* what is written need not outlive this machine's next crash */
};

/* A new key, a certificate for it, and the authority's own, each file replaced whole. Errors:
 * KELP_ERR_NOT_FOUND (no authority), KELP_ERR_INVALID (a host; others may read the authority's key;
 * the authority's certificate ends before), those of files, KELP_ERR_INTERNAL (OpenSSL). */
kelp_status kelp_authority_issue(const struct kelp_authority_request *request,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* The same, by one in memory. */
kelp_status kelp_authority_sign(const struct kelp_authority *authority,
                                const struct kelp_authority_request *request,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif
