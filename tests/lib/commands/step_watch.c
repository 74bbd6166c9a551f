#include "tests/lib/commands/step_watch.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#include "common/base/clock.h"
#include "common/etcd/etcd.h"
#include "common/rpc/rpc.h"
#include "proto/kelp.pb-c.h"
#include "proto/wire.h"

#define POLL_US     700
#define FIND_US     20000 /* between two reads of etcd */
#define CALL_MS     500
#define SHARDS_MAX  16
#define STATUS_PATH "/kelp.v1.ParameterServer/Status"
#define ANSWER_MAX  (1u << 20)

struct shard {
    char address[256];
    struct kelp_rpc_channel *channel;
    uint64_t offers;
};

struct kelp_step_watch {
    const struct kelp_test_command *command;
    pthread_t thread;
    atomic_bool stop;
    char job[64];
    struct kelp_etcd *etcd;
    struct kelp_rpc_loop *loop; /* never run: calls have their own queues */
    struct shard shards[SHARDS_MAX];
    uint32_t shard_count;
    uint32_t host; /* which shard hosts partition 0, as far as known */
    uint64_t found_us;
    pthread_mutex_t lock; /* guards the rest */
    uint64_t step;
    uint64_t offers;
};

static void pause_us(long us)
{
    struct timespec wait = {.tv_nsec = us * 1000};

    (void)nanosleep(&wait, NULL); /* no event is visible outside the job */
}

/* ---- shards ------------------------------------------------------------------------------------
 */

static void use_address(struct kelp_step_watch *watch, uint32_t index, const char *address)
{
    struct shard *shard = &watch->shards[index];

    if (strcmp(shard->address, address) == 0) {
        return;
    }
    kelp_rpc_channel_close(shard->channel);
    shard->channel = NULL;
    (void)snprintf(shard->address, sizeof(shard->address), "%s", address);
    if (kelp_rpc_channel_open(watch->loop, address, KELP_ROLE_SHARD, ANSWER_MAX, &shard->channel,
                              NULL) != KELP_OK) {
        shard->address[0] = '\0';
    }
}

/* Read addresses from etcd; while etcd does not answer, the old ones stay. */
static void find_shards(struct kelp_step_watch *watch)
{
    struct kelp_etcd_range range = {0};
    char prefix[128];
    uint64_t now_us = kelp_clock_us();

    if (now_us - watch->found_us < FIND_US) {
        return;
    }
    watch->found_us = now_us;
    (void)snprintf(prefix, sizeof(prefix), "/kelp/%s/ps/", watch->job);
    if (kelp_etcd_get_prefix(watch->etcd, prefix, CALL_MS, &range, NULL) != KELP_OK) {
        return;
    }
    for (size_t i = 0; i < range.count && i < SHARDS_MAX; i++) {
        cJSON *value = cJSON_Parse(range.pairs[i].value);
        const cJSON *address = cJSON_GetObjectItemCaseSensitive(value, "address");
        if (cJSON_IsString(address)) {
            use_address(watch, (uint32_t)i, address->valuestring);
            watch->shard_count = watch->shard_count > i + 1 ? watch->shard_count : (uint32_t)i + 1;
        }
        cJSON_Delete(value);
    }
    kelp_etcd_range_fini(&range);
}

static Kelp__V1__ShardStatusReply *ask(struct kelp_step_watch *watch, uint32_t index)
{
    Kelp__V1__ShardStatusRequest request = KELP__V1__SHARD_STATUS_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_rpc_message *answer = NULL;
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;

    if (!watch->shards[index].channel ||
        kelp_wire_encode(&request.base, &message, NULL) != KELP_OK ||
        kelp_rpc_call(watch->shards[index].channel, STATUS_PATH, message, CALL_MS, &answer, NULL) !=
            KELP_OK) {
        return NULL;
    }
    if (kelp_wire_decode(answer, &kelp__v1__shard_status_reply__descriptor, ANSWER_MAX, &fields,
                         &payload, NULL) != KELP_OK) {
        fields = NULL;
    }
    kelp_rpc_message_unref(answer);
    return (Kelp__V1__ShardStatusReply *)(void *)fields;
}

static void note_step(struct kelp_step_watch *watch, uint64_t step)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->step = step;
    (void)pthread_mutex_unlock(&watch->lock);
}

