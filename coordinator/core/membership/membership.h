/*
 * The members: workers and shards with a stream to the leading coordinator, when they were last
 * heard, and which workers compute which lanes. Pure: time arrives in the events, in milliseconds
 * of any monotonic clock.
 *
 * A present worker keeps its id. Another process that asks for it waits until the holder is lost,
 * unless it has the holder's incarnation (its next stream), or a certificate for that very id while
 * the holder has none. So claiming a name displaces nobody.
 *
 * Seats: workers with a seat share the lanes (assignment.h). A worker that has lanes and shows no
 * work, while others do, loses its seat, and is tested with a single lane that somebody else has
 * too; work on it earns the seat again (membership_seats.c). A worker that reports trouble (it
 * cannot reach a shard, or was asked to end) has no lanes until that is over, unless all report
 * trouble. Results do not depend on who computes.
 *
 * A member is lost when it was silent for detect_ms, or when the shell reports that its stream
 * broke. Workers report in intervals that we choose, at most two fifths of detect_ms. A gap in the
 * ticks themselves (this process was stopped, or its machine slept) does not count as silence: all
 * members get the whole time again.
 */
#ifndef KELP_COORDINATOR_CORE_MEMBERSHIP_MEMBERSHIP_H
#define KELP_COORDINATOR_CORE_MEMBERSHIP_MEMBERSHIP_H

#include "coordinator/core/limits.h"
#include "coordinator/core/membership/assignment.h"
#include "coordinator/core/membership/slowness.h"

enum kelp_member_kind { KELP_MEMBER_WORKER, KELP_MEMBER_SHARD };

struct kelp_member {
    uint64_t key; /* of this membership: a returning member gets another */
    enum kelp_member_kind kind;
    char id[KELP_COORDINATOR_ID_MAX + 1];
    uint64_t incarnation;
    bool named; /* its certificate is for this id alone */
    /* Workers: */
    bool tried;             /* under test: it has no seat */
    bool troubled;          /* others have its lanes because of `trouble` */
    bool worked;            /* it has shown work since it got its seat */
    bool has_lanes;         /* of a seat, when seats were checked last */
    uint64_t since_ms;      /* when it got its lanes, or last showed work */
    uint64_t since_version; /* the version at that time */
    uint32_t proofs;        /* of work while under test */
    uint32_t proofs_needed; /* 1: it has lost no seat yet */
    uint32_t patience_ms;   /* with it while nobody works and another process wants its id */
    uint64_t joined_ms;
    uint64_t heard_ms;
    uint64_t lanes_computed; /* workers, as last reported */
    uint64_t busy_us;        /* with them */
    uint32_t lane_us;        /* recent time per lane; 0: unknown */
    uint64_t samples;        /* of lane_us so far */
    uint64_t sampled_ms;     /* the newest sample, with the values reported then */
    uint64_t sampled_lanes;
    uint64_t sampled_us;
    uint64_t version;
    uint64_t generation;
    uint64_t assignment_epoch; /* taken */
    char trouble[KELP_COORDINATOR_TROUBLE_MAX + 1];
    struct kelp_worker_times times; /* its newest window; serial 0: there is none */
    uint64_t times_ms;              /* when that came */
    uint64_t pushed_steps;          /* since it came: for the next one */
    uint64_t behind_us;
    uint64_t compared_serial; /* of the window that was compared with others last */
    struct kelp_slow slow;    /* what came of it */
    uint32_t slow_windows;    /* in a row in which it was slow in that part */
};

