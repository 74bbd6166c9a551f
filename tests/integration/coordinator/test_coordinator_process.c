/* Real kelp-coordinator processes with a real etcd; workers and shards are scripted. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/training/control.h"
#include "tests/lib/cluster/coordinator_demo.h"
#include "tests/lib/suite.h"

static void setup_impatient(void)
{
    demo_set_up("1s");
}

static bool lanes_are_counted(const Kelp__V1__StatusReply *reply)
{
    return reply->n_workers == 2 && reply->workers[0]->lanes_computed == 3;
}

KELP_SUITE(.before = etcd_fixture_require)
KELP_CASE("cluster", .timeout_s = 60, .setup = demo_setup, .teardown = demo_teardown)

/* From nothing to running: plan, map and state stand in etcd, the lanes are shared, Status tells.
 */
KELP_TEST(starts_up)
{
    demo_start();
    ck_assert(peers_logged(&demo.peers, 0, "error coordinator/coordinator-0 insecure: every user"));
    char *plan = peers_get(&demo.peers, "plan");
    char *expected = peers_plan(1);
    ck_assert_str_eq(plan, expected);
    free(plan);
    free(expected);
    char *map = peers_get(&demo.peers, "map");
    ck_assert_ptr_nonnull(strstr(map, "\"generation\":1,\"serial\":1,\"restore_version\":0,"));
    free(map);
    ck_assert_uint_eq(demo.shards[0].generation, 1);
    ck_assert_uint_eq(demo.workers[0].shards, 2);
    ck_assert_uint_eq(demo.workers[0].primary_incarnation, demo.shards[0].incarnation);
    Kelp__V1__StatusReply *reply =
        demo_status_when(lanes_are_counted, "the lanes that were computed");
    ck_assert_str_eq(reply->state, "running");
    ck_assert_str_eq(reply->reason, "");
    ck_assert_str_eq(reply->job, "demo");
    ck_assert_str_eq(reply->leader, "coordinator-0");
    ck_assert_uint_eq(reply->n_workers, 2);
    ck_assert_uint_eq(reply->workers[0]->lane_count, 4);
    ck_assert_uint_eq(reply->workers[0]->lanes_computed, 3);
    ck_assert_uint_eq(reply->n_shards, 2);
    ck_assert_uint_eq(reply->shards[1]->partitions, 8);
    ck_assert(reply->shards[1]->connected);
    ck_assert_uint_eq(reply->map->n_partitions, 16);
    ck_assert_uint_gt(reply->total_steps, 0);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    kelp_process_signal(demo.peers.coordinators[0], SIGTERM);
    demo_wait_for_end(0, 0);
}

static bool one_is_missing(const Kelp__V1__StatusReply *reply)
{
    return strcmp(reply->reason, "waiting for 1 of 2 workers") == 0;
}

static bool beats(void *user)
{
    const struct peer_worker *worker = user;
    return worker->reports >= 5;
}

/* Until all are there, Status says for whom it waits. */
KELP_TEST(says_whom_it_waits_for)
{
    peers_coordinator(&demo.peers, 0, NULL);
    peer_worker_start(&demo.peers, &demo.workers[0]);
    Kelp__V1__StatusReply *reply =
        demo_status_when(one_is_missing, "the missing worker to be named");
    ck_assert_str_eq(reply->state, "starting");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    peers_wait(&demo.peers, beats, &demo.workers[0], "reports");
    ck_assert_uint_eq(demo.workers[0].maps, 0);
}

static void expect_one_loss(void)
{
    peers_wait(&demo.peers, demo_has_all_lanes, &demo.workers[0], "worker-0 to have all lanes");
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_uint_eq(reply->worker_losses, 1);
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
}

/* A worker whose stream breaks is replaced at once: failure.detect is longer than a test waits. */
KELP_TEST(lost_worker)
{
    demo_start();
    peer_worker_stop(&demo.workers[1]);
    demo.workers[1].timer = NULL;
    expect_one_loss();
}

KELP_CASE("impatient", .timeout_s = 60, .setup = setup_impatient, .teardown = demo_teardown)

