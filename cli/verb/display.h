/*
 * The progress of a run on standard error: a bar that is redrawn on a terminal; plain lines, now
 * and then and whenever something changes, on anything else.
 *
 * Threads: one.
 */
#ifndef KELP_CLI_VERB_DISPLAY_H
#define KELP_CLI_VERB_DISPLAY_H

#include "cli/verb/meter.h"
#include "common/base/status.h"

#define KELP_DISPLAY_LINE_MS 5000 /* between plain lines while nothing else changes */
#define KELP_DISPLAY_WAIT_MS 1000 /* between those of kelp_display_wait() */

struct kelp_display {
    int fd;
    bool terminal;
    bool bar_shown;
    bool line_shown;
    uint64_t prepare_ms; /* when rows were first told of, or last said */
    uint64_t line_ms;
    uint64_t line_step;
    uint32_t line_epoch;
    bool line_running;
    char line_reason[KELP_METER_TEXT_MAX];
};

/* fd is borrowed. */
void kelp_display_init(struct kelp_display *display, int fd);
void kelp_display_update(struct kelp_display *display, const struct kelp_meter *meter,
                         uint64_t now_ms);
/* Data are being prepared, of which so many rows have been read. On a terminal they are counted in
 * place of the bar; elsewhere it is said now and then, and not at all where it is soon done. */
void kelp_display_prepare(struct kelp_display *display, const char *path, uint64_t rows,
                          uint64_t now_ms);
/* What a command waits for: on a terminal one line in place of the one before, elsewhere a line
 * when it is another, once in KELP_DISPLAY_WAIT_MS at most. "": nothing. */
void kelp_display_wait(struct kelp_display *display, const char *text, uint64_t now_ms);
/* A line of its own, above the bar; "kelp: " and the line break are added. */
void kelp_display_say(struct kelp_display *display, const char *format, ...) KELP_PRINTF(2, 3);
/* How many columns and lines of the terminal may be written on. */
void kelp_display_room(const struct kelp_display *display, unsigned *ret_columns,
                       unsigned *ret_lines);
/* Take the bar away. */
void kelp_display_clear(struct kelp_display *display);

#endif
