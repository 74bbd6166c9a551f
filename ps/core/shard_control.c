#include "ps/core/shard_control.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A coordinator's stream. */
struct stream {
    uint64_t id;
    char proof[KELP_SHARD_PROOF_MAX + 1]; /* digest; "": none shown yet */
    bool greeted;                         /* its first command came */
    bool has_hello;                       /* its first report left */
    uint64_t heartbeat;
    size_t cursor; /* records before it have been handed out */
};

struct kelp_shard_control {
    struct kelp_shard_control_config config;
    char leader[KELP_SHARD_PROOF_MAX + 1];              /* digest of its proof; "": not known */
    struct stream streams[KELP_PS_CONTROL_STREAMS_MAX]; /* the oldest first */
    uint32_t stream_count;

    uint64_t generation;     /* served; 0: none */
    uint64_t serial;         /* of the newest map taken, of the newest generation */
    uint64_t map_generation; /* of the newest map that is carried out; 0: none */
    uint64_t map_serial;
    uint64_t loading; /* generation; 0: none */
    bool cancelled;   /* the load: a newer map came, or the process ends */
    bool missing;     /* the load waits for storage */
    uint64_t missing_since_ms;
    uint64_t wanted; /* generation of the newest map, once the load is over; 0: none */
    struct kelp_snapshot *snapshot;

    kelp_status status;
    char error[512];
    char waiting[256];
    bool has_word; /* partition 0 is led here */
    struct kelp_control_word word;
    struct kelp_best best; /* when known */
    bool has_train;
    struct kelp_record latest_train;
    struct kelp_record *records;
    size_t record_count;
    size_t record_capacity;

    bool dirty;  /* there is something that coordinators have not been told */
    bool timing; /* the timer runs */
};

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

static struct kelp_shard_action *add(struct kelp_shard_actions *actions,
                                     enum kelp_shard_action_kind kind)
{
    assert(actions->count < KELP_SHARD_ACTIONS_MAX);
    struct kelp_shard_action *action = &actions->items[actions->count++];
    *action = (struct kelp_shard_action){.kind = kind};
    return action;
}

static void tell(struct kelp_shard_actions *actions, enum kelp_shard_news news)
{
    add(actions, KELP_SHARD_DO_LOG)->news = news;
}

/* ---- reports ---- */

static void report(const struct kelp_shard_control *control, struct stream *stream,
                   struct kelp_shard_actions *actions)
{
    struct kelp_shard_action *action = add(actions, KELP_SHARD_DO_REPORT);
    const size_t left = control->has_word ? control->record_count - stream->cursor : 0;

    action->report.stream = stream->id;
    action->report.hello = !stream->has_hello;
    action->report.heartbeat = stream->heartbeat;
    action->report.record_first = stream->cursor;
    action->report.record_count =
        left < control->config.report_records_max ? left : control->config.report_records_max;
    stream->has_hello = true;
    stream->cursor += action->report.record_count;
}

static void report_to_all(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    for (uint32_t i = 0; i < control->stream_count; i++) {
        if (control->streams[i].greeted) {
            report(control, &control->streams[i], actions);
        }
    }
}

/* Coordinators are to hear of it within KELP_PS_REPORT_MS. */
static void mark_dirty(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    control->dirty = true;
    if (!control->timing) {
        control->timing = true;
        (void)add(actions, KELP_SHARD_DO_START_TIMER);
    }
}

static void on_timer(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    if (!control->dirty) { /* no timer runs while nothing happens */
        control->timing = false;
        (void)add(actions, KELP_SHARD_DO_STOP_TIMER);
        return;
    }
    control->dirty = false;
    for (uint32_t i = 0; i < control->stream_count; i++) {
        struct stream *stream = &control->streams[i];
        if (stream->greeted) {
            report(control, stream, actions);
            control->dirty =
                control->dirty || (control->has_word && stream->cursor < control->record_count);
        }
    }
}

