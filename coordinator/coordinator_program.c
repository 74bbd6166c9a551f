#include "coordinator/coordinator_program.h"

#include "common/program/daemon.h"

static const struct kelp_option options_table[] = {
    KELP_DAEMON_OPTIONS,
    {.name = "run",
     .type = KELP_OPTION_TEXT,
     .placeholder = "DIR",
     .required = true,
     .help = "the run's folder, which gets metrics.jsonl and digests.jsonl"},
    {.name = "no-checkpoints",
     .type = KELP_OPTION_FLAG,
     .help = "make no checkpoints, since the hosts share no folder; a job that loses all copies "
             "of a partition begins again"},
    {.name = "force",
     .type = KELP_OPTION_FLAG,
     .help = "continue from checkpoints of a job that differs in keys that shape the result"},
    KELP_LISTEN_OPTION(" for workers"),
    KELP_ADVERTISE_OPTION,
    KELP_INSECURE_OPTION,
    KELP_ONE_MACHINE_OPTION,
    KELP_GRACE_OPTION("30s",
                      "wait for shards that were also told to end, and for the checkpoint that "
                      "they need; then it ends without it"),
};

const struct kelp_program kelp_coordinator_program = {
    .name = "kelp-coordinator",
    .summary = "assigns lanes and partitions of a job, or stands by",
    .examples = "  kelp-coordinator --etcd http://127.0.0.1:2379 --job etth1 --id coordinator-0 "
                "\\\n"
                "    --run runs/etth1 --listen unix:/run/etth1\n"
                "  kelp-coordinator --etcd https://10.0.0.5:2379 --job etth1 --id coordinator-1 "
                "\\\n"
                "    --run /shared/etth1 --certs coordinator\n",
    .options = options_table,
    .option_count = KELP_ARRAY_COUNT(options_table),
};
