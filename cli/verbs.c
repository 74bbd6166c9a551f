#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

#include "common/program/version.h"

#define VERBS_MAX 32

const struct kelp_verb *const kelp_verbs[] = {
    &kelp_verb_train,      &kelp_verb_status,   &kelp_verb_ls,
    &kelp_verb_checkpoint, &kelp_verb_digest,   &kelp_verb_export,
    &kelp_verb_predict,    &kelp_verb_evaluate, &kelp_verb_plot,
    &kelp_verb_verify,     &kelp_verb_diff,     &kelp_verb_chaos,
    &kelp_verb_model,      &kelp_verb_data,     NULL,
};

const struct kelp_program kelp_command_program = {
    .name = "kelp",
    .summary = "trains models on a cluster whose processes may join, leave or fail at any time",
    .examples = "  kelp train examples/etth1-dlinear.yaml\n"
                "  kelp status\n",
};

const char kelp_command_exit_statuses[] =
    "0 done, stopped in order, or no difference, 1 failed while running,\n"
    "or a difference, 2 bad option, job or data, 3 no cluster reached in time, 4 the\n"
    "job has failed, 130 ended by Ctrl-C.\n";

static void print_help(FILE *out)
{
    (void)fprintf(out, "Usage: kelp VERB [options]\n\nkelp: %s.\n", kelp_command_program.summary);
    (void)fputs("The result has the same bits whatever happens.\n\nVerbs:\n", out);
    for (size_t i = 0; kelp_verbs[i]; i++) {
        (void)fprintf(out, "  %-10s %s\n", kelp_verbs[i]->name, kelp_verbs[i]->summary);
    }
    (void)fputs("\nOptions:\n"
                "  -h, --help     print this help; `kelp VERB --help` tells all about a verb\n"
                "      --version  print version, commit and libraries\n",
                out);
    (void)fprintf(out, "\nExit status: %s\nExamples:\n%s", kelp_command_exit_statuses,
                  kelp_command_program.examples);
}

static int unknown_verb(const char *typed)
{
    const char *names[VERBS_MAX];
    size_t count = 0;

    for (; kelp_verbs[count] && count < VERBS_MAX; count++) {
        names[count] = kelp_verbs[count]->name;
    }
    const char *nearest = kelp_options_nearest(typed, names, count);
    if (nearest) {
        return kelp_complain(KELP_EXIT_USAGE, "'%s' is no verb of kelp; did you mean '%s'?", typed,
                             nearest);
    }
    return kelp_complain(KELP_EXIT_USAGE, "'%s' is no verb of kelp; see kelp --help", typed);
}

int kelp_command(int argc, char **argv)
{
    if (argc < 2) {
        return kelp_complain(KELP_EXIT_USAGE, "a verb is missing; see kelp --help");
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout);
        return KELP_EXIT_OK;
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
