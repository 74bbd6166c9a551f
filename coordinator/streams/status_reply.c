#include "coordinator/streams/status_reply.h"

#include <stdio.h>
#include <stdlib.h>

#include "coordinator/common/term_now.h"
#include "coordinator/streams/wire_map.h"
#include "proto/convert.h"
#include "proto/wire.h"

/* The message, with everything it points to. */
struct reply {
    Kelp__V1__StatusReply message;
    Kelp__V1__Hello hello;
    struct kelp_wire_map map;
    char reason[KELP_TERM_REASON_MAX + 1];
    Kelp__V1__ControlWord word;
    struct kelp_wire_record records[KELP_SPLIT_COUNT];
    struct kelp_wire_best best;
    Kelp__V1__WorkerStatus *workers;
    Kelp__V1__WorkerStatus **worker_pointers;
    Kelp__V1__WorkerTimes *times; /* of each worker */
    Kelp__V1__WorkerGone gone[KELP_COORDINATOR_GONE_MAX];
    Kelp__V1__WorkerGone *gone_pointers[KELP_COORDINATOR_GONE_MAX];
    Kelp__V1__Slow slow;
    Kelp__V1__ShardInfo *shards;
    Kelp__V1__ShardInfo **shard_pointers;
    Kelp__V1__ShardInfo **silent_pointers;
    char (*waits)[KELP_DEPARTURE_TEXT_MAX];
    Kelp__V1__CheckpointStatus checkpoint;
    Kelp__V1__Targets targets;
    Kelp__V1__Drain drains[KELP_COORDINATOR_DRAINS_MAX];
    Kelp__V1__Drain *drain_pointers[KELP_COORDINATOR_DRAINS_MAX];
    struct kelp_job_sum sums[KELP_JOB_SUMS_MAX];
    char *sum_pointers[KELP_JOB_SUMS_MAX];
};

static void reply_fini(struct reply *reply)
{
    kelp_wire_map_fini(&reply->map);
    free(reply->workers);
    free(reply->worker_pointers);
    free(reply->times);
    free(reply->shards);
    free(reply->shard_pointers);
    free(reply->silent_pointers);
    free(reply->waits);
}

static uint64_t since(const struct kelp_term *term, uint64_t then_ms)
{
    return term->now_ms > then_ms ? term->now_ms - then_ms : 0;
}

static char *trouble_of(struct kelp_member *member)
{
    static char tried[] = "none of its lanes came in time: others compute them, and it is tried";
    return member->trouble[0] == '\0' && member->tried && member->proofs_needed > 1
               ? tried
               : member->trouble;
}

static void put_times(const struct kelp_worker_times *from, Kelp__V1__WorkerTimes *times)
{
    kelp__v1__worker_times__init(times);
    times->serial = from->serial;
    times->steps = from->steps;
    times->lanes = from->lanes;
    times->length_us = from->length_us;
    times->read_us = from->read_us;
    times->compute_us = from->compute_us;
    times->push_us = from->push_us;
    times->wait_us = from->wait_us;
    times->alone_us = from->alone_us;
    times->shard = (char *)(uintptr_t)from->shard; /* only read */
}

static void fill_slow(const struct kelp_term *term, struct reply *reply)
{
    struct kelp_membership_slow found;
    Kelp__V1__Slow *slow = &reply->slow;
    if (!kelp_membership_slowest(&term->membership, term->now_ms, &found)) {
        return;
    }
    const struct kelp_placement_shard *shard =
        found.shard ? kelp_placement_find(&term->placement, found.shard) : NULL;
    kelp__v1__slow__init(slow);
    slow->part = (char *)(uintptr_t)kelp_slow_part_name(found.slow.part);
    if (found.worker) {
        slow->worker = (char *)(uintptr_t)found.worker->id; /* only read, as the two that follow */
    }
    if (found.shard) {
        slow->shard = (char *)(uintptr_t)found.shard;
    }
    if (shard) {
        slow->address = (char *)(uintptr_t)shard->at.address;
    }
    slow->us = found.slow.us;
    slow->usual_us = found.slow.usual_us;
    slow->part_us = found.slow.part_us;
    slow->wait_us = found.slow.wait_us;
    slow->step_us = found.slow.step_us;
    slow->late = found.slow.late;
    reply->message.slow = slow;
}

