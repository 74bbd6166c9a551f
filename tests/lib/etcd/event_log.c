#include "tests/lib/etcd/event_log.h"

#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"

void event_log_init(struct event_log *log)
{
    memset(log, 0, sizeof(*log));
    (void)pthread_mutex_init(&log->lock, NULL);
    (void)pthread_cond_init(&log->changed, NULL);
}

void event_log_add(struct event_log *log, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)pthread_mutex_lock(&log->lock);
    if (log->count < EVENT_LOG_MAX) {
        (void)vsnprintf(log->lines[log->count++], EVENT_LOG_LINE_MAX, format, args);
    }
    (void)pthread_cond_broadcast(&log->changed);
    (void)pthread_mutex_unlock(&log->lock);
    va_end(args);
}

/* The next line; NULL: none came in time. Lines do not change once added. */
static const char *next_line(struct event_log *log, int wait_ms, bool take)
{
    const uint64_t end_ms = kelp_clock_ms() + (uint64_t)wait_ms;

    (void)pthread_mutex_lock(&log->lock);
    while (log->read == log->count && kelp_clock_wait(&log->changed, &log->lock, end_ms)) {
    }
    const char *line = log->read < log->count ? log->lines[log->read] : NULL;
    log->read += take && line;
    (void)pthread_mutex_unlock(&log->lock);
    return line;
}

void event_log_expect(struct event_log *log, int wait_ms, const char *line)
{
    const char *got = next_line(log, wait_ms, true);

    ck_assert_msg(got != NULL, "nothing came, '%s' was expected", line);
    ck_assert_str_eq(got, line);
}

void event_log_skip_to(struct event_log *log, int wait_ms, const char *beginning)
{
    const char *got;

    do {
        got = next_line(log, wait_ms, true);
        ck_assert_msg(got != NULL, "'%s' did not come", beginning);
    } while (strncmp(got, beginning, strlen(beginning)) != 0);
}

bool event_log_quiet(struct event_log *log, int wait_ms)
{
    return next_line(log, wait_ms, false) == NULL;
}

size_t event_log_count(struct event_log *log, const char *beginning)
{
    size_t count = 0;

    (void)pthread_mutex_lock(&log->lock);
    for (size_t i = 0; i < log->count; i++) {
        count += strncmp(log->lines[i], beginning, strlen(beginning)) == 0;
    }
    (void)pthread_mutex_unlock(&log->lock);
    return count;
}
