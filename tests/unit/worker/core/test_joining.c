/* A worker's stream to the leading coordinator: when it is opened, what is reported, what is kept.
 */
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/joining.h"

static struct kelp_joining joining;
static struct kelp_joining_actions actions;

static void setup(void)
{
    memset(&joining, 0, sizeof(joining));
}

static void happen(enum kelp_joining_event_kind kind)
{
    kelp_joining_event(&joining, &(struct kelp_joining_event){.kind = kind}, &actions);
}

static void lead(const char *address)
{
    kelp_joining_event(&joining,
                       &(struct kelp_joining_event){.kind = KELP_JOINING_LEADER, .leader = address},
                       &actions);
}

static void command(const struct kelp_joining_event *event)
{
    struct kelp_joining_event copy = *event;
    copy.kind = KELP_JOINING_COMMAND;
    kelp_joining_event(&joining, &copy, &actions);
}

static void expect(size_t count, enum kelp_joining_action_kind first)
{
    ck_assert_uint_eq(actions.count, count);
    if (count > 0) {
        ck_assert_int_eq(actions.items[0].kind, first);
    }
}

KELP_CASE("joining", .setup = setup)

KELP_TEST(a_leader_gets_a_hello)
{
    lead("a:1");
    expect(2, KELP_JOINING_CONNECT);
    ck_assert_str_eq(joining.connected_to, "a:1");
    ck_assert_int_eq(actions.items[1].kind, KELP_JOINING_REPORT);
    ck_assert(actions.items[1].report.hello);
    lead("a:1");
    expect(0, 0);
}

static void get_map(void *map, uint64_t generation, uint64_t serial)
{
    struct kelp_joining_event event = {.kind = KELP_JOINING_COMMAND};
    event.command.map = map;
    event.command.map_generation = generation;
    event.command.map_serial = serial;
    command(&event);
}

/* A coordinator that leads no more may send its map last. */
KELP_TEST(the_newest_map_is_kept)
{
    char maps[4];
    struct kelp_news news;
    get_map(&maps[0], 1, 7);
    expect(1, KELP_JOINING_TELL);
    get_map(&maps[1], 2, 1);
    expect(2, KELP_JOINING_DROP_MAP);
    ck_assert_ptr_eq(actions.items[0].map, &maps[0]);
    get_map(&maps[2], 1, 8);
    ck_assert_ptr_eq(actions.items[0].map, &maps[2]);
    get_map(&maps[3], 2, 2);
    ck_assert_ptr_eq(actions.items[0].map, &maps[1]);
    ck_assert(kelp_joining_take_news(&joining, &news));
    ck_assert_ptr_eq(news.map, &maps[3]);
}

KELP_TEST(a_new_leader_is_followed_after_the_old_stream)
{
    lead("a:1");
    lead("b:1");
    expect(1, KELP_JOINING_CLOSE);
    happen(KELP_JOINING_CLOSED);
    expect(1, KELP_JOINING_RETRY_LATER);
    ck_assert_uint_eq(actions.items[0].after_ms, 100);
    happen(KELP_JOINING_RETRY);
    expect(2, KELP_JOINING_CONNECT);
    ck_assert_str_eq(joining.connected_to, "b:1");
}

/* One delay at a time, and none when there is a leader at once. */
KELP_TEST(one_retry_at_a_time)
{
    happen(KELP_JOINING_CLOSED);
    expect(1, KELP_JOINING_RETRY_LATER);
    happen(KELP_JOINING_CLOSED);
    expect(0, 0);
    happen(KELP_JOINING_RETRY); /* nobody leads yet */
    expect(1, KELP_JOINING_RETRY_LATER);
    lead("a:1");
    expect(2, KELP_JOINING_CONNECT);
    happen(KELP_JOINING_RETRY);
    expect(0, 0);
}

static const struct kelp_joining_report *beat(void)
{
    happen(KELP_JOINING_BEAT);
    expect(1, KELP_JOINING_REPORT);
    ck_assert(!actions.items[0].report.hello);
    return &actions.items[0].report;
}

static void ask_beats(uint32_t beat_ms)
{
    command(&(struct kelp_joining_event){.command = {.beat_ms = beat_ms}});
}

/* Reports begin when the coordinator says how often, and end with the stream. */
KELP_TEST(the_coordinator_says_how_often)
{
    lead("a:1");
    happen(KELP_JOINING_BEAT);
    expect(0, 0);
    ask_beats(100);
    expect(1, KELP_JOINING_BEAT_EVERY);
    ck_assert_uint_eq(actions.items[0].after_ms, 100);
    ask_beats(100);
    expect(0, 0);
    ask_beats(0);
    expect(0, 0);
    ask_beats(400);
    expect(1, KELP_JOINING_BEAT_EVERY);
    ck_assert_uint_eq(actions.items[0].after_ms, 400);
    happen(KELP_JOINING_CLOSED);
    expect(2, KELP_JOINING_BEAT_EVERY);
    ck_assert_uint_eq(actions.items[0].after_ms, 0);
    ck_assert_int_eq(actions.items[1].kind, KELP_JOINING_RETRY_LATER);
    happen(KELP_JOINING_BEAT);
    expect(0, 0);
    happen(KELP_JOINING_RETRY);
    ask_beats(400);
    expect(1, KELP_JOINING_BEAT_EVERY);
}

