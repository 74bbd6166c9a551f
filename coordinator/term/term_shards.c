/*
 * A term's streams to shards, and what shards report.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/process_name.h"
#include "coordinator/term/term_internal.h"

/* ---- connections ---- */

/* A drained shard has left if nothing lay on it any more; otherwise it is lost. */
static void tell_drained(struct kelp_term *term, const struct kelp_link *link)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&term->placement, link->shard.id);
    if (link->leave_sent && placed &&
        kelp_placement_leave(&term->placement, placed) == KELP_LEAVE_EMPTY) {
        kelp_outside_log(&term->outside, KELP_LOG_INFO, "shard drained shard=%s", link->shard.id);
        kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_DRAINED,
                                                  .who = link->shard.id,
                                                  .timed = true,
                                                  .took_ms = term->now_ms - placed->draining_ms});
    }
}

/* broken: the shard's side ended the stream. */
static void disconnected(struct kelp_term *term, struct kelp_link *link, bool broken)
{
    if (!link->greeted) {
        return;
    }
    tell_drained(term, link);
    kelp_link_leave(link);
    kelp_membership_remove(&term->membership, link->key, false);
    kelp__term_place(term, (struct kelp_placement_event){
                               .kind = KELP_PLACEMENT_DISCONNECTED,
                               .disconnected = {.id = link->shard.id, .broken = broken}});
    kelp__term_check_gone(term, link->shard.id, link->shard.incarnation);
}

static void set_link(struct kelp_term *term, const struct kelp_map_shard *shard)
{
    const struct kelp_link_view view = kelp__term_shard_view(term);
    struct kelp_link *link = kelp_shard_links_find(&term->links, shard->id);
    if (!link) {
        link = kelp_shard_links_add(&term->links, &term->outside, shard);
    } else if (link->shard.incarnation == shard->incarnation &&
               strcmp(link->shard.address, shard->address) == 0) {
        return;
    } else {
        const uint64_t before = link->shard.incarnation;
        disconnected(term, link, false);
        kelp_link_close(link, &term->outside, KELP_ERR_CLOSED,
                        "another incarnation has registered");
        kelp_link_move(link, shard);
        kelp__term_check_gone(term, shard->id, before);
    }
    if (link) {
        kelp_link_open(link, &term->outside, &view);
    }
}

void kelp_term_shard_registered(struct kelp_term *term, const struct kelp_map_shard *shard)
{
    if (!kelp_process_name_valid(shard->id)) {
        kelp_outside_log(&term->outside, KELP_LOG_WARN, "shard ignored: its name is not valid");
        return;
    }
    kelp_outside_log(&term->outside, KELP_LOG_INFO,
                     "shard registered shard=%s incarnation=%" PRIu64 " address=%s", shard->id,
                     shard->incarnation, shard->address);
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_REGISTERED,
                                                         .registered = shard});
    set_link(term, shard);
}

void kelp_term_shard_gone(struct kelp_term *term, const char *id)
{
    kelp_outside_log(&term->outside, KELP_LOG_WARN, "shard's lease is gone shard=%s", id);
    kelp__term_place(term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_UNREGISTERED,
                                                         .unregistered = id});
    const struct kelp_link *link = kelp_shard_links_find(&term->links, id);
    if (link) {
        kelp__term_check_gone(term, id, link->shard.incarnation);
    }
}

void kelp__term_lose_shard(struct kelp_term *term, uint64_t key)
{
    struct kelp_link *link = kelp_shard_links_of(&term->links, key);
    assert(link); /* every member has a link */
    kelp_outside_log(&term->outside, KELP_LOG_WARN, "shard is silent shard=%s address=%s",
                     link->shard.id, link->shard.address);
    disconnected(term, link, false);
    kelp_link_close(link, &term->outside, KELP_ERR_TIMEOUT, "silent for too long");
}

bool kelp_term_shard_hello(struct kelp_term *term, struct kelp_link *link,
                           const struct kelp_link_hello *hello)
{
    struct kelp_member_joined joined = {
        .kind = KELP_MEMBER_SHARD, .id = link->shard.id, .incarnation = link->shard.incarnation};
    struct kelp_error error;
    uint64_t key = 0;
    uint64_t replaced = 0;
    kelp_status status = hello->status;
    (void)snprintf(error.text, sizeof(error.text), "%s", hello->text);
    if (status == KELP_OK) {
        status =
            kelp_membership_join(&term->membership, &joined, term->now_ms, &key, &replaced, &error);
    }
    if (status != KELP_OK) {
        kelp_link_refuse(link, &term->outside, status, error.text);
        return false;
    }
    kelp_link_greet(link, key);
    kelp__term_tell(term,
                    (struct kelp_event){.kind = KELP_EVENT_SHARD_JOINED, .who = link->shard.id});
    kelp_outside_log_of(&term->outside, link->shard.address, KELP_LOG_INFO,
                        "shard connected shard=%s incarnation=%" PRIu64 " address=%s",
                        link->shard.id, link->shard.incarnation, link->shard.address);
    kelp__term_place(
        term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_CONNECTED,
                                            .connected = {.id = link->shard.id,
                                                          .incarnation = link->shard.incarnation,
                                                          .generation = hello->loaded_generation}});
    if (!kelp_placement_find(&term->placement, link->shard.id)) {
        disconnected(term, link, false);
        kelp_link_refuse(link, &term->outside, KELP_ERR_LIMIT, "the table of shards is full");
        return false;
    }
    const struct kelp_link_view view = kelp__term_shard_view(term);
    kelp_link_update(link, &term->outside, &view, false);
    return link->open;
}

