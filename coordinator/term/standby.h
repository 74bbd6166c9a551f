/*
 * A standby coordinator listens to the leader, and deletes its key in etcd once it is silent or
 * gone, so that the next leader need not wait for a lease. A wrong guess does no harm: every write
 * of a leader compares that key. Pure.
 *
 *               a holder            its word               silent, or gone
 *         IDLE ----------> CALLING ----------> LISTENING -----------------> ACCUSING
 *          ^                                      ^          its word          |
 *          |  the key is gone, or we lead         +----------------------------+
 *          +--- from each
 *
 * - Only a standby that has heard a leader may accuse it. Otherwise two that do not reach each
 * other would depose each other forever; so they do it once, and then wait for the lease.
 * - But a holder with our own id that cannot be reached is our own previous process.
 * - Silence is counted in our own ticks: a stopped standby does not count.
 * - A leader that was accused of silence recently may be slow: it gets more time.
 */
#ifndef KELP_COORDINATOR_TERM_STANDBY_H
#define KELP_COORDINATOR_TERM_STANDBY_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/core/limits.h"

/* Who holds the election key. */
struct kelp_holder {
    int64_t revision; /* at which the key was created */
    uint64_t incarnation;
    char id[KELP_COORDINATOR_ID_MAX + 1];
    char address[KELP_COORDINATOR_ADDRESS_MAX + 1];
};

enum kelp_standby_state {
    KELP_STANDBY_IDLE,
    KELP_STANDBY_CALLING,
    KELP_STANDBY_LISTENING,
    KELP_STANDBY_ACCUSING
};

/* What is to be done. */
enum kelp_standby_action {
    KELP_STANDBY_NOTHING,
    KELP_STANDBY_FOLLOW, /* open a stream to the holder */
    KELP_STANDBY_DEPOSE  /* delete its key, if it is still that one */
};

struct kelp_standby {
    enum kelp_standby_state state;
    struct kelp_holder holder;
    bool ours;          /* the holder has our name */
    bool following;     /* a stream is open */
    bool spoke;         /* it said something on that stream */
    uint32_t silent;    /* ticks since its last word */
    uint32_t patience;  /* ticks of silence until it is accused */
    uint64_t asked_ms;  /* when it was to be deposed last */
    uint64_t judged_ms; /* when somebody was accused of silence last; 0: never */
};

/* The key has a holder that is not us. */
enum kelp_standby_action kelp_standby_begin(struct kelp_standby *standby,
                                            const struct kelp_holder *holder, bool ours);
/* The key is gone, or ours; the stream is not wanted any more. */
void kelp_standby_end(struct kelp_standby *standby);
/* Its word came. True: the first one, or the first since it was accused. */
bool kelp_standby_heard(struct kelp_standby *standby);
/* The stream has ended, or could not be opened. alive: what it ended with is the holder's answer.
 */
enum kelp_standby_action kelp_standby_lost(struct kelp_standby *standby, bool alive,
                                           uint64_t now_ms);
/* Every KELP_COORDINATOR_TICK_MS. */
enum kelp_standby_action kelp_standby_tick(struct kelp_standby *standby, uint64_t now_ms);

#endif
