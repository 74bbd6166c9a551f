#include "ps/storage/snapshot_contents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/text.h"
#include "ps/core/limits.h"

#define CONTENTS_NAME "CONTENTS"
#define HEAD_LINE     "kelp snapshot 1\n"
#define STATE_LINE    "state generation=%" PRIu64 " step=%" PRIu64 "\n"
#define FILE_LINE     "file %s bytes=%" PRIu64 " end=%016" PRIx64 "\n"
/* How many bytes at the end of a file are digested: more than footer, properties and index of a
 * sorted file of KELP_PS_SNAPSHOT_FILE_BYTES; other files are digested whole. */
#define END_BYTES (64u << 10)

static kelp_status damaged(const char *folder, const char *why, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_CORRUPT, "'%s/%s' is damaged: %s", folder, CONTENTS_NAME,
                     why);
}

static kelp_status path_of(const char *folder, const char *name, char **ret_path,
                           struct kelp_error *reterr)
{
    if (asprintf(ret_path, "%s/%s", folder, name) < 0) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a path in '%s'", folder);
    }
    return KELP_OK;
}

/* ---- one file's end ---- */

static kelp_status digest_fd(int fd, const char *path, uint64_t *ret_bytes, uint64_t *ret_end,
                             struct kelp_error *reterr)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    uint64_t bytes = (uint64_t)about.st_size;
    size_t count = bytes < END_BYTES ? (size_t)bytes : END_BYTES;
    char *end = malloc(END_BYTES);
    if (!end) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to read '%s'", path);
    }
    kelp_status status = KELP_OK;
    for (size_t at = 0; at < count && status == KELP_OK;) {
        ssize_t got = pread(fd, end + at, count - at, (off_t)(bytes - count + at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            status = kelp_files_error(got < 0 ? errno : EIO, "read", path, reterr);
        }
        at += got > 0 ? (size_t)got : 0;
    }
    if (status == KELP_OK) {
        *ret_bytes = bytes;
        *ret_end = kelp_digest_bytes(end, count);
    }
    free(end);
    return status;
}

