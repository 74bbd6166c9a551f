#include "coordinator/term/term_effects.h"

#include <stdarg.h>
#include <stdio.h>

void kelp_outside_log(const struct kelp_outside *outside, enum kelp_log_level level,
                      const char *format, ...)
{
    char text[1024];
    va_list args;
    if (!outside->effects->log) {
        return;
    }
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    outside->effects->log(level, text, outside->user);
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
        return KELP_CHECKPOINTER_REFUSED; /* too large for etcd, say */
    }
    bool never = status == KELP_ERR_UNREACHABLE || status == KELP_ERR_NOT_LEADER;
    return never ? KELP_CHECKPOINTER_AWAY : KELP_CHECKPOINTER_UNKNOWN;
}
