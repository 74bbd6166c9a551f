#include "coordinator/effects.h"

#include "common/log/log.h"
#include "common/log/log_gate.h"
#include "coordinator/look.h"
#include "coordinator/parts.h"

/* ---- the process ---- */

static void on_log(enum kelp_log_level level, const char *peer, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    unsigned held = 0;
    if (peer && !kelp_log_gate_pass(&coordinator->peers_lines, peer, 0, &held)) {
        return;
    }
    if (held > 0) {
        kelp_log(level, "%s more_before=%u", text, held);
    } else {
        kelp_log(level, "%s", text);
    }
}

static void give_up(const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_log_error("%s", text);
    coordinator->exit_code = 2;
    coordinator->stopping = true;
}

static void tell(const struct kelp_event *event, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_event_log_add(&coordinator->events, event);
    kelp_coordinator_look_at(coordinator, event);
}

/* ---- etcd ---- */

static kelp_status watch_shards(struct kelp_error *reterr, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_watch_shards(coordinator->leader, reterr);
}

static bool read_everything(void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_read(coordinator->leader) == KELP_OK;
}

static bool read_map(void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_read_map(coordinator->leader) == KELP_OK;
}

static bool write_plan(void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_write_plan(coordinator->leader, coordinator->plan.text) == KELP_OK;
}

static bool write_map(const struct kelp_opening *opening, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_write_map(coordinator->leader, opening) == KELP_OK;
}

static bool change_map(const struct kelp_map *map, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_change_map(coordinator->leader, map) == KELP_OK;
}

static bool write_state(const struct kelp_job_state *state, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_write_state(coordinator->leader, state) == KELP_OK;
}

static bool write_scale(const struct kelp_scale *scale, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_write_scale(coordinator->leader, scale) == KELP_OK;
}

static bool commit(const struct kelp_commit *wanted, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_commit(coordinator->leader, wanted) == KELP_OK;
}

static bool remove_manifest(uint64_t version, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_remove(coordinator->leader, version) == KELP_OK;
}

/* ---- the plan ---- */

static kelp_status keep_plan(const char *text, const struct kelp_plan **ret_plan,
                             struct kelp_error *reterr, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_status status = kelp_job_plan_keep(&coordinator->plan, text, reterr);
    if (status == KELP_OK) {
        *ret_plan = &coordinator->plan.plan;
    }
    return status;
}

static kelp_status compare_plan(const char *text, struct kelp_error *reterr, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_job_plan_compare(&coordinator->plan, coordinator->identity.job, text, reterr);
}

/* ---- records ---- */

static bool file(const struct kelp_record *records, size_t count, bool sync, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_record_files_file(&coordinator->records, records, count, sync);
}

static bool take_hold(const struct kelp_hold *hold, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_record_files_hold(&coordinator->records, hold, coordinator->identity.job);
}

static uint64_t recorded_step(void *user)
{
    const struct kelp_coordinator *coordinator = user;
    return kelp_journal_step(coordinator->records.journal);
}

static bool recorded_metric(uint64_t step, double ret_metric[KELP_CHECKPOINT_METRICS], void *user)
{
    const struct kelp_coordinator *coordinator = user;
    return kelp_journal_evaluated(coordinator->records.journal, step, ret_metric);
}

static void recall(struct kelp_progress *progress, void *user)
{
    const struct kelp_coordinator *coordinator = user;
    kelp_record_files_recall(&coordinator->records, progress);
}

/* ---- checkpoints ---- */

static kelp_status make_manifest(const struct kelp_checkpointer *from,
                                 struct kelp_committed *ret_committed, struct kelp_error *reterr,
                                 void *user)
{
    struct kelp_coordinator *coordinator = user;
    coordinator->checkpoint_bytes = 0;
    for (uint32_t i = 0; i < from->map.partition_count; i++) {
        coordinator->checkpoint_bytes += from->parts[i].bytes;
    }
    return kelp_checkpoint_folders_make(&coordinator->folders, from, ret_committed, reterr);
}

static bool describe(const char *folder, uint64_t serial, void *user)
{
    struct kelp_coordinator *coordinator = user;
    /* No checkpoint may exist without the records that lead to it. */
    return kelp_record_files_sync(&coordinator->records) &&
           kelp_checkpoint_folders_describe(&coordinator->folders, folder, coordinator->plan.text,
                                            serial);
}

static bool write_manifest(const char *folder, const char *text, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_checkpoint_folders_manifest(&coordinator->folders, folder, text);
}

