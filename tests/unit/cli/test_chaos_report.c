#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chaos/report/chaos_report.h"
#include "common/base/json.h"
#include "tests/lib/suite.h"

#define START_MS 5000

static struct kelp_chaos_report report;
static struct kelp_error error;

static const struct kelp_chaos_fault kill_shard = {
    .kind = KELP_CHAOS_KILL, .role = KELP_CHAOS_SHARD, .index = 1, .step = 10};
static const struct kelp_chaos_fault kill_worker = {
    .kind = KELP_CHAOS_KILL, .role = KELP_CHAOS_WORKER, .step = 10};
static const struct kelp_chaos_fault pause_leader = {
    .kind = KELP_CHAOS_PAUSE, .role = KELP_CHAOS_LEADER, .step = 10, .for_ms = 500};

static void setup(void)
{
    ck_assert_int_eq(kelp_chaos_report_init(&report, &error), KELP_OK);
    report.start_ms = START_MS;
    report.job = "a<b";
    report.plan = "plan & more";
    report.seed = 3;
}

static void teardown(void)
{
    kelp_chaos_report_fini(&report);
}

/* Versions and steps are the same here: no evaluations. */
static unsigned look(uint64_t at_ms, uint64_t generation, uint64_t step)
{
    struct kelp_chaos_look taken = {
        .at_ms = START_MS + at_ms, .generation = generation, .version = step, .step = step};
    return kelp_chaos_report_look(&report, &taken);
}

static void fault(const struct kelp_chaos_fault *done, uint64_t at_ms)
{
    kelp_chaos_report_fault(&report, done, "target-1", false, START_MS + at_ms);
}

KELP_CASE("report", .setup = setup, .teardown = teardown)

/* Recovered is who completed an entry that began after the fault: not the one that was in work. */
KELP_TEST(test_recovery)
{
    look(100, 1, 50);
    fault(&kill_worker, 110);
    ck_assert_uint_eq(look(200, 1, 51), 0);
    ck_assert(!report.events[0].recovered);
    ck_assert_uint_eq(look(900, 1, 52), KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.events[0].recovery_ms, 790);
    ck_assert_uint_eq(report.events[0].step, 50);
}

/* A process that was asked to end works on until it has: steps in between are no recovery. */
KELP_TEST(test_leaving)
{
    static const struct kelp_chaos_fault restart = {.kind = KELP_CHAOS_RESTART,
                                                    .role = KELP_CHAOS_SHARD};
    look(100, 1, 50);
    fault(&restart, 110);
    ck_assert_uint_eq(look(300, 1, 70), 0);
    kelp_chaos_report_gone(&report, 0, START_MS + 310);
    kelp_chaos_report_gone(&report, 1, START_MS + 310); /* there is none */
    ck_assert_uint_eq(look(340, 1, 72), 0);
    ck_assert_uint_eq(look(900, 1, 74), KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.events[0].step, 72);
    ck_assert_uint_eq(report.events[0].recovery_ms, 790);
}

/* A run that pauses goes on until it has paused: it is back when another generation makes steps. */
KELP_TEST(test_pause)
{
    static const struct kelp_chaos_fault pause = {.kind = KELP_CHAOS_RESTART,
                                                  .role = KELP_CHAOS_EVERYTHING};
    look(100, 1, 50);
    fault(&pause, 110);
    ck_assert_uint_eq(look(300, 1, 70), 0);
    ck_assert_uint_eq(look(900, 2, 60), KELP_CHAOS_RESTORED | KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.events[0].recovery_ms, 790);
    ck_assert_uint_eq(report.events[0].steps_again, 10);
}

/* A look is 20 ms old: the first ones after a fault still tell where it hit. */
KELP_TEST(test_where_it_hit)
{
    look(100, 1, 50);
    fault(&kill_worker, 110);
    ck_assert_uint_eq(look(120, 1, 60), 0);
    ck_assert_uint_eq(look(160, 1, 61), 0);
    ck_assert_uint_eq(look(180, 1, 62), KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.events[0].step, 60);
}

/* A roll-back is counted to the loss of a shard, and its steps until they are made again are no
 * recovery. What the coordinator knows of where it began is more exact than a look. */