/* One that is silent is replaced after failure.detect. */
KELP_TEST(silent_worker)
{
    demo_start();
    uint64_t begun = kelp_clock_ms();
    demo.workers[1].mute = true;
    demo.workers[1].stay = true;
    expect_one_loss();
    ck_assert_uint_ge(kelp_clock_ms() - begun, 800);
}

static bool three_share(void *user)
{
    (void)user;
    return demo.workers[0].lane_count + demo.workers[1].lane_count + demo.workers[2].lane_count ==
               8 &&
           demo.workers[2].generation == 1 && demo.workers[2].lane_count > 0;
}

KELP_CASE("cluster", .timeout_s = 60, .setup = demo_setup, .teardown = demo_teardown)

/* A worker that joins later gets lanes and the map without anybody being restarted. */
KELP_TEST(late_worker)
{
    demo_start();
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, three_share, NULL, "three workers to share the lanes");
    ck_assert_uint_eq(demo.workers[0].maps, 1);
}

/* Another data set, another job, another specification, another version: one clear line each, and
 * the others go on. */
KELP_LOOP_TEST(strangers_are_refused, 0, 4)
{
    demo_start();
    char *plan = peers_plan(2);
    const char *expected[] = {"data fingerprint", "belongs to job other",
                              "another text of job demo",
                              "worker-2 has version 0.0.9, but coordinator-0 has version "};
    if (_i == 0) {
        demo.workers[2].plan = plan;
    } else if (_i == 1) {
        demo.workers[2].job = "other";
    } else if (_i == 3) {
        demo.workers[2].version = "0.0.9";
    } else {
        demo.workers[2].spec_digest = 12345;
    }
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, demo_was_refused, &demo.workers[2], "the refusal");
    ck_assert_int_eq(demo.workers[2].status, KELP_ERR_MISMATCH);
    ck_assert_msg(strstr(demo.workers[2].error, expected[_i]) != NULL, "%s", demo.workers[2].error);
    ck_assert(!demo.workers[2].assigned);
    ck_assert_uint_eq(demo.workers[0].lane_count, 4);
    free(plan);
}

/* Where the launcher has written the plan, the first worker does not say what it is: one with
 * another plan is refused, and those that come after it train. */
KELP_TEST(first_worker_has_another_plan)
{
    char *plan = peers_plan(1), *forged = peers_plan(2);
    uint64_t generation = 1;

    ck_assert_int_eq(
        kelp_etcd_put(demo.peers.client, "/kelp/demo/plan", plan, 0, PEERS_HANG_MS, NULL), KELP_OK);
    peers_coordinator(&demo.peers, 0, NULL);
    demo.workers[2].plan = forged;
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, demo_was_refused, &demo.workers[2], "the refusal");
    ck_assert_int_eq(demo.workers[2].status, KELP_ERR_MISMATCH);
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&demo.peers, &demo.shards[i]);
        peer_worker_start(&demo.peers, &demo.workers[i]);
    }
    peers_wait(&demo.peers, demo_both_run, &generation, "both workers to have map and lanes");
    free(plan);
    free(forged);
}

/* Bytes that are no protobuf, and a plan that is none, end that stream alone. */
KELP_TEST(garbage_is_refused)
{
    demo_start();
    demo.workers[2].plan = "{\"samples\":";
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, demo_was_refused, &demo.workers[2], "the refusal");
    ck_assert_ptr_nonnull(strstr(demo.workers[2].error, "the worker's plan"));
    peer_worker_stop(&demo.workers[2]);
    demo.workers[2].timer = NULL;
    struct kelp_rpc_message *message = kelp_rpc_message_create();
    ck_assert_int_eq(kelp_rpc_message_copy(message, "\xff\xff\xff\xff\xff", 5), KELP_OK);
    ck_assert_int_eq(kelp_rpc_stream_send(demo.workers[1].stream, message), KELP_OK);
    peers_wait(&demo.peers, demo_was_refused, &demo.workers[1], "the refusal");
    ck_assert_int_eq(demo.workers[1].status, KELP_ERR_FORMAT);
    peers_wait(&demo.peers, demo_has_all_lanes, &demo.workers[0], "worker-0 to have all lanes");
}

