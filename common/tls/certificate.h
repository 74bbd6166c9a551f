/* What a certificate says. Pure, but for OpenSSL's error queue. */
#ifndef KELP_COMMON_TLS_CERTIFICATE_H
#define KELP_COMMON_TLS_CERTIFICATE_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/tls/spiffe.h"

#define KELP_CERTIFICATE_TEXT_MAX 511 /* bytes of its subject, or of its hosts */

struct kelp_certificate {
    bool has_name; /* false: an authority, or nobody of Kelp's */
    struct kelp_spiffe name;
    bool is_authority;
    char subject[KELP_CERTIFICATE_TEXT_MAX + 1]; /* "O = kelp" */
    char hosts[KELP_CERTIFICATE_TEXT_MAX + 1];   /* DNS names and addresses: "a.b, 10.0.0.1" */
    int64_t from_s, until_s;                     /* valid; seconds since 1970 */
};

/* The first certificate of a PEM text. Two names of Kelp in it are an error, as is a name that
 * looks like one and is none. Errors: KELP_ERR_FORMAT, KELP_ERR_NO_MEMORY. */
kelp_status kelp_certificate_read(const char *pem, struct kelp_certificate *ret_certificate,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Do the certificate and the private key, both PEM, belong together? */
bool kelp_certificate_fits_key(const char *pem, const char *key);

#endif
