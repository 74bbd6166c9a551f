/*
 * How the parts play together.
 *
 * Start: the server is bound first, so that a port in use is reported at once. The spec comes from
 * etcd; then we stand for election. Elected: lead() makes fresh state, opens the journal, watches
 * the shards, and reads plan, map and state from etcd; until that answer is here, workers are held.
 *
 * Leading: workers join (service.c), the first one's plan goes to etcd, shards register (leader.c)
 * and are connected to (shard_link.c). Whatever happens is an event for the placement machine,
 * whose actions are carried out in kelp_coordinator_place(). One timer drives heartbeats, silence
 * and retries.
 *
 * etcd goes away: our election key may vanish with its lease, but nobody else can win it either. We
 * go on leading without writing. When etcd is back, we are elected again and read what it has; if
 * somebody else led in between (its map is newer, or its key stands there), we step down and start
 * over.
 */
#include "coordinator/coordinator.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "coordinator/service.h"
#include "coordinator/shard_link.h"
#include "coordinator/wire_map.h"

#define PROTOCOL 1

void kelp_coordinator_touch(struct kelp_coordinator *coordinator)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with this clock */
    coordinator->now_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Something is wrong that neither waiting nor another process can mend. */
static void give_up(struct kelp_coordinator *coordinator, const char *text)
{
    kelp_log_error("%s", text);
    coordinator->exit_code = 2;
    coordinator->stopping = true;
}

/* ---- small services for the shell's files -----------------------------------------------------
 */

void kelp_coordinator_hello(struct kelp_coordinator *coordinator, Kelp__V1__Hello *ret_hello)
{
    kelp__v1__hello__init(ret_hello);
    ret_hello->job = (char *)coordinator->options.job; /* only read by the encoder */
    ret_hello->spec_digest = coordinator->spec_digest;
    ret_hello->id = (char *)coordinator->options.id; /* only read by the encoder */
    ret_hello->incarnation = coordinator->options.incarnation;
    ret_hello->protocol = PROTOCOL;
}

kelp_status kelp_coordinator_check_hello(const struct kelp_coordinator *coordinator,
                                         const Kelp__V1__Hello *hello, struct kelp_error *reterr)
{
    if (hello == NULL) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "the first message carries no hello");
    }
    if (hello->protocol != PROTOCOL) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED, "speaks protocol %u; this is %d",
                         hello->protocol, PROTOCOL);
    }
    if (!kelp_member_id_valid(hello->id)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "id is not 1 to %d letters, digits, '-', '_' or '.'",
                         KELP_COORDINATOR_ID_MAX);
    }
    if (strcmp(hello->job, coordinator->options.job) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s belongs to job %.63s, this is job %s",
                         hello->id, hello->job, coordinator->options.job);
    }
    if (hello->spec_digest != coordinator->spec_digest) {
        return kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "%s has another specification of job %s: digest %016" PRIx64 ", here %016" PRIx64,
            hello->id, coordinator->options.job, hello->spec_digest, coordinator->spec_digest);
    }
    return KELP_OK;
}

/* ---- placement --------------------------------------------------------------------------------
 */

static void report_state(struct kelp_coordinator *coordinator)
{
    const struct kelp_placement *placement = &coordinator->placement;
    struct kelp_job_state state = {.version = coordinator->progress.word.version};
    const char *name = kelp_placement_state_text(placement->state);
    (void)snprintf(state.state, sizeof(state.state), "%s", name);
    (void)snprintf(state.reason, sizeof(state.reason), "%s", placement->reason);
    kelp_log(placement->state == KELP_PLACEMENT_FAILED ? KELP_LOG_ERROR : KELP_LOG_INFO,
             "job state=%s reason=\"%s\" generation=%" PRIu64, name, state.reason,
             placement->map.generation);
    kelp_leader_write_state(coordinator->leader, &state);
}

static void write_map(struct kelp_coordinator *coordinator)
{
    if (kelp_leader_write_map(coordinator->leader, &coordinator->placement.next) != KELP_OK) {
        kelp_coordinator_place(coordinator,
                               (struct kelp_placement_event){.kind = KELP_PLACEMENT_WRITTEN,
                                                             .result = KELP_WRITTEN_NOT});
    }
}

