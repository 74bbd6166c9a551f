/*
 * The streams to the shards (Control of kelp.proto): encodes what a term wants told, and decodes
 * the shards' reports for it.
 */
#ifndef KELP_COORDINATOR_STREAMS_SHARD_STREAMS_H
#define KELP_COORDINATOR_STREAMS_SHARD_STREAMS_H

#include "common/rpc/rpc.h"
#include "coordinator/common/identity.h"
#include "coordinator/common/job_plan.h"
#include "coordinator/term/leadership.h"

struct kelp_shard_stream;

struct kelp_shard_streams {
    struct kelp_rpc_loop *loop;           /* borrowed */
    struct kelp_leadership *leadership;   /* borrowed */
    const struct kelp_identity *identity; /* borrowed */
    const struct kelp_job_plan *plan;     /* borrowed */
    struct kelp_shard_stream *first;      /* owned */
};

/* Free those that no term wants and whose stream has ended. True: there are none left. */
bool kelp_shard_streams_sweep(struct kelp_shard_streams *streams);

/* Effects of a term (coordinator/term/outside/term_effects.h). NULL: no memory. */
struct kelp_shard_stream *kelp_shard_streams_add(struct kelp_shard_streams *streams,
                                                 struct kelp_link *link);
/* The term does not know it any more. */
void kelp_shard_stream_abandon(struct kelp_shard_stream *stream);
/* Errors: KELP_ERR_BUSY while one that was closed has not ended; as kelp_rpc_stream_open(). */
kelp_status kelp_shard_stream_open(struct kelp_shard_stream *stream,
                                   const struct kelp_map_shard *shard,
                                   const struct kelp_link_news *hello,
                                   struct kelp_error *reterr) KELP_MUST_USE;
bool kelp_shard_stream_full(const struct kelp_shard_stream *stream);
void kelp_shard_stream_send(struct kelp_shard_stream *stream, const struct kelp_link_news *news);
void kelp_shard_stream_close(struct kelp_shard_stream *stream, kelp_status status,
                             const char *text);

#endif
