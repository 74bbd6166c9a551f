#include "common/tls/authority.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/tls/core_files.h"
#include "common/tls/credentials.h"

#define CA_NAME      "ca.pem"
#define CA_KEY_NAME  "ca-key.pem"
#define PATH_BYTES   (KELP_AUTHORITY_PATH_MAX + 32)
#define SERIAL_BYTES 16
#define ALT_BYTES    (KELP_AUTHORITY_HOSTS_MAX * (KELP_AUTHORITY_HOST_MAX + 8) + KELP_SPIFFE_MAX + 64)

static kelp_status openssl_failed(struct kelp_error *reterr, const char *what)
{
    char text[200];

    ERR_error_string_n(ERR_get_error(), text, sizeof(text));
    ERR_clear_error();
    return kelp_fail(reterr, KELP_ERR_INTERNAL, "cannot %s: OpenSSL says %s", what, text);
}

/* ---- files ---- */

static kelp_status check_path(const char *folder, struct kelp_error *reterr)
{
    return folder[0] != '\0' && strlen(folder) <= KELP_AUTHORITY_PATH_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID, "a folder's path has 1 to %d bytes",
                           KELP_AUTHORITY_PATH_MAX);
}

static void path_in(const char *folder, const char *name, char path[PATH_BYTES])
{
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder, name);
}

/* Make the folder so that only its owner can open it, and missing folders above it. */
static kelp_status make_private_folder(const char *folder, struct kelp_error *reterr)
{
    char above[PATH_BYTES];
    struct stat info;

    if (stat(folder, &info) == 0) {
        return KELP_OK;
    }
    (void)snprintf(above, sizeof(above), "%s", folder);
    kelp_status status = kelp_files_make_folder(dirname(above), reterr);
    if (status == KELP_OK && mkdir(folder, 0700) != 0 && errno != EEXIST) {
        status = kelp_files_error(errno, "make folder", folder, reterr);
    }
    return status;
}

/* Where files are written. */
struct place {
    const char *folder;
    bool unsynced;
};

/* Replace a file atomically; it has that mode before anything is written. */
static kelp_status write_file(const struct place *place, const char *name, mode_t mode, BIO *from,
                              struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    char beside[PATH_BYTES + 8];
    char *bytes = NULL;
    long count = BIO_get_mem_data(from, &bytes);

    path_in(place->folder, name, path);
    (void)snprintf(beside, sizeof(beside), "%s.new", path);
    (void)unlink(beside);
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) {
        return kelp_files_error(errno, "make", beside, reterr);
    }
    bool wrote =
        kelp_files_write_all(fd, bytes, (size_t)count) && (place->unsynced || fsync(fd) == 0);
    int error = errno;
    if (close(fd) != 0 || !wrote) {
        (void)unlink(beside);
        return kelp_files_error(error, "write", beside, reterr);
    }
    if (rename(beside, path) != 0) {
        return kelp_files_error(errno, "rename", beside, reterr);
    }
    return place->unsynced ? KELP_OK : kelp_files_sync(place->folder, reterr);
}

/* ---- certificates ---- */

struct pair {
    EVP_PKEY *key;
    X509 *certificate;
};

struct kelp_authority {
    struct pair pair;
};

