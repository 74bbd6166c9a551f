#include "cli/verb/display.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMNS_DEFAULT 80
#define LINES_DEFAULT   24

static void put(const struct kelp_display *display, const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(display->fd, text, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* the reader is gone; the run continues */
        }
        text += written;
        length -= (size_t)written;
    }
}

void kelp_display_init(struct kelp_display *display, int fd)
{
    memset(display, 0, sizeof(*display));
    display->fd = fd;
    display->terminal = isatty(fd) == 1;
}

/* The last column would make some terminals wrap, the last line all of them scroll. */
void kelp_display_room(const struct kelp_display *display, unsigned *ret_columns,
                       unsigned *ret_lines)
{
    struct winsize size = {.ws_col = 0};

    (void)ioctl(display->fd, TIOCGWINSZ, &size); /* else it has a usual one */
    *ret_columns = (size.ws_col > 1 ? size.ws_col : COLUMNS_DEFAULT) - 1U;
    *ret_lines = (size.ws_row > 1 ? size.ws_row : LINES_DEFAULT) - 1U;
}

static unsigned terminal_columns(const struct kelp_display *display)
{
    unsigned columns;
    unsigned lines;

    kelp_display_room(display, &columns, &lines);
    return columns;
}

static void update_bar(struct kelp_display *display, const struct kelp_meter *meter)
{
    char bar[KELP_METER_TEXT_MAX];
    char text[KELP_METER_TEXT_MAX + 16];

    kelp_meter_bar(meter, terminal_columns(display), bar, sizeof(bar));
    int length = snprintf(text, sizeof(text), "\r%s\033[K", bar);
    put(display, text, (size_t)length);
    display->bar_shown = true;
}

void kelp_display_wait(struct kelp_display *display, const char *text, uint64_t now_ms)
{
    char line[KELP_METER_TEXT_MAX + 16];

    if (text[0] == '\0' || strncmp(text, display->line_reason, KELP_METER_TEXT_MAX - 1) == 0) {
        return;
    }
    if (display->terminal) {
        int columns = (int)terminal_columns(display);
        int length = snprintf(line, sizeof(line), "\r%.*s\033[K",
                              columns < KELP_METER_TEXT_MAX ? columns : KELP_METER_TEXT_MAX, text);
        put(display, line, (size_t)length);
        display->bar_shown = true;
    } else if (!display->line_shown || now_ms - display->line_ms >= KELP_DISPLAY_WAIT_MS) {
        int length = snprintf(line, sizeof(line), "%.*s\n", KELP_METER_TEXT_MAX, text);
        put(display, line, (size_t)length);
        display->line_shown = true;
        display->line_ms = now_ms;
    } else {
        return;
    }
    (void)snprintf(display->line_reason, sizeof(display->line_reason), "%s", text);
}

static bool line_due(const struct kelp_display *display, const struct kelp_meter *meter,
                     uint64_t now_ms)
{
    const char *reason = meter->reason ? meter->reason : "";

    if (!display->line_shown || meter->running != display->line_running) {
        return true;
    }
    if (!meter->running) {
        return strcmp(reason, display->line_reason) != 0;
    }
    return meter->epoch != display->line_epoch ||
           (meter->step != display->line_step && now_ms - display->line_ms >= KELP_DISPLAY_LINE_MS);
}

void kelp_display_update(struct kelp_display *display, const struct kelp_meter *meter,
                         uint64_t now_ms)
{
    char text[KELP_METER_TEXT_MAX + 1];

    if (display->terminal) {
        update_bar(display, meter);
        return;
    }
    if (!line_due(display, meter, now_ms)) {
        return;
    }
    kelp_meter_line(meter, text, KELP_METER_TEXT_MAX);
    size_t length = strlen(text);
    text[length] = '\n';
    put(display, text, length + 1);
    display->line_shown = true;
    display->line_ms = now_ms;
    display->line_step = meter->step;
    display->line_epoch = meter->epoch;
    display->line_running = meter->running;
    (void)snprintf(display->line_reason, sizeof(display->line_reason), "%s",
                   meter->reason ? meter->reason : "");
}

void kelp_display_prepare(struct kelp_display *display, const char *path, uint64_t rows,
                          uint64_t now_ms)
{
    char text[KELP_METER_TEXT_MAX];
    const char *slash = strrchr(path, '/');

    int length =
        snprintf(text, sizeof(text), "preparing the data: %.*s, %.1f million rows",
                 (int)terminal_columns(display) - 50, slash ? slash + 1 : path, (double)rows / 1e6);
    if (display->terminal) {
        put(display, "\r", 1);
        put(display, text, (size_t)length);
        put(display, "\033[K", 3);
        display->bar_shown = true;
    } else if (display->prepare_ms == 0) {
        display->prepare_ms = now_ms;
    } else if (now_ms - display->prepare_ms >= KELP_DISPLAY_LINE_MS) {
        display->prepare_ms = now_ms;
        text[length] = '\n';
        put(display, text, (size_t)length + 1);
    }
}

void kelp_display_say(struct kelp_display *display, const char *format, ...)
{
    char text[1024] = "kelp: ";
    size_t used = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): started on the line above */
    int length = vsnprintf(text + used, sizeof(text) - used - 1, format, arguments);
    va_end(arguments);
    if (length > 0) {
        size_t room = sizeof(text) - used - 2;
        used += (size_t)length < room ? (size_t)length : room;
    }
    text[used++] = '\n';
    kelp_display_clear(display);
    put(display, text, used);
}

void kelp_display_clear(struct kelp_display *display)
{
    if (display->bar_shown) {
        put(display, "\r\033[K", 4);
        display->bar_shown = false;
    }
}
