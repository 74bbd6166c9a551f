/*
 * The parameter server's rpc service: Exchange streams of workers, Control streams of coordinators,
 * Status. It turns messages into events of the shard, and what the shard says into messages.
 *
 * Threads: callbacks run in the loop; several threads may run it at once.
 */
#ifndef KELP_PS_SERVICE_SHARD_SERVICE_H
#define KELP_PS_SERVICE_SHARD_SERVICE_H

#include "common/job/job.h"
#include "common/log/trace.h"
#include "common/rpc/rpc.h"
#include "common/scrape/figures.h"

struct kelp_service;

/* Everything is borrowed for the service's life. */
struct kelp_service_options {
    struct kelp_rpc_loop *loop;
    const struct kelp_job *job;
    uint64_t spec_digest;
    const char *id; /* "shard-0" */
    uint64_t incarnation;
    const char *listen;           /* "127.0.0.1:0" */
    const char *advertise;        /* what clients dial; NULL: that */
    const char *run;              /* folder of the run, which all hosts reach; "": no checkpoints */
    struct kelp_figures *figures; /* of kelp_service_look(); NULL: nobody watches */
    struct kelp_trace *trace;     /* of some steps; NULL: none is made */
    /* The leader lets this shard go; why is for people. In the loop, perhaps more than once. */
    void (*may_leave)(const char *why, void *user);
    /* The job demands shared memory, and it is not to be had with another shard: this one must end.
     * In the loop, perhaps more than once. */
    void (*refused)(const struct kelp_error *why, void *user);
    /* A coordinator leads that kelp_service_leader() has not named: is that old? In the loop. */
    void (*doubt_leader)(void *user);
    void *user;
};

/* Errors: those of kelp_rpc_server_open(); KELP_ERR_INVALID too where the job demands shared memory
 * and this shard cannot offer it. */
kelp_status kelp_service_open(const struct kelp_service_options *options,
                              struct kelp_service **ret_service,
                              struct kelp_error *reterr) KELP_MUST_USE;
/* Who leads, by the digest of its proof (common/tls/proof.h): its streams alone are obeyed. */
void kelp_service_leader(struct kelp_service *service, const char *proof_digest);
/* This process was told to end: leaders hear it, take the partitions away, and let it go. False: it
 * has none, so that nobody needs to know. Any thread. */
bool kelp_service_leave(struct kelp_service *service);
/* What of the job is here, for people: "leads 2 partitions, follows 1". Any thread. */
void kelp_service_describe(struct kelp_service *service, char *text, size_t text_bytes);
/* Set the figures of a shard; every now and then. Why the shard does not take part, a text that
 * stays; NULL: the newest map that it has is loaded. In the loop. */
const char *kelp_service_look(struct kelp_service *service);
const char *kelp_service_address(const struct kelp_service *service);
/* Runs the loop until all streams have ended; no other thread runs it any more. NULL does nothing.
 */
void kelp_service_close(struct kelp_service *service);

#endif
