/*
 * Streams between processes, as gRPC gives them: messages of one direction keep their order, and
 * nothing that is lost goes unnoticed for ever, because the stream ends when its pings are not
 * answered. What the network does wrong:
 *
 *   late      a message, and what follows it on its stream, takes up to seconds
 *   lost      nothing of that direction arrives any more; some time later the stream ends
 *   doubled   pushes and answers arrive once more, at any time, out of order, also after the stream
 *             has ended
 *   broken    a stream ends; either side hears of it in its own time, and what was on its way may
 *             or may not arrive
 *   split     hosts do not reach each other; what was sent arrives when the split heals, or the
 *             streams end before that
 *   cut       nothing goes from one process to another one, the other way it does. No stream opens
 *             between them, since that takes both ways; one that is open ends by its pings
 */
#ifndef KELP_TESTS_SIM_OUTSIDE_NETWORK_H
#define KELP_TESTS_SIM_OUTSIDE_NETWORK_H

#include "tests/sim/outside/message.h"

enum sim_stream_kind {
    SIM_EXCHANGE,
    SIM_CONTROL,
    SIM_JOIN,
    SIM_FOLLOW,
    SIM_REPLICATE,
    SIM_STREAM_KIND_COUNT
};
enum sim_side { SIM_CLIENT, SIM_SERVER };

/* What a process makes of its streams; by kind and side. The message is borrowed. `stray`: doubled,
 * out of order, perhaps of a stream that has ended: its pushes and answers count, its pulls do not.
 */
struct sim_stream_events {
    void (*accept)(struct sim *sim, struct sim_process *process, uint64_t stream);
    void (*message)(struct sim *sim, struct sim_process *process, uint64_t stream,
                    struct sim_message *message, bool stray);
    /* broken: the other side has ended it; else it went silent, or this side closed it. */
    void (*closed)(struct sim *sim, struct sim_process *process, uint64_t stream, bool broken);
};
/* In shard.c, coordinator.c, worker.c; accept is the server's alone. */
extern const struct sim_stream_events sim_exchange_server, sim_exchange_client;
extern const struct sim_stream_events sim_control_server, sim_control_client;
extern const struct sim_stream_events sim_join_server, sim_join_client;
extern const struct sim_stream_events sim_follow_server, sim_follow_client;
extern const struct sim_stream_events sim_replicate_server, sim_replicate_client;

struct sim_network *sim_network_create(void);
void sim_network_destroy(struct sim_network *network);

/*
 * Open a stream to whoever runs as `server` when the request arrives. Unless a message of the
 * server comes within first_ms, the stream ends. Never fails at once; names the stream, not 0.
 */
uint64_t sim_stream_open(struct sim *sim, struct sim_process *client, struct sim_process *server,
                         enum sim_stream_kind kind, uint32_t first_ms);

/* The message is transferred. A stream that has ended for this side takes nothing. */
void sim_stream_send(struct sim *sim, uint64_t stream, enum sim_side from, void *message);

/* End it; closed() follows for this side too, soon. */
void sim_stream_close(struct sim *sim, uint64_t stream, enum sim_side side);

/* True while this side may send. */
bool sim_stream_open_for(const struct sim *sim, uint64_t stream, enum sim_side side);

/* Does the other end answer this side's pings just now? */
bool sim_stream_hears(const struct sim *sim, uint64_t stream, enum sim_side side);

/* Who is at the other end. */
const struct sim_process *sim_stream_peer(const struct sim *sim, uint64_t stream,
                                          enum sim_side side);

/* The process has ended: its peers hear of it at once if its host lives (silent: it does not). */
void sim_network_process_ended(struct sim *sim, struct sim_process *process, bool silent);

/* Break a random stream; false: there is none. */
bool sim_network_break_one(struct sim *sim);

/* Which hosts reach each other: bit h of side says on which side of the split host h is. */
void sim_network_split(struct sim *sim, uint32_t side);
void sim_network_heal(struct sim *sim);
bool sim_network_reaches(const struct sim *sim, unsigned host, unsigned other);
/* One way, from process to process, by their places; false: it is cut already, or too many are. */
bool sim_network_cut(struct sim *sim, unsigned from, unsigned to);
void sim_network_mend(struct sim *sim, unsigned from, unsigned to);
void sim_network_mend_all(struct sim *sim);

#endif
