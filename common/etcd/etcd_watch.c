#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/etcd/etcd_internal.h"
#include "common/etcd/etcd_known_keys.h"

/*
 * A watch keeps a table of the keys that it has reported. It lists, reports how the listing differs
 * from the table, and then follows etcd's stream of events from the revision after the listing.
 *
 *     listing   -> following    the listing arrived
 *     following -> listing      the stream ended, fell silent, was cancelled (compaction) or held
 *                               something that is not etcd's; after a pause
 *
 * So whatever is missed while the connection is down is made up for by the next listing: a key that
 * changed twice is reported once, with its newest value, and one that came and went not at all.
 *
 * The request body of the stream stays open, so that it can carry a progress request: its answer is
 * the sign of life of a connection on which nothing happens. (What such an answer says about
 * revisions is not used: etcd 3.4 may send it ahead of older events.)
 */

static const char progress_request[] = "{\"progress_request\":{}}\n";

struct kelp_etcd_watch {
    struct kelp_etcd *etcd;
    char *key;
    bool prefix;
    struct etcd_watch_hooks hooks;
    void *user;
    struct kelp_etcd_watch_events events; /* of a public watch */
    void *events_user;

    struct etcd_known_keys known; /* what was reported */
    int64_t revision;             /* all up to it was reported */

    struct etcd_call *listing;   /* NULL: not listing */
    struct etcd_transfer stream; /* no handle: not following */
    size_t endpoint;             /* of the stream */
    struct etcd_buffer upload;   /* what is still to be sent on it */
    bool upload_paused;
    struct etcd_buffer lines; /* received, not handled yet */
    size_t lines_searched;    /* no line ends before this */
    bool overflow;            /* a line longer than the limit, or no memory */
    bool heard;               /* bytes arrived since the timer was set */
    bool probed;              /* a progress request is on its way */
    int64_t began_ms;         /* the stream */
    uint32_t backoff_ms;
    struct etcd_timer timer; /* next listing, or: no sign of life */
    LIST_ENTRY(kelp_etcd_watch) link;
};

static void list_now(struct kelp_etcd_watch *watch);

/* ---- reports ---- */

static void report_removed(struct kelp_etcd_watch *watch, size_t at, int64_t revision)
{
    char *key = kelp__etcd_known_remove(&watch->known, at);

    watch->hooks.removed(key, revision, watch->user);
    free(key);
}

/* Report a key as it is now, unless that was done already. */
static kelp_status report_pair(struct kelp_etcd_watch *watch, const struct kelp_etcd_pair *pair)
{
    bool found;
    size_t at = kelp__etcd_known_find(&watch->known, pair->key, &found);

    if (found && watch->known.keys[at].mod_revision == pair->mod_revision) {
        return KELP_OK;
    }
    if (!found) {
        kelp_status status =
            kelp__etcd_known_insert(&watch->known, at, pair->key, pair->mod_revision);
        if (status != KELP_OK) {
            return status;
        }
    }
    watch->known.keys[at].mod_revision = pair->mod_revision;
    watch->hooks.changed(pair, watch->user);
    return KELP_OK;
}

/* ---- trouble ---- */

/* Forget the stream and list again after a pause, which grows while nothing works. */
static void start_over(struct kelp_etcd_watch *watch, kelp_status status, const char *text)
{
    kelp__etcd_transfer_end(watch->etcd, &watch->stream);
    kelp__etcd_buffer_fini(&watch->upload);
    kelp__etcd_buffer_fini(&watch->lines);
    watch->lines_searched = 0;
    watch->overflow = false;
    watch->timer.at_ms = kelp__etcd_now_ms() + watch->backoff_ms;
    watch->backoff_ms =
        watch->backoff_ms * 2 < ETCD_BACKOFF_MAX_MS ? watch->backoff_ms * 2 : ETCD_BACKOFF_MAX_MS;
    if (watch->hooks.trouble) {
        watch->hooks.trouble(status, text, watch->user);
    }
}

/* ---- following ---- */