static void fill_workers(const struct kelp_term *term, struct reply *reply)
{
    const struct kelp_membership *membership = &term->membership;
    size_t count = 0;
    for (uint32_t i = 0; i < membership->count; i++) {
        struct kelp_member *member = &membership->members[i];
        if (member->kind != KELP_MEMBER_WORKER) {
            continue;
        }
        Kelp__V1__WorkerStatus *worker = &reply->workers[count];
        struct kelp_lane_range lanes = kelp_membership_lanes(membership, member->key);
        kelp__v1__worker_status__init(worker);
        worker->id = member->id;
        worker->incarnation = member->incarnation;
        worker->lane_first = lanes.first;
        worker->lane_count = lanes.count;
        worker->lanes_computed = member->lanes_computed;
        worker->age_ms = since(term, member->joined_ms);
        worker->silent_ms = since(term, member->heard_ms);
        worker->trouble = trouble_of(member);
        worker->draining = kelp_targets_drain(&term->size.now, member->id, member->incarnation);
        if (member->times.serial > 0) {
            put_times(&member->times, &reply->times[count]);
            worker->times = &reply->times[count];
            worker->behind_us = member->times.pushed_steps > 0
                                    ? member->times.behind_us / member->times.pushed_steps
                                    : 0;
        }
        reply->worker_pointers[count++] = worker;
    }
    reply->message.n_workers = count;
    reply->message.workers = reply->worker_pointers;
}

static void fill_gone(const struct kelp_membership *membership, struct reply *reply)
{
    const size_t count = membership->gone_count < KELP_COORDINATOR_GONE_MAX
                             ? (size_t)membership->gone_count
                             : KELP_COORDINATOR_GONE_MAX;
    for (size_t i = 0; i < count; i++) {
        const struct kelp_member_gone *from = &membership->gone[i];
        kelp__v1__worker_gone__init(&reply->gone[i]);
        reply->gone[i].id = (char *)(uintptr_t)from->id; /* only read */
        reply->gone[i].incarnation = from->incarnation;
        reply->gone[i].lanes_computed = from->lanes_computed;
        reply->gone_pointers[i] = &reply->gone[i];
    }
    reply->message.n_gone = count;
    reply->message.gone = reply->gone_pointers;
}

static uint64_t shard_silence(const struct kelp_term *term,
                              const struct kelp_placement_shard *shard)
{
    const struct kelp_membership *membership = &term->membership;
    for (uint32_t i = 0; i < membership->count; i++) {
        const struct kelp_member *member = &membership->members[i];
        if (member->kind == KELP_MEMBER_SHARD &&
            kelp_map_compare_ids(member->id, shard->at.id) == 0) {
            return since(term, member->heard_ms);
        }
    }
    return since(term, shard->changed_ms);
}

/* Count the shard's partitions by role, from the map and the reports of primaries. */
static void fill_roles(const struct kelp_placement *placement, uint32_t index,
                       Kelp__V1__ShardInfo *shard)
{
    const struct kelp_map *map = &placement->map;
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct kelp_map_partition *entry = &map->partitions[i];
        const struct kelp_replica_report *report = kelp_replicas_of(&placement->replicas, map, i);
        shard->partitions += entry->primary == index ? 1 : 0;
        shard->backups += entry->backup == index ? 1 : 0;
        shard->joining += entry->joiner == index ? 1 : 0;
        if (report && entry->joiner == index) {
            shard->copied += report->copied;
            shard->to_copy += report->to_copy;
        }
        if (report && entry->primary == index && report->lag > shard->lag) {
            shard->lag = report->lag;
        }
    }
}