static void pair_fini(struct pair *pair)
{
    EVP_PKEY_free(pair->key);
    X509_free(pair->certificate);
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;

    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509V3_set_ctx_nodb(&context);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool added = extension && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_serial(X509 *certificate)
{
    unsigned char bytes[SERIAL_BYTES];

    if (RAND_bytes(bytes, sizeof(bytes)) != 1) {
        return false;
    }
    bytes[0] = (unsigned char)((bytes[0] & 0x7f) | 0x40); /* positive, and of full length */
    BIGNUM *number = BN_bin2bn(bytes, sizeof(bytes), NULL);
    bool set = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return set;
}

/* Everything but names and purposes; the subject is "O=kelp", and a common name if there is one. */
static bool begin(struct pair *pair, const char *common_name, int64_t from_s, int64_t until_s)
{
    kelp_core_files_forbid();
    pair->key = EVP_EC_gen("P-256");
    pair->certificate = X509_new();
    if (!pair->key || !pair->certificate) {
        return false;
    }
    X509_NAME *subject = X509_get_subject_name(pair->certificate);
    time_t from = (time_t)from_s;
    time_t until = (time_t)until_s;
    return X509_set_version(pair->certificate, X509_VERSION_3) == 1 &&
           set_serial(pair->certificate) &&
           ASN1_TIME_set(X509_getm_notBefore(pair->certificate), from) != NULL &&
           ASN1_TIME_set(X509_getm_notAfter(pair->certificate), until) != NULL &&
           X509_set_pubkey(pair->certificate, pair->key) == 1 &&
           X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)"kelp", -1,
                                      -1, 0) == 1 &&
           (!common_name ||
            X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                       (const unsigned char *)common_name, -1, -1, 0) == 1);
}

static bool finish(struct pair *pair, X509 *issuer, EVP_PKEY *issuer_key)
{
    return X509_set_issuer_name(pair->certificate, X509_get_subject_name(issuer)) == 1 &&
           add_extension(pair->certificate, issuer, NID_subject_key_identifier, "hash") &&
           add_extension(pair->certificate, issuer, NID_authority_key_identifier, "keyid") &&
           X509_sign(pair->certificate, issuer_key, EVP_sha256()) > 0;
}

static kelp_status write_certificate(const struct place *place, const char *name, X509 *certificate,
                                     struct kelp_error *reterr)
{
    BIO *out = BIO_new(BIO_s_mem());
    kelp_status status = out && PEM_write_bio_X509(out, certificate) == 1
                             ? write_file(place, name, 0644, out, reterr)
                             : openssl_failed(reterr, "print a certificate");
    BIO_free(out);
    return status;
}

static kelp_status write_key(const struct place *place, const char *name, EVP_PKEY *key,
                             struct kelp_error *reterr)
{
    BIO *out = BIO_new(BIO_s_secmem());
    kelp_status status =
        out && PEM_write_bio_PKCS8PrivateKey(out, key, NULL, NULL, 0, NULL, NULL) == 1
            ? write_file(place, name, 0600, out, reterr)
            : openssl_failed(reterr, "print a key");
    BIO_free(out);
    return status;
}

/* ---- the authority ---- */

static kelp_status check_folder(const char *folder, struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    struct stat info;

    path_in(folder, CA_KEY_NAME, path);
    if (stat(path, &info) == 0) {
        return kelp_fail(reterr, KELP_ERR_EXISTS,
                         "'%s' is an authority already; a new one would refuse what it issued",
                         folder);
    }
    if (stat(folder, &info) != 0) {
        return kelp_files_error(errno, "look at", folder, reterr);
    }
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "others may enter '%s' (mode %04o): chmod 700 it", folder,
                         (unsigned)(info.st_mode & 07777));
    }
    return KELP_OK;
}

/* pair is to be freed, also after an error. */
static kelp_status make_authority(struct pair *pair, int64_t from_s, int64_t until_s,
                                  struct kelp_error *reterr)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "kelp authority of %lld", (long long)from_s);
    if (!begin(pair, name, from_s, until_s) ||
        !add_extension(pair->certificate, pair->certificate, NID_basic_constraints,
                       "critical,CA:TRUE,pathlen:0") ||
        !add_extension(pair->certificate, pair->certificate, NID_key_usage,
                       "critical,keyCertSign,cRLSign") ||
        !finish(pair, pair->certificate, pair->key)) {
        return openssl_failed(reterr, "make an authority");
    }
    return KELP_OK;
}

kelp_status kelp_authority_init(const char *folder, int64_t from_s, int64_t until_s,
                                struct kelp_error *reterr)
{
    const struct place place = {.folder = folder};
    struct pair pair = {.key = NULL};