/* What a worker that is no member any more had done. */
struct kelp_member_gone {
    char id[KELP_COORDINATOR_ID_MAX + 1];
    uint64_t incarnation;
    uint64_t lanes_computed;
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
    struct kelp_assignment assignment; /* of those with a seat */
    uint64_t version;                  /* where training stands */
    uint64_t judged_epoch;             /* of the assignment, when seats were looked at last */
    uint64_t probe_ms;                 /* no newcomer gets a seat earlier */
    uint32_t probe_wait_ms;            /* the latest wait; 0: none */
    uint32_t workers_least;            /* with fewer nobody computes */
    uint64_t slow_key; /* who is done last, where another split pays; 0: it does not */
    uint64_t slow_since_ms;
    uint64_t slow_samples; /* it had then */
    /* Who is slow (membership_slowness.c). */
    uint64_t compared_ms;
    struct kelp_slow_row *rows; /* workspace, as scratch: KELP_COORDINATOR_WORKERS_MAX */
    uint64_t *scratch;
    struct kelp_slow slow_shard; /* for which most workers wait; KELP_SLOW_NOT: none */
    char slow_shard_id[KELP_COORDINATOR_ID_MAX + 1];
    uint32_t slow_shard_windows;
    uint64_t slow_shard_ms; /* when they were compared */
    struct kelp_member_gone
        gone[KELP_COORDINATOR_GONE_MAX]; /* a ring of the newest workers to go */
    uint64_t gone_count;                 /* ever */
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

/* How often each worker is to say that it is there: every so many milliseconds. It only doubles
 * where there are twice as many, so that few who join or leave change what all were told. */
uint32_t kelp_membership_beat_ms(const struct kelp_membership *membership);

struct kelp_member_heard {
    uint64_t lanes_computed;
    uint64_t busy_us; /* with them; 0: not said */
    uint64_t version;
    uint64_t generation;
    uint64_t assignment_epoch;
    const char *trouble;                   /* NULL: none */
    const struct kelp_worker_times *times; /* valid; NULL: not said */
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

/* ---- seats ---- */

/* With fewer workers than this nobody has lanes: 0 and 1 mean that somebody always has. */
void kelp_membership_rest_below(struct kelp_membership *membership, uint32_t least,
                                uint64_t now_ms);
/* Are there too few? */
bool kelp_membership_rests(const struct kelp_membership *membership);

/* The lanes of a worker: of its seat, or the one that it is tried with; none of a stranger. */
struct kelp_lane_range kelp_membership_lanes(const struct kelp_membership *membership,
                                             uint64_t key);
/* Partition 0 took lanes that a worker of this id pushed. True: it has earned its seat with that.
 */
bool kelp_membership_worked(struct kelp_membership *membership, const char *id, uint64_t now_ms);
/* Training steps that a worker of this id pushed to partition 0, and how far its pushes were behind
 * the first one of their step, all together. */
void kelp_membership_pushed(struct kelp_membership *membership, const char *id, uint64_t steps,
                            uint64_t behind_us);
/* Training stands at this version: take the seat of one that shows no work, whose key is returned
 * (0: nobody), and give one to a newcomer. assignment.epoch says whether anything changed. */
uint64_t kelp_membership_judge(struct kelp_membership *membership, uint64_t version,
                               uint64_t now_ms);

/* ---- who is slow ---- */

/* Compare workers, every KELP_COORDINATOR_SLOW_LOOK_MS at most. */
void kelp_membership_compare(struct kelp_membership *membership, uint64_t now_ms);

struct kelp_membership_slow {
    struct kelp_slow slow;
    const struct kelp_member *worker; /* NULL: a shard is slow to most of them. Borrowed until the
                                         next change */
    const char *shard;                /* of KELP_SLOW_SHARD, else NULL; borrowed likewise */
};
/* The worker or shard that costs most of a step. False: none is slow, as far as is known now. */
bool kelp_membership_slowest(const struct kelp_membership *membership, uint64_t now_ms,
                             struct kelp_membership_slow *ret_slow);

/* ---- internal ---- */

/* A worker's newest window came. */
void kelp__membership_time(struct kelp_member *member, const struct kelp_worker_times *times,
                           uint64_t now_ms);

/* The worker of that id, or NULL. */
struct kelp_member *kelp__membership_worker(struct kelp_membership *membership, const char *id);
/* Does it hold up training, or the start of it, with nothing to show? Then its id may be taken. */
bool kelp__membership_is_idler(const struct kelp_membership *membership,
                               const struct kelp_member *member);
/* A newcomer gets a seat or is tried. */
void kelp__membership_place(struct kelp_membership *membership, struct kelp_member *member,
                            uint64_t now_ms);
/* The member is about to be removed: free its seat. */
void kelp__membership_leave(struct kelp_membership *membership, const struct kelp_member *member);
/* When no seat is taken, everybody gets one. */
void kelp__membership_fill(struct kelp_membership *membership, uint64_t now_ms);
/* Lanes go from those in trouble to those who are not, and back. */
void kelp__membership_relieve(struct kelp_membership *membership, uint64_t now_ms);
/* Workers rested until now: nobody is judged by that time. */
void kelp__membership_wake(struct kelp_membership *membership, uint64_t now_ms);

/* What a worker needs for a lane (membership_speed.c): its newest report is in. Another split,
 * where that would have paid for a while. */
void kelp__membership_measure(struct kelp_member *member, const struct kelp_member_heard *heard,
                              uint64_t now_ms);
void kelp__membership_even_out(struct kelp_membership *membership, uint64_t now_ms);

/* NULL when there is none. Borrowed until the next change. */
const struct kelp_member *kelp_membership_find(const struct kelp_membership *membership,
                                               uint64_t key);

#endif
