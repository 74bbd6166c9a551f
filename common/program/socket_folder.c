#include "common/program/socket_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/files.h"

#define PATTERN "/kelp-XXXXXX"

/* Bytes that need no escapes in an address or in JSON. */
static bool is_plain(const char *path)
{
    return path[strspn(path, "/.-_+~=:@%0123456789abcdefghijklmnopqrstuvwxyz"
                             "ABCDEFGHIJKLMNOPQRSTUVWXYZ")] == '\0';
}

/* TMPDIR if the path of a socket fits in it. */
static const char *parent(void)
{
    const char *wanted = getenv("TMPDIR");

    return wanted && wanted[0] == '/' && is_plain(wanted) &&
                   strlen(wanted) + strlen(PATTERN) <= KELP_SOCKET_FOLDER_MAX
               ? wanted
               : "/tmp";
}

/* A connection is refused if no process serves the socket. A socket of another type gives
 * another error. */
static bool is_refused(const struct sockaddr_un *address, int type)
{
    int probe = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = probe >= 0 &&
                   connect(probe, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
                   errno == ECONNREFUSED;
    if (probe >= 0) {
        (void)close(probe);
    }
    return refused;
}

/* Is it a socket without a server? Those of shared memory are packet sockets. */
static bool is_dead(int folder, const char *path, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat about;

    if (fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISSOCK(about.st_mode)) {
        return false;
    }
    const int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", path, name);
    if (length < 0 || (size_t)length >= sizeof(address.sun_path)) {
        return false;
    }
    return is_refused(&address, SOCK_STREAM) || is_refused(&address, SOCK_SEQPACKET);
}

/* True: it was removed. */
static bool remove_dead(int folder, const char *path, const char *name)
{
    return is_dead(folder, path, name) && unlinkat(folder, name, 0) == 0;
}

/* Was the folder made by this code and this user? Its path may come from a file. */
static bool is_ours(int folder, const char *path)
{
    const char *name = strrchr(path, '/');
    struct stat about;

    return name && strlen(name) == strlen(PATTERN) && strncmp(name, PATTERN, 6) == 0 &&
           fstat(folder, &about) == 0 && about.st_uid == geteuid() &&
           (about.st_mode & 07777) == 0700;
}

/* The folder's descriptor, or -1 with errno. */
static int open_folder(const char *path)
{
    int fd = path[0] == '/' && strlen(path) <= KELP_SOCKET_FOLDER_MAX
                 ? open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                 : -1;

    if (fd >= 0 && !is_ours(fd, path)) {
        (void)close(fd);
        fd = -1;
        errno = EPERM;
    }
    return fd;
}

void kelp_socket_folder_sweep(const char *path, const char *name)
{
    int folder = open_folder(path);

    if (folder >= 0) {
        (void)remove_dead(folder, path, name);
        (void)close(folder);
    }
}

void kelp_socket_folder_remove(const char *path)
{
    char certs[KELP_SOCKET_FOLDER_MAX + sizeof("/" KELP_SOCKET_FOLDER_CERTS)];
    int fd = open_folder(path);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    unsigned left = 0;

    if (!folder) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        bool known = entry->d_name[0] == '.' ||
                     strcmp(entry->d_name, KELP_SOCKET_FOLDER_CERTS) == 0 ||
                     remove_dead(dirfd(folder), path, entry->d_name);
        left += !known;
    }
    (void)closedir(folder);
    if (left == 0) {
        (void)snprintf(certs, sizeof(certs), "%s/" KELP_SOCKET_FOLDER_CERTS, path);
        (void)kelp_files_remove(certs, NULL); /* leftovers keep the folder */
    }
    (void)rmdir(path); /* fails while a socket is in use */
}

void kelp_socket_folder_clear(void)
{
    char path[KELP_SOCKET_FOLDER_MAX + 1];
    DIR *folders = opendir(parent());

    if (!folders) {
        return;
    }
    for (struct dirent *entry = readdir(folders); entry; entry = readdir(folders)) {
        const int length = snprintf(path, sizeof(path), "%s/%s", parent(), entry->d_name);
        const int fd = length > 0 && (size_t)length < sizeof(path) ? open_folder(path) : -1;
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            kelp_socket_folder_remove(path);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    (void)closedir(folders);
}

/* Lock the folder, which systemd-tmpfiles respects, too. False: kelp_socket_folder_clear() came
 * first. */
static bool hold(const char *path, int *ret_held)
{
    struct stat about;
    int fd = open_folder(path);

    *ret_held = -1;
    if (fd < 0) {
        return errno != ENOENT;
    }
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
        const bool busy = errno == EWOULDBLOCK;
        (void)close(fd);
        return !busy;
    }
    if (fstat(fd, &about) == 0 && about.st_nlink == 0) {
        (void)close(fd);
        return false;
    }
    *ret_held = fd;
    return true;
}

kelp_status kelp_socket_folder_make(char path[KELP_SOCKET_FOLDER_MAX + 1], int *ret_held,
                                    struct kelp_error *reterr)
{
    kelp_socket_folder_clear();
    do {
        (void)snprintf(path, KELP_SOCKET_FOLDER_MAX + 1, "%s" PATTERN, parent());
        if (!mkdtemp(path) || chmod(path, 0700) != 0) { /* whatever the umask takes */
            int error = errno;
            path[0] = '\0';
            *ret_held = -1;
            return kelp_fail(reterr, KELP_ERR_IO,
                             "cannot make a folder for sockets in '%s': %s; TMPDIR says where",
                             parent(), strerror(error));
        }
    } while (!hold(path, ret_held));
    return KELP_OK;
}
