/*
 * Structured log: one event per line, lower case, key=value fields after the message.
 *
 *     2026-01-31T12:00:00.123Z info  ps/shard-0 partition map taken generation=2 map_epoch=7
 *
 * The sink is global (docs/ARCHITECTURE.md, "Globals"): main() sets it up once, before threads
 * start. Library code below the outer layer returns errors and does not log.
 */
#ifndef KELP_COMMON_LOG_LOG_H
#define KELP_COMMON_LOG_LOG_H

#include "common/base/status.h"

enum kelp_log_level {
    KELP_LOG_ERROR, /* someone must act */
    KELP_LOG_WARN,  /* we continue, degraded */
    KELP_LOG_INFO,  /* membership, map, checkpoint */
    KELP_LOG_DEBUG, /* per connection */
    KELP_LOG_TRACE, /* per message */
};

/*
 * role, id    "ps", "shard-0": part of every line; copied, cut at 31 bytes.
 * fd          gets one write(2) per line; borrowed for the life of the process.
 */
void kelp_log_init(const char *role, const char *id, enum kelp_log_level level, int fd);

/* Set the format: text (the default) or JSON objects (log_json.h). Before threads start. */
enum kelp_log_format { KELP_LOG_TEXT, KELP_LOG_JSON };
void kelp_log_as(enum kelp_log_format format);
/* "text", "json", then NULL. */
extern const char *const kelp_log_format_names[];

/* "error" ... "trace", in the order of the levels, then NULL. */
extern const char *const kelp_log_level_names[];

/* Cheap test before preparing expensive fields. */
bool kelp_log_enabled(enum kelp_log_level level);

/* Threads: any. Line breaks and control characters inside the text become spaces. */
void kelp_log(enum kelp_log_level level, const char *format, ...) KELP_PRINTF(2, 3);

/* The same, whatever level is enabled: for lines that other programs look for. */
void kelp_log_always(enum kelp_log_level level, const char *format, ...) KELP_PRINTF(2, 3);

#define kelp_log_error(...) kelp_log(KELP_LOG_ERROR, __VA_ARGS__)
#define kelp_log_warn(...)  kelp_log(KELP_LOG_WARN, __VA_ARGS__)
#define kelp_log_info(...)  kelp_log(KELP_LOG_INFO, __VA_ARGS__)
#define kelp_log_debug(...) kelp_log(KELP_LOG_DEBUG, __VA_ARGS__)

#endif
