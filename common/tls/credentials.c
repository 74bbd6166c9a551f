#include "common/tls/credentials.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/files.h"
#include "common/tls/core_files.h"

enum { CA, CERTIFICATE, KEY, FILES };

static const char *const file_names[FILES] = {KELP_CREDENTIALS_CA, KELP_CREDENTIALS_CERTIFICATE,
                                              KELP_CREDENTIALS_KEY};

#define FILE_PATH_MAX (KELP_CREDENTIALS_PATH_MAX + 16)

/* Shows whether a file was replaced or written. */
struct trace {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec changed;
};

struct set {
    char *texts[FILES];
    struct kelp_certificate certificate, authority;
};

struct kelp_credentials {
    char folder[KELP_CREDENTIALS_PATH_MAX + 1];
    struct kelp_spiffe name;
    pthread_mutex_t lock; /* guards the rest */
    struct set set;
    struct trace traces[FILES]; /* of the files read last, accepted or not */
    bool hidden;                /* the files could not be examined last time */
    uint64_t version;
};

static void wipe(char *text)
{
    if (text) {
        OPENSSL_cleanse(text, strlen(text));
        free(text);
    }
}

static void set_fini(struct set *set)
{
    for (int i = 0; i < FILES; i++) {
        wipe(set->texts[i]);
        set->texts[i] = NULL;
    }
}

/* ---- reading ---- */

static void file_path(const char *folder, int file, char path[FILE_PATH_MAX])
{
    (void)snprintf(path, FILE_PATH_MAX, "%s/%s", folder, file_names[file]);
}

/* Root's keys may be readable by a group, as PostgreSQL allows. */
static bool is_private(const struct stat *info)
{
    mode_t others = info->st_uid == 0 ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    return (info->st_mode & others) == 0;
}

static kelp_status look(const char *folder, struct trace traces[FILES], struct kelp_error *reterr)
{
    char path[FILE_PATH_MAX];
    struct stat info;

    for (int i = 0; i < FILES; i++) {
        file_path(folder, i, path);
        if (stat(path, &info) != 0) {
            return kelp_files_error(errno, "look at", path, reterr);
        }
        if (!S_ISREG(info.st_mode)) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "'%s' is not a file", path);
        }
        if (i == KEY && !is_private(&info)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "others may read the key '%s' (mode %04o): chmod 600 it", path,
                             (unsigned)(info.st_mode & 07777));
        }
        traces[i] = (struct trace){.device = info.st_dev,
                                   .inode = info.st_ino,
                                   .bytes = info.st_size,
                                   .changed = info.st_mtim};
    }
    return KELP_OK;
}

static bool same_traces(const struct trace *a, const struct trace *b)
{
    for (int i = 0; i < FILES; i++) {
        if (a[i].device != b[i].device || a[i].inode != b[i].inode || a[i].bytes != b[i].bytes ||
            a[i].changed.tv_sec != b[i].changed.tv_sec ||
            a[i].changed.tv_nsec != b[i].changed.tv_nsec) {
            return false;
        }
    }
    return true;
}

static kelp_status read_texts(const char *folder, struct set *set, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    char path[FILE_PATH_MAX];

    for (int i = 0; i < FILES && status == KELP_OK; i++) {
        size_t count = 0;
        file_path(folder, i, path);
        status = kelp_files_read(path, KELP_CREDENTIALS_FILE_MAX, &set->texts[i], &count, reterr);
    }
    return status;
}

static kelp_status check(const char *folder, struct set *set, struct kelp_error *reterr)
{
    kelp_status status = kelp_certificate_read(set->texts[CA], &set->authority, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s/%s", folder, file_names[CA]);
        return status;
    }
    status = kelp_certificate_read(set->texts[CERTIFICATE], &set->certificate, reterr);
    if (status == KELP_OK && !set->certificate.has_name) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "it has no name spiffe://kelp/JOB/ROLE[/ID]; kelp certs issue makes one "
                           "that has");
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s/%s", folder, file_names[CERTIFICATE]);
        return status;
    }
    if (!kelp_certificate_fits_key(set->texts[CERTIFICATE], set->texts[KEY])) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s/%s is not the key of %s", folder,
                         file_names[KEY], file_names[CERTIFICATE]);
    }
    return KELP_OK;
}

static kelp_status read_set(const char *folder, struct set *ret_set, struct kelp_error *reterr)
{
    struct set set = {.texts = {NULL}};

    kelp_status status = read_texts(folder, &set, reterr);
    if (status == KELP_OK) {
        status = check(folder, &set, reterr);
    }
    if (status != KELP_OK) {
        set_fini(&set);
        return status;
    }
    *ret_set = set;
    return KELP_OK;
}

