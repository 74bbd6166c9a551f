/*
 * Unix sockets on which two processes of one user meet, and notes on them, each with at most one
 * descriptor. None of these calls waits.
 *
 * Who can open the socket's path is the same user: it has mode 0600, and is in a folder that
 * nobody else may enter. Both sides ask the system whose process the other one is all the same.
 *
 * Threads: any; of one socket, one at a time takes notes.
 */
#ifndef KELP_COMMON_SHM_SHM_SOCKET_H
#define KELP_COMMON_SHM_SHM_SOCKET_H

#include "common/base/status.h"
#include "common/shm/layout.h"

/* Listen at a path. *ret_fd is owned, and so is the file. What a dead process left there is
 * replaced; only one process may listen there. Errors: KELP_ERR_EXISTS (somebody is served there,
 * or it is no socket), KELP_ERR_INVALID (too long), KELP_ERR_IO. */
kelp_status kelp_shm_listen(const char *path, int *ret_fd, struct kelp_error *reterr) KELP_MUST_USE;
/* The next one who came. Errors: KELP_ERR_BUSY (nobody), KELP_ERR_DENIED (another user, turned
 * away), KELP_ERR_IO. */
kelp_status kelp_shm_accept(int listener, int *ret_fd, struct kelp_error *reterr) KELP_MUST_USE;
/* Errors: KELP_ERR_UNREACHABLE (nobody listens there, or it is on another host), KELP_ERR_BUSY (too
 * many wait), KELP_ERR_DENIED (another user's), KELP_ERR_INVALID. */
kelp_status kelp_shm_connect(const char *path, int *ret_fd,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* fd: to be passed, or -1; stays the caller's. Errors: KELP_ERR_BUSY (the other side does not read
 * its notes), KELP_ERR_CLOSED. */
kelp_status kelp_shm_note_send(int socket, const struct kelp_shm_note *note, int fd) KELP_MUST_USE;
/* *ret_fd is owned; -1: none came. Errors: KELP_ERR_BUSY (there is none), KELP_ERR_CLOSED (the
 * other side has gone), KELP_ERR_FORMAT. */
kelp_status kelp_shm_note_take(int socket, struct kelp_shm_note *ret_note, int *ret_fd,
                               struct kelp_error *reterr) KELP_MUST_USE;

#endif
