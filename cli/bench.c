#include "cli/bench/bench_verbs.h"
#include "cli/verbs.h"
#include "common/base/value.h"

#define VERBS_MAX 8

static const struct kelp_program program = {
    .name = "kelp bench",
    .summary = "measures Kelp on this machine, and the machine's own limits",
    .positional = "pushpull|optimizer|steps|scale|worker|crowd",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp bench pushpull\n"
                "  kelp bench pushpull|optimizer|steps|scale|worker|crowd --help\n",
};

/* Only what is none of the verbs comes here. */
static int refuse(const struct kelp_options *given)
{
    const char *names[VERBS_MAX + 1] = {NULL};
    const char *typed = kelp_options_positional(given, 0);

    for (size_t i = 0; kelp_bench_verbs[i] && i < VERBS_MAX; i++) {
        names[i] = kelp_bench_verbs[i]->name;
    }
    const char *near = kelp_value_nearest(typed, names);
    return near ? kelp_complain(KELP_EXIT_USAGE,
                                "'%s' is not a verb of kelp bench; did you mean '%s'?", typed, near)
                : kelp_complain(
                      KELP_EXIT_USAGE,
                      "'%s' is not a verb of kelp bench; its verbs are pushpull, optimizer, steps "
                      "and scale",
                      typed);
}

const struct kelp_verb kelp_verb_bench = {"bench",
                                          "measure Kelp here: pushpull, optimizer, steps, scale",
                                          &program, refuse, kelp_bench_verbs};
