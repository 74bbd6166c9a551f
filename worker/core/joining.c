#include "worker/core/joining.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define RETRY_MS 100u

static struct kelp_joining_action *emit(struct kelp_joining_actions *actions,
                                        enum kelp_joining_action_kind kind)
{
    assert(actions->count < KELP_JOINING_ACTIONS_MAX);
    struct kelp_joining_action *action = &actions->items[actions->count++];
    *action = (struct kelp_joining_action){.kind = kind};
    return action;
}

static void say_hello(struct kelp_joining *joining, struct kelp_joining_actions *actions)
{
    emit(actions, KELP_JOINING_REPORT)->report.hello = true;
    joining->beat_ms = 0;
    joining->reported = false;
}

static bool is_same(const struct kelp_joining_report *report,
                    const struct kelp_joining_report *before)
{
    return report->assignment_epoch == before->assignment_epoch &&
           report->progress.generation == before->progress.generation &&
           report->progress.version == before->progress.version &&
           report->progress.lanes_computed == before->progress.lanes_computed &&
           report->progress.busy_us == before->progress.busy_us &&
           report->times.window.serial == before->times.window.serial &&
           strcmp(report->trouble, before->trouble) == 0;
}

/* Report what has changed since the last report, or that nothing has. */
static void report(struct kelp_joining *joining, struct kelp_joining_actions *actions)
{
    struct kelp_joining_report *to = &emit(actions, KELP_JOINING_REPORT)->report;
    struct kelp_joining_report now = {
        .assignment_epoch = joining->news.assignment_epoch,
        .progress = joining->progress,
        .times = joining->times,
    };
    (void)snprintf(now.trouble, sizeof(now.trouble), "%s",
                   joining->leaving ? "it was asked to end" : joining->trouble);
    if (joining->reported && is_same(&now, &joining->said)) {
        to->same = true;
        return;
    }
    *to = now;
    if (joining->reported && now.times.window.serial == joining->said.times.window.serial) {
        to->times = (struct kelp_joining_times){.shard = ""};
    }
    joining->said = now;
    joining->reported = true;
}

static void retry_later(struct kelp_joining *joining, struct kelp_joining_actions *actions)
{
    if (!joining->retrying && !joining->over) {
        joining->retrying = true;
        emit(actions, KELP_JOINING_RETRY_LATER)->after_ms = RETRY_MS;
    }
}

static void connect_or_retry(struct kelp_joining *joining, struct kelp_joining_actions *actions)
{
    if (joining->joined || joining->over) {
        return;
    }
    if (joining->leader[0] == '\0') {
        retry_later(joining, actions);
        return;
    }
    memcpy(joining->connected_to, joining->leader, sizeof(joining->leader));
    joining->joined = true;
    emit(actions, KELP_JOINING_CONNECT);
    say_hello(joining, actions);
}

static void follow_leader(struct kelp_joining *joining, const char *leader,
                          struct kelp_joining_actions *actions)
{
    (void)snprintf(joining->leader, sizeof(joining->leader), "%s", leader);
    if (joining->joined && strcmp(joining->leader, joining->connected_to) != 0) {
        emit(actions, KELP_JOINING_CLOSE);
        return;
    }
    connect_or_retry(joining, actions);
}

/* Only a newer map counts: a deposed coordinator may send an older one late. */
static void keep_map(struct kelp_joining *joining, const struct kelp_joining_event *event,
                     struct kelp_joining_actions *actions)
{
    struct kelp_news *news = &joining->news;
    uint64_t generation = event->command.map_generation;
    uint64_t serial = event->command.map_serial;

    if (!event->command.map) {
        return;
    }
    bool older = news->map && (generation < news->map_generation ||
                               (generation == news->map_generation && serial < news->map_serial));
    if (older) {
        emit(actions, KELP_JOINING_DROP_MAP)->map = event->command.map;
        return;
    }
    if (news->map) {
        emit(actions, KELP_JOINING_DROP_MAP)->map = news->map;
    }
    news->map = event->command.map;
    news->map_generation = generation;
    news->map_serial = serial;
}

static void hear(struct kelp_joining *joining, const struct kelp_joining_event *event,
                 struct kelp_joining_actions *actions)
{
    struct kelp_news *news = &joining->news;
    bool refused = event->command.status != KELP_OK;
    keep_map(joining, event, actions);
    if (event->command.has_assignment) {
        news->has_assignment = true;
        news->assignment_epoch = event->command.assignment_epoch;
        news->lane_first = event->command.lane_first;
        news->lane_count = event->command.lane_count;
        news->rests = event->command.rests;
    }
    if (refused) {
        (void)kelp_fail(&news->refused, event->command.status, "%s", event->command.error);
    }
    news->leave = news->leave || event->command.leave;
    news->drain = news->drain || event->command.drain;
    joining->over = joining->over || news->leave || refused;
    if (event->command.map || event->command.has_assignment || event->command.leave ||
        event->command.drain || refused) {
        news->any = true;
        emit(actions, KELP_JOINING_TELL);
    }
    if (event->command.beat_ms > 0 && event->command.beat_ms != joining->beat_ms) {
        joining->beat_ms = event->command.beat_ms;
        emit(actions, KELP_JOINING_BEAT_EVERY)->after_ms = joining->beat_ms;
    }
}

static void stop_beats(struct kelp_joining *joining, struct kelp_joining_actions *actions)
{
    if (joining->beat_ms > 0) {
        joining->beat_ms = 0;
        emit(actions, KELP_JOINING_BEAT_EVERY)->after_ms = 0;
    }
}

void kelp_joining_event(struct kelp_joining *joining, const struct kelp_joining_event *event,
                        struct kelp_joining_actions *ret_actions)
{
    ret_actions->count = 0;
    switch (event->kind) {
    case KELP_JOINING_LEADER:
        follow_leader(joining, event->leader, ret_actions);
        break;
    case KELP_JOINING_CLOSED:
        joining->joined = false;
        stop_beats(joining, ret_actions);
        retry_later(joining, ret_actions);
        break;
    case KELP_JOINING_RETRY:
        joining->retrying = false;
        connect_or_retry(joining, ret_actions);
        break;
    case KELP_JOINING_COMMAND:
        hear(joining, event, ret_actions);
        break;
    case KELP_JOINING_BEAT:
        if (joining->beat_ms > 0) {
            report(joining, ret_actions);
        }
        break;
    case KELP_JOINING_STOP:
        joining->over = true;
        if (joining->joined) {
            report(joining, ret_actions);
            emit(ret_actions, KELP_JOINING_CLOSE);
        }
        break;
    }
}

void kelp_joining_progress(struct kelp_joining *joining,
                           const struct kelp_joining_progress *progress)
{
    joining->progress = *progress;
}

void kelp_joining_times(struct kelp_joining *joining, const struct kelp_joining_times *times)
{
    joining->times = *times;
}

void kelp_joining_trouble(struct kelp_joining *joining, const char *text)
{
    (void)snprintf(joining->trouble, sizeof(joining->trouble), "%s", text);
}

void kelp_joining_leave(struct kelp_joining *joining)
{
    joining->leaving = true;
}

bool kelp_joining_take_news(struct kelp_joining *joining, struct kelp_news *ret_news)
{
    bool any = joining->news.any;
    *ret_news = joining->news;
    joining->news.map = NULL;
    joining->news.any = false;
    return any;
}
