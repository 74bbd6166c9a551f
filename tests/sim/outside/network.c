#include "tests/sim/outside/network.h"

#include <assert.h>
#include <stdlib.h>

#define PING_MIN_US   (SIM_SECOND / 2) /* a silent stream ends so long after; kept short, since */
#define PING_MAX_US   (4 * SIM_SECOND) /* faults are to meet what happens afterwards */
#define PING_APART_US (200 * SIM_MS)   /* between its two ends */
#define STRAY_MAX_US  (3 * SIM_SECOND)

/* One end of a stream. */
struct end {
    struct sim_process *process;
    uint64_t incarnation;
    bool closed;       /* closed() was called or is not wanted: nothing more happens here */
    bool closing;      /* closed() is on its way */
    bool broken;       /* said by closed() */
    bool deaf;         /* a message to this end was lost: no later one arrives */
    uint64_t ready_us; /* messages to this end arrive in order: not before this */
};

struct stream {
    enum sim_stream_kind kind;
    bool accepted;
    bool answered; /* the server has sent something that arrived */
    struct end ends[2];
};

struct held {
    uint64_t stream;
    enum sim_side to;
    struct sim_message *message;
};

struct cut {
    unsigned from; /* places */
    unsigned to;
};
#define CUTS_MAX 8

struct sim_network {
    struct stream *streams; /* stream n is streams[n - 1] */
    size_t count;
    size_t capacity;
    bool split;
    uint32_t side;
    struct cut cuts[CUTS_MAX];
    size_t cut_count;
    struct held *held; /* in the order in which they were sent */
    size_t held_count;
    size_t held_capacity;
};

static const struct sim_stream_events *const events[SIM_STREAM_KIND_COUNT][2] = {
    [SIM_EXCHANGE] = {&sim_exchange_client, &sim_exchange_server},
    [SIM_CONTROL] = {&sim_control_client, &sim_control_server},
    [SIM_JOIN] = {&sim_join_client, &sim_join_server},
    [SIM_FOLLOW] = {&sim_follow_client, &sim_follow_server},
    [SIM_REPLICATE] = {&sim_replicate_client, &sim_replicate_server},
};

struct sim_network *sim_network_create(void)
{
    return sim_alloc(sizeof(struct sim_network));
}

void sim_network_destroy(struct sim_network *network)
{
    if (network) {
        for (size_t i = 0; i < network->held_count; i++) {
            sim_message_unref(network->held[i].message);
        }
        free(network->held);
        free(network->streams);
        free(network);
    }
}

static struct stream *find(const struct sim *sim, uint64_t id)
{
    assert(id > 0 && id <= sim->network->count);
    return &sim->network->streams[id - 1];
}

static enum sim_side other(enum sim_side side)
{
    return side == SIM_CLIENT ? SIM_SERVER : SIM_CLIENT;
}

bool sim_network_reaches(const struct sim *sim, unsigned host, unsigned peer)
{
    const struct sim_network *network = sim->network;
    return !network->split || ((network->side >> host) & 1) == ((network->side >> peer) & 1);
}

static struct cut *find_cut(struct sim_network *network, unsigned from, unsigned to)
{
    for (size_t i = 0; i < network->cut_count; i++) {
        if (network->cuts[i].from == from && network->cuts[i].to == to) {
            return &network->cuts[i];
        }
    }
    return NULL;
}

/* Does what the other end sends get here? */
static bool arrives(const struct sim *sim, const struct stream *stream, enum sim_side here)
{
    const struct sim_process *to = stream->ends[here].process;
    const struct sim_process *from = stream->ends[other(here)].process;
    return sim_network_reaches(sim, from->host, to->host) &&
           !find_cut(sim->network, from->place, to->place);
}

static bool reaches(const struct sim *sim, const struct stream *stream)
{
    return arrives(sim, stream, SIM_CLIENT) && arrives(sim, stream, SIM_SERVER);
}

static uint64_t latency(struct sim *sim)
{
    return sim_between(sim, 30, sim->profile.latency_us);
}

/* ---- the end of a stream -----------------------------------------------------------------------
 */

/* number: stream * 2 + side. data: nothing. */
static void tell_closed(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct stream *stream = find(sim, number / 2);
    enum sim_side side = (enum sim_side)(number % 2);
    struct end *end = &stream->ends[side];
    (void)data;
    if (!end->closed) {
        end->closed = true;
        events[stream->kind][side]->closed(sim, process, number / 2, end->broken);
    }
}

