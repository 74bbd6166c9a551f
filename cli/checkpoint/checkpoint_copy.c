#include "cli/checkpoint/checkpoint_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"

#define PATH_BYTES (KELP_RUN_PATH_MAX + 512)

static kelp_status join(char path[PATH_BYTES], const char *folder, const char *name,
                        struct kelp_error *reterr)
{
    int length = snprintf(path, PATH_BYTES, "%s/%s", folder, name);

    return length >= 0 && length < PATH_BYTES
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "the path of '%s' is too long", name);
}

/* A file or folder of one folder, and of that name in another. */
static kelp_status join_both(const char *from_folder, const char *to_folder, const char *name,
                             char from[PATH_BYTES], char to[PATH_BYTES], struct kelp_error *reterr)
{
    kelp_status status = join(from, from_folder, name, reterr);

    return status == KELP_OK ? join(to, to_folder, name, reterr) : status;
}

static kelp_status copy_file(const char *from_folder, const char *to_folder, const char *name,
                             struct kelp_error *reterr)
{
    char from_path[PATH_BYTES];
    char to_path[PATH_BYTES];

    kelp_status status = join_both(from_folder, to_folder, name, from_path, to_path, reterr);
    if (status != KELP_OK) {
        return status;
    }
    int from = -1;
    status = kelp_files_open(from_path, O_NOFOLLOW, &from, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    int to = open(to_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (to < 0) {
        status = kelp_files_error(errno, "make", to_path, reterr);
    } else {
        status = kelp_files_pour(from, from_path, to, to_path, reterr);
        if (close(to) < 0 && status == KELP_OK) {
            status = kelp_files_error(errno, "close", to_path, reterr);
        }
    }
    (void)close(from);
    return status;
}

/* Its files; a storage has no folders inside. */
static kelp_status copy_storage(const char *from_folder, const char *to_folder, const char *name,
                                struct kelp_error *reterr)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    const struct dirent *entry;

    kelp_status status = join_both(from_folder, to_folder, name, from, to, reterr);
    if (status == KELP_OK) {
        status = kelp_files_make_folder(to, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    DIR *folder = opendir(from);
    if (!folder) {
        return kelp_files_error(errno, "open", from, reterr);
    }
    while (status == KELP_OK && (errno = 0, entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] != '.') {
            status = copy_file(from, to, entry->d_name, reterr);
        }
    }
    if (status == KELP_OK && errno != 0) {
        status = kelp_files_error(errno, "read", from, reterr);
    }
    (void)closedir(folder);
    return status;
}

static kelp_status copy_all(const struct kelp_checkpoint *checkpoint, const char *to,
                            struct kelp_error *reterr)
{
    static const char *const names[] = {"job.yaml", "plan.json", "manifest.json",
                                        KELP_MODEL_CARD_FILE};
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    char card[PATH_BYTES];

    kelp_status status = kelp_files_remove(to, reterr); /* an earlier attempt */
    if (status == KELP_OK) {
        status = kelp_files_make_folder(to, reterr);
    }
    if (status == KELP_OK) {
        status = join(card, checkpoint->path, KELP_MODEL_CARD_FILE, reterr);
    }
    /* The last one may be missing: checkpoints of an earlier Kelp have none. */
    size_t count = KELP_ARRAY_COUNT(names) - (access(card, F_OK) == 0 ? 0 : 1);
    for (size_t i = 0; status == KELP_OK && i < count; i++) {
        status = copy_file(checkpoint->path, to, names[i], reterr);
    }
    for (uint32_t i = 0; status == KELP_OK && i < manifest->storage_count; i++) {
        status = copy_storage(checkpoint->path, to, manifest->storages[i], reterr);
    }
    return status == KELP_OK ? kelp_files_sync_tree(to, reterr) : status;
}

kelp_status kelp_checkpoint_copy(const struct kelp_checkpoint *checkpoint, const char *run_path,
                                 struct kelp_error *reterr)
{
    char name[KELP_FOLDER_NAME_MAX + 64];
    char to[PATH_BYTES];
    char path[PATH_BYTES];

    (void)snprintf(name, sizeof(name), KELP_CHECKPOINTS_FOLDER "/%s", checkpoint->name);
    kelp_status status = join(path, run_path, name, reterr);
    (void)snprintf(name, sizeof(name), KELP_CHECKPOINTS_FOLDER "/.copy-%s", checkpoint->name);
    if (status == KELP_OK) {
        status = join(to, run_path, name, reterr);
    }
    if (status == KELP_OK && access(path, F_OK) == 0) {
        status = kelp_fail(reterr, KELP_ERR_EXISTS,
                           "'%s' exists: the run has that checkpoint already (kelp checkpoint rm "
                           "%s removes it)",
                           path, checkpoint->name);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = copy_all(checkpoint, to, reterr);
    if (status == KELP_OK && rename(to, path) != 0) {
        status = kelp_files_error(errno, "rename", to, reterr);
    }
    if (status == KELP_OK) {
        return kelp_files_sync_above(path, 3, reterr);
    }
    (void)kelp_files_remove(to, NULL); /* the first error is the one to report */
    return status;
}