    kelp_status status = check_path(folder, reterr);
    if (status == KELP_OK) {
        status = make_private_folder(folder, reterr);
    }
    if (status == KELP_OK) {
        status = check_folder(folder, reterr);
    }
    if (status == KELP_OK) {
        status = make_authority(&pair, from_s, until_s, reterr);
    }
    if (status == KELP_OK) {
        status = write_key(&place, CA_KEY_NAME, pair.key, reterr);
    }
    if (status == KELP_OK) {
        status = write_certificate(&place, CA_NAME, pair.certificate, reterr);
    }
    pair_fini(&pair);
    return status;
}

kelp_status kelp_authority_create(int64_t from_s, int64_t until_s,
                                  struct kelp_authority **ret_authority, struct kelp_error *reterr)
{
    struct kelp_authority *authority = calloc(1, sizeof(*authority));

    if (!authority) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = make_authority(&authority->pair, from_s, until_s, reterr);
    if (status != KELP_OK) {
        kelp_authority_destroy(authority);
        return status;
    }
    *ret_authority = authority;
    return KELP_OK;
}

void kelp_authority_destroy(struct kelp_authority *authority)
{
    if (authority) {
        pair_fini(&authority->pair);
        free(authority);
    }
}

static kelp_status check_key_mode(const char *path, struct kelp_error *reterr)
{
    struct stat info;

    if (stat(path, &info) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    return (info.st_mode & (S_IRWXG | S_IRWXO)) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "others may read the authority's key '%s' (mode %04o): chmod 600 it",
                           path, (unsigned)(info.st_mode & 07777));
}

static kelp_status open_authority(const char *folder, struct pair *ret_pair,
                                  struct kelp_error *reterr)
{
    char key_path[PATH_BYTES];
    char path[PATH_BYTES];
    struct pair pair = {.key = NULL};

    path_in(folder, CA_KEY_NAME, key_path);
    path_in(folder, CA_NAME, path);
    if (access(key_path, F_OK) != 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "'%s' is not an authority; kelp certs init makes one", folder);
    }
    kelp_status status = check_key_mode(key_path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    kelp_core_files_forbid();
    BIO *in = BIO_new_file(path, "r");
    BIO *key_in = BIO_new_file(key_path, "r");
    pair.certificate = in ? PEM_read_bio_X509(in, NULL, NULL, NULL) : NULL;
    pair.key = key_in ? PEM_read_bio_PrivateKey(key_in, NULL, NULL, (void *)"") : NULL;
    BIO_free(in);
    BIO_free(key_in);
    if (!pair.certificate || !pair.key || X509_check_private_key(pair.certificate, pair.key) != 1) {
        pair_fini(&pair);
        ERR_clear_error();
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "'%s' and '%s' are not a certificate and its key", path, key_path);
    }
    *ret_pair = pair;
    return KELP_OK;
}

/* ---- names ---- */

static bool is_host_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '-' || byte == '.' || byte == '_';
}

/* Check that nothing in a host can end its entry in the list that OpenSSL reads. */
static kelp_status add_host(char *list, const char *host, struct kelp_error *reterr)
{
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(host);
    size_t length = strlen(host);
    size_t used = strlen(list);
    bool good = length > 0 && length <= KELP_AUTHORITY_HOST_MAX;

    ASN1_OCTET_STRING_free(address);
    ERR_clear_error();
    for (size_t i = 0; i < length && !address; i++) {
        good = good && is_host_byte(host[i]);
    }
    if (!good) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--host '%.100s' is neither a DNS name nor an address", host);
    }
    (void)snprintf(list + used, ALT_BYTES - used, ",%s:%s", address ? "IP" : "DNS", host);
    return KELP_OK;
}

static bool serves(enum kelp_role role)
{
    return role != KELP_ROLE_OPERATOR && role != KELP_ROLE_READER; /* a worker: its figures */
}

