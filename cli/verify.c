/* `kelp verify`. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/cluster/run_client.h"
#include "cli/replay/recompute.h"
#include "cli/run/plugin_consent.h"
#include "cli/verbs.h"
#include "common/base/json.h"

static const struct kelp_option options[] = {
    KELP_VERB_FLAG(
        "replay", NULL,
        "recompute from the second newest checkpoint (or version 0) to the end of the record, and "
        "compare digests and state; in a failed run, find the lane and the tensor"),
    KELP_VERB_ALLOW_PLUGIN,
    KELP_VERB_NUMBER("steps", INTEGER, 1, 0, NULL, NULL,
                     "with --replay: compute at most N training steps"),
    KELP_VERB_OUTPUT("lines for people, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp verify",
    .summary = "checks a run's checkpoints and, with --replay, its steps",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp verify\n"
                "  kelp verify runs/etth1-dlinear-20260131-120000 --replay --steps 1000\n",
    KELP_VERB_OPTIONS(options),
};

struct verify {
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_checkpoints list;
    struct kelp_checkpoint_check check;
    const struct kelp_checkpoint *newest; /* good ones; NULL: none */
    const struct kelp_checkpoint *before;
    uint32_t stretches; /* told of */
};

/* Check them all; those that are good are what a replay goes by. */
static kelp_status check_all(struct verify *verify, struct kelp_error *reterr)
{
    for (size_t i = 0; i < verify->list.count; i++) {
        const struct kelp_checkpoint *checkpoint = &verify->list.items[i];
        uint32_t damaged = verify->check.damaged;
        uint32_t checked = verify->check.checked;
        kelp_status status = kelp_checkpoint_check(&verify->check, checkpoint, reterr);
        if (status != KELP_OK) {
            return status;
        }
        bool good = verify->check.damaged == damaged && verify->check.checked > checked;
        if (good &&
            (!verify->newest || checkpoint->manifest.version > verify->newest->manifest.version)) {
            verify->before = verify->newest;
            verify->newest = checkpoint;
        }
    }
    return KELP_OK;
}

static const char *name_of(const struct kelp_checkpoint *checkpoint, const char *otherwise)
{
    return checkpoint ? checkpoint->name : otherwise;
}

/* What came of one stretch: up to the newest checkpoint, or behind it. */
static void stretch_text(const struct kelp_recompute *what, const struct kelp_recomputed *result)
{
    (void)printf("replay: %s from %s: %" PRIu64 " steps to step %" PRIu64
                 ", %u digests on record%s\n",
                 result->equal ? "the same" : "DIFFERENT", name_of(what->from, "version 0"),
                 result->steps, result->step, result->digests,
                 result->whole && what->to ? ", state of the newest checkpoint" : "");
    if (result->text[0]) {
        (void)printf("replay: %s\n", result->text);
    } else if (!result->whole) {
        (void)printf("replay: stopped there by --steps\n");
    }
    if (result->compute[0]) {
        (void)printf("replay: computed on another kind of machine: %s\n", result->compute);
    }
}

static void stretch_json(const struct kelp_recompute *what, const struct kelp_recomputed *result)
{
    (void)printf("{\"equal\":%s,\"whole\":%s,\"from\":", result->equal ? "true" : "false",
                 result->whole ? "true" : "false");
    kelp_json_print_string(stdout, name_of(what->from, ""));
    kelp_json_print_member(stdout, ",", "to", name_of(what->to, ""));
    (void)printf(",\"steps\":%" PRIu64 ",\"step\":%" PRIu64 ",\"digests\":%u,\"text\":",
                 result->steps, result->step, result->digests);
    kelp_json_print_string(stdout, result->text);
    kelp_json_print_member(stdout, ",", "compute", result->compute);
    (void)printf("}");
}

/* A judging command: what could not be judged is an error of its input. */
static int replay_stretch(struct verify *verify, const struct kelp_recompute *what,
                          struct kelp_recomputed *ret_result)
{
    struct kelp_error error;

    kelp_status status = kelp_recompute(what, ret_result, &error);
    if (status != KELP_OK) {
        return kelp_complain(status == KELP_ERR_NO_MEMORY ? KELP_EXIT_FAILED : KELP_EXIT_USAGE,
                             "%s", error.text);
    }
    if (verify->stretches > 0 && ret_result->steps == 0 && !ret_result->text[0]) {
        return KELP_EXIT_OK; /* nothing behind the newest checkpoint */
    }
    if (verify->check.json) {
        (void)printf("%s", verify->stretches > 0 ? "," : "");
        stretch_json(what, ret_result);
    } else {
        stretch_text(what, ret_result);
    }
    verify->stretches++;
    return ret_result->equal ? KELP_EXIT_OK : KELP_EXIT_FAILED;
}

/* Up to the newest checkpoint, then what is on record behind it. */
static int replay(struct verify *verify, const struct kelp_options *given)
{
    uint64_t steps = kelp_options_integer(given, "steps");
    struct kelp_recompute what = {.run_path = verify->run_path,
                                  .from = verify->before,
                                  .to = verify->newest,
                                  .allow_plugin = kelp_options_flag(given, "allow-plugin"),
                                  .steps_max = steps > 0 ? steps : UINT64_MAX};
    struct kelp_recomputed result;

    if (verify->newest) {
        int exit_status = replay_stretch(verify, &what, &result);
        if (exit_status != KELP_EXIT_OK || !result.whole) {
            return exit_status;
        }
        what.from = verify->newest;
        what.to = NULL;
        what.steps_max -= result.steps;
    }
    return replay_stretch(verify, &what, &result);
}

static int verify_run(struct verify *verify, const struct kelp_options *given)
{
    bool json = verify->check.json;
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    if (json) {
        kelp_json_print_member(stdout, "{", "run", verify->run_path);
        (void)printf(",\"faults\":[");
    } else if (verify->list.count == 0) {
        (void)printf("the run has no checkpoint\n");
    }
    if (check_all(verify, &error) != KELP_OK) {
        exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (json) {
        (void)printf("],\"checked\":%u,\"damaged\":%u", verify->check.checked,
                     verify->check.damaged);
    }
    if (exit_status == KELP_EXIT_OK && kelp_options_flag(given, "replay")) {
        (void)printf("%s", json ? ",\"replay\":[" : "");
        exit_status = replay(verify, given);
        (void)printf("%s", json ? "]" : "");
    }
    if (json) {
        (void)printf("}\n");
    }
    return exit_status == KELP_EXIT_OK && verify->check.damaged > 0 ? KELP_EXIT_FAILED
                                                                    : exit_status;
}

static int verify(const struct kelp_options *given)
{
    struct verify verify = {.check = {.json = kelp_verb_json(given)}};
    struct kelp_error error;

    if (kelp_options_given(given, "steps") && !kelp_options_flag(given, "replay")) {
        return kelp_complain(KELP_EXIT_USAGE, "--steps goes with --replay");
    }
    if (kelp_run_choose(kelp_verb_typed(given), verify.run_path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (kelp_options_flag(given, "replay") &&
        kelp_run_begin_portable(verify.run_path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    if (kelp_checkpoints_list(verify.run_path, &verify.list, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    int exit_status = verify_run(&verify, given);
    kelp_checkpoints_fini(&verify.list);
    return exit_status;
}

const struct kelp_verb kelp_verb_verify = {
    "verify", "check a run's checkpoints, and recompute its steps", &program, verify, NULL};
