/* What the files of the private etcd share: etcd_server.c starts it and waits until it serves,
 * etcd_server_launch.c has its command line. Private to them. */
#ifndef KELP_COMMON_PROGRAM_ETCD_SERVER_INTERNAL_H
#define KELP_COMMON_PROGRAM_ETCD_SERVER_INTERNAL_H

#include "common/etcd/etcd_endpoint.h"
#include "common/program/etcd_server.h"

#define URL_BYTES 80

/* Etcd takes host:port alone for a unix socket, which becomes a file of that name in its working
 * folder. The peer's URL among the members must be http all the same. */
#define CLIENT_SOCKET "localhost:1"
#define PEER_SOCKET   "localhost:2"

struct kelp_etcd_server {
    struct kelp_process *process;
    uint16_t client_port;
    uint16_t peer_port;
    int lock_fd;
    char *data_folder;         /* absolute, owned: etcd's working folder may be another */
    char name[40];             /* proves that the etcd that answers on our port is ours */
    char url[URL_BYTES];       /* for clients of ours */
    char client[URL_BYTES];    /* the same as etcd takes it */
    char peer[URL_BYTES];      /* where it would listen to other members */
    char advertise[URL_BYTES]; /* what those would dial */
    struct kelp_etcd_certificates *certificates; /* NULL: none; owned */
};

/* Start the process, with the addresses that were chosen. Errors: those of kelp_process_start(). */
kelp_status kelp__etcd_server_launch(struct kelp_etcd_server *server, const char *program,
                                     const struct kelp_etcd_server_options *options, int log_fd,
                                     struct kelp_error *reterr) KELP_MUST_USE;

#endif
