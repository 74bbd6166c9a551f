#include "cli/host/manager.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/base/value.h"

#define PERIOD_MS   1000
#define MESSAGE_MAX 1024 /* bytes; people read what does not fit elsewhere */

/* "/run/…" is a path, "@…" a name in the abstract namespace of unix(7). */
static kelp_status set_address(struct kelp_manager *manager, const char *name,
                               struct kelp_error *reterr)
{
    size_t length = strlen(name);

    if ((name[0] != '/' && name[0] != '@') || length < 2 ||
        length >= sizeof(manager->address.sun_path)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "NOTIFY_SOCKET '%.120s' is not a socket of a service manager: expected a "
                         "path, or '@' and a name",
                         name);
    }
    manager->address.sun_family = AF_UNIX;
    memcpy(manager->address.sun_path, name, length);
    if (name[0] == '@') {
        manager->address.sun_path[0] = '\0';
    }
    manager->address_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    return KELP_OK;
}

static kelp_status read_number(const char *name, uint64_t *ret, struct kelp_error *reterr)
{
    const char *text = getenv(name);

    kelp_status status = text ? kelp_value_u64(text, 1, UINT64_MAX, ret, reterr) : KELP_OK;
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, name);
    }
    return status;
}

/* The watchdog is for us unless it names another process. Half its time is between signs. */
static kelp_status set_period(struct kelp_manager *manager, struct kelp_error *reterr)
{
    uint64_t watchdog_us = 2000 * PERIOD_MS, process = (uint64_t)getpid();

    kelp_status status = read_number("WATCHDOG_USEC", &watchdog_us, reterr);
    if (status == KELP_OK) {
        status = read_number("WATCHDOG_PID", &process, reterr);
    }
    const uint64_t period_ms = watchdog_us / 2000;
    const bool ours = process == (uint64_t)getpid() && period_ms < PERIOD_MS;
    manager->period_ms = ours ? (uint32_t)period_ms : PERIOD_MS;
    return status;
}

static kelp_status make_socket(struct kelp_manager *manager, struct kelp_error *reterr)
{
    const struct timeval patience = {.tv_sec = 1};

    manager->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return manager->fd >= 0 && setsockopt(manager->fd, SOL_SOCKET, SO_SNDTIMEO, &patience,
                                          sizeof(patience)) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "NOTIFY_SOCKET: cannot make a socket: %s",
                           strerror(errno));
}

kelp_status kelp_manager_open(struct kelp_manager *manager, struct kelp_error *reterr)
{
    const char *name = getenv("NOTIFY_SOCKET");
    kelp_status status = KELP_OK;

    memset(manager, 0, sizeof(*manager));
    manager->fd = -1;
    if (name && name[0] != '\0') {
        status = set_address(manager, name, reterr);
        if (status == KELP_OK) {
            status = set_period(manager, reterr);
        }
        if (status == KELP_OK) {
            status = make_socket(manager, reterr);
        }
        if (status != KELP_OK) {
            kelp_manager_close(manager);
        }
    }
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
    return status;
}

void kelp_manager_close(struct kelp_manager *manager)
{
    if (manager->fd >= 0) {
        (void)close(manager->fd);
        manager->fd = -1;
    }
}

/* A manager that does not read must not be what a job waits for. flags: MSG_DONTWAIT for what is
 * said again anyway. */
static bool tell(const struct kelp_manager *manager, const char *message, int flags)
{
    return manager && manager->fd >= 0 &&
           sendto(manager->fd, message, strlen(message), flags | MSG_NOSIGNAL,
                  (const struct sockaddr *)&manager->address, manager->address_bytes) >= 0;
}

void kelp_manager_ready(struct kelp_manager *manager)
{
    manager->ready = tell(manager, "READY=1", 0);
}

void kelp_manager_alive(struct kelp_manager *manager, uint64_t now_ms, const char *what)
{
    char message[MESSAGE_MAX];

    if (!manager || manager->fd < 0 || now_ms - manager->told_ms < manager->period_ms) {
        return;
    }
    if (!manager->ready) { /* it was lost */
        kelp_manager_ready(manager);
    }
    (void)snprintf(message, sizeof(message), "WATCHDOG=1\nSTATUS=%s", what);
    (void)tell(manager, message, MSG_DONTWAIT);
    manager->told_ms = now_ms;
}

void kelp_manager_busy(struct kelp_manager *manager, uint32_t for_ms, const char *what)
{
    char message[MESSAGE_MAX];

    (void)snprintf(message, sizeof(message), "WATCHDOG_USEC=%" PRIu64 "\nWATCHDOG=1\nSTATUS=%s",
                   (uint64_t)for_ms * 1000, what);
    (void)tell(manager, message, 0);
}

void kelp_manager_stopping(struct kelp_manager *manager, uint32_t for_ms)
{
    char message[MESSAGE_MAX];

    (void)snprintf(message, sizeof(message), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%" PRIu64,
                   (uint64_t)for_ms * 1000);
    (void)tell(manager, message, 0);
}
