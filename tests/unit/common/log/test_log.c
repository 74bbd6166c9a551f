#include <errno.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/log/log.h"
#include "common/log/log_json.h"
#include "tests/lib/suite.h"

static int pipe_fds[2];
static char line[8192];

static void setup(void)
{
    ck_assert_int_eq(pipe(pipe_fds), 0);
    kelp_log_init("ps", "shard-0", KELP_LOG_INFO, pipe_fds[1]);
}

static void teardown(void)
{
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
}

static void read_line(void)
{
    ssize_t got = read(pipe_fds[0], line, sizeof(line) - 1);

    ck_assert_int_gt(got, 0);
    line[got] = '\0';
}

KELP_CASE("log", .setup = setup, .teardown = teardown)

/* A line is time, level, role/id and text, and is written with one write. */
KELP_TEST(test_format)
{
    regex_t pattern;

    ck_assert_int_eq(regcomp(&pattern,
                             "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "
                             "info  ps/shard-0 map taken generation=2\n$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    kelp_log_info("map taken generation=%d", 2);
    read_line();
    ck_assert_msg(regexec(&pattern, line, 0, NULL, 0) == 0, "%s", line);
    regfree(&pattern);
}

/* What is below the level is not written, unless it must be; errno survives. */
KELP_TEST(test_levels)
{
    ck_assert(kelp_log_enabled(KELP_LOG_ERROR));
    ck_assert(!kelp_log_enabled(KELP_LOG_DEBUG));
    errno = ENOENT;
    kelp_log_debug("hidden");
    kelp_log_error("shown");
    ck_assert_int_eq(errno, ENOENT);
    read_line();
    ck_assert_ptr_null(strstr(line, "hidden"));
    ck_assert_ptr_nonnull(strstr(line, "error ps/shard-0 shown\n"));
    kelp_log_always(KELP_LOG_DEBUG, "looked %s", "for");
    read_line();
    ck_assert_ptr_nonnull(strstr(line, "debug ps/shard-0 looked for\n"));
}

/* One event is one line, whatever its text holds. */
KELP_TEST(test_control_characters)
{
    kelp_log_warn("a\nb\tc\x7f\x1b[0m");
    read_line();
    ck_assert_ptr_nonnull(strstr(line, " a b c  [0m\n"));
}

/* A line that is too long is cut and says so. */
KELP_TEST(test_long_line)
{
    static char text[6000];

    memset(text, 'x', sizeof(text) - 1);
    kelp_log_info("%s", text);
    read_line();
    ck_assert_uint_eq(strlen(line), 4096);
    ck_assert_str_eq(line + 4096 - strlen("x [cut]\n"), "x [cut]\n");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void setup_json(void)
{
    setup();
    kelp_log_as(KELP_LOG_JSON);
}

static void teardown_json(void)
{
    kelp_log_as(KELP_LOG_TEXT);
    teardown();
}

/* The line that was written, without its time, as it must be; whole as JSON in any case. */
static void expect_json(const char *rest)
{
    static const char head[] = ",\"level\":\"info\",\"role\":\"ps\",\"id\":\"shard-0\",";
    cJSON *json = NULL;

    read_line();
    const char *from_level = strchr(line, ',');
    ck_assert_int_eq(line[strlen(line) - 1], '\n');
    ck_assert_int_eq(kelp_json_parse(line, strlen(line), &json, NULL), KELP_OK);
    cJSON_Delete(json);
    ck_assert_int_eq(strncmp(line, "{\"time\":\"20", 11), 0);
    ck_assert_ptr_nonnull(from_level);
    ck_assert_int_eq(strncmp(from_level, head, strlen(head)), 0);
    line[strlen(line) - 1] = '\0';
    ck_assert_str_eq(from_level + strlen(head), rest);
}

KELP_CASE("json", .setup = setup_json, .teardown = teardown_json)

static const struct {
    const char *text, *json;
} lines[] = {
    {"map taken generation=2", "\"message\":\"map taken\",\"generation\":2}"},
    {"plain", "\"message\":\"plain\"}"},
    {"", "\"message\":\"\"}"},
    {"a=1 b=x", "\"message\":\"\",\"a\":1,\"b\":\"x\"}"},
    {"serving address=127.0.0.1:7000 incarnation=12345678901234567",
     "\"message\":\"serving\",\"address\":\"127.0.0.1:7000\",\"incarnation\":"
     "\"12345678901234567\"}"},
    /* Numbers that every reader has exactly, and what only looks like one. */
    {"n a=-5 b=0.25 c=007 d=1e5 e=1. f=- g=0 h=1.2.3 i=0.0",
     "\"message\":\"n\",\"a\":-5,\"b\":0.25,\"c\":\"007\",\"d\":\"1e5\",\"e\":\"1.\",\"f\":\"-\","
     "\"g\":0,\"h\":\"1.2.3\",\"i\":0.0}"},
    /* Quoted values, with quotes and fields in them. */
    {"ended reason=\"no map yet\" step=3",
     "\"message\":\"ended\",\"reason\":\"no map yet\",\"step\":3}"},
    {"ended reason=\"the key \"x\" is not there\" step=3",
     "\"message\":\"ended\",\"reason\":\"the key \\\"x\\\" is not there\",\"step\":3}"},
    {"ended reason=\"\"", "\"message\":\"ended\",\"reason\":\"\"}"},
    {"ended reason=\"open", "\"message\":\"ended\",\"reason\":\"open\"}"},
    {"ended reason=", "\"message\":\"ended\",\"reason\":\"\"}"},
    /* Words between fields belong to the message. */
    {"gives up ms=500: it leads 2 partitions",
     "\"message\":\"gives up: it leads 2 partitions\",\"ms\":500}"},
    {"a x=1 b y=2 c", "\"message\":\"a b c\",\"x\":1,\"y\":2}"},
    {"2=1 A=1 a-b=1", "\"message\":\"2=1 A=1 a-b=1\"}"},
    /* Keys that are there already. */
    {"x id=worker-0 id=worker-1 time=3",
     "\"message\":\"x\",\"id_\":\"worker-0\",\"id__\":\"worker-1\",\"time_\":3}"},
    /* Escapes. */
    {"a\nb\tc \\ \"q\" \x7f", "\"message\":\"a\\u000ab\\u0009c \\\\ \\\"q\\\" \\u007f\"}"},
    {"caf\xc3\xa9 \xf0\x9f\x8c\xbf", "\"message\":\"caf\xc3\xa9 \xf0\x9f\x8c\xbf\"}"},
    {"\xff \xc3 \xc0\x80 \xed\xa0\x80!",
     "\"message\":\"\\ufffd \\ufffd \\ufffd\\ufffd \\ufffd\\ufffd\\ufffd!\"}"},
};

/* Fields become members; the rest is the message; whatever stands in the text, the line is JSON. */
KELP_LOOP_TEST(fields_are_members, 0, KELP_ARRAY_COUNT(lines))
{
    kelp_log_info("%s", lines[_i].text);
    expect_json(lines[_i].json);
}

/* A line that is too long is cut, in one piece, and says so. */
KELP_LOOP_TEST(cut_json_is_whole, 0, 60)
{
    static char text[6000];
    cJSON *json = NULL;

    memset(text, _i % 2 ? '\n' : 'x', sizeof(text) - 1);
    memcpy(text + 3900 + _i, " key=\"", 6);
    kelp_log_info("%s", text);
    read_line();
    ck_assert_uint_le(strlen(line), KELP_LOG_LINE_MAX);
    ck_assert_int_eq(line[strlen(line) - 1], '\n');
    ck_assert_int_eq(kelp_json_parse(line, strlen(line), &json, NULL), KELP_OK);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "cut")));
    cJSON_Delete(json);
}

/* More fields than are taken apart stay in the message. */
KELP_TEST(many_fields)
{
    char text[1024] = "many";
    cJSON *json = NULL;

    for (int i = 0; i < 2 * KELP_LOG_FIELDS_MAX; i++) {
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), " k%d=%d", i, i);
    }
    kelp_log_info("%s", text);
    read_line();
    ck_assert_int_eq(kelp_json_parse(line, strlen(line), &json, NULL), KELP_OK);
    ck_assert(cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(json, "k0")));
    ck_assert_ptr_null(cJSON_GetObjectItemCaseSensitive(json, "k63"));
    const char *message = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "message"));
    ck_assert_ptr_nonnull(strstr(message, "k63=63"));
    cJSON_Delete(json);
}