void kelp_term_shard_unreadable(struct kelp_term *term, struct kelp_link *link, kelp_status status,
                                const char *text)
{
    kelp_outside_log_of(&term->outside, link->shard.address, KELP_LOG_WARN,
                        "unreadable report shard=%s error=\"%s\"", link->shard.id, text);
    disconnected(term, link, false);
    kelp_link_close(link, &term->outside, status, text);
}

void kelp_term_shard_closed(struct kelp_term *term, struct kelp_link *link, bool broken,
                            kelp_status status, const char *text)
{
    kelp_link_ended(link, &term->outside, status, text);
    disconnected(term, link, broken);
}

/* ---- reports ---- */

/* Did training fail, and not a load? Workers that differ end the job even while the generation
 * is being given up, because the next generation would not show the difference. */
static bool failed_in_training(const struct kelp_term *term, const struct kelp_link *link,
                               kelp_status status)
{
    const struct kelp_placement *placement = &term->placement;
    const struct kelp_placement_shard *placed = kelp_placement_find(placement, link->shard.id);
    return placement->state == KELP_PLACEMENT_RUNNING ||
           (placement->state == KELP_PLACEMENT_WAITING && status == KELP_ERR_MISMATCH && placed &&
            placement->map.generation > 0 &&
            placed->loaded_generation == placement->map.generation);
}

static void on_failure(struct kelp_term *term, struct kelp_link *link, kelp_status status,
                       const char *text)
{
    char reason[KELP_COORDINATOR_REASON_MAX + 1];
    bool blocked = status == KELP_ERR_CONTROL_WORD;
    kelp_link_failed(link, &term->outside, status, text);
    if (!blocked && failed_in_training(term, link, status)) {
        (void)snprintf(reason, sizeof(reason), "%s: %s", link->shard.id, text);
        kelp__term_fail_job(term, reason);
        return;
    }
    kelp__term_place(term,
                     (struct kelp_placement_event){
                         .kind = blocked ? KELP_PLACEMENT_BLOCKED : KELP_PLACEMENT_LOAD_FAILED,
                         .load_failed = {.id = link->shard.id,
                                         .incarnation = link->shard.incarnation,
                                         .status = status,
                                         .text = text}});
}

static void on_waiting(struct kelp_term *term, const struct kelp_link *link, const char *text)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&term->placement, link->shard.id);
    if (!placed || strncmp(placed->waiting, text, sizeof(placed->waiting) - 1) == 0) {
        return;
    }
    if (text[0] != '\0') {
        kelp_outside_log_of(&term->outside, link->shard.address, KELP_LOG_WARN,
                            "shard waits shard=%s for=\"%s\"", link->shard.id, text);
    }
    kelp__term_place(
        term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_STORAGE,
                                            .storage = {.id = link->shard.id,
                                                        .incarnation = link->shard.incarnation,
                                                        .text = text}});
}

static void on_loaded(struct kelp_term *term, const struct kelp_link *link, uint64_t generation)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&term->placement, link->shard.id);
    if (placed && generation != 0 && placed->loaded_generation != generation) {
        kelp__term_place(
            term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_LOADED,
                                                .loaded = {.id = link->shard.id,
                                                           .incarnation = link->shard.incarnation,
                                                           .generation = generation}});
    }
}

static void on_map(struct kelp_term *term, const struct kelp_link *link,
                   const struct kelp_link_report *report)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&term->placement, link->shard.id);
    if (placed && (placed->taken_generation != report->map_generation ||
                   placed->taken_serial != report->map_serial)) {
        kelp__term_place(
            term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_TAKEN,
                                                .taken = {.id = link->shard.id,
                                                          .incarnation = link->shard.incarnation,
                                                          .generation = report->map_generation,
                                                          .serial = report->map_serial}});
    }
    if (report->replica_count > 0) {
        kelp__term_place(
            term, (struct kelp_placement_event){.kind = KELP_PLACEMENT_REPLICAS,
                                                .replicas = {.id = link->shard.id,
                                                             .incarnation = link->shard.incarnation,
                                                             .generation = report->map_generation,
                                                             .reports = report->replicas,
                                                             .count = report->replica_count}});
    }
}

