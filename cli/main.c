#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "common/log/log.h"
#include "common/program/options/options.h"
#include "common/rpc/rpc.h"

/* A thread of OpenBLAS that finds no room for its buffer tries for ever, from the start of the
 * process on, and the library's end waits for it. */
static bool memory_is_limited(void)
{
    struct rlimit space, data;

    return getrlimit(RLIMIT_AS, &space) == 0 && getrlimit(RLIMIT_DATA, &data) == 0 &&
           (space.rlim_cur != RLIM_INFINITY || data.rlim_cur != RLIM_INFINITY);
}

/* One-time set-up of libraries; the verbs do the rest. */
int main(int argc, char **argv)
{
    kelp_log_init("kelp", "cli", KELP_LOG_ERROR, 2);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "libcurl cannot be initialised");
    }
    kelp_rpc_global_init();
    int exit_status = kelp_command(argc, argv);
    kelp_rpc_global_fini();
    curl_global_cleanup();
    if (fflush(stdout) != 0 && exit_status == KELP_EXIT_OK) {
        exit_status = kelp_complain(KELP_EXIT_FAILED, "cannot write to standard output");
    }
    if (memory_is_limited()) {
        _exit(exit_status);
    }
    return exit_status;
}
