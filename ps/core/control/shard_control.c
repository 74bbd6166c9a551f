#include "ps/core/control/shard_control_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kelp_status kelp_shard_control_create(const struct kelp_shard_control_config *config,
                                      struct kelp_shard_control **ret_control,
                                      struct kelp_error *reterr)
{
    struct kelp_shard_control *control = calloc(1, sizeof(*control));

    assert(config->report_records_max > 0);
    if (!control) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the shard's control");
    }
    control->config = *config;
    kelp_status status = kelp_snapshot_create(&control->snapshot, reterr);
    if (status != KELP_OK) {
        free(control);
        return status;
    }
    *ret_control = control;
    return KELP_OK;
}

void kelp_shard_control_destroy(struct kelp_shard_control *control)
{
    if (!control) {
        return;
    }
    kelp_snapshot_destroy(control->snapshot);
    free(control->records);
    free(control);
}

struct kelp_shard_action *kelp__shard_control_add(struct kelp_shard_actions *actions,
                                                  enum kelp_shard_action_kind kind)
{
    assert(actions->count < KELP_SHARD_ACTIONS_MAX);
    struct kelp_shard_action *action = &actions->items[actions->count++];
    *action = (struct kelp_shard_action){.kind = kind};
    return action;
}

void kelp__shard_control_tell(struct kelp_shard_actions *actions, enum kelp_shard_news news)
{
    kelp__shard_control_add(actions, KELP_SHARD_DO_LOG)->news = news;
}

/* ---- reports ---- */

static struct kelp_shard_action *report(const struct kelp_shard_control *control,
                                        struct kelp__control_stream *stream,
                                        struct kelp_shard_actions *actions)
{
    struct kelp_shard_action *action = kelp__shard_control_add(actions, KELP_SHARD_DO_REPORT);
    const size_t left = control->has_word ? control->record_count - stream->cursor : 0;

    action->report.stream = stream->id;
    action->report.hello = !stream->has_hello;
    action->report.heartbeat = stream->heartbeat;
    action->report.record_first = stream->cursor;
    action->report.record_count =
        left < control->config.report_records_max ? left : control->config.report_records_max;
    stream->has_hello = true;
    stream->cursor += action->report.record_count;
    return action;
}

void kelp__shard_control_report(struct kelp_shard_control *control,
                                struct kelp_shard_actions *actions)
{
    for (uint32_t i = 0; i < control->stream_count; i++) {
        if (control->streams[i].greeted) {
            (void)report(control, &control->streams[i], actions);
        }
    }
}

/* Coordinators must hear of it within KELP_PS_REPORT_MS. */
static void mark_dirty(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    control->dirty = true;
    if (!control->timing) {
        control->timing = true;
        (void)kelp__shard_control_add(actions, KELP_SHARD_DO_START_TIMER);
    }
}

static void on_timer(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    if (!control->dirty) { /* no timer runs while nothing happens */
        control->timing = false;
        (void)kelp__shard_control_add(actions, KELP_SHARD_DO_STOP_TIMER);
        return;
    }
    control->dirty = false;
    for (uint32_t i = 0; i < control->stream_count; i++) {
        struct kelp__control_stream *stream = &control->streams[i];
        if (stream->greeted) {
            (void)report(control, stream, actions);
            control->dirty =
                control->dirty || (control->has_word && stream->cursor < control->record_count);
        }
    }
}

void kelp__shard_control_fail(struct kelp_shard_control *control, kelp_status status,
                              const char *text, struct kelp_shard_actions *actions)
{
    assert(status != KELP_OK);
    if (control->status == KELP_OK) { /* the first one is the cause */
        control->status = status;
        (void)snprintf(control->error, sizeof(control->error), "%s", text); /* may be cut */
        kelp__shard_control_tell(actions, KELP_SHARD_NEWS_FAILED);
    }
    mark_dirty(control, actions);
}

static kelp_status on_failure(struct kelp_shard_control *control, kelp_status status,
                              const char *text, struct kelp_shard_actions *actions)
{
    if (control->loading != 0) {
        return KELP_ERR_OLD_GENERATION; /* reports are about the generation that is being loaded */
    }
    kelp__shard_control_fail(control, status, text, actions);
    return KELP_OK;
}