static kelp_status list_names(const struct kelp_authority_request *request, char list[ALT_BYTES],
                              struct kelp_error *reterr)
{
    char name[KELP_SPIFFE_MAX + 1];
    char host[KELP_ROLE_HOST_MAX + 1];
    kelp_status status = KELP_OK;

    kelp_spiffe_print(&request->name, name);
    (void)snprintf(list, ALT_BYTES, "URI:%s", name);
    if (serves(request->name.role)) {
        kelp_role_host(request->name.role, host);
        status = add_host(list, host, reterr);
    }
    for (size_t i = 0; i < request->host_count && status == KELP_OK; i++) {
        status = add_host(list, request->hosts[i], reterr);
    }
    return status;
}

static kelp_status sign(const struct kelp_authority_request *request, const struct pair *authority,
                        struct pair *pair, struct kelp_error *reterr)
{
    char *names = calloc(1, ALT_BYTES);
    kelp_status status = names ? list_names(request, names, reterr)
                               : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    if (status == KELP_OK &&
        (!begin(pair, NULL, request->from_s, request->until_s) ||
         !add_extension(pair->certificate, authority->certificate, NID_basic_constraints,
                        "critical,CA:FALSE") ||
         !add_extension(pair->certificate, authority->certificate, NID_key_usage,
                        "critical,digitalSignature") ||
         !add_extension(pair->certificate, authority->certificate, NID_ext_key_usage,
                        serves(request->name.role) ? "serverAuth,clientAuth" : "clientAuth") ||
         !add_extension(pair->certificate, authority->certificate, NID_subject_alt_name, names) ||
         !finish(pair, authority->certificate, authority->key))) {
        status = openssl_failed(reterr, "make a certificate");
    }
    free(names);
    return status;
}

/* Write the key, the certificate, and the authority's certificate. */
static kelp_status write_all(const struct kelp_authority_request *request, const struct pair *pair,
                             X509 *authority, struct kelp_error *reterr)
{
    const struct place place = {.folder = request->out, .unsynced = request->unsynced};

    kelp_status status = make_private_folder(request->out, reterr);
    if (status == KELP_OK) {
        status = write_key(&place, KELP_CREDENTIALS_KEY, pair->key, reterr);
    }
    if (status == KELP_OK) {
        status = write_certificate(&place, KELP_CREDENTIALS_CERTIFICATE, pair->certificate, reterr);
    }
    return status == KELP_OK ? write_certificate(&place, KELP_CREDENTIALS_CA, authority, reterr)
                             : status;
}

static kelp_status issue(const struct kelp_authority_request *request, const struct pair *authority,
                         struct kelp_error *reterr)
{
    struct pair pair = {.key = NULL};
    time_t until = (time_t)request->until_s;

    if (X509_cmp_time(X509_get0_notAfter(authority->certificate), &until) < 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the authority '%s' ends before that; give fewer --days",
                         request->authority ? request->authority : "in memory");
    }
    kelp_status status = sign(request, authority, &pair, reterr);
    if (status == KELP_OK) {
        status = write_all(request, &pair, authority->certificate, reterr);
    }
    pair_fini(&pair);
    return status;
}

kelp_status kelp_authority_issue(const struct kelp_authority_request *request,
                                 struct kelp_error *reterr)
{
    struct pair authority = {.key = NULL};

    kelp_status status = check_path(request->authority, reterr);
    if (status == KELP_OK) {
        status = check_path(request->out, reterr);
    }
    if (status == KELP_OK) {
        status = open_authority(request->authority, &authority, reterr);
    }
    if (status == KELP_OK) {
        status = issue(request, &authority, reterr);
        pair_fini(&authority);
    }
    return status;
}

kelp_status kelp_authority_sign(const struct kelp_authority *authority,
                                const struct kelp_authority_request *request,
                                struct kelp_error *reterr)
{
    kelp_status status = check_path(request->out, reterr);

    return status == KELP_OK ? issue(request, &authority->pair, reterr) : status;
}
