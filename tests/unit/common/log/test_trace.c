/* A trace of a process: which steps it has, whose spans, and the part that is written. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/log/trace.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

static struct kelp_test_folder folder;
static struct kelp_trace *trace;
static cJSON *header, *events; /* of the part, once it was read */

static void open_trace(void)
{
    char path[160];

    kelp_test_folder_init(&folder);
    (void)snprintf(path, sizeof(path), "%s/part", folder.path);
    ck_assert_int_eq(
        kelp_trace_open(&(struct kelp_trace_options){path, "worker-0", 3}, &trace, NULL), KELP_OK);
}

static void close_trace(void)
{
    cJSON_Delete(header);
    cJSON_Delete(events);
    kelp_trace_close(trace);
    kelp_test_folder_fini(&folder);
}

static void span(const char *name, uint64_t step)
{
    kelp_trace_end(trace, kelp_trace_begin(trace),
                   &(struct kelp_trace_span){.name = name, .step = step});
}

/* Returns what is behind the header; *ret_text is owned. */
static char *read_header(char **ret_text)
{
    char *text = kelp_test_read(folder.path, "part", NULL);
    char *rest = strchr(text, '\n');

    ck_assert_ptr_nonnull(rest);
    *rest = '\0';
    header = kelp_test_json(text);
    *ret_text = text;
    return rest + 1;
}

static void read_part(void)
{
    char *text;
    char *rest = read_header(&text);

    ck_assert_int_eq(rest[0], ',');
    rest[0] = '[';
    const size_t length = strlen(rest);
    char *array = malloc(length + 2);
    ck_assert_ptr_nonnull(array);
    memcpy(array, rest, length);
    memcpy(array + length, "]", 2);
    events = kelp_test_json(array);
    free(array);
    free(text);
}

/* How many spans have that name; *ret_last is the last one. */
static unsigned spans_of(const char *name, const cJSON **ret_last)
{
    unsigned count = 0;
    const cJSON *event;

    cJSON_ArrayForEach(event, events)
    {
        if (strcmp(kelp_test_text(event, "ph"), "X") == 0 &&
            strcmp(kelp_test_text(event, "name"), name) == 0) {
            count++;
            *ret_last = event;
        }
    }
    return count;
}

KELP_SUITE(.fork_each = true)
KELP_CASE("trace", .setup = open_trace, .teardown = close_trace)

/* The first steps are left out, and of the others there are as many as were asked for. */
KELP_TEST(some_steps)
{
    const cJSON *last = NULL;

    for (uint64_t step = 100; step < 120; step++) {
        kelp_trace_step(trace, step);
        span(step < 110 || step >= 113 ? "outside" : "inside", step);
    }
    read_part();
    ck_assert_uint_eq(spans_of("inside", &last), 3);
    ck_assert_uint_eq(spans_of("outside", &last), 0);
    ck_assert_str_eq(kelp_test_text(header, "process"), "worker-0");
    ck_assert_double_eq(kelp_test_number(header, "first"), 110);
    ck_assert_double_eq(kelp_test_number(header, "steps"), 3);
    ck_assert_double_eq(kelp_test_number(header, "dropped"), 0);
    ck_assert_double_eq(kelp_test_number(kelp_test_member(last, "args"), "step"), 112);
}

/* A process that ends before its last step writes what it has, once. */
KELP_TEST(a_process_that_ends)
{
    const cJSON *last = NULL;

    kelp_trace_step(trace, 0);
    kelp_trace_step(trace, 10);
    span("inside", 10);
    kelp_trace_finish(trace);
    span("outside", 10);
    kelp_trace_finish(trace);
    read_part();
    ck_assert_uint_eq(spans_of("inside", &last), 1);
    ck_assert_double_eq(kelp_test_number(header, "steps"), 1);
}

/* Steps come again after a checkpoint was restored: the trace neither begins anew nor ends. */
KELP_TEST(steps_that_come_again)
{
    const cJSON *last = NULL;

    kelp_trace_step(trace, 0);
    kelp_trace_step(trace, 11);
    kelp_trace_step(trace, 3);
    span("inside", 3);
    kelp_trace_step(trace, 13);
    read_part();
    ck_assert_uint_eq(spans_of("inside", &last), 1);
    ck_assert_double_eq(kelp_test_number(header, "first"), 10);
    ck_assert_double_eq(kelp_test_number(header, "steps"), 2);
}

static void *add_one(void *user)
{
    span(user, 10);
    return NULL;
}