/* ---- records ---- */

static bool is_for_the_files(const struct kelp_record *record)
{
    return record->epoch_end || record->window_end || record->digest[0] != '\0' ||
           record->word.kind == KELP_STEP_EVALUATE_VAL ||
           record->word.kind == KELP_STEP_EVALUATE_TEST;
}

static void keep_record(struct kelp_shard_control *control, const struct kelp_record *record,
                        struct kelp_shard_actions *actions)
{
    if (control->record_count == control->record_capacity) {
        size_t capacity = control->record_capacity ? 2 * control->record_capacity : 64;
        struct kelp_record *records =
            capacity > KELP_PS_RECORDS_MAX
                ? NULL
                : realloc(control->records, capacity * sizeof(*control->records));
        if (!records) {
            kelp__shard_control_fail(control, KELP_ERR_LIMIT,
                                     "too many records: make checkpoint.digest_steps larger",
                                     actions);
            return;
        }
        control->records = records;
        control->record_capacity = capacity;
    }
    control->records[control->record_count++] = *record;
}

/* Records come in the order of their versions; copies repeat known ones. */
static void on_copied_record(struct kelp_shard_control *control, const struct kelp_record *record,
                             struct kelp_shard_actions *actions)
{
    const size_t count = control->record_count;

    if (count == 0 || record->word.version > control->records[count - 1].word.version) {
        keep_record(control, record, actions);
    }
}

static void on_record(struct kelp_shard_control *control, const struct kelp_shard_event *event,
                      struct kelp_shard_actions *actions)
{
    const struct kelp_record *record = event->record.record;

    if (is_for_the_files(record)) {
        keep_record(control, record, actions);
    }
    if (record->word.kind == KELP_STEP_TRAIN) {
        control->has_train = true;
        control->latest_train = *record;
    } else if (event->record.best) {
        control->best = *event->record.best;
    }
    control->word = *event->record.word;
    if (control->has_word) {
        mark_dirty(control, actions);
    }
}

/* ---- who speaks ---- */

/* NULL: none. */
static struct kelp__control_stream *find_stream(struct kelp_shard_control *control, uint64_t id)
{
    for (uint32_t i = 0; i < control->stream_count; i++) {
        if (control->streams[i].id == id) {
            return &control->streams[i];
        }
    }
    return NULL;
}

static bool leads(const struct kelp_shard_control *control,
                  const struct kelp__control_stream *stream)
{
    return control->leader[0] != '\0' && strcmp(stream->proof, control->leader) == 0;
}

/* ---- snapshots ---- */

void kelp__shard_control_snapshot(struct kelp_shard_control *control,
                                  const struct kelp_snapshot_actions *snapshot,
                                  struct kelp_shard_actions *actions)
{
    for (uint32_t i = 0; i < snapshot->count; i++) {
        if (snapshot->items[i].kind == KELP_SNAPSHOT_DO_REPORT) {
            kelp__shard_control_tell(actions, KELP_SHARD_NEWS_SNAPSHOT);
            kelp__shard_control_report(control, actions);
        } else {
            kelp__shard_control_add(actions, KELP_SHARD_DO_SNAPSHOT)->snapshot = snapshot->items[i];
        }
    }
}

static kelp_status on_order(struct kelp_shard_control *control, const struct kelp_shard_order *from,
                            struct kelp_shard_actions *actions)
{
    const struct kelp__control_stream *stream = find_stream(control, from->stream);
    struct kelp_snapshot_actions snapshot = {.count = 0};
    kelp_status status = KELP_OK;

    if (!stream || !leads(control, stream)) {
        return KELP_ERR_NOT_LEADER;
    }
    if (from->give_up) {
        kelp_snapshot_give_up(control->snapshot, from->order->generation, from->order->serial,
                              &snapshot);
    } else {
        status = kelp_snapshot_order(control->snapshot, from->order, &from->share, &snapshot);
    }
    kelp__shard_control_snapshot(control, &snapshot, actions);
    return status;
}

