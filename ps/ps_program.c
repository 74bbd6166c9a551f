#include "ps/ps_program.h"

#include "common/program/daemon.h"
#include "common/program/options/map_option.h"
#include "common/program/options/trace_option.h"
#include "common/program/shm_option.h"
#include "ps/core/limits.h"

static const struct kelp_option option_list[] = {
    KELP_DAEMON_OPTIONS,
    KELP_MAP_PATH_OPTION(NULL, ""),
    KELP_LISTEN_OPTION(", which others must reach"),
    KELP_ADVERTISE_OPTION,
    KELP_INSECURE_OPTION,
    KELP_ONE_MACHINE_OPTION,
    KELP_SHM_FOLDER_OPTION(NULL, ""),
    {.name = "run",
     .type = KELP_OPTION_TEXT,
     .placeholder = "FOLDER",
     .default_text = "",
     .help = "folder of the run, for checkpoints: an absolute path that all hosts of the job "
             "reach; empty: no checkpoints"},
    {.name = "zone",
     .type = KELP_OPTION_TEXT,
     .placeholder = "NAME",
     .default_text = "",
     .help = "name of what fails together with this shard, such as a host or a rack; copies of a "
             "partition are kept in different zones"},
    KELP_GRACE_OPTION("30s", "move this shard's partitions to other shards; then it ends with "
                             "those that are left"),
    {.name = "threads",
     .type = KELP_OPTION_INTEGER,
     .min = 1,
     .max = KELP_PS_THREADS_MAX,
     .help = "threads that serve streams (default: the job's transport.streams)"},
    KELP_TRACE_OPTIONS("Testing"),
};

const struct kelp_program kelp_ps_program = {
    .name = "kelp-ps",
    .summary = "hosts partitions of a job's weights: adds gradients, applies the optimizer, "
               "serves weights",
    .examples =
        "  kelp-ps --etcd http://127.0.0.1:2379 --job etth1 --id shard-0 --listen "
        "unix:/run/shard-0\n"
        "  kelp-ps --etcd https://10.0.0.1:2379,https://10.0.0.2:2379 --job etth1 --id shard-1 \\\n"
        "    --certs shard\n",
    .options = option_list,
    .option_count = KELP_ARRAY_COUNT(option_list)};
