#include "common/tls/certificate.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SPIFFE_SCHEME "spiffe:"
#define HOST_MAX      255

/* NOLINTNEXTLINE(readability-non-const-parameter): OpenSSL requires this type */
static int no_password(char *buffer, int size, int writing, void *user)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)user;
    return -1; /* otherwise OpenSSL asks on the terminal */
}

static X509 *read_x509(const char *pem)
{
    BIO *in = BIO_new_mem_buf(pem, -1);
    X509 *x509 = in ? PEM_read_bio_X509(in, NULL, no_password, NULL) : NULL;

    BIO_free(in);
    ERR_clear_error();
    return x509;
}

/* ---- names ---- */

/* Bytes that no host name has become '?', because the text is shown on terminals. */
static void add_host(struct kelp_certificate *certificate, const char *text, size_t length)
{
    char host[HOST_MAX + 1] = "";
    size_t used = strlen(certificate->hosts);

    for (size_t i = 0; i < length && i < HOST_MAX; i++) {
        host[i] = '?';
        if (text[i] > ' ' && text[i] < 0x7f) {
            host[i] = text[i];
        }
    }
    (void)snprintf(certificate->hosts + used, sizeof(certificate->hosts) - used, "%s%s",
                   used > 0 ? ", " : "", host);
}

static void add_address(struct kelp_certificate *certificate, const ASN1_OCTET_STRING *bytes)
{
    char text[INET6_ADDRSTRLEN];
    int length = ASN1_STRING_length(bytes);
    int family = length == 4 ? AF_INET : length == 16 ? AF_INET6 : AF_UNSPEC;

    if (family != AF_UNSPEC &&
        inet_ntop(family, ASN1_STRING_get0_data(bytes), text, sizeof(text)) != NULL) {
        add_host(certificate, text, strlen(text));
    }
}

static kelp_status add_uri(struct kelp_certificate *certificate, const char *text, size_t length,
                           struct kelp_error *reterr)
{
    if (length < strlen(SPIFFE_SCHEME) ||
        strncmp(text, SPIFFE_SCHEME, strlen(SPIFFE_SCHEME)) != 0) {
        return KELP_OK; /* a URI of another system */
    }
    if (certificate->has_name) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "it has more than one spiffe: name");
    }
    certificate->has_name = true;
    return kelp_spiffe_parse(text, length, &certificate->name, reterr);
}

static kelp_status read_names(const X509 *x509, struct kelp_certificate *certificate,
                              struct kelp_error *reterr)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(x509, NID_subject_alt_name, NULL, NULL);
    kelp_status status = KELP_OK;

    for (int i = 0; i < sk_GENERAL_NAME_num(names) && status == KELP_OK; i++) {
        int kind = 0;
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &kind);
        if (kind == GEN_IPADD) {
            add_address(certificate, value);
        } else if (kind == GEN_DNS || kind == GEN_URI) {
            const char *text = (const char *)ASN1_STRING_get0_data(value);
            size_t length = (size_t)ASN1_STRING_length(value);
            if (kind == GEN_DNS) {
                add_host(certificate, text, length);
            } else {
                status = add_uri(certificate, text, length, reterr);
            }
        }
    }
    GENERAL_NAMES_free(names);
    return status;
}

/* ---- times and keys ---- */

static bool read_time(const ASN1_TIME *time, int64_t *ret_s)
{
    struct tm parts;

    if (ASN1_TIME_to_tm(time, &parts) != 1) {
        return false;
    }
    *ret_s = (int64_t)timegm(&parts);
    return true;
}

static void print_subject(const X509 *x509, char text[KELP_CERTIFICATE_TEXT_MAX + 1])
{
    BIO *out = BIO_new(BIO_s_mem());

    text[0] = '\0';
    if (out && X509_NAME_print_ex(out, X509_get_subject_name(x509), 0, XN_FLAG_ONELINE) >= 0) {
        int length = BIO_read(out, text, KELP_CERTIFICATE_TEXT_MAX);
        text[length > 0 ? length : 0] = '\0';
    }
    BIO_free(out);
}

kelp_status kelp_certificate_read(const char *pem, struct kelp_certificate *ret_certificate,
                                  struct kelp_error *reterr)
{
    struct kelp_certificate certificate = {.has_name = false};
    X509 *x509 = read_x509(pem);

    if (!x509) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "holds no PEM certificate");
    }
    kelp_status status = read_names(x509, &certificate, reterr);
    if (status == KELP_OK && (!read_time(X509_get0_notBefore(x509), &certificate.from_s) ||
                              !read_time(X509_get0_notAfter(x509), &certificate.until_s))) {
        status = kelp_fail(reterr, KELP_ERR_FORMAT, "its dates cannot be read");
    }
    print_subject(x509, certificate.subject);
    certificate.is_authority = X509_check_ca(x509) != 0;
    X509_free(x509);
    ERR_clear_error();
    if (status == KELP_OK) {
        *ret_certificate = certificate;
    }
    return status;
}

bool kelp_certificate_fits_key(const char *pem, const char *key)
{
    X509 *x509 = read_x509(pem);
    BIO *in = BIO_new_mem_buf(key, -1);
    EVP_PKEY *private_key = in ? PEM_read_bio_PrivateKey(in, NULL, no_password, NULL) : NULL;
    bool fits = x509 && private_key && X509_check_private_key(x509, private_key) == 1;

    EVP_PKEY_free(private_key);
    BIO_free(in);
    X509_free(x509);
    ERR_clear_error();
    return fits;
}

/* ---- dates ---- */

bool kelp_certificate_ends_soon(const struct kelp_certificate *certificate, int64_t now_s)
{
    const int64_t tenth_s = (certificate->until_s - certificate->from_s) / 10;
    const int64_t soon_s = tenth_s < KELP_CERTIFICATE_SOON_S ? tenth_s : KELP_CERTIFICATE_SOON_S;

    return certificate->until_s - now_s < soon_s || certificate->until_s < now_s;
}

void kelp_certificate_date(int64_t at_s, char text[KELP_CERTIFICATE_DATE_BYTES])
{
    struct tm parts = {.tm_mday = 1};
    time_t at = (time_t)at_s;

    (void)gmtime_r(&at, &parts);
    if (strftime(text, KELP_CERTIFICATE_DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
        text[0] = '\0'; /* a year with too many digits */
    }
}
