#include "coordinator/leading.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/checkpointing.h"
#include "coordinator/plan_offer.h"
#include "coordinator/records.h"
#include "coordinator/shard_link.h"
#include "coordinator/worker_sessions.h"

static kelp_status init_leading(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const struct kelp_job *job = coordinator->job;
    struct kelp_placement_options options = {.shards = job->cluster.shards,
                                             .workers_min = job->cluster.workers.min,
                                             .shard_wait_ms = job->failure.shard_wait_ms,
                                             .storage_wait_ms = job->failure.storage_wait_ms,
                                             .writer = coordinator->options.incarnation +
                                                       ++coordinator->terms};
    kelp_status status = kelp_membership_init(&coordinator->membership, job->cluster.lanes,
                                              job->failure.detect_ms, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_placement_init(&coordinator->placement, &options, reterr);
    if (status == KELP_OK) {
        status = kelp_checkpointing_init(coordinator, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_journal_open(coordinator->options.run_folder, &coordinator->journal, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_leader_watch_shards(coordinator->leader, reterr);
    }
    return status;
}

static void fini_leading(struct kelp_coordinator *coordinator)
{
    kelp_records_close(coordinator);
    kelp_offer_forget(coordinator);
    kelp_progress_fini(&coordinator->progress);
    kelp_checkpointing_fini(coordinator);
    kelp_placement_fini(&coordinator->placement);
    kelp_membership_fini(&coordinator->membership);
}

/* Only while elected: a read goes by our election key. */
static void try_read(struct kelp_coordinator *coordinator)
{
    if (coordinator->reading || !coordinator->elected ||
        coordinator->now_ms < coordinator->read_at_ms) {
        return;
    }
    coordinator->reading = kelp_leader_read(coordinator->leader) == KELP_OK;
    coordinator->read_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
}

static void lead(struct kelp_coordinator *coordinator)
{
    struct kelp_error error;
    kelp_status status = init_leading(coordinator, &error);
    if (status != KELP_OK) {
        fini_leading(coordinator);
        kelp_coordinator_give_up(coordinator, error.text);
        return;
    }
    kelp_log_info("leading address=%s", coordinator->address);
    coordinator->leading = true;
    coordinator->read = false;
    coordinator->reread = false;
    coordinator->reading = false;
    coordinator->ended = false;
    coordinator->found_end.state[0] = '\0';
    coordinator->map_wanted = false;
    coordinator->plan_in_flight = false;
    coordinator->finish_generation = 0;
    coordinator->finish_on_file = false;
    coordinator->read_at_ms = 0;
    coordinator->shard_losses = 0;
    coordinator->opened = false;
    coordinator->resigning = false;
    coordinator->last_generation = 0;
    coordinator->restore_step = 0;
    coordinator->found_step = 0;
    coordinator->step_known = false;
    coordinator->steps_recomputed = 0;
    try_read(coordinator);
}

void kelp_leading_end(struct kelp_coordinator *coordinator, const char *why)
{
    if (!coordinator->leading) {
        return;
    }
    kelp_log_info("not leading any more reason=\"%s\"", why);
    coordinator->leading = false;
    kelp_leader_step_down(coordinator->leader);
    kelp_service_close_all(coordinator);
    kelp_link_close_all(coordinator);
    fini_leading(coordinator);
}

void kelp_leading_resign(struct kelp_coordinator *coordinator)
{
    kelp_log_error("no shard is heard though all their leases live: this coordinator is cut off "
                   "and resigns");
    kelp_leading_end(coordinator, "cut off from all shards");
    kelp_leader_resign(coordinator->leader);
    coordinator->elected = false;
    coordinator->stand_at_ms = coordinator->now_ms + KELP_COORDINATOR_CUT_OFF_MS;
}

static void on_elected(int64_t revision, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    coordinator->elected = true;
    coordinator->elected_revision = revision;
    if (!coordinator->leading) {
        lead(coordinator);
        return;
    }
    kelp_log_info("elected again revision=%" PRId64, revision);
    coordinator->read_at_ms = 0;
    coordinator->reread = coordinator->read;
    try_read(coordinator);
}

static void on_deposed(const char *why, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    coordinator->elected = false;
    kelp_log_warn("election lost, advising on until another coordinator leads reason=\"%s\"", why);
}

static void on_superseded(const char *by, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (coordinator->leading) {
        kelp_leading_end(coordinator, "another coordinator leads");
    }
    kelp_log_info("standing by leader=%s", by);
}

/* etcd has what another leader wrote, or we cannot say: fresh start. */
static void start_over(struct kelp_coordinator *coordinator, const char *why)
{
    kelp_leading_end(coordinator, why);
    lead(coordinator);
}

static bool is_end(const struct kelp_job_state *state)
{
    return strcmp(state->state, "done") == 0 || strcmp(state->state, "failed") == 0 ||
           strcmp(state->state, "paused") == 0;
}

/* An end that a leader before us wrote stays on record until it is judged. */
static void keep_end(struct kelp_coordinator *coordinator, const struct kelp_leader_found *found)
{
    if (found->map.generation > 0 && is_end(&found->state)) {
        coordinator->found_end = found->state;
        coordinator->found_generation = found->map.generation;
    }
}

/* What etcd held at the beginning of our time. */
static void take_over(struct kelp_coordinator *coordinator, struct kelp_leader_found *found)
{
    struct kelp_error error;
    if (found->plan != NULL) {
        kelp_status status = kelp_offer_keep(coordinator, found->plan, KELP_PLAN_WRITTEN, &error);
        if (status == KELP_OK && found->map.generation > 0 &&
            found->map.partition_count != coordinator->plan.partition_count) {
            status = kelp_fail(&error, KELP_ERR_CORRUPT,
                               "the map in etcd has %u partitions, the plan %u",
                               found->map.partition_count, coordinator->plan.partition_count);
        }
        if (status != KELP_OK) {
            kelp_error_prefix(&error, "job %s", coordinator->options.job);
            kelp_coordinator_give_up(coordinator, error.text);
            return;
        }
    }
    coordinator->read = true;
    kelp_log_info("state read plan=%s generation=%" PRIu64 " state=%s",
                  found->plan == NULL ? "none" : "there", found->map.generation,
                  found->has_state ? found->state.state : "none");
    coordinator->found_step = found->state.step;
    coordinator->steps_recomputed = found->state.steps_recomputed;
    keep_end(coordinator, found);
    if (found->plan != NULL) {
        kelp_offer_settled(coordinator);
    }
    kelp_checkpointing_found(coordinator, found, true);
    if (found->foreign[0] != '\0' && coordinator->options.force) {
        kelp_log_warn("taken because of --force: %s", found->foreign);
    } else if (found->foreign[0] != '\0') {
        kelp_coordinator_fail_job(coordinator, found->foreign);
    }
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_MAP_READ, .map = &found->map});
    kelp_service_review(coordinator);
}

/* We led before and were elected again: did somebody else lead in between? */
static void compare_found(struct kelp_coordinator *coordinator, struct kelp_leader_found *found)
{
    const struct kelp_placement *placement = &coordinator->placement;
    bool same = found->map.generation == placement->map.generation &&
                strcmp(found->map.nonce, placement->map.nonce) == 0;
    bool opening = placement->state == KELP_PLACEMENT_OPENING &&
                   found->map.generation == placement->next.generation &&
                   strcmp(found->map.nonce, placement->next.nonce) == 0;
    if (!same && !opening) {
        start_over(coordinator, "the map in etcd is not ours");
        return;
    }
    kelp_log_info("going on leading generation=%" PRIu64, placement->map.generation);
    kelp_checkpointing_found(coordinator, found, false);
    kelp_coordinator_report_state(coordinator);
}

static void on_read(kelp_status status, struct kelp_leader_found *found, const char *text,
                    void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    coordinator->reading = false;
    if (!coordinator->leading) {
        return;
    }
    if (status == KELP_OK && coordinator->read) {
        coordinator->reread = false;
        compare_found(coordinator, found);
    } else if (status == KELP_OK) {
        take_over(coordinator, found);
    } else if (kelp_status_group(status) == KELP_GROUP_DATA) {
        kelp_coordinator_give_up(coordinator, text);
    } else if (found->missing[0] != '\0' && !coordinator->read) {
        keep_end(coordinator, found);
        kelp_coordinator_place(
            coordinator,
            (struct kelp_placement_event){.kind = KELP_PLACEMENT_MISSING, .text = found->missing});
        coordinator->read_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
    } else {
        kelp_log_warn("the job's state cannot be read yet error=\"%s\"", text);
        coordinator->read_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
    }
}

static void on_map_written(enum kelp_placement_written result, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (result != KELP_WRITTEN_OK) {
        kelp_log_warn("map not written error=\"%s\"", text);
    }
    coordinator->opened = result == KELP_WRITTEN_OK;
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_WRITTEN, .result = result});
}

