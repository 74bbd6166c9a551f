/*
 * The options --trace and --trace-steps, of daemons that can be traced (common/log/trace.h).
 */
#ifndef KELP_COMMON_PROGRAM_OPTIONS_TRACE_OPTION_H
#define KELP_COMMON_PROGRAM_OPTIONS_TRACE_OPTION_H

#include "common/base/limits.h"
#include "common/log/trace.h"
#include "common/program/options/options.h"

#define KELP_TRACE_STEPS_DEFAULT "50"

/* Entries for a daemon's table of options. */
#define KELP_TRACE_OPTIONS(heading)                                                                \
    {.name = "trace",                                                                              \
     .type = KELP_OPTION_TEXT,                                                                     \
     .placeholder = "FILE",                                                                        \
     .group = (heading),                                                                           \
     .help = "trace some training steps of this process to FILE; kelp train --trace joins such "   \
             "files"},                                                                             \
    {                                                                                              \
        .name = "trace-steps", .type = KELP_OPTION_INTEGER,                                        \
        .default_text = KELP_TRACE_STEPS_DEFAULT, .min = 1, .max = KELP_TRACE_STEPS_MAX,           \
        .group = (heading), .help = "how many steps --trace covers"                                \
    }

/* *ret_trace is owned (kelp_trace_close()); NULL: none is asked for. On a mistake: one line to
 * standard error and false. */
bool kelp_trace_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                             struct kelp_trace **ret_trace);

#endif
