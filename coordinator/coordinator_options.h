/* What a coordinator process is started with. */
#ifndef KELP_COORDINATOR_COORDINATOR_OPTIONS_H
#define KELP_COORDINATOR_COORDINATOR_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/program/serving.h"
#include "common/scrape/figures.h"
#include "common/tls/credentials.h"

struct kelp_coordinator_options {
    const char *etcd; /* endpoints */
    const char *job;
    const char *id;
    const char *run_folder;
    struct kelp_serving *serving;         /* borrowed; where it listens, and who it is known by */
    struct kelp_credentials *credentials; /* borrowed; NULL: no TLS */
    const char *spec_sha256;              /* of the job's text in etcd; NULL: any */
    bool no_checkpoints;                  /* none are made */
    bool force; /* take checkpoints of a job that kelp_job_compare() refuses */
    uint64_t incarnation;
    uint32_t grace_ms;            /* to see shards off that are told to end when it is */
    struct kelp_figures *figures; /* borrowed; NULL: nobody watches */
};

#endif
