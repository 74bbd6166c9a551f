/*
 * The tree under root is built again from the shadow, beside it, and takes its
 * place. Everything by chance is drawn in the order of names, so that a seed means the same in
 * every run that did the same.
 */
#include "tests/lib/disk/power_loss.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "tests/lib/disk/power_record.h"

#define DEPTH_MAX       64
#define FILE_BYTES_MAX  (1u << 30)
#define PAGE_BYTES      4096u
#define PATH_BYTES      ((size_t)2 * KELP_FAULTDISK_PATH_MAX)
#define RECORDS_AT_ONCE 1024

static kelp_status too_long(const char *path, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_LIMIT, "a path under '%s' is longer than %zu bytes", path,
                     PATH_BYTES - 1);
}

static kelp_status join(char ret_path[PATH_BYTES], const char *folder, const char *separator,
                        const char *name, struct kelp_error *reterr)
{
    int length = snprintf(ret_path, PATH_BYTES, "%s%s%s", folder, separator, name);
    return length >= 0 && (size_t)length < PATH_BYTES ? KELP_OK : too_long(folder, reterr);
}

static kelp_status record_error(int error, const char *path, struct kelp_error *reterr)
{
    if (error == EOPNOTSUPP) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "the file system of '%s' does not keep birth times", path);
    }
    return kelp_files_error(error, "record", path, reterr);
}

/* ---- programs that keep a record ----------------------------------------------------------- */

/* The recording library lies in tests/ of the folder that holds the one of the failing disk. */
kelp_status kelp_power_environment(const struct kelp_faultdisk_paths *paths, const char *shadow,
                                   struct kelp_power_environment *ret_environment,
                                   struct kelp_error *reterr)
{
    struct kelp_faultdisk_environment disk;
    char wanted[PATH_BYTES];
    char *found[2] = {NULL, NULL}; /* the library, and the shadow */

    kelp_status status = kelp_faultdisk_environment(paths, &disk, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const char *slash = strrchr(paths->library, '/');
    (void)snprintf(wanted, sizeof(wanted), "%.*s/../tests/kelp-shadowdisk.so",
                   slash ? (int)(slash - paths->library) : 1, slash ? paths->library : ".");
    found[0] = realpath(wanted, NULL);
    found[1] = realpath(shadow, NULL);
    if (!found[0] || !found[1]) {
        status = kelp_files_error(errno, "find", found[0] ? shadow : wanted, reterr);
    } else if (strlen(found[0]) >= KELP_FAULTDISK_PATH_MAX ||
               strlen(found[1]) >= KELP_FAULTDISK_PATH_MAX) {
        status = too_long(found[0], reterr);
    } else {
        struct kelp_power_environment *made = ret_environment;
        (void)snprintf(made->preload, sizeof(made->preload), "%s:%s", disk.preload, found[0]);
        memcpy(made->control, disk.control, sizeof(disk.control));
        memcpy(made->root, disk.root, sizeof(disk.root));
        (void)snprintf(made->shadow, sizeof(made->shadow), KELP_POWER_ENV_SHADOW "=%s", found[1]);
    }
    free(found[0]);
    free(found[1]);
    return status;
}

/* ---- the beginning ------------------------------------------------------------------------- */

static kelp_status record_path(const char *shadow, const char *path, struct kelp_error *reterr)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        return kelp_files_error(errno, "open", path, reterr);
    }
    kelp_status status =
        kelp_power_record(shadow, fd) ? KELP_OK : record_error(errno, path, reterr);
    (void)close(fd); /* it was only read */
    return status;
}

static kelp_status record_tree(const char *shadow, const char *root, struct kelp_error *reterr)
{
    char *copy = strdup(root);
    char *roots[] = {copy, NULL};
    FTS *tree = copy ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (tree == NULL) {
        free(copy);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to record '%s'", root);
    }
    kelp_status status = KELP_OK;
    FTSENT *entry = fts_read(tree);
    for (; entry != NULL && status == KELP_OK; entry = fts_read(tree)) {
        if (entry->fts_info == FTS_D || entry->fts_info == FTS_F) {
            status = record_path(shadow, entry->fts_path, reterr);
        } else if (entry->fts_info == FTS_NS || entry->fts_info == FTS_DNR ||
                   entry->fts_info == FTS_ERR) {
            status = kelp_files_error(entry->fts_errno, "read", entry->fts_path, reterr);
        }
    }
    (void)fts_close(tree); /* it was only read */
    free(copy);
    return status;
}

