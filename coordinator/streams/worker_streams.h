/*
 * What workers and `kelp status` talk to: the Coordinator service of kelp.proto. Decodes what comes
 * in for the term, and encodes what a term wants told. While we do not lead, streams are closed
 * with KELP_ERR_NOT_LEADER.
 */
#ifndef KELP_COORDINATOR_STREAMS_WORKER_STREAMS_H
#define KELP_COORDINATOR_STREAMS_WORKER_STREAMS_H

#include "common/log/log_gate.h"
#include "common/rpc/rpc.h"
#include "common/scrape/figures.h"
#include "coordinator/common/identity.h"
#include "coordinator/streams/follower_streams.h"
#include "coordinator/term/leadership.h"

struct kelp_worker_stream;

struct kelp_worker_streams {
    struct kelp_leadership *leadership;      /* borrowed */
    const struct kelp_identity *identity;    /* borrowed */
    struct kelp_follower_streams *followers; /* borrowed; has the streams of Follow */
    struct kelp_figures *figures;     /* borrowed; refusals are counted there. NULL: nowhere */
    struct kelp_worker_stream *first; /* owned; freed as they end */
    uint32_t count;
    struct kelp_log_gate refusals; /* lines about streams that are ended, */
    struct kelp_log_gate requests; /* and about checkpoints that were asked for */
};

/* Borrowed for the life of the process; the server's user is the streams. */
const struct kelp_rpc_method *kelp_worker_streams_methods(size_t *ret_count);
/* The server refused a call before a method saw it. */
void kelp_worker_streams_count_refused(void *server_user);

/* Effects of a term (coordinator/term/outside/term_effects.h) upon one of them. */
bool kelp_worker_stream_full(const struct kelp_worker_stream *stream);
void kelp_worker_stream_send(struct kelp_worker_stream *stream,
                             const struct kelp_session_news *news);
void kelp_worker_stream_refuse(struct kelp_worker_stream *stream, bool hello, kelp_status status,
                               const char *text);
void kelp_worker_stream_close(struct kelp_worker_stream *stream, kelp_status status,
                              const char *text);

#endif
