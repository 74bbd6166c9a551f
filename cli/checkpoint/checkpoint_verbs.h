/*
 * What the subcommands of `kelp checkpoint` share: each is a file of its own.
 */
#ifndef KELP_CLI_CHECKPOINT_CHECKPOINT_VERBS_H
#define KELP_CLI_CHECKPOINT_CHECKPOINT_VERBS_H

#include "cli/checkpoint/checkpoint_read.h"
#include "cli/verb/verb.h"

/* `kelp checkpoint VERB`; ends with NULL. */
extern const struct kelp_verb *const kelp_checkpoint_verbs[];

#define KELP_CHECKPOINT_OPTION_RUN    KELP_VERB_RUN(NULL, "folder of the run (default: runs/latest)")
#define KELP_CHECKPOINT_OPTION_OUTPUT KELP_VERB_OUTPUT("lines for people, or one JSON object")

extern const struct kelp_verb kelp_checkpoint_verb_ls;
extern const struct kelp_verb kelp_checkpoint_verb_show;
extern const struct kelp_verb kelp_checkpoint_verb_verify;
extern const struct kelp_verb kelp_checkpoint_verb_export;
extern const struct kelp_verb kelp_checkpoint_verb_import;
extern const struct kelp_verb kelp_checkpoint_verb_rm;

/* The run that was typed, or that --run names, and what it has; false with *ret_exit_status set,
 * and said, when there is none. *ret_list is owned (kelp_checkpoints_fini()). */
bool kelp_checkpoint_choose(const struct kelp_options *given, const char *typed,
                            char run_path[KELP_RUN_PATH_MAX + 1], struct kelp_checkpoints *ret_list,
                            int *ret_exit_status);

/* The one that a command line names; "newest", and NULL, stand for the newest good one, "best" for
 * kelp_checkpoints_best(). The same
 * when there is none. */
const struct kelp_checkpoint *kelp_checkpoint_named(const struct kelp_checkpoints *list,
                                                    const char *name, int *ret_exit_status);

/*
 * Where a verb finds what it is told to look at: in the run, or, for a name with a '/', a folder
 * anywhere, such as a backup. All zero at first; kelp_checkpoint_source_fini().
 */
struct kelp_checkpoint_source {
    bool listed;
    struct kelp_checkpoints list;
    struct kelp_checkpoint elsewhere; /* the folder that was opened last */
};
const struct kelp_checkpoint *kelp_checkpoint_find(struct kelp_checkpoint_source *source,
                                                   const struct kelp_options *given,
                                                   const char *name, int *ret_exit_status);
/* source->list is there; as kelp_checkpoint_choose(). */
bool kelp_checkpoint_source_list(struct kelp_checkpoint_source *source,
                                 const struct kelp_options *given, int *ret_exit_status);
void kelp_checkpoint_source_fini(struct kelp_checkpoint_source *source);

/* A checkpoint's weights as a safetensors file, with the optimizer's state when that is wanted.
 * ret_digest is of the weights. Errors: those of reading and writing it. */
kelp_status kelp_checkpoint_export(const struct kelp_checkpoint *checkpoint, const char *path,
                                   bool with_optimizer, char ret_digest[KELP_DIGEST_HEX_BYTES],
                                   struct kelp_error *reterr) KELP_MUST_USE;

/* Tell what verifying checkpoints finds, and count. One line for each checkpoint that is whole, one
 * for each fault of the others; or elements of a JSON array. */
struct kelp_checkpoint_check {
    bool json;
    uint32_t checked;
    uint32_t damaged;
    uint32_t faults;  /* of all */
    bool any_told;    /* JSON: a comma is due */
    uint32_t told;    /* faults of the checkpoint at hand, as text */
    const char *name; /* of the one being verified */
};
/* Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_checkpoint_check(struct kelp_checkpoint_check *check,
                                  const struct kelp_checkpoint *checkpoint,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif
