/*
 * A real etcd in a temporary folder, for tests. Everything here fails the running test when it
 * cannot do its work; a missing etcd program ends it with exit status 77 (skipped).
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

/* Ends the process with 77 and a line on stderr when no etcd is installed; call it in main(). */
void etcd_fixture_require(void);

/* Starts one with an empty store; curl_global_init() included. */
void etcd_fixture_start(struct etcd_fixture *fixture);
/* Ends it and removes its folder. */
void etcd_fixture_stop(struct etcd_fixture *fixture);

/* Takes it away, as a crash does (SIGKILL), and brings it back on the same port with its data. */
void etcd_fixture_kill(struct etcd_fixture *fixture);
void etcd_fixture_restart(struct etcd_fixture *fixture);

/* A client of it. */
struct kelp_etcd *etcd_fixture_client(const struct etcd_fixture *fixture);

/* Drop the history up to the revision. */
void etcd_fixture_compact(const struct etcd_fixture *fixture, int64_t revision);
/* Its store counts as full: it answers reads and no write. */
void etcd_fixture_fill(const struct etcd_fixture *fixture);
/* End a lease behind its owner's back. */
void etcd_fixture_revoke(const struct etcd_fixture *fixture, int64_t lease);

#endif
