/*
 * Certificates, damaged: as PEM text, as the DER in it, and as files of a folder that says who a
 * process is. They are refused, or what is read of them holds together.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"
#include "common/tls/credentials.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/fuzz.h"

#define INPUTS 10000
#define FILES  1000 /* each is written and read again */

/* Issued to nobody: the private key is the number 1. */
#define WORKER                                                                                     \
    "-----BEGIN CERTIFICATE-----\n"                                                                \
    "MIIB0zCCAXqgAwIBAgIUbMOveMufLnS38lCE3mr9CO/PosIwCgYIKoZIzj0EAwIw\n"                           \
    "DzENMAsGA1UECgwEa2VscDAeFw0yNjExMjMwMDMzMzVaFw0zNjExMjAwMDMzMzVa\n"                           \
    "MA8xDTALBgNVBAoMBGtlbHAwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARrF9Hy\n"                           \
    "4SxCR/i85uVjpEDydwN9gS3rM6D0oTlF2JjClk/jQuL+Gn+bjufrSnwPnhYrzjNX\n"                           \
    "azFezsu2QGg3v1H1o4GzMIGwMB0GA1UdDgQWBBS0Z6OZnrXvpnHeADLwipyeXv2g\n"                           \
    "4TAfBgNVHSMEGDAWgBS0Z6OZnrXvpnHeADLwipyeXv2g4TBBBgNVHREEOjA4hiNz\n"                           \
    "cGlmZmU6Ly9rZWxwL2V0dGgxL3dvcmtlci93b3JrZXItMIILd29ya2VyLmtlbHCH\n"                           \
    "BAoAAAUwHQYDVR0lBBYwFAYIKwYBBQUHAwEGCCsGAQUFBwMCMAwGA1UdEwEB/wQC\n"                           \
    "MAAwCgYIKoZIzj0EAwIDRwAwRAIgN1NrTEBvcIOw86D4Jo1kOY4/dGUl7PQ8y1mT\n"                           \
    "ES8QKaICIGX98bOGa2o3UvRiV7Ng4LdT4SVz+w2AAu2wS5PWjcNf\n"                                       \
    "-----END CERTIFICATE-----\n"
#define AUTHORITY                                                                                  \
    "-----BEGIN CERTIFICATE-----\n"                                                                \
    "MIIBijCCATCgAwIBAgIUD4GndQ9vG9tVq0E/AmrrWEr+pmAwCgYIKoZIzj0EAwIw\n"                           \
    "GTEXMBUGA1UECgwOa2VscCBhdXRob3JpdHkwHhcNMjYxMTIzMDAzMzM1WhcNMzYx\n"                           \
    "MTIwMDAzMzM1WjAZMRcwFQYDVQQKDA5rZWxwIGF1dGhvcml0eTBZMBMGByqGSM49\n"                           \
    "AgEGCCqGSM49AwEHA0IABGsX0fLhLEJH+Lzm5WOkQPJ3A32BLeszoPShOUXYmMKW\n"                           \
    "T+NC4v4af5uO5+tKfA+eFivOM1drMV7Oy7ZAaDe/UfWjVjBUMB0GA1UdDgQWBBS0\n"                           \
    "Z6OZnrXvpnHeADLwipyeXv2g4TAfBgNVHSMEGDAWgBS0Z6OZnrXvpnHeADLwipye\n"                           \
    "Xv2g4TASBgNVHRMBAf8ECDAGAQH/AgEAMAoGCCqGSM49BAMCA0gAMEUCIQDnkDPp\n"                           \
    "FSW1kmOtRgAbRmCtsE9Im6B80uXHGhhoBluSWgIgLPeuYU4bUKzio+HuBgRhxXm/\n"                           \
    "LjinyOTD9l4VOIQXkAU=\n"                                                                       \
    "-----END CERTIFICATE-----\n"
#define ONE                                                                                        \
    "-----BEGIN PRIVATE KEY-----\n"                                                                \
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgAAAAAAAAAAAAAAAA\n"                           \
    "AAAAAAAAAAAAAAAAAAAAAAAAAAGhRANCAARrF9Hy4SxCR/i85uVjpEDydwN9gS3r\n"                           \
    "M6D0oTlF2JjClk/jQuL+Gn+bjufrSnwPnhYrzjNXazFezsu2QGg3v1H1\n"                                   \
    "-----END PRIVATE KEY-----\n"