static kelp_status on_snapshot(struct kelp_shard_control *control,
                               const struct kelp_shard_event *event,
                               struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};
    const uint64_t ticket = event->snapshot.ticket;
    bool wanted = true;

    if (event->kind == KELP_SHARD_ON_SNAPSHOT_TAKEN) {
        wanted = kelp_snapshot_taken(control->snapshot, ticket, event->snapshot.partition,
                                     event->snapshot.word, &snapshot);
    } else if (event->kind == KELP_SHARD_ON_SNAPSHOT_PAST) {
        kelp_snapshot_past(control->snapshot, ticket, event->snapshot.step, &snapshot);
    } else if (event->kind == KELP_SHARD_ON_SNAPSHOT_WRITTEN) {
        kelp_snapshot_written(control->snapshot, ticket, event->snapshot.partition,
                              event->snapshot.digest, event->snapshot.bytes, &snapshot);
    } else if (event->kind == KELP_SHARD_ON_SNAPSHOT_SYNCED) {
        wanted = kelp_snapshot_synced(control->snapshot, ticket, &snapshot);
    } else {
        kelp_snapshot_failed(control->snapshot, ticket, event->snapshot.status,
                             event->snapshot.text, &snapshot);
    }
    kelp__shard_control_snapshot(control, &snapshot, actions);
    return wanted ? KELP_OK : KELP_ERR_CLOSED;
}

/* ---- streams ---- */

bool kelp_shard_control_obeys(const struct kelp_shard_control *control, uint64_t stream)
{
    for (uint32_t i = 0; i < control->stream_count; i++) {
        if (control->streams[i].id == stream) {
            return leads(control, &control->streams[i]);
        }
    }
    return false;
}

static void remove_stream(struct kelp_shard_control *control, uint32_t at)
{
    control->stream_count--;
    memmove(&control->streams[at], &control->streams[at + 1],
            (control->stream_count - at) * sizeof(control->streams[0]));
}

/* The oldest stream that does not lead; at worst an earlier stream of the leader. */
static void make_room(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    uint32_t at = 0;

    while (at + 1 < control->stream_count && leads(control, &control->streams[at])) {
        at++;
    }
    kelp__shard_control_add(actions, KELP_SHARD_DO_GIVE_WAY)->stream = control->streams[at].id;
    remove_stream(control, at);
}

static void on_connect(struct kelp_shard_control *control, uint64_t id,
                       struct kelp_shard_actions *actions)
{
    assert(!find_stream(control, id));
    if (control->stream_count == KELP_PS_CONTROL_STREAMS_MAX) {
        make_room(control, actions);
    }
    control->streams[control->stream_count++] = (struct kelp__control_stream){.id = id};
}

static kelp_status on_hello(struct kelp_shard_control *control, uint64_t id, const char *proof)
{
    struct kelp__control_stream *stream = find_stream(control, id);

    if (!stream) {
        return KELP_ERR_CLOSED; /* it has given way */
    }
    (void)snprintf(stream->proof, sizeof(stream->proof), "%s", proof);
    return leads(control, stream) ? KELP_OK : KELP_ERR_NOT_LEADER;
}

static void on_close(struct kelp_shard_control *control, uint64_t id)
{
    struct kelp__control_stream *stream = find_stream(control, id);

    if (stream) {
        remove_stream(control, (uint32_t)(stream - control->streams));
    }
}

static void on_unsent(struct kelp_shard_control *control, uint64_t id, size_t record_first)
{
    struct kelp__control_stream *stream = find_stream(control, id);

    assert(stream);
    stream->cursor = record_first < stream->cursor ? record_first : stream->cursor;
}

/* The leader has them on disk. */
static void forget_records(struct kelp_shard_control *control, uint64_t before)
{
    size_t count = 0;

    while (count < control->record_count && control->records[count].word.version < before) {
        count++;
    }
    if (count == 0) {
        return;
    }
    control->record_count -= count;
    memmove(control->records, control->records + count,
            control->record_count * sizeof(*control->records));
    for (uint32_t i = 0; i < control->stream_count; i++) {
        struct kelp__control_stream *one = &control->streams[i];
        one->cursor -= one->cursor < count ? one->cursor : count;
    }
}

static kelp_status on_command(struct kelp_shard_control *control,
                              const struct kelp_shard_command *command,
                              struct kelp_shard_actions *actions)
{
    struct kelp__control_stream *stream = find_stream(control, command->stream);