/* In order behind what is on its way to this end. */
static void close_later(struct sim *sim, uint64_t id, enum sim_side side, uint64_t delay_us,
                        bool broken)
{
    struct end *end = &find(sim, id)->ends[side];
    if (end->closed || end->closing || !sim_lives(end->process, end->incarnation)) {
        return;
    }
    uint64_t at = sim->now + delay_us;
    end->closing = true;
    end->broken = broken;
    at = at < end->ready_us ? end->ready_us : at;
    end->ready_us = at;
    sim_after(sim, at - sim->now,
              &(struct sim_call){
                  .process = end->process, .run = tell_closed, .number = 2 * id + (uint64_t)side});
}

/* Nobody answers the pings: each side finds out by itself. */
static void close_by_ping(struct sim *sim, uint64_t id)
{
    close_later(sim, id, SIM_CLIENT, sim_between(sim, PING_MIN_US, PING_MAX_US), false);
    if (find(sim, id)->accepted) {
        close_later(sim, id, SIM_SERVER, sim_between(sim, PING_MIN_US, PING_MAX_US), false);
    }
}

/* The pings of a stream that a split cuts are due. */
static void ping_later(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)process;
    (void)data;
    if (!reaches(sim, find(sim, number))) {
        close_later(sim, number, SIM_CLIENT, sim_draw(sim, PING_APART_US), false);
        if (find(sim, number)->accepted) {
            close_later(sim, number, SIM_SERVER, sim_draw(sim, PING_APART_US), false);
        }
    }
}

void sim_stream_close(struct sim *sim, uint64_t id, enum sim_side side)
{
    struct stream *stream = find(sim, id);
    stream->ends[side].deaf = true; /* it does not read any more */
    close_later(sim, id, side, 1, false);
    if (!arrives(sim, stream, other(side))) {
        close_later(sim, id, other(side), sim_between(sim, PING_MIN_US, PING_MAX_US), false);
    } else if (stream->accepted || side == SIM_SERVER) {
        close_later(sim, id, other(side), latency(sim), true);
    }
}

bool sim_stream_open_for(const struct sim *sim, uint64_t id, enum sim_side side)
{
    const struct end *end = &find(sim, id)->ends[side];
    return !end->closed && !end->closing;
}

bool sim_stream_hears(const struct sim *sim, uint64_t id, enum sim_side side)
{
    const struct stream *stream = find(sim, id);
    const struct end *peer = &stream->ends[other(side)];
    return reaches(sim, stream) && stream->accepted && !stream->ends[side].deaf && !peer->deaf &&
           sim_lives(peer->process, peer->incarnation) && !peer->process->paused;
}

const struct sim_process *sim_stream_peer(const struct sim *sim, uint64_t id, enum sim_side side)
{
    return find(sim, id)->ends[other(side)].process;
}

/* ---- messages ----------------------------------------------------------------------------------
 */

#define STRAY 4 /* in number: a doubled message */

/* number: stream * 8 + STRAY + side that receives. */
static void deliver(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_message *message = data;
    uint64_t id = number / 8;
    bool stray = (number & STRAY) != 0;
    enum sim_side side = (enum sim_side)(number & 1);
    struct stream *stream = find(sim, id);
    struct end *end = &stream->ends[side];
    bool heard = stray || (!end->deaf && (side == SIM_CLIENT || stream->accepted));
    if (heard && (!end->closed || (stray && side == SIM_SERVER))) {
        stream->answered = stream->answered || side == SIM_CLIENT;
        events[stream->kind][side]->message(sim, process, id, message, stray);
    }
    sim_message_unref(message);
}

static void post(struct sim *sim, uint64_t id, enum sim_side to, struct sim_message *message,
                 uint64_t delay_us, bool stray)
{
    struct end *end = &find(sim, id)->ends[to];
    uint64_t at = sim->now + delay_us;
    if (!sim_lives(end->process, end->incarnation)) {
        sim_message_unref(message);
        return;
    }
    if (!stray) { /* in order */
        at = at <= end->ready_us ? end->ready_us + 1 : at;
        end->ready_us = at;
    }
    sim_after(sim, at - sim->now,
              &(struct sim_call){.process = end->process,
                                 .run = deliver,
                                 .data = message,
                                 .drop = sim_message_unref,
                                 .number = 8 * id + (stray ? STRAY : 0) + (uint64_t)to});
}