static bool is_told_to_wait(void *user)
{
    const struct peer_worker *worker = user;
    return worker->waits[0] != '\0';
}

static bool newer_has_its_lanes(void *user)
{
    (void)user;
    return demo.workers[2].lane_count == 4 && demo.workers[0].lane_count == 4;
}

/* A second process with the same id puts nobody out: it waits, and takes the place once the first
 * one has gone. */
KELP_TEST(same_id_waits)
{
    demo_start();
    demo.workers[2].id = "worker-1";
    peer_worker_start(&demo.peers, &demo.workers[2]);
    peers_wait(&demo.peers, is_told_to_wait, &demo.workers[2], "the newer one to be told");
    ck_assert_str_eq(demo.workers[2].waits, "another process has the id worker-1");
    ck_assert_int_eq(demo.workers[1].status, KELP_OK);
    ck_assert_uint_eq(demo.workers[1].closes, 0);
    ck_assert(!demo.workers[2].assigned);
    ck_assert(peers_logged(&demo.peers, 0, "worker waits worker=worker-1"));
    peer_worker_stop(&demo.workers[1]);
    demo.workers[1].timer = NULL;
    peers_wait(&demo.peers, newer_has_its_lanes, NULL, "the newer one to have its lanes");
    ck_assert_uint_eq(demo.workers[2].closes, 0);
}

/* Partition 0 takes what worker-0 pushes, and training goes on, until the worker has so many lanes.
 */
static bool works_alone(void *user)
{
    static uint64_t version;
    (void)user;
    version++;
    peer_shard_word(&demo.shards[0], version, version, KELP_STEP_TRAIN);
    return demo.workers[0].lane_count == 8 && demo.workers[1].lane_count == 1;
}

static bool share_again(void *user)
{
    (void)user;
    return demo.workers[0].lane_count == 4 && demo.workers[1].lane_count == 4;
}

/* A worker that answers and computes nothing, while another one works, loses its lanes. It is tried
 * with one, and has them again when a shard says that it works. */
KELP_TEST(lanes_are_for_who_works)
{
    demo_start();
    demo.shards[0].worked = "worker-0";
    peers_wait(&demo.peers, works_alone, NULL, "the idle worker to lose its lanes");
    ck_assert(peers_logged(&demo.peers, 0, "worker loses its lanes worker=worker-1"));
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_uint_eq(reply->n_workers, 2);
    ck_assert_uint_eq(reply->worker_losses, 0);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    demo.shards[0].worked = "worker-1";
    peers_wait(&demo.peers, share_again, NULL, "both to share the lanes again");
}

/* Of the worker's status: its newest window, as far as it is taken. NULL: none. Owned (free()). */
static char *times_in_status(const char *id, uint64_t *ret_serial)
{
    Kelp__V1__StatusReply *reply = demo_status();
    char *shard = NULL;

    *ret_serial = 0;
    for (size_t i = 0; i < reply->n_workers; i++) {
        const Kelp__V1__WorkerTimes *times = reply->workers[i]->times;
        if (strcmp(reply->workers[i]->id, id) == 0 && times) {
            *ret_serial = times->serial;
            shard = strdup(times->shard);
        }
    }
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    return shard;
}

static bool has_window(void *user)
{
    uint64_t serial = 0;

    free(times_in_status("worker-0", &serial));
    return serial == *(const uint64_t *)user;
}

static bool has_reported(void *user)
{
    return demo.workers[0].reports >= *(const uint64_t *)user;
}

/* Where a worker says that its time went is taken when somebody can have measured that. Else it is
 * ignored, and the worker stays: it is advice. */