static bool remove_folder(const char *folder, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_checkpoint_folders_remove(&coordinator->folders, folder);
}

static bool set_aside(const char *folder, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_checkpoint_folders_set_aside(&coordinator->folders, folder);
}

/* ---- shards ---- */

static void *link_create(struct kelp_link *link, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_shard_streams_add(&coordinator->shards, link);
}

static void link_destroy(void *end, void *user)
{
    (void)user;
    kelp_shard_stream_abandon(end);
}

static kelp_status link_open(void *end, const struct kelp_map_shard *shard,
                             const struct kelp_link_news *hello, struct kelp_error *reterr,
                             void *user)
{
    (void)user;
    return kelp_shard_stream_open(end, shard, hello, reterr);
}

static bool link_full(void *end, void *user)
{
    (void)user;
    return kelp_shard_stream_full(end);
}

static void link_send(void *end, const struct kelp_link_news *news, void *user)
{
    (void)user;
    kelp_shard_stream_send(end, news);
}

static void link_close(void *end, kelp_status status, const char *text, void *user)
{
    (void)user;
    kelp_shard_stream_close(end, status, text);
}

/* ---- workers ---- */

static bool session_full(void *end, void *user)
{
    (void)user;
    return kelp_worker_stream_full(end);
}

static void session_send(void *end, const struct kelp_session_news *news, void *user)
{
    (void)user;
    kelp_worker_stream_send(end, news);
}

static void session_refuse(void *end, bool hello, kelp_status status, const char *text, void *user)
{
    (void)user;
    kelp_worker_stream_refuse(end, hello, status, text);
}

static void session_close(void *end, kelp_status status, const char *text, void *user)
{
    (void)user;
    kelp_worker_stream_close(end, status, text);
}

const struct kelp_term_effects kelp_coordinator_term_effects = {
    .log = on_log,
    .tell = tell,
    .give_up = give_up,
    .watch_shards = watch_shards,
    .read = read_everything,
    .read_map = read_map,
    .write_plan = write_plan,
    .write_map = write_map,
    .change_map = change_map,
    .write_state = write_state,
    .write_scale = write_scale,
    .commit = commit,
    .remove = remove_manifest,
    .keep_plan = keep_plan,
    .compare_plan = compare_plan,
    .file = file,
    .take_hold = take_hold,
    .recorded_step = recorded_step,
    .recorded_metric = recorded_metric,
    .recall = recall,
    .make_manifest = make_manifest,
    .describe = describe,
    .write_manifest = write_manifest,
    .remove_folder = remove_folder,
    .set_aside = set_aside,
    .link_create = link_create,
    .link_destroy = link_destroy,
    .link_open = link_open,
    .link_full = link_full,
    .link_send = link_send,
    .link_close = link_close,
    .session_full = session_full,
    .session_send = session_send,
    .session_refuse = session_refuse,
    .session_close = session_close,
};

/* ---- terms ---- */

static kelp_status open_term(struct kelp_error *reterr, void *user)
{
    struct kelp_coordinator *coordinator = user;
    coordinator->records.job = coordinator->identity.job;
    kelp_status status = kelp_record_files_open(&coordinator->records, reterr);
    if (status == KELP_OK) {
        kelp_log_info("leading address=%s", coordinator->address);
    }
    return status;
}

static void close_term(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_follower_streams_end(&coordinator->followers);
    kelp_record_files_close(&coordinator->records);
    kelp_job_plan_forget(&coordinator->plan);
}

static bool follow(const struct kelp_holder *holder, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_streams_follow(&coordinator->leaders, holder);
}

static void unfollow(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_leader_streams_unfollow(&coordinator->leaders);
}

static void depose(int64_t revision, void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_leader_depose(coordinator->leader, revision);
}

static void step_down(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_leader_step_down(coordinator->leader);
}

static void resign(void *user)
{
    struct kelp_coordinator *coordinator = user;
    kelp_leader_resign(coordinator->leader);
}

static kelp_status stand(struct kelp_error *reterr, void *user)
{
    struct kelp_coordinator *coordinator = user;
    return kelp_leader_stand(coordinator->leader, coordinator->address,
                             coordinator->identity.job_file, coordinator->identity.spec, reterr);
}

const struct kelp_leadership_effects kelp_coordinator_leadership_effects = {
    .step_down = step_down,
    .resign = resign,
    .stand = stand,
    .open = open_term,
    .close = close_term,
    .follow = follow,
    .unfollow = unfollow,
    .depose = depose,
};