static kelp_status describe(const char *path, bool sync, uint64_t *ret_bytes, uint64_t *ret_end,
                            struct kelp_error *reterr)
{
    int fd = -1;
    kelp_status status = kelp_files_open(path, 0, &fd, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (sync && fsync(fd) != 0) {
        status = kelp_files_error(errno, "sync", path, reterr);
    }
    if (status == KELP_OK) {
        status = digest_fd(fd, path, ret_bytes, ret_end, reterr);
    }
    (void)close(fd); /* opened for reading only */
    return status;
}

/* ---- writing ---- */

static kelp_status print_file(FILE *out, const char *folder, const char *name,
                              struct kelp_error *reterr)
{
    char *path = NULL;
    uint64_t bytes = 0;
    uint64_t end = 0;
    kelp_status status = path_of(folder, name, &path, reterr);
    if (status == KELP_OK) {
        status = describe(path, true, &bytes, &end, reterr);
    }
    if (status == KELP_OK) {
        (void)fprintf(out, FILE_LINE, name, bytes, end);
    }
    free(path);
    return status;
}

static kelp_status print_files(FILE *out, const char *folder, struct kelp_error *reterr)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, NULL, alphasort);
    if (count < 0) {
        return kelp_files_error(errno, "list", folder, reterr);
    }
    kelp_status status = KELP_OK;
    for (int i = 0; i < count; i++) {
        if (status == KELP_OK && entries[i]->d_name[0] != '.') {
            status = print_file(out, folder, entries[i]->d_name, reterr);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static kelp_status write_text(const char *folder, const char *list, size_t list_bytes,
                              struct kelp_error *reterr)
{
    char *path = NULL;
    char *text = NULL;
    kelp_status status = path_of(folder, CONTENTS_NAME, &path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    int length =
        asprintf(&text, "%ssum %016" PRIx64 "\n", list, kelp_digest_bytes(list, list_bytes));
    if (length < 0) {
        free(path);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the contents of '%s'", folder);
    }
    status = kelp_files_write(path, text, (size_t)length, reterr);
    free(text);
    free(path);
    return status;
}

kelp_status kelp__snapshot_contents_write(const char *folder, const struct kelp_snapshot_id *id,
                                          struct kelp_error *reterr)
{
    struct kelp_text text;
    char *list = NULL;
    size_t list_bytes = 0;
    kelp_status status = kelp_text_open(&text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    (void)fprintf(text.out, HEAD_LINE STATE_LINE, id->generation, id->step);
    status = print_files(text.out, folder, reterr);
    if (status != KELP_OK) {
        kelp_text_discard(&text);
        return status;
    }
    status = kelp_text_close(&text, &list, &list_bytes, reterr);
    if (status == KELP_OK) {
        status = write_text(folder, list, list_bytes, reterr);
        free(list);
    }
    return status;
}

/* ---- checking ---- */

struct file {
    char name[64];
    uint64_t bytes;
    uint64_t end;
};

/* Accept a line only if printing what was parsed gives the same line. */
static bool parse_file(const char *line, size_t length, struct file *ret_file)
{
    struct file file;
    char again[160];
    /* NOLINTNEXTLINE(cert-err34-c): compared below */
    int found = sscanf(line, "file %63[A-Za-z0-9._-] bytes=%" SCNu64 " end=%" SCNx64, file.name,
                       &file.bytes, &file.end);
    if (found != 3 || file.name[0] == '.') {
        return false;
    }
    int printed = snprintf(again, sizeof(again), FILE_LINE, file.name, file.bytes, file.end);
    if ((size_t)printed != length || memcmp(again, line, length) != 0) {
        return false;
    }
    *ret_file = file;
    return true;
}

static kelp_status check_file(const char *folder, const struct file *file,
                              struct kelp_error *reterr)
{
    uint64_t bytes = 0;
    uint64_t end = 0;
    char *path = NULL;
    kelp_status status = path_of(folder, file->name, &path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = describe(path, false, &bytes, &end, reterr);
    if (status != KELP_OK) {
        goto release;
    }
    if (bytes != file->bytes) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "'%s' is damaged: it has %" PRIu64 " bytes, %" PRIu64 " were written",
                           path, bytes, file->bytes);
        goto release;
    }
    if (end != file->end) {
        status = kelp_fail(reterr, KELP_ERR_CORRUPT,
                           "'%s' is damaged: its end has digest %016" PRIx64 ", %016" PRIx64
                           " was written",
                           path, end, file->end);
    }

release:
    free(path);
    return status;
}

/* Check the sum in the last line and cut that line off. */
static bool sum_right(char *text, size_t count)
{
    static const size_t sum_bytes = sizeof("sum 0123456789abcdef\n") - 1;
    char sum[32];
    if (count < sum_bytes || strlen(text) != count) {
        return false;
    }
    (void)snprintf(sum, sizeof(sum), "sum %016" PRIx64 "\n",
                   kelp_digest_bytes(text, count - sum_bytes));
    bool right = strcmp(text + count - sum_bytes, sum) == 0;
    text[count - sum_bytes] = '\0';
    return right;
}

/* Explain that the folder holds another state than `id`. */
static kelp_status other_head(const char *folder, const struct kelp_snapshot_id *id,
                              const char *text, struct kelp_error *reterr)
{
    struct kelp_snapshot_id held = {0};
    /* NOLINTNEXTLINE(cert-err34-c): only for an error text, and the digest was right */
    if (sscanf(text, HEAD_LINE "state generation=%" SCNu64 " step=%" SCNu64, &held.generation,
               &held.step) != 2 ||
        (held.generation == id->generation && held.step == id->step)) {
        return damaged(folder, "not of this format", reterr);
    }
    return kelp_fail(reterr, KELP_ERR_CORRUPT,
                     "'%s' holds step %" PRIu64 " of generation %" PRIu64 ", not step %" PRIu64
                     " of generation %" PRIu64,
                     folder, held.step, held.generation, id->step, id->generation);
}

static kelp_status check_text(const char *folder, const struct kelp_snapshot_id *id, char *text,
                              size_t count, struct kelp_error *reterr)
{
    char head[128];
    if (!sum_right(text, count)) {
        return damaged(folder, "its sum is another one", reterr);
    }
    int length = snprintf(head, sizeof(head), HEAD_LINE STATE_LINE, id->generation, id->step);
    if (strncmp(text, head, (size_t)length) != 0) {
        return other_head(folder, id, text, reterr);
    }
    kelp_status status = KELP_OK;
    for (const char *line = text + length; *line != '\0' && status == KELP_OK;) {
        struct file file;
        size_t bytes = strcspn(line, "\n") + 1;
        if (line[bytes - 1] != '\n' || !parse_file(line, bytes, &file)) {
            return damaged(folder, "a line is not of this format", reterr);
        }
        status = check_file(folder, &file, reterr);
        line += bytes;
    }
    return status;
}

kelp_status kelp__snapshot_contents_check(const char *folder, const struct kelp_snapshot_id *id,
                                          struct kelp_error *reterr)
{
    char *path = NULL;
    char *text = NULL;
    size_t count = 0;
    kelp_status status = path_of(folder, CONTENTS_NAME, &path, reterr);
    if (status == KELP_OK) {
        status = kelp_files_read(path, KELP_PS_SNAPSHOT_CONTENTS_MAX, &text, &count, reterr);
        free(path);
    }
    if (status == KELP_OK) {
        status = check_text(folder, id, text, count, reterr);
        free(text);
    }
    return status == KELP_ERR_LIMIT ? damaged(folder, "it is too long", reterr) : status;
}
