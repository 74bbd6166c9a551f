/* A scripted worker: joins and reports, but computes nothing. */
#include "tests/lib/cluster/coordinator_peers_internal.h"

#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/training/control.h"
#include "proto/wire.h"

static void worker_beat(void *user)
{
    struct peer_worker *worker = user;
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    report.news = true;
    report.lanes_computed = 3;
    report.times = (Kelp__V1__WorkerTimes *)(uintptr_t)worker->times; /* only read */
    if (worker->stream != NULL && !worker->mute) {
        worker->reports++;
        peer_send_message(worker->stream, &report.base);
    }
}

static void worker_beat_every(struct peer_worker *worker, uint32_t beat_ms)
{
    kelp_rpc_timer_stop(worker->beat);
    worker->beat = NULL;
    worker->beat_ms = beat_ms;
    if (beat_ms > 0) {
        ck_assert_int_eq(
            kelp_rpc_timer_start(worker->peers->loop, beat_ms, worker_beat, worker, &worker->beat),
            KELP_OK);
    }
}

static void worker_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                           void *user)
{
    struct peer_worker *worker = user;
    (void)stream;
    Kelp__V1__WorkerCommand *command = peer_decode(message, &kelp__v1__worker_command__descriptor);
    if (command->map != NULL) {
        ck_assert_uint_eq(command->map->n_partitions, PARTITIONS);
        worker->maps++;
        worker->generation = command->map->generation;
        worker->shards = (uint32_t)command->map->n_shards;
        worker->primary_incarnation =
            command->map->shards[command->map->partitions[0]->primary]->incarnation;
    }
    if (command->has_assignment) {
        worker->assigned = true;
        worker->lane_first = command->lane_first;
        worker->lane_count = command->lane_count;
    }
    worker->leave = worker->leave || command->leave;
    if (command->status != KELP_OK) {
        worker->status = command->status;
        (void)snprintf(worker->error, sizeof(worker->error), "%s", command->error);
    } else if (command->error[0] != '\0') {
        (void)snprintf(worker->waits, sizeof(worker->waits), "%s", command->error);
    }
    if (command->beat_ms > 0) {
        worker_beat_every(worker, command->beat_ms);
    }
    kelp__v1__worker_command__free_unpacked(command, NULL);
}

static void worker_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                          void *user)
{
    struct peer_worker *worker = user;
    (void)stream;
    (void)status;
    (void)text;
    worker->stream = NULL;
    worker->closes++;
    worker_beat_every(worker, 0);
}

static const struct kelp_rpc_stream_events worker_events = {.message = worker_message,
                                                            .closed = worker_closed};

static void worker_join(struct peer_worker *worker)
{
    struct kelp_error error = {.text = ""};
    Kelp__V1__WorkerReport report = KELP__V1__WORKER_REPORT__INIT;
    Kelp__V1__Hello hello;
    char *plan = worker->plan == NULL ? peers_plan(1) : strdup(worker->plan);
    ck_assert_int_eq(
        kelp_rpc_stream_open(
            worker->channel,
            &(struct kelp_rpc_stream_options){
                .path = JOIN, .first_message_ms = 1000, .events = &worker_events, .user = worker},
            &worker->stream, &error),
        KELP_OK);
    peer_fill_hello(&hello, worker->job,
                    worker->spec_digest == 0 ? worker->peers->spec_digest : worker->spec_digest,
                    worker->id, worker->incarnation);
    if (worker->version != NULL) {
        hello.version = (char *)(uintptr_t)worker->version; /* only read */
    }
    report.hello = &hello;
    report.plan = plan;
    peer_send_message(worker->stream, &report.base);
    free(plan);
}

/* Every 50 ms: join the leader that etcd names, unless joined already or given up. */
static void worker_look(void *user)
{
    struct peer_worker *worker = user;
    struct kelp_error error = {.text = ""};
    char address[256];
    if (worker->stream != NULL || worker->status != KELP_OK || worker->leave ||
        (worker->stay && worker->closes > 0)) {
        return;
    }
    if (worker->peers->etcd.server != NULL) {
        peers_leader(worker->peers, address);
    } else {
        (void)snprintf(address, sizeof(address), "%s", worker->address);
    }
    if (address[0] == '\0') {
        return;
    }
    if (worker->channel != NULL && strcmp(address, worker->address) != 0) {
        kelp_rpc_channel_close(worker->channel);
        worker->channel = NULL;
    }
    (void)snprintf(worker->address, sizeof(worker->address), "%s", address);
    if (worker->channel == NULL) {
        ck_assert_int_eq(kelp_rpc_channel_open(worker->peers->loop, address, KELP_ROLE_COORDINATOR,
                                               MESSAGE, &worker->channel, &error),
                         KELP_OK);
    }
    worker_join(worker);
}

void peer_worker_start(struct peers *peers, struct peer_worker *worker)
{
    worker->peers = peers;
    worker->incarnation = peer_next_incarnation();
    ck_assert_int_eq(kelp_rpc_timer_start(peers->loop, 50, worker_look, worker, &worker->timer),
                     KELP_OK);
}

static bool worker_gone(void *user)
{
    const struct peer_worker *worker = user;
    return worker->stream == NULL;
}

void peer_worker_stop(struct peer_worker *worker)
{
    kelp_rpc_timer_stop(worker->timer);
    if (worker->stream != NULL) {                                       /* also stops its beat */
        kelp_rpc_stream_close(worker->stream, KELP_ERR_CLOSED, "dies"); /* cancels the call */
        peers_wait(worker->peers, worker_gone, worker, "the worker's stream to end");
    }
    if (worker->channel != NULL) {
        kelp_rpc_channel_close(worker->channel);
        worker->channel = NULL;
    }
}
