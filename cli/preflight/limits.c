#include "cli/preflight/limits.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define ETCD_OWN     150u /* etcd keeps so many for itself, and serves clients with the rest */
#define DAEMON_OWN   64u  /* libraries, logs, a store */
#define EACH_PROCESS 4u   /* connections to a process of the run, at the most */

#define ETCD_FILE_BYTES    (UINT64_C(64) << 20) /* etcd makes its log so large at once */
#define ETCD_ADDRESS_BYTES (UINT64_C(12) << 30) /* it maps 10 GiB of its store, and more */

#define THREADS_EACH 12u /* of a process of the run, at the least; more on many processors */

static kelp_status no_limit(const char *what, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_IO, "cannot read the limit on %s: %s", what, strerror(errno));
}

static uint32_t processes_of(const struct kelp_job *job)
{
    return job->cluster.workers.max + job->cluster.shards + 1;
}

static kelp_status allow_files(const struct kelp_job *job, bool own_etcd, struct kelp_error *reterr)
{
    const rlim_t needed =
        (own_etcd ? ETCD_OWN : 0u) + DAEMON_OWN + EACH_PROCESS * processes_of(job);
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return no_limit("open files", reterr);
    }
    if (limit.rlim_cur >= needed) {
        return KELP_OK;
    }
    if (limit.rlim_max < needed) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the limit on open files is %ju, and this run needs %ju: raise it, for "
                         "example with ulimit -n %ju",
                         (uintmax_t)limit.rlim_max, (uintmax_t)needed,
                         (uintmax_t)(needed < 1024 ? 1024 : needed));
    }
    limit.rlim_cur = needed;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot raise the limit on open files: %s",
                           strerror(errno));
}

/* Without these, etcd panics with a trace of Go. */
static kelp_status check_etcd(struct kelp_error *reterr)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return no_limit("the size of files", reterr);
    }
    if (limit.rlim_cur < ETCD_FILE_BYTES) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "the limit on the size of a file is %ju KiB, and etcd needs %ju: raise "
                         "it, for example with ulimit -f unlimited",
                         (uintmax_t)limit.rlim_cur >> 10, (uintmax_t)ETCD_FILE_BYTES >> 10);
    }
    if (getrlimit(RLIMIT_AS, &limit) != 0) {
        return no_limit("address space", reterr);
    }
    return limit.rlim_cur >= ETCD_ADDRESS_BYTES
               ? KELP_OK
               : kelp_fail(
                     reterr, KELP_ERR_INVALID,
                     "the limit on address space is %ju KiB, and etcd needs %ju: raise it, for "
                     "example with ulimit -v unlimited (to limit memory, use a control group)",
                     (uintmax_t)limit.rlim_cur >> 10, (uintmax_t)ETCD_ADDRESS_BYTES >> 10);
}

/* Other processes of the user count too, so a run may fail even with this many. */
static kelp_status check_processes(const struct kelp_job *job, bool own_etcd,
                                   struct kelp_error *reterr)
{
    const rlim_t needed = THREADS_EACH * (processes_of(job) + 1 + (own_etcd ? 1 : 0));
    struct rlimit limit;

    if (getrlimit(RLIMIT_NPROC, &limit) != 0) {
        return no_limit("processes", reterr);
    }
    return limit.rlim_cur >= needed || geteuid() == 0 /* root is exempt */
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "the limit on this user's processes and threads is %ju, and this run "
                           "alone takes %ju or more: raise it, for example with ulimit -u 4096",
                           (uintmax_t)limit.rlim_cur, (uintmax_t)needed);
}

kelp_status kelp_limits_allow(const struct kelp_job *job, bool own_etcd, struct kelp_error *reterr)
{
    kelp_status status = allow_files(job, own_etcd, reterr);

    if (status == KELP_OK && own_etcd) {
        status = check_etcd(reterr);
    }
    return status == KELP_OK ? check_processes(job, own_etcd, reterr) : status;
}

void kelp_limits_say(struct kelp_display *display)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_CPU, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        kelp_display_say(display,
                         "the system kills each process of this run after %ju s of processor time "
                         "(ulimit -t); it is then started again",
                         (uintmax_t)limit.rlim_cur);
    }
}
