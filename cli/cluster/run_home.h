/*
 * Where the run of a job on several hosts is, in etcd as /kelp/<job>/run: the folder that they
 * share, as kelp submit made it. It may have another path on a host; its file KELP_RUN_TOKEN_FILE
 * has the token, by which it is known.
 *
 * Hosts may share none (kelp submit --no-shared-folder). Then each has a folder of its own with
 * that token, and etcd says whose is the leader's, once a host leads.
 */
#ifndef KELP_CLI_CLUSTER_RUN_HOME_H
#define KELP_CLI_CLUSTER_RUN_HOME_H

#include "cli/cluster/job_client.h"
#include "cli/run/run_dir.h"
#include "common/base/status.h"
#include "common/job/path_map.h"

#define KELP_RUN_HOME_KEY   "run" /* in etcd */
#define KELP_RUN_TOKEN_FILE "token"
#define KELP_RUN_TOKEN_MAX  32 /* digits */

#define KELP_RUN_CARD_KEY "card"    /* in etcd: the model's card, where hosts share no folder */
#define KELP_RUN_CARD_MAX (1 << 20) /* bytes; etcd takes requests of 1.5 MB */

#define KELP_RUN_HOST_MAX 63

struct kelp_run_home {
    char folder[KELP_RUN_PATH_MAX + 1]; /* absolute; apart: the leader's, "" before there is one */
    char token[KELP_RUN_TOKEN_MAX + 1];
    bool apart;                       /* hosts share none */
    char name[KELP_RUN_PATH_MAX + 1]; /* apart: a host's folder is this with its name behind */
    char host[KELP_RUN_HOST_MAX + 1]; /* apart: who has led last; "": nobody yet */
};

/* For people: the folder, "HOST:FOLDER" where hosts share none. */
#define KELP_RUN_HOME_TEXT_MAX (KELP_RUN_HOST_MAX + 1 + KELP_RUN_PATH_MAX)
void kelp_run_home_text(const struct kelp_run_home *place, char text[KELP_RUN_HOME_TEXT_MAX + 1]);

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
 * printed, as paths has it (NULL: as it stands), or that of the host which leads. Errors:
 * KELP_ERR_LIMIT, KELP_ERR_NOT_FOUND (hosts share none, and none has led). */
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