/* ---- for others ---- */

kelp_status kelp_credentials_open(const char *folder, struct kelp_credentials **ret_credentials,
                                  struct kelp_error *reterr)
{
    if (strlen(folder) > KELP_CREDENTIALS_PATH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of the certificates is over %d bytes",
                         KELP_CREDENTIALS_PATH_MAX);
    }
    struct kelp_credentials *credentials = calloc(1, sizeof(*credentials));
    if (!credentials) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)snprintf(credentials->folder, sizeof(credentials->folder), "%s", folder);
    kelp_core_files_forbid();
    kelp_status status = look(folder, credentials->traces, reterr);
    if (status == KELP_OK) {
        status = read_set(folder, &credentials->set, reterr);
    }
    if (status != KELP_OK) {
        free(credentials);
        return status;
    }
    credentials->name = credentials->set.certificate.name;
    credentials->version = 1;
    (void)pthread_mutex_init(&credentials->lock, NULL);
    *ret_credentials = credentials;
    return KELP_OK;
}

void kelp_credentials_close(struct kelp_credentials *credentials)
{
    if (credentials) {
        set_fini(&credentials->set);
        (void)pthread_mutex_destroy(&credentials->lock);
        free(credentials);
    }
}

const struct kelp_spiffe *kelp_credentials_name(const struct kelp_credentials *credentials)
{
    return &credentials->name;
}

const char *kelp_credentials_folder(const struct kelp_credentials *credentials)
{
    return credentials ? credentials->folder : NULL;
}

void kelp_credentials_certificates(struct kelp_credentials *credentials,
                                   struct kelp_certificate *ret_own,
                                   struct kelp_certificate *ret_authority)
{
    (void)pthread_mutex_lock(&credentials->lock);
    *ret_own = credentials->set.certificate;
    *ret_authority = credentials->set.authority;
    (void)pthread_mutex_unlock(&credentials->lock);
}

static kelp_status take_new(struct kelp_credentials *credentials, struct kelp_error *reterr)
{
    struct set set;

    kelp_status status = read_set(credentials->folder, &set, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_spiffe *name = &set.certificate.name;
    if (name->role != credentials->name.role || strcmp(name->job, credentials->name.job) != 0 ||
        strcmp(name->id, credentials->name.id) != 0) {
        char text[KELP_SPIFFE_MAX + 1];
        kelp_spiffe_print(name, text);
        set_fini(&set);
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s/%s has another name now: %s",
                         credentials->folder, file_names[CERTIFICATE], text);
    }
    set_fini(&credentials->set);
    credentials->set = set;
    credentials->version++;
    return KELP_OK;
}

uint64_t kelp_credentials_refresh(struct kelp_credentials *credentials, struct kelp_error *reterr)
{
    struct trace traces[FILES] = {{.inode = 0}};
    struct kelp_error error = {.status = KELP_OK};

    (void)pthread_mutex_lock(&credentials->lock);
    if (look(credentials->folder, traces, &error) != KELP_OK) {
        error.status = credentials->hidden ? KELP_OK : error.status;
        credentials->hidden = true;
    } else {
        credentials->hidden = false;
        if (!same_traces(traces, credentials->traces)) {
            memcpy(credentials->traces, traces, sizeof(traces));
            error.status = take_new(credentials, &error);
        }
    }
    uint64_t version = credentials->version;
    (void)pthread_mutex_unlock(&credentials->lock);
    if (reterr) {
        *reterr = error;
    }
    return version;
}

kelp_status kelp_credentials_take(struct kelp_credentials *credentials,
                                  struct kelp_credential_texts *ret_texts,
                                  struct kelp_error *reterr)
{
    (void)pthread_mutex_lock(&credentials->lock);
    struct kelp_credential_texts texts = {
        .ca = strdup(credentials->set.texts[CA]),
        .certificate = strdup(credentials->set.texts[CERTIFICATE]),
        .key = strdup(credentials->set.texts[KEY]),
        .until_s = credentials->set.certificate.until_s,
    };
    (void)pthread_mutex_unlock(&credentials->lock);
    if (!texts.ca || !texts.certificate || !texts.key) {
        kelp_credential_texts_fini(&texts);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_texts = texts;
    return KELP_OK;
}

void kelp_credential_texts_fini(struct kelp_credential_texts *texts)
{
    wipe(texts->ca);
    wipe(texts->certificate);
    wipe(texts->key);
    *texts = (struct kelp_credential_texts){.ca = NULL};
}
