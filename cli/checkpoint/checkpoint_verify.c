/* `kelp checkpoint verify`. */
#include <stdio.h>

#include "cli/checkpoint/checkpoint_verbs.h"

static const struct kelp_option options[] = {
    KELP_CHECKPOINT_OPTION_RUN,
    KELP_CHECKPOINT_OPTION_OUTPUT,
};

static const struct kelp_program program = {
    .name = "kelp checkpoint verify",
    .summary = "checks every part of checkpoints (all, or those named)",
    .positional = "[NAME|FOLDER]...",
    .positional_max = 1000,
    .examples = "  kelp checkpoint verify\n"
                "  kelp checkpoint verify step-1500.g2 --run runs/etth1 -o json\n"
                "  kelp checkpoint verify backup/step-1500.g2\n",
    KELP_VERB_OPTIONS(options),
};

static int verify_one(struct kelp_checkpoint_check *check, const struct kelp_checkpoint *checkpoint)
{
    struct kelp_error error;

    if (kelp_checkpoint_check(check, checkpoint, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    return KELP_EXIT_OK;
}

static int verify_named(struct kelp_checkpoint_check *check, const struct kelp_options *given,
                        struct kelp_checkpoint_source *source)
{
    int exit_status = KELP_EXIT_OK;

    for (size_t i = 0; exit_status == KELP_EXIT_OK && i < kelp_options_positional_count(given);
         i++) {
        const struct kelp_checkpoint *checkpoint =
            kelp_checkpoint_find(source, given, kelp_options_positional(given, i), &exit_status);
        if (checkpoint) {
            exit_status = verify_one(check, checkpoint);
        }
    }
    return exit_status;
}

static int verify_all(struct kelp_checkpoint_check *check, const struct kelp_options *given,
                      struct kelp_checkpoint_source *source)
{
    int exit_status = KELP_EXIT_OK;

    if (!kelp_checkpoint_source_list(source, given, &exit_status)) {
        return exit_status;
    }
    if (!check->json && source->list.count == 0) {
        (void)printf("the run has no checkpoint\n");
    }
    for (size_t i = 0; exit_status == KELP_EXIT_OK && i < source->list.count; i++) {
        exit_status = verify_one(check, &source->list.items[i]);
    }
    return exit_status;
}

static int verify(const struct kelp_options *given)
{
    struct kelp_checkpoint_check check = {.json = kelp_verb_json(given)};
    struct kelp_checkpoint_source source = {.listed = false};
    bool named = kelp_options_positional_count(given) > 0;

    if (check.json) {
        (void)printf("{\"faults\":[");
    }
    int exit_status =
        named ? verify_named(&check, given, &source) : verify_all(&check, given, &source);
    if (check.json) {
        (void)printf("],\"checked\":%u,\"damaged\":%u}\n", check.checked, check.damaged);
    }
    kelp_checkpoint_source_fini(&source);
    return exit_status == KELP_EXIT_OK && check.damaged > 0 ? KELP_EXIT_FAILED : exit_status;
}

const struct kelp_verb kelp_checkpoint_verb_verify = {
    "verify", "check every part against its digest", &program, verify, NULL};
