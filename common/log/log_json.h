/*
 * A line of the log as one JSON object, for programs that collect logs:
 *
 *     {"time":"2026-01-31T12:00:00.123Z","level":"info","role":"ps","id":"shard-0",
 *      "message":"map taken","generation":2,"address":"10.0.0.6:7001"}
 *
 * The fields of the text, key=value or key="value", become members; what is left is the message. A
 * value of at most 15 digits is a number, anything else a string. A key that is there already gets
 * a '_' behind it. Bytes that are no UTF-8 become U+FFFD. Pure.
 */
#ifndef KELP_COMMON_LOG_LOG_JSON_H
#define KELP_COMMON_LOG_LOG_JSON_H

#include <stddef.h>

/* Fields of a line; those beyond stay in the message. */
#define KELP_LOG_FIELDS_MAX 32

struct kelp_log_line {
    const char *time;
    const char *level;
    const char *role;
    const char *id;
    const char *text; /* "map taken generation=2" */
    size_t text_bytes;
};

/* Into out, without a line break or NUL; returns its length. What does not fit into out_bytes (at
 * least 256) is cut, and "cut":true says so: the object is whole in any case. */
size_t kelp_log_json(const struct kelp_log_line *line, char *out, size_t out_bytes);

#endif