static void fail(struct kelp_shard_control *control, kelp_status status, const char *text,
                 struct kelp_shard_actions *actions)
{
    assert(status != KELP_OK);
    if (control->status == KELP_OK) { /* the first one is the cause */
        control->status = status;
        (void)snprintf(control->error, sizeof(control->error), "%s", text); /* may be cut */
        tell(actions, KELP_SHARD_NEWS_FAILED);
    }
    mark_dirty(control, actions);
}

static kelp_status on_failure(struct kelp_shard_control *control, kelp_status status,
                              const char *text, struct kelp_shard_actions *actions)
{
    if (control->loading != 0) {
        return KELP_ERR_OLD_GENERATION; /* reports speak of the one that is being loaded */
    }
    fail(control, status, text, actions);
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
            fail(control, KELP_ERR_LIMIT, "too many records: make checkpoint.digest_steps larger",
                 actions);
            return;
        }
        control->records = records;
        control->record_capacity = capacity;
    }
    control->records[control->record_count++] = *record;
}

/* Records come in the order of their versions, and copies repeat what is known. */
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
static struct stream *find_stream(struct kelp_shard_control *control, uint64_t id)
{
    for (uint32_t i = 0; i < control->stream_count; i++) {
        if (control->streams[i].id == id) {
            return &control->streams[i];
        }
    }
    return NULL;
}

static bool leads(const struct kelp_shard_control *control, const struct stream *stream)
{
    return control->leader[0] != '\0' && strcmp(stream->proof, control->leader) == 0;
}

/* ---- snapshots ---- */

static void add_snapshot(struct kelp_shard_control *control,
                         const struct kelp_snapshot_actions *snapshot,
                         struct kelp_shard_actions *actions)
{
    for (uint32_t i = 0; i < snapshot->count; i++) {
        if (snapshot->items[i].kind == KELP_SNAPSHOT_DO_REPORT) {
            tell(actions, KELP_SHARD_NEWS_SNAPSHOT);
            report_to_all(control, actions);
        } else {
            add(actions, KELP_SHARD_DO_SNAPSHOT)->snapshot = snapshot->items[i];
        }
    }
}

static kelp_status on_order(struct kelp_shard_control *control, const struct kelp_shard_order *from,
                            struct kelp_shard_actions *actions)
{
    const struct stream *stream = find_stream(control, from->stream);
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
    add_snapshot(control, &snapshot, actions);
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
    add_snapshot(control, &snapshot, actions);
    return wanted ? KELP_OK : KELP_ERR_CLOSED;
}

/* ---- generations ---- */

/* The newest generation that is served, or on its way. */
static uint64_t newest_generation(const struct kelp_shard_control *control)
{
    if (control->wanted != 0) {
        return control->wanted;
    }
    return control->loading != 0 ? control->loading : control->generation;
}

bool kelp_shard_control_changes(const struct kelp_shard_control *control, uint64_t generation)
{
    return kelp_fence_generation(newest_generation(control), generation) == KELP_OK;
}

kelp_status kelp_shard_control_judge(const struct kelp_shard_control *control, uint64_t generation,
                                     uint64_t serial, bool names_another_incarnation)
{
    if (names_another_incarnation) {
        return KELP_ERR_MISMATCH;
    }
    if (kelp_shard_control_changes(control, generation) && serial > control->serial) {
        return KELP_OK;
    }
    return kelp_fence_generation(newest_generation(control), generation) == KELP_ERR_BUSY
               ? KELP_OK
               : KELP_ERR_OLD_GENERATION;
}

static void cancel_load(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    if (control->loading != 0 && !control->cancelled) {
        control->cancelled = true;
        (void)add(actions, KELP_SHARD_DO_CANCEL_LOAD);
    }
}

