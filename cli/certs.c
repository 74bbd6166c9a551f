#include "cli/certs/certs_verbs.h"
#include "cli/verbs.h"
#include "common/base/value.h"

#define VERBS_MAX 8

static const struct kelp_program program = {
    .name = "kelp certs",
    .summary = "makes the certificates by which a cluster's processes trust each other",
    .positional = "init|issue|show|users",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp certs init\n"
                "  kelp certs issue worker --job etth1\n"
                "  kelp certs init|issue|show|users --help\n",
};

/* Only what is none of the verbs comes here. */
static int refuse(const struct kelp_options *given)
{
    const char *names[VERBS_MAX + 1] = {NULL};
    const char *typed = kelp_options_positional(given, 0);

    for (size_t i = 0; kelp_certs_verbs[i] && i < VERBS_MAX; i++) {
        names[i] = kelp_certs_verbs[i]->name;
    }
    const char *near = kelp_value_nearest(typed, names);
    return near ? kelp_complain(KELP_EXIT_USAGE,
                                "'%s' is not a verb of kelp certs; did you mean '%s'?", typed, near)
                : kelp_complain(KELP_EXIT_USAGE,
                                "'%s' is not a verb of kelp certs; its verbs are init, issue, show "
                                "and users",
                                typed);
}

const struct kelp_verb kelp_verb_certs = {"certs", "make certificates: init, issue, show, users",
                                          &program, refuse, kelp_certs_verbs};
