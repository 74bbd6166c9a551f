/* `kelp checkpoint rm`. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/checkpoint/run_etcd.h"
#include "cli/cluster/run_client.h"
#include "coordinator/etcd/checkpoint_files.h"

static const struct kelp_option options[] = {
    KELP_VERB_FLAG("force", NULL,
                   "remove even the newest good one; the run then continues from an older one, or "
                   "from the start"),
    KELP_CHECKPOINT_OPTION_RUN,
};

static const struct kelp_program program = {
    .name = "kelp checkpoint rm",
    .summary = "removes checkpoints of a stopped run",
    .positional = "NAME...",
    .positional_min = 1,
    .positional_max = 1000,
    .examples = "  kelp checkpoint rm step-1500.g2\n"
                "  kelp checkpoint rm step-1500.g2 step-3000.g2 --run runs/etth1 --force\n",
    KELP_VERB_OPTIONS(options),
};

static void ignore(const struct kelp_checkpoint_fault *fault, void *user)
{
    (void)fault;
    (void)user;
}

static bool good(const struct kelp_checkpoint *checkpoint)
{
    uint32_t faults = 0;

    return checkpoint->fault.status == KELP_OK &&
           kelp_checkpoint_verify(checkpoint, &faults, NULL, ignore, NULL) == KELP_OK &&
           faults == 0;
}

/* Would the run lose the state that it goes on from? Read and checked, not taken on trust. */
static bool newest_good(const struct kelp_checkpoints *list,
                        const struct kelp_checkpoint *checkpoint)
{
    for (size_t i = list->count; i > 0; i--) {
        if (good(&list->items[i - 1])) {
            return &list->items[i - 1] == checkpoint;
        }
    }
    return false;
}

/* The manifest first, the data after. */
static kelp_status remove_one(const struct kelp_run_dir *run, struct kelp_run_etcd *etcd,
                              const struct kelp_checkpoint *checkpoint, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    if (etcd && checkpoint->fault.status == KELP_OK) {
        status = kelp_run_etcd_remove(etcd, checkpoint->manifest.version, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_checkpoint_files_remove(run->path, checkpoint->name, reterr);
    }
    if (status == KELP_OK) {
        (void)printf("%s: removed\n", checkpoint->name);
    }
    return status;
}

static int remove_named(const struct kelp_options *given, const struct kelp_run_dir *run,
                        struct kelp_run_etcd *etcd)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    for (size_t i = 0; exit_status == KELP_EXIT_OK && i < kelp_options_positional_count(given);
         i++) {
        struct kelp_checkpoints list;
        if (kelp_checkpoints_list(run->path, &list, &error) != KELP_OK) {
            return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
        }
        const struct kelp_checkpoint *checkpoint =
            kelp_checkpoint_named(&list, kelp_options_positional(given, i), &exit_status);
        if (checkpoint && !kelp_options_flag(given, "force") && newest_good(&list, checkpoint)) {
            exit_status =
                kelp_complain(KELP_EXIT_USAGE,
                              "%s is the newest good checkpoint, from which the run would "
                              "continue; --force removes it anyway",
                              checkpoint->name);
        } else if (checkpoint && remove_one(run, etcd, checkpoint, &error) != KELP_OK) {
            exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
        }
        kelp_checkpoints_fini(&list);
    }
    return exit_status;
}

/* Nobody else may work in the folder meanwhile. */
static int lock(const struct kelp_options *given, struct kelp_run_dir *ret_run,
                struct kelp_run_etcd **ret_etcd)
{
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_error error;

    kelp_status status = kelp_run_choose(kelp_options_text(given, "run"), run_path, &error);
    if (status == KELP_OK) {
        status = kelp_run_dir_resume(run_path, ret_run, &error);
    }
    if (status == KELP_ERR_BUSY) {
        return kelp_complain(
            KELP_EXIT_USAGE,
            "run '%s' is still running: it keeps the checkpoints that checkpoint.keep_last and "
            "keep_best ask for; stop it before you remove others",
            run_path);
    }
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    status = kelp_run_etcd_open(ret_run, ret_etcd, &error);
    if (status != KELP_OK) {
        kelp_run_dir_close(ret_run);
        return kelp_complain(kelp_status_group(status) == KELP_GROUP_PEER ||
                                     status == KELP_ERR_TIMEOUT
                                 ? KELP_EXIT_UNREACHABLE
                                 : KELP_EXIT_FAILED,
                             "%s", error.text);
    }
    return KELP_EXIT_OK;
}

static int rm(const struct kelp_options *given)
{
    struct kelp_run_etcd *etcd = NULL;
    struct kelp_run_dir run;

    int exit_status = lock(given, &run, &etcd);
    if (exit_status != KELP_EXIT_OK) {
        return exit_status;
    }
    exit_status = remove_named(given, &run, etcd);
    kelp_run_etcd_close(etcd);
    kelp_run_dir_close(&run);
    return exit_status;
}

const struct kelp_verb kelp_checkpoint_verb_rm = {
    "rm", "remove checkpoints of a run that is stopped", &program, rm, NULL};
