/*
 * What the manager of a service, such as systemd, is told, in the words of sd_notify(3): datagrams
 * to the socket that NOTIFY_SOCKET names. Nobody is told anything where that is not set.
 *
 * Threads: one.
 */
#ifndef KELP_CLI_HOST_MANAGER_H
#define KELP_CLI_HOST_MANAGER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/status.h"

/* Where a pointer to one is NULL, nobody is told either. */
struct kelp_manager {
    int fd; /* -1: nobody is told */
    struct sockaddr_un address;
    socklen_t address_bytes;
    bool ready;         /* and the manager knows it */
    uint32_t period_ms; /* between signs of life */
    uint64_t told_ms;   /* the last one */
};

/*
 * Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment, for they are not
 * meant for children: call it before other threads exist. Errors: KELP_ERR_INVALID (what they say
 * makes no sense), KELP_ERR_IO. After an error nobody is told.
 */
kelp_status kelp_manager_open(struct kelp_manager *manager,
                              struct kelp_error *reterr) KELP_MUST_USE;
void kelp_manager_close(struct kelp_manager *manager);

/* Options, certificates and programs are in order, and the work begins. */
void kelp_manager_ready(struct kelp_manager *manager);

/* A sign of life for the manager's watchdog, with a line for people; sent once in a while, however
 * often it is called. */
void kelp_manager_alive(struct kelp_manager *manager, uint64_t now_ms, const char *what);

/* Work begins that may take so long without a sign of life. */
void kelp_manager_busy(struct kelp_manager *manager, uint32_t for_ms, const char *what);

/* The end has begun, and may take so long. */
void kelp_manager_stopping(struct kelp_manager *manager, uint32_t for_ms);

#endif