KELP_TEST(impossible_times_are_ignored)
{
    Kelp__V1__WorkerTimes times = KELP__V1__WORKER_TIMES__INIT;
    char long_name[100] = "";
    uint64_t serial = 7;

    memset(long_name, 's', sizeof(long_name) - 1);
    times.serial = serial;
    times.steps = 10;
    times.lanes = 40;
    times.length_us = 1000000;
    times.wait_us = 900000;
    times.alone_us = 400000;
    times.shard = (char *)"shard-0";
    demo.workers[0].times = &times;
    demo_start();
    peers_wait(&demo.peers, has_window, &serial, "its window to be taken");
    for (int i = 0; i < 3; i++) {
        Kelp__V1__WorkerTimes bad = times;
        bad.serial = 8;
        bad.steps = i == 0 ? 0 : bad.steps;
        bad.compute_us = i == 1 ? UINT64_MAX : 0;
        bad.shard = i == 2 ? long_name : bad.shard;
        demo.workers[0].times = &bad;
        uint64_t reports = demo.workers[0].reports + 3;
        peers_wait(&demo.peers, has_reported, &reports, "reports with impossible times");
        char *shard = times_in_status("worker-0", &serial);
        ck_assert_uint_eq(serial, 7);
        ck_assert_str_eq(shard, "shard-0");
        free(shard);
        demo.workers[0].times = &times;
    }
    ck_assert_uint_eq(demo.workers[0].closes, 0);
    times.serial = serial = 9;
    peers_wait(&demo.peers, has_window, &serial, "the next window to be taken");
}

static unsigned count_asked(void)
{
    char *log = peers_file(&demo.peers, "coordinator-0.log");
    unsigned count = 0;
    for (const char *at = log; (at = strstr(at, "checkpoint asked for peer=")) != NULL; at++) {
        count++;
    }
    free(log);
    return count;
}

/* Who asks without end fills no log: after some lines it is one a second, which counts. */
KELP_TEST(lines_are_bounded)
{
    demo_start();
    uint64_t begun = kelp_clock_ms();
    for (unsigned i = 0; i < 100; i++) {
        (void)peers_checkpoint(&demo.peers, false);
    }
    ck_assert_uint_ge(count_asked(), 20);
    ck_assert_uint_le(count_asked(), 21 + (kelp_clock_ms() - begun) / 1000);
}

static bool stream_ended(void *user)
{
    const struct peer_shard *shard = user;
    return shard->refused > 0;
}

static bool shard_is_missing(const Kelp__V1__StatusReply *reply)
{
    return strcmp(reply->reason, "waiting for 1 of 2 shards") == 0;
}

/* A shard of another job, or of another version, is not taken. */
KELP_LOOP_TEST(strange_shard_is_refused, 0, 2)
{
    peers_coordinator(&demo.peers, 0, NULL);
    demo.shards[1].job = _i == 0 ? "other" : NULL;
    demo.shards[1].version = _i == 0 ? NULL : "0.0.9";
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&demo.peers, &demo.shards[i]);
        peer_worker_start(&demo.peers, &demo.workers[i]);
    }
    peers_wait(&demo.peers, stream_ended, &demo.shards[1], "the shard's stream to be closed");
    Kelp__V1__StatusReply *reply =
        demo_status_when(shard_is_missing, "the missing shard to be told");
    ck_assert(peers_logged(&demo.peers, 0,
                           _i == 0 ? "shard-1 belongs to job other"
                                   : "shard-1 has version 0.0.9, but coordinator-0 has "));
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    ck_assert_uint_eq(demo.shards[1].generation, 0);
}

/* A shard that is started again is a new generation with the new incarnation. */
KELP_TEST(restarted_shard)
{
    uint64_t generation = 2;
    demo_start();
    peer_shard_stop(&demo.shards[0]);
    peer_shard_start(&demo.peers, &demo.shards[0]);
    peers_wait(&demo.peers, demo_both_run, &generation, "the workers to have generation 2");
    ck_assert_uint_eq(demo.workers[0].primary_incarnation, demo.shards[0].incarnation);
    ck_assert_uint_eq(demo.shards[1].generation, 2);
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_uint_eq(reply->shard_losses, 1);
    ck_assert_uint_eq(reply->map->partitions[0]->map_epoch, 2);
    ck_assert_uint_eq(reply->map->partitions[15]->map_epoch, 1);
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    char *events = peers_file(&demo.peers, "events.jsonl");
    ck_assert_ptr_nonnull(strstr(events, "\"event\":\"shard-lost\",\"who\":\"shard-0\","
                                         "\"why\":\"its process has ended"));
    ck_assert_ptr_nonnull(strstr(events, "\"event\":\"generation\",\"why\":\"shard-0 was lost\","
                                         "\"generation\":2,"));
    free(events);
}

