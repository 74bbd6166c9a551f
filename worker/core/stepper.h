/*
 * What a worker does next, as a pure state machine: events in, actions out.
 *
 * The stepper holds the map, the assigned lanes, the version in progress, what was pushed for it,
 * and which streams to shards are open. Weights, gradients and streams are the caller's. A gradient
 * is a handle here: the stepper has it from COMPUTED until a RELEASE names it, once for each event
 * that gave it.
 *
 * The nodes pushed for a version are kept until the next version is whole. They are pushed again,
 * and what waits is asked for again: on a new stream, where they were refused, and to each
 * partition whose entry in the map changed, wherever it is now.
 *
 * Maps of one generation are taken as differences: of each partition the entry with the largest
 * epoch counts, also when a shard told it that refused something. Streams belong to links, by
 * number: one, or up to transport.streams, for each process (name and incarnation) that is primary
 * of some partition. Each partition has its link, so that what concerns it stays in order.
 *
 * A worker without lanes is a spare. It keeps its streams, asks for nothing, and tells the shards
 * that it helps. An offer makes it fetch the weights, compute the offered lanes, and become a spare
 * again. Other workers wait for w_{v+1} when an offer of v comes, so they have w_v already.
 *
 *     FOLLOWING --no lanes, and nothing to fetch--> SPARE
 *         ^                                           |
 *         |------- lanes, or an offer: start over ----|
 *
 * Of the last node of what was handed out, partitions may be sent before it is whole: PARTLY says
 * which are complete. Messages are cut as they are without it, so there are no more of them: those
 * that are full go at once, and a link's last one when all of its partitions are in, with its
 * pulls.
 *
 * Whoever says so (kelp_stepper_go_ahead()) may be given the lanes of a training step of which the
 * weights are still coming: those that are there are in the next vector, and COMPUTE says that it
 * is ahead. BEGIN follows once all are there, before anything of it is given. GIVE_UP comes instead
 * when they may never come: the job went on without this worker, or lanes of the version before are
 * wanted of it, for which others may wait in turn.
 *
 *     w_v whole, pushed --word, and w_{v+1} of partition 0--> AHEAD --all of w_{v+1}--> BEGIN
 *                                                               |
 *                                                               `--offer, new generation--> GIVE_UP
 *
 * Threads: one caller. No I/O, no clock, never blocks.
 * Errors: KELP_ERR_NO_MEMORY (only destroying is allowed afterwards), and KELP_ERR_INVALID for a
 * COMPUTED or PARTLY of lanes that do not exist, or before BEGIN, which changes nothing.
 */
#ifndef KELP_WORKER_CORE_STEPPER_H
#define KELP_WORKER_CORE_STEPPER_H

#include "worker/core/news.h"
#include "worker/core/sync.h"

/* ---- events ---------------------------------------------------------------------------------- */

enum kelp_stepper_event_kind {
    KELP_STEPPER_NEWS,      /* the coordinator sent something */
    KELP_STEPPER_ANSWER,    /* a shard answered a pull */
    KELP_STEPPER_REFUSED,   /* a shard refused a push or a share */
    KELP_STEPPER_OFFER,     /* a shard offers lanes of a late entry */
    KELP_STEPPER_OPENED,    /* the first message came on a new stream */
    KELP_STEPPER_CLOSED,    /* the stream to a shard ended, or could not be opened */
    KELP_STEPPER_RETRY,     /* the delay of RETRY_LATER is over */
    KELP_STEPPER_ASK_AGAIN, /* the delay of ASK_LATER is over */
    KELP_STEPPER_PARTLY,    /* partitions of a node to push: the others, and COMPUTED, follow */
    KELP_STEPPER_COMPUTED,  /* a node to push */
    KELP_STEPPER_TURN,      /* the caller's loop has handled everything that came */
    KELP_STEPPER_FINISH,    /* the worker is asked to end: LEAVE once what it computed is in */
    KELP_STEPPER_HALF,      /* fault injection: send what is computed to the first shard alone */
};

