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

/* Less than a tenth of its life is left, and less than KELP_CERTIFICATE_SOON_S; or it is over. */
#define KELP_CERTIFICATE_SOON_S (30 * INT64_C(86400))
bool kelp_certificate_ends_soon(const struct kelp_certificate *certificate, int64_t now_s);

/* "2026-01-31T12:00:00Z". */
#define KELP_CERTIFICATE_DATE_BYTES 32
void kelp_certificate_date(int64_t at_s, char text[KELP_CERTIFICATE_DATE_BYTES]);

/* Do the certificate and the private key, both PEM, belong together? */
bool kelp_certificate_fits_key(const char *pem, const char *key);

#endif
