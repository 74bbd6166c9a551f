#include "worker/data/text/calendar.h"

#include <assert.h>
#include <stdio.h>

#define DAY_SECONDS 86400

/*
 * Days are counted in eras of 400 years, which are all alike. Years begin in March, so that the
 * leap day is the last day of a year.
 */
#define ERA_DAYS         146097
#define DAYS_BEFORE_1970 719468 /* from 0000-03-01 */

static int64_t days_of(int32_t year, uint32_t month, uint32_t day)
{
    int64_t y = month <= 2 ? year - 1 : year;
    int64_t era = y >= 0 ? y / 400 : (y - 399) / 400;
    int64_t year_of_era = y - era * 400;
    int64_t month_from_march = month > 2 ? (int64_t)month - 3 : (int64_t)month + 9;
    int64_t day_of_year = (153 * month_from_march + 2) / 5 + (int64_t)day - 1;
    int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    return era * ERA_DAYS + day_of_era - DAYS_BEFORE_1970;
}

static uint32_t month_days(int32_t year, uint32_t month)
{
    static const uint32_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return days[month - 1] + (leap && month == 2 ? 1u : 0u);
}

/* ---- text ------------------------------------------------------------------------------------ */

struct scan {
    const char *at;
    const char *end;
};

/* Exactly `digits` digits, at most max. */
static bool parse_number(struct scan *scan, int digits, uint32_t max, uint32_t *ret_value)
{
    uint32_t value = 0;
    for (int i = 0; i < digits; i++) {
        if (scan->at == scan->end || *scan->at < '0' || *scan->at > '9') {
            return false;
        }
        value = value * 10 + (uint32_t)(*scan->at++ - '0');
    }
    *ret_value = value;
    return value <= max;
}

static bool parse_char(struct scan *scan, char c)
{
    if (scan->at == scan->end || *scan->at != c) {
        return false;
    }
    scan->at++;
    return true;
}

static bool parse_date(struct scan *scan, struct kelp_calendar *date)
{
    uint32_t year = 0;
    if (!parse_number(scan, 4, 9999, &year) || !parse_char(scan, '-') ||
        !parse_number(scan, 2, 12, &date->month) || !parse_char(scan, '-') ||
        !parse_number(scan, 2, 31, &date->day)) {
        return false;
    }
    date->year = (int32_t)year;
    return year > 0 && date->month > 0 && date->day > 0 &&
           date->day <= month_days(date->year, date->month);
}

/* After hours and minutes: nothing, or seconds with an optional fraction. */
static bool parse_seconds(struct scan *scan, struct kelp_calendar *date)
{
    if (!parse_char(scan, ':')) {
        return true;
    }
    if (!parse_number(scan, 2, 59, &date->second)) {
        return false;
    }
    if (!parse_char(scan, '.')) {
        return true;
    }
    uint32_t digit = 0;
    if (!parse_number(scan, 1, 9, &digit)) {
        return false;
    }
    while (parse_number(scan, 1, 9, &digit)) {
    }
    return true;
}

static bool parse_time(struct scan *scan, struct kelp_calendar *date)
{
    if (scan->at == scan->end) {
        return true;
    }
    return (parse_char(scan, ' ') || parse_char(scan, 'T')) &&
           parse_number(scan, 2, 23, &date->hour) && parse_char(scan, ':') &&
           parse_number(scan, 2, 59, &date->minute) && parse_seconds(scan, date);
}

bool kelp_calendar_parse(const char *text, size_t bytes, int64_t *ret_seconds)
{
    struct scan scan = {.at = text, .end = text + bytes};
    while (scan.at < scan.end && *scan.at == ' ') {
        scan.at++;
    }
    while (scan.end > scan.at && scan.end[-1] == ' ') {
        scan.end--;
    }
    struct kelp_calendar date = {0};
    if (!parse_date(&scan, &date) || !parse_time(&scan, &date) || scan.at != scan.end) {
        return false;
    }
    *ret_seconds = days_of(date.year, date.month, date.day) * DAY_SECONDS +
                   (int64_t)date.hour * 3600 + (int64_t)date.minute * 60 + (int64_t)date.second;
    return true;
}

/* ---- from seconds to a date ------------------------------------------------------------------ */

struct kelp_calendar kelp_calendar_split(int64_t seconds)
{
    assert(seconds >= KELP_CALENDAR_MIN && seconds <= KELP_CALENDAR_MAX);
    int64_t of_day = seconds % DAY_SECONDS;
    of_day += of_day < 0 ? DAY_SECONDS : 0;
    int64_t days = (seconds - of_day) / DAY_SECONDS + DAYS_BEFORE_1970; /* above 0: year 1 on */
    int64_t era = days / ERA_DAYS;
    int64_t day_of_era = days % ERA_DAYS;
    int64_t year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month_from_march = (5 * day_of_year + 2) / 153;
    int64_t month = month_from_march < 10 ? month_from_march + 3 : month_from_march - 9;
    return (struct kelp_calendar){
        .year = (int32_t)(year_of_era + era * 400 + (month <= 2 ? 1 : 0)),
        .month = (uint32_t)month,
        .day = (uint32_t)(day_of_year - (153 * month_from_march + 2) / 5 + 1),
        .weekday = (uint32_t)((days + 2) % 7), /* 0000-03-01 was a Wednesday */
        .hour = (uint32_t)(of_day / 3600),
        .minute = (uint32_t)(of_day % 3600 / 60),
        .second = (uint32_t)(of_day % 60),
    };
}

void kelp_calendar_print(int64_t seconds, char ret_text[KELP_CALENDAR_TEXT_BYTES])
{
    struct kelp_calendar date = kelp_calendar_split(seconds);
    (void)snprintf(ret_text, KELP_CALENDAR_TEXT_BYTES, "%04u-%02u-%02u %02u:%02u:%02u",
                   (unsigned)date.year % 10000u, date.month % 100u, date.day % 100u,
                   date.hour % 100u, date.minute % 100u, date.second % 100u);
}
