/* What ps/service/replicas/links.c, forward.c and pieces.c share; nobody else
 * includes it. */
#ifndef KELP_PS_SERVICE_REPLICAS_LINKS_INTERNAL_H
#define KELP_PS_SERVICE_REPLICAS_LINKS_INTERNAL_H

#include "ps/service/replicas/replicas_internal.h"

/* A root on its way into a message. */
struct kept_root {
    uint32_t partition;
    struct kelp_forward forward; /* without sums, digest and decision: */
    char digest[33];
    double *values; /* owned: sums, then what was decided, and what follows; NULL: none of all */
    uint64_t *claim_sums; /* partition 0 */
    uint32_t *claim_contents;
    uint32_t *claim_nodes;
    uint32_t *claim_authors;
    bool lent;
    struct kelp_gradients_loan loan;
};

/* A worker whose name the follower does not know yet. */
struct new_author {
    uint32_t number;
    char id[KELP_JOB_NAME_MAX + 1];
};

/* Room for one message that is built; as many as the largest so far. */
struct link_scratch {
    Kelp__V1__Forward *forwards;
    Kelp__V1__Forward **forward_pointers;
    Kelp__V1__ControlWord *words;
    size_t forward_capacity;
    Kelp__V1__Question *questions;
    Kelp__V1__Question **question_pointers;
    size_t question_capacity;
    Kelp__V1__Author *authors;
    Kelp__V1__Author **author_pointers;
    size_t author_capacity;
};

/* A copy on its way, in pieces. */
struct link_copy {
    struct link_copy *next;
    uint32_t partition;
    struct kelp_replica_copy *content; /* a reference */
    uint32_t item;                     /* what of it is sent next ... */
    size_t position;                   /* ... and from which byte on */
    struct kelp_wire_record *records;  /* partition 0: the newest ones; owned */
    Kelp__V1__Record **record_pointers;
    size_t record_count;
};

struct kelp__service_link {
    struct kelp_service *service;
    struct kelp__service_link *next; /* of the list; replicas->lock, as is wanted */
    bool wanted;
    atomic_uint refs; /* the list's, the stream's, and one for each turn that lists it */
    uint64_t process;
    uint64_t incarnation;
    char *id;
    char *address;
    bool heard;                 /* only touched by callbacks of the stream */
    atomic_uint_fast32_t quiet; /* milliseconds in which we listened and nothing came */

    pthread_mutex_t lock;             /* guards what follows */
    struct kelp_rpc_channel *channel; /* NULL: none */
    struct kelp_rpc_stream *stream;   /* NULL: none */
    bool shared;                      /* the stream goes through shared memory */
    char *unmet;                      /* that is demanded, and it does not: why; NULL: it does */
    uint64_t serial;                  /* of the newest stream */
    bool is_up;                       /* the follower has answered the hello */
    bool is_silent;                   /* the stream was given up, and so is the connection */
    bool ended;                       /* it is not wanted any more */
    bool listed;                      /* in some turn's list, which will send */
    struct kelp__service_link *next_listed;
    uint64_t open_us;  /* no stream is opened before */
    uint32_t retry_ms; /* from the next attempt to that after it */
    uint64_t up_us;
    uint64_t sent_us;
    uint64_t asked_us;    /* whether it lives */
    uint64_t sent_bytes;  /* over this stream, copies left out ... */
    uint64_t sent_values; /* ... and how many of them are roots' values */
    struct kept_root *roots;
    size_t root_count;
    size_t root_capacity;
    size_t root_bytes;
    struct kelp_shard_question *questions;
    size_t question_count;
    size_t question_capacity;
    uint32_t *told_authors; /* over this stream; KELP_PS_AUTHORS_MAX, or NULL */
    struct new_author *new_authors;
    size_t new_author_count;
    size_t new_author_capacity;
    struct link_scratch scratch;
    struct link_copy *copies; /* that are sent, one after the other */
    uint64_t copy_sent;       /* bytes of pieces, over this stream ... */
    uint64_t copy_taken;      /* ... and what has come of them */
};

void kelp__service_link_unref(struct kelp__service_link *link);
/* Referenced; NULL: there is none. */
struct kelp__service_link *kelp__service_link_take(struct kelp_service *service, uint64_t process);

/* forward.c. The link is locked for all that follow. */

/* It lost something, so that the follower has to say again what it has. */
void kelp__service_link_break_off(struct kelp__service_link *link, kelp_status status);
/* The message is transferred. */
void kelp__service_link_send_message(struct kelp__service_link *link,
                                     struct kelp_rpc_message *message);
/* The next message tells who that is, unless it was told. Without memory the follower has no name
 * for it. */
void kelp__service_link_name_author(struct kelp__service_link *link, uint32_t author);
/* False: out of memory, and the stream ends. True: the root's loan is taken. */
bool kelp__service_link_add_root(struct kelp__service_link *link,
                                 const struct kelp_shard_root *root);
bool kelp__service_link_add_question(struct kelp__service_link *link,
                                     const struct kelp_shard_question *question);
/* Send what was added; with nothing, only if `empty` is wanted. */
void kelp__service_link_send(struct kelp__service_link *link, bool empty);
/* Give back what was added. */
void kelp__service_link_discard(struct kelp__service_link *link);

/* pieces.c: the content is transferred; NULL: out of memory. No link is locked. */
struct link_copy *kelp__service_copy_make(struct kelp_service *service,
                                          struct kelp_replica_copy *content);
/* NULL does nothing. */
void kelp__service_copy_free(struct link_copy *copy);
/* The link is locked for all that follow. The copy is transferred. */
void kelp__service_link_add_copy(struct kelp__service_link *link, struct link_copy *copy);
/* As many pieces as may be in flight. */
void kelp__service_link_send_copies(struct kelp__service_link *link);
/* So many bytes of pieces have come; false: that cannot be. */
bool kelp__service_link_hear_copied(struct kelp__service_link *link, uint64_t bytes);
void kelp__service_link_discard_copies(struct kelp__service_link *link);

#endif
