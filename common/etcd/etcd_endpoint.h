/*
 * Where an etcd answers: "http://HOST:PORT", "https://HOST:PORT", or "unix:/PATH", a socket in the
 * file system on which etcd speaks HTTP.
 */
#ifndef KELP_COMMON_ETCD_ETCD_ENDPOINT_H
#define KELP_COMMON_ETCD_ETCD_ENDPOINT_H

#include <curl/curl.h>
#include <stddef.h>

#include "common/base/status.h"

#define KELP_ETCD_ENDPOINT_MAX 255 /* bytes of one endpoint */

/* Is it one of these, without anything behind it? text need not end after length.
 * Errors: KELP_ERR_INVALID. */
kelp_status kelp_etcd_endpoint_check(const char *text, size_t length,
                                     struct kelp_error *reterr) KELP_MUST_USE;

/* Lead the transfer to path ("/v3/kv/range") at an endpoint that was checked; no proxy is asked.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_etcd_endpoint_apply(CURL *curl, const char *endpoint,
                                     const char *path) KELP_MUST_USE;

#endif
