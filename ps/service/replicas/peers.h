/*
 * Which shards on the other ends of our streams have fallen silent, or have broken a stream off.
 * The leader is told: it is a second sign when it does not hear them either.
 *
 * Threads: any, inside any lock.
 */
#ifndef KELP_PS_SERVICE_REPLICAS_PEERS_H
#define KELP_PS_SERVICE_REPLICAS_PEERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/kelp.pb-c.h"

struct kelp__service_peers;

/* NULL: no memory. */
struct kelp__service_peers *kelp__service_peers_create(void);
void kelp__service_peers_destroy(struct kelp__service_peers *peers);

/* A link to this process is kept from now on: it should be heard, and is not forgotten. */
void kelp__service_peers_expect(struct kelp__service_peers *peers, const char *id,
                                uint64_t incarnation);
/* The link is not kept any more. */
void kelp__service_peers_release(struct kelp__service_peers *peers, const char *id,
                                 uint64_t incarnation);
/* Something came from this process. */
void kelp__service_peers_heard(struct kelp__service_peers *peers, const char *id,
                               uint64_t incarnation);
/* Its stream has ended: it broke it off, or it was not needed any more. One that a link is kept to
 * is not forgotten. */
void kelp__service_peers_ended(struct kelp__service_peers *peers, const char *id,
                               uint64_t incarnation, bool broken);

/* What a report says; freed with free() once it is encoded. NULL, and a count of 0: nothing. */
Kelp__V1__PeerReport **kelp__service_peers_report(struct kelp__service_peers *peers,
                                                  size_t *ret_count);

#endif