static void carry_out(struct kelp_coordinator *coordinator, uint32_t actions)
{
    const struct kelp_map *map = &coordinator->placement.map;
    if ((actions & KELP_DO_COUNT_LOSS) != 0) {
        coordinator->shard_losses++;
        kelp_log_warn("shard lost reason=\"%s\" generation=%" PRIu64, coordinator->placement.reason,
                      map->generation);
    }
    if ((actions & KELP_DO_MAP_TO_SHARDS) != 0) {
        kelp_log_info("map taken generation=%" PRIu64 " shards=%u partitions=%u", map->generation,
                      map->shard_count, map->partition_count);
        kelp_progress_restart(&coordinator->progress, map->generation);
        kelp_link_update(coordinator);
    }
    if ((actions & KELP_DO_MAP_TO_WORKERS) != 0) {
        kelp_service_map_changed(coordinator);
        kelp_service_update(coordinator, false);
    }
    if ((actions & KELP_DO_STATE) != 0) {
        report_state(coordinator);
    }
    if ((actions & KELP_DO_READ_MAP) != 0) {
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms;
    }
    if ((actions & KELP_DO_WRITE_MAP) != 0) {
        write_map(coordinator);
    }
}

void kelp_coordinator_place(struct kelp_coordinator *coordinator, struct kelp_placement_event event)
{
    struct kelp_error error;
    uint32_t actions = 0;
    event.now_ms = coordinator->now_ms;
    kelp_status status = kelp_placement_apply(&coordinator->placement, &event, &actions, &error);
    if (status != KELP_OK) {
        kelp_log_error("placement refused an event error=\"%s\"", error.text);
    }
    carry_out(coordinator, actions);
}

void kelp_coordinator_count_workers(struct kelp_coordinator *coordinator)
{
    kelp_coordinator_place(coordinator,
                           (struct kelp_placement_event){
                               .kind = KELP_PLACEMENT_WORKERS,
                               .worker_count = coordinator->membership.counts[KELP_MEMBER_WORKER]});
}

void kelp_coordinator_fail_job(struct kelp_coordinator *coordinator, const char *reason)
{
    kelp_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .text = reason});
}

/* ---- plan -------------------------------------------------------------------------------------
 */

static void forget_plan(struct kelp_coordinator *coordinator)
{
    if (coordinator->plan_state != KELP_PLAN_NONE) {
        kelp_plan_fini(&coordinator->plan);
        free(coordinator->plan_text);
        coordinator->plan_text = NULL;
        coordinator->plan_state = KELP_PLAN_NONE;
    }
}

static kelp_status keep_plan(struct kelp_coordinator *coordinator, const char *text,
                             enum kelp_plan_state state, struct kelp_error *reterr)
{
    struct kelp_plan plan;
    kelp_status status = kelp_plan_parse(text, strlen(text), &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        kelp_plan_fini(&plan);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the plan");
    }
    forget_plan(coordinator);
    coordinator->plan = plan;
    coordinator->plan_text = copy;
    coordinator->plan_state = state;
    return KELP_OK;
}

static void try_write_plan(struct kelp_coordinator *coordinator)
{
    if (coordinator->plan_state != KELP_PLAN_OFFERED || coordinator->plan_in_flight ||
        coordinator->now_ms < coordinator->plan_at_ms) {
        return;
    }
    coordinator->plan_in_flight =
        kelp_leader_write_plan(coordinator->leader, coordinator->plan_text) == KELP_OK;
    coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
}

kelp_status kelp_coordinator_offer_plan(struct kelp_coordinator *coordinator, const char *text,
                                        struct kelp_error *reterr)
{
    kelp_status status = keep_plan(coordinator, text, KELP_PLAN_OFFERED, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the worker's plan");
        return status;
    }
    kelp_log_info("plan offered partitions=%u tensors=%u elements=%" PRIu64,
                  coordinator->plan.partition_count, coordinator->plan.tensor_count,
                  coordinator->plan.flat_count);
    try_write_plan(coordinator);
    return KELP_OK;
}

static void plan_settled(struct kelp_coordinator *coordinator)
{
    kelp_log_info("plan taken partitions=%u", coordinator->plan.partition_count);
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_PLAN,
                                            .partition_count = coordinator->plan.partition_count});
    kelp_link_update(coordinator);
}

