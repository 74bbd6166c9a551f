#include "cli/cluster/leftovers.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "common/base/files.h"
#include "common/program/socket_folder.h"
#include "common/training/manifest.h"

#define ETCD "etcd"

static const char *const of_inferences[] = {"predict", "weights.safetensors"};

static bool is_there(const char *run_path, const char *name)
{
    char path[KELP_RUN_PATH_MAX + 64];

    return kelp_run_dir_path(run_path, name, path, sizeof(path), NULL) == KELP_OK &&
           access(path, F_OK) == 0;
}

/* An etcd that is not the run's own holds the job of a resume that was killed: the next one has to
 * know which one that was. */
static bool next_is_left(const char *run_path)
{
    struct kelp_run_cluster cluster;

    if (!is_there(run_path, KELP_RUN_NEXT)) {
        return false;
    }
    kelp_status status = kelp_run_cluster_read(run_path, &cluster, NULL);
    return status == KELP_ERR_NOT_FOUND || (status == KELP_OK && cluster.private_etcd);
}

/* A checkpoint without a manifest may be one that etcd alone knows to be whole. */
static bool checkpoints_say_all(const char *run_path)
{
    char path[KELP_RUN_PATH_MAX + 64];
    char manifest[sizeof(path) + KELP_FOLDER_NAME_MAX + 32];
    bool all = true;

    if (kelp_run_dir_path(run_path, KELP_CHECKPOINTS_FOLDER, path, sizeof(path), NULL) != KELP_OK) {
        return false;
    }
    DIR *stream = opendir(path);
    if (!stream) {
        return !is_there(run_path, KELP_CHECKPOINTS_FOLDER);
    }
    for (struct dirent *entry = readdir(stream); entry && all; entry = readdir(stream)) {
        if (entry->d_name[0] != '.') {
            int length =
                snprintf(manifest, sizeof(manifest), "%s/%s/manifest.json", path, entry->d_name);
            all = length > 0 && (size_t)length < sizeof(manifest) && access(manifest, F_OK) == 0;
        }
    }
    (void)closedir(stream);
    return all;
}

static void add(struct kelp_leftovers *leftovers, const char *run_path, const char *name)
{
    if (is_there(run_path, name)) {
        leftovers->names[leftovers->count++] = name;
    }
}

void kelp_leftovers_find(const char *run_path, struct kelp_leftovers *ret_leftovers)
{
    bool inference = kelp_run_is_inference(run_path);
    bool next = next_is_left(run_path);

    ret_leftovers->count = 0;
    /* Before next/, which may say that it is one. */
    if (inference || (next && is_there(run_path, KELP_LEFTOVERS_NEW_ETCD)) ||
        checkpoints_say_all(run_path)) {
        add(ret_leftovers, run_path, ETCD);
    }
    if (next) {
        add(ret_leftovers, run_path, KELP_RUN_NEXT);
    }
    add(ret_leftovers, run_path, KELP_RUN_TRACE);
    for (size_t i = 0; inference && i < KELP_ARRAY_COUNT(of_inferences); i++) {
        add(ret_leftovers, run_path, of_inferences[i]);
    }
}

void kelp_leftovers_remove_sockets(const char *run_path)
{
    struct kelp_run_cluster cluster;

    if (kelp_run_cluster_read(run_path, &cluster, NULL) == KELP_OK) {
        kelp_socket_folder_remove(cluster.sockets);
    }
}

static kelp_status remove_held(const struct kelp_run_dir *run, const char *name,
                               struct kelp_error *reterr)
{
    struct kelp_leftovers leftovers;
    kelp_status status = KELP_OK;

    kelp_leftovers_find(run->path, &leftovers);
    for (size_t i = 0; i < leftovers.count && status == KELP_OK; i++) {
        if (strcmp(leftovers.names[i], name) == 0) {
            kelp_leftovers_remove_sockets(run->path);
            status = strcmp(name, KELP_RUN_NEXT) == 0 ? kelp_run_next_drop(run->path, reterr)
                                                      : kelp_run_dir_remove(run, name, reterr);
        }
    }
    return status;
}

kelp_status kelp_leftovers_remove(const char *run_path, const char *name, struct kelp_error *reterr)
{
    struct kelp_run_dir run;

    kelp_status status = kelp_run_dir_resume(run_path, &run, reterr);
    if (status == KELP_OK) {
        status = remove_held(&run, name, reterr);
        kelp_run_dir_close(&run);
    }
    return status;
}

static void clear_inference(const char *run_path)
{
    struct kelp_leftovers leftovers;

    if ((!is_there(run_path, ETCD) && !is_there(run_path, of_inferences[0]) &&
         !is_there(run_path, of_inferences[1])) ||
        kelp_run_dir_running(run_path) || !kelp_run_is_inference(run_path)) {
        return;
    }
    kelp_leftovers_find(run_path, &leftovers);
    for (size_t i = 0; i < leftovers.count; i++) {
        (void)kelp_leftovers_remove(run_path, leftovers.names[i], NULL); /* then it stays */
    }
}

void kelp_leftovers_clear_inferences(const char *folder)
{
    char path[KELP_RUN_PATH_MAX + 1];
    DIR *stream = opendir(folder);

    if (!stream) {
        return;
    }
    for (struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        if (entry->d_name[0] != '.' &&
            kelp_run_dir_path(folder, entry->d_name, path, sizeof(path), NULL) == KELP_OK) {
            clear_inference(path);
        }
    }
    (void)closedir(stream);
}