/* A shard that stays away: after failure.shard_wait its partitions go to the other one. */
KELP_TEST(lost_shard)
{
    uint64_t generation = 2;
    demo_start();
    peer_shard_stop(&demo.shards[1]);
    peer_shard_unregister(&demo.shards[1]);
    peers_wait(&demo.peers, demo_both_run, &generation, "the workers to have generation 2");
    ck_assert_uint_eq(demo.workers[0].shards, 1);
    ck_assert_uint_eq(demo.shards[0].generation, 2);
}

static bool standby_leads(void *user)
{
    uint32_t *index = user;
    return peers_logged(&demo.peers, *index, "leading address");
}

static bool stands_by(void *user)
{
    uint32_t *index = user;
    return peers_logged(&demo.peers, *index, "standing by leader=");
}

static bool hears(void *user)
{
    uint32_t *index = user;
    return peers_logged(&demo.peers, *index, "the leader is heard");
}

static bool rejoined(void *user)
{
    (void)user;
    return demo.workers[0].stream != NULL && demo.workers[1].stream != NULL &&
           demo.workers[0].maps == 2 && demo.workers[1].maps == 2 &&
           demo.workers[0].lane_count + demo.workers[1].lane_count == 8;
}

/* The leader dies: the standby leads, keeps map and generation, and restores nothing. */
KELP_TEST(standby_takes_over)
{
    uint32_t standby = 1;
    demo_start();
    peers_coordinator(&demo.peers, 1, NULL);
    peers_wait(&demo.peers, hears, &standby, "the second one to hear the first");
    ck_assert(!peers_logged(&demo.peers, 1, "leading address"));
    char *before = peers_get(&demo.peers, "map");
    peers_coordinator_kill(&demo.peers, 0);
    peers_wait(&demo.peers, standby_leads, &standby, "the standby to lead");
    ck_assert(peers_logged(&demo.peers, 1, "the leader does not answer"));
    peers_wait(&demo.peers, rejoined, NULL, "the workers to be back with map and lanes");
    char *after = peers_get(&demo.peers, "map");
    ck_assert_str_eq(before, after);
    ck_assert_uint_eq(demo.workers[0].generation, 1);
    ck_assert_uint_eq(demo.shards[0].generation, 1);
    Kelp__V1__StatusReply *reply = demo_status();
    ck_assert_str_eq(reply->leader, "coordinator-1");
    ck_assert_str_eq(reply->state, "running");
    kelp__v1__status_reply__free_unpacked(reply, NULL);
    free(before);
    free(after);
}

/* The leader is stopped, so that it keeps its lease for a while and its streams for longer: the
 * standby deletes its key. When it goes on, it finds that it was deposed, and stands by. */
KELP_TEST(standby_replaces_a_leader_that_hangs)
{
    uint32_t first = 0, standby = 1;
    demo_start();
    peers_coordinator(&demo.peers, 1, NULL);
    peers_wait(&demo.peers, hears, &standby, "the second one to hear the first");
    kelp_process_signal(demo.peers.coordinators[0], SIGSTOP);
    peers_wait(&demo.peers, standby_leads, &standby, "the standby to lead");
    ck_assert(peers_logged(&demo.peers, 1, "the leader does not answer"));
    kelp_process_signal(demo.peers.coordinators[0], SIGCONT);
    peers_wait(&demo.peers, hears, &first, "the first one to hear the second");
    peers_wait(&demo.peers, rejoined, NULL, "the workers to be back with map and lanes");
    ck_assert_uint_eq(demo.shards[0].generation, 1);
}

static bool accuses(void *user)
{
    (void)user;
    return peers_logged(&demo.peers, 0, "the leader does not answer");
}

/* A leader that is started again under its name finds its own key in etcd, and does not wait for
 * the lease of its predecessor. */