static void on_plan_written(kelp_status status, const char *plan, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    struct kelp_error error;
    kelp_coordinator_touch(coordinator);
    coordinator->plan_in_flight = false;
    if (status != KELP_OK) {
        kelp_log_warn("plan not written yet error=\"%s\"", text);
        coordinator->plan_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    if (coordinator->plan_text != NULL && strcmp(plan, coordinator->plan_text) == 0) {
        coordinator->plan_state = KELP_PLAN_WRITTEN;
    } else if (keep_plan(coordinator, plan, KELP_PLAN_WRITTEN, &error) != KELP_OK) {
        kelp_error_prefix(&error, "/kelp/%s/plan", coordinator->options.job);
        give_up(coordinator, error.text);
        return;
    }
    plan_settled(coordinator);
    kelp_service_review(coordinator);
}

/* ---- progress and journal ---------------------------------------------------------------------
 */

struct sync_task {
    struct kelp_task task;
    struct kelp_coordinator *coordinator;
    struct kelp_journal *journal;
    bool finish; /* the job's last record is on file with this */
    bool close;  /* the journal is not needed any more */
    kelp_status status;
    struct kelp_error error;
};

static void run_sync(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    task->status = kelp_journal_sync(task->journal, &task->error);
}

static void sync_done(struct kelp_task *base)
{
    struct sync_task *task = KELP_CONTAINER_OF(base, struct sync_task, task);
    struct kelp_coordinator *coordinator = task->coordinator;
    if (!base->cancelled && task->status != KELP_OK) {
        kelp_log_error("records may not survive a crash error=\"%s\"", task->error.text);
    }
    if (task->finish && coordinator->leading && coordinator->journal == task->journal) {
        kelp_coordinator_touch(coordinator);
        coordinator->finish_in_flight = false;
        kelp_coordinator_place(coordinator,
                               (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED});
    }
    if (task->close) {
        kelp_journal_close(task->journal);
    }
    free(task);
}

/* Syncing takes as long as the disk likes: on the helper's thread. */
static void sync_journal(struct kelp_coordinator *coordinator, bool finish, bool close)
{
    struct sync_task *task = calloc(1, sizeof(*task));
    if (task == NULL) {
        kelp_log_error("records not synced: out of memory");
        return;
    }
    task->task.run = run_sync;
    task->task.done = sync_done;
    task->coordinator = coordinator;
    task->journal = coordinator->journal;
    task->finish = finish;
    task->close = close;
    kelp_status status = kelp_helper_submit(coordinator->helper, &task->task);
    if (status != KELP_OK) {
        kelp_log_error("records not synced error=\"%s\"", kelp_status_text(status));
        task->task.cancelled = true;
        sync_done(&task->task);
    }
}

static void log_record(const struct kelp_record *record)
{
    if (record->word.kind == KELP_STEP_TRAIN && record->epoch_end) {
        kelp_log_info("epoch completed epoch=%u step=%" PRIu64 " loss=%.9g", record->word.epoch + 1,
                      record->word.step + 1, record->epoch_loss);
    }
}

/* Put what waits on file. */
static void append_records(struct kelp_coordinator *coordinator)
{
    struct kelp_progress *progress = &coordinator->progress;
    const struct kelp_record *record = NULL;
    bool sync = false;
    bool finish = false;
    if (coordinator->now_ms < coordinator->append_at_ms) {
        return;
    }
    while ((record = kelp_progress_peek(progress)) != NULL) {
        struct kelp_error error;
        kelp_status status = kelp_journal_append(coordinator->journal, record, &error);
        if (status == KELP_ERR_MISMATCH) {
            kelp_log_error("%s", error.text);
            kelp_coordinator_fail_job(coordinator, error.text);
        } else if (status != KELP_OK) {
            kelp_log_error("records wait waiting=%zu error=\"%s\"", progress->queue_count,
                           error.text);
            coordinator->append_at_ms = coordinator->now_ms + 1000;
            break;
        }
        log_record(record);
        sync = sync || record->epoch_end || record->word.kind != KELP_STEP_TRAIN;
        finish = finish || record->word.kind == KELP_STEP_FINISH;
        kelp_progress_pop(progress);
    }
    if (sync) {
        sync_journal(coordinator, finish, false);
    }
}

void kelp_coordinator_take_progress(struct kelp_coordinator *coordinator,
                                    const Kelp__V1__ShardReport *report)
{
    struct kelp_progress *progress = &coordinator->progress;
    struct kelp_record record;
    if (report->word != NULL && kelp_wire_to_word(report->word, &progress->word) == KELP_OK) {
        progress->word_known = true;
    }
    for (size_t i = 0; i < report->n_records; i++) {
        kelp_status status = kelp_wire_to_record(report->records[i], &record);
        if (status == KELP_OK) {
            status = kelp_progress_record(progress, &record);
        }
        if (status != KELP_OK) {
            char reason[128];
            (void)snprintf(reason, sizeof(reason), "a record of a completed step was not taken: %s",
                           kelp_status_text(status));
            kelp_coordinator_fail_job(coordinator, reason);
            break;
        }
    }
    if (report->latest_train != NULL &&
        kelp_wire_to_record(report->latest_train, &record) == KELP_OK) {
        progress->latest[KELP_PART_TRAIN] = record;
        progress->known[KELP_PART_TRAIN] = true;
    }
    append_records(coordinator);
}

/* ---- leadership -------------------------------------------------------------------------------
 */

static kelp_status init_leading(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const struct kelp_job *job = coordinator->job;
    /* Less than it takes to reach a shard would roll back at each change of leader. */
    uint32_t wait_ms = job->failure.shard_wait_ms > KELP_COORDINATOR_FIRST_MS
                           ? job->failure.shard_wait_ms
                           : KELP_COORDINATOR_FIRST_MS;
    struct kelp_placement_options options = {.shards = job->cluster.shards,
                                             .workers_min = job->cluster.workers.min,
                                             .shard_wait_ms = wait_ms,
                                             .writer = coordinator->options.incarnation +
                                                       ++coordinator->terms};
    kelp_status status = kelp_membership_init(&coordinator->membership, job->cluster.lanes,
                                              job->failure.detect_ms, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_placement_init(&coordinator->placement, &options, reterr);
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
    if (coordinator->journal != NULL) {
        sync_journal(coordinator, false, true);
        coordinator->journal = NULL;
    }
    forget_plan(coordinator);
    kelp_progress_fini(&coordinator->progress);
    kelp_placement_fini(&coordinator->placement);
    kelp_membership_fini(&coordinator->membership);
}

static void try_read(struct kelp_coordinator *coordinator)
{
    if (coordinator->reading || coordinator->now_ms < coordinator->read_at_ms) {
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
        give_up(coordinator, error.text);
        return;
    }
    kelp_log_info("leading address=%s", coordinator->address);
    coordinator->leading = true;
    coordinator->read = false;
    coordinator->reread = false;
    coordinator->reading = false;
    coordinator->ended = false;
    coordinator->map_wanted = false;
    coordinator->plan_in_flight = false;
    coordinator->finish_in_flight = false;
    coordinator->read_at_ms = 0;
    coordinator->shard_losses = 0;
    try_read(coordinator);
}

static void step_down(struct kelp_coordinator *coordinator, const char *why)
{
    if (!coordinator->leading) {
        return;
    }
    kelp_log_warn("not leading any more reason=\"%s\"", why);
    coordinator->leading = false;
    kelp_leader_step_down(coordinator->leader);
    kelp_service_close_all(coordinator);
    kelp_link_close_all(coordinator);
    fini_leading(coordinator);
}

static void on_elected(int64_t revision, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    coordinator->elected = true;
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
        step_down(coordinator, "another coordinator leads");
    }
    kelp_log_info("standing by leader=%s", by);
}

/* etcd has what another leader wrote, or we cannot say: fresh start. */
static void start_over(struct kelp_coordinator *coordinator, const char *why)
{
    step_down(coordinator, why);
    lead(coordinator);
}

static void take_end(struct kelp_coordinator *coordinator, const struct kelp_job_state *state)
{
    if (strcmp(state->state, "done") == 0) {
        coordinator->ended = true;
        kelp_coordinator_place(coordinator,
                               (struct kelp_placement_event){.kind = KELP_PLACEMENT_FINISHED});
    } else if (strcmp(state->state, "failed") == 0) {
        coordinator->ended = true;
        kelp_coordinator_fail_job(coordinator, state->reason);
    }
}

/* What etcd held at the beginning of our time. */
static void take_over(struct kelp_coordinator *coordinator, struct kelp_leader_found *found)
{
    struct kelp_error error;
    if (found->plan != NULL) {
        kelp_status status = keep_plan(coordinator, found->plan, KELP_PLAN_WRITTEN, &error);
        if (status == KELP_OK && found->map.generation > 0 &&
            found->map.partition_count != coordinator->plan.partition_count) {
            status = kelp_fail(&error, KELP_ERR_CORRUPT,
                               "the map in etcd has %u partitions, the plan %u",
                               found->map.partition_count, coordinator->plan.partition_count);
        }
        if (status != KELP_OK) {
            kelp_error_prefix(&error, "job %s", coordinator->options.job);
            give_up(coordinator, error.text);
            return;
        }
    }
    coordinator->read = true;
    kelp_log_info("state read plan=%s generation=%" PRIu64 " state=%s",
                  found->plan == NULL ? "none" : "there", found->map.generation,
                  found->has_state ? found->state.state : "none");
    if (found->plan != NULL) {
        plan_settled(coordinator);
    }
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_MAP_READ, .map = &found->map});
    if (found->has_state) {
        take_end(coordinator, &found->state);
    }
    kelp_service_review(coordinator);
}

