/*
 * A private etcd of one member, run as a child process: what `kelp train` and the tests use when no
 * cluster's etcd is named.
 *
 * It listens on sockets in a folder that only its user can open, or at a free port of loopback with
 * mutual TLS. Tests have it on ports that every user of the machine reaches. Pages of other origins
 * and other names of the host are refused. It keeps everything in one folder, and dies with its
 * parent (common/process/process.h; the same rule about threads holds). Writes are synced as etcd
 * does by default: a machine crash loses nothing that was acknowledged.
 */
#ifndef KELP_COMMON_PROGRAM_ETCD_SERVER_H
#define KELP_COMMON_PROGRAM_ETCD_SERVER_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/process/process.h"

struct kelp_etcd_server;

struct kelp_etcd_server_options {
    const char *data_folder; /* made when missing; its parent must exist. One etcd at a time. */
    const char *log_path;    /* etcd's output is appended to it */
    const char *program;     /* NULL: "etcd" on PATH, else /usr/bin/etcd */
    /* It listens on unix sockets in this folder, which others must not be able to open; at most
     * KELP_SOCKET_FOLDER_MAX bytes, absolute. NULL: on ports of loopback, open to every user. */
    const char *socket_folder;
    /* With a socket folder: clients have a port of loopback instead, and need certificates of the
     * authority of this folder, etcd's own (common/tls/credentials.h). NULL: they have a socket. */
    const char *certs;
    uint16_t client_port; /* 0: a free one, chosen again when somebody else takes it first */
    uint32_t deadline_ms; /* until it must be healthy; 0: 15 s */
    /* Asked many times a second until etcd is healthy. True: give up. NULL: never. */
    bool (*given_up)(void *user);
    void *user;
};

/*
 * Start etcd and wait until it serves. curl_global_init() was called.
 *
 * Errors: KELP_ERR_NOT_FOUND (no etcd program: the text names the package), KELP_ERR_EXISTS
 *         (client_port is taken), KELP_ERR_TIMEOUT, KELP_ERR_UNREACHABLE (it ended: the text holds
 *         its last words), KELP_ERR_NO_SPACE (it ended for that), KELP_ERR_BUSY (another etcd uses
 *         the data folder), KELP_ERR_CLOSED (given_up), KELP_ERR_IO and KELP_ERR_LIMIT (of the data
 *         folder, the log, the sockets), KELP_ERR_NO_MEMORY.
 */
kelp_status kelp_etcd_server_start(const struct kelp_etcd_server_options *options,
                                   struct kelp_etcd_server **ret_server,
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* The program that would be started: `wanted`, or etcd on PATH, or /usr/bin/etcd. Errors:
 * KELP_ERR_NOT_FOUND (the text names the package), KELP_ERR_LIMIT. */
kelp_status kelp_etcd_server_find(const char *wanted, char ret_path[KELP_PROCESS_PATH_MAX],
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Ends etcd (SIGTERM, after grace_ms SIGKILL; 0: SIGKILL at once) and frees. NULL is fine. */
void kelp_etcd_server_stop(struct kelp_etcd_server *server, uint32_t grace_ms);

/* "http://127.0.0.1:41234", "https://127.0.0.1:41234" or "unix:/tmp/kelp-x7Kd2a/localhost:1", for
 * kelp_etcd_open(); borrowed for the life of the server. */
const char *kelp_etcd_server_url(const struct kelp_etcd_server *server);
/* Of clients; 0: they have a socket. */
uint16_t kelp_etcd_server_port(const struct kelp_etcd_server *server);
/* To wait on it beside other children; borrowed. */
struct kelp_process *kelp_etcd_server_process(struct kelp_etcd_server *server);

#endif