KELP_TEST(leader_is_started_again)
{
    demo_start();
    peers_coordinator_kill(&demo.peers, 0);
    peers_coordinator(&demo.peers, 0, NULL);
    peers_wait(&demo.peers, accuses, NULL, "it to find that its predecessor is gone");
    peers_wait(&demo.peers, rejoined, NULL, "the workers to be back with map and lanes");
}

/* A leader that is told to stop resigns before it ends: the standby need not wait for the lease. */
KELP_TEST(leader_resigns)
{
    uint32_t standby = 1;
    char before[256], after[256];
    demo_start();
    peers_coordinator(&demo.peers, 1, NULL);
    peers_wait(&demo.peers, stands_by, &standby, "the second one to stand by");
    peers_leader(&demo.peers, before);
    kelp_process_signal(demo.peers.coordinators[0], SIGTERM);
    demo_wait_for_end(0, 0);
    peers_leader(&demo.peers, after);
    ck_assert_str_ne(before, after);
    peers_wait(&demo.peers, standby_leads, &standby, "the standby to lead");
}

static bool led_again(void *user)
{
    (void)user;
    return peers_logged(&demo.peers, 0, "going on leading generation=1");
}

/* etcd is away for longer than the lease: reports and assignments go on, nobody is lost, and the
 * leader goes on when etcd is back. */
KELP_TEST(etcd_is_away)
{
    demo_start();
    etcd_fixture_kill(&demo.peers.etcd);
    uint64_t wanted = demo.workers[0].reports + 30;
    peers_run(&demo.peers, 5000);
    peers_wait(&demo.peers, has_reported, &wanted, "30 reports");
    ck_assert_uint_eq(demo.workers[0].closes, 0);
    peer_worker_stop(&demo.workers[1]);
    demo.workers[1].timer = NULL;
    peers_wait(&demo.peers, demo_has_all_lanes, &demo.workers[0], "worker-0 to have all lanes");
    etcd_fixture_restart(&demo.peers.etcd);
    peers_wait(&demo.peers, led_again, NULL, "the leader to be elected again");
    ck_assert_uint_eq(demo.workers[0].closes, 0);
    ck_assert_uint_eq(demo.workers[0].maps, 1);
    ck_assert_uint_eq(demo.shards[0].generation, 1);
}

static bool is_advertised(void *user)
{
    char *entry = peers_get(&demo.peers, "coordinator");
    bool advertised = strstr(entry, user) != NULL;

    free(entry);
    return advertised;
}

/* Behind a NAT the address that others dial is not the one that it listens at. */
KELP_TEST(advertised_address)
{
    char expected[] = "\"address\":\"203.0.113.7:7000\"";

    demo.peers.advertise = "203.0.113.7:7000";
    peers_coordinator(&demo.peers, 0, NULL);
    peers_wait(&demo.peers, is_advertised, expected, "the advertised address");
}

/* ---- mistakes of whoever starts it ---------------------------------------------------------- */

/* One line that names the address, and exit code 2. */
KELP_TEST(port_in_use)
{
    char listen[64];
    peer_shard_start(&demo.peers, &demo.shards[0]);
    (void)snprintf(listen, sizeof(listen), "127.0.0.1:%u",
                   kelp_rpc_server_port(demo.shards[0].server));
    peers_coordinator(&demo.peers, 0, listen);
    demo_wait_for_end(0, 2);
    char *log = peers_file(&demo.peers, "coordinator-0.log");
    const char *line = strstr(log, "cannot listen on ");
    ck_assert_msg(line && strstr(line, listen) && strstr(line, "in use"), "%s", log);
    ck_assert_ptr_eq(strchr(line, '\n'), log + strlen(log) - 1);
    free(log);
}

/* A specification that is none: the line of the job file's reader, and exit code 2. */
KELP_TEST(bad_spec)
{
    struct kelp_error error;
    ck_assert_int_eq(kelp_etcd_put(demo.peers.client, "/kelp/demo/spec", "name: demo\nlanes: 8\n",
                                   0, 5000, &error),
                     KELP_OK);
    peers_coordinator(&demo.peers, 0, NULL);
    demo_wait_for_end(0, 2);
    ck_assert(peers_logged(&demo.peers, 0, "/kelp/demo/spec:2"));
}