struct kelp_stepper_event {
    enum kelp_stepper_event_kind kind;
    union {
        struct {
            const struct kelp_news *news;
            const struct kelp_places *places; /* of news->map; NULL: no map */
        } news;
        struct {
            uint32_t link;
            uint64_t generation;              /* of the message */
            uint64_t map_epoch;               /* of the partition, there */
            const struct kelp_place *primary; /* of that epoch, with a refusal; NULL: not told */
            struct kelp_sync_answer answer;   /* has_weights: bytes came with it */
        } answer;
        struct {
            uint32_t link;
            uint64_t generation;
            uint32_t partition;
            uint64_t map_epoch;
            const struct kelp_place *primary;
            kelp_status status;
        } refused;
        struct {
            uint64_t generation;
            struct kelp_control_word word;
            uint32_t lane_first;
            uint32_t lane_count;
        } offer;
        struct {
            uint32_t link;
            uint64_t now_ms; /* CLOSED */
        } stream;            /* OPENED, CLOSED, RETRY */
        struct {
            uint32_t lane_first; /* aligned: a multiple of lane_count, which is a power of two */
            uint32_t lane_count;
            bool present;  /* some lane has samples: a training step's push carries bytes */
            void *content; /* given to the stepper, by each event */
            uint32_t partition_first; /* PARTLY: those from here on are complete; not 0 */
        } computed;
    };
};

/* ---- actions --------------------------------------------------------------------------------- */

enum kelp_stepper_action_kind {
    KELP_STEPPER_FAIL,        /* the worker cannot go on */
    KELP_STEPPER_LEAVE,       /* the job is over, or what FINISH asks for is done */
    KELP_STEPPER_ADOPT,       /* for the log: a newer map, or entry, is in use */
    KELP_STEPPER_CLOSE,       /* the link ends, with its stream: it is needed no more */
    KELP_STEPPER_CONNECT,     /* open a stream; a number that is not in use begins a link */
    KELP_STEPPER_SEND,        /* a message on a link; a stream that has ended takes nothing */
    KELP_STEPPER_RETRY_LATER, /* RETRY after a delay */
    KELP_STEPPER_ASK_LATER,   /* ASK_AGAIN after a delay */
    KELP_STEPPER_KEEP,        /* copy the answer's weights into the next vector, at once */
    KELP_STEPPER_STALE,       /* for the log: refused by an old map; a newer one is on its way */
    KELP_STEPPER_BEGIN,       /* a version is whole: begin to work on it */
    KELP_STEPPER_COMPUTE,     /* compute lanes from the current vector, then COMPUTED and TURN; all
                                 other events may come meanwhile */
    KELP_STEPPER_GIVE_UP,     /* what is computed ahead is of no use: TURN instead of COMPUTED */
    KELP_STEPPER_RELEASE,     /* the stepper needs the content of a node no more */
};

struct kelp_stepper_node {
    uint32_t lane_first;
    uint32_t lane_count;
    bool present;
    bool sent;
    void *content;
};

struct kelp_stepper_push {
    uint32_t partition;
    uint64_t map_epoch;
    uint64_t bytes; /* of the slice of the gradient that goes with it */
    const struct kelp_stepper_node *node;
};

struct kelp_stepper_pull {
    uint64_t map_epoch;
    struct kelp_sync_pull pull;
};

/* The share of another partition, for the host of partition 0. */
struct kelp_stepper_share {
    uint32_t partition;
    uint64_t map_epoch;
    const struct kelp_decision_share *share;
};

#define KELP_STEPPER_ITEMS_MAX (2u * KELP_PARTITIONS_MAX) /* of a kind, in one message */

/* One message on a link. Everything it points to is borrowed until the next event. */
struct kelp_stepper_message {
    uint32_t link;
    uint64_t generation;
    bool helps; /* takes offers although it asks for nothing */
    bool has_word;
    struct kelp_control_word word;
    struct kelp_step_decision decision; /* goes with the word */
    const struct kelp_stepper_push *pushes;
    size_t push_count;
    uint64_t push_bytes; /* of all pushes */
    const struct kelp_stepper_pull *pulls;
    size_t pull_count;
    const struct kelp_stepper_share *shares;
    size_t share_count;
};

