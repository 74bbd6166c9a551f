/*
 * What a run did, over all lives of its processes: the lanes that each worker computed and the
 * checkpoints that were committed, also by those that are gone. Pure.
 */
#ifndef KELP_CLI_LAUNCH_CHILDREN_LEDGER_H
#define KELP_CLI_LAUNCH_CHILDREN_LEDGER_H

#include "cli/run/result.h"
#include "proto/kelp.pb-c.h"

struct kelp_ledger_entry {
    char id[40];
    uint64_t incarnation; /* of the newest start seen */
    uint64_t before;      /* lanes of the earlier starts */
    uint64_t now;         /* lanes of this start */
};

struct kelp_ledger {
    struct kelp_ledger_entry entries[KELP_RESULT_WORKERS_MAX];
    uint32_t count;
    char leader[64];           /* newest seen */
    uint64_t leader_committed; /* checkpoints of that leader */
    uint64_t committed_before; /* of the leaders before it */
    uint64_t conflicts;        /* most that a leader told: another one hears all of them again */
    uint64_t conflicts_told;   /* to people */
    char conflict[512];        /* the newest */
};

void kelp_ledger_add(struct kelp_ledger *ledger, const Kelp__V1__StatusReply *status);
/* Are there so many more conflicts that people are told again: the first, and at each doubling? */
bool kelp_ledger_tells_conflict(struct kelp_ledger *ledger);
/* Fill result->workers, in the order in which they were first seen, result->checkpoints and
 * its conflicts. */
void kelp_ledger_result(const struct kelp_ledger *ledger, struct kelp_result *result);

#endif