/* We led before and were elected again: did somebody else lead in between? */
static void compare_found(struct kelp_coordinator *coordinator,
                          const struct kelp_leader_found *found)
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
    report_state(coordinator);
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
        give_up(coordinator, text);
    } else {
        kelp_log_warn("etcd cannot be read yet error=\"%s\"", text);
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
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){
                                            .kind = KELP_PLACEMENT_WRITTEN, .result = result});
}

static void on_map_read(kelp_status status, struct kelp_map *map, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (status != KELP_OK) {
        kelp_log_warn("map cannot be read yet error=\"%s\"", text);
        coordinator->map_wanted = true;
        coordinator->map_at_ms = coordinator->now_ms + KELP_COORDINATOR_RETRY_MS;
        return;
    }
    kelp_coordinator_place(
        coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_MAP_READ, .map = map});
}

static void on_state_written(const struct kelp_job_state *state, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    if (!coordinator->leading || coordinator->ended) {
        return;
    }
    if (strcmp(state->state, "done") == 0 || strcmp(state->state, "failed") == 0) {
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

/* ---- spec -------------------------------------------------------------------------------------
 */

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
        status = kelp_leader_stand(coordinator->leader, coordinator->address, &error);
    }
    if (status != KELP_OK) {
        give_up(coordinator, error.text);
    }
}

