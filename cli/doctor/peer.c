/* The adapter of libcurl for handshakes alone. */
#include "cli/doctor/peer.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#include "common/etcd/etcd_endpoint.h"

#define CERTIFICATE "Cert:" /* before the PEM text in curl's list */

static CURL *prepare(const char *address, const char *certs, uint32_t within_ms,
                     struct kelp_error *reterr)
{
    struct kelp_etcd_certificates certificates;
    char url[KELP_ETCD_ENDPOINT_MAX + 1];
    CURL *curl = NULL;

    if (kelp_etcd_certificates_init(&certificates, certs, reterr) != KELP_OK) {
        return NULL;
    }
    (void)snprintf(url, sizeof(url), "https://%s", address);
    curl = curl_easy_init();
    if (!curl || kelp_etcd_endpoint_apply(curl, url, "/") != KELP_OK ||
        kelp_etcd_certificates_apply(curl, &certificates) != KELP_OK) {
        curl_easy_cleanup(curl);
        (void)kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    (void)curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L); /* names of Kelp are URIs */
    (void)curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)within_ms);
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)within_ms);
    return curl;
}

/* Its own certificate is the first of the list. */
static void read_certificate(CURL *curl, struct kelp_peer *peer)
{
    struct curl_certinfo *list = NULL;

    if (curl_easy_getinfo(curl, CURLINFO_CERTINFO, &list) != CURLE_OK || !list ||
        list->num_of_certs < 1) {
        return;
    }
    for (const struct curl_slist *at = list->certinfo[0]; at; at = at->next) {
        if (strncmp(at->data, CERTIFICATE, strlen(CERTIFICATE)) == 0) {
            peer->has_certificate = kelp_certificate_read(at->data + strlen(CERTIFICATE),
                                                          &peer->certificate, NULL) == KELP_OK;
        }
    }
}

kelp_status kelp_peer_look(const char *address, const char *certs, uint32_t within_ms,
                           struct kelp_peer *ret_peer, struct kelp_error *reterr)
{
    char trouble[CURL_ERROR_SIZE] = "";
    CURL *curl = prepare(address, certs, within_ms / 2 + 1, reterr);

    if (!curl) {
        return reterr->status;
    }
    *ret_peer = (struct kelp_peer){.trouble = ""};
    (void)curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, trouble);
    CURLcode code = curl_easy_perform(curl);
    ret_peer->silent = code == CURLE_OPERATION_TIMEDOUT;
    if (code != CURLE_OK) {
        (void)snprintf(ret_peer->trouble, sizeof(ret_peer->trouble), "%.255s",
                       trouble[0] ? trouble : curl_easy_strerror(code));
    }
    /* Once more, whoever it is: nothing is sent to it. */
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_CERTINFO, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
    if (!ret_peer->silent && curl_easy_perform(curl) == CURLE_OK) {
        read_certificate(curl, ret_peer);
    }
    curl_easy_cleanup(curl);
    return KELP_OK;
}

bool kelp_peer_judge(const struct kelp_peer *peer, enum kelp_role role, const char *job,
                     int64_t now_s, char *text, size_t text_bytes)
{
    const struct kelp_certificate *its = &peer->certificate;
    char date[KELP_CERTIFICATE_DATE_BYTES], name[KELP_SPIFFE_MAX + 1] = "no process of Kelp";

    if (!peer->has_certificate) {
        return false;
    }
    if (its->has_name) {
        kelp_spiffe_print(&its->name, name);
    }
    if (now_s > its->until_s || now_s < its->from_s) {
        const bool over = now_s > its->until_s;
        kelp_certificate_date(over ? its->until_s : its->from_s, date);
        (void)snprintf(text, text_bytes, "its certificate %s by this host's clock: %s",
                       over ? "has ended" : "is not valid yet", date);
    } else if (peer->trouble[0] != '\0') {
        (void)snprintf(text, text_bytes,
                       "its certificate is of another authority than ca.pem of --certs (%.150s)",
                       peer->trouble);
    } else if (!its->has_name || its->name.role != role || strcmp(its->name.job, job) != 0) {
        (void)snprintf(text, text_bytes, "its certificate names %s, not a %s of job %.63s", name,
                       kelp_role_names[role], job);
    } else {
        return false;
    }
    return true;
}
