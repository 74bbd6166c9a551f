#include "cli/chaos/chaos_watch.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "proto/wire.h"

#define STATUS_PATH "/kelp.v1.ParameterServer/Status"
#define ANSWER_MAX  65536u
#define ADDRESS_MAX 255

struct kelp_chaos_watch {
    struct kelp_rpc_loop *loop; /* the thread's own once it runs, as is what follows */
    struct kelp_rpc_channel *channel;
    char channel_address[ADDRESS_MAX + 1];
    pthread_t thread;
    bool thread_runs;
    int news_fd;
    int stop_fd;
    pthread_mutex_t lock; /* guards what follows */
    char address[ADDRESS_MAX + 1];
    struct kelp_chaos_look looks[KELP_CHAOS_LOOKS_MAX];
    uint32_t look_count;
};

static void raise_event(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof(one));

    (void)written; /* fails when it is raised already, which is as good */
}

static void publish(struct kelp_chaos_watch *watch, const struct kelp_chaos_look *look)
{
    (void)pthread_mutex_lock(&watch->lock);
    if (watch->look_count == KELP_CHAOS_LOOKS_MAX) {
        watch->look_count--;
        memmove(watch->looks, watch->looks + 1, watch->look_count * sizeof(*look));
    }
    watch->looks[watch->look_count++] = *look;
    (void)pthread_mutex_unlock(&watch->lock);
    raise_event(watch->news_fd);
}

static void forget_channel(struct kelp_chaos_watch *watch)
{
    kelp_rpc_channel_close(watch->channel);
    watch->channel = NULL;
}

/* Make watch->channel lead to the address that was aimed at last; false when there is none. */
static bool connect_to_aim(struct kelp_chaos_watch *watch)
{
    char address[ADDRESS_MAX + 1];

    (void)pthread_mutex_lock(&watch->lock);
    memcpy(address, watch->address, sizeof(address));
    (void)pthread_mutex_unlock(&watch->lock);
    if (watch->channel && strcmp(address, watch->channel_address) != 0) {
        forget_channel(watch);
    }
    if (watch->channel || address[0] == '\0') {
        return watch->channel != NULL;
    }
    memcpy(watch->channel_address, address, sizeof(address));
    return kelp_rpc_channel_open(watch->loop, address, ANSWER_MAX, &watch->channel, NULL) ==
           KELP_OK;
}

static kelp_status ask(struct kelp_chaos_watch *watch, struct kelp_chaos_look *ret_look)
{
    Kelp__V1__ShardStatusRequest request = KELP__V1__SHARD_STATUS_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    struct kelp_rpc_message *answer = NULL;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    kelp_status status = kelp_wire_encode(&request.base, &message, NULL);
    if (status == KELP_OK) {
        status = kelp_rpc_call(watch->channel, STATUS_PATH, message, KELP_CHAOS_WATCH_DEADLINE_MS,
                               &answer, NULL);
    }
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_wire_decode(answer, &kelp__v1__shard_status_reply__descriptor, ANSWER_MAX,
                              &fields, &payload, NULL);
    kelp_rpc_message_unref(answer);
    if (status != KELP_OK) {
        return status;
    }
    const Kelp__V1__ShardStatusReply *reply = (Kelp__V1__ShardStatusReply *)(void *)fields;
    if (reply->word) {
        *ret_look = (struct kelp_chaos_look){.at_ms = kelp_clock_ms(),
                                             .generation = reply->generation,
                                             .version = reply->word->version,
                                             .step = reply->word->step};
    } else {
        status = KELP_ERR_NOT_FOUND; /* it does not host partition 0, or is loading it */
    }
    protobuf_c_message_free_unpacked(fields, NULL);
    return status;
}

/* False when the watch is to stop. */
static bool wait_period(struct kelp_chaos_watch *watch)
{
    struct pollfd item = {.fd = watch->stop_fd, .events = POLLIN};

    return poll(&item, 1, KELP_CHAOS_WATCH_PERIOD_MS) <= 0;
}

static void *watch_thread(void *user)
{
    struct kelp_chaos_watch *watch = user;

    do {
        struct kelp_chaos_look look = {0};
        if (!connect_to_aim(watch)) {
            continue;
        }
        kelp_status status = ask(watch, &look);
        if (status == KELP_OK) {
            publish(watch, &look);
        }
    } while (wait_period(watch));
    return NULL;
}

kelp_status kelp_chaos_watch_start(struct kelp_chaos_watch **ret_watch, struct kelp_error *reterr)
{
    struct kelp_chaos_watch *watch = calloc(1, sizeof(*watch));

    if (!watch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)pthread_mutex_init(&watch->lock, NULL);
    watch->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    watch->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    kelp_status status = KELP_OK;
    if (watch->news_fd < 0 || watch->stop_fd < 0) {
        status = kelp_fail(reterr, KELP_ERR_IO, "eventfd: %s", strerror(errno));
    }
    if (status == KELP_OK) {
        status = kelp_rpc_loop_create(&watch->loop, reterr);
    }
    if (status == KELP_OK) {
        int error = pthread_create(&watch->thread, NULL, watch_thread, watch);
        watch->thread_runs = error == 0;
        if (error != 0) {
            status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "pthread_create: %s", strerror(error));
        }
    }
    if (status != KELP_OK) {
        kelp_chaos_watch_stop(watch);
        return status;
    }
    *ret_watch = watch;
    return KELP_OK;
}

void kelp_chaos_watch_stop(struct kelp_chaos_watch *watch)
{
    if (!watch) {
        return;
    }
    if (watch->thread_runs) {
        raise_event(watch->stop_fd);
        (void)pthread_join(watch->thread, NULL);
    }
    forget_channel(watch);
    kelp_rpc_loop_destroy(watch->loop);
    if (watch->news_fd >= 0) {
        (void)close(watch->news_fd);
    }
    if (watch->stop_fd >= 0) {
        (void)close(watch->stop_fd);
    }
    (void)pthread_mutex_destroy(&watch->lock);
    free(watch);
}

void kelp_chaos_watch_aim(struct kelp_chaos_watch *watch, const Kelp__V1__StatusReply *status)
{
    const Kelp__V1__Map *map = status->map;

    if (!map || map->n_partitions == 0 || map->partitions[0]->primary >= map->n_shards) {
        return;
    }
    const char *address = map->shards[map->partitions[0]->primary]->address;
    size_t length = strlen(address);
    if (length > ADDRESS_MAX) {
        return;
    }
    (void)pthread_mutex_lock(&watch->lock);
    memcpy(watch->address, address, length + 1);
    (void)pthread_mutex_unlock(&watch->lock);
}

int kelp_chaos_watch_fd(const struct kelp_chaos_watch *watch)
{
    return watch->news_fd;
}

uint32_t kelp_chaos_watch_take(struct kelp_chaos_watch *watch,
                               struct kelp_chaos_look ret_looks[KELP_CHAOS_LOOKS_MAX])
{
    uint64_t raised;
    ssize_t got = read(watch->news_fd, &raised, sizeof(raised));

    (void)got; /* nothing raised: there are no looks then */
    (void)pthread_mutex_lock(&watch->lock);
    uint32_t count = watch->look_count;
    memcpy(ret_looks, watch->looks, count * sizeof(*ret_looks));
    watch->look_count = 0;
    (void)pthread_mutex_unlock(&watch->lock);
    return count;
}
