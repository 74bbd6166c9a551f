/* kelp train --trace: what the file has, that nothing depends on it, and what can be in its way. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/commands/cli_runs.h"
#include "tests/lib/suite.h"

#define EVENTS_MAX 200000

struct event {
    const cJSON *json;
    double begin, end; /* microseconds */
    int process;
    int track;
};

static struct {
    cJSON *json;
    struct event *events; /* spans alone, by process, track, begin, and the longer first */
    size_t count;
    int pids[2]; /* of worker-0 and shard-0; 0: it is not there */
} trace;

static int compare(const void *left, const void *right)
{
    const struct event *a = left, *b = right;

    if (a->process != b->process) {
        return a->process - b->process;
    }
    if (a->track != b->track) {
        return a->track - b->track;
    }
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return a->end > b->end ? -1 : a->end < b->end ? 1 : 0;
}

static void take_event(const cJSON *json)
{
    const char *kind = kelp_test_text(json, "ph");
    const int process = (int)kelp_test_number(json, "pid");

    if (strcmp(kind, "M") == 0) {
        if (strcmp(kelp_test_text(json, "name"), "process_name") == 0) {
            const char *name = kelp_test_text(kelp_test_member(json, "args"), "name");
            ck_assert(strcmp(name, "worker-0") == 0 || strcmp(name, "shard-0") == 0);
            trace.pids[strcmp(name, "shard-0") == 0 ? 1 : 0] = process;
        }
        return;
    }
    ck_assert_str_eq(kind, "X");
    const double begin = kelp_test_number(json, "ts");
    trace.events[trace.count++] = (struct event){.json = json,
                                                 .begin = begin,
                                                 .end = begin + kelp_test_number(json, "dur"),
                                                 .process = process,
                                                 .track = (int)kelp_test_number(json, "tid")};
}

static void read_trace(const char *name)
{
    const cJSON *json;

    trace.json = kelp_test_read_json(runs.folder.path, name);
    trace.events = calloc(EVENTS_MAX, sizeof(*trace.events));
    ck_assert_ptr_nonnull(trace.events);
    cJSON_ArrayForEach(json, kelp_test_member(trace.json, "traceEvents"))
    {
        ck_assert_uint_lt(trace.count, EVENTS_MAX);
        take_event(json);
    }
    qsort(trace.events, trace.count, sizeof(*trace.events), compare);
}

static void teardown(void)
{
    cJSON_Delete(trace.json);
    free(trace.events);
    runs_teardown();
}

static const char *about(const char *process)
{
    return kelp_test_text(kelp_test_member(trace.json, "otherData"), process);
}

static bool is_named(const struct event *event, const char *name)
{
    return strcmp(kelp_test_text(event->json, "name"), name) == 0;
}

static double step_of(const struct event *event)
{
    const cJSON *step =
        cJSON_GetObjectItemCaseSensitive(kelp_test_member(event->json, "args"), "step");
    return step ? step->valuedouble : -1;
}

/* The only span of that name, or the n-th of several; fails the test without it. */
static const struct event *find(int which, const char *name, double step, unsigned n)
{
    for (size_t i = 0; i < trace.count; i++) {
        const struct event *event = &trace.events[i];
        if (event->process == trace.pids[which] && is_named(event, name) &&
            step_of(event) == step && n-- == 0) {
            return event;
        }
    }
    ck_abort_msg("no span '%s' of step %.0f of %s", name, step, which ? "shard-0" : "worker-0");
}

/* Spans of a track nest, or one is after the other: a viewer shows others wrongly. */
static void expect_nested(void)
{
    const struct event *open[64];
    size_t depth = 0;

    for (size_t i = 0; i < trace.count; i++) {
        const struct event *event = &trace.events[i];
        while (depth > 0 && (open[depth - 1]->track != event->track ||
                             open[depth - 1]->process != event->process ||
                             open[depth - 1]->end <= event->begin + 0.01)) {
            depth--;
        }
        ck_assert_msg(depth == 0 || event->end <= open[depth - 1]->end + 0.01,
                      "'%s' ends after '%s', in which it began",
                      kelp_test_text(event->json, "name"),
                      kelp_test_text(open[depth - 1]->json, "name"));
        ck_assert_uint_lt(depth, KELP_ARRAY_COUNT(open));
        open[depth++] = event;
    }
}

static void expect_inside(const struct event *inner, const struct event *outer)
{
    ck_assert_int_eq(inner->track, outer->track);
    ck_assert(inner->begin >= outer->begin && inner->end <= outer->end + 0.01);
}

