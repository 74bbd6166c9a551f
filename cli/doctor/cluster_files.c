/* The files that the job reads: are they on this host, at the paths of the job or of --map-path? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/cluster.h"
#include "cli/doctor/side_by_side.h"
#include "cli/run/job_files.h"
#include "common/base/clock.h"

#define CHECK "files"

/* One look at all of them, in a thread of its own: a mount whose server is away may hold it for
 * ever. */
struct files_look {
    struct one {
        char key[32];
        char named[KELP_JOB_PATH_MAX + 1];
        char here[KELP_JOB_PATH_MAX + 1];
        bool missing;
    } files[KELP_JOB_FILES_MAX];
    size_t count;
};

static void look(void *user)
{
    struct files_look *it = user;

    for (size_t i = 0; i < it->count; i++) {
        it->files[i].missing = kelp_job_files_missing(it->files[i].here);
    }
}

static void list(const struct kelp_job_file *file, struct files_look *it)
{
    struct kelp_job_path path;

    for (size_t i = 0; kelp_job_file_path(file, i, &path) && it->count < KELP_JOB_FILES_MAX; i++) {
        if (kelp_job_files_needed(&path)) {
            struct one *one = &it->files[it->count++];
            (void)snprintf(one->key, sizeof(one->key), "%s", path.key);
            (void)snprintf(one->named, sizeof(one->named), "%s", path.named);
            (void)snprintf(one->here, sizeof(one->here), "%s", path.here);
        }
    }
}

static void tell_missing(struct kelp_doctor_cluster *cluster, const struct one *one)
{
    const bool mapped = strcmp(one->named, one->here) != 0;

    kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_WARNING,
                      "%s: %.120s is not on this host%s%.100s%s: fine if no workers run here; "
                      "--map-path FROM=TO says where it is",
                      one->key, one->here, mapped ? " (the job has " : "", mapped ? one->named : "",
                      mapped ? ")" : "");
}

static void tell(struct kelp_doctor_cluster *cluster, const struct files_look *it)
{
    size_t missing = 0;

    for (size_t i = 0; i < it->count; i++) {
        if (it->files[i].missing) {
            tell_missing(cluster, &it->files[i]);
            missing++;
        }
    }
    if (missing == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          it->count == 0 ? "the job reads none"
                                         : "all %zu that the job reads are on this host",
                          it->count);
    }
}

void kelp_doctor_files(struct kelp_doctor_cluster *cluster)
{
    struct files_look *it = cluster->file ? calloc(1, sizeof(*it)) : NULL;

    if (!it) {
        return; /* its text cannot be read, which is said */
    }
    list(cluster->file, it);
    if (!kelp_side_wait(look, it, kelp_clock_ms() + kelp_doctor_left(cluster))) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                          "looking for the job's files does not finish: a file system hangs (df, "
                          "mount)");
        return; /* the look goes on, and has it */
    }
    tell(cluster, it);
    free(it);
}
