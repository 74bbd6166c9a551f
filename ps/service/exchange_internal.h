/* What the files of the data path share: a worker's stream, and a message's turn. Nobody else
 * includes it. */
#ifndef KELP_PS_SERVICE_EXCHANGE_INTERNAL_H
#define KELP_PS_SERVICE_EXCHANGE_INTERNAL_H

#include "ps/service/shard_service_internal.h"

/* One answer on its way into a message. */
struct outgoing {
    uint32_t partition;
    uint64_t map_epoch;
    struct kelp_answer core;
    struct kelp_extent_loan loan; /* when bytes > 0 and no copy */
    void *copy;                   /* owned; instead of a loan */
    size_t bytes;
    double *values; /* owned; core.value_count of them */
};

struct refused {
    uint32_t partition;
    struct kelp_refusal core;
};

struct offered {
    uint32_t partition;
    uint64_t map_epoch;
    struct kelp_offer core;
};

struct kelp__service_peer {
    struct kelp_service *service;
    atomic_uint refs; /* the stream's own, and one for each turn that lists it */
    bool greeted;     /* only touched by callbacks of the stream, as are helps, rank and ... */
    bool only_looks;  /* its certificate has another role than worker: it may only pull */
    bool helps;       /* takes offers although it waits for nothing */
    uint64_t rank;    /* among those who are offered lanes */
    uint32_t author;  /* kelp__service_author() */
    char id[KELP_JOB_NAME_MAX + 1];

    pthread_mutex_t lock;           /* guards everything below */
    struct kelp_rpc_stream *stream; /* NULL once it ended */
    bool listed;                    /* in some turn's list, which will send */
    bool owes_greeting;             /* the hello has not been answered yet */
    struct outgoing *outgoing;
    size_t outgoing_count;
    size_t outgoing_capacity;
    struct refused *refused;
    size_t refused_count;
    size_t refused_capacity;
    struct offered *offered;
    size_t offered_count;
    size_t offered_capacity;
    struct kelp__service_peer *next; /* in the turn's list */
};

/* The newest reply of a turn that says nothing but answers: who gets the same gets the message. */
struct sent_reply {
    struct kelp_rpc_message *message; /* a reference; NULL: there is none */
    uint64_t generation;
    struct outgoing *outgoing; /* what it answers; holds the loans, so that no buffer comes again */
    size_t count;
    size_t capacity;
};

/* Scratch for one message to be built. */
struct kelp__service_turn {
    struct kelp_shard_turn shard;
    struct kelp_service *service;
    struct kelp__service_peer *touched;
    struct kelp__service_link *links;
    struct kelp__service_following *followings;
    Kelp__V1__PullAnswer *answers;
    Kelp__V1__PullAnswer **answer_pointers;
    Kelp__V1__ControlWord *words;
    size_t answer_capacity;
    Kelp__V1__Refusal *refusals;
    Kelp__V1__Refusal **refusal_pointers;
    size_t refusal_capacity;
    Kelp__V1__Offer *offers;
    Kelp__V1__Offer **offer_pointers;
    Kelp__V1__ControlWord *offer_words;
    size_t offer_capacity;
    struct sent_reply sent;
    struct service_map *told;        /* a reference, while something is refused */
    struct kelp__service_turn *next; /* in the free list */
};

/* *items becomes room for `count` of them; false: out of memory, and it is as it was. */
bool kelp__service_resize(void **items, size_t count, size_t size);
/* reply.c: give back what the answer holds. */
void kelp__service_outgoing_discard(struct outgoing *outgoing);
/* reply_sent.c: is it what the peer, which is locked, is to be told in this generation? */
bool kelp__service_sent_fits(const struct sent_reply *sent, const struct kelp__service_peer *peer,
                             uint64_t generation);
/* The message answers all that waits for the peer, which is locked; its answers move into `sent`.
 * The message stays the caller's too. */
void kelp__service_sent_keep(struct sent_reply *sent, struct kelp__service_peer *peer,
                             uint64_t generation, struct kelp_rpc_message *message);
/* There is none any more. */
void kelp__service_sent_drop(struct sent_reply *sent);
void kelp__service_peer_unref(struct kelp__service_peer *peer);
/* End its stream, saying why. The peer is locked. */
void kelp__service_peer_break_off(struct kelp__service_peer *peer, kelp_status status,
                                  const char *text);
/* Why its stream ends. It has one. */
void kelp__service_peer_log(struct kelp__service_peer *peer, const char *what, kelp_status status,
                            const char *text);

#endif
