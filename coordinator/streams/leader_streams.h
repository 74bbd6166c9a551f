/*
 * Our stream to who leads while we stand by (Follow of kelp.proto): each word of it, and its end,
 * are told to the leadership.
 */
#ifndef KELP_COORDINATOR_STREAMS_LEADER_STREAMS_H
#define KELP_COORDINATOR_STREAMS_LEADER_STREAMS_H

#include "common/rpc/rpc.h"
#include "coordinator/common/identity.h"
#include "coordinator/term/leadership.h"

struct kelp_leader_stream;

struct kelp_leader_streams {
    struct kelp_rpc_loop *loop;           /* borrowed */
    struct kelp_leadership *leadership;   /* borrowed */
    const struct kelp_identity *identity; /* borrowed */
    struct kelp_leader_stream *current;   /* NULL: none is wanted */
    uint32_t count;                       /* with those that were closed and have not ended */
};

/* Effects of a leadership. False: it cannot be opened. */
bool kelp_leader_streams_follow(struct kelp_leader_streams *streams,
                                const struct kelp_holder *holder);
void kelp_leader_streams_unfollow(struct kelp_leader_streams *streams);

#endif