static const struct kelp_leader_events leader_events = {
    .spec = on_spec,
    .elected = on_elected,
    .deposed = on_deposed,
    .superseded = on_superseded,
    .read = on_read,
    .plan_written = on_plan_written,
    .map_written = on_map_written,
    .map_read = on_map_read,
    .state_written = on_state_written,
    .shard_registered = on_shard_registered,
    .shard_gone = on_shard_gone,
    .trouble = on_trouble,
};

/* ---- time -------------------------------------------------------------------------------------
 */

static void lose_silent(struct kelp_coordinator *coordinator)
{
    uint64_t lost[64];
    uint32_t count = kelp_membership_tick(&coordinator->membership, coordinator->now_ms, lost,
                                          KELP_ARRAY_COUNT(lost));
    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_member *member = kelp_membership_find(&coordinator->membership, lost[i]);
        if (member == NULL) {
            continue;
        }
        if (member->kind == KELP_MEMBER_WORKER) {
            kelp_service_lose(coordinator, lost[i]);
        } else {
            kelp_link_lose(coordinator, lost[i]);
        }
    }
}

static void on_tick(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_coordinator_touch(coordinator);
    kelp_leader_tick(coordinator->leader, coordinator->now_ms);
    kelp_service_tick(coordinator);
    kelp_link_tick(coordinator);
    if (!coordinator->leading) {
        return;
    }
    if (!coordinator->read || coordinator->reread) {
        try_read(coordinator);
    }
    try_write_plan(coordinator);
    if (coordinator->map_wanted && coordinator->now_ms >= coordinator->map_at_ms) {
        coordinator->map_wanted = kelp_leader_read_map(coordinator->leader) != KELP_OK;
    }
    lose_silent(coordinator);
    append_records(coordinator);
    kelp_coordinator_place(coordinator, (struct kelp_placement_event){.kind = KELP_PLACEMENT_TICK});
    coordinator->heartbeat++;
    kelp_service_update(coordinator, true);
}

/* ---- life -------------------------------------------------------------------------------------
 */

