#include "common/scrape/scrape_tls.h"

#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <string.h>

#include "common/tls/certificate.h"

#define ROLES                                                                                      \
    (KELP_ROLE_BIT(KELP_ROLE_READER) | KELP_ROLE_BIT(KELP_ROLE_OPERATOR) |                         \
     KELP_ROLE_BIT(KELP_ROLE_COORDINATOR))

/* The peer proved in the handshake that it has the key. Is its certificate from a trusted
 * authority, and valid now? */
static bool is_believed(gnutls_session_t session)
{
    gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                     .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
    unsigned status = 0;

    return gnutls_certificate_type_get(session) == GNUTLS_CRT_X509 &&
           gnutls_certificate_verify_peers(session, &purpose, 1, &status) == GNUTLS_E_SUCCESS &&
           status == 0;
}

/* False: the certificate has no name of Kelp. */
static bool read_name(gnutls_session_t session, struct kelp_spiffe *ret_name)
{
    unsigned count = 0;
    const gnutls_datum_t *chain = gnutls_certificate_get_peers(session, &count);
    gnutls_datum_t pem = {.data = NULL};
    struct kelp_certificate certificate = {.has_name = false};

    if (!chain || count == 0 ||
        gnutls_pem_base64_encode2("CERTIFICATE", &chain[0], &pem) != GNUTLS_E_SUCCESS) {
        return false;
    }
    /* The data ends with a NUL that its size does not count. */
    bool read = kelp_certificate_read((const char *)pem.data, &certificate, NULL) == KELP_OK;
    gnutls_free(pem.data);
    *ret_name = certificate.name;
    return read && certificate.has_name;
}

const char *kelp_scrape_why_denied(struct MHD_Connection *connection, const struct kelp_spiffe *own)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    struct kelp_spiffe name;

    if (!info || !info->tls_session || !is_believed(info->tls_session)) {
        return "a certificate of the job's authority is needed";
    }
    if (!read_name(info->tls_session, &name) || strcmp(name.job, own->job) != 0 ||
        !(ROLES & KELP_ROLE_BIT(name.role))) {
        return "it is for the roles reader, operator and coordinator of the job";
    }
    return NULL;
}
