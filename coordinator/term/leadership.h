/*
 * Decides whether this coordinator leads: a term begins with an election, and ends when another
 * coordinator leads, when this one finds itself cut off from the shards, or with the process. Pure.
 *
 * While etcd is unreachable, our election key may expire with its lease, but nobody else can win it
 * either. We continue to lead without writing. When etcd is back, we are elected again and read its
 * state; if somebody else led meanwhile (its map is newer, or its key is there), the term ends, and
 * a new one begins.
 *
 * A coordinator that does not lead listens to the leader (standby.h).
 */
#ifndef KELP_COORDINATOR_TERM_LEADERSHIP_H
#define KELP_COORDINATOR_TERM_LEADERSHIP_H

#include "coordinator/term/standby.h"
#include "coordinator/term/term.h"

struct kelp_leadership_effects {
    /* The term is over: drop answers to its requests from now on. */
    void (*step_down)(void *user);
    /* Leave the election, until stand(). */
    void (*resign)(void *user);
    kelp_status (*stand)(struct kelp_error *reterr, void *user);
    /* A term begins: open the run's records; close() closes them. */
    kelp_status (*open)(struct kelp_error *reterr, void *user);
    void (*close)(void *user);
    /* Listen to this leader instead of the previous one; answered by kelp_leadership_leader_heard()
     * and _lost(). False: not possible now. */
    bool (*follow)(const struct kelp_holder *holder, void *user);
    void (*unfollow)(void *user);
    /* Delete the election key, if it was created at that revision. */
    void (*depose)(int64_t revision, void *user);
};

struct kelp_leadership_options {
    const struct kelp_leadership_effects *effects; /* borrowed */
    struct kelp_outside outside;                   /* for the terms; its user for effects too */
    const char *id;                                /* borrowed; ours */
    uint64_t incarnation;
    bool no_checkpoints;
    bool force;
};

struct kelp_leadership {
    struct kelp_leadership_options options;
    const struct kelp_job *job; /* borrowed; NULL: no specification yet */
    uint64_t now_ms;
    struct kelp_term *term; /* NULL: we do not lead */
    uint64_t terms;         /* so far */
    bool elected;           /* the election key is ours now */
    int64_t election;       /* revision of the newest one that we won */
    uint64_t stand_at_ms;   /* after resigning: stand for election again; 0: not */
    struct kelp_standby standby;
    uint64_t vacant_ms; /* since when nobody leads, as far as we know; 0: somebody does */
    const char *vacant; /* why */
};

void kelp_leadership_init(struct kelp_leadership *leadership,
                          const struct kelp_leadership_options *options);
/* End the term, if there is one. */
void kelp_leadership_end(struct kelp_leadership *leadership, const char *why);
/* The time: first thing in each callback. */
void kelp_leadership_touch(struct kelp_leadership *leadership, uint64_t now_ms);
/* The job is known: stand for election. Errors: the effect's. */
kelp_status kelp_leadership_stand(struct kelp_leadership *leadership, const struct kelp_job *job,
                                  struct kelp_error *reterr) KELP_MUST_USE;

void kelp_leadership_elected(struct kelp_leadership *leadership, int64_t revision);
void kelp_leadership_deposed(struct kelp_leadership *leadership, const char *why);
/* Another process holds the key. */
void kelp_leadership_superseded(struct kelp_leadership *leadership,
                                const struct kelp_holder *holder);
/* Nobody holds the key. */
void kelp_leadership_vacant(struct kelp_leadership *leadership);
/* A word of whom we follow. */
void kelp_leadership_leader_heard(struct kelp_leadership *leadership);
/* The stream to it has ended; alive: with an answer of its own. */
void kelp_leadership_leader_lost(struct kelp_leadership *leadership, bool alive);
/* An event of etcd was lost because memory ran out, so that what we know may be out of date:
 * resign, and stand again soon, which reads and watches everything again. */
void kelp_leadership_starved(struct kelp_leadership *leadership);
/* The answer to a read of the term (kelp_term_read()). */
void kelp_leadership_read(struct kelp_leadership *leadership, kelp_status status,
                          struct kelp_found *found, const char *text);
/* Every KELP_COORDINATOR_TICK_MS. */
void kelp_leadership_tick(struct kelp_leadership *leadership);

#endif
