#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cli/doctor/exposure.h"
#include "cli/doctor/proc.h"
#include "common/process/proc_file.h"

#define PROCESSES_MAX 4200 /* of a run, with kelp and etcd */
#define PORTS_MAX     64   /* of one process */
#define FILES_ENOUGH  4096 /* connections of a thousand workers, and the files of shards */

/* ---- ports --------------------------------------------------------------------------------- */

/* Must whoever connects show a certificate? */
static bool asks(const struct kelp_proc *proc)
{
    return proc->certified && !proc->open_urls;
}

static void add_port(const struct kelp_proc *proc, const struct kelp_proc_port *port,
                     struct kelp_findings *findings)
{
    const char *id = proc->id[0] != '\0' ? proc->id : proc->program;

    if (asks(proc)) {
        kelp_findings_add(findings, "ports", KELP_FINDING_OK,
                          "%s listens at %s: clients need a certificate", id, port->address);
    } else {
        kelp_findings_add(findings, "ports", KELP_FINDING_PROBLEM,
                          "%s listens at %s: %s can connect", id, port->address,
                          port->loopback ? "every user of this machine"
                                         : "anybody who can reach the port");
    }
}

/* Returns how many ports it has. */
static size_t look_at_process(const struct kelp_proc *proc, struct kelp_findings *findings)
{
    struct kelp_proc_port ports[PORTS_MAX];
    bool hidden = false;

    const size_t count = kelp_proc_ports(proc->pid, ports, PORTS_MAX, &hidden);
    if (hidden) {
        kelp_findings_add(findings, "ports", KELP_FINDING_WARNING,
                          "%s (process %ld) is another user's: its ports cannot be seen",
                          proc->program, (long)proc->pid);
    }
    for (size_t i = 0; i < count; i++) {
        add_port(proc, &ports[i], findings);
    }
    return count;
}

void kelp_exposure_ports(const struct kelp_doctor_run *run, struct kelp_findings *findings)
{
    struct kelp_proc *list = calloc(PROCESSES_MAX, sizeof(*list));
    char folder[PATH_MAX] = "";
    const struct kelp_proc_run who = {
        .launcher = run->running && run->has_cluster ? (pid_t)run->cluster.pid : 0,
        .job = run->job->name,
        .etcd = run->has_cluster ? run->cluster.etcd : "",
        .folder = realpath(run->path, folder) ? folder : ""};
    size_t ports = 0;

    if (!list) {
        kelp_findings_add(findings, "ports", KELP_FINDING_WARNING, "not looked at: out of memory");
        return;
    }
    const size_t count = kelp_proc_list(&who, list, PROCESSES_MAX);
    for (size_t i = 0; i < count; i++) {
        ports += look_at_process(&list[i], findings);
    }
    free(list);
    if (count == 0) {
        kelp_findings_add(findings, "ports", KELP_FINDING_OK,
                          "no process of the run is on this machine");
    } else if (ports == 0) {
        kelp_findings_add(findings, "ports", KELP_FINDING_OK,
                          "none of the %zu processes listens on a port", count);
    }
}

/* ---- this machine -------------------------------------------------------------------------- */

static void look_at_cores(struct kelp_findings *findings)
{
    char pattern[256];
    struct rlimit limit = {0};

    (void)kelp_proc_file_read("sys/kernel/core_pattern", pattern, sizeof(pattern));
    pattern[strcspn(pattern, "\n")] = '\0';
    if (getrlimit(RLIMIT_CORE, &limit) != 0 || (limit.rlim_cur == 0 && pattern[0] != '|')) {
        kelp_findings_add(findings, "core files", KELP_FINDING_OK, "a crash writes none");
    } else if (pattern[0] == '|') {
        kelp_findings_add(findings, "core files", KELP_FINDING_WARNING,
                          "a crash passes memory, including weights, to %.200s", pattern + 1);
    } else {
        kelp_findings_add(findings, "core files", KELP_FINDING_WARNING,
                          "a crash writes memory, including weights, to %.200s; ulimit -c 0 "
                          "prevents it",
                          pattern);
    }
}

static void look_at_files(struct kelp_findings *findings)
{
    struct rlimit limit = {0};

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < FILES_ENOUGH) {
        kelp_findings_add(findings, "open files", KELP_FINDING_WARNING,
                          "at most %llu per process (ulimit -Hn): a few connections can keep "
                          "others out; %d is better",
                          (unsigned long long)limit.rlim_max, FILES_ENOUGH);
    } else {
        kelp_findings_add(findings, "open files", KELP_FINDING_OK,
                          "enough for connections (ulimit -Hn)");
    }
}

void kelp_exposure_machine(struct kelp_findings *findings)
{
    look_at_cores(findings);
    look_at_files(findings);
}