kelp_status kelp_power_begin(const char *shadow, const char *root, struct kelp_error *reterr)
{
    kelp_status status = kelp_files_remove(shadow, reterr);
    if (status == KELP_OK) {
        status = kelp_files_make_folder(shadow, reterr);
    }
    return status == KELP_OK ? record_tree(shadow, root, reterr) : status;
}

/* ---- what is there now --------------------------------------------------------------------- */

struct place {
    char id[KELP_POWER_ID_BYTES];
    char *path;
};

struct rebuild {
    const char *shadow;
    uint64_t random;      /* state of the generator; 0: nothing is left to chance */
    struct place *places; /* of every inode that is there now, by id */
    size_t place_count;
};

static int compare_places(const void *left, const void *right)
{
    return strcmp(((const struct place *)left)->id, ((const struct place *)right)->id);
}

static const char *find_place(const struct rebuild *rebuild, const char *id)
{
    struct place key;
    (void)snprintf(key.id, sizeof(key.id), "%s", id);
    const struct place *found =
        rebuild->place_count == 0
            ? NULL
            : bsearch(&key, rebuild->places, rebuild->place_count, sizeof(key), compare_places);
    return found ? found->path : NULL;
}

static kelp_status add_place(struct rebuild *rebuild, const char *path, struct kelp_error *reterr)
{
    if (rebuild->place_count % RECORDS_AT_ONCE == 0) {
        struct place *more =
            realloc(rebuild->places, (rebuild->place_count + RECORDS_AT_ONCE) * sizeof(*more));
        if (more == NULL) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to list '%s'", path);
        }
        rebuild->places = more;
    }
    struct place *place = &rebuild->places[rebuild->place_count];
    char type = '?';
    if (!kelp_power_id(AT_FDCWD, path, place->id, &type)) {
        return record_error(errno, path, reterr);
    }
    place->path = strdup(path);
    if (place->path == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to list '%s'", path);
    }
    rebuild->place_count++;
    return KELP_OK;
}

static kelp_status list_places(struct rebuild *rebuild, const char *root, struct kelp_error *reterr)
{
    char *copy = strdup(root);
    char *roots[] = {copy, NULL};
    FTS *tree = copy ? fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    if (tree == NULL) {
        free(copy);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to list '%s'", root);
    }
    kelp_status status = KELP_OK;
    FTSENT *entry = fts_read(tree);
    for (; entry != NULL && status == KELP_OK; entry = fts_read(tree)) {
        if (entry->fts_info == FTS_D || entry->fts_info == FTS_F) {
            status = add_place(rebuild, entry->fts_path, reterr);
        }
    }
    (void)fts_close(tree); /* it was only read */
    free(copy);
    if (rebuild->place_count > 0) {
        qsort(rebuild->places, rebuild->place_count, sizeof(*rebuild->places), compare_places);
    }
    return status;
}

static void free_places(struct rebuild *rebuild)
{
    for (size_t i = 0; i < rebuild->place_count; i++) {
        free(rebuild->places[i].path);
    }
    free(rebuild->places);
}

/* ---- chance -------------------------------------------------------------------------------- */

/* splitmix64 */
static uint64_t draw(struct rebuild *rebuild, uint64_t below)
{
    rebuild->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t value = rebuild->random;
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return (value ^ value >> 31) % below;
}

struct bytes {
    char *data;
    size_t count;
};

/* Each page as it was synced (zero behind the end of that) or as it is now; the length one of both.
 */
static kelp_status mix(struct rebuild *rebuild, const struct bytes *synced, const struct bytes *now,
                       struct bytes *ret_mixed, struct kelp_error *reterr)
{
    size_t count = draw(rebuild, 2) == 0 ? synced->count : now->count;
    char *data = calloc(count + 1, 1);
    if (data == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to mix a file");
    }
    for (size_t at = 0; at < count; at += PAGE_BYTES) {
        const struct bytes *from = draw(rebuild, 2) == 0 ? synced : now;
        if (at < from->count) {
            size_t left = from->count - at < count - at ? from->count - at : count - at;
            memcpy(data + at, from->data + at, left < PAGE_BYTES ? left : PAGE_BYTES);
        }
    }
    *ret_mixed = (struct bytes){.data = data, .count = count};
    return KELP_OK;
}

/* ---- building ------------------------------------------------------------------------------ */

