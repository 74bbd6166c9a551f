/*
 * A private folder for the unix sockets of one run, and for its certificates (run_certs.h): who can
 * open the folder (0700) is the same user, and nobody else can reach what listens in it.
 *
 * It is in TMPDIR or in /tmp and not in the run's folder: the path of a socket has at most 107
 * bytes, and not every network file system takes sockets.
 */
#ifndef KELP_COMMON_PROGRAM_SOCKET_FOLDER_H
#define KELP_COMMON_PROGRAM_SOCKET_FOLDER_H

#include "common/base/status.h"

#define KELP_SOCKET_FOLDER_MAX   64 /* bytes of its path; leaves 42 for a socket's name */
#define KELP_SOCKET_FOLDER_CERTS "certs"

/*
 * Make "/tmp/kelp-x7Kd2a". While *ret_held is open, neither what clears old files out of /tmp nor
 * kelp_socket_folder_clear() touches it; -1 where the file system has no locks. Errors:
 * KELP_ERR_IO.
 */
kelp_status kelp_socket_folder_make(char path[KELP_SOCKET_FOLDER_MAX + 1], int *ret_held,
                                    struct kelp_error *reterr) KELP_MUST_USE;

/* Remove this user's folders that nobody holds any more, of commands that were killed. */
void kelp_socket_folder_clear(void);

/* Remove that socket when nobody serves it any more: not every server replaces what a dead one
 * left. */
void kelp_socket_folder_sweep(const char *path, const char *name);

/* Remove it with the sockets in it that nobody serves any more, and then with its certificates:
 * after the processes have ended, or for a run that was killed. "" is fine, and so is a folder that
 * is gone. Nothing is touched that kelp_socket_folder_make() would not have made for this user;
 * what is served still, stays, and the certificates with it. */
void kelp_socket_folder_remove(const char *path);

#endif
