#include "common/shm/shm_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define WAITING_MAX 128 /* connections not accepted yet */

/* A socket, neither bound nor connected, and the address of path. */
static kelp_status new_socket(const char *path, struct sockaddr_un *ret_address, int *ret_fd,
                              struct kelp_error *reterr)
{
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (path[0] == '\0' || strlen(path) >= sizeof(ret_address->sun_path)) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "socket '%s': its path has 1 to %zu bytes", path,
                         sizeof(ret_address->sun_path) - 1);
    }
    memcpy(ret_address->sun_path, path, strlen(path) + 1);
    /* Packets, so that notes are never partial. */
    *ret_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *ret_fd >= 0 ? KELP_OK
                        : kelp_fail(reterr, KELP_ERR_IO, "no socket: %s", strerror(errno));
}

/* Check that the peer runs as the same user. */
static kelp_status check_user(int fd, struct kelp_error *reterr)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t length = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.uid != geteuid()) {
        return kelp_fail(reterr, KELP_ERR_DENIED,
                         "the other process is user %u's, and this one user %u's",
                         (unsigned)peer.uid, (unsigned)geteuid());
    }
    return KELP_OK;
}

/* Is it a packet socket without a server? */
static bool is_left(const struct sockaddr_un *address)
{
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat about;
    const bool left = probe >= 0 && lstat(address->sun_path, &about) == 0 &&
                      S_ISSOCK(about.st_mode) &&
                      connect(probe, (const struct sockaddr *)address, sizeof(*address)) != 0 &&
                      errno == ECONNREFUSED;

    if (probe >= 0) {
        (void)close(probe);
    }
    return left;
}

/* Returns 0 or an errno. */
static int bind_there(int fd, const struct sockaddr_un *address)
{
    if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0) {
        return 0;
    }
    if (errno != EADDRINUSE) {
        return errno;
    }
    if (!is_left(address) || unlink(address->sun_path) != 0) {
        return EADDRINUSE;
    }
    return bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : errno;
}

kelp_status kelp_shm_listen(const char *path, int *ret_fd, struct kelp_error *reterr)
{
    struct sockaddr_un address;
    int fd = -1;
    kelp_status status = new_socket(path, &address, &fd, reterr);

    if (status != KELP_OK) {
        return status;
    }
    const int error = bind_there(fd, &address);
    if (error != 0) {
        (void)close(fd);
        return kelp_fail(reterr, error == EADDRINUSE ? KELP_ERR_EXISTS : KELP_ERR_IO,
                         "cannot listen at '%s': %s", path, strerror(error));
    }
    /* No one can connect before listen(). */
    if (chmod(path, S_IRUSR | S_IWUSR) != 0 || listen(fd, WAITING_MAX) != 0) {
        const int why = errno;
        (void)close(fd);
        (void)unlink(path);
        return kelp_fail(reterr, KELP_ERR_IO, "cannot listen at '%s': %s", path, strerror(why));
    }
    *ret_fd = fd;
    return KELP_OK;
}

kelp_status kelp_shm_accept(int listener, int *ret_fd, struct kelp_error *reterr)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0) {
        const bool nobody = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
        return kelp_fail(reterr, nobody ? KELP_ERR_BUSY : KELP_ERR_IO,
                         "no connection can be taken: %s", strerror(errno));
    }
    kelp_status status = check_user(fd, reterr);
    if (status != KELP_OK) {
        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    return KELP_OK;
}

kelp_status kelp_shm_connect(const char *path, int *ret_fd, struct kelp_error *reterr)
{
    struct sockaddr_un address;
    int fd = -1;
    kelp_status status = new_socket(path, &address, &fd, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        const int error = errno;
        (void)close(fd);
        const kelp_status why = error == EAGAIN   ? KELP_ERR_BUSY
                                : error == EACCES ? KELP_ERR_DENIED
                                                  : KELP_ERR_UNREACHABLE;
        return kelp_fail(reterr, why, "cannot reach '%s': %s", path, strerror(error));
    }
    status = check_user(fd, reterr);
    if (status != KELP_OK) {
        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    return KELP_OK;
}

/* ---- notes ---- */

/* Memory for one descriptor, aligned as the system requires. The length passed is shorter than
 * CMSG_SPACE(), in which a second descriptor would fit. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

kelp_status kelp_shm_note_send(int socket, const struct kelp_shm_note *note, int fd)
{
    union control control = {.bytes = {0}};
    struct iovec bytes = {.iov_base = (void *)(uintptr_t)note, .iov_len = sizeof(*note)};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1};

    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_LEN(sizeof(fd));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(fd));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    ssize_t sent;
    do {
        sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)sizeof(*note)) {
        return KELP_OK;
    }
    const bool full = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ||
                      errno == ETOOMANYREFS || errno == EMFILE;
    return full ? KELP_ERR_BUSY : KELP_ERR_CLOSED;
}

/* The received descriptor, or -1. The buffer holds one, so the system has closed any others. */
static int descriptor_of(struct msghdr *message)
{
    int fd = -1;

    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(sizeof(fd))) {
            memcpy(&fd, CMSG_DATA(header), sizeof(fd));
        }
    }
    return fd;
}

static ssize_t receive_packet(int socket, struct msghdr *message)
{
    ssize_t length;

    do {
        length = recvmsg(socket, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (length < 0 && errno == EINTR);
    return length;
}

kelp_status kelp_shm_note_take(int socket, struct kelp_shm_note *ret_note, int *ret_fd,
                               struct kelp_error *reterr)
{
    union control control = {.bytes = {0}};
    struct iovec bytes = {.iov_base = ret_note, .iov_len = sizeof(*ret_note)};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t length = receive_packet(socket, &message);

    if (length < 0 && errno == ECONNRESET) {
        /* Reported once if the peer ended without reading all of our packets; its own packets
         * can still be read. */
        length = receive_packet(socket, &message);
    }
    if (length < 0 && (errno == EAGAIN || errno == ENOMEM)) {
        return kelp_fail(reterr, KELP_ERR_BUSY, "no note has come");
    }
    if (length <= 0) {
        return kelp_fail(reterr, KELP_ERR_CLOSED, "the other process has gone");
    }
    const int fd = descriptor_of(&message);
    if (length != (ssize_t)sizeof(*ret_note) || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "a note of %zd bytes came, or with several descriptors: it has %zu",
                         length, sizeof(*ret_note));
    }
    *ret_fd = fd;
    return KELP_OK;
}
