/* What ps/service/service_links.c and service_forward.c share; nobody else includes it. */
#ifndef KELP_PS_SERVICE_SERVICE_LINKS_INTERNAL_H
#define KELP_PS_SERVICE_SERVICE_LINKS_INTERNAL_H

#include "ps/service/service_replicas_internal.h"

/* A root on its way into a message. */
struct kept_root {
    uint32_t partition;
    struct kelp_forward forward; /* without sums, digest and decision: */
    char digest[33];
    double *values; /* owned: sums, then what was decided; NULL: none */
    bool lent;
    struct kelp_gradients_loan loan;
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
    struct kelp_rpc_channel *channel;
    bool heard; /* only touched by callbacks of the stream */

    pthread_mutex_t lock;           /* guards what follows */
    struct kelp_rpc_stream *stream; /* NULL: none */
    bool is_up;                     /* the follower has answered the hello */
    bool ended;                     /* it is not wanted any more */
    bool listed;                    /* in some turn's list, which will send */
    struct kelp__service_link *next_listed;
    uint64_t sent_us;
    uint64_t sent_bytes;  /* over this stream, copies left out ... */
    uint64_t sent_values; /* ... and how many of them are roots' values */
    uint64_t sent_copies; /* bytes of copies */
    struct kept_root *roots;
    size_t root_count;
    size_t root_capacity;
    size_t root_bytes;
    struct kelp_shard_question *questions;
    size_t question_count;
    size_t question_capacity;
    struct link_scratch scratch;
};

/* Records as they go with a copy of partition 0. */
struct copied_records {
    struct kelp_wire_record *items;
    Kelp__V1__Record **pointers;
    size_t count;
};
/* service_forward.c: the newest ones; no link is locked. False: out of memory. */
bool kelp__service_copied_records(struct kelp_service *service, struct copied_records *ret_records);
void kelp__service_copied_records_free(struct copied_records *records);

void kelp__service_link_unref(struct kelp__service_link *link);

/* service_forward.c. The link is locked for all that follow. */

/* False: out of memory, and the stream ends. True: the root's loan is taken. */
bool kelp__service_link_add_root(struct kelp__service_link *link,
                                 const struct kelp_shard_root *root);
bool kelp__service_link_add_question(struct kelp__service_link *link,
                                     const struct kelp_shard_question *question);
/* Send what was added; with nothing, only if `empty` is wanted. */
void kelp__service_link_send(struct kelp__service_link *link, bool empty);
/* All pieces of a copy. */
void kelp__service_link_send_copy(struct kelp__service_link *link, struct kelp_replica_copy *copy,
                                  const struct copied_records *records);
/* Give back what was added. */
void kelp__service_link_discard(struct kelp__service_link *link);

#endif