static uint64_t delay_of(struct sim *sim)
{
    uint64_t delay = latency(sim);
    if (sim_chance(sim, sim->profile.late_rate, 10000)) {
        sim->counts[SIM_COUNT_MESSAGE_LATE]++;
        delay += sim_draw(sim, sim_draw(sim, 4) == 0 ? 2 * SIM_SECOND : 100 * SIM_MS);
    }
    return delay;
}

/* A message on its way, whatever the network makes of it. */
static void carry(struct sim *sim, uint64_t id, enum sim_side to, struct sim_message *message)
{
    struct stream *stream = find(sim, id);
    struct end *end = &stream->ends[to];
    bool data = stream->kind == SIM_EXCHANGE || stream->kind == SIM_REPLICATE;
    if (data && sim_chance(sim, sim->profile.double_rate, 10000)) {
        sim->counts[SIM_COUNT_MESSAGE_DOUBLED]++;
        sim_message_ref(message);
        post(sim, id, to, message, sim_draw(sim, STRAY_MAX_US), true);
    }
    if (!end->deaf && !end->closing && sim_chance(sim, sim->profile.lost_rate, 10000)) {
        sim->counts[SIM_COUNT_MESSAGE_LOST]++;
        sim_say(sim, stream->ends[other(to)].process, "loses its stream to %s: messages vanish",
                end->process->id);
        end->deaf = true;
        close_by_ping(sim, id);
    }
    if (end->deaf) {
        sim_message_unref(message);
        return;
    }
    post(sim, id, to, message, delay_of(sim), false);
}

void sim_stream_send(struct sim *sim, uint64_t id, enum sim_side from, void *message)
{
    struct stream *stream = find(sim, id);
    struct sim_network *network = sim->network;
    struct end *end = &stream->ends[from];
    if (end->closed || end->closing) {
        sim_message_unref(message);
    } else if (!arrives(sim, stream, other(from))) {
        network->held = sim_grow(network->held, network->held_count, &network->held_capacity,
                                 sizeof(*network->held));
        network->held[network->held_count++] =
            (struct held){.stream = id, .to = other(from), .message = message};
    } else {
        carry(sim, id, other(from), message);
    }
}

/* ---- opening -----------------------------------------------------------------------------------
 */

static void accept_now(struct sim *sim, struct sim_process *server, void *data, uint64_t number)
{
    struct stream *stream = find(sim, number);
    (void)data;
    stream->accepted = true;
    events[stream->kind][SIM_SERVER]->accept(sim, server, number);
    if (stream->ends[SIM_CLIENT].closed || stream->ends[SIM_CLIENT].closing) {
        close_later(sim, number, SIM_SERVER, latency(sim), true);
    }
}

static void arrive(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct stream *stream = find(sim, number);
    struct sim_process *server = stream->ends[SIM_SERVER].process;
    (void)process;
    (void)data;
    if (stream->ends[SIM_CLIENT].closed || stream->ends[SIM_CLIENT].closing ||
        !reaches(sim, stream)) {
        return;
    }
    if (server->incarnation == 0) {
        close_later(sim, number, SIM_CLIENT, latency(sim), true);
        return;
    }
    stream->ends[SIM_SERVER].incarnation = server->incarnation;
    sim_after(sim, 0, &(struct sim_call){.process = server, .run = accept_now, .number = number});
}

static void first_due(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct stream *stream = find(sim, number);
    (void)process;
    (void)data;
    if (!stream->answered) {
        sim_stream_close(sim, number, SIM_CLIENT);
    }
}

uint64_t sim_stream_open(struct sim *sim, struct sim_process *client, struct sim_process *server,
                         enum sim_stream_kind kind, uint32_t first_ms)
{
    struct sim_network *network = sim->network;
    network->streams =
        sim_grow(network->streams, network->count, &network->capacity, sizeof(*network->streams));
    uint64_t id = ++network->count;
    uint64_t at = sim->now + latency(sim);
    network->streams[id - 1] = (struct stream){
        .kind = kind,
        .ends = {{.process = client, .incarnation = client->incarnation},
                 {.process = server, .incarnation = server->incarnation, .ready_us = at}}};
    sim_after(sim, at - sim->now, &(struct sim_call){.run = arrive, .number = id});
    sim_after(sim, first_ms * SIM_MS,
              &(struct sim_call){.process = client, .run = first_due, .number = id});
    return id;
}

