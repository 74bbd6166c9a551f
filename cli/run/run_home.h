/*
 * Where the run of a job is that hosts share: the folder as kelp submit made it, in etcd as
 * /kelp/<job>/run. The folder may have another path on a host; its file KELP_RUN_TOKEN_FILE has the
 * token, by which it is known.
 */
#ifndef KELP_CLI_RUN_RUN_HOME_H
#define KELP_CLI_RUN_RUN_HOME_H

#include "cli/run/job_client.h"
#include "cli/run/run_dir.h"
#include "common/base/status.h"
#include "common/job/path_map.h"

#define KELP_RUN_TOKEN_FILE "token"
#define KELP_RUN_TOKEN_MAX  32 /* digits */

struct kelp_run_home {
    char folder[KELP_RUN_PATH_MAX + 1]; /* absolute */
    char token[KELP_RUN_TOKEN_MAX + 1];
};

/* A new token. Errors: KELP_ERR_IO. */
kelp_status kelp_run_home_mark(struct kelp_run_home *place,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* As etcd has it; *ret_text is owned (free()). Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_run_home_print(const struct kelp_run_home *place, char **ret_text,
                                struct kelp_error *reterr) KELP_MUST_USE;

/* Errors: KELP_ERR_NOT_FOUND (the job was not put into etcd by kelp submit), KELP_ERR_FORMAT, those
 * of etcd. */
kelp_status kelp_run_home_get(struct kelp_job_client *client, uint32_t deadline_ms,
                              struct kelp_run_home *ret_place,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* Where it would be on this machine: `typed`, or where that is NULL the path that kelp submit
 * printed, as paths has it (NULL: as it stands). Errors: KELP_ERR_LIMIT. */
kelp_status kelp_run_home_path(const struct kelp_run_home *place, const char *typed,
                               const struct kelp_path_map *paths,
                               char ret_path[KELP_RUN_PATH_MAX + 1],
                               struct kelp_error *reterr) KELP_MUST_USE;

/* The run's folder on this machine: kelp_run_home_path(), whose token shows that it is the one.
 * Errors: those of kelp_run_home_get() and kelp_run_home_check(), KELP_ERR_LIMIT. */
kelp_status kelp_run_home_find(struct kelp_job_client *client, const char *typed,
                               uint32_t deadline_ms, char ret_path[KELP_RUN_PATH_MAX + 1],
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Is the folder in path that of the run? Errors: KELP_ERR_MISMATCH (the text says what would be
 * right), those of reading. */
kelp_status kelp_run_home_check(const struct kelp_run_home *place, const char *path,
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif
