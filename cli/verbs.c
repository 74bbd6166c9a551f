#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

#include "common/program/options/version.h"

#define VERBS_MAX 32

const struct kelp_verb *const kelp_verbs[] = {
    &kelp_verb_train,    &kelp_verb_run_script, &kelp_verb_scale,   &kelp_verb_drain,
    &kelp_verb_stop,     &kelp_verb_chaos,      &kelp_verb_status,  &kelp_verb_ls,
    &kelp_verb_logs,     &kelp_verb_events,     &kelp_verb_metrics, &kelp_verb_plot,
    &kelp_verb_diff,     &kelp_verb_verify,     &kelp_verb_doctor,  &kelp_verb_checkpoint,
    &kelp_verb_digest,   &kelp_verb_gc,         &kelp_verb_free,    &kelp_verb_predict,
    &kelp_verb_evaluate, &kelp_verb_export,     &kelp_verb_init,    &kelp_verb_model,
    &kelp_verb_data,     &kelp_verb_explain,    &kelp_verb_bench,   &kelp_verb_submit,
    &kelp_verb_node,     &kelp_verb_wait,       &kelp_verb_certs,   NULL,
};

/* Where a heading stands in the list: before this verb. */
static const struct {
    const struct kelp_verb *before;
    const char *title;
} headings[] = {{&kelp_verb_train, "Run a job"},       {&kelp_verb_status, "Look at runs"},
                {&kelp_verb_verify, "Check and keep"}, {&kelp_verb_predict, "Use a model"},
                {&kelp_verb_init, "Before a run"},     {&kelp_verb_submit, "On a cluster"}};

const struct kelp_program kelp_command_program = {
    .name = "kelp",
    .summary = "trains models on a cluster whose processes may join, leave or fail at any time",
    .examples = "  kelp train examples/etth1-dlinear.yaml\n"
                "  kelp status\n",
};

const char kelp_command_exit_statuses[] =
    "0 done, or no difference, 1 failed while running, or a difference,\n"
    "2 bad option, job or data, 3 no cluster reached in time, 4 the job has failed,\n"
    "75 paused on a cluster, 129, 130, 143 paused or stopped by SIGHUP, Ctrl-C, SIGTERM.\n";

static void print_help(FILE *out)
{
    (void)fprintf(out, "Usage: kelp VERB [options]\n\nkelp: %s.\n", kelp_command_program.summary);
    (void)fputs("The result has the same bits whatever happens.\n\nVerbs:\n", out);
    for (size_t i = 0; kelp_verbs[i]; i++) {
        for (size_t h = 0; h < KELP_ARRAY_COUNT(headings); h++) {
            if (headings[h].before == kelp_verbs[i]) {
                (void)fprintf(out, " %s\n", headings[h].title);
            }
        }
        (void)fprintf(out, "  %-10s %s\n", kelp_verbs[i]->name, kelp_verbs[i]->summary);
    }
    (void)fputs("\nOptions:\n"
                "  -h, --help     print this help; `kelp help VERB` describes a verb\n"
                "      --version  print version, commit and libraries\n",
                out);
    (void)fprintf(out, "\nExit status: %s\nExamples:\n%s", kelp_command_exit_statuses,
                  kelp_command_program.examples);
}

/* What other programs call it. */
static const char *other_name(const char *typed)
{
    static const char *const names[][2] = {
        {"run", "train"},      {"fit", "train"},
        {"start", "train"},    {"resume", "train --resume"},
        {"eval", "evaluate"},  {"test", "evaluate"},
        {"infer", "predict"},  {"forecast", "predict"},
        {"config", "explain"}, {"describe", "explain"},
        {"compare", "diff"},   {"replay", "verify --replay"},
        {"list", "ls"},        {"runs", "ls"},
        {"kill", "stop"},      {"pause", "stop"},
        {"log", "logs"},       {"tail", "logs -f"},
        {"history", "events"}, {"watch", "status --watch"},
    };

    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        if (strcmp(typed, names[i][0]) == 0) {
            return names[i][1];
        }
    }
    return NULL;
}

static bool ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), end_bytes = strlen(end);

    return bytes >= end_bytes && strcmp(text + bytes - end_bytes, end) == 0;
}

static int unknown_verb(const char *typed)
{
    const char *names[VERBS_MAX + 1] = {NULL};

    for (size_t i = 0; kelp_verbs[i] && i < VERBS_MAX; i++) {
        names[i] = kelp_verbs[i]->name;
    }
    if (ends_with(typed, ".yaml") || ends_with(typed, ".yml")) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "'%.255s' is not a verb of kelp; did you mean 'kelp train %.255s'?",
                             typed, typed);
    }
    const char *meant = other_name(typed);
    meant = meant ? meant : kelp_value_nearest(typed, names);
    if (meant) {
        return kelp_complain(KELP_EXIT_USAGE, "'%s' is not a verb of kelp; did you mean '%s'?",
                             typed, meant);
    }
    return kelp_complain(KELP_EXIT_USAGE, "'%s' is not a verb of kelp; kelp --help lists them",
                         typed);
}

/* `kelp help VERB [VERB]`. */
static int help(int argc, char **argv)
{
    const struct kelp_verb *const *verbs = kelp_verbs;
    const struct kelp_verb *verb = NULL;

    for (int i = 0; i < argc; i++) {
        const struct kelp_verb *below = verbs ? kelp_verb_find(verbs, argv[i]) : NULL;
        if (!below && !verb) {
            return unknown_verb(argv[i]);
        }
        if (!below && (i + 1 < argc || verbs)) {
            return kelp_complain(KELP_EXIT_USAGE, "'%s' is not a verb of %s; see kelp help %s",
                                 argv[i], verb->program->name, verb->name);
        }
        if (!below) {
            break; /* `kelp help model show`: its words are in the usage line */
        }
        verb = below;
        verbs = below->verbs;
    }
    if (verb) {
        kelp_options_help(verb->program, stdout);
    } else {
        print_help(stdout);
    }
    return KELP_EXIT_OK;
}

int kelp_command(int argc, char **argv)
{
    if (argc < 2) {
        return kelp_complain(
            KELP_EXIT_USAGE,
            "a verb is missing, such as kelp train JOB.yaml; kelp --help lists them");
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        return help(0, NULL);
    }
    if (strcmp(word, "help") == 0) {
        return help(argc - 2, argv + 2);
    }
    if (strcmp(word, "--version") == 0) {
        kelp_version_print("kelp", stdout);
        return KELP_EXIT_OK;
    }
    const struct kelp_verb *verb = kelp_verb_find(kelp_verbs, word);
    if (verb) {
        return kelp_verb_run(verb, argc - 1, argv + 1);
    }
    if (word[0] == '-') {
        return kelp_complain(KELP_EXIT_USAGE, "option '%s' comes before the verb; see kelp --help",
                             word);
    }
    return unknown_verb(word);
}
