#include "tests/lib/cluster/coordinator_demo.h"

#include <check.h>
#include <string.h>
#include <sys/wait.h>

struct demo demo;

void demo_set_up(const char *detect)
{
    peers_start(&demo.peers, detect);
    memset(demo.shards, 0, sizeof(demo.shards));
    memset(demo.workers, 0, sizeof(demo.workers));
    demo.shards[0].id = "shard-0";
    demo.shards[1].id = "shard-1";
    demo.workers[0].id = "worker-0";
    demo.workers[1].id = "worker-1";
    demo.workers[2].id = "worker-2";
}

void demo_setup(void)
{
    demo_set_up("2m");
}

void demo_teardown(void)
{
    for (int i = 0; i < 3; i++) {
        if (demo.workers[i].timer != NULL) {
            peer_worker_stop(&demo.workers[i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (demo.shards[i].server != NULL) {
            peer_shard_stop(&demo.shards[i]);
        }
    }
    peers_stop(&demo.peers);
}

bool demo_both_run(void *user)
{
    const uint64_t *generation = user;
    return demo.workers[0].generation == *generation && demo.workers[1].generation == *generation &&
           demo.workers[0].assigned && demo.workers[1].assigned &&
           demo.workers[0].lane_count + demo.workers[1].lane_count == 8;
}

void demo_start(void)
{
    uint64_t generation = 1;
    peers_coordinator(&demo.peers, 0, NULL);
    for (int i = 0; i < 2; i++) {
        peer_shard_start(&demo.peers, &demo.shards[i]);
        peer_worker_start(&demo.peers, &demo.workers[i]);
    }
    peers_wait(&demo.peers, demo_both_run, &generation, "both workers to have map and lanes");
}

bool demo_has_all_lanes(void *user)
{
    const struct peer_worker *worker = user;
    return worker->lane_first == 0 && worker->lane_count == 8;
}

bool demo_was_refused(void *user)
{
    const struct peer_worker *worker = user;
    return worker->status != KELP_OK && worker->stream == NULL;
}

bool demo_leaves(void *user)
{
    const struct peer_worker *worker = user;
    return worker->leave;
}

struct asked {
    Kelp__V1__StatusReply *reply; /* the latest; owned */
    bool (*wanted)(const Kelp__V1__StatusReply *reply);
};

static bool status_says(void *user)
{
    struct asked *asked = user;
    char address[256];
    if (asked->reply != NULL) {
        kelp__v1__status_reply__free_unpacked(asked->reply, NULL);
    }
    peers_leader(&demo.peers, address);
    asked->reply = address[0] == '\0' ? NULL : peers_status(&demo.peers, address);
    return asked->reply != NULL && (asked->wanted == NULL || asked->wanted(asked->reply));
}

Kelp__V1__StatusReply *demo_status_when(bool (*wanted)(const Kelp__V1__StatusReply *reply),
                                        const char *what)
{
    struct asked asked = {.reply = NULL, .wanted = wanted};
    peers_wait(&demo.peers, status_says, &asked, what);
    return asked.reply;
}

Kelp__V1__StatusReply *demo_status(void)
{
    return demo_status_when(NULL, "a leader that answers Status");
}

void demo_wait_for_end(uint32_t index, int expected)
{
    int wait_status = 0;
    ck_assert_int_eq(kelp_process_wait(demo.peers.coordinators[index], PEERS_HANG_MS, &wait_status),
                     KELP_OK);
    ck_assert(WIFEXITED(wait_status));
    ck_assert_int_eq(WEXITSTATUS(wait_status), expected);
}
