#include "common/program/options/trace_option.h"

#include <stdio.h>

bool kelp_trace_option_begin(const struct kelp_program *program, const struct kelp_options *options,
                             struct kelp_trace **ret_trace)
{
    const struct kelp_trace_options trace = {
        .path = kelp_options_text(options, "trace"),
        .process = kelp_options_text(options, "id"),
        .steps = (uint32_t)kelp_options_integer(options, "trace-steps")};
    struct kelp_error error;

    *ret_trace = NULL;
    if (trace.path && kelp_trace_open(&trace, ret_trace, &error) != KELP_OK) {
        (void)fprintf(stderr, "%s: %s\n", program->name, error.text);
        return false;
    }
    return true;
}
