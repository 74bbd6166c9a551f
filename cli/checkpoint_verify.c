/* `kelp checkpoint verify`. */
#include <stdio.h>

#include "cli/checkpoint_verbs.h"
#include "cli/verbs.h"

static const struct kelp_option options[] = {
    KELP_CHECKPOINT_OPTION_RUN,
    KELP_CHECKPOINT_OPTION_OUTPUT,
};

static const struct kelp_program program = {
    .name = "kelp checkpoint verify",
    .summary = "checks every part of checkpoints (all, or those named)",
    .positional = "[NAME...]",
    .positional_max = 1000,
    .examples = "  kelp checkpoint verify\n"
                "  kelp checkpoint verify step-1500.g2 --run runs/etth1 -o json\n",
    .options = options,
    .option_count = KELP_ARRAY_COUNT(options),
};

static int verify_one(struct kelp_checkpoint_check *check, const struct kelp_checkpoint *checkpoint)
{
    struct kelp_error error;

    if (kelp_checkpoint_check(check, checkpoint, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    return KELP_EXIT_OK;
}

static int verify_all(struct kelp_checkpoint_check *check, const struct kelp_options *given,
                      const struct kelp_checkpoints *list)
{
    size_t named = kelp_options_positional_count(given);
    int exit_status = KELP_EXIT_OK;

    for (size_t i = 0; exit_status == KELP_EXIT_OK && i < (named > 0 ? named : list->count); i++) {
        const struct kelp_checkpoint *checkpoint = &list->items[i];
        if (named > 0) {
            checkpoint =
                kelp_checkpoint_named(list, kelp_options_positional(given, i), &exit_status);
        }
        if (exit_status == KELP_EXIT_OK) {
            exit_status = verify_one(check, checkpoint);
        }
    }
    return exit_status;
}

static int verify(const struct kelp_options *given)
{
    struct kelp_checkpoint_check check = {.output = kelp_options_choice(given, "output")};
    struct kelp_checkpoints list;
    char run_path[KELP_RUN_PATH_MAX + 1];
    int exit_status = KELP_EXIT_OK;

    if (!kelp_checkpoint_choose(given, run_path, &list, &exit_status)) {
        return exit_status;
    }
    if (check.output == KELP_CHECKPOINT_JSON) {
        (void)printf("{\"faults\":[");
    } else if (list.count == 0) {
        (void)printf("the run has no checkpoint\n");
    }
    exit_status = verify_all(&check, given, &list);
    if (check.output == KELP_CHECKPOINT_JSON) {
        (void)printf("],\"checked\":%u,\"damaged\":%u}\n", check.checked, check.damaged);
    }
    kelp_checkpoints_fini(&list);
    return exit_status == KELP_EXIT_OK && check.damaged > 0 ? KELP_EXIT_FAILED : exit_status;
}

int kelp_checkpoint_verb_verify(int argc, char **argv)
{
    struct kelp_options *given = NULL;
    int exit_status = KELP_EXIT_OK;

    if (kelp_options_read(&program, argc, argv, &given, &exit_status)) {
        exit_status = verify(given);
        kelp_options_destroy(given);
    }
    return exit_status;
}