static size_t give_upload(char *bytes, size_t size, size_t count, void *user)
{
    struct kelp_etcd_watch *watch = user;
    size_t give = size * count < watch->upload.used ? size * count : watch->upload.used;

    if (give == 0) {
        watch->upload_paused = true;
        return CURL_READFUNC_PAUSE;
    }
    memcpy(bytes, watch->upload.bytes, give);
    kelp__etcd_buffer_drop(&watch->upload, give);
    return give;
}

static size_t receive_lines(char *bytes, size_t size, size_t count, void *user)
{
    struct kelp_etcd_watch *watch = user;

    if (kelp__etcd_buffer_add(&watch->lines, bytes, size * count) != KELP_OK) {
        watch->overflow = true;
        return 0;
    }
    watch->heard = true;
    return size * count;
}

static void expect_news(struct kelp_etcd_watch *watch)
{
    watch->heard = false;
    watch->probed = false;
    watch->timer.at_ms = kelp__etcd_now_ms() + ETCD_WATCH_PROBE_MS;
}

static void stream_ended(struct etcd_transfer *transfer, CURLcode code)
{
    struct kelp_etcd_watch *watch = KELP_CONTAINER_OF(transfer, struct kelp_etcd_watch, stream);
    char text[512];
    long http_status = 0;

    (void)curl_easy_getinfo(transfer->curl, CURLINFO_RESPONSE_CODE, &http_status);
    if (watch->overflow) {
        (void)snprintf(text, sizeof(text), "etcd at %s: news over %d bytes in one piece",
                       watch->etcd->endpoints[watch->endpoint], ETCD_ANSWER_MAX);
        start_over(watch, KELP_ERR_LIMIT, text);
        return;
    }
    (void)snprintf(text, sizeof(text), "etcd at %s: the watch of '%.200s' broke: %s (HTTP %ld)",
                   watch->etcd->endpoints[watch->endpoint], watch->key,
                   code == CURLE_OK ? "etcd ended it" : curl_easy_strerror(code), http_status);
    kelp__etcd_endpoint_failed(watch->etcd, watch->endpoint);
    start_over(watch, KELP_ERR_UNREACHABLE, text);
}

static kelp_status start_stream(struct kelp_etcd_watch *watch)
{
    struct kelp_etcd *etcd = watch->etcd;

    kelp__etcd_buffer_fini(&watch->upload);
    kelp_status status = kelp__etcd_encode_watch(watch->key, watch->prefix, watch->revision + 1,
                                                 &watch->upload, NULL);
    watch->endpoint = etcd->endpoint;
    watch->began_ms = kelp__etcd_now_ms();
    watch->upload_paused = false;
    watch->lines.max = ETCD_ANSWER_MAX;
    if (status == KELP_OK) {
        status = kelp__etcd_transfer_prepare(etcd, &watch->stream, "/v3/watch", watch->endpoint);
    }
    if (status == KELP_OK) {
        CURL *curl = watch->stream.curl;
        (void)curl_easy_setopt(curl, CURLOPT_READFUNCTION, give_upload);
        (void)curl_easy_setopt(curl, CURLOPT_READDATA, watch);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive_lines);
        (void)curl_easy_setopt(curl, CURLOPT_WRITEDATA, watch);
        (void)curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L); /* an upload cannot be rewound */
        status = kelp__etcd_transfer_start(etcd, &watch->stream);
    }
    expect_news(watch);
    return status;
}

static kelp_status handle_event(struct kelp_etcd_watch *watch, const struct etcd_event *event)
{
    if (event->pair.mod_revision <= watch->revision) {
        return KELP_OK; /* the listing had it */
    }
    if (!event->deleted) {
        return report_pair(watch, &event->pair);
    }
    bool found;
    size_t at = kelp__etcd_known_find(&watch->known, event->pair.key, &found);
    if (found) {
        report_removed(watch, at, event->pair.mod_revision);
    }
    return KELP_OK;
}