/* What a worker does for a step. */
static void expect_work(double step)
{
    const struct event *whole = find(0, "step", step, 0);
    const struct event *lane = find(0, "lane", step, 0);
    const struct event *data = find(0, "data", step, 0);
    const struct event *forward = find(0, "forward", step, 0);
    const struct event *backward = find(0, "backward", step, 0);
    const struct event *merge = find(0, "merge", step, 0);
    const struct event *sent = find(0, "send", step, 0);
    const struct event *wait = find(0, "wait", step, 0);

    expect_inside(lane, whole);
    expect_inside(data, lane);
    expect_inside(forward, lane);
    expect_inside(backward, lane);
    expect_inside(find(0, "linear_seasonal", step, 0), forward); /* layers */
    expect_inside(find(0, "linear_seasonal", step, 1), backward);
    expect_inside(find(0, "loss", step, 0), lane);
    expect_inside(merge, whole);
    expect_inside(sent, whole);
    expect_inside(wait, whole);
    expect_inside(find(0, "copy", step + 1, 0), whole);
    ck_assert(data->end <= forward->begin + 0.01 && forward->end <= backward->begin + 0.01);
    ck_assert(backward->end <= merge->begin + 0.01 && merge->end <= sent->begin + 0.01);
    ck_assert(sent->end <= wait->begin + 0.01);
}

/* A push leaves, is received and used, and its weights come back. */
static void expect_exchange(double step)
{
    const struct event *left = find(0, "push", step, 0);
    const struct event *pulled = find(0, "pull", step + 1, 0);
    const struct event *message = find(1, "message", step, 0);
    const struct event *pushed = find(1, "push", step, 0);
    const struct event *update = find(1, "update", step, 0);
    const struct event *sent = find(1, "send", step, 0);

    expect_inside(pushed, message);
    expect_inside(find(1, "receive", step, 0), pushed);
    (void)find(1, "step", step, 0);
    (void)find(1, "wait for pushes", step, 0);
    (void)find(1, "wait", -1, 0);
    ck_assert(left->begin <= update->begin && update->end <= left->end);
    ck_assert(update->begin <= sent->begin && sent->begin <= pulled->end);
}

KELP_CASE("trace", .timeout_s = KELP_TEST_HANG_S, .setup = runs_setup, .teardown = teardown)

/* What is to be seen in a trace, nested and in order; and the model is the same without it. With a
 * single worker nobody computes its lanes when they are late. */