KELP_TEST(test_restore)
{
    char line[KELP_CHAOS_LINE_MAX];

    look(100, 1, 200);
    fault(&kill_shard, 110);
    fault(&pause_leader, 120);
    ck_assert_uint_eq(look(800, 2, 130), KELP_CHAOS_RESTORED);
    ck_assert_uint_eq(report.events[0].steps_again, 70);
    kelp_chaos_report_restored(&report, 2, 100);
    ck_assert_uint_eq(report.events[0].steps_again, 100);
    kelp_chaos_report_restored(&report, 2, 100);
    ck_assert_uint_eq(report.events[0].steps_again, 100);
    ck_assert_uint_eq(report.events[1].steps_again, 0);
    ck_assert_uint_eq(look(900, 2, 201), 0);
    ck_assert_uint_eq(look(910, 1, 400), 0); /* of the past: not taken */
    ck_assert_uint_eq(look(950, 2, 202), KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.restores[0].from_step, 200);
    ck_assert_uint_eq(report.restores[0].to_step, 100);
    kelp_chaos_event_line(&report.events[0], line);
    ck_assert_str_eq(line, "    0.11 s  step 200      kill target-1                    "
                           " recovered in 0.84 s, 100 steps again");
}

/* Going back further than the newest checkpoint is a fault of the run. */
KELP_TEST(test_too_far)
{
    look(100, 1, 200);
    report.checkpoint_step = 150;
    fault(&kill_shard, 110);
    report.checkpoint_step = 300;
    look(800, 2, 160);
    ck_assert_ptr_null(kelp_chaos_report_too_far(&report));
    kelp_chaos_report_restored(&report, 2, 150);
    ck_assert_ptr_null(kelp_chaos_report_too_far(&report));
    kelp_chaos_report_restored(&report, 2, 149);
    ck_assert_uint_eq(kelp_chaos_report_too_far(&report)->generation, 2);
}

/* The first generation that is seen is no roll-back. */
KELP_TEST(test_first_generation)
{
    ck_assert_uint_eq(look(10, 3, 0), 0);
    ck_assert_uint_eq(report.restore_count, 0);
}

/* A long run is kept whole, more coarsely. */
KELP_TEST(test_long_run)
{
    for (uint64_t i = 0; i < 5 * (uint64_t)KELP_CHAOS_KEPT_MAX; i++) {
        look(20 * i, 1, i);
    }
    ck_assert_uint_le(report.look_count, KELP_CHAOS_KEPT_MAX);
    ck_assert_uint_gt(report.look_count, KELP_CHAOS_KEPT_MAX / 4);
    ck_assert_uint_eq(report.looks[0].step, 0);
    for (uint32_t i = 1; i < report.look_count; i++) {
        ck_assert_uint_lt(report.looks[i - 1].at_ms, report.looks[i].at_ms);
    }
    ck_assert_uint_gt(report.looks[report.look_count - 1].step, 5 * KELP_CHAOS_KEPT_MAX - 20);
}

static char *print(void (*printer)(const struct kelp_chaos_report *done, FILE *out))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    printer(&report, out);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

static void fill(void)
{
    for (uint64_t i = 0; i <= 300; i++) {
        look(20 * i, 1, i / 2);
    }
    fault(&kill_shard, 6000);
    fault(&pause_leader, 6010);
    look(7000, 2, 100);
    for (uint64_t i = 0; i < 100; i++) {
        look(7020 + 20 * i, 2, 100 + i);
    }
    report.wall_s = 9.5;
    report.equal = true;
    report.planned = 2;
}

KELP_TEST(test_json)
{
    cJSON *json = NULL;
    fill();
    char *text = print(kelp_chaos_report_json);
    ck_assert_msg(kelp_json_parse(text, strlen(text), &json, &error) == KELP_OK, "%s: %s",
                  error.text, text);
    const cJSON *faults = cJSON_GetObjectItemCaseSensitive(json, "faults");
    ck_assert_int_eq(cJSON_GetArraySize(faults), 2);
    const cJSON *first = cJSON_GetArrayItem(faults, 0);
    ck_assert_str_eq(cJSON_GetObjectItemCaseSensitive(first, "kind")->valuestring, "kill");
    ck_assert(cJSON_GetObjectItemCaseSensitive(first, "steps_again")->valuedouble == 50);
    ck_assert(cJSON_GetObjectItemCaseSensitive(first, "recovery_ms")->valuedouble == 2060);
    ck_assert_int_eq(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(json, "restores")), 1);
    cJSON_Delete(json);
    free(text);
}

static char *picture(void)
{
    char *text = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(kelp_chaos_report_svg(&report, &text, &bytes, &error), KELP_OK);
    ck_assert_uint_eq(strlen(text), bytes);
    ck_assert_int_eq(strncmp(text, "<?xml", 5), 0);
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "inf"));
    ck_assert_ptr_nonnull(strstr(text, "</svg>"));
    return text;
}

static unsigned occurrences(const char *text, const char *what)
{
    unsigned count = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what)) {
        count++;
    }
    return count;
}

/* The picture has the curve, and a mark, its number and a line of the list for each fault, in the
 * colours of their kinds. */
