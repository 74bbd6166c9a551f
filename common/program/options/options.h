/*
 * Command lines. One table for each program (or `kelp` subcommand) holds each option's name, type,
 * unit, default, range and help; the parser, the environment lookup and --help come from it.
 *
 * Precedence: command line, then KELP_<OPTION_IN_UPPER_CASE> (dashes as underscores; an empty
 * variable counts as unset), then the default. `--option value` and `--option=value` mean the same;
 * `--` ends the options. Every program has --help (-h) and --version without listing them.
 *
 *     static const struct kelp_option options[] = {
 *         {.name = "listen", .type = KELP_OPTION_TEXT, .placeholder = "HOST:PORT",
 *          .default_text = "127.0.0.1:0", .help = "address to serve at; port 0 takes a free one"},
 *     };
 *     static const struct kelp_program program = {
 *         .name = "kelp-ps", .summary = "hosts partitions of a job's weights",
 *         .options = options, .option_count = KELP_ARRAY_COUNT(options)};
 *
 *     int main(int argc, char **argv)
 *     {
 *         struct kelp_options *options;
 *         int exit_code;
 *         if (!kelp_options_read(&program, argc, argv, &options, &exit_code)) {
 *             return exit_code;
 *         }
 *         const char *listen = kelp_options_text(options, "listen");
 */
#ifndef KELP_COMMON_PROGRAM_OPTIONS_OPTIONS_H
#define KELP_COMMON_PROGRAM_OPTIONS_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/base/value.h"

#define KELP_EXIT_OK          0  /* done, or stopped cleanly */
#define KELP_EXIT_FAILED      1  /* failed while running, or a difference was found */
#define KELP_EXIT_USAGE       2  /* bad flag, environment, job file or input data */
#define KELP_EXIT_UNREACHABLE 3  /* the cluster could not be reached in time */
#define KELP_EXIT_JOB_FAILED  4  /* the job itself has failed */
#define KELP_EXIT_DEVICE      5  /* a worker's GPU has failed, or has no memory left */
#define KELP_EXIT_PAUSED      75 /* the job was paused: the same command continues it */

enum kelp_option_type {
    KELP_OPTION_FLAG,     /* no value on the command line; true or false in the environment */
    KELP_OPTION_TEXT,     /* at most 4095 bytes */
    KELP_OPTION_INTEGER,  /* min to max */
    KELP_OPTION_DURATION, /* milliseconds; min to max */
    KELP_OPTION_RANGE,    /* MIN:MAX or N, within min to max */
    KELP_OPTION_CHOICE,   /* one of choices */
};

struct kelp_option {
    const char *name; /* without dashes */
    char letter;      /* short form, or 0 */
    enum kelp_option_type type;
    const char *placeholder;    /* the value's name in --help; NULL: chosen by the type */
    const char *default_text;   /* NULL: none */
    uint64_t min, max;          /* max 0: no upper bound */
    const char *const *choices; /* ends with NULL */
    bool required;              /* must come from the command line or the environment */
    bool repeatable;            /* TEXT only: may be given many times; has no variable */
    bool no_environment;        /* has no variable */
    const char *group;          /* heading in --help; NULL: "Options" */
    const char *help;           /* one phrase */
};

struct kelp_program {
    const char *name;       /* "kelp train" */
    const char *summary;    /* one sentence for --help, without a full stop */
    const char *positional; /* as printed in the usage line: "JOB.yaml"; NULL: takes none */
    uint32_t positional_min;
    uint32_t positional_max;
    bool positional_ends; /* the first positional argument ends the options */
    const char *examples; /* lines for --help, each ending with a line break; NULL: none */
    const struct kelp_option *options;
    size_t option_count;
};

struct kelp_options;

/*
 * Handle the command line in main(): parse it; print --help or --version to stdout; on a mistake
 * print one line to stderr. argv[0] is skipped. Returns true with *ret_options set (owned,
 * kelp_options_destroy()), or false with *ret_exit_code set.
 */
bool kelp_options_read(const struct kelp_program *program, int argc, char **argv,
                       struct kelp_options **ret_options, int *ret_exit_code) KELP_MUST_USE;

enum kelp_options_wish { KELP_WISH_RUN, KELP_WISH_HELP, KELP_WISH_VERSION };

/* Only parse. *ret_options is set if *ret_wish is KELP_WISH_RUN. Its texts are borrowed from argv
 * and the environment, which must not change. Errors: KELP_ERR_INVALID, KELP_ERR_LIMIT,
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_options_parse(const struct kelp_program *program, int argc, char **argv,
                               enum kelp_options_wish *ret_wish, struct kelp_options **ret_options,
                               struct kelp_error *reterr) KELP_MUST_USE;
void kelp_options_destroy(struct kelp_options *options);

/* Print the text of --help. */
void kelp_options_help(const struct kelp_program *program, FILE *out);

/* ---- texts about an option, for --help and the man pages ---- */

#define KELP_OPTION_VALUE_MAX    127
#define KELP_OPTION_NOTES_MAX    319
#define KELP_OPTION_VARIABLE_MAX 71

/* The heading of the option's group. */
const char *kelp_option_group(const struct kelp_option *option);
/* Whether the option is the program's first one in its group. */
bool kelp_option_first_of_group(const struct kelp_program *program, size_t index);
/* The placeholder of the value: "N", "text|json"; empty for a flag. */
void kelp_option_value(const struct kelp_option *option, char text[KELP_OPTION_VALUE_MAX + 1]);
/* The notes that apply, of "1 to 64; required; may be repeated; default 2"; empty if none does. */
void kelp_option_notes(const struct kelp_option *option, char text[KELP_OPTION_NOTES_MAX + 1]);
/* The environment variable: "KELP_LOG_LEVEL"; empty if the option has none. */
void kelp_option_variable(const struct kelp_option *option,
                          char text[KELP_OPTION_VARIABLE_MAX + 1]);

/* The one of `count` names that is most similar to `typed`, or NULL if none is similar. */
const char *kelp_options_nearest(const char *typed, const char *const *names, size_t count);

/*
 * The values. Asking for an option that the program does not have, or with another type, fails an
 * assertion. An option with neither a value nor a default is NULL, 0 or false.
 */
/* Whether the value comes from the command line or the environment. */
bool kelp_options_given(const struct kelp_options *options, const char *name);
bool kelp_options_flag(const struct kelp_options *options, const char *name);
const char *kelp_options_text(const struct kelp_options *options, const char *name);
uint64_t kelp_options_integer(const struct kelp_options *options, const char *name);
uint64_t kelp_options_duration_ms(const struct kelp_options *options, const char *name);
struct kelp_range kelp_options_range(const struct kelp_options *options, const char *name);
/* The index of the chosen value among the option's choices. */
uint32_t kelp_options_choice(const struct kelp_options *options, const char *name);

/* The values of a repeatable option, in the order in which they were given. */
size_t kelp_options_repeat_count(const struct kelp_options *options, const char *name);
const char *kelp_options_repeat(const struct kelp_options *options, const char *name, size_t index);

size_t kelp_options_positional_count(const struct kelp_options *options);
const char *kelp_options_positional(const struct kelp_options *options, size_t index);

#endif
