/*
 * Dates and times of day without time zones: seconds since 1970-01-01 00:00:00 of the proleptic
 * Gregorian calendar, years 1 to 9999. Pure.
 */
#ifndef KELP_WORKER_DATA_TEXT_CALENDAR_H
#define KELP_WORKER_DATA_TEXT_CALENDAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KELP_CALENDAR_TEXT_BYTES 20                    /* "2017-01-31 23:00:00" and NUL */
#define KELP_CALENDAR_MIN        INT64_C(-62135596800) /* 0001-01-01 00:00:00 */
#define KELP_CALENDAR_MAX        INT64_C(253402300799) /* 9999-12-31 23:59:59 */

struct kelp_calendar {
    int32_t year;
    uint32_t month;   /* 1 to 12 */
    uint32_t day;     /* 1 to 31 */
    uint32_t weekday; /* Monday 0 */
    uint32_t hour;
    uint32_t minute;
    uint32_t second;
};

/* "YYYY-MM-DD", with " HH:MM" or " HH:MM:SS" behind it, 'T' for the blank, blanks around it, a
 * fraction of the second, which is cut off. False for anything else. */
bool kelp_calendar_parse(const char *text, size_t bytes, int64_t *ret_seconds);

/* seconds lie between KELP_CALENDAR_MIN and KELP_CALENDAR_MAX. */
struct kelp_calendar kelp_calendar_split(int64_t seconds);
void kelp_calendar_print(int64_t seconds, char ret_text[KELP_CALENDAR_TEXT_BYTES]);

#endif