/* The events of one answer; several may carry one revision (a transaction's), so that the mark
 * moves only behind the last. */
static kelp_status handle_events(struct kelp_etcd_watch *watch,
                                 const struct etcd_watch_answer *answer)
{
    int64_t newest = watch->revision;
    kelp_status status = KELP_OK;

    for (size_t i = 0; status == KELP_OK && i < answer->event_count; i++) {
        status = handle_event(watch, &answer->events[i]);
        if (answer->events[i].pair.mod_revision > newest) {
            newest = answer->events[i].pair.mod_revision;
        }
    }
    watch->revision = newest;
    return status;
}

/* False: the stream is unusable, and the watch starts over. */
static bool handle_line(struct kelp_etcd_watch *watch, const char *line, size_t length)
{
    struct etcd_watch_answer answer;
    struct kelp_error error = {0};
    kelp_status status = kelp__etcd_decode_watch(line, length, &answer, &error);

    if (status == KELP_OK && (answer.failed || answer.canceled)) {
        bool compacted = answer.compact_revision > 0;
        status = kelp_fail(&error, compacted ? KELP_ERR_NOT_FOUND : KELP_ERR_UNREACHABLE,
                           "it cancelled the watch of '%.200s': %s", watch->key,
                           compacted        ? "the revision was compacted"
                           : *answer.reason ? answer.reason
                                            : "no reason given");
        kelp__etcd_watch_answer_fini(&answer);
    } else if (status == KELP_OK) {
        watch->backoff_ms = ETCD_BACKOFF_MIN_MS; /* it works */
        status = handle_events(watch, &answer);
        if (status != KELP_OK) {
            (void)kelp_fail(&error, status, "watch of '%.200s': %s", watch->key,
                            kelp_status_text(status));
        }
        kelp__etcd_watch_answer_fini(&answer);
    }
    if (status != KELP_OK) {
        kelp_error_prefix(&error, "etcd at %s", watch->etcd->endpoints[watch->endpoint]);
        start_over(watch, status, error.text);
        return false;
    }
    return true;
}

static void handle_lines(struct kelp_etcd_watch *watch)
{
    size_t done = 0;

    if (watch->heard) {
        expect_news(watch);
    }
    for (;;) {
        char *from = watch->lines.bytes + watch->lines_searched;
        char *end = memchr(from, '\n', watch->lines.used - watch->lines_searched);
        if (!end) {
            break;
        }
        size_t next = (size_t)(end + 1 - watch->lines.bytes);
        /* An empty line is what etcd ends some answers with. */
        if (next - done > 1 && !handle_line(watch, watch->lines.bytes + done, next - done)) {
            return;
        }
        done = next;
        watch->lines_searched = next;
    }
    kelp__etcd_buffer_drop(&watch->lines, done);
    watch->lines_searched = watch->lines.used;
}

void kelp__etcd_watches_work(struct kelp_etcd *etcd)
{
    struct kelp_etcd_watch *watch;

    LIST_FOREACH(watch, &etcd->watches, link)
    {
        if (watch->stream.curl && watch->lines.used > watch->lines_searched) {
            handle_lines(watch);
        }
    }
}

/* After a silence, request progress; after another silence, start over. */
static void silence(struct kelp_etcd_watch *watch)
{
    if (watch->probed) {
        kelp__etcd_endpoint_failed(watch->etcd, watch->endpoint);
        start_over(watch, KELP_ERR_UNREACHABLE, "etcd gave no sign of life on a watch");
        return;
    }
    if (kelp__etcd_buffer_add(&watch->upload, progress_request, strlen(progress_request)) !=
        KELP_OK) {
        start_over(watch, KELP_ERR_NO_MEMORY, "out of memory");
        return;
    }
    watch->probed = true;
    watch->timer.at_ms = kelp__etcd_now_ms() + ETCD_WATCH_SILENCE_MS - ETCD_WATCH_PROBE_MS;
    if (watch->upload_paused) {
        watch->upload_paused = false;
        (void)curl_easy_pause(watch->stream.curl, CURLPAUSE_CONT);
    }
}

