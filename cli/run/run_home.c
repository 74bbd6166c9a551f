#include "cli/run/run_home.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/random_id.h"
#include "common/base/text.h"

#define KEY            "run"
#define TEXT_BYTES_MAX (8 * KELP_RUN_PATH_MAX) /* a path may need escapes */

kelp_status kelp_run_home_mark(struct kelp_run_home *place, struct kelp_error *reterr)
{
    uint64_t random = 0;

    kelp_status status = kelp_random_id(&random, reterr);
    (void)snprintf(place->token, sizeof(place->token), "%016" PRIx64, random);
    return status;
}

static void print(const void *what, FILE *out)
{
    const struct kelp_run_home *place = what;

    kelp_json_print_member(out, "{", "folder", place->folder);
    kelp_json_print_member(out, ",", "token", place->token);
    (void)fputs("}", out);
}

kelp_status kelp_run_home_print(const struct kelp_run_home *place, char **ret_text,
                                struct kelp_error *reterr)
{
    return kelp_text_print(print, place, TEXT_BYTES_MAX, ret_text, reterr);
}

static kelp_status parse(const char *text, struct kelp_run_home *place, struct kelp_error *reterr)
{
    cJSON *json = NULL;

    kelp_status status = kelp_json_parse(text, strlen(text), &json, reterr);
    if (status == KELP_OK) {
        status = kelp_json_string(json, "folder", place->folder, sizeof(place->folder), reterr);
    }
    if (status == KELP_OK) {
        status = kelp_json_string(json, "token", place->token, sizeof(place->token), reterr);
    }
    cJSON_Delete(json);
    return status;
}

kelp_status kelp_run_home_get(struct kelp_job_client *client, uint32_t deadline_ms,
                              struct kelp_run_home *ret_place, struct kelp_error *reterr)
{
    struct kelp_run_home place;
    char *text = NULL;

    kelp_status status = kelp_job_client_get(client, KEY, deadline_ms, &text, reterr);
    if (status == KELP_ERR_NOT_FOUND) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "job '%s' was not put into etcd by kelp submit, so that it has no folder",
                         kelp_job_client_job(client));
    }
    if (status != KELP_OK) {
        return status;
    }
    status = parse(text, &place, reterr);
    free(text);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "/kelp/%s/" KEY " in etcd", kelp_job_client_job(client));
        return status;
    }
    *ret_place = place;
    return KELP_OK;
}

kelp_status kelp_run_home_check(const struct kelp_run_home *place, const char *path,
                                struct kelp_error *reterr)
{
    char *token = NULL;

    kelp_status status = kelp_run_dir_read(path, KELP_RUN_TOKEN_FILE, &token, reterr);
    if (status == KELP_ERR_NOT_FOUND || (status == KELP_OK && strcmp(token, place->token) != 0)) {
        status = kelp_fail(
            reterr, KELP_ERR_MISMATCH,
            "'%s' is not the run's folder: %s; it must be the folder that kelp submit "
            "made as '%s', which hosts with coordinators or shards share: name it "
            "by --run",
            path, token ? "it is that of another run" : "it has no file '" KELP_RUN_TOKEN_FILE "'",
            place->folder);
    }
    free(token);
    return status;
}

kelp_status kelp_run_home_path(const struct kelp_run_home *place, const char *typed,
                               const struct kelp_path_map *paths,
                               char ret_path[KELP_RUN_PATH_MAX + 1], struct kelp_error *reterr)
{
    char here[KELP_JOB_PATH_MAX + 1];

    if (typed || !paths) {
        return kelp_run_dir_resolve(typed ? typed : place->folder, ret_path, reterr);
    }
    kelp_status status = kelp_path_map_apply(paths, place->folder, here, reterr);
    return status == KELP_OK ? kelp_run_dir_resolve(here, ret_path, reterr) : status;
}

kelp_status kelp_run_home_find(struct kelp_job_client *client, const char *typed,
                               uint32_t deadline_ms, char ret_path[KELP_RUN_PATH_MAX + 1],
                               struct kelp_error *reterr)
{
    struct kelp_run_home place;

    kelp_status status = kelp_run_home_get(client, deadline_ms, &place, reterr);
    if (status == KELP_OK) {
        status = kelp_run_home_path(&place, typed, NULL, ret_path, reterr);
    }
    return status == KELP_OK ? kelp_run_home_check(&place, ret_path, reterr) : status;
}
