#include "coordinator/etcd/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/files.h"

#define PATH_BYTES 4096
#define REMOVED    ".removed-"
#define DAMAGED    ".damaged-"

/* <run>/checkpoints[/folder[/name]] */
KELP_PRINTF(3, 4)
static kelp_status path_of(const char *run, char path[PATH_BYTES], const char *format, ...)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", run, KELP_CHECKPOINTS_FOLDER);
    if (length < 0 || length >= PATH_BYTES) {
        return KELP_ERR_LIMIT;
    }
    va_list args;
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    int more = vsnprintf(path + length, PATH_BYTES - (size_t)length, format, args);
    va_end(args);
    return more < 0 || more >= PATH_BYTES - length ? KELP_ERR_LIMIT : KELP_OK;
}

static kelp_status too_long(const char *run, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_LIMIT, "%.100s…: the path of the run's folder is too long",
                     run);
}

static kelp_status write_file(const char *run, const char *folder, const char *name,
                              const char *text, struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    if (path_of(run, path, "/%s/%s", folder, name) != KELP_OK) {
        return too_long(run, reterr);
    }
    return kelp_files_write(path, text, strlen(text), reterr);
}

/* Copy the model card from the run's folder, if there is one. */
static kelp_status copy_card(const char *run, const char *folder, struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    char *text = NULL;
    size_t bytes = 0;
    int length = snprintf(path, sizeof(path), "%s/" KELP_MODEL_CARD_FILE, run);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return too_long(run, reterr);
    }
    kelp_status status = kelp_files_read(path, KELP_MODEL_CARD_BYTES_MAX, &text, &bytes, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return KELP_OK;
    }
    if (status == KELP_OK) {
        status = write_file(run, folder, KELP_MODEL_CARD_FILE, text, reterr);
    }
    free(text);
    return status;
}

kelp_status kelp_checkpoint_files_describe(const char *run, const char *folder, const char *spec,
                                           const char *plan, struct kelp_error *reterr)
{
    kelp_status status = write_file(run, folder, "job.yaml", spec, reterr);
    if (status == KELP_OK) {
        status = write_file(run, folder, "plan.json", plan, reterr);
    }
    return status == KELP_OK ? copy_card(run, folder, reterr) : status;
}

kelp_status kelp_checkpoint_files_read(const char *run, const char *folder, const char *name,
                                       char **ret_text, size_t *ret_bytes,
                                       struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    if (path_of(run, path, "/%s/%s", folder, name) != KELP_OK) {
        return too_long(run, reterr);
    }
    return kelp_files_read(path, KELP_MANIFEST_BYTES_MAX, ret_text, ret_bytes, reterr);
}

kelp_status kelp_checkpoint_files_manifest(const char *run, const char *folder, const char *text,
                                           struct kelp_error *reterr)
{
    char *there = NULL;
    size_t bytes = 0;
    kelp_status status =
        kelp_checkpoint_files_read(run, folder, "manifest.json", &there, &bytes, NULL);
    bool same = status == KELP_OK && bytes == strlen(text) && memcmp(there, text, bytes) == 0;
    free(there);
    return same ? KELP_OK : write_file(run, folder, "manifest.json", text, reterr);
}

kelp_status kelp_checkpoint_files_remove(const char *run, const char *folder,
                                         struct kelp_error *reterr)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    if (path_of(run, from, "/%s", folder) != KELP_OK ||
        path_of(run, to, "/%s%s", REMOVED, folder) != KELP_OK) {
        return too_long(run, reterr);
    }
    (void)kelp_files_remove(to, NULL); /* an older one of this name */
    if (rename(from, to) != 0) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "rename", from, reterr);
    }
    return kelp_files_remove(to, reterr);
}

kelp_status kelp_checkpoint_files_set_aside(const char *run, const char *folder,
                                            struct kelp_error *reterr)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    if (path_of(run, from, "/%s", folder) != KELP_OK ||
        path_of(run, to, "/%s%s", DAMAGED, folder) != KELP_OK) {
        return too_long(run, reterr);
    }
    if (rename(from, to) != 0) {
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "rename", from, reterr);
    }
    return kelp_files_sync_above(to, 1, reterr);
}

/* Read the number at *at and move *at behind it. */
static bool read_number(const char **at, int base, uint64_t *ret_number)
{
    const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";
    size_t length = strspn(*at, digits);
    errno = 0;
    unsigned long long number = strtoull(*at, NULL, base);
    *at += length;
    *ret_number = number;
    return length > 0 && errno == 0;
}

bool kelp_checkpoint_folder_parse(const char *name, uint64_t *ret_generation)
{
    uint64_t number = 0;
    const char *at = name + strlen("step-");
    if (strncmp(name, "step-", strlen("step-")) != 0 || !read_number(&at, 10, &number) ||
        strncmp(at, ".g", 2) != 0) {
        return false;
    }
    at += 2;
    if (!read_number(&at, 10, ret_generation)) {
        return false;
    }
    if (*at == '-') {
        at++;
        return read_number(&at, 16, &number) && *at == '\0';
    }
    return *at == '\0';
}

/* ---- listing ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

static kelp_status add_name(struct kelp_checkpoint_names *list, const char *name)
{
    void *names = realloc(list->names, (list->count + 1) * sizeof(*list->names));
    if (!names) {
        return KELP_ERR_NO_MEMORY;
    }
    list->names = names;
    memcpy(list->names[list->count++], name, strlen(name) + 1); /* its length was checked */
    return KELP_OK;
}

static kelp_status visit_entry(const char *path, const char *name,
                               struct kelp_checkpoint_names *list)
{
    char left[PATH_BYTES];
    if (strncmp(name, REMOVED, strlen(REMOVED)) == 0) {
        int length = snprintf(left, sizeof(left), "%s/%s", path, name);
        if (length > 0 && (size_t)length < sizeof(left)) {
            (void)kelp_files_remove(left, NULL); /* otherwise tried again next time */
        }
        return KELP_OK;
    }
    return kelp_folder_name_valid(name) ? add_name(list, name) : KELP_OK;
}

kelp_status kelp_checkpoint_files_list(const char *run, struct kelp_checkpoint_names *ret_names,
                                       struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    struct kelp_checkpoint_names list = {.names = NULL};
    kelp_status status = KELP_OK;
    if (path_of(run, path, "%s", "") != KELP_OK) {
        return too_long(run, reterr);
    }
    DIR *folder = opendir(path);
    if (!folder) {
        *ret_names = list;
        return errno == ENOENT ? KELP_OK : kelp_files_error(errno, "open", path, reterr);
    }
    const struct dirent *entry = NULL;
    while (status == KELP_OK && (entry = readdir(folder)) != NULL) {
        status = visit_entry(path, entry->d_name, &list);
    }
    (void)closedir(folder);
    if (status != KELP_OK) {
        kelp_checkpoint_names_fini(&list);
        return kelp_fail(reterr, status, "no memory for the names in %s", path);
    }
    if (list.count > 1) {
        qsort(list.names, list.count, sizeof(*list.names), compare_names);
    }
    *ret_names = list;
    return KELP_OK;
}

void kelp_checkpoint_names_fini(struct kelp_checkpoint_names *names)
{
    free(names->names);
    *names = (struct kelp_checkpoint_names){.names = NULL};
}