static void on_map_read(kelp_status status, struct kelp_leader_found *found, const char *text,
                        void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (status != KELP_OK) {
        kelp_log_warn("map cannot be read yet error=\"%s\"", text);
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    kelp_checkpointing_found(coordinator, found, false);
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_MAP_READ, .map = &found->map});
}

static void on_state_written(const struct kelp_job_state *state, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading || coordinator->ended) {
        return;
    }
    if (is_end(state)) {
        coordinator->ended = true;
        kelp_service_update(coordinator, false);
    }
}

static void on_shard_registered(const struct kelp_map_shard *shard, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading) {
        return;
    }
    if (!kelp_member_id_valid(shard->id)) {
        kelp_log_warn("shard ignored: its name is not valid");
        return;
    }
    kelp_log_info("shard registered shard=%s incarnation=%" PRIu64 " address=%s", shard->id,
                  shard->incarnation, shard->address);
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_REGISTERED, .shard = shard});
    kelp_link_set(coordinator, shard);
}

static void on_shard_gone(const char *id, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading) {
        return;
    }
    kelp_log_warn("shard's lease is gone shard=%s", id);
    kelp_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_UNREGISTERED, .id = id});
}

static void on_trouble(const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    if (strcmp(text, coordinator->trouble) != 0) {
        kelp_log_warn("trouble with etcd error=\"%s\"", text);
        (void)snprintf(coordinator->trouble, sizeof(coordinator->trouble), "%s", text);
    }
}

