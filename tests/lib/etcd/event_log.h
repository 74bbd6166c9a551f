/*
 * What callbacks reported, as lines in order of arrival; any thread adds lines, the test waits for
 * them.
 */
#ifndef KELP_TESTS_LIB_ETCD_EVENT_LOG_H
#define KELP_TESTS_LIB_ETCD_EVENT_LOG_H

#include <pthread.h>
#include <stddef.h>

#include "common/base/status.h"

enum { EVENT_LOG_MAX = 1024, EVENT_LOG_LINE_MAX = 160 };

struct event_log {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    char lines[EVENT_LOG_MAX][EVENT_LOG_LINE_MAX];
    size_t count;
    size_t read; /* lines that the test has taken */
};

void event_log_init(struct event_log *log);
void event_log_add(struct event_log *log, const char *format, ...) KELP_PRINTF(2, 3);

/* Take the next line, waiting at most wait_ms; fails the test if it differs or none comes. */
void event_log_expect(struct event_log *log, int wait_ms, const char *line);
/* Take lines up to one that begins with the text; fails the test if none comes in time. */
void event_log_skip_to(struct event_log *log, int wait_ms, const char *beginning);
/* True if no further line comes within wait_ms. */
bool event_log_quiet(struct event_log *log, int wait_ms);
/* How many lines, taken or not, begin with the text. */
size_t event_log_count(struct event_log *log, const char *beginning);

#endif
