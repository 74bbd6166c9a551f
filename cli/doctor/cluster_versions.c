/* Which versions of Kelp the processes of a job are of, and whether they are this command's. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/doctor/cluster.h"
#include "common/program/options/version.h"

#define CHECK "versions"

static bool is_first_of_its_version(const struct kelp_doctor_cluster *cluster, size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (strcmp(cluster->processes[i].version, cluster->processes[index].version) == 0) {
            return false;
        }
    }
    return true;
}

static size_t count_version(const struct kelp_doctor_cluster *cluster, const char *version)
{
    size_t count = 0;

    for (size_t i = 0; i < cluster->process_count; i++) {
        count += strcmp(cluster->processes[i].version, version) == 0;
    }
    return count;
}

static void tell_version(struct kelp_doctor_cluster *cluster, size_t index)
{
    const struct kelp_doctor_process *process = &cluster->processes[index];
    const size_t count = count_version(cluster, process->version);
    const size_t number = strlen(kelp_version());
    char ours[KELP_DOCTOR_VERSION_BYTES], others[48] = "";
    const bool same_number = strncmp(process->version, kelp_version(), number) == 0 &&
                             (process->version[number] == ' ' || process->version[number] == '\0');

    kelp_doctor_version(kelp_version(), kelp_version_commit(), ours);
    if (strcmp(process->version, ours) == 0) {
        kelp_findings_add(cluster->findings, CHECK, KELP_FINDING_OK,
                          "%zu process%s of %s, as this command", count,
                          count == 1 ? " is" : "es are", ours);
        return;
    }
    if (count > 1) {
        (void)snprintf(others, sizeof(others), " and %zu others", count - 1);
    }
    kelp_findings_add(cluster->findings, CHECK,
                      same_number ? KELP_FINDING_WARNING : KELP_FINDING_PROBLEM,
                      "%s%s %s of %s, and this command of %s%s", process->id, others,
                      count > 1 ? "are" : "is", process->version, ours,
                      same_number ? "" : ": all processes of a job must have the same version");
}

/* What shards compute with, which they compare when they register. */
static void tell_builds(struct kelp_doctor_cluster *cluster)
{
    const struct kelp_doctor_process *first = NULL;
    const bool mixed = cluster->file && kelp_job_file_job(cluster->file)->cluster.mixed;

    for (size_t i = 0; i < cluster->process_count && !mixed; i++) {
        const struct kelp_doctor_process *process = &cluster->processes[i];
        if (process->build[0] == '\0') {
            continue;
        }
        first = first ? first : process;
        if (strcmp(process->build, first->build) != 0) {
            kelp_findings_add(
                cluster->findings, CHECK, KELP_FINDING_PROBLEM,
                "%s is of build %s, but %s is of build %s: start the same kelp-ps for all shards",
                first->id, first->build, process->id, process->build);
            return;
        }
    }
}

void kelp_doctor_versions(struct kelp_doctor_cluster *cluster)
{
    for (size_t i = 0; i < cluster->process_count; i++) {
        if (cluster->processes[i].version[0] != '\0' && is_first_of_its_version(cluster, i)) {
            tell_version(cluster, i);
        }
    }
    tell_builds(cluster);
}