static const struct kelp_fuzz_seed pem_seeds[] = {KELP_FUZZ_TEXT(WORKER), KELP_FUZZ_TEXT(AUTHORITY),
                                                  KELP_FUZZ_TEXT(WORKER AUTHORITY),
                                                  KELP_FUZZ_TEXT(ONE)};
static const char *const pem_words[] = {"-----BEGIN CERTIFICATE-----\n",
                                        "-----END CERTIFICATE-----\n",
                                        "-----BEGIN TRUSTED CERTIFICATE-----\n",
                                        "Proc-Type: 4,ENCRYPTED\n",
                                        "DEK-Info: AES-256-CBC,00\n",
                                        "=",
                                        "\n",
                                        "AAAA",
                                        "////"};
/* What it is made of: names, object identifiers, lengths. */
static const char *const der_words[] = {"spiffe://kelp/a/worker",
                                        "spiffe://kelp/etcd",
                                        "spiffe://kelp/",
                                        "\x86\x23spiffe",
                                        "\x82\x0b",
                                        "\x87\x04",
                                        "\x87\x10",
                                        "\x30\x82\xff\xff",
                                        "\x30\x80",
                                        "\x30\x84\xff\xff\xff\xff",
                                        "\x06\x03\x55\x1d\x11",
                                        "\x17\x0d"
                                        "500101000000Z",
                                        "\x18\x0f"
                                        "99991231235959Z",
                                        "\r\n",
                                        "\x1b[2J"};

/* ---- what was read -------------------------------------------------------------------------- */

static const char *check(const struct kelp_certificate *certificate)
{
    char text[KELP_SPIFFE_MAX + 1];
    struct kelp_spiffe again;

    if (memchr(certificate->subject, '\0', sizeof(certificate->subject)) == NULL ||
        memchr(certificate->hosts, '\0', sizeof(certificate->hosts)) == NULL) {
        return "a text without an end";
    }
    for (const char *at = certificate->hosts; *at; at++) {
        if (*at < ' ' || *at == 0x7f) {
            return "a control character in the hosts";
        }
    }
    if (!certificate->has_name) {
        return NULL;
    }
    kelp_spiffe_print(&certificate->name, text);
    return kelp_spiffe_parse(text, strlen(text), &again, NULL) == KELP_OK &&
                   strcmp(again.job, certificate->name.job) == 0 &&
                   strcmp(again.id, certificate->name.id) == 0
               ? NULL
               : "a name that is none was taken";
}

/* With a NUL behind, as files are read. */
static const char *read_text(const char *text)
{
    struct kelp_certificate certificate;
    struct kelp_error error = {.text = ""};

    if (strlen(text) % 8 == 0) { /* slow */
        (void)kelp_certificate_fits_key(text, ONE);
        (void)kelp_certificate_fits_key(WORKER, text);
    }
    if (kelp_certificate_read(text, &certificate, &error) != KELP_OK) {
        return error.text[0] ? NULL : "refused without a word";
    }
    return check(&certificate);
}

static const char *read_pem(const uint8_t *bytes, size_t count)
{
    char *text = malloc(count + 1);

    ck_assert_ptr_nonnull(text);
    memcpy(text, bytes, count);
    text[count] = '\0';
    const char *wrong = read_text(text);
    free(text);
    return wrong;
}

static const char *read_der(const uint8_t *bytes, size_t count)
{
    static const char begin[] = "-----BEGIN CERTIFICATE-----\n";
    static const char end[] = "\n-----END CERTIFICATE-----\n";
    char *text = calloc(1, sizeof(begin) + sizeof(end) + (count + 2) / 3 * 4 + count / 48 + 4);
    size_t used = sizeof(begin) - 1;

    ck_assert_ptr_nonnull(text);
    memcpy(text, begin, used);
    for (size_t at = 0; at < count; at += 48) {
        int piece = (int)(count - at < 48 ? count - at : 48);
        used += (size_t)EVP_EncodeBlock((unsigned char *)text + used, bytes + at, piece);
        text[used++] = '\n';
    }
    memcpy(text + used, end + 1, sizeof(end) - 1);
    const char *wrong = read_text(text);
    free(text);
    return wrong;
}

