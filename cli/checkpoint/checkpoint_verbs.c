#include "cli/checkpoint/checkpoint_verbs.h"

#include <stdio.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/verb/meter.h"
#include "common/base/json.h"

const struct kelp_verb *const kelp_checkpoint_verbs[] = {
    &kelp_checkpoint_verb_ls,
    &kelp_checkpoint_verb_show,
    &kelp_checkpoint_verb_verify,
    &kelp_checkpoint_verb_export,
    &kelp_checkpoint_verb_import,
    &kelp_checkpoint_verb_rm,
    NULL,
};

bool kelp_checkpoint_choose(const struct kelp_options *given, const char *typed,
                            char run_path[KELP_RUN_PATH_MAX + 1], struct kelp_checkpoints *ret_list,
                            int *ret_exit_status)
{
    struct kelp_error error;

    if (kelp_run_choose(typed ? typed : kelp_options_text(given, "run"), run_path, &error) !=
        KELP_OK) {
        *ret_exit_status = kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
        return false;
    }
    if (kelp_checkpoints_list(run_path, ret_list, &error) != KELP_OK) {
        *ret_exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
        return false;
    }
    return true;
}

const struct kelp_checkpoint *kelp_checkpoint_named(const struct kelp_checkpoints *list,
                                                    const char *name, int *ret_exit_status)
{
    const struct kelp_checkpoint *found = NULL;
    struct kelp_error error;

    if (!name || strcmp(name, "newest") == 0) {
        found = kelp_checkpoints_before(list, UINT64_MAX);
        if (!found) {
            *ret_exit_status = kelp_complain(KELP_EXIT_USAGE, "the run has no checkpoint");
        }
    } else if (kelp_checkpoints_find(list, name, &found, &error) != KELP_OK) {
        *ret_exit_status = kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    return found;
}

bool kelp_checkpoint_source_list(struct kelp_checkpoint_source *source,
                                 const struct kelp_options *given, int *ret_exit_status)
{
    char run_path[KELP_RUN_PATH_MAX + 1];

    if (!source->listed) {
        source->listed =
            kelp_checkpoint_choose(given, NULL, run_path, &source->list, ret_exit_status);
    }
    return source->listed;
}

const struct kelp_checkpoint *kelp_checkpoint_find(struct kelp_checkpoint_source *source,
                                                   const struct kelp_options *given,
                                                   const char *name, int *ret_exit_status)
{
    struct kelp_error error;

    if (!name || !strchr(name, '/')) {
        return kelp_checkpoint_source_list(source, given, ret_exit_status)
                   ? kelp_checkpoint_named(&source->list, name, ret_exit_status)
                   : NULL;
    }
    kelp_checkpoint_fini(&source->elsewhere);
    kelp_status status = kelp_checkpoint_open(name, &source->elsewhere, &error);
    if (status != KELP_OK) {
        *ret_exit_status = kelp_complain(
            status == KELP_ERR_CORRUPT ? KELP_EXIT_FAILED : KELP_EXIT_USAGE, "%s", error.text);
        return NULL;
    }
    return &source->elsewhere;
}

void kelp_checkpoint_source_fini(struct kelp_checkpoint_source *source)
{
    kelp_checkpoint_fini(&source->elsewhere);
    if (source->listed) {
        kelp_checkpoints_fini(&source->list);
    }
}

/* ---- verifying ----------------------------------------------------------------------------- */

static void json_fault(struct kelp_checkpoint_check *check,
                       const struct kelp_checkpoint_fault *fault)
{
    (void)printf("%s{\"checkpoint\":", check->any_told ? "," : "");
    kelp_json_print_string(stdout, check->name);
    if (fault->storage[0]) {
        kelp_json_print_member(stdout, ",", "storage", fault->storage);
    }
    if (fault->has_partition) {
        (void)printf(",\"partition\":%u", fault->partition);
    }
    kelp_json_print_member(stdout, ",", "text", fault->text);
    (void)printf("}");
    check->any_told = true;
}

static void told(const struct kelp_checkpoint_fault *fault, void *user)
{
    struct kelp_checkpoint_check *check = user;

    if (check->json) {
        json_fault(check, fault);
    } else if (check->told++ > 0) {
        return; /* one line for each checkpoint; -o json has them all */
    } else if (fault->has_partition) {
        (void)printf("%s: DAMAGED: storage %s, partition %u: %s", check->name, fault->storage,
                     fault->partition, fault->text);
    } else if (fault->storage[0]) {
        (void)printf("%s: DAMAGED: storage %s: %s", check->name, fault->storage, fault->text);
    } else {
        (void)printf("%s: DAMAGED: %s", check->name, fault->text);
    }
}

kelp_status kelp_checkpoint_check(struct kelp_checkpoint_check *check,
                                  const struct kelp_checkpoint *checkpoint,
                                  struct kelp_error *reterr)
{
    uint32_t faults = 0;

    check->name = checkpoint->name;
    check->told = 0;
    kelp_status status = kelp_checkpoint_verify(checkpoint, &faults, reterr, told, check);
    if (check->told > 1) {
        (void)printf(" (and %u more; -o json lists them)", check->told - 1);
    }
    if (check->told > 0) {
        (void)printf("\n");
    }
    if (status == KELP_ERR_NOT_FOUND) {
        if (!check->json) {
            (void)printf("%s: has just been removed\n", checkpoint->name);
        }
        return KELP_OK;
    }
    if (status != KELP_OK) {
        return status;
    }
    check->checked++;
    check->faults += faults;
    check->damaged += faults > 0;
    if (faults == 0 && !check->json) {
        char size[32];
        kelp_meter_size(kelp_checkpoint_bytes(checkpoint), size, sizeof(size));
        (void)printf("%s: good, %u partitions, %s\n", checkpoint->name,
                     checkpoint->manifest.part_count, size);
    }
    return KELP_OK;
}
