/*
 * What to do when a child of a run ends. Pure: how it ended, when, and how long it lived go in, a
 * verdict comes out.
 *
 *     it ended by                          verdict
 *     exit status 2 (bad input)            FAIL     the same input fails again
 *     126 or 127, a program of one's own   FAIL     it, or a library of it, is not there
 *     1, a script of Python that had not   FAIL     an exception, or sys.exit("why"): what may go
 *     yet joined                                    better the next time has another status
 *     5, a worker whose GPU failed         RESTART  as with anything else
 *     5 or 2, the next time, young         LEAVE    the GPU is gone; RESTART where the job cannot
 *                                                   go on without it
 *     anything, a worker for which the job LEAVE    (or RESTART, as with 0) the job is done, and
 *     was over                                      what the program did after that failed
 *     as the end before it, or again with  FAIL     a mistake in it, found before it did anything
 *     0, likewise, nothing trained yet
 *     exit status 0, a worker, enough left LEAVE    it was asked to go (SIGTERM, or the job is
 *                                                   over)
 *     exit status 0, another worker        RESTART  after a moment, and not counted
 *     exit status 0, a shard               RESTART  likewise: it was drained
 *     anything else                        RESTART  at once the first time, then after a back-off
 *                                                   that doubles while it keeps dying young
 *     the failures are used up             GIVE_UP
 *     as the KELP_SUPERVISE_SAME_MAX - 1   STUCK    it will end so again
 *     before it, each young
 */
#ifndef KELP_CLI_LAUNCH_CHILDREN_SUPERVISE_H
#define KELP_CLI_LAUNCH_CHILDREN_SUPERVISE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

#define KELP_SUPERVISE_SETTLED_MS                                                                  \
    10000 /* a child that ran for so long is restarted at once when it ends */
#define KELP_SUPERVISE_BACKOFF_MAX_MS 15000 /* unless the policy's first one is longer */
#define KELP_SUPERVISE_DOUBLINGS_MAX  8
/* Ends for one reason, in a row, all young: half a minute with the default back-off, longer than a
 * moment without memory or storage. */
#define KELP_SUPERVISE_SAME_MAX  8
#define KELP_SUPERVISE_EARLY_MAX 2 /* of a program of one's own, before anything was trained */
/* A worker that leaves gracefully is replaced no earlier: the end of the job, of which workers hear
 * first, must be known by then. */
#define KELP_SUPERVISE_LEFT_MS 2000

struct kelp_supervise_policy {
    int32_t max_failures; /* restarts within the window; -1: without end */
    uint32_t window_ms;   /* 0: the whole run */
    uint32_t backoff_ms;
    bool restart; /* false: dead children stay dead */
};

/* Restarts of all children of a run. */
struct kelp_failures {
    uint64_t *times_ms; /* of the newest ones, a ring; NULL: only their number matters */
    uint32_t capacity;
    uint32_t total; /* over the whole run */
};

/* Of one child. */
struct kelp_supervise_child {
    bool worker;
    bool shard;
    uint32_t young_deaths; /* in a row */
    uint64_t cause;        /* of its last end */
    uint32_t same;         /* young ends of that cause, in a row */
    uint32_t idle;         /* early ends of a program with status 0 */
    bool lost;             /* its GPU has failed, and it has not settled since */
};

struct kelp_supervise_end {
    bool exited;     /* by itself; otherwise a signal ended it */
    int exit_status; /* when exited */
    uint64_t now_ms; /* growing from end to end, whatever its origin */
    uint64_t lived_ms;
    bool program;     /* one of the user's own */
    bool python;      /* likewise, a script */
    bool joined;      /* of these: it took part */
    bool over;        /* of these: it had heard that the job was over */
    bool early;       /* before the run has trained anything, and before it took part */
    bool enough_left; /* as many workers as the job needs are there without it */
    bool goes_on;     /* training has begun, and other workers take its lanes */
    uint64_t cause;   /* equal ones for one reason; 0: somebody outside has ended it, or unknown */
};

enum kelp_supervise_verdict {
    KELP_SUPERVISE_RESTART,
    KELP_SUPERVISE_LEAVE,
    KELP_SUPERVISE_FAIL,
    KELP_SUPERVISE_GIVE_UP,
    KELP_SUPERVISE_STUCK
};

/* Room for what the policy looks back on. Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_failures_init(struct kelp_failures *failures,
                               const struct kelp_supervise_policy *policy,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_failures_fini(struct kelp_failures *failures);

/* *ret_delay_ms is set for RESTART. */
enum kelp_supervise_verdict kelp_supervise(const struct kelp_supervise_policy *policy,
                                           const struct kelp_supervise_end *end,
                                           struct kelp_supervise_child *child,
                                           struct kelp_failures *failures, uint32_t *ret_delay_ms);

/* "failure.max_failures=3 restarts within failure.window=60m are used up" */
void kelp_supervise_limit_text(const struct kelp_supervise_policy *policy, char *text,
                               size_t text_bytes);

#endif