static void timer_fired(void *user)
{
    struct kelp_etcd_watch *watch = user;

    if (watch->stream.curl) {
        silence(watch);
    } else {
        list_now(watch);
    }
}

/* ---- listing ---- */

/* Report the differences between the listing and the table. */
static kelp_status apply_listing(struct kelp_etcd_watch *watch, const struct kelp_etcd_range *range)
{
    size_t listed = 0;
    kelp_status status = KELP_OK;

    for (size_t at = 0; at < watch->known.count;) {
        int order = -1; /* known but not listed */
        while (listed < range->count) {
            order = strcmp(watch->known.keys[at].key, range->pairs[listed].key);
            if (order <= 0) {
                break;
            }
            listed++;
            order = -1;
        }
        if (order < 0) {
            report_removed(watch, at, range->revision);
        } else {
            at++;
        }
    }
    for (size_t i = 0; status == KELP_OK && i < range->count; i++) {
        status = report_pair(watch, &range->pairs[i]);
    }
    return status;
}

static kelp_status read_listing(struct kelp_etcd_watch *watch, struct etcd_call *call,
                                struct kelp_error *reterr)
{
    struct kelp_etcd_range range;

    if (call->status != KELP_OK) {
        *reterr = call->error;
        return call->status;
    }
    kelp_status status =
        kelp__etcd_decode_range(call->answer.bytes, call->answer.used, &range, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = apply_listing(watch, &range);
    if (status == KELP_OK) {
        watch->revision = range.revision;
        watch->hooks.synced(range.revision, watch->user);
        status = start_stream(watch);
    }
    kelp_etcd_range_fini(&range);
    return status == KELP_OK ? KELP_OK
                             : kelp_fail(reterr, status, "watch of '%.200s': %s", watch->key,
                                         kelp_status_text(status));
}

static void listing_done(struct etcd_call *call, void *user)
{
    struct kelp_etcd_watch *watch = user;
    struct kelp_error error = {0};

    watch->listing = NULL;
    kelp_status status = read_listing(watch, call, &error);
    kelp__etcd_call_destroy(call);
    if (status != KELP_OK) {
        start_over(watch, status, error.text);
    }
}

static void list_now(struct kelp_etcd_watch *watch)
{
    struct etcd_call *call =
        kelp__etcd_call_create(watch->etcd, "/v3/kv/range", ETCD_REPEATABLE, ETCD_WATCH_SILENCE_MS);

    assert(!watch->listing && !watch->stream.curl);
    if (!call || kelp__etcd_encode_range(watch->key, watch->prefix, &call->body, NULL) != KELP_OK) {
        kelp__etcd_call_destroy(call);
        start_over(watch, KELP_ERR_NO_MEMORY, "out of memory");
        return;
    }
    call->done = listing_done;
    call->user = watch;
    watch->listing = call;
    kelp__etcd_call_start(call);
}

/* ---- start and end ---- */

struct kelp_etcd_watch *kelp__etcd_watch_start(struct kelp_etcd *etcd, const char *key, bool prefix,
                                               const struct etcd_watch_hooks *hooks, void *user)
{
    struct kelp_etcd_watch *watch = calloc(1, sizeof(*watch));

    if (!watch) {
        return NULL;
    }
    watch->key = strdup(key);
    if (!watch->key) {
        free(watch);
        return NULL;
    }
    watch->etcd = etcd;
    watch->prefix = prefix;
    watch->hooks = *hooks;
    watch->user = user;
    watch->backoff_ms = ETCD_BACKOFF_MIN_MS;
    watch->stream.ended = stream_ended;
    watch->stream.streams = true;
    kelp__etcd_timer_init(etcd, &watch->timer, timer_fired, watch);
    watch->timer.at_ms = 0;
    LIST_INSERT_HEAD(&etcd->watches, watch, link);
    return watch;
}

void kelp__etcd_watch_end(struct kelp_etcd_watch *watch)
{
    if (watch->listing) {
        kelp__etcd_call_cancel(watch->listing);
        kelp__etcd_call_destroy(watch->listing);
    }
    kelp__etcd_transfer_end(watch->etcd, &watch->stream);
    kelp__etcd_timer_fini(&watch->timer);
    LIST_REMOVE(watch, link);
    kelp__etcd_known_fini(&watch->known);
    kelp__etcd_buffer_fini(&watch->upload);
    kelp__etcd_buffer_fini(&watch->lines);
    free(watch->key);
    free(watch);
}

/* ---- public ---- */

static void public_changed(const struct kelp_etcd_pair *pair, void *user)
{
    struct kelp_etcd_watch *watch = user;

    watch->events.changed(pair, watch->events_user);
}

static void public_removed(const char *key, int64_t revision, void *user)
{
    struct kelp_etcd_watch *watch = user;

    (void)revision;
    watch->events.removed(key, watch->events_user);
}

static void public_synced(int64_t revision, void *user)
{
    struct kelp_etcd_watch *watch = user;

    if (watch->events.synced) {
        watch->events.synced(revision, watch->events_user);
    }
}

static void public_trouble(kelp_status status, const char *text, void *user)
{
    struct kelp_etcd_watch *watch = user;

    if (watch->events.trouble) {
        watch->events.trouble(status, text, watch->events_user);
    }
}

struct watch_request {
    const char *prefix;
    const struct kelp_etcd_watch_events *events;
    void *user;
    struct kelp_etcd_watch *watch;
};

static void start_watch(struct kelp_etcd *etcd, void *user)
{
    static const struct etcd_watch_hooks hooks = {.changed = public_changed,
                                                  .removed = public_removed,
                                                  .synced = public_synced,
                                                  .trouble = public_trouble};
    struct watch_request *request = user;
    struct kelp_etcd_watch *watch =
        kelp__etcd_watch_start(etcd, request->prefix, true, &hooks, NULL);

    if (watch) {
        watch->user = watch;
        watch->events = *request->events;
        watch->events_user = request->user;
    }
    request->watch = watch;
}

kelp_status kelp__etcd_check_key(const char *key, struct kelp_error *reterr)
{
    if (key[0] == '\0' || strlen(key) >= ETCD_KEY_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "etcd: a key of %zu bytes; 1 to %d are allowed",
                         strlen(key), ETCD_KEY_MAX - 1);
    }
    return KELP_OK;
}