void kelp_leading_stand(struct kelp_coordinator *coordinator)
{
    struct kelp_error error;
    if (coordinator->stand_at_ms == 0 || coordinator->now_ms < coordinator->stand_at_ms) {
        return;
    }
    coordinator->stand_at_ms = 0;
    kelp_log_info("standing for election again");
    if (kelp_leader_stand(coordinator->leader, coordinator->address, coordinator->job_file,
                          &error) != KELP_OK) {
        kelp_coordinator_give_up(coordinator, error.text);
    }
}

void kelp_leading_tick(struct kelp_coordinator *coordinator)
{
    if (!coordinator->read || coordinator->reread) {
        try_read(coordinator);
    }
    if (coordinator->map_wanted && coordinator->now_ms >= coordinator->map_at_ms) {
        coordinator->map_wanted = kelp_leader_read_map(coordinator->leader) != KELP_OK;
    }
}

/* ---- spec ---- */

static kelp_status take_spec(struct kelp_coordinator *coordinator, const char *text,
                             size_t text_bytes, struct kelp_error *reterr)
{
    char name[KELP_JOB_NAME_MAX + 32];
    struct kelp_job_file *file = kelp_job_file_create();
    char *copy = strndup(text, text_bytes);
    kelp_status status = KELP_OK;
    (void)snprintf(name, sizeof(name), "/kelp/%s/spec", coordinator->options.job);
    if (file == NULL || copy == NULL) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the job");
    }
    if (status == KELP_OK) {
        status = kelp_job_file_parse(file, name, text, text_bytes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, reterr);
    }
    if (status == KELP_OK && strcmp(kelp_job_file_job(file)->name, coordinator->options.job) != 0) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, "%s: name: is %s; this coordinator serves %s",
                           name, kelp_job_file_job(file)->name, coordinator->options.job);
    }
    if (status != KELP_OK) {
        kelp_job_file_destroy(file);
        free(copy);
        return status;
    }
    coordinator->job_file = file;
    coordinator->job = kelp_job_file_job(file);
    coordinator->spec = copy;
    coordinator->spec_digest = kelp_job_file_digest(file);
    return KELP_OK;
}

static void on_spec(const char *text, size_t text_bytes, void *user)
{
    struct kelp_coordinator *coordinator = user;
    struct kelp_error error;
    kelp_coordinator_touch(coordinator);
    if (coordinator->job_file != NULL) {
        if (strlen(coordinator->spec) != text_bytes ||
            memcmp(coordinator->spec, text, text_bytes) != 0) {
            kelp_log_error("the job's specification in etcd has changed; the first one counts");
        }
        return;
    }
    kelp_status status = take_spec(coordinator, text, text_bytes, &error);
    if (status == KELP_OK) {
        kelp_log_info("job read digest=%016" PRIx64 ", standing for election",
                      coordinator->spec_digest);
        status = kelp_leader_stand(coordinator->leader, coordinator->address, coordinator->job_file,
                                   &error);
    }
    if (status != KELP_OK) {
        kelp_coordinator_give_up(coordinator, error.text);
    }
}

const struct kelp_leader_events kelp_leading_events = {
    .spec = on_spec,
    .elected = on_elected,
    .deposed = on_deposed,
    .superseded = on_superseded,
    .read = on_read,
    .plan_written = kelp_offer_written,
    .map_written = on_map_written,
    .map_read = on_map_read,
    .committed = kelp_checkpointing_committed,
    .removed = kelp_checkpointing_removed,
    .state_written = on_state_written,
    .shard_registered = on_shard_registered,
    .shard_gone = on_shard_gone,
    .trouble = on_trouble,
};
