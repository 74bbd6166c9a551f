#include "cli/launch/children/ledger.h"

#include <stdio.h>
#include <string.h>

static struct kelp_ledger_entry *find(struct kelp_ledger *ledger, const char *id)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        if (strcmp(ledger->entries[i].id, id) == 0) {
            return &ledger->entries[i];
        }
    }
    if (ledger->count == KELP_RESULT_WORKERS_MAX) {
        return NULL;
    }
    struct kelp_ledger_entry *entry = &ledger->entries[ledger->count++];
    (void)snprintf(entry->id, sizeof(entry->id), "%s", id);
    return entry;
}

/* A leader counts from 0: a smaller number, or another name, is another leader. */
static void count_checkpoints(struct kelp_ledger *ledger, const Kelp__V1__StatusReply *status)
{
    uint64_t committed = status->checkpoint ? status->checkpoint->committed : 0;

    if (strcmp(ledger->leader, status->leader) != 0 || committed < ledger->leader_committed) {
        ledger->committed_before += ledger->leader_committed;
        (void)snprintf(ledger->leader, sizeof(ledger->leader), "%.63s", status->leader);
    }
    ledger->leader_committed = committed;
}

static void count_conflicts(struct kelp_ledger *ledger, const Kelp__V1__StatusReply *status)
{
    if (status->conflicts > ledger->conflicts) {
        ledger->conflicts = status->conflicts;
        (void)snprintf(ledger->conflict, sizeof(ledger->conflict), "%s", status->conflict);
    }
}

bool kelp_ledger_tells_conflict(struct kelp_ledger *ledger)
{
    if (ledger->conflicts == 0 || ledger->conflicts / 2 < ledger->conflicts_told) {
        return false;
    }
    ledger->conflicts_told = ledger->conflicts;
    return true;
}

/* One start of a process, whose figure only grows. */
static void count_lanes(struct kelp_ledger_entry *entry, uint64_t incarnation, uint64_t lanes)
{
    if (entry->incarnation != incarnation) {
        entry->before += entry->now;
        entry->now = 0;
        entry->incarnation = incarnation;
    }
    if (lanes > entry->now) {
        entry->now = lanes;
    }
}

/* A start that is gone counts while no later one of its name is known. */
static void count_gone(struct kelp_ledger *ledger, const Kelp__V1__WorkerGone *gone)
{
    struct kelp_ledger_entry *entry = find(ledger, gone->id);
    if (entry && (entry->incarnation == gone->incarnation || entry->incarnation == 0)) {
        count_lanes(entry, gone->incarnation, gone->lanes_computed);
    }
}

void kelp_ledger_add(struct kelp_ledger *ledger, const Kelp__V1__StatusReply *status)
{
    count_checkpoints(ledger, status);
    count_conflicts(ledger, status);
    for (size_t i = 0; i < status->n_gone; i++) {
        count_gone(ledger, status->gone[i]);
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        const Kelp__V1__WorkerStatus *worker = status->workers[i];
        struct kelp_ledger_entry *entry = find(ledger, worker->id);
        if (entry) {
            count_lanes(entry, worker->incarnation, worker->lanes_computed);
        }
    }
}

void kelp_ledger_result(const struct kelp_ledger *ledger, struct kelp_result *result)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        struct kelp_result_worker *worker = &result->workers[i];
        memcpy(worker->id, ledger->entries[i].id, sizeof(worker->id));
        worker->lanes_computed = ledger->entries[i].before + ledger->entries[i].now;
    }
    result->worker_count = ledger->count;
    result->checkpoints = ledger->committed_before + ledger->leader_committed;
    result->conflicts = ledger->conflicts;
    (void)snprintf(result->conflict, sizeof(result->conflict), "%s", ledger->conflict);
}
