#include "cli/chaos/chaos_ask.h"

#include "cli/cluster/job_client.h"

kelp_status kelp_chaos_ask_drain(const struct kelp_chaos_asks *asks, const char *name,
                                 struct kelp_error *reterr)
{
    struct kelp_job_client *client = NULL;

    kelp_status status = kelp_job_client_open(asks->etcd, asks->job, asks->certs, &client, reterr);
    if (status == KELP_OK) {
        status = kelp_job_client_drain(client, name, KELP_CHAOS_ASK_MS, reterr);
        kelp_job_client_close(client);
    }
    return status;
}

kelp_status kelp_chaos_ask_scale(const struct kelp_chaos_asks *asks,
                                 const struct kelp_chaos_fault *fault, struct kelp_error *reterr)
{
    Kelp__V1__Targets targets = KELP__V1__TARGETS__INIT;
    struct kelp_job_client *client = NULL;

    if (fault->role == KELP_CHAOS_SHARD) {
        targets.shards = fault->to;
    } else {
        targets.workers_min = fault->to;
        targets.workers_max = fault->to;
    }
    kelp_status status = kelp_job_client_open(asks->etcd, asks->job, asks->certs, &client, reterr);
    if (status == KELP_OK) {
        status = kelp_job_client_scale(client, &targets, KELP_CHAOS_ASK_MS, reterr);
        kelp_job_client_close(client);
    }
    return status;
}
