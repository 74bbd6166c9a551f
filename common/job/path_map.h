/*
 * Files of a job that lie elsewhere on one host: FROM=TO. What is FROM, or lies below it, is read
 * at TO instead; of several that fit the longest FROM counts. Components count as wholes: /data
 * says nothing about /database. Nobody looks whether such files exist. Pure.
 *
 *     /data=/mnt/a        /data/x.csv is read at /mnt/a/x.csv
 *     /data/y=/y          /data/y/z.csv is read at /y/z.csv
 */
#ifndef KELP_COMMON_JOB_PATH_MAP_H
#define KELP_COMMON_JOB_PATH_MAP_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/job/job.h"

#define KELP_PATH_MAP_MAX 16 /* entries */

struct kelp_path_map_entry {
    char text[2 * KELP_JOB_PATH_MAX + 2]; /* "FROM=TO", without slashes at the end of either */
    size_t from_bytes;                    /* of FROM; 0: the root */
};

/* Empty: every path stays as it is. */
struct kelp_path_map {
    struct kelp_path_map_entry items[KELP_PATH_MAP_MAX];
    size_t count;
};

/*
 * One more, "FROM=TO": the first "=/" is between the two. Errors: KELP_ERR_INVALID (not two
 * absolute paths, one with an empty component, "." or "..", or FROM is there already),
 * KELP_ERR_LIMIT.
 */
kelp_status kelp_path_map_add(struct kelp_path_map *map, const char *text,
                              struct kelp_error *reterr) KELP_MUST_USE;

/* The same of two texts. */
kelp_status kelp_path_map_join(struct kelp_path_map *map, const char *from, const char *to,
                               struct kelp_error *reterr) KELP_MUST_USE;

/* Is the path FROM, or below it? */
bool kelp_path_map_covers(const struct kelp_path_map_entry *entry, const char *path);

/* The entry that counts for a path; NULL: there is none, as for a path that is not absolute. */
const struct kelp_path_map_entry *kelp_path_map_find(const struct kelp_path_map *map,
                                                     const char *path);

/* Where the path lies here. Errors: KELP_ERR_LIMIT (over KELP_JOB_PATH_MAX bytes). */
kelp_status kelp_path_map_apply(const struct kelp_path_map *map, const char *path,
                                char ret_path[KELP_JOB_PATH_MAX + 1],
                                struct kelp_error *reterr) KELP_MUST_USE;

#endif
