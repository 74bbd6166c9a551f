/*
 * A resume changes the folder of its run in one go, once training goes on with the new job. Until
 * then all that it will put in place is in next/, and the run is as it was:
 *
 *     next/job.yaml, next/...    what waits; job.yaml is put in place last, and alone decides
 *     previous/1, previous/2...  what resumes replaced, newest last
 *
 * kelp writes and drops what waits. The coordinator takes it, before it writes anything of the new
 * job, and so does kelp for a job that has nothing left to train. If either ends on the way, the
 * run goes on with the job that its job.yaml names.
 *
 * Threads: any; kelp_run_next_take() locks next/.
 */
#ifndef KELP_COMMON_PROGRAM_RUN_NEXT_H
#define KELP_COMMON_PROGRAM_RUN_NEXT_H

#include <stdbool.h>

#include "common/base/status.h"

#define KELP_RUN_NEXT     "next"
#define KELP_RUN_PREVIOUS "previous"

/* Does a job wait in the folder of the run? */
bool kelp_run_next_waits(const char *run);

/* Create an empty next/. Errors: of files. */
kelp_status kelp_run_next_make(const char *run, struct kelp_error *reterr) KELP_MUST_USE;
/* Remove next/ with all that is in it. Errors: of files. */
kelp_status kelp_run_next_drop(const char *run, struct kelp_error *reterr) KELP_MUST_USE;

/* Cut what else belongs to the job before, and keep it by kelp_run_next_keep(). keep: previous/N,
 * or NULL when nothing waits. */
typedef kelp_status kelp_run_next_cut(const char *keep, struct kelp_error *reterr, void *user);

/*
 * Put in place what waits. First cut (NULL: none) is called. Then result.json and
 * model.safetensors of the job before move to previous/N. Then each file of next/ replaces the one
 * of its name, which is kept in previous/N where it differs. Errors: of files, of cut; it may be
 * tried again.
 */
kelp_status kelp_run_next_take(const char *run, kelp_run_next_cut *cut, void *user,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Copy a file into a folder, durably. One that is missing is no error. Errors: of files. */
kelp_status kelp_run_next_keep(const char *path, const char *folder,
                               struct kelp_error *reterr) KELP_MUST_USE;

#endif
