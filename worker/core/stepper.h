/*
 * Decides what a worker does next, as a pure state machine: events in, actions out.
 *
 * The stepper holds the map, the assigned lanes, the version in progress, the nodes pushed for it,
 * and which streams to shards are open. Weights, gradients and streams belong to the caller. A
 * gradient is a handle: the stepper holds it from COMPUTED until a RELEASE names it, once per event
 * that passed it.
 *
 * The nodes pushed for a version are kept until the next version is complete. They are pushed
 * again, and unanswered requests repeated, on a new stream, after a refusal, and to each partition
 * whose map entry changed, wherever it is now.
 *
 * Maps of one generation are applied as differences: for each partition the entry with the largest
 * epoch counts, also when a shard's refusal brings it. Streams belong to links, by number: one, or
 * up to transport.streams, per process (name and incarnation) that is primary of some partition.
 * Each partition has one link, so that its messages stay in order.
 *
 * A worker without lanes is a spare. It keeps its streams, requests nothing, and tells the shards
 * that it helps. After an offer it fetches the weights, computes the offered lanes, and becomes a
 * spare again. Other workers have w_v when an offer of v arrives, since they wait for w_{v+1}.
 *
 *     FOLLOWING --no lanes, and nothing to fetch--> SPARE
 *         ^                                           |
 *         |------- lanes, or an offer: start over ----|
 *
 * Partitions of the last node of the handed-out lanes may be sent before the node is complete:
 * PARTLY says which are complete. Messages are cut as they are without it, so their number does not
 * grow: full ones leave at once, and a link's last one, with its pulls, when all of its partitions
 * are complete.
 *
 * After kelp_stepper_go_ahead(), COMPUTE may hand out lanes of a training step whose weights are
 * still arriving (`ahead`); the received ones are in the next vector. BEGIN follows once all have
 * arrived, before the caller may pass any result. GIVE_UP comes instead if they may never arrive:
 * the job continued without this worker, or lanes of the previous version are offered to it, for
 * which others may be waiting.
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
    KELP_STEPPER_OPENED,    /* the first message arrived on a new stream */
    KELP_STEPPER_CLOSED,    /* the stream to a shard ended, or could not be opened */
    KELP_STEPPER_RETRY,     /* the delay of RETRY_LATER is over */
    KELP_STEPPER_ASK_AGAIN, /* the delay of ASK_LATER is over */
    KELP_STEPPER_PARTLY,    /* some partitions of a node are complete; more, and COMPUTED, follow */
    KELP_STEPPER_COMPUTED,  /* a node to push */
    KELP_STEPPER_TURN,      /* the caller's loop has handled all pending events */
    KELP_STEPPER_FINISH,    /* the worker was asked to end: LEAVE once its results are accepted */
    KELP_STEPPER_HALF,      /* fault injection: send results to the first shard only */
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
            const struct kelp_place *primary; /* of that epoch, with a refusal; NULL: unknown */
            struct kelp_sync_answer answer;   /* has_weights: with bytes */
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
            void *content; /* transferred until RELEASE, by each event */
            uint32_t partition_first; /* PARTLY: this and later ones are complete; not 0 */
        } computed;
    };
};

/* ---- actions --------------------------------------------------------------------------------- */

enum kelp_stepper_action_kind {
    KELP_STEPPER_FAIL,        /* the worker cannot continue */
    KELP_STEPPER_LEAVE,       /* the job is over, or FINISH is done */
    KELP_STEPPER_ADOPT,       /* for the log: a newer map, or entry, is in use */
    KELP_STEPPER_CLOSE,       /* close the link and its stream: no longer needed */
    KELP_STEPPER_CONNECT,     /* open a stream; an unused number starts a link */
    KELP_STEPPER_SEND,        /* send a message on a link; ignore it if the stream has ended */
    KELP_STEPPER_RETRY_LATER, /* RETRY after a delay */
    KELP_STEPPER_ASK_LATER,   /* ASK_AGAIN after a delay */
    KELP_STEPPER_KEEP,        /* copy the answer's weights into the next vector, at once */
    KELP_STEPPER_STALE,       /* for the log: refused because of an old map; a newer one follows */
    KELP_STEPPER_BEGIN,       /* a version's weights are complete: start it */
    KELP_STEPPER_COMPUTE,     /* compute lanes from the current vector, then pass COMPUTED and TURN;
                                 any other events may come meanwhile */
    KELP_STEPPER_GIVE_UP,     /* lanes computed ahead are useless: pass TURN instead of COMPUTED */
    KELP_STEPPER_RELEASE,     /* the stepper no longer needs the content of a node */
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
    bool helps; /* accepts offers although it requests nothing */
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
            uint32_t stream;                /* among those to that process; < transport.streams */
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
            bool offered; /* late lanes that were offered */
            bool ahead;   /* from the next vector, where some weights are missing */
        } compute;
        /* The next vector becomes the current one, which is then empty: weights that arrive are not
         * for the abandoned lanes, and do not disturb a thread that still reads the vector. */
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

/* Bytes of a model from which on overlapping is worth a thread's wake-up per message. */
#define KELP_STEPPER_OVERLAP_BYTES_MIN (4u << 20)

/* Is the model large enough to send while lanes are computed? */
bool kelp_stepper_overlaps(const struct kelp_plan *plan);

struct kelp_stepper;

/* job and plan are borrowed. NULL: out of memory. */
struct kelp_stepper *kelp_stepper_create(const struct kelp_job *job, const struct kelp_plan *plan);
/* Call kelp_stepper_drop() first: contents that were not released are leaked. NULL does nothing. */
void kelp_stepper_destroy(struct kelp_stepper *stepper);

/* Allow lanes ahead of their weights. Call before the first event. */
void kelp_stepper_go_ahead(struct kelp_stepper *stepper);

/* Handle one event; *actions is emptied first. The caller carries out the actions in order, before
 * the next event. */
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
/* The shard that has been unreachable for longest. */
struct kelp_stepper_trouble {
    const struct kelp_place *shard; /* NULL: all are reachable; borrowed until the next event */
    uint32_t link;
    uint64_t apart_ms; /* for how long */
    bool lasts;        /* long enough that the worker should get no lanes */
};
/* now_ms: as in CLOSED. */
void kelp_stepper_trouble(const struct kelp_stepper *stepper, uint64_t now_ms,
                          struct kelp_stepper_trouble *ret_trouble);
/* The process at the other end of a link; NULL: the link is unused. Borrowed until the next event.
 */
const struct kelp_place *kelp_stepper_place(const struct kelp_stepper *stepper, uint32_t link);
/* The first of the links to the same process, which identifies it. */
uint32_t kelp_stepper_first_link(const struct kelp_stepper *stepper, uint32_t link);
/* The link and map epoch of a partition, once there is a map. */
void kelp_stepper_route(const struct kelp_stepper *stepper, uint32_t partition, uint32_t *ret_link,
                        uint64_t *ret_map_epoch);

#endif
