/*
 * A real kelp-ps process with a real etcd, and raw streams to it: a scripted coordinator and
 * scripted workers. On an error these functions fail the running test.
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
#define SHARD_WAIT_MS      20000 /* only a hang takes so long, and it fails the test */

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
/* Start one more shard of the job of `first`, which owns everything except the process. */
void shard_fixture_join(struct shard_fixture *fixture, const struct shard_fixture *first,
                        const char *id);
/* End a shard that joined: ask it to stop, or kill it with SIGKILL. */
void shard_fixture_leave(struct shard_fixture *fixture, bool kill);
/* Start another kelp-ps of that name, without waiting for it. */
struct kelp_process *shard_fixture_spawn(const struct shard_fixture *fixture);
/* The same, with its log to that file. */
struct kelp_process *shard_fixture_spawn_logged(const struct shard_fixture *fixture, int log_fd);
/* Wait until the entry in etcd names another incarnation than `not_this`. */
void shard_fixture_await_entry(struct shard_fixture *fixture, uint64_t not_this);

struct shard_stream {
    struct shard_fixture *fixture;
    struct kelp_rpc_stream *stream; /* NULL once it ended */
    struct kelp_rpc_message *messages[SHARD_MESSAGES_MAX];
    size_t message_count; /* received and not taken */
    bool closed;
    kelp_status status;
    char text[600];
};

void shard_stream_open(struct shard_stream *stream, struct shard_fixture *fixture,
                       const char *method);
/* End the stream and wait for its end; received messages are dropped. */
void shard_stream_close(struct shard_stream *stream);
/* payload may be NULL with 0 bytes. */
void shard_stream_send(struct shard_stream *stream, const ProtobufCMessage *fields,
                       const void *payload, size_t payload_bytes);
void shard_stream_send_raw(struct shard_stream *stream, const void *bytes, size_t length);
/* Wait for a message. Returns the oldest one, decoded; its payload lies in *ret_message, which
 * the caller unrefs. */
void *shard_stream_take(struct shard_stream *stream, const ProtobufCMessageDescriptor *descriptor,
                        struct kelp_rpc_message **ret_message,
                        struct kelp_wire_payload *ret_payload);
void shard_stream_await_closed(struct shard_stream *stream);
/* Run the loop for a while, to see that nothing comes. */
void shard_stream_pass(struct shard_stream *stream, uint32_t ms);

/* The proof in the scripted leader's hello; the fixture's etcd names it. */
#define SHARD_PROOF "scripted"
/* Let etcd name the coordinator with this proof as the leader. */
void shard_fixture_lead(struct shard_fixture *fixture, const char *proof);

/* A hello that the shard accepts, from `id`. */
void shard_hello(const struct shard_fixture *fixture, Kelp__V1__Hello *hello, const char *id);
/* Send hello, plan and a map of `generation` that puts all partitions on the shard with map_epoch =
 * generation, and wait until it is loaded. */
void shard_load(struct shard_stream *control, uint64_t generation);
/* Send only the map. */
void shard_send_map(struct shard_stream *control, uint64_t generation, bool with_hello);
/* The next report. free with kelp__v1__shard_report__free_unpacked(). */
Kelp__V1__ShardReport *shard_take_report(struct shard_stream *control);

#endif
