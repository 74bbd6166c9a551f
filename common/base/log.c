#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/limits.h"

const char *const kelp_log_level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

/* Set once by main() before threads start, read-only after that. */
static struct {
    char role[32];
    char id[32];
    enum kelp_log_level level;
    int fd;
} sink = {.role = "kelp", .id = "-", .level = KELP_LOG_INFO, .fd = STDERR_FILENO};

void kelp_log_init(const char *role, const char *id, enum kelp_log_level level, int fd)
{
    (void)snprintf(sink.role, sizeof(sink.role), "%s", role); /* the cut is documented */
    (void)snprintf(sink.id, sizeof(sink.id), "%s", id);
    sink.level = level;
    sink.fd = fd;
}

bool kelp_log_enabled(enum kelp_log_level level)
{
    return level <= sink.level;
}

/* "2026-01-31T12:00:00.123Z info  ps/shard-0 "; returns its length. */
static size_t print_head(enum kelp_log_level level, char *line, size_t line_bytes)
{
    struct timespec now;
    struct tm utc;

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    (void)gmtime_r(&now.tv_sec, &utc);
    int used = snprintf(line, line_bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %-5s %s/%s ",
                        utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                        utc.tm_sec, now.tv_nsec / 1000000, kelp_log_level_names[level], sink.role,
                        sink.id);
    return (size_t)used;
}

static void write_line(const char *line, size_t count)
{
    ssize_t written;

    do {
        written = write(sink.fd, line, count);
    } while (written < 0 && errno == EINTR);
    /* There is nowhere left to report that the log cannot be written. */
}

void kelp_log(enum kelp_log_level level, const char *format, ...)
{
    static const char cut[] = " [cut]";
    char line[KELP_LOG_LINE_MAX];
    int saved_errno = errno;
    va_list args;

    if (!kelp_log_enabled(level)) {
        return;
    }
    size_t head = print_head(level, line, sizeof(line));
    size_t room = sizeof(line) - head; /* for the text and a line break, or NUL meanwhile */
    va_start(args, format);
    int wanted = vsnprintf(line + head, room, format, args);
    va_end(args);
    size_t used = head;
    if (wanted > 0) {
        used += (size_t)wanted < room ? (size_t)wanted : room - 1;
    }
    if (wanted > 0 && (size_t)wanted >= room) {
        memcpy(line + used - (sizeof(cut) - 1), cut, sizeof(cut) - 1);
    }
    for (size_t i = head; i < used; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c < 0x20 || c == 0x7f) {
            line[i] = ' ';
        }
    }
    line[used] = '\n';
    write_line(line, used + 1);
    errno = saved_errno; /* so that logging may stand between a call and the look at errno */
}