struct kelp_stepper_action {
    enum kelp_stepper_action_kind kind;
    union {
        struct kelp_error fail;
        struct {
            uint64_t generation;
            uint64_t serial;
            uint32_t changed; /* partitions */
        } adopt;
        uint32_t close; /* link */
        struct {
            uint32_t link;
            uint64_t generation;
            const struct kelp_place *place; /* borrowed until the next event */
            uint32_t stream;                /* of those to that process: under transport.streams */
        } connect;
        struct kelp_stepper_message send;
        struct {
            uint32_t link; /* RETRY_LATER */
            uint32_t after_ms;
        } later;
        struct {
            uint32_t partition;
            kelp_status status;
        } stale;
        struct {
            struct kelp_control_word word;
            bool swap; /* the next vector becomes the current one */
        } begin;
        struct {
            struct kelp_control_word word;
            uint32_t lane_first;
            uint32_t lane_count;
            bool offered; /* the lanes are late, and were offered */
            bool ahead;   /* from the next vector, in which weights are missing */
        } compute;
        /* The next vector becomes the current one, which holds nothing: what comes is not for
         * the lanes that are given up, and does not disturb whoever still reads it. */
        bool give_up_swap;
        void *release;
    };
};

/* A list that the caller owns and reuses. */
struct kelp_stepper_actions {
    struct kelp_stepper_action *items;
    size_t count;
    size_t capacity;
};
void kelp_stepper_actions_fini(struct kelp_stepper_actions *actions);

/* ---- the machine ----------------------------------------------------------------------------- */

/* Bytes of a model from which on it is worth a thread's wake-up for each message. */
#define KELP_STEPPER_OVERLAP_BYTES_MIN (4u << 20)

/* Is a model so large that sending while lanes are computed pays? */
bool kelp_stepper_overlaps(const struct kelp_plan *plan);

struct kelp_stepper;

/* job and plan are borrowed. NULL: out of memory. */
struct kelp_stepper *kelp_stepper_create(const struct kelp_job *job, const struct kelp_plan *plan);
/* Contents that were not released are forgotten: kelp_stepper_drop() first. NULL does nothing. */
void kelp_stepper_destroy(struct kelp_stepper *stepper);

/* The caller computes lanes ahead. Before the first event. */
void kelp_stepper_go_ahead(struct kelp_stepper *stepper);

/* Take in one event; *actions is emptied first. The actions are carried out in their order, and
 * before the next event. */
kelp_status kelp_stepper_event(struct kelp_stepper *stepper, const struct kelp_stepper_event *event,
                               struct kelp_stepper_actions *actions) KELP_MUST_USE;
/* The end: release everything. */
kelp_status kelp_stepper_drop(struct kelp_stepper *stepper,
                              struct kelp_stepper_actions *actions) KELP_MUST_USE;

/* For heartbeats, logs and tests. */
struct kelp_stepper_view {
    enum kelp_sync_state sync;
    uint64_t generation; /* 0: no map yet */
    bool working;
    bool spare;
    struct kelp_control_word word; /* of the newest version begun */
    uint32_t lane_first;
    uint32_t lane_count;
};
void kelp_stepper_view(const struct kelp_stepper *stepper, struct kelp_stepper_view *ret_view);
/* The shard that cannot be reached for longest. */
struct kelp_stepper_trouble {
    const struct kelp_place *shard; /* NULL: all are reached; borrowed until the next event */
    uint32_t link;
    uint64_t apart_ms; /* for how long */
    bool lasts;        /* so long that the worker should get no lanes */
};
/* now_ms: as in CLOSED. */
void kelp_stepper_trouble(const struct kelp_stepper *stepper, uint64_t now_ms,
                          struct kelp_stepper_trouble *ret_trouble);
/* Where a link leads to; NULL: nowhere. Borrowed until the next event. */
const struct kelp_place *kelp_stepper_place(const struct kelp_stepper *stepper, uint32_t link);
/* The first of the links to the process that this one leads to: stands for it. */
uint32_t kelp_stepper_first_link(const struct kelp_stepper *stepper, uint32_t link);
/* Where a partition is, once there is a map: the link, and its epoch. */
void kelp_stepper_route(const struct kelp_stepper *stepper, uint32_t partition, uint32_t *ret_link,
                        uint64_t *ret_map_epoch);

#endif
