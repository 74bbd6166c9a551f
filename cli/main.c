#include <curl/curl.h>
#include <stdio.h>

#include "cli/verbs.h"
#include "common/log/log.h"
#include "common/program/options/options.h"
#include "common/rpc/rpc.h"

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
        return kelp_complain(KELP_EXIT_FAILED, "cannot write to standard output");
    }
    return exit_status;
}
