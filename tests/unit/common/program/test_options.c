#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/options/options.h"
#include "tests/lib/suite.h"

static const char *const formats[] = {"text", "json", NULL};
static const struct kelp_option table[] = {
    {.name = "listen",
     .type = KELP_OPTION_TEXT,
     .placeholder = "HOST:PORT",
     .default_text = "127.0.0.1:0",
     .help = "address to serve at"},
    {.name = "workers", .type = KELP_OPTION_RANGE, .min = 1, .max = 64, .help = "workers"},
    {.name = "shards", .type = KELP_OPTION_INTEGER, .min = 1, .max = 64, .help = "shards"},
    {.name = "every",
     .type = KELP_OPTION_DURATION,
     .min = 1,
     .max = 60000,
     .default_text = "2s",
     .group = "Timing",
     .help = "how often"},
    {.name = "output",
     .letter = 'o',
     .type = KELP_OPTION_CHOICE,
     .choices = formats,
     .default_text = "text",
     .help = "format of what is printed"},
    {.name = "dry-run", .type = KELP_OPTION_FLAG, .help = "change nothing"},
    {.name = "set",
     .type = KELP_OPTION_TEXT,
     .placeholder = "KEY=VALUE",
     .repeatable = true,
     .help = "set a key of the job"},
};
static const struct kelp_program program = {
    .name = "kelp try",
    .summary = "tries options",
    .positional = "JOB.yaml",
    .positional_min = 1,
    .positional_max = 2,
    .examples = "  kelp try job.yaml\n",
    .options = table,
    .option_count = KELP_ARRAY_COUNT(table),
};

static struct kelp_error error;
static enum kelp_options_wish wish;

/* Parse words up to NULL; NULL is returned on an error, which stands in `error`. */
static struct kelp_options *parse(const char *const *words)
{
    static char *argv[32];
    struct kelp_options *options = NULL;
    int argc = 0;

