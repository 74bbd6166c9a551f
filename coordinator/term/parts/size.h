/*
 * The size that the cluster is to have, on its way to etcd: what `kelp scale` asks for counts once
 * it stands there, so that it is kept over a change of leader. Pure; a part of a leader's term.
 */
#ifndef KELP_COORDINATOR_TERM_PARTS_SIZE_H
#define KELP_COORDINATOR_TERM_PARTS_SIZE_H

#include "coordinator/core/targets.h"
#include "coordinator/term/outside/found.h"

struct kelp_size {
    const struct kelp_job *job; /* borrowed */
    struct kelp_targets now;    /* as it is in etcd; before that as the job has it */
    struct kelp_targets wanted; /* being written, or about to be */
    bool due;                   /* wanted differs from what stands there */
    bool under_way;             /* an answer will come */
    uint64_t at_ms;             /* next attempt */
};

void kelp_size_init(struct kelp_size *size, const struct kelp_job *job);
/* What was found in etcd. Numbers that were set when the job had another size count no more. True:
 * `now` is another one. */
bool kelp_size_read(struct kelp_size *size, const struct kelp_found *found);
/* Somebody asks for another size. Errors: those of kelp_targets_change(). */
kelp_status kelp_size_ask(struct kelp_size *size, const struct kelp_targets *request,
                          struct kelp_error *reterr) KELP_MUST_USE;
/* A process is to go, or has gone. Errors: KELP_ERR_LIMIT. */
kelp_status kelp_size_drain(struct kelp_size *size, const char *id, uint64_t incarnation,
                            struct kelp_error *reterr) KELP_MUST_USE;
void kelp_size_drained(struct kelp_size *size, const char *id, uint64_t incarnation);
/* What is to be written now, or NULL; tell kelp_size_sent() when it is on its way. */
const struct kelp_targets *kelp_size_due(const struct kelp_size *size, uint64_t now_ms);
void kelp_size_sent(struct kelp_size *size);
/* The answer; written: what is in etcd, NULL when it was not taken. True: `now` is another
 * one. */
bool kelp_size_written(struct kelp_size *size, const struct kelp_targets *written, uint64_t now_ms);

#endif
