/*
 * The workers that a shard knows by name, to say who differs and who works. Each has a number, its
 * author, which is never another's: what was pushed by one that is forgotten is an unnamed
 * worker's. Those without a stream are forgotten when there is no room, who left first as the
 * first. One host has room for KELP_PS_AUTHORS_OF_HOST: it cannot put out the others.
 *
 * Threads: one at a time, but for kelp_roster_worked() and kelp_roster_pushed().
 */
#ifndef KELP_PS_CORE_EVIDENCE_ROSTER_H
#define KELP_PS_CORE_EVIDENCE_ROSTER_H

#include <stddef.h>
#include <stdint.h>

#include "common/job/job.h"

struct kelp_roster;

/* NULL: no memory. */
struct kelp_roster *kelp_roster_create(void);
void kelp_roster_destroy(struct kelp_roster *roster); /* NULL does nothing */

/* A stream of the worker `id` (cut to KELP_JOB_NAME_MAX) from peer, "ipv4:10.0.0.5:4711", whose
 * port does not count. Its author; 0: there is no room, and it has no name. */
uint32_t kelp_roster_enter(struct kelp_roster *roster, const char *id, const char *peer);
/* That stream has ended. */
void kelp_roster_leave(struct kelp_roster *roster, uint32_t author);

/* Borrowed until the next enter; NULL: nobody known. */
const char *kelp_roster_name(const struct kelp_roster *roster, uint32_t author);

/* Lanes of that author were taken. Any thread. */
void kelp_roster_worked(struct kelp_roster *roster, uint32_t author, uint32_t lanes);

/* A push of that author came so long after the first one of its step, which is this version. Only
 * its own first push of a step counts: later ones are of lanes that were offered to it. Any
 * thread. */
void kelp_roster_pushed(struct kelp_roster *roster, uint32_t author, uint64_t version,
                        uint64_t behind_us);

struct kelp_roster_work {
    char id[KELP_JOB_NAME_MAX + 1];
    uint64_t lanes;     /* that were taken */
    uint64_t steps;     /* that it pushed lanes of */
    uint64_t behind_us; /* the first push of each, all together */
};
/* Who worked or pushed since they were taken last, up to max. */
size_t kelp_roster_take_work(struct kelp_roster *roster, struct kelp_roster_work *ret_work,
                             size_t max);

#endif