    argv[argc++] = (char *)(uintptr_t) "kelp";
    for (; *words; words++) {
        argv[argc++] = (char *)(uintptr_t)*words;
    }
    kelp_status status = kelp_options_parse(&program, argc, argv, &wish, &options, &error);
    ck_assert_int_eq(status == KELP_OK && wish == KELP_WISH_RUN, options != NULL);
    return options;
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

/* Values from the command line, in both forms, and defaults for the rest. */
KELP_TEST(test_values)
{
    struct kelp_options *options =
        PARSE("job.yaml", "--workers=2:8", "--shards", "3", "--dry-run", "-o", "json", "--set",
              "a=1", "--set=b=2", "--", "--second");

    ck_assert_msg(options != NULL, "%s", error.text);
    ck_assert_str_eq(kelp_options_text(options, "listen"), "127.0.0.1:0");
    ck_assert(!kelp_options_given(options, "listen"));
    ck_assert(kelp_options_given(options, "workers"));
    ck_assert_uint_eq(kelp_options_range(options, "workers").min, 2);
    ck_assert_uint_eq(kelp_options_range(options, "workers").max, 8);
    ck_assert_uint_eq(kelp_options_integer(options, "shards"), 3);
    ck_assert_uint_eq(kelp_options_duration_ms(options, "every"), 2000);
    ck_assert_uint_eq(kelp_options_choice(options, "output"), 1);
    ck_assert(kelp_options_flag(options, "dry-run"));
    ck_assert_uint_eq(kelp_options_repeat_count(options, "set"), 2);
    ck_assert_str_eq(kelp_options_repeat(options, "set", 1), "b=2");
    ck_assert_ptr_null(kelp_options_repeat(options, "set", 2));
    ck_assert_uint_eq(kelp_options_positional_count(options), 2);
    ck_assert_str_eq(kelp_options_positional(options, 1), "--second");
    ck_assert_ptr_null(kelp_options_positional(options, 2));
    kelp_options_destroy(options);
}

/* The environment stands between command line and default, and its mistakes are named. */
KELP_TEST(test_environment)
{
    ck_assert_int_eq(setenv("KELP_EVERY", "5s", 1), 0);
    ck_assert_int_eq(setenv("KELP_DRY_RUN", "true", 1), 0);
    ck_assert_int_eq(setenv("KELP_LISTEN", "", 1), 0);
    struct kelp_options *options = PARSE("job.yaml");
    ck_assert_msg(options != NULL, "%s", error.text);
    ck_assert_uint_eq(kelp_options_duration_ms(options, "every"), 5000);
    ck_assert(kelp_options_given(options, "every"));
    ck_assert(kelp_options_flag(options, "dry-run"));
    ck_assert_str_eq(kelp_options_text(options, "listen"), "127.0.0.1:0");
    kelp_options_destroy(options);
    options = PARSE("job.yaml", "--every", "7ms");
    ck_assert_uint_eq(kelp_options_duration_ms(options, "every"), 7);
    kelp_options_destroy(options);
    ck_assert_int_eq(setenv("KELP_EVERY", "5", 1), 0);
    ck_assert_ptr_null(PARSE("job.yaml"));
    ck_assert_str_eq(error.text, "environment KELP_EVERY: '5' is not a duration from 1ms to 1m "
                                 "(a whole number with ms, s, m or h)");
}

/* Each mistake is one line that says what would be right. */
KELP_LOOP_TEST(test_mistakes, 0, 11)
{
    static const struct {
        const char *words[4];
        const char *expected;
    } cases[] = {
        {{"j", "--worker=2"}, "no option --worker; did you mean --workers?"},
        {{"j", "--dryrun"}, "no option --dryrun; did you mean --dry-run?"},
        {{"j", "--zebra"}, "no option --zebra; kelp try --help lists them"},
        {{"j", "-x"}, "no option -x; kelp try --help lists them"},
        {{"j", "--shards", "0"}, "--shards: '0' is not an integer from 1 to 64"},
        {{"j", "--shards"}, "--shards: needs a value"},
        {{"j", "--dry-run=maybe"}, "--dry-run: 'maybe' is not true or false"},
        {{"j", "-o", "xml"}, "--output: 'xml' is not one of text, json"},
        {{"j", "--shards=1", "--shards=2"}, "--shards: given twice"},
        {{"j", "k", "l"}, "unexpected argument 'l'; usage: kelp try JOB.yaml"},
        {{"--dry-run"}, "an argument is missing; usage: kelp try JOB.yaml"},
    };
    const char *words[5] = {NULL};

    memcpy(words, cases[_i].words, sizeof(cases[_i].words));
    ck_assert_ptr_null(parse(words));
    ck_assert_str_eq(error.text, cases[_i].expected);
}

/* Help and version go before missing arguments; later mistakes do not matter. */
KELP_TEST(test_wishes)
{
    ck_assert_ptr_null(PARSE("--help", "--zebra"));
    ck_assert_int_eq(wish, KELP_WISH_HELP);
    ck_assert_ptr_null(PARSE("-h"));
    ck_assert_int_eq(wish, KELP_WISH_HELP);
    ck_assert_ptr_null(PARSE("--version"));
    ck_assert_int_eq(wish, KELP_WISH_VERSION);
}

/* A required option is asked for by flag and variable. */
KELP_TEST(test_required)
{
    static const struct kelp_option required[] = {
        {.name = "etcd", .type = KELP_OPTION_TEXT, .required = true, .help = "URL"}};
    static const struct kelp_program daemon = {
        .name = "kelp-ps", .summary = "x", .options = required, .option_count = 1};
    char *argv[] = {(char *)(uintptr_t) "kelp-ps", NULL};
    struct kelp_options *options;

    ck_assert_int_eq(kelp_options_parse(&daemon, 1, argv, &wish, &options, &error),
                     KELP_ERR_INVALID);
    ck_assert_str_eq(error.text, "--etcd TEXT is missing (or KELP_ETCD in the environment)");
}

/* The help names each option with range and default, and no line is over 80 columns. */
KELP_TEST(test_help)
{
    char *text;
    size_t bytes, column = 0;
    FILE *out = open_memstream(&text, &bytes);

    kelp_options_help(&program, out);
    ck_assert_int_eq(fclose(out), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(table); i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "--%s", table[i].name);
        ck_assert_msg(strstr(text, name) != NULL, "%s", name);
    }
    ck_assert_ptr_nonnull(strstr(text, "Usage: kelp try [options] JOB.yaml\n"));
    ck_assert_ptr_nonnull(strstr(text, "  -o, --output text|json"));
    ck_assert_ptr_nonnull(strstr(text, "how often (1ms to 1m; default 2s)"));
    ck_assert_ptr_nonnull(strstr(text, "\nTiming:\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nExamples:\n  kelp try job.yaml\n"));
    for (const char *c = text; *c != '\0'; c++) {
        column = *c == '\n' ? 0 : column + 1;
        ck_assert_uint_le(column, 80);
    }
    free(text);
}

KELP_TEST(test_nearest)
{
    static const char *const names[] = {"train", "status", "digest"};

    ck_assert_str_eq(kelp_options_nearest("trian", names, 3), "train");
    ck_assert_ptr_null(kelp_options_nearest("zebra", names, 3));
}
