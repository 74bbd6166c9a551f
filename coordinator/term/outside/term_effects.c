#include "coordinator/term/outside/term_effects.h"

#include <stdarg.h>
#include <stdio.h>

static void say(const struct kelp_outside *outside, const char *peer, enum kelp_log_level level,
                const char *format, va_list args)
{
    char text[1024];
    if (outside->effects->log) {
        (void)vsnprintf(text, sizeof(text), format, args);
        outside->effects->log(level, peer, text, outside->user);
    }
}

void kelp_outside_tell(const struct kelp_outside *outside, const struct kelp_event *event)
{
    if (outside->effects->tell) {
        outside->effects->tell(event, outside->user);
    }
}

void kelp_outside_log(const struct kelp_outside *outside, enum kelp_log_level level,
                      const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(outside, NULL, level, format, args);
    va_end(args);
}

void kelp_outside_log_of(const struct kelp_outside *outside, const char *peer,
                         enum kelp_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(outside, peer, level, format, args);
    va_end(args);
}

enum kelp_placement_written kelp_written_of(kelp_status status, bool applied)
{
    if (status == KELP_OK && applied) {
        return KELP_WRITTEN_OK;
    }
    bool never = status == KELP_ERR_UNREACHABLE || status == KELP_ERR_NOT_LEADER;
    return never ? KELP_WRITTEN_NOT : KELP_WRITTEN_UNKNOWN;
}

enum kelp_checkpointer_result kelp_checkpointer_result_of(kelp_status status, bool applied)
{
    if (status == KELP_OK) {
        return applied ? KELP_CHECKPOINTER_OK : KELP_CHECKPOINTER_REFUSED;
    }
    if (kelp_status_group(status) == KELP_GROUP_CALLER) {
        return KELP_CHECKPOINTER_REFUSED; /* for example too large for etcd */
    }
    bool never = status == KELP_ERR_UNREACHABLE || status == KELP_ERR_NOT_LEADER;
    return never ? KELP_CHECKPOINTER_AWAY : KELP_CHECKPOINTER_UNKNOWN;
}
