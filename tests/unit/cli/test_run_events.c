/* Events of a run: as lines for people, from two files, and those that come later. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/runs/run_events.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

static struct kelp_test_folder folder;

static void setup(void)
{
    kelp_test_folder_init(&folder);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

/* What is printed; owned. more: since the call before. */
static char *printed(struct kelp_run_events *events, uint32_t lines, bool more)
{
    char *text = NULL;
    size_t bytes = 0;
    struct kelp_error error = {.text = ""};
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    kelp_status status = more ? kelp_run_events_more(events, out, &error)
                              : kelp_run_events_print(events, lines, out, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

static void expect(struct kelp_run_events *events, uint32_t lines, bool more, const char *wanted)
{
    char *text = printed(events, lines, more);
    ck_assert_str_eq(text, wanted);
    free(text);
}

static void append(const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    FILE *out = fopen(path, "ae");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_ge(fputs(text, out), 0);
    ck_assert_int_eq(fclose(out), 0);
}

static void expect_text(const char *line, const char *wanted)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert(kelp_run_event_text(line, strlen(line), out));
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, wanted);
    free(text);
}

KELP_CASE("events", .setup = setup, .teardown = teardown)

/* Each says when, what, about whom, why, and how long it took. */
KELP_TEST(lines_for_people)
{
    expect_text("{\"time\":\"T\",\"leader\":\"coordinator-1\",\"event\":\"leader\","
                "\"why\":\"the leader before did not answer\",\"took_ms\":35}",
                "T leader             coordinator-1: the leader before did not answer (0.035 s)\n");
    expect_text("{\"time\":\"T\",\"leader\":\"c\",\"event\":\"shard-lost\",\"who\":\"shard-0\","
                "\"why\":\"it is silent\",\"generation\":1,\"serial\":1}",
                "T shard-lost         shard-0: it is silent\n");
    expect_text("{\"time\":\"T\",\"leader\":\"c\",\"event\":\"generation\",\"generation\":2,"
                "\"serial\":1,\"why\":\"shard-0 was lost\",\"step\":400,\"recomputed\":20}",
                "T generation         generation 2 from step 400, 20 computed again: "
                "shard-0 was lost\n");
    expect_text("{\"time\":\"T\",\"leader\":\"c\",\"event\":\"promoted\",\"generation\":2,"
                "\"serial\":3,\"why\":\"shard-0 is lost\",\"took_ms\":120}",
                "T promoted           generation 2.3: shard-0 is lost (0.120 s)\n");
    expect_text("{\"time\":\"T\",\"event\":\"checkpoint\",\"generation\":2,\"step\":5}",
                "T checkpoint         step 5\n");
}

/* Of a newer version, damaged, or with bytes that a terminal would obey. */
KELP_TEST(strange_lines)
{
    FILE *out = fopen("/dev/null", "we");
    ck_assert(!kelp_run_event_text("{\"time\":", 8, out));
    (void)fclose(out);
    expect_text("{\"event\":\"new\",\"who\":7,\"why\":\"a\\u001b[2Jb\",\"step\":-1}",
                " new               : a [2Jb\n");
}

/* The older file comes first; the newest ones alone; a line that is not whole waits. */
KELP_TEST(files)
{
    struct kelp_run_events events;
    ck_assert_int_eq(kelp_run_events_open(&events, folder.path, true, NULL), KELP_OK);
    expect(&events, 0, false, "");
    append("events.jsonl.1", "{\"n\":1}\n{\"n\":2}\n");
    append("events.jsonl", "{\"n\":3}\n{\"n\":");
    expect(&events, 0, false, "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    expect(&events, 2, false, "{\"n\":2}\n{\"n\":3}\n");
    expect(&events, 0, true, "");
    append("events.jsonl", "4}\n");
    expect(&events, 0, true, "{\"n\":4}\n");
}

/* A leader moves the file away while somebody follows it. */
KELP_TEST(moved_away)
{
    struct kelp_run_events events;
    char from[512], to[520];
    ck_assert_int_eq(kelp_run_events_open(&events, folder.path, true, NULL), KELP_OK);
    append("events.jsonl", "{\"n\":1}\n");
    expect(&events, 0, false, "{\"n\":1}\n");
    append("events.jsonl", "{\"n\":2}\n");
    (void)snprintf(from, sizeof(from), "%s/events.jsonl", folder.path);
    (void)snprintf(to, sizeof(to), "%s.1", from);
    ck_assert_int_eq(rename(from, to), 0);
    append("events.jsonl", "{\"n\":3}\n");
    expect(&events, 0, true, "{\"n\":2}\n{\"n\":3}\n");
}