static void fill_shards(const struct kelp_term *term, struct reply *reply)
{
    const struct kelp_placement *placement = &term->placement;
    for (uint32_t i = 0; i < placement->shard_count; i++) {
        struct kelp_placement_shard *from = &placement->shards[i];
        Kelp__V1__ShardInfo *shard = &reply->shards[i];
        int32_t index = kelp_map_find(&placement->map, from->at.id);
        kelp__v1__shard_info__init(shard);
        shard->shard = from->at.id;
        shard->incarnation = from->at.incarnation;
        shard->address = from->at.address;
        shard->zone = from->at.zone;
        shard->draining = from->draining;
        if (from->draining ||
            kelp_targets_drain(&term->size.now, from->at.id, from->at.incarnation)) {
            kelp_departure_waits(placement, &term->keeper.machine, from, reply->waits[i]);
            shard->waits = reply->waits[i];
        }
        if (index >= 0) {
            fill_roles(placement, (uint32_t)index, shard);
        }
        shard->connected = from->connected;
        shard->silent_ms = shard_silence(term, from);
        reply->shard_pointers[i] = shard;
        if (kelp_placement_silent(placement, from, term->now_ms)) {
            reply->silent_pointers[reply->message.n_silent++] = shard;
        }
    }
    reply->message.silent = reply->silent_pointers;
    reply->message.n_shards = placement->shard_count;
    reply->message.shards = reply->shard_pointers;
}

static void fill_state(const struct kelp_term *term, struct reply *reply)
{
    kelp_term_reason(term, reply->reason);
    reply->message.state = (char *)kelp_placement_state_text(kelp_term_state(term));
    reply->message.reason = reply->reason;
}

static void fill_progress(const struct kelp_term *term, struct reply *reply)
{
    const struct kelp_progress *progress = &term->progress;
    Kelp__V1__StatusReply *message = &reply->message;
    Kelp__V1__Record **targets[KELP_SPLIT_COUNT] = {
        [KELP_SPLIT_TRAIN] = &message->latest_train,
        [KELP_SPLIT_VAL] = &message->latest_val,
        [KELP_SPLIT_TEST] = &message->latest_test,
    };
    if (progress->word_known) {
        kelp_wire_put_word(&progress->word, &reply->word);
        message->word = &reply->word;
    }
    for (int part = 0; part < KELP_SPLIT_COUNT; part++) {
        if (progress->known[part]) {
            kelp_wire_put_record(&progress->latest[part], &reply->records[part]);
            *targets[part] = &reply->records[part].message;
        }
    }
    if (progress->best.known) {
        kelp_wire_put_best(&progress->best, &reply->best);
        message->best = &reply->best.message;
    }
    message->epoch_loss = progress->epoch_loss;
    message->digest = (char *)progress->digest; /* only read by the encoder */
    message->digest_step = progress->digest_step;
    message->epochs = term->options.job->train.epochs;
    if (term->offer.state != KELP_PLAN_NONE) {
        bool over = progress->word_known && (progress->word.kind == KELP_STEP_FINISH ||
                                             progress->word.kind == KELP_STEP_DONE);
        message->total_steps = over ? progress->word.step /* training may end early */
                                    : kelp_control_total_steps(term->options.job, term->offer.plan);
        message->steps_per_epoch =
            kelp_control_steps_per_epoch(term->options.job, term->offer.plan);
    }
}

static void fill_checkpoint(const struct kelp_term *term, struct reply *reply)
{
    const struct kelp_checkpointer *from = &term->keeper.machine;
    const struct kelp_committed *newest = kelp_committed_list_newest(&from->list);
    Kelp__V1__CheckpointStatus *checkpoint = &reply->checkpoint;
    kelp__v1__checkpoint_status__init(checkpoint);
    if (newest) {
        uint64_t unix_ms = kelp_unix_ms();
        checkpoint->version = newest->version;
        checkpoint->step = newest->step;
        checkpoint->generation = newest->generation;
        checkpoint->age_ms = unix_ms > newest->unix_ms ? unix_ms - newest->unix_ms : 0;
    }
    checkpoint->committed = from->committed;
    checkpoint->failed = from->failed;
    checkpoint->error = (char *)from->trouble; /* only read by the encoder */
    checkpoint->under_way_step = from->state == KELP_CHECKPOINTER_IDLE ? 0 : from->order.step;
    checkpoint->requested = from->requested;
    checkpoint->answered = from->answered;
    checkpoint->refused = from->refused;
    reply->message.checkpoint = checkpoint;
    reply->message.restore_step = term->steps.restored;
    reply->message.steps_recomputed = term->steps.recomputed;
}