/* The job's state shows it, too; this puts it into the log. */
static void on_stands(struct kelp_term *term, const struct kelp_link *link,
                      const struct kelp_link_report *report)
{
    const uint32_t blocks = term->placement.blocks;
    if (!report->lowest || !report->highest) {
        return;
    }
    kelp__term_place(term, (struct kelp_placement_event){
                               .kind = KELP_PLACEMENT_STANDS,
                               .stands = {.id = link->shard.id,
                                          .incarnation = link->shard.incarnation,
                                          .said = {.generation = report->loaded_generation,
                                                   .heartbeat = report->heartbeat,
                                                   .next = term->heartbeat,
                                                   .lowest = *report->lowest,
                                                   .highest = *report->highest}}});
    if (term->placement.blocks != blocks) {
        kelp_outside_log(&term->outside, KELP_LOG_WARN,
                         "partitions are apart generation=%" PRIu64 " reason=\"%s\"",
                         report->loaded_generation, term->placement.reason);
    }
}

/* The shard was told to end, and asks to be drained. */
static void on_leaving(struct kelp_term *term, const struct kelp_link *link)
{
    const struct kelp_placement_shard *placed =
        kelp_placement_find(&term->placement, link->shard.id);
    if (!placed || placed->leaving == link->shard.incarnation) {
        return;
    }
    kelp_outside_log_of(&term->outside, link->shard.address, KELP_LOG_INFO,
                        "shard wants to leave shard=%s", link->shard.id);
    if (!placed->draining) {
        kelp__term_tell(term, (struct kelp_event){.kind = KELP_EVENT_DRAINING,
                                                  .who = link->shard.id,
                                                  .why = "it was told to end"});
    }
    kelp__term_place(
        term, (struct kelp_placement_event){
                  .kind = KELP_PLACEMENT_LEAVING,
                  .leaving = {.id = link->shard.id, .incarnation = link->shard.incarnation}});
    kelp__term_depart(term);
    kelp__term_update_shards(term, false);
}

/* A shard does not hear this peer; whether we hear the peer is another question. */
static void on_peer(struct kelp_term *term, const struct kelp_link *link,
                    const struct kelp_link_peer *peer)
{
    bool silent = peer->silent_ms >= term->membership.detect_ms / 2;
    if ((peer->broken || silent) && kelp_placement_find(&term->placement, peer->id)) {
        kelp__term_place(term,
                         (struct kelp_placement_event){.kind = KELP_PLACEMENT_DOUBTED,
                                                       .doubted = {.id = peer->id,
                                                                   .incarnation = peer->incarnation,
                                                                   .by = link->shard.incarnation,
                                                                   .silent = silent}});
    }
}

/* Every report repeats the newest answer. */
static void on_snapshot(struct kelp_term *term, const struct kelp_checkpointer_report *report)
{
    const struct kelp_checkpointer *checkpointer = &term->keeper.machine;
    if (checkpointer->state == KELP_CHECKPOINTER_ORDERED &&
        report->serial >= checkpointer->order.serial) {
        kelp__term_checkpoint(term, (struct kelp_checkpointer_event){
                                        .kind = KELP_CHECKPOINTER_REPORT, .report = report});
    }
}

/* A restarted shard counts from 0. */
static void on_conflicts(struct kelp_term *term, struct kelp_link *link,
                         const struct kelp_link_report *report)
{
    const uint64_t before = report->conflicts < link->conflicts ? 0 : link->conflicts;
    if (report->conflicts > before) {
        term->conflicts += report->conflicts - before;
        (void)snprintf(term->conflict, sizeof(term->conflict), "%s", report->conflict);
    }
    link->conflicts = report->conflicts;
}

void kelp_term_shard_report(struct kelp_term *term, struct kelp_link *link,
                            const struct kelp_link_report *report)
{
    const struct kelp_placement *placement = &term->placement;
    kelp_membership_heard(&term->membership, link->key, NULL, term->now_ms);
    on_loaded(term, link, report->loaded_generation);
    on_conflicts(term, link, report);
    on_map(term, link, report);
    for (size_t i = 0; i < report->peer_count; i++) {
        on_peer(term, link, &report->peers[i]);
    }
    bool current = kelp_link_current(link, placement, report->heartbeat);
    if (report->status != KELP_OK && current) {
        on_failure(term, link, report->status, report->error);
    } else {
        kelp_link_failed(link, &term->outside, KELP_OK, "");
    }
    if (current) {
        on_waiting(term, link, report->waiting);
    }
    on_stands(term, link, report);
    if (report->snapshot) {
        on_snapshot(term, report->snapshot);
    }
    const struct kelp_placement_shard *placed = kelp_placement_find(placement, link->shard.id);
    /* Records of an earlier generation are ignored, except by a new leader that has not read the
     * map: shards do not send these records again, and records of all generations are the same. */
    if (placed &&
        (!placement->map_read || placed->loaded_generation == placement->map.generation)) {
        kelp__term_apply_records(term, report, placed->loaded_generation);
    }
    if (report->leaving) { /* last: its reports are processed by now */
        on_leaving(term, link);
    }
}