KELP_CASE("certificate", .timeout_s = 120)

KELP_FUZZ_TEST(pem, INPUTS, pem_seeds, pem_words, read_pem)

/* ---- the DER of the seeds ------------------------------------------------------------------- */

static uint8_t worker_der[2048], authority_der[2048];
static struct kelp_fuzz_seed der_seeds[] = {{worker_der, 0}, {authority_der, 0}};

static size_t decode(const char *pem, uint8_t *der)
{
    char base64[2048] = "";
    size_t used = 0;
    const char *end = strstr(pem, "-----END");

    for (const char *at = strchr(pem, '\n') + 1; at < end; at++) {
        if (*at != '\n') {
            base64[used++] = *at;
        }
    }
    int bytes = EVP_DecodeBlock(der, (const unsigned char *)base64, (int)used);
    ck_assert_int_gt(bytes, 3);
    return (size_t)bytes - (base64[used - 1] == '=') - (base64[used - 2] == '=');
}

static void der_setup(void)
{
    der_seeds[0].count = decode(WORKER, worker_der);
    der_seeds[1].count = decode(AUTHORITY, authority_der);
}

KELP_CASE("der", .timeout_s = 120, .setup = der_setup)

KELP_FUZZ_TEST(der, INPUTS, der_seeds, der_words, read_der)

/* ---- the folder ----------------------------------------------------------------------------- */

static struct kelp_test_folder folder;
static const char *const names[] = {KELP_CREDENTIALS_CERTIFICATE, KELP_CREDENTIALS_CA,
                                    KELP_CREDENTIALS_CERTIFICATE, KELP_CREDENTIALS_KEY};
static const char *const good[] = {WORKER, AUTHORITY, WORKER, ONE};

static void write_file(const char *name, const void *bytes, size_t count)
{
    char path[200];

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
    ck_assert_int_eq(chmod(path, 0600), 0);
}

static void folder_setup(void)
{
    kelp_test_folder_init(&folder);
    for (size_t i = 1; i < KELP_ARRAY_COUNT(good); i++) {
        write_file(names[i], good[i], strlen(good[i]));
    }
}

static void folder_teardown(void)
{
    kelp_test_folder_fini(&folder);
}

/* Of a folder that was opened: other files do not change who it is. */
static const char *replace(struct kelp_credentials *credentials)
{
    struct kelp_credential_texts texts;
    struct kelp_error error = {.status = KELP_OK};

    (void)kelp_credentials_refresh(credentials, &error);
    if (strcmp(kelp_credentials_name(credentials)->id, "worker-0") != 0) {
        return "the folder has become somebody else's";
    }
    ck_assert_int_eq(kelp_credentials_take(credentials, &texts, NULL), KELP_OK);
    bool fits = kelp_certificate_fits_key(texts.certificate, texts.key);
    kelp_credential_texts_fini(&texts);
    return fits ? NULL : "a certificate was taken without its key";
}

static const char *read_folder(const uint8_t *bytes, size_t count)
{
    struct kelp_credentials *before = NULL;
    struct kelp_credentials *after = NULL;
    size_t which = count % KELP_ARRAY_COUNT(names);

    ck_assert_int_eq(kelp_credentials_open(folder.path, &before, NULL), KELP_OK);
    write_file(names[which], bytes, count);
    const char *wrong = replace(before);
    if (kelp_credentials_open(folder.path, &after, NULL) == KELP_OK && !wrong) {
        wrong = kelp_credentials_name(after)->job[0] ? NULL : "a folder of nobody was taken";
    }
    kelp_credentials_close(before);
    kelp_credentials_close(after);
    write_file(names[which], good[which], strlen(good[which]));
    return wrong;
}

KELP_CASE("folder", .timeout_s = 120, .setup = folder_setup, .teardown = folder_teardown)

KELP_FUZZ_TEST(files, FILES, pem_seeds, pem_words, read_folder)