/* ---- faults ------------------------------------------------------------------------------------
 */

void sim_network_process_ended(struct sim *sim, struct sim_process *process, bool silent)
{
    struct sim_network *network = sim->network;
    for (uint64_t id = 1; id <= network->count; id++) {
        struct stream *stream = find(sim, id);
        for (int side = 0; side < 2; side++) {
            struct end *end = &stream->ends[side];
            if (end->process != process || end->closed) {
                continue;
            }
            struct end *peer = &stream->ends[1 - side];
            end->closed = true;
            if (silent || !arrives(sim, stream, (enum sim_side)(1 - side))) {
                close_later(sim, id, (enum sim_side)(1 - side),
                            sim_between(sim, PING_MIN_US, PING_MAX_US), false);
            } else {
                /* What it had sent may have left its host, or not. */
                peer->deaf = peer->deaf || sim_draw(sim, 2) == 0;
                close_later(sim, id, (enum sim_side)(1 - side), latency(sim), true);
            }
        }
    }
}

bool sim_network_break_one(struct sim *sim)
{
    struct sim_network *network = sim->network;
    uint64_t first = network->count > 40 ? network->count - 40 : 0; /* older ones have ended */
    for (int i = 0; i < 20 && network->count > 0; i++) {
        uint64_t id = first + 1 + sim_draw(sim, network->count - first);
        struct stream *stream = find(sim, id);
        if (stream->ends[0].closed || stream->ends[0].closing || !stream->accepted) {
            continue;
        }
        sim_say(sim, NULL, "breaks the stream of %s to %s", stream->ends[0].process->id,
                stream->ends[1].process->id);
        stream->ends[0].deaf = stream->ends[0].deaf || sim_draw(sim, 2) == 0;
        stream->ends[1].deaf = stream->ends[1].deaf || sim_draw(sim, 2) == 0;
        close_later(sim, id, SIM_CLIENT, sim_draw(sim, 50 * SIM_MS), true);
        close_later(sim, id, SIM_SERVER, sim_draw(sim, 50 * SIM_MS), true);
        return true;
    }
    return false;
}

/* Streams that go over it find out by their pings. */
static void look_at_streams(struct sim *sim)
{
    for (uint64_t id = 1; id <= sim->network->count; id++) {
        struct stream *stream = find(sim, id);
        if (!stream->ends[0].closed && !reaches(sim, stream)) {
            sim_after(sim, sim_between(sim, PING_MIN_US, PING_MAX_US),
                      &(struct sim_call){.run = ping_later, .number = id});
        }
    }
}

/* What waited for it goes on. */
static void carry_held(struct sim *sim)
{
    struct sim_network *network = sim->network;
    size_t kept = 0;
    for (size_t i = 0; i < network->held_count; i++) {
        struct held held = network->held[i];
        const struct stream *stream = find(sim, held.stream);
        if (stream->ends[held.to].closed) {
            sim_message_unref(held.message);
        } else if (arrives(sim, stream, held.to)) {
            carry(sim, held.stream, held.to, held.message);
        } else {
            network->held[kept++] = held;
        }
    }
    network->held_count = kept;
}

void sim_network_split(struct sim *sim, uint32_t side)
{
    sim->network->split = true;
    sim->network->side = side;
    look_at_streams(sim);
}

void sim_network_heal(struct sim *sim)
{
    sim->network->split = false;
    carry_held(sim);
}

bool sim_network_cut(struct sim *sim, unsigned from, unsigned to)
{
    struct sim_network *network = sim->network;
    if (network->cut_count == CUTS_MAX || find_cut(network, from, to)) {
        return false;
    }
    network->cuts[network->cut_count++] = (struct cut){from, to};
    look_at_streams(sim);
    return true;
}

void sim_network_mend(struct sim *sim, unsigned from, unsigned to)
{
    struct sim_network *network = sim->network;
    struct cut *cut = find_cut(network, from, to);
    if (cut) {
        *cut = network->cuts[--network->cut_count];
        carry_held(sim);
    }
}

void sim_network_mend_all(struct sim *sim)
{
    sim->network->cut_count = 0;
    carry_held(sim);
}
