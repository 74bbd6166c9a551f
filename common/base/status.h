/*
 * Status codes and error text: the one way in which Kelp reports that something failed.
 *
 * A function that can fail returns a kelp_status: KELP_OK is 0, errors are negative. Codes are
 * grouped by what recovers them, so that a caller can act on the group alone. Human text travels
 * in an optional struct kelp_error, filled where the fault is found and printed once, by the
 * outermost layer.
 */
#ifndef KELP_COMMON_BASE_STATUS_H
#define KELP_COMMON_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* X(code name, value, group, text). Values are wire format: append only. */
#define KELP_STATUS_LIST(X)                                                                        \
    X(BUSY, -1, RETRY, "busy, try again")                                                          \
    X(TIMEOUT, -2, RETRY, "timed out")                                                             \
    X(UNREACHABLE, -10, PEER, "peer cannot be reached")                                            \
    X(NOT_PRIMARY, -11, PEER, "peer is not this partition's primary")                              \
    X(NOT_LEADER, -12, PEER, "peer is not the leading coordinator")                                \
    X(CLOSED, -13, PEER, "stream closed")                                                          \
    X(OLD_MAP_EPOCH, -20, FENCED, "older map epoch")                                               \
    X(OLD_GENERATION, -21, FENCED, "older generation")                                             \
    X(CONTROL_WORD, -22, FENCED, "control word differs")                                           \
    X(CORRUPT, -30, DATA, "data is damaged")                                                       \
    X(FORMAT, -31, DATA, "malformed data")                                                         \
    X(INVALID, -40, CALLER, "invalid argument")                                                    \
    X(LIMIT, -41, CALLER, "limit exceeded")                                                        \
    X(NOT_FOUND, -42, CALLER, "not found")                                                         \
    X(EXISTS, -43, CALLER, "exists already")                                                       \
    X(MISMATCH, -44, CALLER, "belongs to another job")                                             \
    X(UNSUPPORTED, -45, CALLER, "not supported")                                                   \
    X(DENIED, -46, CALLER, "not allowed")                                                          \
    X(NO_MEMORY, -50, RESOURCE, "out of memory")                                                   \
    X(NO_SPACE, -51, RESOURCE, "no space left")                                                    \
    X(DEVICE, -52, RESOURCE, "device failed")                                                      \
    X(IO, -53, RESOURCE, "input or output failed")                                                 \
    X(INTERNAL, -60, RESOURCE, "internal error")

typedef enum kelp_status {
    KELP_OK = 0,
#define KELP_STATUS_ENUM(name, value, group, text) KELP_ERR_##name = (value),
    KELP_STATUS_LIST(KELP_STATUS_ENUM)
#undef KELP_STATUS_ENUM
} kelp_status;

/* What recovers an error; see the table in docs/ARCHITECTURE.md. */
enum kelp_status_group {
    KELP_GROUP_OK,
    KELP_GROUP_RETRY,    /* same peer again after a back-off */
    KELP_GROUP_PEER,     /* reconnect, or ask who is responsible now */
    KELP_GROUP_FENCED,   /* take the newer map or generation, then resend or rejoin */
    KELP_GROUP_DATA,     /* do not retry: the bytes are wrong */
    KELP_GROUP_CALLER,   /* fix the call or the configuration */
    KELP_GROUP_RESOURCE, /* shed load or stop */
};

/* Human text for one failure: one line. Truncation is allowed; always NUL-terminated. Control
 * characters that it repeats from its input have become blanks. */
struct kelp_error {
    kelp_status status;
    char text[512];
};

#define KELP_MUST_USE                      __attribute__((warn_unused_result))
#define KELP_PRINTF(fmt, args)             __attribute__((format(printf, fmt, args)))
#define KELP_ARRAY_COUNT(array)            (sizeof(array) / sizeof((array)[0]))
#define KELP_CONTAINER_OF(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

/* The name without its prefix ("OLD_GENERATION"); "OK" for KELP_OK, "UNKNOWN" for any other number.
 */
const char *kelp_status_name(int status);
/* One lower-case phrase for people. */
const char *kelp_status_text(int status);
enum kelp_status_group kelp_status_group(int status);
/* True for KELP_OK and each listed code: used to check a number that came over the wire. */
bool kelp_status_known(int status);

/*
 * Fill reterr (may be NULL) and return status, so that failing is one line:
 *     return kelp_fail(reterr, KELP_ERR_INVALID, "lanes=%u is not a power of two", lanes);
 */
kelp_status kelp_fail(struct kelp_error *reterr, kelp_status status, const char *format, ...)
    KELP_PRINTF(3, 4);

/* Put "what: " in front of the text that is there already. Does nothing when reterr is NULL. */
void kelp_error_prefix(struct kelp_error *reterr, const char *format, ...) KELP_PRINTF(2, 3);

#endif