static void load(struct kelp_shard_control *control, uint64_t generation,
                 struct kelp_shard_actions *actions)
{
    assert(control->loading == 0);
    control->loading = generation;
    control->cancelled = false;
    control->missing = false;
    add(actions, KELP_SHARD_DO_LOAD)->generation = generation;
}

static void on_map(struct kelp_shard_control *control, uint64_t generation, uint64_t serial,
                   struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};
    const bool changes = kelp_shard_control_changes(control, generation);

    assert(kelp_shard_control_judge(control, generation, serial, false) == KELP_OK);
    control->serial = serial;
    if (changes) {
        return; /* the shell carries it out at once, or after the load */
    }
    kelp_snapshot_cancel(control->snapshot, KELP_ERR_OLD_GENERATION,
                         "a newer generation is being loaded", &snapshot);
    add_snapshot(control, &snapshot, actions);
    /* From here on the status is that of the new generation: what became of the one before must not
     * be taken for it. */
    control->status = KELP_OK;
    control->error[0] = '\0';
    if (control->loading == 0) {
        load(control, generation, actions);
    } else {
        control->wanted = generation;
        cancel_load(control, actions);
    }
}

static kelp_status on_storage_missing(struct kelp_shard_control *control, const char *text,
                                      uint64_t now_ms, struct kelp_shard_actions *actions)
{
    const uint32_t limit_ms = control->config.storage_wait_ms;

    assert(control->loading != 0);
    if (control->cancelled) {
        return KELP_ERR_OLD_GENERATION;
    }
    if (!control->missing) {
        control->missing = true;
        control->missing_since_ms = now_ms;
    }
    if (strncmp(control->waiting, text, sizeof(control->waiting) - 1) != 0) {
        (void)snprintf(control->waiting, sizeof(control->waiting), "%s", text); /* may be cut */
        tell(actions, KELP_SHARD_NEWS_MISSING);
        report_to_all(control, actions);
    }
    return limit_ms > 0 && now_ms - control->missing_since_ms >= limit_ms ? KELP_ERR_NOT_FOUND
                                                                          : KELP_OK;
}

static void lead(struct kelp_shard_control *control, const struct kelp_shard_led *led)
{
    control->has_word = led->word != NULL;
    /* What a record said since is newer. */
    if (led->word && led->word->version >= control->word.version) {
        control->word = *led->word;
        control->best = led->best ? *led->best : (struct kelp_best){0};
    }
}

static void on_entered(struct kelp_shard_control *control, const struct kelp_shard_event *event,
                       struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};
    const struct kelp_shard_led *led = &event->entered.led;

    if (kelp_fence_generation(control->generation, event->entered.generation) != KELP_OK) {
        return;
    }
    control->map_generation = event->entered.generation;
    control->map_serial = event->entered.serial;
    lead(control, led);
    kelp_snapshot_lead(control->snapshot, led->partitions, led->partition_count, &snapshot);
    add_snapshot(control, &snapshot, actions);
    report_to_all(control, actions);
}

static void serve(struct kelp_shard_control *control, const struct kelp_shard_loaded *loaded,
                  struct kelp_shard_actions *actions)
{
    struct kelp_snapshot_actions snapshot = {.count = 0};

    control->generation = control->loading;
    control->record_count = 0;
    for (uint32_t i = 0; i < control->stream_count; i++) {
        control->streams[i].cursor = 0;
    }
    control->word = (struct kelp_control_word){0};
    control->best = (struct kelp_best){0};
    lead(control, &loaded->led);
    control->has_train = false;
    control->status = KELP_OK;
    control->error[0] = '\0';
    kelp_snapshot_generation(control->snapshot, control->generation, loaded->led.partitions,
                             loaded->led.partition_count, &snapshot);
    add_snapshot(control, &snapshot, actions);
}

