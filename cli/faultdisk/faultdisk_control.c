/* Steering kelp-faultdisk.so: its control file, and the environment of programs under it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/faultdisk/faultdisk_internal.h"
#include "common/base/files.h"

struct kelp_faultdisk {
    struct kelp_faultdisk_control *control;
};

/* A new file is filled with zeros first, so that another program never maps less. */
static kelp_status map_control(int fd, const char *path,
                               struct kelp_faultdisk_control **ret_control,
                               struct kelp_error *reterr)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return kelp_files_error(errno, "look at", path, reterr);
    }
    if (about.st_size != 0 && about.st_size != (off_t)sizeof(**ret_control)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "'%s' is not a control file of kelp-faultdisk",
                         path);
    }
    if (about.st_size == 0 && ftruncate(fd, (off_t)sizeof(**ret_control)) != 0) {
        return kelp_files_error(errno, "make", path, reterr);
    }
    void *memory = mmap(NULL, sizeof(**ret_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return kelp_files_error(errno, "map", path, reterr);
    }
    struct kelp_faultdisk_control *control = memory;
    if (about.st_size == 0) {
        control->magic = KELP_FAULTDISK_MAGIC;
    }
    if (control->magic != KELP_FAULTDISK_MAGIC) {
        (void)munmap(memory, sizeof(**ret_control));
        return kelp_fail(reterr, KELP_ERR_FORMAT, "'%s' is not a control file of kelp-faultdisk",
                         path);
    }
    *ret_control = control;
    return KELP_OK;
}

kelp_status kelp_faultdisk_open(const char *path, struct kelp_faultdisk **ret_disk,
                                struct kelp_error *reterr)
{
    struct kelp_faultdisk *disk = calloc(1, sizeof(*disk));
    if (!disk) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for '%s'", path);
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    kelp_status status = fd < 0 ? kelp_files_error(errno, "open", path, reterr)
                                : map_control(fd, path, &disk->control, reterr);
    if (fd >= 0) {
        (void)close(fd); /* the mapping stays */
    }
    if (status != KELP_OK) {
        free(disk);
        return status;
    }
    *ret_disk = disk;
    return KELP_OK;
}

void kelp_faultdisk_close(struct kelp_faultdisk *disk)
{
    if (!disk) {
        return;
    }
    (void)munmap(disk->control, sizeof(*disk->control));
    free(disk);
}

void kelp_faultdisk_set(struct kelp_faultdisk *disk, const struct kelp_faultdisk_fault *fault)
{
    struct kelp_faultdisk_control *control = disk->control;
    atomic_store(&control->mode, KELP_FAULTDISK_OK);
    atomic_store(&control->after, fault->after);
    atomic_store(&control->count, fault->count);
    atomic_store(&control->slow_ms, fault->slow_ms);
    atomic_store(&control->calls, 0);
    atomic_store(&control->hits, 0);
    atomic_store(&control->mode, (uint32_t)fault->mode);
}

uint64_t kelp_faultdisk_calls(const struct kelp_faultdisk *disk)
{
    return atomic_load(&disk->control->calls);
}

uint64_t kelp_faultdisk_hits(const struct kelp_faultdisk *disk)
{
    return atomic_load(&disk->control->hits);
}

/* ---- programs under it --------------------------------------------------------------------- */

/* The sanitizer's library of this process, if it has one: it insists on being the first. */
static void find_sanitizer(char *path, size_t path_bytes)
{
    static const char *const names[] = {"/libasan.so", "/libtsan.so"};
    char line[KELP_FAULTDISK_PATH_MAX];
    path[0] = '\0';
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && path[0] == '\0' && fgets(line, sizeof(line), maps)) {
        const char *file = strchr(line, '/');
        for (size_t i = 0; file && i < KELP_ARRAY_COUNT(names); i++) {
            if (strstr(file, names[i])) {
                (void)snprintf(path, path_bytes, "%.*s", (int)strcspn(file, "\n"), file);
            }
        }
    }
    if (maps) {
        (void)fclose(maps); /* it was only read */
    }
}

static kelp_status real_path(const char *path, char ret_path[KELP_FAULTDISK_PATH_MAX],
                             struct kelp_error *reterr)
{
    char *real = realpath(path, NULL);
    if (!real) {
        return kelp_files_error(errno, "find", path, reterr);
    }
    size_t length = strlen(real);
    if (length < KELP_FAULTDISK_PATH_MAX) {
        memcpy(ret_path, real, length + 1);
    }
    free(real);
    return length < KELP_FAULTDISK_PATH_MAX
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_LIMIT, "path '%s' is longer than %d bytes", path,
                           KELP_FAULTDISK_PATH_MAX - 1);
}

static bool below(const char *path, const char *root)
{
    size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

kelp_status kelp_faultdisk_environment(const struct kelp_faultdisk_paths *paths,
                                       struct kelp_faultdisk_environment *ret_environment,
                                       struct kelp_error *reterr)
{
    char sanitizer[KELP_FAULTDISK_PATH_MAX];
    char library[KELP_FAULTDISK_PATH_MAX];
    char control[KELP_FAULTDISK_PATH_MAX];
    char root[KELP_FAULTDISK_PATH_MAX];
    find_sanitizer(sanitizer, sizeof(sanitizer));
    kelp_status status = real_path(paths->library, library, reterr);
    if (status == KELP_OK) {
        status = real_path(paths->control, control, reterr);
    }
    if (status == KELP_OK) {
        status = real_path(paths->root, root, reterr);
    }
    if (status == KELP_OK && below(control, root)) {
        status = kelp_fail(reterr, KELP_ERR_INVALID,
                           "the control file must not lie under the root '%s'", root);
    }
    if (status != KELP_OK) {
        return status;
    }
    struct kelp_faultdisk_environment *made = ret_environment;
    (void)snprintf(made->preload, sizeof(made->preload), "LD_PRELOAD=%s%s%s", sanitizer,
                   sanitizer[0] != '\0' ? ":" : "", library);
    (void)snprintf(made->control, sizeof(made->control), KELP_FAULTDISK_ENV_CONTROL "=%s", control);
    (void)snprintf(made->root, sizeof(made->root), KELP_FAULTDISK_ENV_ROOT "=%s", root);
    return KELP_OK;
}
