#include "cli/chaos/chaos_watch.h"

#include <stdlib.h>
#include <string.h>

#include "cli/launch/watch/watcher.h"
#include "common/base/clock.h"
#include "common/rpc/rpc.h"
#include "proto/wire.h"

#define STATUS_PATH "/kelp.v1.ParameterServer/Status"
#define ANSWER_MAX  65536u
#define ADDRESS_MAX 255

struct kelp_chaos_watch {
    struct kelp_credentials *credentials; /* NULL: none */
    struct kelp_rpc_loop *loop;           /* the thread's own once it runs, as are the next two */
    struct kelp_rpc_channel *channel;
    char channel_address[ADDRESS_MAX + 1];
    struct kelp_watcher *watcher; /* its lock guards what follows */
    char address[ADDRESS_MAX + 1];
    struct kelp_chaos_look looks[KELP_CHAOS_LOOKS_MAX];
    uint32_t look_count;
};

static void publish(struct kelp_chaos_watch *watch, const struct kelp_chaos_look *look)
{
    kelp_watcher_lock(watch->watcher);
    if (watch->look_count == KELP_CHAOS_LOOKS_MAX) {
        watch->look_count--;
        memmove(watch->looks, watch->looks + 1, watch->look_count * sizeof(*look));
    }
    watch->looks[watch->look_count++] = *look;
    kelp_watcher_unlock(watch->watcher);
    kelp_watcher_raise(watch->watcher);
}

/* Connect watch->channel to the newest address of aim(); false when there is none. */
static bool connect_to_aim(struct kelp_chaos_watch *watch)
{
    char address[ADDRESS_MAX + 1];

    kelp_watcher_lock(watch->watcher);
    memcpy(address, watch->address, sizeof(address));
    kelp_watcher_unlock(watch->watcher);
    if (watch->channel && strcmp(address, watch->channel_address) != 0) {
        kelp_rpc_channel_close(watch->channel);
        watch->channel = NULL;
    }
    if (watch->channel || address[0] == '\0') {
        return watch->channel != NULL;
    }
    memcpy(watch->channel_address, address, sizeof(address));
    return kelp_rpc_channel_open(watch->loop, address, KELP_ROLE_SHARD, ANSWER_MAX, &watch->channel,
                                 NULL) == KELP_OK;
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

static void look(void *user)
{
    struct kelp_chaos_watch *watch = user;
    struct kelp_chaos_look seen = {0};

    if (connect_to_aim(watch) && ask(watch, &seen) == KELP_OK) {
        publish(watch, &seen);
    }
}

kelp_status kelp_chaos_watch_start(const char *certs, struct kelp_chaos_watch **ret_watch,
                                   struct kelp_error *reterr)
{
    struct kelp_chaos_watch *watch = calloc(1, sizeof(*watch));
    const struct kelp_watcher_options options = {
        .look = look, .user = watch, .period_ms = KELP_CHAOS_WATCH_PERIOD_MS};

    if (!watch) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = kelp_watcher_create(&options, &watch->watcher, reterr);
    if (status == KELP_OK && certs) {
        status = kelp_credentials_open(certs, &watch->credentials, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_rpc_loop_create(&watch->loop, reterr);
    }
    if (status == KELP_OK) {
        kelp_rpc_loop_credentials(watch->loop, watch->credentials);
        status = kelp_watcher_start(watch->watcher, reterr);
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
    if (watch) {
        kelp_watcher_stop(watch->watcher);
        kelp_rpc_channel_close(watch->channel);
        kelp_rpc_loop_destroy(watch->loop);
        kelp_credentials_close(watch->credentials);
        free(watch);
    }
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
    kelp_watcher_lock(watch->watcher);
    memcpy(watch->address, address, length + 1);
    kelp_watcher_unlock(watch->watcher);
}

int kelp_chaos_watch_fd(const struct kelp_chaos_watch *watch)
{
    return kelp_watcher_fd(watch->watcher);
}

uint32_t kelp_chaos_watch_read(struct kelp_chaos_watch *watch,
                               struct kelp_chaos_look ret_looks[KELP_CHAOS_LOOKS_MAX])
{
    kelp_watcher_collect(watch->watcher);
    uint32_t count = watch->look_count;
    memcpy(ret_looks, watch->looks, count * sizeof(*ret_looks));
    watch->look_count = 0;
    kelp_watcher_unlock(watch->watcher);
    return count;
}