static void note_offers(struct kelp_step_watch *watch, uint32_t index, uint64_t offers)
{
    (void)pthread_mutex_lock(&watch->lock);
    watch->offers +=
        offers > watch->shards[index].offers ? offers - watch->shards[index].offers : 0;
    watch->shards[index].offers = offers;
    (void)pthread_mutex_unlock(&watch->lock);
}

/* Ask one shard; true: it hosts partition 0. */
static bool look(struct kelp_step_watch *watch, uint32_t index)
{
    Kelp__V1__ShardStatusReply *reply = ask(watch, index);
    bool hosts = reply && reply->word;

    if (reply) {
        note_offers(watch, index, reply->offers);
    }
    if (hosts) {
        note_step(watch, reply->word->step);
    }
    if (reply) {
        kelp__v1__shard_status_reply__free_unpacked(reply, NULL);
    }
    return hosts;
}

static void *watch_thread(void *user)
{
    struct kelp_step_watch *watch = user;

    while (!atomic_load(&watch->stop)) {
        if (watch->shard_count == 0 || !look(watch, watch->host)) {
            find_shards(watch);
            watch->host = watch->host + 1 < watch->shard_count ? watch->host + 1 : 0;
        }
        pause_us(POLL_US);
    }
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------
 */

/* The run's cluster.json, parsed; NULL: it does not exist yet. */
static cJSON *read_cluster(const char *run_path)
{
    char path[512];
    char text[2048];

    (void)snprintf(path, sizeof(path), "%s/cluster.json", run_path);
    FILE *file = fopen(path, "r");
    if (!file) {
        return NULL;
    }
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    text[length] = '\0';
    (void)fclose(file);
    return cJSON_Parse(text);
}

struct kelp_step_watch *kelp_step_watch_open(const struct kelp_run *run)
{
    struct kelp_step_watch *watch = calloc(1, sizeof(*watch));
    cJSON *cluster = NULL;

    ck_assert_ptr_nonnull(watch);
    watch->command = &run->command;
    KELP_TEST_AWAIT_FROM(watch->command, (cluster = read_cluster(run->run_folder)) != NULL,
                         "no run in %s", run->run_folder);
    (void)snprintf(watch->job, sizeof(watch->job), "%s",
                   cJSON_GetObjectItemCaseSensitive(cluster, "job")->valuestring);
    ck_assert_int_eq(kelp_etcd_open(cJSON_GetObjectItemCaseSensitive(cluster, "etcd")->valuestring,
                                    &watch->etcd, NULL),
                     KELP_OK);
    cJSON_Delete(cluster);
    ck_assert_int_eq(kelp_rpc_loop_create(&watch->loop, NULL), KELP_OK);
    (void)pthread_mutex_init(&watch->lock, NULL);
    ck_assert_int_eq(pthread_create(&watch->thread, NULL, watch_thread, watch), 0);
    return watch;
}

void kelp_step_watch_close(struct kelp_step_watch *watch)
{
    if (!watch) {
        return;
    }
    atomic_store(&watch->stop, true);
    (void)pthread_join(watch->thread, NULL);
    for (uint32_t i = 0; i < SHARDS_MAX; i++) {
        kelp_rpc_channel_close(watch->shards[i].channel);
    }
    kelp_rpc_loop_destroy(watch->loop);
    kelp_etcd_close(watch->etcd);
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

/* ---- questions ---------------------------------------------------------------------------------
 */

uint64_t kelp_step_watch_step(struct kelp_step_watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    uint64_t step = watch->step;
    (void)pthread_mutex_unlock(&watch->lock);
    return step;
}

void kelp_step_watch_await(struct kelp_step_watch *watch, uint64_t step)
{
    KELP_TEST_AWAIT_FROM(watch->command, kelp_step_watch_step(watch) >= step,
                         "step %llu was not reached: it is at %llu", (unsigned long long)step,
                         (unsigned long long)kelp_step_watch_step(watch));
}

uint64_t kelp_step_watch_offers(struct kelp_step_watch *watch)
{
    (void)pthread_mutex_lock(&watch->lock);
    uint64_t offers = watch->offers;
    (void)pthread_mutex_unlock(&watch->lock);
    return offers;
}
