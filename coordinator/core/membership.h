/*
 * Who is there: workers and shards that hold a stream to the leading coordinator, when they were
 * last heard, and which workers compute which lanes. Pure: time arrives in the events, in
 * milliseconds of any clock that does not go back.
 *
 * A worker that is there keeps its id. Another process that asks for it waits until the holder is
 * lost, unless it shows more: the holder's incarnation (its next stream), or a certificate for that
 * very id while the holder has none. So nobody is put out by somebody who merely says a name.
 *
 * A member is lost when it was silent for detect_ms, or when the shell says that its stream broke.
 * A gap in the ticks themselves (this process was stopped, or its machine slept) is not the
 * members' silence: after one everybody gets the whole time again.
 */
#ifndef KELP_COORDINATOR_CORE_MEMBERSHIP_H
#define KELP_COORDINATOR_CORE_MEMBERSHIP_H

#include "coordinator/core/assignment.h"
#include "coordinator/core/limits.h"

enum kelp_member_kind { KELP_MEMBER_WORKER, KELP_MEMBER_SHARD };

struct kelp_member {
    uint64_t key; /* of this membership: a member that comes back gets another */
    enum kelp_member_kind kind;
    char id[KELP_COORDINATOR_ID_MAX + 1];
    uint64_t incarnation;
    bool named; /* its certificate is for this id alone */
    uint64_t joined_ms;
    uint64_t heard_ms;
    uint64_t lanes_computed; /* workers, as last reported */
    uint64_t version;
    uint64_t generation;
    uint64_t assignment_epoch; /* taken */
    char trouble[KELP_COORDINATOR_TROUBLE_MAX + 1];
};

struct kelp_membership {
    uint32_t detect_ms;
    uint64_t next_key;
    uint64_t ticked_ms; /* of the latest tick; 0 before the first */
    uint64_t losses[2]; /* by kind */
    uint32_t counts[2]; /* by kind */
    struct kelp_member *members;
    uint32_t count;
    uint32_t capacity;
    struct kelp_assignment assignment;
};

/* Errors: as kelp_assignment_init(). */
kelp_status kelp_membership_init(struct kelp_membership *membership, uint32_t lanes,
                                 uint32_t detect_ms, struct kelp_error *reterr) KELP_MUST_USE;
void kelp_membership_fini(struct kelp_membership *membership);

struct kelp_member_joined {
    enum kelp_member_kind kind;
    const char *id;
    uint64_t incarnation;
    bool named; /* its certificate is for this id alone */
};
/* May it join now? Errors: KELP_ERR_INVALID (id), and two that pass once a member has left:
 * KELP_ERR_EXISTS (a worker has the id and keeps it), KELP_ERR_LIMIT. */
kelp_status kelp_membership_may_join(const struct kelp_membership *membership,
                                     const struct kelp_member_joined *joined,
                                     struct kelp_error *reterr) KELP_MUST_USE;
/*
 * *ret_key names the new member. A member of the same kind and id that gives way to it is
 * replaced: *ret_replaced is its key, which is gone now (0: none). Errors: those of
 * kelp_membership_may_join(). Unchanged on every error.
 */
kelp_status kelp_membership_join(struct kelp_membership *membership,
                                 const struct kelp_member_joined *joined, uint64_t now_ms,
                                 uint64_t *ret_key, uint64_t *ret_replaced,
                                 struct kelp_error *reterr) KELP_MUST_USE;

struct kelp_member_heard {
    uint64_t lanes_computed;
    uint64_t version;
    uint64_t generation;
    uint64_t assignment_epoch;
    const char *trouble; /* NULL: none */
};
/* A message came. heard may be NULL: nothing but the sign of life. A key that is gone is ignored.
 */
void kelp_membership_heard(struct kelp_membership *membership, uint64_t key,
                           const struct kelp_member_heard *heard, uint64_t now_ms);

/* The member is gone; counted says whether as a loss (a broken stream) or in order. */
void kelp_membership_remove(struct kelp_membership *membership, uint64_t key, bool counted);

/* Keys of the members that are lost by now go to lost (up to lost_max; the rest next time). They
 * stay members until the shell removes them. */
uint32_t kelp_membership_tick(struct kelp_membership *membership, uint64_t now_ms, uint64_t *lost,
                              uint32_t lost_max);

/* NULL when there is none. Borrowed until the next change. */
const struct kelp_member *kelp_membership_find(const struct kelp_membership *membership,
                                               uint64_t key);

/* Letters, digits, '-', '_' and '.', 1 to KELP_COORDINATOR_ID_MAX bytes. */
bool kelp_member_id_valid(const char *id);

#endif