KELP_TEST(test_svg)
{
    fill();
    char *text = picture();
    ck_assert_ptr_nonnull(strstr(text, "rgb(68.23"));     /* the curve, 0xaed6f1 */
    ck_assert_uint_ge(occurrences(text, "rgb(75.29"), 3); /* kill, 0xc0392b */
    ck_assert_uint_ge(occurrences(text, "rgb(83.92"), 3); /* pause, 0xd68910 */
    ck_assert_uint_eq(occurrences(text, "rgb(14.11"), 0); /* restart, 0x2471a3 */
    report.event_count = 1;
    char *fewer = picture();
    ck_assert_uint_eq(occurrences(fewer, "rgb(83.92"), 0);
    ck_assert_uint_lt(occurrences(fewer, "<use"), occurrences(text, "<use")); /* glyphs */
    free(text);
    free(fewer);
}

/* Nothing was seen of the run: still a picture and a report. */
KELP_TEST(test_empty)
{
    char *svg = picture();
    char *json = print(kelp_chaos_report_json);
    char *table = print(kelp_chaos_report_table);
    ck_assert_ptr_nonnull(strstr(json, "\"faults\":[]"));
    ck_assert_ptr_nonnull(strstr(table, "RECOVERY"));
    free(svg);
    free(json);
    free(table);
}

KELP_TEST(test_table)
{
    fill();
    char *text = print(kelp_chaos_report_table);
    ck_assert_msg(strstr(text, "kill shard                    1       2.06 s       2.06 s"
                               "           50") != NULL,
                  "%s", text);
    ck_assert_ptr_nonnull(strstr(text, "pause leader"));
    ck_assert_ptr_null(strstr(text, "kill worker"));
    free(text);
}

/* With replicas: a restore is explained by a fault that left a partition without any, for a while.
 */
KELP_TEST(test_needless_restores)
{
    const struct kelp_chaos_fault kill = {.kind = KELP_CHAOS_KILL, .role = KELP_CHAOS_PRIMARY};

    look(100, 1, 10);
    kelp_chaos_report_fault(&report, &kill, "shard-0", false, START_MS + 110);
    ck_assert_ptr_null(kelp_chaos_report_needless(&report));
    look(500, 2, 5);
    ck_assert_uint_eq(report.restore_count, 1);
    ck_assert_ptr_eq(kelp_chaos_report_needless(&report), &report.restores[0]);
    ck_assert(!kelp_chaos_report_alone(&report));
    report.events[0].alone = true;
    ck_assert_ptr_null(kelp_chaos_report_needless(&report));
    ck_assert(kelp_chaos_report_alone(&report));
    look(100000, 3, 2);
    ck_assert_ptr_eq(kelp_chaos_report_needless(&report), &report.restores[1]);
}

/* Of a host's fault it is told how long there was no new step, until it is over and the run has
 * gone on for a while: also behind the first step, and over steps that are made again. */
KELP_TEST(test_host)
{
    static const struct kelp_chaos_fault split = {
        .kind = KELP_CHAOS_SPLIT, .role = KELP_CHAOS_HOST, .index = 1, .for_ms = 500};
    char line[KELP_CHAOS_LINE_MAX];

    look(100, 1, 50);
    fault(&split, 110);
    look(300, 1, 60);
    ck_assert_uint_eq(report.events[0].pause_ms, 190);
    look(400, 1, 300);
    ck_assert_uint_eq(look(900, 2, 200), KELP_CHAOS_RESTORED);
    ck_assert_uint_eq(report.events[0].steps_again, 100);
    look(1000, 2, 300);
    look(1100, 2, 301);
    ck_assert_uint_eq(report.events[0].pause_ms, 700);
    kelp_chaos_report_gone(&report, 0, START_MS + 1110);
    ck_assert_uint_eq(look(1200, 2, 301 + KELP_CHAOS_GOES_ON - 1), 0);
    ck_assert_uint_eq(look(1300, 2, 301 + KELP_CHAOS_GOES_ON), KELP_CHAOS_RECOVERED);
    ck_assert_uint_eq(report.events[0].recovery_ms, 1190);
    look(9000, 2, 1000);
    ck_assert_uint_eq(report.events[0].pause_ms, 700);
    kelp_chaos_event_line(&report.events[0], line);
    ck_assert_str_eq(line, "    0.11 s  step 50       split target-1            0.50 s"
                           "  0.70 s without a step, 100 steps again");
    char *json = print(kelp_chaos_report_json);
    ck_assert_ptr_nonnull(strstr(json, "\"recovery_ms\":1190,\"pause_ms\":700"));
    char *table = print(kelp_chaos_report_table);
    ck_assert_ptr_nonnull(strstr(table, "NO STEP FOR"));
    ck_assert_ptr_nonnull(strstr(table, "split host                    1       0.70 s"));
    free(json);
    free(table);
}
