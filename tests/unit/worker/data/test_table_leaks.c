/* Inputs of tables and panels that tell the model what it is to predict. */
#include <stdio.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/data/table/table_leaks.h"

/* Lists of a job, an entry each line. */
struct leak_case {
    const char *derive, *columns, *categories, *known, *targets;
    enum kelp_loss_kind loss;
    const char *lines; /* that are told, each with an end of line */
};

#define SAME(target, key)                                                                          \
    target " is in data.targets and in " key ": the model is given what it is to predict\n"
#define MADE(input, key, target)                                                                   \
    input " in " key " is computed from " target                                                   \
          ", which is in data.targets: the model is given what it is to predict\n"
#define ALONE(target, columns)                                                                     \
    target " in data.targets is computed from inputs alone (" columns                              \
           "): the model is given what it is to predict\n"

static void put(char *list, const char *text)
{
    (void)snprintf(list, KELP_JOB_TEXTS_MAX + 1, "%s", text ? text : "");
}

static void note(void *user, const char *line)
{
    char *text = user;
    size_t used = strlen(text);
    (void)snprintf(text + used, 2048 - used, "%s\n", line);
}

static void check(const struct leak_case *leak, bool panel)
{
    static struct kelp_job job;
    char told[2048] = "";
    struct kelp_table_schema *schema = NULL;
    struct kelp_error error = {.status = KELP_OK};
    memset(&job, 0, sizeof(job));
    job.data.kind = panel ? KELP_DATA_PANEL : KELP_DATA_TABLE;
    job.train.loss = leak->loss;
    (void)snprintf(job.data.time, sizeof(job.data.time), "%s", panel ? "t" : "");
    put(job.data.derive, leak->derive);
    put(job.data.columns, leak->columns);
    put(job.data.categories, leak->categories);
    put(job.data.known, leak->known);
    put(job.data.targets, leak->targets);
    ck_assert_msg(kelp_table_schema_create(&job, &schema, &error) == KELP_OK, "%s", error.text);
    kelp_table_leaks_tell(schema, panel, note, told);
    ck_assert_str_eq(told, leak->lines);
    kelp_table_schema_destroy(schema);
}

KELP_CASE("table leaks", .timeout_s = 60)

static const struct leak_case tables[] = {
    {.columns = "x", .targets = "y", .lines = ""},
    {.columns = "x\ny", .targets = "y", .lines = SAME("y", "data.columns")},
    {.columns = "x", .categories = "y", .targets = "y", .lines = SAME("y", "data.categories")},
    /* Inputs that are computed from a target, also by way of another column. */
    {.derive = "z = log(y)",
     .columns = "z",
     .targets = "y",
     .lines = MADE("z", "data.columns", "y")},
    {.derive = "z = log(y)\nw = z + x",
     .columns = "x\nw",
     .targets = "y",
     .lines = MADE("w", "data.columns", "y")},
    {.derive = "z = a - b\nw = floor(z)",
     .columns = "x",
     .categories = "w",
     .targets = "z",
     .lines = MADE("w", "data.categories", "z")},
    {.derive = "h = s == 'a'",
     .columns = "h",
     .targets = "s",
     .loss = KELP_LOSS_CROSS_ENTROPY,
     .lines = MADE("h", "data.columns", "s")},
    /* Targets that are computed from inputs. */
    {.derive = "z = log(y)", .columns = "x\ny", .targets = "z", .lines = ALONE("z", "y")},
    {.derive = "z = a / b\nl = log(b)",
     .columns = "a\nl",
     .targets = "z",
     .lines = ALONE("z", "a, b")},
    {.derive = "c = (s == 'a') + 2 * (s == 'b')",
     .categories = "s",
     .targets = "c",
     .lines = ALONE("c", "s")},
    /* A part of what a target is computed from tells nothing, nor does the hour of a time. */
    {.derive = "z = a / b", .columns = "a\nx", .targets = "z", .lines = ""},
    {.derive = "z = seconds(b) - seconds(a)\nh = hour(a)\nw = weekday(b)",
     .columns = "h\nw",
     .targets = "z",
     .lines = ""},
};

KELP_LOOP_TEST(of_tables, 0, KELP_ARRAY_COUNT(tables))
{
    check(&tables[_i], false);
}

/* The past of a target is an input of every panel; what is known ahead must not tell it. */
KELP_TEST(of_panels)
{
    const struct leak_case past = {
        .derive = "l = log(y)", .columns = "l", .known = "k", .targets = "y", .lines = ""};
    const struct leak_case ahead = {.derive = "l = log(y)",
                                    .known = "k\nl\ny",
                                    .targets = "y",
                                    .lines = MADE("l", "data.known", "y") SAME("y", "data.known")};
    check(&past, true);
    check(&ahead, true);
}
