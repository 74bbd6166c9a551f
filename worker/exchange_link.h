/*
 * A worker's stream to one shard: opens it, says hello, opens it again when it broke, encodes
 * pushes and pulls into as few messages as fit, decodes answers. Runs in the loop of the worker's
 * thread.
 */
#ifndef KELP_WORKER_EXCHANGE_LINK_H
#define KELP_WORKER_EXCHANGE_LINK_H

#include "common/rpc/rpc.h"
#include "common/training/plan.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"
#include "worker/coordinator_link.h"
#include "worker/core/sync.h"
#include "worker/gradients.h"

/* What was computed for the version in progress, one aligned range of lanes. */
struct kelp_pushed {
    uint32_t lane_first;
    uint32_t lane_count;
    struct kelp_gradient *gradient;
    char digest[33];
    bool sent;
};

struct kelp_shard_link;

struct kelp_shard_link_events {
    /* A stream is new: everything pushed for the version in progress and every open pull must be
     * sent again. */
    void (*opened)(struct kelp_shard_link *link, void *user);
    /* An answer of the link's own generation, partition, offset and length checked. payload is NULL
     * without weights. */
    void (*answer)(struct kelp_shard_link *link, const Kelp__V1__PullAnswer *answer,
                   const struct kelp_wire_payload *payload, void *user);
    /* A partition of the link's own generation asks for these lanes; the range is checked. */
    void (*offered)(struct kelp_shard_link *link, const Kelp__V1__Offer *offer, void *user);
};

struct kelp_shard_link_options {
    struct kelp_rpc_loop *loop;
    const Kelp__V1__Hello *hello;      /* borrowed for the life of the link */
    const struct kelp_worker_map *map; /* borrowed for the life of the link */
    const struct kelp_plan *plan;
    uint32_t lanes;
    uint32_t shard;  /* index into map->shards */
    uint32_t *alive; /* counts links that have not ended; must outlive them */
    uint32_t piece_bytes;
    uint32_t connect_timeout_ms;
    const struct kelp_shard_link_events *events;
    void *user;
};

kelp_status kelp_shard_link_open(const struct kelp_shard_link_options *options,
                                 struct kelp_shard_link **ret_link,
                                 struct kelp_error *reterr) KELP_MUST_USE;
/* No event after it returned; the stream ends in the background, the loop must still run for it. */
void kelp_shard_link_close(struct kelp_shard_link *link);

uint32_t kelp_shard_link_shard(const struct kelp_shard_link *link);

/*
 * Send the nodes pushed[0..count) that are marked unsent (or all of them) for the partitions of
 * this shard, and the pulls that sync wants from them. Nothing happens while there is no stream:
 * opened() comes when there is.
 */
struct kelp_shard_link_batch {
    const struct kelp_control_word *word; /* of the pushes */
    const struct kelp_pushed *pushed;
    size_t pushed_count;
    bool resend;            /* also what was sent before */
    bool helps;             /* take offers although nothing is asked for; sent when it changes */
    struct kelp_sync *sync; /* NULL: no pulls */
};
kelp_status kelp_shard_link_send(struct kelp_shard_link *link,
                                 const struct kelp_shard_link_batch *batch,
                                 struct kelp_error *reterr) KELP_MUST_USE;

#endif
