/* What the files of children share: one child's start and end. */
#ifndef KELP_CLI_LAUNCH_CHILDREN_CHILDREN_INTERNAL_H
#define KELP_CLI_LAUNCH_CHILDREN_CHILDREN_INTERNAL_H

#include "cli/launch/children/children.h"

/* Words of enum kelp_child_kind, in ids and as the roles of certificates. */
extern const char *const kelp__child_kinds[];

/* Is it a worker that runs a program of the user instead of kelp-worker? */
bool kelp__child_is_program(const struct kelp_children *children, const struct kelp_child *child);

/* The path of its log. */
void kelp__child_log(const struct kelp_children *children, const struct kelp_child *child,
                     char *path, size_t path_bytes);

/* Start it now, for the first time or again. Errors: KELP_ERR_INVALID (a program that cannot be
 * run), KELP_ERR_LIMIT, KELP_ERR_IO, KELP_ERR_NO_MEMORY. */
kelp_status kelp__child_start(const struct kelp_children *children, struct kelp_child *child,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Its process has ended with wait_status (waitpid(2)): free it, and set what comes next. Errors as
 * those of kelp_children_tend(). */
kelp_status kelp__child_ended(struct kelp_children *children, struct kelp_child *child,
                              int wait_status, uint64_t now_ms, bool *ret_gave_up,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* It was told to end and has: note what a program did after its loop, in children->after. */
void kelp__child_stopped(struct kelp_children *children, const struct kelp_child *child,
                         uint32_t grace_ms);

#endif