static kelp_status read_or_empty(const char *path, struct bytes *ret_bytes,
                                 struct kelp_error *reterr)
{
    kelp_status status =
        kelp_files_read(path, FILE_BYTES_MAX, &ret_bytes->data, &ret_bytes->count, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        ret_bytes->data = calloc(1, 1);
        ret_bytes->count = 0;
        status = ret_bytes->data
                     ? KELP_OK
                     : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for '%s'", path);
    }
    return status;
}

static kelp_status write_plain(const char *path, const struct bytes *bytes, unsigned mode,
                               struct kelp_error *reterr)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return kelp_files_error(errno, "make", path, reterr);
    }
    kelp_status status = KELP_OK;
    for (size_t at = 0; at < bytes->count && status == KELP_OK;) {
        ssize_t written = write(fd, bytes->data + at, bytes->count - at);
        if (written < 0 && errno != EINTR) {
            status = kelp_files_error(errno, "write", path, reterr);
        }
        at += written > 0 ? (size_t)written : 0;
    }
    if (status == KELP_OK && fchmod(fd, mode) != 0) {
        status = kelp_files_error(errno, "set the mode of", path, reterr);
    }
    if (close(fd) != 0 && status == KELP_OK) {
        status = kelp_files_error(errno, "close", path, reterr);
    }
    return status;
}

static unsigned mode_of(const char *path, unsigned otherwise)
{
    struct stat about;
    return path != NULL && stat(path, &about) == 0 ? about.st_mode & 07777u : otherwise;
}

static kelp_status build_file(struct rebuild *rebuild, const char *id, const char *path,
                              struct kelp_error *reterr)
{
    char record[PATH_BYTES];
    const char *place = find_place(rebuild, id);
    struct bytes synced = {0};
    struct bytes now = {0};
    struct bytes mixed = {0};
    kelp_status status = join(record, rebuild->shadow, "/f.", id, reterr);
    if (status == KELP_OK) {
        status = read_or_empty(record, &synced, reterr);
    }
    bool chance = rebuild->random != 0 && place != NULL;
    if (status == KELP_OK && chance) {
        status = read_or_empty(place, &now, reterr);
    }
    if (status == KELP_OK && chance) {
        status = mix(rebuild, &synced, &now, &mixed, reterr);
    }
    if (status == KELP_OK) {
        status = write_plain(path, chance ? &mixed : &synced, mode_of(place, 0644), reterr);
    }
    free(synced.data);
    free(now.data);
    free(mixed.data);
    return status;
}

struct entry {
    char type;
    char id[KELP_POWER_ID_BYTES];
    const char *name;
    const char *target; /* of a symbolic link */
};

static int compare_entries(const void *left, const void *right)
{
    return strcmp(((const struct entry *)left)->name, ((const struct entry *)right)->name);
}

/* Entries point into list. */
static kelp_status parse_entries(const struct bytes *list, struct entry **ret_entries,
                                 size_t *ret_count, struct kelp_error *reterr)
{
    size_t texts = 0;
    for (size_t i = 0; i < list->count; i++) {
        texts += list->data[i] == '\0' ? 1 : 0;
    }
    struct entry *entries = calloc(texts + 1, sizeof(*entries));
    if (entries == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory to list a folder");
    }
    size_t count = 0;
    const char *end = list->data + list->count;
    for (const char *at = list->data; at < end; count++) {
        struct entry *entry = &entries[count];
        const char *blank = strchr(at, ' ');
        assert(blank != NULL && (size_t)(blank - at) < sizeof(entry->id));
        entry->type = at[0];
        (void)snprintf(entry->id, sizeof(entry->id), "%.*s", (int)(blank - at - 1), at + 1);
        entry->name = blank + 1;
        at = entry->name + strlen(entry->name) + 1;
        if (entry->type == 'l') {
            entry->target = at;
            at += strlen(at) + 1;
        }
    }
    qsort(entries, count, sizeof(*entries), compare_entries);
    *ret_entries = entries;
    *ret_count = count;
    return KELP_OK;
}

/* The list of a folder's entries that the disk holds. Owned. */
static kelp_status choose_list(struct rebuild *rebuild, const char *id, struct bytes *ret_list,
                               struct kelp_error *reterr)
{
    char record[PATH_BYTES];
    const char *place = find_place(rebuild, id);
    kelp_status status = join(record, rebuild->shadow, "/d.", id, reterr);
    if (status == KELP_OK && rebuild->random != 0 && place != NULL && draw(rebuild, 2) == 0) {
        status = record_path(rebuild->shadow, place, reterr);
    }
    return status == KELP_OK ? read_or_empty(record, ret_list, reterr) : status;
}

static kelp_status build_folder(struct rebuild *rebuild, const char *id, const char *path,
                                unsigned depth, struct kelp_error *reterr);

static kelp_status build_entry(struct rebuild *rebuild, const struct entry *entry,
                               const char *folder, unsigned depth, struct kelp_error *reterr)
{
    char path[PATH_BYTES];
    kelp_status status = join(path, folder, "/", entry->name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    switch (entry->type) {
    case 'f':
        return build_file(rebuild, entry->id, path, reterr);
    case 'd':
        return build_folder(rebuild, entry->id, path, depth + 1, reterr);
    case 'l':
        return symlink(entry->target, path) == 0 ? KELP_OK
                                                 : kelp_files_error(errno, "link", path, reterr);
    default: /* sockets and the like do not outlive their programs */
        return KELP_OK;
    }
}

static kelp_status build_folder(struct rebuild *rebuild, const char *id, const char *path,
                                unsigned depth, struct kelp_error *reterr)
{
    struct bytes list = {0};
    struct entry *entries = NULL;
    size_t count = 0;
    if (depth > DEPTH_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "'%s' is more than %d folders deep", path,
                         DEPTH_MAX);
    }
    kelp_status status = KELP_OK;
    if (mkdir(path, 0700) != 0) {
        status = kelp_files_error(errno, "make folder", path, reterr);
    }
    if (status == KELP_OK) {
        status = choose_list(rebuild, id, &list, reterr);
    }
    if (status == KELP_OK) {
        status = parse_entries(&list, &entries, &count, reterr);
    }
    for (size_t i = 0; i < count && status == KELP_OK; i++) {
        status = build_entry(rebuild, &entries[i], path, depth, reterr);
    }
    free(entries);
    free(list.data);
    if (status == KELP_OK && chmod(path, mode_of(find_place(rebuild, id), 0755)) != 0) {
        status = kelp_files_error(errno, "set the mode of", path, reterr);
    }
    return status;
}

/* ---- the whole tree ------------------------------------------------------------------------ */

static kelp_status keep_folders(const char *root, const char *rebuilt,
                                const struct kelp_power_loss *loss, struct kelp_error *reterr)
{
    char from[PATH_BYTES];
    char to[PATH_BYTES];
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < loss->keep_count && status == KELP_OK; i++) {
        status = join(from, root, "/", loss->keep[i], reterr);
        if (status == KELP_OK) {
            status = join(to, rebuilt, "/", loss->keep[i], reterr);
        }
        if (status == KELP_OK) {
            status = kelp_files_remove(to, reterr);
        }
        if (status == KELP_OK && rename(from, to) != 0 && errno != ENOENT) {
            status = kelp_files_error(errno, "keep", from, reterr);
        }
    }
    return status;
}

static kelp_status take_place(const char *root, const char *rebuilt, struct kelp_error *reterr)
{
    if (renameat2(AT_FDCWD, rebuilt, AT_FDCWD, root, RENAME_EXCHANGE) != 0) {
        return kelp_files_error(errno, "exchange", root, reterr);
    }
    return kelp_files_remove(rebuilt, reterr);
}

kelp_status kelp_power_lose(const char *shadow, const char *root,
                            const struct kelp_power_loss *loss, struct kelp_error *reterr)
{
    char rebuilt[PATH_BYTES];
    char id[KELP_POWER_ID_BYTES];
    char type = '?';
    struct rebuild rebuild = {.shadow = shadow, .random = loss->seed};
    kelp_status status = join(rebuilt, root, ".", "rebuilt", reterr);
    if (status == KELP_OK) {
        status = kelp_files_remove(rebuilt, reterr);
    }
    if (status == KELP_OK) {
        status = list_places(&rebuild, root, reterr);
    }
    if (status == KELP_OK && !kelp_power_id(AT_FDCWD, root, id, &type)) {
        status = record_error(errno, root, reterr);
    }
    if (status == KELP_OK) {
        status = build_folder(&rebuild, id, rebuilt, 0, reterr);
    }
    free_places(&rebuild);
    if (status == KELP_OK) {
        status = keep_folders(root, rebuilt, loss, reterr);
    }
    if (status == KELP_OK) {
        status = take_place(root, rebuilt, reterr);
    }
    return status == KELP_OK ? kelp_power_begin(shadow, root, reterr) : status;
}