/* Each thread has a track of its own, and so have partitions, whoever adds to them. */
KELP_TEST(tracks)
{
    const cJSON *here = NULL, *there = NULL, *pushed = NULL;
    char name[] = "there";
    pthread_t thread;

    kelp_trace_step(trace, 0);
    kelp_trace_step(trace, 10);
    span("here", 10);
    ck_assert_int_eq(pthread_create(&thread, NULL, add_one, name), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    kelp_trace_end(trace, kelp_trace_begin(trace),
                   &(struct kelp_trace_span){.name = "pushed \"7\"",
                                             .track = KELP_TRACE_PUSH,
                                             .partition = 7,
                                             .step = KELP_TRACE_NO_STEP,
                                             .arguments = {{"bytes", 28}}});
    kelp_trace_finish(trace);
    read_part();
    ck_assert_uint_eq(spans_of("here", &here), 1);
    ck_assert_uint_eq(spans_of("there", &there), 1);
    ck_assert_uint_eq(spans_of("pushed \"7\"", &pushed), 1);
    ck_assert_double_ne(kelp_test_number(here, "tid"), kelp_test_number(there, "tid"));
    ck_assert_double_ne(kelp_test_number(here, "tid"), kelp_test_number(pushed, "tid"));
    ck_assert_double_eq(kelp_test_number(kelp_test_member(pushed, "args"), "bytes"), 28);
    ck_assert_ptr_null(cJSON_GetObjectItemCaseSensitive(kelp_test_member(pushed, "args"), "step"));
    const cJSON *event;
    unsigned named = 0;
    cJSON_ArrayForEach(event, events)
    {
        if (strcmp(kelp_test_text(event, "name"), "thread_name") == 0 &&
            kelp_test_number(event, "tid") == kelp_test_number(pushed, "tid")) {
            ck_assert_str_eq(kelp_test_text(kelp_test_member(event, "args"), "name"),
                             "push of partition 7");
            named++;
        }
    }
    ck_assert_uint_eq(named, 1);
}

/* What lies between two spans of a thread is one too, but not what was before the first. */
KELP_TEST(gaps)
{
    const struct kelp_trace_span gap = {.name = "wait", .step = KELP_TRACE_NO_STEP};
    const cJSON *wait = NULL, *work = NULL;

    kelp_trace_step(trace, 0);
    kelp_trace_step(trace, 10);
    kelp_trace_gap(trace, &gap);
    span("work", 10);
    kelp_trace_gap(trace, &gap);
    kelp_trace_finish(trace);
    read_part();
    ck_assert_uint_eq(spans_of("wait", &wait), 1);
    ck_assert_uint_eq(spans_of("work", &work), 1);
    ck_assert_double_eq_tol(kelp_test_number(work, "ts") + kelp_test_number(work, "dur"),
                            kelp_test_number(wait, "ts"), 0.01);
}

/* A buffer that is full takes no more, and says how many it did not take. */
KELP_TEST(a_full_buffer)
{
    char *text;
    size_t lines = 0;

    kelp_trace_step(trace, 0);
    kelp_trace_step(trace, 10);
    for (unsigned i = 0; i < KELP_TRACE_SPANS_MAX + 5; i++) {
        span("s", 10);
    }
    kelp_trace_finish(trace);
    /* A sanitizer's strstr() would look for the end of megabytes each time. */
    for (const char *at = read_header(&text); *at != '\0'; at++) {
        lines += strncmp(at, "\"ph\":\"X\"", 8) == 0;
    }
    free(text);
    ck_assert_uint_eq(lines, KELP_TRACE_SPANS_MAX);
    ck_assert_double_eq(kelp_test_number(header, "dropped"), 5);
}

KELP_CASE("off")

/* Without a trace nothing happens. */
KELP_TEST(no_trace)
{
    kelp_trace_step(NULL, 1);
    ck_assert_uint_eq(kelp_trace_begin(NULL), 0);
    kelp_trace_end(NULL, 0, NULL);
    kelp_trace_gap(NULL, NULL);
    kelp_trace_finish(NULL);
    kelp_trace_close(NULL);
}

/* Where no file can be made, the process does not begin. */
KELP_TEST(no_folder)
{
    struct kelp_error error;
    struct kelp_trace *none = NULL;

    ck_assert_int_eq(
        kelp_trace_open(&(struct kelp_trace_options){"/nowhere/part", "x", 3}, &none, &error),
        KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "--trace '/nowhere/part': no file can be made there: No such file "
                                 "or directory");
}
