#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

#include "common/program/options.h"

#define VERBS_MAX 32

const struct kelp_verb kelp_verbs[] = {
    {"train", "run a job: a whole cluster on this machine, from start to end", kelp_verb_train},
    {"status", "show a run: live while it runs, its result afterwards", kelp_verb_status},
    {"checkpoint", "ask for a checkpoint; ls, show, verify, export, import, rm",
     kelp_verb_checkpoint},
    {"digest", "print the digest of a run's model or of a safetensors file", kelp_verb_digest},
    {"export", "write a run's weights as safetensors with PyTorch's names", kelp_verb_export},
    {"predict", "write the model's output for each sample as CSV or NPY", kelp_verb_predict},
    {"evaluate", "measure a run's weights on its validation and test split", kelp_verb_evaluate},
    {"plot", "draw a run's curves and forecasts as SVG and PNG", kelp_verb_plot},
    {"verify", "check a run's checkpoints, and its steps by computing again", kelp_verb_verify},
    {"diff", "say where two runs part: step, tensor, job keys", kelp_verb_diff},
    {"chaos", "run a job, kill and stop its processes, compare the digest", kelp_verb_chaos},
    {"model", "show a job's model: layers, shapes, parameters, memory", kelp_verb_model},
    {"data", "generate the built-in data set as CSV", kelp_verb_data},
    {NULL, NULL, NULL},
};

static void print_help(FILE *out)
{
    (void)fputs("Usage: kelp VERB [options]\n\n"
                "kelp: trains models on a cluster whose processes may join, leave or fail at any "
                "time.\nThe result has the same bits whatever happens.\n\nVerbs:\n",
                out);
    for (const struct kelp_verb *verb = kelp_verbs; verb->name; verb++) {
        (void)fprintf(out, "  %-10s %s\n", verb->name, verb->summary);
    }
    (void)fputs(
        "\nOptions:\n"
        "  -h, --help     print this help; `kelp VERB --help` tells all about a verb\n"
        "      --version  print the version\n"
        "\nExit status: 0 done, stopped in order, or no difference, 1 failed while running,\n"
        "or a difference, 2 bad option, job or data, 3 no cluster reached in time, 4 the\n"
        "job has failed, 130 ended by Ctrl-C.\n"
        "\nExamples:\n"
        "  kelp train examples/etth1-dlinear.yaml\n"
        "  kelp status\n",
        out);
}

static int unknown_verb(const char *typed)
{
    const char *names[VERBS_MAX];
    size_t count = 0;

    for (const struct kelp_verb *verb = kelp_verbs; verb->name && count < VERBS_MAX; verb++) {
        names[count++] = verb->name;
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
        (void)printf("kelp %s\n", KELP_VERSION);
        return KELP_EXIT_OK;
    }
    for (const struct kelp_verb *verb = kelp_verbs; verb->name; verb++) {
        if (strcmp(verb->name, word) == 0) {
            return verb->run(argc - 1, argv + 1);
        }
    }
    if (word[0] == '-') {
        return kelp_complain(KELP_EXIT_USAGE, "option '%s' comes before the verb; see kelp --help",
                             word);
    }
    return unknown_verb(word);
}