kelp_status kelp_etcd_watch_open(struct kelp_etcd *etcd, const char *prefix,
                                 const struct kelp_etcd_watch_events *events, void *user,
                                 struct kelp_etcd_watch **ret_watch, struct kelp_error *reterr)
{
    struct watch_request request = {.prefix = prefix, .events = events, .user = user};
    kelp_status status = kelp__etcd_check_key(prefix, reterr);

    if (status != KELP_OK) {
        return status;
    }
    kelp__etcd_run(etcd, start_watch, &request);
    if (!request.watch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    *ret_watch = request.watch;
    return KELP_OK;
}

static void doubt_watch(struct kelp_etcd *etcd, void *user)
{
    struct kelp_etcd_watch *watch = user;

    if (watch->stream.curl && kelp__etcd_now_ms() - watch->began_ms >= ETCD_WATCH_FRESH_MS) {
        kelp__etcd_endpoint_failed(etcd, watch->endpoint);
        start_over(watch, KELP_ERR_UNREACHABLE, "what etcd said on a watch may be old");
    }
}

void kelp_etcd_watch_doubt(struct kelp_etcd_watch *watch)
{
    kelp__etcd_run(watch->etcd, doubt_watch, watch);
}

static void end_watch(struct kelp_etcd *etcd, void *user)
{
    (void)etcd;
    kelp__etcd_watch_end(user);
}

void kelp_etcd_watch_close(struct kelp_etcd_watch *watch)
{
    if (watch) {
        kelp__etcd_run(watch->etcd, end_watch, watch);
    }
}
