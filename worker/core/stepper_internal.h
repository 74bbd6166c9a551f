/* The parts of the stepper that its files share. */
#ifndef KELP_WORKER_CORE_STEPPER_INTERNAL_H
#define KELP_WORKER_CORE_STEPPER_INTERNAL_H

#include "worker/core/offers.h"
#include "worker/core/stepper.h"

struct kelp__stepper_link {
    bool connected;
    bool helps;               /* what the shard was told on this stream */
    uint32_t partition_first; /* the shard's run; end 0: none */
    uint32_t partition_end;
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
    uint32_t link_count;
    struct kelp__stepper_link *links;
    uint64_t *map_epoch; /* of each partition */

    bool assigned;
    uint32_t lane_first;
    uint32_t lane_count;
    bool spare;    /* no lanes: does not follow the versions */
    bool fetching; /* no lanes, but an offer: gets the newest weights */
    struct kelp_offers offers;
    bool asking_later;

    struct kelp_sync *sync;
    bool working; /* word is in progress, and its weights are in the current vector */
    struct kelp_control_word word;
    uint8_t computed[KELP_JOB_LANES_MAX]; /* lanes of word handed out or pushed */
    struct kelp_stepper_node *nodes;      /* pushed for word; room for one for each lane */
    size_t node_count;

    struct kelp__stepper_items items;
    struct kelp_stepper_actions *actions; /* of the event under way */
    kelp_status status;                   /* KELP_ERR_NO_MEMORY: an action is missing */
};

/* The new action; when memory has run out, one that nobody reads. */
struct kelp_stepper_action *kelp__stepper_emit(struct kelp_stepper *stepper,
                                               enum kelp_stepper_action_kind kind);
/* Room for item number `count`: the array, moved perhaps; NULL: out of memory. */
void *kelp__stepper_reserve(struct kelp_stepper *stepper, void *items, size_t count,
                            size_t *capacity, size_t bytes);

struct kelp__stepper_sending {
    uint32_t shard;
    bool resend; /* also the nodes that were sent before */
    bool pulls;  /* and what sync asks for and carries */
};
/* Messages to one shard: nodes, shares, pulls. None when there is nothing to tell. */
void kelp__stepper_send(struct kelp_stepper *stepper, const struct kelp__stepper_sending *sending);
/* At the end of an event: messages point to their items. */
void kelp__stepper_point(struct kelp_stepper *stepper);

#endif
