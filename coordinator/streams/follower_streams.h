/*
 * Coordinators that stand by and listen to us (Follow of kelp.proto): a heartbeat for each at every
 * tick while we lead. While we do not, streams are closed with KELP_ERR_NOT_LEADER.
 */
#ifndef KELP_COORDINATOR_STREAMS_FOLLOWER_STREAMS_H
#define KELP_COORDINATOR_STREAMS_FOLLOWER_STREAMS_H

#include "common/rpc/rpc.h"
#include "common/scrape/figures.h"
#include "coordinator/common/identity.h"
#include "coordinator/term/leadership.h"

struct kelp_follower_stream;

struct kelp_follower_streams {
    struct kelp_leadership *leadership;   /* borrowed */
    const struct kelp_identity *identity; /* borrowed */
    struct kelp_figures *figures;         /* borrowed; refusals are counted there. NULL: nowhere */
    struct kelp_follower_stream *first;   /* owned; freed as they end */
    uint32_t count;
    uint64_t heartbeat;
};

/* A new stream, as the accept() of struct kelp_rpc_method. */
const struct kelp_rpc_stream_events *
kelp_follower_streams_accept(struct kelp_follower_streams *streams, struct kelp_rpc_stream *rpc,
                             void **ret_user);
/* Every KELP_COORDINATOR_TICK_MS. */
void kelp_follower_streams_tick(struct kelp_follower_streams *streams);
/* We lead no more. */
void kelp_follower_streams_end(struct kelp_follower_streams *streams);

#endif
