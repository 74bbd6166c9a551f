/* The run's folder, which hosts with coordinators or shards share: is it here, and has it room? */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/side_by_side.h"
#include "cli/verb/meter.h"
#include "common/base/clock.h"
#include "common/training/plan.h"
#include "kernels/optimizer.h"

#define CHECK "folder"
#define SPACE "space"

/* One look, in a thread of its own: a mount whose server is away may hold it for ever. */
struct folder_look {
    struct kelp_run_home place; /* as etcd has it */
    char path[KELP_RUN_PATH_MAX + 1];
    bool typed; /* path is of --run */

    kelp_status status; /* of comparing it */
    struct kelp_error error;
    bool missing;  /* nothing is at that path */
    int use_error; /* of writing into it, or of asking how much room it has */
    struct statvfs space;
};

static void look(void *user)
{
    struct folder_look *it = user;

    it->missing = access(it->path, F_OK) != 0 && errno == ENOENT;
    it->status = kelp_run_home_check(&it->place, it->path, &it->error);
    it->use_error = statvfs(it->path, &it->space) == 0 ? 0 : errno;
    if (faccessat(AT_FDCWD, it->path, W_OK | X_OK, AT_EACCESS) != 0) {
        it->use_error = errno;
    }
}

/* ---- room ---------------------------------------------------------------------------------- */

/* Bytes of a checkpoint: weights, and what the optimizer keeps of each. 0: not known yet. */
static uint64_t checkpoint_bytes(const struct kelp_doctor_cluster *cluster)
{
    struct kelp_plan plan = {0};
    uint64_t bytes = 0;

    if (cluster->file && cluster->plan &&
        kelp_plan_parse(cluster->plan, strlen(cluster->plan), &plan, NULL) == KELP_OK) {
        bytes = plan.flat_count * sizeof(float) *
                (1 + kelp_optimizer_slot_count(kelp_job_file_job(cluster->file)));
        kelp_plan_fini(&plan);
    }
    return bytes;
}

/* A new checkpoint is written while those before it stay: room for one is needed, and for records.
 */
static void tell_needs(struct kelp_doctor_cluster *cluster, uint64_t there, uint64_t needed)
{
    const bool little = there < needed, hardly = !little && there < 2 * needed;
    char free_text[32], needed_text[32];

    kelp_meter_size(there, free_text, sizeof(free_text));
    kelp_meter_size(needed, needed_text, sizeof(needed_text));
    if (needed == 0) {
        kelp_findings_add(cluster->findings, SPACE, KELP_FINDING_OK,
                          "%s free; the size of a checkpoint is known once a worker has joined",
                          free_text);
        return;
    }
    kelp_findings_add(cluster->findings, SPACE,
                      little   ? KELP_FINDING_PROBLEM
                      : hardly ? KELP_FINDING_WARNING
                               : KELP_FINDING_OK,
                      "%s free, %s a checkpoint, which takes %s", free_text,
                      little   ? "too little for"
                      : hardly ? "hardly enough for"
                               : "enough for",
                      needed_text);
}

static void tell_room(struct kelp_doctor_cluster *cluster, const struct folder_look *it)
{
    if (it->space.f_files > 0 && it->space.f_favail == 0) {
        kelp_findings_add(cluster->findings, SPACE, KELP_FINDING_PROBLEM,
                          "no file can be made in %.200s: its file system has no inodes left",
                          it->path);
    } else {
        tell_needs(cluster, (uint64_t)it->space.f_bavail * it->space.f_frsize,
                   checkpoint_bytes(cluster));
    }
}

/* ---- the folder ---------------------------------------------------------------------------- */

/* A process that needs the folder where it runs: here. */
static const struct kelp_doctor_process *find_here(const struct kelp_doctor_cluster *cluster)
{
    for (size_t i = 0; i < cluster->process_count; i++) {
        if (cluster->processes[i].here) {
            return &cluster->processes[i];
        }
    }
    return NULL;
}

static void tell(struct kelp_doctor_cluster *cluster, const struct folder_look *it)
{
    const struct kelp_doctor_process *here = find_here(cluster);

    if (it->status != KELP_OK && it->missing && !it->typed && here) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "%.200s is not on this host, but %s runs here: mount it, or give its "
                          "path here with --run",
                          it->path, here->id);
    } else if (it->status != KELP_OK && it->missing && !it->typed) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                          "%.200s is not on this host: fine if only workers run here; for "
                          "coordinators and shards mount it, or give its path here with --run",
                          it->path);
    } else if (it->status != KELP_OK) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM, "%.380s", it->error.text);
    } else if (it->use_error != 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "%.250s is the run's folder, but you cannot write in it: %s", it->path,
                          strerror(it->use_error));
        tell_room(cluster, it);
    } else {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "%.250s is the run's folder, and can be written", it->path);
        tell_room(cluster, it);
    }
}

static kelp_status prepare(struct kelp_doctor_cluster *cluster, struct folder_look *it,
                           struct kelp_error *reterr)
{
    kelp_status status =
        kelp_run_home_get(cluster->client, kelp_doctor_left(cluster), &it->place, reterr);
    it->typed = cluster->run != NULL;
    return status == KELP_OK
               ? kelp_run_home_path(&it->place, cluster->run, &cluster->paths, it->path, reterr)
               : status;
}

/* Hosts share none. */
static void tell_apart(struct kelp_doctor_cluster *cluster, const struct kelp_run_home *place)
{
    char where[KELP_RUN_HOME_TEXT_MAX + 1];

    kelp_run_home_text(place, where);
    kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                      "each host has its own, and there are no checkpoints%s%.250s",
                      place->host[0] != '\0' ? "; the leader's is " : "",
                      place->host[0] != '\0' ? where : "");
}

void kelp_doctor_folder(struct kelp_doctor_cluster *cluster)
{
    struct folder_look *it = calloc(1, sizeof(*it));
    struct kelp_error error = {.text = "out of memory"};

    kelp_status status = it ? prepare(cluster, it, &error) : KELP_ERR_NO_MEMORY;
    if (it && it->place.apart && !it->typed) {
        tell_apart(cluster, &it->place);
        free(it);
        return;
    }
    if (status != KELP_OK) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING, "not looked at: %.300s",
                          error.text);
        free(it);
        return;
    }
    if (!kelp_side_wait(look, it, kelp_clock_ms() + kelp_doctor_left(cluster))) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "%.250s does not answer: its file system hangs (df, mount)", it->path);
        return; /* the look goes on, and has it */
    }
    tell(cluster, it);
    free(it);
}