static void on_loaded(struct kelp_shard_control *control, const struct kelp_shard_loaded *loaded,
                      struct kelp_shard_actions *actions)
{
    assert(control->loading != 0);
    control->waiting[0] = '\0';
    if (loaded->status == KELP_OK) {
        serve(control, loaded, actions);
    } else if (!control->cancelled) {
        fail(control, loaded->status, loaded->text, actions);
    }
    report_to_all(control, actions);
    control->loading = 0;
    uint64_t wanted = control->wanted;
    control->wanted = 0;
    if (wanted != 0) {
        load(control, wanted, actions);
    }
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

/* The oldest one that does not lead: the leader's own stream before, at the worst. */
static void make_room(struct kelp_shard_control *control, struct kelp_shard_actions *actions)
{
    uint32_t at = 0;

    while (at + 1 < control->stream_count && leads(control, &control->streams[at])) {
        at++;
    }
    add(actions, KELP_SHARD_DO_GIVE_WAY)->stream = control->streams[at].id;
    remove_stream(control, at);
}

static void on_connect(struct kelp_shard_control *control, uint64_t id,
                       struct kelp_shard_actions *actions)
{
    assert(!find_stream(control, id));
    if (control->stream_count == KELP_PS_CONTROL_STREAMS_MAX) {
        make_room(control, actions);
    }
    control->streams[control->stream_count++] = (struct stream){.id = id};
}

static kelp_status on_hello(struct kelp_shard_control *control, uint64_t id, const char *proof)
{
    struct stream *stream = find_stream(control, id);

    if (!stream) {
        return KELP_ERR_CLOSED; /* it has given way */
    }
    (void)snprintf(stream->proof, sizeof(stream->proof), "%s", proof);
    return leads(control, stream) ? KELP_OK : KELP_ERR_NOT_LEADER;
}

static void on_close(struct kelp_shard_control *control, uint64_t id)
{
    struct stream *stream = find_stream(control, id);

    if (stream) {
        remove_stream(control, (uint32_t)(stream - control->streams));
    }
}

static void on_unsent(struct kelp_shard_control *control, uint64_t id, size_t record_first)
{
    struct stream *stream = find_stream(control, id);

    assert(stream);
    stream->cursor = record_first < stream->cursor ? record_first : stream->cursor;
}

static kelp_status on_command(struct kelp_shard_control *control,
                              const struct kelp_shard_command *command,
                              struct kelp_shard_actions *actions)
{
    struct stream *stream = find_stream(control, command->stream);

    if (!stream || !leads(control, stream)) {
        return KELP_ERR_NOT_LEADER;
    }
    if (!stream->greeted) {
        stream->greeted = true;
        while (stream->cursor < control->record_count &&
               control->records[stream->cursor].word.version < command->records_after) {
            stream->cursor++;
        }
    }
    if (command->map_generation != 0) {
        on_map(control, command->map_generation, command->map_serial, actions);
    }
    stream->heartbeat = command->heartbeat;
    report(control, stream, actions);
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
        return on_storage_missing(control, event->missing.text, event->missing.now_ms, actions);
    case KELP_SHARD_ON_LOADED:
        on_loaded(control, &event->loaded, actions);
        return KELP_OK;
    case KELP_SHARD_ON_ENTERED:
        on_entered(control, event, actions);
        return KELP_OK;
    case KELP_SHARD_ON_REPLICAS:
        report_to_all(control, actions);
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
        control->timing = false; /* the next heartbeat's answer carries what is new */
        return KELP_OK;
    case KELP_SHARD_ON_SNAPSHOT_TAKEN:
    case KELP_SHARD_ON_SNAPSHOT_PAST:
    case KELP_SHARD_ON_SNAPSHOT_WRITTEN:
    case KELP_SHARD_ON_SNAPSHOT_SYNCED:
    case KELP_SHARD_ON_SNAPSHOT_FAILED:
        return on_snapshot(control, event, actions);
    case KELP_SHARD_ON_STOP:
        control->wanted = 0;
        cancel_load(control, actions);
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
