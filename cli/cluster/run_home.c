#include "cli/cluster/run_home.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/random_id.h"
#include "common/base/text.h"

#define TEXT_BYTES_MAX (16 * KELP_RUN_PATH_MAX) /* paths may need escapes */

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
    if (place->apart) {
        kelp_json_print_member(out, ",\"shared\":false,", "name", place->name);
        kelp_json_print_member(out, ",", "host", place->host);
    }
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
    place->apart = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(json, "shared"));
    if (status == KELP_OK && place->apart) {
        status = kelp_json_string(json, "name", place->name, sizeof(place->name), reterr);
    }
    if (status == KELP_OK && place->apart) {
        status = kelp_json_string(json, "host", place->host, sizeof(place->host), reterr);
    }
    cJSON_Delete(json);
    return status;
}

kelp_status kelp_run_home_get(struct kelp_job_client *client, uint32_t deadline_ms,
                              struct kelp_run_home *ret_place, struct kelp_error *reterr)
{
    struct kelp_run_home place = {.apart = false};
    char *text = NULL;

    kelp_status status = kelp_job_client_get(client, KELP_RUN_HOME_KEY, deadline_ms, &text, reterr);
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
        kelp_error_prefix(reterr, "/kelp/%s/" KELP_RUN_HOME_KEY " in etcd",
                          kelp_job_client_job(client));
        return status;
    }
    *ret_place = place;
    return KELP_OK;
}

void kelp_run_home_text(const struct kelp_run_home *place, char text[KELP_RUN_HOME_TEXT_MAX + 1])
{
    (void)snprintf(text, KELP_RUN_HOME_TEXT_MAX + 1, "%s%s%s", place->host,
                   place->host[0] != '\0' ? ":" : "", place->folder);
}

/* What would be right, behind what is wrong. */
static kelp_status refuse(const struct kelp_run_home *place, const char *path, bool other,
                          struct kelp_error *reterr)
{
    const char *wrong =
        other ? "it is that of another run" : "it has no file '" KELP_RUN_TOKEN_FILE "'";

    return place->apart
               ? kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "'%.200s' is not a folder of this run: %s; hosts share none, so name by "
                           "--run the one that kelp node has on this host%s%s",
                           path, wrong, place->host[0] ? "; the leader's is on host " : "",
                           place->host)
               : kelp_fail(reterr, KELP_ERR_MISMATCH,
                           "'%s' is not the run's folder: %s; it must be the folder that kelp "
                           "submit made as '%s', which hosts with coordinators or shards share: "
                           "name it by --run",
                           path, wrong, place->folder);
}

kelp_status kelp_run_home_check(const struct kelp_run_home *place, const char *path,
                                struct kelp_error *reterr)
{
    char *token = NULL;

    kelp_status status = kelp_run_dir_read(path, KELP_RUN_TOKEN_FILE, &token, reterr);
    if (status == KELP_ERR_NOT_FOUND || (status == KELP_OK && strcmp(token, place->token) != 0)) {
        status = refuse(place, path, token != NULL, reterr);
    }
    free(token);
    return status;
}

kelp_status kelp_run_home_path(const struct kelp_run_home *place, const char *typed,
                               const struct kelp_path_map *paths,
                               char ret_path[KELP_RUN_PATH_MAX + 1], struct kelp_error *reterr)
{
    char here[KELP_JOB_PATH_MAX + 1];

    if (!typed && place->apart && place->folder[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND,
                         "the hosts of this job share no folder, and none has led it yet");
    }
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
