#include "common/log/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/log/log_json.h"

const char *const kelp_log_level_names[] = {"error", "warn", "info", "debug", "trace", NULL};
const char *const kelp_log_format_names[] = {"text", "json", NULL};

/* Set once by main() before threads start; read-only afterwards. */
static struct {
    char role[32];
    char id[32];
    enum kelp_log_level level;
    enum kelp_log_format format;
    int fd;
} sink = {.role = "kelp", .id = "-", .level = KELP_LOG_INFO, .fd = STDERR_FILENO};

void kelp_log_init(const char *role, const char *id, enum kelp_log_level level, int fd)
{
    (void)snprintf(sink.role, sizeof(sink.role), "%s", role); /* documented to be cut */
    (void)snprintf(sink.id, sizeof(sink.id), "%s", id);
    sink.level = level;
    sink.fd = fd;
}

void kelp_log_as(enum kelp_log_format format)
{
    sink.format = format;
}

bool kelp_log_enabled(enum kelp_log_level level)
{
    return level <= sink.level;
}

/* "2026-01-31T12:00:00.123Z". */
static void print_time(char time[32])
{
    struct timespec now;
    struct tm utc;

    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    (void)gmtime_r(&now.tv_sec, &utc);
    (void)snprintf(time, 32, "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ",
                   (unsigned)utc.tm_year % 8100 + 1900, (unsigned)utc.tm_mon % 12 + 1,
                   (unsigned)utc.tm_mday % 32, (unsigned)utc.tm_hour % 24,
                   (unsigned)utc.tm_min % 60, (unsigned)utc.tm_sec % 61,
                   (unsigned)(now.tv_nsec / 1000000) % 1000);
}

static void write_line(const char *line, size_t count)
{
    ssize_t written;

    do {
        written = write(sink.fd, line, count);
    } while (written < 0 && errno == EINTR);
    /* Nothing can report that the log cannot be written. */
}

/* Cut and mark a text that does not fit. Returns the length. */
static size_t print_text(char *text, size_t room, const char *format, va_list args)
{
    static const char cut[] = " [cut]";
    int wanted = vsnprintf(text, room, format, args);
    size_t used = 0;

    if (wanted > 0) {
        used = (size_t)wanted < room ? (size_t)wanted : room - 1;
    }
    if (wanted > 0 && (size_t)wanted >= room) {
        memcpy(text + used - (sizeof(cut) - 1), cut, sizeof(cut) - 1);
    }
    return used;
}

static void hide_controls(char *text, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f) {
            text[i] = ' ';
        }
    }
}

static void put(enum kelp_log_level level, const char *format, va_list args)
{
    char line[KELP_LOG_LINE_MAX];
    char text[KELP_LOG_LINE_MAX];
    char time[32];
    int saved_errno = errno;
    size_t used = 0;

    print_time(time);
    if (sink.format == KELP_LOG_TEXT) {
        used = (size_t)snprintf(line, sizeof(line), "%s %-5s %s/%s ", time,
                                kelp_log_level_names[level], sink.role, sink.id);
    }
    /* The rest of the buffer is for the text and a line break, whose byte first holds the NUL. */
    const size_t count = print_text(text, sizeof(text) - used, format, args);
    if (sink.format == KELP_LOG_TEXT) {
        hide_controls(text, count);
        memcpy(line + used, text, count);
        used += count;
    } else {
        used = kelp_log_json(&(struct kelp_log_line){.time = time,
                                                     .level = kelp_log_level_names[level],
                                                     .role = sink.role,
                                                     .id = sink.id,
                                                     .text = text,
                                                     .text_bytes = count},
                             line, sizeof(line) - 1);
    }
    line[used] = '\n';
    write_line(line, used + 1);
    errno = saved_errno; /* callers may log before they read errno */
}

void kelp_log(enum kelp_log_level level, const char *format, ...)
{
    va_list args;

    if (kelp_log_enabled(level)) {
        va_start(args, format);
        put(level, format, args);
        va_end(args);
    }
}

void kelp_log_always(enum kelp_log_level level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    put(level, format, args);
    va_end(args);
}