/* host:port as others reach it: the host that we were told, with the port that was bound. */
static kelp_status set_address(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    const char *listen = coordinator->options.listen;
    const char *colon = strrchr(listen, ':');
    char host[KELP_COORDINATOR_ADDRESS_MAX + 1];
    assert(colon != NULL); /* it was bound */
    size_t length = (size_t)(colon - listen);
    if (length >= sizeof(host) - 8) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--listen: the host's name is too long");
    }
    memcpy(host, listen, length);
    host[length] = '\0';
    if ((strcmp(host, "0.0.0.0") == 0 || strcmp(host, "[::]") == 0) &&
        gethostname(host, sizeof(host) - 8) != 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "--listen: this host has no name");
    }
    int wrote = snprintf(coordinator->address, sizeof(coordinator->address), "%s:%u", host,
                         kelp_rpc_server_port(coordinator->server));
    assert(wrote > 0 && (size_t)wrote < sizeof(coordinator->address));
    return KELP_OK;
}

kelp_status kelp_coordinator_open(struct kelp_coordinator *coordinator, struct kelp_error *reterr)
{
    struct kelp_rpc_server_options server = {
        .address = coordinator->options.listen,
        .message_bytes_max = KELP_COORDINATOR_MESSAGE_BYTES,
        .user = coordinator,
    };
    server.methods = kelp_service_methods(&server.method_count);
    kelp_status status =
        kelp_rpc_server_open(coordinator->loop, &server, &coordinator->server, reterr);
    if (status == KELP_OK) {
        status = set_address(coordinator, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_helper_start(coordinator->loop, &coordinator->helper, reterr);
    }
    if (status == KELP_OK) {
        struct kelp_leader_options leader = {
            .loop = coordinator->loop,
            .helper = coordinator->helper,
            .endpoints = coordinator->options.etcd,
            .job = coordinator->options.job,
            .id = coordinator->options.id,
            .incarnation = coordinator->options.incarnation,
        };
        status =
            kelp_leader_open(&leader, &leader_events, coordinator, &coordinator->leader, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_timer_start(coordinator->loop, KELP_COORDINATOR_TICK_MS, on_tick,
                                      coordinator, &coordinator->timer);
    }
    if (status == KELP_OK) {
        kelp_log_info("listening address=%s, waiting for the job's specification",
                      coordinator->address);
    }
    return status;
}

kelp_status kelp_coordinator_create(const struct kelp_coordinator_options *options,
                                    struct kelp_coordinator **ret_coordinator,
                                    struct kelp_error *reterr)
{
    struct kelp_coordinator *coordinator = calloc(1, sizeof(*coordinator));
    if (coordinator == NULL) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the coordinator");
    }
    coordinator->options = *options;
    kelp_coordinator_touch(coordinator);
    kelp_status status = kelp_rpc_loop_create(&coordinator->loop, reterr);
    if (status != KELP_OK) {
        free(coordinator);
        return status;
    }
    *ret_coordinator = coordinator;
    return KELP_OK;
}

int kelp_coordinator_run(struct kelp_coordinator *coordinator)
{
    while (!coordinator->stopping) {
        (void)kelp_rpc_loop_run(coordinator->loop, -1);
    }
    return coordinator->exit_code;
}

static void stop(void *user)
{
    struct kelp_coordinator *coordinator = user;
    coordinator->stopping = true;
}

void kelp_coordinator_stop(struct kelp_coordinator *coordinator)
{
    kelp_status status = kelp_rpc_loop_post(coordinator->loop, stop, coordinator);
    if (status != KELP_OK) {
        kelp_log_error("stop not delivered error=\"%s\"", kelp_status_text(status));
    }
}

void kelp_coordinator_destroy(struct kelp_coordinator *coordinator)
{
    if (coordinator == NULL) {
        return;
    }
    if (coordinator->timer != NULL) {
        kelp_rpc_timer_stop(coordinator->timer);
    }
    step_down(coordinator, "stopping");
    if (coordinator->helper != NULL) {
        kelp_helper_stop(coordinator->helper);
    }
    if (coordinator->leader != NULL) {
        kelp_leader_close(coordinator->leader);
    }
    while (coordinator->links != NULL) {
        (void)kelp_rpc_loop_run(coordinator->loop, 10);
        kelp_link_close_all(coordinator); /* frees those whose stream has ended */
    }
    kelp_rpc_server_close(coordinator->server);
    kelp_rpc_loop_destroy(coordinator->loop);
    kelp_leader_destroy(coordinator->leader);
    kelp_helper_destroy(coordinator->helper);
    kelp_job_file_destroy(coordinator->job_file);
    free(coordinator->spec);
    free(coordinator);
}
