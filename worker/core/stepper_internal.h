/* The parts of the stepper that its files share. */
#ifndef KELP_WORKER_CORE_STEPPER_INTERNAL_H
#define KELP_WORKER_CORE_STEPPER_INTERNAL_H

#include "worker/core/offers.h"
#include "worker/core/stepper.h"

#define KELP__STEPPER_BUSY_MS 20u /* the first delay of ASK_LATER */

struct kelp__stepper_link {
    bool used;
    bool connected;
    bool apart;        /* its last stream ended, and no message has come on the one after it */
    uint64_t apart_ms; /* since when */
    bool helps;        /* what the shard was told on this stream */
    bool fresh;        /* of this event: has no stream yet */
    bool changed;      /* of this event: has a partition whose entry changed */
    struct kelp_place place;
    uint32_t stream; /* which of those to the place */
    uint32_t load;   /* of this event: partitions that it has got so far */
    uint32_t first;  /* its partitions are order[first] to order[end - 1] */
    uint32_t end;
};

/* A partition's entry in the map. */
struct kelp__stepper_route {
    uint32_t link;
    uint64_t map_epoch;
    bool again;                  /* the next message carries the nodes that were sent already */
    bool busy;                   /* something was refused: ASK_AGAIN sends it again */
    bool early;                  /* has the nodes that were not sent to all partitions yet */
    const struct kelp_place *to; /* of this event: where the entry leads now; NULL: unchanged */
};

/* Of one event. Messages name their items by position until the event ends. */
struct kelp__stepper_items {
    struct kelp_stepper_push *pushes;
    size_t push_count;
    size_t push_capacity;
    struct kelp_stepper_pull *pulls;
    size_t pull_count;
    size_t pull_capacity;
    struct kelp_stepper_share *shares;
    size_t share_count;
    size_t share_capacity;
};

struct kelp_stepper {
    const struct kelp_job *job;
    const struct kelp_plan *plan;
    bool decides; /* the job's training steps need decisions */

    uint64_t generation; /* 0: no map yet */
    uint64_t serial;
    uint32_t link_count; /* used or not */
    size_t link_capacity;
    struct kelp__stepper_link *links;
    struct kelp__stepper_route *routes; /* of each partition */
    uint32_t *order;                    /* partitions by link */

    bool assigned;
    uint32_t lane_first;
    uint32_t lane_count;
    bool rests;    /* computes nothing: too few workers are there */
    bool spare;    /* no lanes: does not follow the versions */
    bool fetching; /* no lanes, but an offer: gets the newest weights */
    struct kelp_offers offers;
    bool asking_later;
    uint32_t busy_ms; /* the next delay of ASK_LATER */

    struct kelp_sync *sync;
    bool working; /* word is in progress, and its weights are in the current vector */
    struct kelp_control_word word;
    uint8_t computed[KELP_JOB_LANES_MAX]; /* lanes of word handed out or pushed */
    struct kelp_stepper_node *nodes;      /* pushed for word; room for one for each lane */
    size_t node_count;
    bool handed_out;         /* lanes are being computed: until the next TURN */
    uint32_t handed_out_end; /* behind the last of them */
    bool partly;             /* the last node is not whole yet */
    bool early;      /* some partitions have nodes that others have not: routes tell which */
    bool goes_ahead; /* kelp_stepper_go_ahead() */
    bool ahead;      /* what is handed out is of a version that is not whole */
    struct {         /* then */
        uint64_t version;
        uint32_t first;
        uint32_t count;
    } next;
    bool finishing; /* nothing new is begun */
    bool overtaken; /* what is handed out is not needed: given up, or of an older generation */

    struct kelp__stepper_items items;
    struct kelp_stepper_actions *actions; /* of the event in progress */
    kelp_status status;                   /* KELP_ERR_NO_MEMORY: an action is missing */
};

/* The new action; when memory has run out, one that nobody reads. */
struct kelp_stepper_action *kelp__stepper_emit(struct kelp_stepper *stepper,
                                               enum kelp_stepper_action_kind kind);
/* Room for item number `count`: the array, moved perhaps; NULL: out of memory. */
void *kelp__stepper_reserve(struct kelp_stepper *stepper, void *items, size_t count,
                            size_t *capacity, size_t bytes);

struct kelp__stepper_sending {
    uint32_t link;
    bool fresh; /* the nodes that were not sent yet; those sent before go where `again` says */
    bool pulls; /* what sync asks for and carries */
};
/* Messages on one link: nodes, shares, pulls. None when there is nothing to tell. */
void kelp__stepper_send(struct kelp_stepper *stepper, const struct kelp__stepper_sending *sending);
/* The last node is complete in the partitions from there on: send the messages that are full, and
 * to whoever gets nothing else its last one, with the pulls. */
void kelp__stepper_send_partly(struct kelp_stepper *stepper, uint32_t partition_first);
/* What was sent to some partitions before others is sent to all, or gone. */
void kelp__stepper_sent_all(struct kelp_stepper *stepper);
/* What was sent to the partition, and what it was asked for, is for its next message again. */
void kelp__stepper_repeat(struct kelp_stepper *stepper, uint32_t partition);
void kelp__stepper_retry(struct kelp_stepper *stepper, uint32_t link);
void kelp__stepper_opened(struct kelp_stepper *stepper, uint32_t link);
void kelp__stepper_closed(struct kelp_stepper *stepper, uint32_t link, uint64_t now_ms);
/* Is there a stream that did not just end? */
bool kelp__stepper_reaches_any(const struct kelp_stepper *stepper);
void kelp__stepper_answer(struct kelp_stepper *stepper, const struct kelp_stepper_event *event);
void kelp__stepper_refused(struct kelp_stepper *stepper, const struct kelp_stepper_event *event);
void kelp__stepper_ask_again(struct kelp_stepper *stepper);
/* Open a stream, and send what the shard has not got, or has forgotten with the old one. */
void kelp__stepper_connect(struct kelp_stepper *stepper, uint32_t link);

enum kelp__stepper_map {
    KELP__MAP_NOTHING, /* nothing new, or it cannot be used */
    KELP__MAP_BEGINS,  /* a new generation: routes are as it says, and there are no links yet */
    KELP__MAP_CHANGES, /* routes of this generation changed */
};
/* Take a map: its entries that are newer. kelp__stepper_moved() follows. */
enum kelp__stepper_map kelp__stepper_hear_map(struct kelp_stepper *stepper,
                                              const struct kelp_places *places);
/* Take one entry that a shard told. False: it is not newer. */
bool kelp__stepper_hear_entry(struct kelp_stepper *stepper, uint32_t partition, uint64_t map_epoch,
                              const struct kelp_place *primary);
/* Links follow the routes that changed: streams that are needed no more close, new ones open, and
 * the partitions get what they may lack. */
void kelp__stepper_moved(struct kelp_stepper *stepper);
bool kelp__stepper_same_place(const struct kelp_place *a, const struct kelp_place *b);
/* The error of a FAIL action. */
struct kelp_error *kelp__stepper_fail(struct kelp_stepper *stepper);
/* At the end of an event: messages point to their items. */
void kelp__stepper_point(struct kelp_stepper *stepper);

#endif
