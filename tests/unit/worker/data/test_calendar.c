/* Dates: every day of the calendar there and back, weekdays, and what is no date. */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/data/text/calendar.h"

static int64_t parse_or_fail(const char *text)
{
    int64_t seconds = 0;
    ck_assert_msg(kelp_calendar_parse(text, strlen(text), &seconds), "%s", text);
    return seconds;
}

/* Days follow one another as the calendar says, from the first to the last, a Monday to begin
 * with; text and number are the same day. */
KELP_TEST(every_day)
{
    uint32_t before_month = 12, before_day = 31;
    uint32_t weekday = 0;
    for (int64_t day = KELP_CALENDAR_MIN; day < KELP_CALENDAR_MAX; day += 86400) {
        struct kelp_calendar date = kelp_calendar_split(day + 86399);
        bool follows = date.day == before_day + 1
                           ? date.month == before_month
                           : date.day == 1 && date.month == before_month % 12 + 1;
        if (!follows || date.weekday != weekday || date.hour != 23 || date.second != 59) {
            ck_abort_msg("day %lld", (long long)(day / 86400));
        }
        weekday = (weekday + 1) % 7;
        before_month = date.month;
        before_day = date.day;
        if (day % (97 * 86400) == 0) {
            char text[KELP_CALENDAR_TEXT_BYTES];
            kelp_calendar_print(day, text);
            ck_assert_int_eq(parse_or_fail(text), day);
        }
    }
    ck_assert(before_month == 12 && before_day == 31);
}

KELP_TEST(known_times)
{
    ck_assert_int_eq(parse_or_fail("1970-01-01"), 0);
    ck_assert_int_eq(parse_or_fail("1970-01-01 00:01"), 60);
    ck_assert_int_eq(parse_or_fail("2017-03-25 08:55:43"), 1490432143);
    ck_assert_int_eq(parse_or_fail(" 2017-03-25T08:55:43.999 "), 1490432143);
    ck_assert_int_eq(parse_or_fail("2000-02-29 23:59:59"), 951868799);
    ck_assert_int_eq(parse_or_fail("0001-01-01"), KELP_CALENDAR_MIN);
    ck_assert_int_eq(parse_or_fail("9999-12-31 23:59:59"), KELP_CALENDAR_MAX);
    ck_assert_uint_eq(kelp_calendar_split(1490432143).weekday, 5); /* a Saturday */
}

KELP_TEST(no_times)
{
    static const char *const texts[] = {
        "",
        "2017",
        "2017-13-01",
        "2017-00-01",
        "2017-02-29",
        "1900-02-29",
        "2017-1-1",
        "2017-01-32",
        "03/25/2017 08:55:43",
        "2017-03-25 8:55",
        "0000-01-01",
        "2017-03-25 24:00",
        "2017-03-25 08:60",
        "2017-03-25 08:55:60",
        "2017-03-25 08:55:43.",
        "2017-03-25 08:55:43x",
        "2017-03-25x",
        "2017-03-25 ",
    };
    for (size_t i = 0; i + 1 < sizeof(texts) / sizeof(texts[0]); i++) {
        int64_t seconds = 42;
        ck_assert_msg(!kelp_calendar_parse(texts[i], strlen(texts[i]), &seconds), "%s", texts[i]);
        ck_assert_int_eq(seconds, 42);
    }
    (void)parse_or_fail(
        texts[sizeof(texts) / sizeof(texts[0]) - 1]); /* blanks around are allowed */
}
