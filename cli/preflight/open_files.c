#include "cli/preflight/open_files.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#define ETCD_OWN     150u /* etcd keeps so many for itself, and serves clients with the rest */
#define DAEMON_OWN   64u  /* libraries, logs, a store */
#define EACH_PROCESS 4u   /* connections to a process of the run, at the most */

kelp_status kelp_open_files_allow(const struct kelp_job *job, bool own_etcd,
                                  struct kelp_error *reterr)
{
    const uint32_t processes = job->cluster.workers.max + job->cluster.shards + 1;
    const rlim_t needed = (own_etcd ? ETCD_OWN : 0u) + DAEMON_OWN + EACH_PROCESS * processes;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot read the limit on open files: %s",
                         strerror(errno));
    }
    if (limit.rlim_cur >= needed) {
        return KELP_OK;
    }
    if (limit.rlim_max < needed) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "a process may have %ju files open, and this run needs %ju: raise the "
                         "limit, for example by ulimit -n %ju",
                         (uintmax_t)limit.rlim_max, (uintmax_t)needed,
                         (uintmax_t)(needed < 1024 ? 1024 : needed));
    }
    limit.rlim_cur = needed;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_IO, "cannot raise the limit on open files: %s",
                           strerror(errno));
}
