#include "coordinator/term/term_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

/* "train.py" of "/home/me/train.py". */
static void name_program(const struct kelp_job *job, char *name, size_t name_bytes)
{
    const char *path = job->model.python[0] != '\0' ? job->model.python : job->model.program;
    const char *slash = strrchr(path, '/');

    (void)snprintf(name, name_bytes, "%.*s", (int)name_bytes - 1, slash ? slash + 1 : path);
}

static kelp_status init_machines(struct kelp_term *term, struct kelp_error *reterr)
{
    const struct kelp_job *job = term->options.job;
    struct kelp_placement_options placement = {.shards = job->cluster.shards,
                                               .replicas = job->cluster.replicas,
                                               .workers_min = job->cluster.workers.min,
                                               .shard_wait_ms = job->failure.shard_wait_ms,
                                               .detect_ms = job->failure.detect_ms,
                                               .storage_wait_ms = job->failure.storage_wait_ms,
                                               .writer = term->options.writer};
    name_program(job, placement.program, sizeof(placement.program));
    kelp_status status =
        kelp_membership_init(&term->membership, job->cluster.lanes, job->failure.detect_ms, reterr);
    if (status == KELP_OK) {
        status = kelp_placement_init(&term->placement, &placement, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_keeper_init(&term->keeper, term->options.no_checkpoints ? NULL : job,
                                  term->election, reterr);
    }
    return status;
}

kelp_status kelp_term_create(const struct kelp_term_options *options,
                             const struct kelp_outside *outside, uint64_t now_ms,
                             struct kelp_term **ret_term, struct kelp_error *reterr)
{
    struct kelp_term *term = calloc(1, sizeof(*term));
    if (!term) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for a term");
    }
    term->options = *options;
    term->outside = *outside;
    term->now_ms = now_ms;
    term->cause_ms = now_ms;
    term->elected = options->elected;
    term->election = options->election;
    kelp_size_init(&term->size, options->job);
    term->departure.saves = options->job->run.mode == KELP_RUN_TRAIN && !options->no_checkpoints;
    kelp_status status = init_machines(term, reterr);
    if (status == KELP_OK) {
        status = outside->effects->watch_shards(reterr, outside->user);
    }
    if (status != KELP_OK) {
        kelp_term_destroy(term);
        return status;
    }
    kelp__term_ask_etcd(term);
    *ret_term = term;
    return KELP_OK;
}

void kelp_term_destroy(struct kelp_term *term)
{
    if (!term) {
        return;
    }
    kelp_worker_sessions_fini(&term->sessions, &term->outside);
    kelp_shard_links_fini(&term->links, &term->outside);
    kelp_progress_fini(&term->progress);
    kelp_keeper_fini(&term->keeper);
    kelp_placement_fini(&term->placement);
    kelp_membership_fini(&term->membership);
    free(term);
}

void kelp_term_touch(struct kelp_term *term, uint64_t now_ms)
{
    term->now_ms = now_ms;
}

/* ---- time ---- */

static void lose_silent(struct kelp_term *term)
{
    uint64_t lost[64];
    uint32_t count =
        kelp_membership_tick(&term->membership, term->now_ms, lost, KELP_ARRAY_COUNT(lost));
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_member *member = kelp_membership_find(&term->membership, lost[i]);
        if (!member) {
            continue;
        }
        if (member->kind == KELP_MEMBER_WORKER) {
            kelp__term_lose_worker(term, lost[i]);
        } else {
            kelp__term_lose_shard(term, lost[i]);
        }
    }
}

void kelp_term_tick(struct kelp_term *term)
{
    kelp__term_try_state(term);
    kelp__term_forget_drains(term);
    kelp__term_try_scale(term);
    kelp_worker_sessions_sweep(&term->sessions, &term->outside, term->now_ms,
                               term->membership.detect_ms);
    kelp_shard_links_sweep(&term->links, &term->outside, &term->placement);
    kelp__term_depart(term);
    kelp__term_update_shards(term, true);
    kelp__term_ask_etcd(term);
    lose_silent(term);
    kelp__term_judge_workers(term);
    kelp__term_file_records(term);
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
    kelp__term_checkpoint(term, (struct kelp_checkpointer_event){.kind = KELP_CHECKPOINTER_TICK});
    term->heartbeat++;
    kelp__term_update_workers(term);
}
