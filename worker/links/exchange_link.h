/*
 * A worker's stream to one shard: opens it when told to, says hello, encodes messages, checks and
 * decodes replies. worker/core/stepper.h decides what is sent and when. Runs in the loop of the
 * worker's thread.
 */
#ifndef KELP_WORKER_LINKS_EXCHANGE_LINK_H
#define KELP_WORKER_LINKS_EXCHANGE_LINK_H

#include "common/rpc/rpc.h"
#include "common/scrape/figures.h"
#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "worker/compute/gradients.h"
#include "worker/core/stepper.h"
#include "worker/links/coordinator_link.h"

struct kelp_shard_link;

struct kelp_shard_link_events {
    /* The stream ended, or could not be opened. Never from inside a function of the link. */
    void (*closed)(struct kelp_shard_link *link, void *user);
    /* The first message came on a new stream. */
    void (*opened)(struct kelp_shard_link *link, void *user);
    /* The job demands shared memory, and this shard cannot be reached so: the worker must end.
     * Never from inside a function of the link, which it may close. */
    void (*unfit)(struct kelp_shard_link *link, const struct kelp_error *why, void *user);
    /* The delay of kelp_shard_link_retry_later() is over. */
    void (*retry)(struct kelp_shard_link *link, void *user);
    /* An answer of the link's own generation, offset and length checked. payload is NULL without
     * weights. */
    void (*answer)(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                   const struct kelp_wire_payload *payload, void *user);
    /* A push or a share of the link's own generation was refused. */
    void (*refused)(struct kelp_shard_link *link, const Kelp__V1__Refusal *refusal, void *user);
    /* A partition of the link's own generation asks for these lanes; the range is checked. */
    void (*offered)(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user);
};

struct kelp_shard_link_options {
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_carrier *carrier; /* of that loop, for its channel over gRPC; NULL: none */
    const Kelp__V1__Hello *hello;     /* borrowed for the life of the link */
    uint64_t generation;
    const struct kelp_place *place; /* copied */
    const struct kelp_plan *plan;
    uint32_t lanes;
    uint32_t number; /* of the link, for its owner */
    uint32_t stream; /* among those to that shard: the first one is news */
    uint32_t *alive; /* counts links that have not ended; must outlive them */
    enum kelp_transport transport;
    enum kelp_precision precision;
    uint32_t piece_bytes;
    uint32_t connect_timeout_ms;
    struct kelp_figures *figures; /* bytes are counted there; NULL: nowhere */
    const struct kelp_shard_link_events *events;
    void *user;
};

/* Without a stream yet: kelp_shard_link_connect(). */
kelp_status kelp_shard_link_open(const struct kelp_shard_link_options *options,
                                 struct kelp_shard_link **ret_link,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* No event after it returned; the stream ends in the background, the loop must still run for it. */
void kelp_shard_link_close(struct kelp_shard_link *link);

uint32_t kelp_shard_link_number(const struct kelp_shard_link *link);
uint64_t kelp_shard_link_generation(const struct kelp_shard_link *link);
/* Does its stream go through shared memory? */
bool kelp_shard_link_is_shared(const struct kelp_shard_link *link);
/* Why its last stream ended, for people. */
const char *kelp_shard_link_cause(const struct kelp_shard_link *link);

/* Open a stream and say hello. closed() follows when that fails. */
void kelp_shard_link_connect(struct kelp_shard_link *link);
void kelp_shard_link_retry_later(struct kelp_shard_link *link, uint32_t after_ms);

/* The contents of the nodes are struct kelp_gradient. A stream that has ended takes nothing. */
kelp_status kelp_shard_link_send(struct kelp_shard_link *link,
                                 const struct kelp_stepper_message *message,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
