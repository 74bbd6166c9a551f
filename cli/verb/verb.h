/*
 * What every verb of `kelp` shares: the shape of a verb, the options that many have, how one prints
 * and how one complains.
 */
#ifndef KELP_CLI_VERB_VERB_H
#define KELP_CLI_VERB_VERB_H

#include "common/base/status.h"
#include "common/log/log.h"
#include "common/program/options/options.h"

struct kelp_verb {
    const char *name;
    const char *summary; /* one phrase for `kelp --help` */
    const struct kelp_program *program;
    int (*work)(const struct kelp_options *given); /* returns the exit status of the command */
    const struct kelp_verb *const *verbs;          /* `kelp NAME VERB`, ends with NULL; or NULL */
};

/* The verb of that name in a table that ends with NULL; or NULL. */
const struct kelp_verb *kelp_verb_find(const struct kelp_verb *const *verbs, const char *name);

/* Parse and work; argv[0] is the verb. Returns the exit status (common/program/options/options.h).
 */
int kelp_verb_run(const struct kelp_verb *verb, int argc, char **argv);

/* "kelp: TEXT" to standard error; returns exit_status, so that failing is one line. */
int kelp_complain(int exit_status, const char *format, ...) KELP_PRINTF(2, 3);

/* The first word that is no option, or NULL. */
const char *kelp_verb_typed(const struct kelp_options *given);

/* Print a text and free it, or complain of the error that came instead; returns the exit status. */
int kelp_verb_print(kelp_status status, char *text, const struct kelp_error *error);

/* Of a verb that could not do what was asked because of that: most that goes wrong before anything
 * is done is a mistake of the caller. */
int kelp_verb_exit_status(kelp_status status);

/* ---- options that many verbs have ---- */

/* In a struct kelp_program: its table of options. */
#define KELP_VERB_OPTIONS(table) .options = (table), .option_count = KELP_ARRAY_COUNT(table)

extern const char *const kelp_verb_outputs[]; /* of OUTPUT: text, json */

/* Is -o json given? */
bool kelp_verb_json(const struct kelp_options *given);

#define KELP_VERB_OUTPUT(text)                                                                     \
    {                                                                                              \
        .name = "output", .letter = 'o', .type = KELP_OPTION_CHOICE, .choices = kelp_verb_outputs, \
        .default_text = "text", .help = (text)                                                     \
    }
#define KELP_VERB_FLAG(option, heading, text)                                                      \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_FLAG, .group = (heading), .help = (text)             \
    }
#define KELP_VERB_TEXT(option, hint, heading, text)                                                \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_TEXT, .placeholder = (hint), .group = (heading),     \
        .help = (text)                                                                             \
    }
#define KELP_VERB_TEXTS(option, hint, heading, text)                                               \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_TEXT, .placeholder = (hint), .repeatable = true,     \
        .group = (heading), .help = (text)                                                         \
    }
#define KELP_VERB_REQUIRED(option, hint, text)                                                     \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_TEXT, .placeholder = (hint), .required = true,       \
        .help = (text)                                                                             \
    }
/* INTEGER, DURATION, RANGE: within least and most; otherwise: the default text, or NULL. */
#define KELP_VERB_NUMBER(option, kind, least, most, otherwise, heading, text)                      \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_##kind, .min = (least), .max = (most),               \
        .default_text = (otherwise), .group = (heading), .help = (text)                            \
    }

#define KELP_VERB_SHARDS(heading, text)                                                            \
    KELP_VERB_NUMBER("shards", INTEGER, 1, 1024, NULL, heading, text)
#define KELP_VERB_COORDINATORS(heading, number, text)                                              \
    KELP_VERB_NUMBER("coordinators", INTEGER, 1, 16, number, heading, text)
#define KELP_VERB_SET(heading, text)   KELP_VERB_TEXTS("set", "KEY=VALUE", heading, text)
#define KELP_VERB_RUN(heading, text)   KELP_VERB_TEXT("run", "DIR", heading, text)
#define KELP_VERB_ETCD(heading, text)  KELP_VERB_TEXT("etcd", "URL", heading, text)
#define KELP_VERB_CERTS(heading, text) KELP_VERB_TEXT("certs", "FOLDER", heading, text)
/* Of what starts a job's processes; KELP_CERTS is for one process alone. */
#define KELP_VERB_JOB_CERTS(heading, text)                                                         \
    {                                                                                              \
        .name = "certs", .type = KELP_OPTION_TEXT, .placeholder = "FOLDER",                        \
        .no_environment = true, .group = (heading), .help = (text)                                 \
    }
#define KELP_VERB_ETCD_PROGRAM(heading)                                                            \
    KELP_VERB_TEXT("etcd-program", "FILE", heading, "the etcd to start (default: the one on PATH)")
#define KELP_VERB_FAULT(text) KELP_VERB_TEXTS("fault", "ID:FAULT", "Testing", text)
#define KELP_VERB_LOG_LEVEL(heading, text)                                                         \
    {                                                                                              \
        .name = "log-level", .type = KELP_OPTION_CHOICE, .choices = kelp_log_level_names,          \
        .default_text = "info", .group = (heading), .help = (text)                                 \
    }

#endif