KELP_TEST(a_run)
{
    char digest[33];

    runs_verb((const char *[]){"train", "short.yaml", "--run", "plain", "--shards", "1", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    cJSON *result = kelp_test_read_json(runs.folder.path, "plain/result.json");
    (void)snprintf(digest, sizeof(digest), "%s", kelp_test_text(result, "digest"));
    cJSON_Delete(result);

    runs_verb((const char *[]){"train", "short.yaml", "--run", "traced", "--workers", "1",
                               "--shards", "1", "--trace", "t.json", "--trace-steps", "20", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    result = kelp_test_read_json(runs.folder.path, "traced/result.json");
    ck_assert_str_eq(kelp_test_text(result, "digest"), digest);
    cJSON_Delete(result);
    ck_assert_ptr_nonnull(strstr(runs.verb.err, "kelp: trace t.json: worker-0 steps 10 to 29; "
                                                "shard-0 steps 10 to 29\n"));
    read_trace("t.json");
    ck_assert_str_eq(about("worker-0"), "steps 10 to 29");
    ck_assert_str_eq(about("shard-0"), "steps 10 to 29");
    ck_assert_int_ne(trace.pids[0], 0);
    ck_assert_int_ne(trace.pids[1], 0);
    expect_nested();
    for (double step = 12; step < 29; step++) { /* all of them are whole */
        expect_work(step);
        expect_exchange(step);
    }
}

static const char large_text[] =
    "name: large\n"
    "model: {kind: mlp, hidden: [1024, 1024]}\n"
    "data: {kind: synthetic, rows: 1000, split: [800, 100, 100], seq_len: 24, pred_len: 8}\n"
    "train: {epochs: 2, batch_size: 16, evaluate: false}\n"
    "transport: {piece: 1MiB}\n"
    "cluster: {lanes: 2, workers: 1, shards: 1}\n";

static bool is_within(const struct event *inner, const struct event *outer)
{
    return inner->begin >= outer->begin && inner->end <= outer->end + 0.01;
}

/* Pushes of a large model begin in the backward pass of the last lane: the last partition's before
 * that of partition 0, which comes with the sums. What is waited for in the forward pass says so.
 */
KELP_TEST(a_large_model)
{
    unsigned early = 0;

    (void)kelp_test_write(runs.folder.path, "large.yaml", large_text);
    runs_verb((const char *[]){"train", "large.yaml", "--run", "r", "--trace", "t.json", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    read_trace("t.json");
    expect_nested();
    for (double step = 12; step < 46; step++) { /* behind them the epoch ends */
        const struct event *backward = find(0, "backward", step, 1);
        const struct event *first = NULL, *last = NULL;
        for (size_t i = 0; i < trace.count; i++) {
            const struct event *event = &trace.events[i];
            if (event->process != trace.pids[0] || step_of(event) != step) {
                continue;
            }
            if (is_named(event, "push")) { /* by partition: tracks are in their order */
                first = first ? first : event;
                last = event;
            } else if (is_named(event, "wait for weights")) {
                ck_assert(is_within(event, find(0, "lane", step, 0)) ||
                          is_within(event, find(0, "lane", step, 1)));
            }
        }
        ck_assert_ptr_nonnull(last);
        ck_assert(last->begin <= first->begin);
        ck_assert(backward->end <= first->begin);
        early += last->begin < backward->end;
    }
    ck_assert_uint_gt(early, 0);
}

/* What the process that died saw is missing, and the file says so. */
KELP_TEST(a_worker_that_dies)
{
    char path[192];

    runs_verb((const char *[]){"train", "short.yaml", "--run", "r", "--shards", "1", "--trace",
                               "t.json", "--fault", "worker-0:kill@step=20", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(
        strstr(runs.verb.err, "worker-0 missing: it ended before it had written its part"));
    read_trace("t.json");
    ck_assert_str_eq(about("worker-0"), "missing: it ended before it had written its part");
    ck_assert_str_eq(about("shard-0"), "steps 10 to 59");
    ck_assert_int_eq(trace.pids[0], 0);
    ck_assert(find(1, "reduce", 12, 0)->end <= find(1, "update", 12, 0)->begin + 0.01);
    (void)find(1, "update", 30, 0);
    expect_nested();
    (void)snprintf(path, sizeof(path), "%s/r/trace", runs.folder.path);
    ck_assert_int_ne(access(path, F_OK), 0);
}

/* A run that ends before the first step that would be traced. */
KELP_TEST(a_short_run)
{
    runs_verb((const char *[]){"train", "short.yaml", "--run", "r", "--trace", "t.json", "--set",
                               "train.epochs=1", "--set", "train.batch_size=400", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    read_trace("t.json");
    ck_assert_str_eq(about("worker-0"), "empty: it ended before the first step of the trace");
    ck_assert_uint_eq(trace.count, 0);
}

/* The folder went while the job ran: the run is what it is without a trace. */
KELP_TEST(a_file_that_cannot_be_written)
{
    char folder[160];

    (void)snprintf(folder, sizeof(folder), "%s/gone", runs.folder.path);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    kelp_test_command_start(
        &runs.train, runs.folder.path,
        (const char *[]){"train", "long.yaml", "--run", "r", "--trace", "gone/t.json", NULL});
    kelp_test_command_await(&runs.train, "step ");
    ck_assert_int_eq(rmdir(folder), 0);
    runs_stop(SIGTERM);
    ck_assert_int_eq(runs.train.exit_code, 128 + SIGTERM);
    ck_assert_ptr_nonnull(strstr(runs.train.err, "kelp: no trace: cannot "));
    ck_assert_ptr_nonnull(strstr(runs.train.err, "kelp: paused at step"));
}

/* A command that was killed leaves the folder of the parts, which can be cleared away. */
KELP_TEST(a_command_that_is_killed)
{
    kelp_test_command_start(
        &runs.train, runs.folder.path,
        (const char *[]){"train", "long.yaml", "--run", "runs/r", "--trace", "t.json", NULL});
    kelp_test_command_await(&runs.train, "step ");
    kelp_test_command_kill_all(&runs.train);
    runs_verb((const char *[]){"gc", "--leftovers", "--yes", NULL});
    ck_assert_int_eq(runs.verb.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(runs.verb.out, "runs/r/trace"));
    runs_verb((const char *[]){"gc", "--leftovers", "--yes", NULL});
    ck_assert_ptr_null(strstr(runs.verb.out, "runs/r/trace"));
}

/* One byte of the shard's part is another one. */
static const struct {
    const char *place;
    size_t behind;
    char byte;
    const char *says;
} changes[] = {
    {"{", 0, 'x', "shard-0 missing: its part is damaged"},
    {"\"clock\":\"", 9, 'x', "shard-0 missing: its times are of another clock"},
    {"\"dropped\":0", 10, '7', "the trace lacks 7 spans of shard-0, for which there was no room"},
};

/* A part that does not fit is left out, and what it lacks is said. */
KELP_LOOP_TEST(a_part_that_is_changed, 0, KELP_ARRAY_COUNT(changes))
{
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/r/trace/shard-0", runs.folder.path);
    kelp_test_command_start(&runs.train, runs.folder.path,
                            (const char *[]){"train", "long.yaml", "--run", "r", "--trace",
                                             "t.json", "--trace-steps", "5", NULL});
    KELP_TEST_AWAIT_FROM(&runs.train, access(path, F_OK) == 0, "the shard writes no part");
    char *text = kelp_test_read(runs.folder.path, "r/trace/shard-0", NULL);
    char *place = strstr(text, changes[_i].place);
    ck_assert_ptr_nonnull(place);
    place[changes[_i].behind] = changes[_i].byte;
    (void)kelp_test_write(runs.folder.path, "r/trace/shard-0", text);
    free(text);
    runs_stop(SIGTERM);
    ck_assert_msg(strstr(runs.train.err, changes[_i].says) != NULL, "%s", runs.train.err);
    read_trace("t.json");
    ck_assert_int_eq(trace.pids[1] != 0, _i == 2);
}
