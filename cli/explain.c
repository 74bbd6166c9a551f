#include <stdlib.h>

#include "cli/verbs.h"
#include "common/job/job.h"

static const struct kelp_option options[] = {
    KELP_VERB_OUTPUT("lines for people, or a JSON array"),
};

static const struct kelp_program program = {
    .name = "kelp explain",
    .summary = "explains a key of job files: its values, its default, what it does",
    .positional = "[KEY|SECTION]",
    .positional_max = 1,
    .examples = "  kelp explain\n"
                "  kelp explain train.lr\n"
                "  kelp explain checkpoint\n",
    KELP_VERB_OPTIONS(options),
};

static int explain(const struct kelp_options *given)
{
    const char *name = kelp_verb_typed(given);
    struct kelp_error error;
    char *text = NULL;

    kelp_status status = kelp_job_explain(name, kelp_verb_json(given), &text, &error);
    if (status == KELP_ERR_INVALID) {
        return kelp_complain(KELP_EXIT_USAGE, "%s: %s", name, error.text);
    }
    return kelp_verb_print(status, text, &error);
}

const struct kelp_verb kelp_verb_explain = {
    "explain", "explain a key of job files, or list all keys", &program, explain, NULL};
