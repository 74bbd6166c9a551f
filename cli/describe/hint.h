/*
 * What a shell may offer for a value: read from its placeholder, such as RUN|JOB.yaml. Written as
 * words: run (a run's folder), yaml, file, folder, set (KEY=VALUE), key, verb, checkpoint (a name
 * in the run), =WORD (the word itself), none (nothing that could be offered).
 */
#ifndef KELP_CLI_DESCRIBE_HINT_H
#define KELP_CLI_DESCRIBE_HINT_H

#include "common/program/options/options.h"

#define KELP_HINT_MAX 255

/* Of an option's value; empty for a flag. */
void kelp_hint_option(const struct kelp_option *option, char hint[KELP_HINT_MAX + 1]);

/* One word of struct kelp_program's positional text. */
struct kelp_hint_position {
    char hint[KELP_HINT_MAX + 1];
    bool repeats; /* "NAME..." */
};

/* The next word of *text, at first program->positional, which moves on; false at its end. */
bool kelp_hint_positional(const struct kelp_program *program, const char **text,
                          struct kelp_hint_position *ret_position);

#endif
