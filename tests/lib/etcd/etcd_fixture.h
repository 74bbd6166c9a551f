/*
 * A real etcd in a temporary folder, for tests. On an error these functions fail the running test;
 * a missing etcd program ends it with exit status 77 (skipped).
 */
#ifndef KELP_TESTS_LIB_ETCD_ETCD_FIXTURE_H
#define KELP_TESTS_LIB_ETCD_ETCD_FIXTURE_H

#include "common/etcd/etcd.h"
#include "common/program/etcd_server.h"

struct etcd_fixture {
    char folder[64];
    struct kelp_etcd_server *server; /* NULL: stopped */
    char url[64];
    uint16_t port;
};

/* Ends the process with 77 and a line on stderr if no etcd is installed; call it in main(). */
void etcd_fixture_require(void);

/* Start etcd with an empty store; calls curl_global_init(). */
void etcd_fixture_start(struct etcd_fixture *fixture);
/* End it and remove its folder. */
void etcd_fixture_stop(struct etcd_fixture *fixture);

/* Kill it with SIGKILL, as in a crash; restart it on the same port with its data. */
void etcd_fixture_kill(struct etcd_fixture *fixture);
void etcd_fixture_restart(struct etcd_fixture *fixture);

/* A client of it. */
struct kelp_etcd *etcd_fixture_client(const struct etcd_fixture *fixture);

/* Compact the history up to the revision. */
void etcd_fixture_compact(const struct etcd_fixture *fixture, int64_t revision);
/* Make its store count as full: it answers reads and refuses writes. */
void etcd_fixture_fill(const struct etcd_fixture *fixture);
/* Revoke a lease without its owner's knowledge. */
void etcd_fixture_revoke(const struct etcd_fixture *fixture, int64_t lease);

#endif