    if (!stream || !leads(control, stream)) {
        return KELP_ERR_NOT_LEADER;
    }
    if (!stream->greeted) {
        stream->greeted = true;
        while (stream->cursor < control->record_count &&
               control->records[stream->cursor].word.version < command->records_after) {
            stream->cursor++;
        }
    } else {
        forget_records(control, command->records_after);
    }
    if (command->map_generation != 0) {
        kelp__shard_control_on_map(control, command, actions);
    }
    stream->heartbeat = command->heartbeat;
    struct kelp_shard_action *answer = report(control, stream, actions);
    if (command->standing.generation ==
        control->generation) { /* else it is of one before, or next */
        answer->report.standing = command->standing;
    }
    return KELP_OK;
}

kelp_status kelp_shard_control_apply(struct kelp_shard_control *control,
                                     const struct kelp_shard_event *event,
                                     struct kelp_shard_actions *actions)
{
    switch (event->kind) {
    case KELP_SHARD_ON_LEADER:
        (void)snprintf(control->leader, sizeof(control->leader), "%s", event->leader);
        return KELP_OK;
    case KELP_SHARD_ON_CONNECT:
        on_connect(control, event->stream, actions);
        return KELP_OK;
    case KELP_SHARD_ON_HELLO:
        return on_hello(control, event->hello.stream, event->hello.proof);
    case KELP_SHARD_ON_CLOSE:
        on_close(control, event->stream);
        return KELP_OK;
    case KELP_SHARD_ON_COMMAND:
        return on_command(control, &event->command, actions);
    case KELP_SHARD_ON_ORDER:
        return on_order(control, &event->order, actions);
    case KELP_SHARD_ON_UNSENT:
        on_unsent(control, event->unsent.stream, event->unsent.record_first);
        return KELP_OK;
    case KELP_SHARD_ON_STORAGE_MISSING:
        return kelp__shard_control_on_missing(control, event->missing.text, event->missing.now_ms,
                                              actions);
    case KELP_SHARD_ON_LOADED:
        kelp__shard_control_on_loaded(control, &event->loaded, actions);
        return KELP_OK;
    case KELP_SHARD_ON_ENTERED:
        kelp__shard_control_on_entered(control, event, actions);
        return KELP_OK;
    case KELP_SHARD_ON_REPLICAS:
        kelp__shard_control_report(control, actions);
        return KELP_OK;
    case KELP_SHARD_ON_COPIED_RECORD:
        on_copied_record(control, event->record.record, actions);
        return KELP_OK;
    case KELP_SHARD_ON_RECORD:
        on_record(control, event, actions);
        return KELP_OK;
    case KELP_SHARD_ON_FAILURE:
        return on_failure(control, event->failure.status, event->failure.text, actions);
    case KELP_SHARD_ON_TIMER:
        on_timer(control, actions);
        return KELP_OK;
    case KELP_SHARD_ON_NO_TIMER:
        control->timing = false; /* the answer to the next heartbeat carries new facts */
        return KELP_OK;
    case KELP_SHARD_ON_SNAPSHOT_TAKEN:
    case KELP_SHARD_ON_SNAPSHOT_PAST:
    case KELP_SHARD_ON_SNAPSHOT_WRITTEN:
    case KELP_SHARD_ON_SNAPSHOT_SYNCED:
    case KELP_SHARD_ON_SNAPSHOT_FAILED:
        return on_snapshot(control, event, actions);
    case KELP_SHARD_ON_STOP:
        control->wanted = 0;
        kelp__shard_control_cancel_load(control, actions);
        return KELP_OK;
    }
    return KELP_OK;
}

void kelp_shard_control_view(const struct kelp_shard_control *control,
                             struct kelp_shard_control_view *ret_view)
{
    *ret_view = (struct kelp_shard_control_view){
        .generation = control->generation,
        .map_generation = control->map_generation,
        .map_serial = control->map_serial,
        .loading = control->loading,
        .status = control->status,
        .error = control->error,
        .waiting = control->waiting,
        .word = control->has_word ? &control->word : NULL,
        .best = control->has_word && control->best.known ? &control->best : NULL,
        .latest_train = control->has_word && control->has_train ? &control->latest_train : NULL,
        .records = control->records,
        .record_count = control->record_count};
    kelp_snapshot_view(control->snapshot, &ret_view->snapshot);
}
