#include "worker/worker_program.h"

#include "common/program/daemon.h"
#include "common/program/options/map_option.h"
#include "common/program/options/trace_option.h"
#include "common/program/shm_option.h"

static const struct kelp_option options[] = {
    KELP_DAEMON_OPTIONS,
    KELP_MAP_PATH_OPTION(NULL, ""),
    KELP_SHM_FOLDER_OPTION(NULL, ""),
    KELP_GRACE_OPTION("5s", "finish and push the lanes that were begun; then it ends without "
                            "them"),
    {.name = "fault",
     .type = KELP_OPTION_TEXT,
     .placeholder = "KIND@step=N",
     .group = "Testing",
     .help = "fail at a training step, or with @version=N at an entry of any kind: kill@step=N "
             "dies by SIGKILL before its push, kill-pushing@step=N dies during the push, "
             "stall@step=N is three seconds late, hang@step=N never ends that lane"},
    KELP_TRACE_OPTIONS("Testing"),
};

const struct kelp_program kelp_worker_program = {
    .name = "kelp-worker",
    .summary = "computes gradients of a job: pulls weights, computes its lanes, pushes",
    .examples = "  kelp-worker --etcd http://127.0.0.1:2379 --job etth1 --id worker-0\n"
                "  KELP_ETCD=http://127.0.0.1:2379 kelp-worker --job etth1 --id worker-1 "
                "--log-level debug\n",
    .options = options,
    .option_count = KELP_ARRAY_COUNT(options),
};