KELP_TEST(a_report_has_the_progress)
{
    lead("a:1");
    ask_beats(100);
    kelp_joining_progress(
        &joining, &(struct kelp_joining_progress){
                      .generation = 3, .version = 17, .lanes_computed = 99, .busy_us = 4000});
    kelp_joining_times(&joining, &(struct kelp_joining_times){.window = {.serial = 2, .steps = 30},
                                                              .shard = "shard-1"});
    const struct kelp_joining_report *report = beat();
    ck_assert(!report->same);
    ck_assert_uint_eq(report->progress.generation, 3);
    ck_assert_uint_eq(report->progress.version, 17);
    ck_assert_uint_eq(report->progress.lanes_computed, 99);
    ck_assert_uint_eq(report->times.window.serial, 2);
    ck_assert_uint_eq(report->times.window.steps, 30);
    ck_assert_str_eq(report->times.shard, "shard-1");
}

/* What was said on a stream is not said again there, and on another one it is. */
KELP_TEST(only_changes_are_reported)
{
    const struct kelp_joining_times times = {.window = {.serial = 2}, .shard = "shard-1"};
    lead("a:1");
    ask_beats(100);
    ck_assert(!beat()->same); /* the first says all, as little as it is */
    ck_assert(beat()->same);
    kelp_joining_times(&joining, &times);
    ck_assert_uint_eq(beat()->times.window.serial, 2);
    ck_assert(beat()->same);
    kelp_joining_progress(&joining, &(struct kelp_joining_progress){.version = 18});
    const struct kelp_joining_report *report = beat();
    ck_assert(!report->same);
    ck_assert_uint_eq(report->progress.version, 18);
    ck_assert_uint_eq(report->times.window.serial, 0);
    kelp_joining_trouble(&joining, "no data");
    ck_assert_str_eq(beat()->trouble, "no data");
    ck_assert(beat()->same);
    kelp_joining_trouble(&joining, "");
    report = beat();
    ck_assert(!report->same);
    ck_assert_str_eq(report->trouble, "");
    kelp_joining_leave(&joining);
    ck_assert_str_eq(beat()->trouble, "it was asked to end");
    command(
        &(struct kelp_joining_event){.command = {.has_assignment = true, .assignment_epoch = 7}});
    ck_assert_uint_eq(beat()->assignment_epoch, 7);
    ck_assert(beat()->same);
    happen(KELP_JOINING_CLOSED);
    happen(KELP_JOINING_RETRY);
    ask_beats(100);
    report = beat();
    ck_assert(!report->same);
    ck_assert_uint_eq(report->times.window.serial, 2);
    ck_assert_uint_eq(report->progress.version, 18);
}

/* The newest map counts; the lanes stay until others come. */
KELP_TEST(news_is_collected)
{
    struct kelp_news news;
    int old_map, new_map;
    ck_assert(!kelp_joining_take_news(&joining, &news));
    command(&(struct kelp_joining_event){.command = {.map = &old_map,
                                                     .has_assignment = true,
                                                     .assignment_epoch = 2,
                                                     .lane_first = 4,
                                                     .lane_count = 2}});
    expect(1, KELP_JOINING_TELL);
    command(&(struct kelp_joining_event){.command = {.map = &new_map}});
    expect(2, KELP_JOINING_DROP_MAP);
    ck_assert_ptr_eq(actions.items[0].map, &old_map);
    ck_assert(kelp_joining_take_news(&joining, &news));
    ck_assert_ptr_eq(news.map, &new_map);
    ck_assert(news.has_assignment);
    ck_assert_uint_eq(news.lane_first, 4);
    ck_assert(!kelp_joining_take_news(&joining, &news));
    ck_assert_ptr_null(news.map);
}

/* Told to leave, refused or stopped: the stream is not opened again. */
KELP_LOOP_TEST(over_is_over, 0, 3)
{
    lead("a:1");
    if (_i == 0) {
        command(&(struct kelp_joining_event){.command = {.leave = true}});
        expect(1, KELP_JOINING_TELL);
    } else if (_i == 1) {
        command(&(struct kelp_joining_event){
            .command = {.status = KELP_ERR_MISMATCH, .error = "another job"}});
        expect(1, KELP_JOINING_TELL);
        ck_assert_str_eq(joining.news.refused.text, "another job");
    } else {
        kelp_joining_progress(&joining, &(struct kelp_joining_progress){.lanes_computed = 5});
        happen(KELP_JOINING_STOP);
        expect(2, KELP_JOINING_REPORT);
        ck_assert_uint_eq(actions.items[0].report.progress.lanes_computed, 5);
        ck_assert_int_eq(actions.items[1].kind, KELP_JOINING_CLOSE);
    }
    happen(KELP_JOINING_CLOSED);
    expect(0, 0);
    lead("b:1");
    expect(0, 0);
}
