/*
 * Where an etcd answers: "http://HOST:PORT", "https://HOST:PORT", or "unix:/PATH", a socket in the
 * file system on which etcd speaks HTTP.
 */
#ifndef KELP_COMMON_ETCD_ETCD_ENDPOINT_H
#define KELP_COMMON_ETCD_ETCD_ENDPOINT_H

#include <curl/curl.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/tls/credentials.h"

#define KELP_ETCD_ENDPOINT_MAX  255 /* bytes of one endpoint */
#define KELP_ETCD_ENDPOINTS_MAX 16  /* a cluster has 3 to 7 members */

/* Several, separated by commas; http:// only at loopback. *ret_endpoints is the caller's: free().
 * Errors: KELP_ERR_INVALID, KELP_ERR_LIMIT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_etcd_endpoints_parse(const char *text,
                                      char (**ret_endpoints)[KELP_ETCD_ENDPOINT_MAX + 1],
                                      size_t *ret_count, struct kelp_error *reterr) KELP_MUST_USE;

/* Where libcurl finds what mutual TLS needs. */
struct kelp_etcd_certificates {
    char ca[KELP_CREDENTIALS_PATH_MAX + 16];
    char certificate[KELP_CREDENTIALS_PATH_MAX + 16];
    char key[KELP_CREDENTIALS_PATH_MAX + 16];
};
/* Errors: KELP_ERR_LIMIT. */
kelp_status kelp_etcd_certificates_init(struct kelp_etcd_certificates *certificates,
                                        const char *folder,
                                        struct kelp_error *reterr) KELP_MUST_USE;
/* Is nothing sent in clear to an endpoint that was checked? */
bool kelp_etcd_endpoint_is_safe(const char *endpoint);
/* Read the files for each connection, and ask etcd for its certificate. Errors: KELP_ERR_NO_MEMORY.
 */
kelp_status
kelp_etcd_certificates_apply(CURL *curl,
                             const struct kelp_etcd_certificates *certificates) KELP_MUST_USE;

/* Lead the transfer to path ("/v3/kv/range") at an endpoint that was checked; no proxy is asked.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_etcd_endpoint_apply(CURL *curl, const char *endpoint,
                                     const char *path) KELP_MUST_USE;

#endif
