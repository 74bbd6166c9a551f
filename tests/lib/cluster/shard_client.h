/*
 * A real kelp-ps process beside a real etcd, and raw streams to it: a scripted coordinator and
 * scripted workers. Everything here fails the running test when it cannot do its work.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_CLIENT_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_CLIENT_H

#include "common/job/job.h"
#include "common/process/process.h"
#include "common/training/plan.h"
#include "proto/convert.h"
#include "proto/wire.h"
#include "tests/lib/etcd/etcd_fixture.h"

#define SHARD_MESSAGES_MAX 256
#define SHARD_WAIT_MS      20000 /* far more than anything takes; a hang fails the test */

struct shard_fixture {
    char id[16]; /* "shard-0" */
    struct etcd_fixture etcd;
    struct kelp_etcd *client;
    struct kelp_job_file *job_file;
    const struct kelp_job *job;
    struct kelp_plan plan;
    char *plan_text;
    struct kelp_process *process;
    struct kelp_rpc_loop *loop;
    struct kelp_rpc_channel *channel;
    char address[128];
    uint64_t incarnation;
};

/*
 * Start etcd, put the job there, start kelp-ps as shard-0 and wait until it has registered.
 * settings: key, value, ..., NULL, over a job with lanes 4, SGD and lr 0.5; elements: of the one
 * tensor of the plan; samples: of the training split.
 */
void shard_fixture_start(struct shard_fixture *fixture, const char *const *settings,
                         uint64_t elements, uint64_t samples);
void shard_fixture_stop(struct shard_fixture *fixture);
/* One more shard of that job beside `first`, which owns everything but the process. */
void shard_fixture_join(struct shard_fixture *fixture, const struct shard_fixture *first,
                        const char *id);
/* The end of one that joined: asked to stop, or killed with SIGKILL. */
void shard_fixture_leave(struct shard_fixture *fixture, bool kill);
/* Another kelp-ps of that name; not waited for. */
struct kelp_process *shard_fixture_spawn(const struct shard_fixture *fixture);
/* The same, with its log to that file. */
struct kelp_process *shard_fixture_spawn_logged(const struct shard_fixture *fixture, int log_fd);
/* Until the entry in etcd names another incarnation than `not_this`. */
void shard_fixture_await_entry(struct shard_fixture *fixture, uint64_t not_this);

struct shard_stream {
    struct shard_fixture *fixture;
    struct kelp_rpc_stream *stream; /* NULL once it ended */
    struct kelp_rpc_message *messages[SHARD_MESSAGES_MAX];
    size_t message_count; /* received and not taken yet */
    bool closed;
    kelp_status status;
    char text[600];
};

void shard_stream_open(struct shard_stream *stream, struct shard_fixture *fixture,
                       const char *method);
/* Ends it and waits for that; takes what was received. */
void shard_stream_close(struct shard_stream *stream);
/* payload may be NULL with 0 bytes. */
void shard_stream_send(struct shard_stream *stream, const ProtobufCMessage *fields,
                       const void *payload, size_t payload_bytes);
void shard_stream_send_raw(struct shard_stream *stream, const void *bytes, size_t length);
/* Until a message is there; then the oldest one, decoded. The payload lies in *ret_message, which
 * the caller unrefs. */
void *shard_stream_take(struct shard_stream *stream, const ProtobufCMessageDescriptor *descriptor,
                        struct kelp_rpc_message **ret_message,
                        struct kelp_wire_payload *ret_payload);
void shard_stream_await_closed(struct shard_stream *stream);
/* Run the loop for a while; for "nothing comes". */
void shard_stream_pass(struct shard_stream *stream, uint32_t ms);

/* What the scripted leader shows with its hello; the fixture's etcd names it. */
#define SHARD_PROOF "scripted"
/* etcd names who shows this as the leader from now on. */
void shard_fixture_lead(struct shard_fixture *fixture, const char *proof);

/* A hello that the shard accepts, from `id`. */
void shard_hello(const struct shard_fixture *fixture, Kelp__V1__Hello *hello, const char *id);
/* Send hello, plan and a map of `generation` that puts all partitions on the shard with map_epoch =
 * generation, and wait until it is loaded. */
void shard_load(struct shard_stream *control, uint64_t generation);
/* Send the map alone. */
void shard_send_map(struct shard_stream *control, uint64_t generation, bool with_hello);
/* The next report. free with kelp__v1__shard_report__free_unpacked(). */
Kelp__V1__ShardReport *shard_take_report(struct shard_stream *control);

#endif