static void fill_sums(const struct kelp_job *job, struct reply *reply)
{
    size_t count = 0;
    while (count < KELP_JOB_SUMS_MAX && kelp_job_sum(job, (uint32_t)count, &reply->sums[count])) {
        reply->sum_pointers[count] = reply->sums[count].name;
        count++;
    }
    reply->message.n_sum = count;
    reply->message.sum = reply->sum_pointers;
}

static void fill_targets(const struct kelp_term *term, struct reply *reply)
{
    const struct kelp_targets *from = &term->size.now;
    kelp__v1__targets__init(&reply->targets);
    reply->targets.workers_min = from->workers_min;
    reply->targets.workers_max = from->workers_max;
    reply->targets.shards = from->shards;
    for (uint32_t i = 0; i < from->drain_count; i++) {
        kelp__v1__drain__init(&reply->drains[i]);
        reply->drains[i].id = (char *)(uintptr_t)from->drains[i].id; /* only read */
        reply->drains[i].incarnation = from->drains[i].incarnation;
        reply->drain_pointers[i] = &reply->drains[i];
    }
    reply->targets.n_drains = from->drain_count;
    reply->targets.drains = reply->drain_pointers;
    reply->message.targets = term->reading.done ? &reply->targets : NULL; /* NULL: not known yet */
}

kelp_status kelp_status_reply(const struct kelp_term *term, const struct kelp_identity *identity,
                              struct kelp_rpc_message **ret_answer, struct kelp_error *reterr)
{
    const struct kelp_placement *placement = &term->placement;
    struct reply reply = {.map = {.shards = NULL}};
    Kelp__V1__StatusReply *message = &reply.message;
    size_t workers = (size_t)term->membership.count + 1;
    size_t shards = (size_t)placement->shard_count + 1;
    kelp__v1__status_reply__init(message);
    reply.workers = calloc(workers, sizeof(*reply.workers));
    reply.worker_pointers = calloc(workers, sizeof(struct Kelp__V1__WorkerStatus *));
    reply.times = calloc(workers, sizeof(*reply.times));
    reply.shards = calloc(shards, sizeof(*reply.shards));
    reply.shard_pointers = calloc(shards, sizeof(struct Kelp__V1__ShardInfo *));
    reply.silent_pointers = calloc(shards, sizeof(struct Kelp__V1__ShardInfo *));
    reply.waits = calloc(shards, sizeof(*reply.waits));
    kelp_status status = KELP_OK;
    if (!reply.workers || !reply.worker_pointers || !reply.times || !reply.shards ||
        !reply.shard_pointers || !reply.silent_pointers || !reply.waits ||
        kelp_wire_map_init(&reply.map, &placement->map) != KELP_OK) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the status");
    }
    if (status == KELP_OK) {
        message->job = (char *)identity->job_name; /* only read by the encoder */
        message->leader = (char *)identity->id;    /* only read by the encoder */
        kelp_identity_hello(identity, &reply.hello);
        message->hello = &reply.hello;
        fill_state(term, &reply);
        message->generation = placement->map.generation;
        message->map = placement->map.generation == 0 ? NULL : &reply.map.message;
        message->worker_losses = term->membership.losses[KELP_MEMBER_WORKER];
        message->shard_losses = term->shard_losses;
        message->conflicts = term->conflicts;
        message->conflict = (char *)(uintptr_t)term->conflict; /* only read */
        fill_progress(term, &reply);
        fill_workers(term, &reply);
        fill_gone(&term->membership, &reply);
        fill_slow(term, &reply);
        fill_shards(term, &reply);
        fill_checkpoint(term, &reply);
        fill_targets(term, &reply);
        fill_sums(identity->job, &reply);
        status = kelp_wire_encode(&message->base, ret_answer, reterr);
    }
    reply_fini(&reply);
    return status;
}
