#include "common/etcd/etcd_endpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "common/base/address.h"

#define UNIX_SCHEME    "unix:"
#define PATH_MAX_BYTES 64 /* of the request at the endpoint */

static bool starts_with(const char *text, size_t length, const char *start)
{
    return length >= strlen(start) && strncmp(text, start, strlen(start)) == 0;
}

/* Visible ASCII except `refused`, so that an endpoint needs no escapes in JSON. */
static bool is_plain(const char *text, size_t length, const char *refused)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] <= ' ' || text[i] >= 0x7f || strchr(refused, text[i])) {
            return false;
        }
    }
    return true;
}

static kelp_status check_unix(const char *text, size_t length, struct kelp_error *reterr)
{
    const size_t path = strlen(UNIX_SCHEME);
    struct sockaddr_un address;

    if (length <= path || text[path] != '/' || length - path >= sizeof(address.sun_path) ||
        !is_plain(text, length, "\"\\")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd endpoint '%.*s' is not unix:/PATH with a path of at most %zu bytes, "
                         "none of them a blank or a quote",
                         (int)(length < 200 ? length : 200), text, sizeof(address.sun_path) - 1);
    }
    return KELP_OK;
}

bool kelp_etcd_endpoint_is_safe(const char *endpoint)
{
    return !starts_with(endpoint, strlen(endpoint), "http://");
}

/* In "::1:2379" it is unclear where the port begins. */
static bool lacks_brackets(const char *host, size_t length)
{
    const char *colon = memchr(host, ':', length);

    return colon && host[0] != '[' &&
           memchr(colon + 1, ':', length - (size_t)(colon + 1 - host)) != NULL;
}

static kelp_status check_endpoint(const char *text, size_t length, struct kelp_error *reterr)
{
    if (starts_with(text, length, UNIX_SCHEME)) {
        return check_unix(text, length, reterr);
    }
    size_t scheme = starts_with(text, length, "http://")    ? 7
                    : starts_with(text, length, "https://") ? 8
                                                            : 0;
    if (scheme == 0 || length <= scheme || length > KELP_ETCD_ENDPOINT_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd endpoint '%.*s' is not http://HOST:PORT, https://HOST:PORT or "
                         "unix:/PATH",
                         (int)(length < 200 ? length : 200), text);
    }
    if (!is_plain(text + scheme, length - scheme, "\"/?#@\\")) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd endpoint '%.*s' has something other than HOST:PORT in it",
                         (int)length, text);
    }
    if (lacks_brackets(text + scheme, length - scheme)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd endpoint '%.*s': an IPv6 address needs brackets, as in "
                         "http://[::1]:2379",
                         (int)length, text);
    }
    if (!kelp_etcd_endpoint_is_safe(text) &&
        !kelp_address_is_loopback(text + scheme, length - scheme)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "etcd endpoint '%.*s' is on another machine and not encrypted: there it "
                         "must be https://HOST:PORT, with --certs FOLDER (kelp certs)",
                         (int)length, text);
    }
    return KELP_OK;
}

kelp_status kelp_etcd_endpoints_parse(const char *text,
                                      char (**ret_endpoints)[KELP_ETCD_ENDPOINT_MAX + 1],
                                      size_t *ret_count, struct kelp_error *reterr)
{
    size_t found = 0;
    kelp_status status = KELP_OK;
    char(*endpoints)[KELP_ETCD_ENDPOINT_MAX + 1] =
        calloc(KELP_ETCD_ENDPOINTS_MAX, sizeof(*endpoints));

    if (!endpoints) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (bool more = true; more && status == KELP_OK;) {
        size_t length = strcspn(text, ",");
        /* users paste "http://host:port/" */
        size_t used = length > 0 && text[length - 1] == '/' ? length - 1 : length;
        status = check_endpoint(text, used, reterr);
        if (status == KELP_OK && found == KELP_ETCD_ENDPOINTS_MAX) {
            status = kelp_fail(reterr, KELP_ERR_LIMIT, "more than %d etcd endpoints",
                               KELP_ETCD_ENDPOINTS_MAX);
        }
        if (status == KELP_OK) {
            memcpy(endpoints[found++], text, used);
        }
        more = text[length] != '\0';
        text += length + 1;
    }
    if (status != KELP_OK) {
        free(endpoints);
        return status;
    }
    *ret_endpoints = endpoints;
    *ret_count = found;
    return KELP_OK;
}

kelp_status kelp_etcd_endpoint_apply(CURL *curl, const char *endpoint, const char *path)
{
    char url[KELP_ETCD_ENDPOINT_MAX + PATH_MAX_BYTES + 1];
    bool local = starts_with(endpoint, strlen(endpoint), UNIX_SCHEME);

    (void)snprintf(url, sizeof(url), "%s%s", local ? "http://localhost" : endpoint, path);
    if (curl_easy_setopt(curl, CURLOPT_URL, url) != CURLE_OK ||
        (local && curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH,
                                   endpoint + strlen(UNIX_SCHEME)) != CURLE_OK)) {
        return KELP_ERR_NO_MEMORY;
    }
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    return KELP_OK;
}

/* ---- TLS ---- */

kelp_status kelp_etcd_certificates_init(struct kelp_etcd_certificates *certificates,
                                        const char *folder, struct kelp_error *reterr)
{
    if (strlen(folder) > KELP_CREDENTIALS_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the certificates is over %d bytes",
                         KELP_CREDENTIALS_PATH_MAX);
    }
    (void)snprintf(certificates->ca, sizeof(certificates->ca), "%s/" KELP_CREDENTIALS_CA, folder);
    (void)snprintf(certificates->certificate, sizeof(certificates->certificate),
                   "%s/" KELP_CREDENTIALS_CERTIFICATE, folder);
    (void)snprintf(certificates->key, sizeof(certificates->key), "%s/" KELP_CREDENTIALS_KEY,
                   folder);
    return KELP_OK;
}

kelp_status kelp_etcd_certificates_apply(CURL *curl,
                                         const struct kelp_etcd_certificates *certificates)
{
    if (curl_easy_setopt(curl, CURLOPT_CAINFO, certificates->ca) != CURLE_OK ||
        curl_easy_setopt(curl, CURLOPT_SSLCERT, certificates->certificate) != CURLE_OK ||
        curl_easy_setopt(curl, CURLOPT_SSLKEY, certificates->key) != CURLE_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    /* Trust nothing else, and cache nothing from before the files were replaced. */
    (void)curl_easy_setopt(curl, CURLOPT_CAPATH, NULL);
    (void)curl_easy_setopt(curl, CURLOPT_CA_CACHE_TIMEOUT, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_SESSIONID_CACHE, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    return KELP_OK;
}
