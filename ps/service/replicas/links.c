/*
 * Links from here to the followers of what is led here: one stream to each process that the newest
 * map names, kept open while it does. Roots and questions of a turn leave as one message; large
 * roots at once, so that the follower applies them while we do.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "ps/service/exchange_internal.h"
#include "ps/service/replicas/links_internal.h"

#define REPLICATE_PATH "/kelp.v1.ParameterServer/Replicate"

/* ---- life ---- */

void kelp__service_link_unref(struct kelp__service_link *link)
{
    if (atomic_fetch_sub(&link->refs, 1) != 1) {
        return;
    }
    kelp__service_link_discard(link);
    kelp__service_link_discard_copies(link);
    kelp_rpc_channel_close(link->channel);
    free(link->roots);
    free(link->questions);
    free(link->scratch.forwards);
    free(link->scratch.forward_pointers);
    free(link->scratch.words);
    free(link->scratch.questions);
    free(link->scratch.question_pointers);
    free(link->scratch.authors);
    free(link->scratch.author_pointers);
    free(link->told_authors);
    free(link->new_authors);
    free(link->id);
    free(link->address);
    free(link->unmet);
    (void)pthread_mutex_destroy(&link->lock);
    free(link);
}

static kelp_status send_hello(struct kelp__service_link *link)
{
    Kelp__V1__ReplicateRequest request = KELP__V1__REPLICATE_REQUEST__INIT;
    struct kelp_rpc_message *message = NULL;
    kelp_status status;

    request.hello = &link->service->hello;
    request.generation = atomic_load(&link->service->generation);
    status = kelp_wire_encode(&request.base, &message, NULL);
    return status == KELP_OK ? kelp_rpc_stream_send(link->stream, message) : status;
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message,
                       void *user);
static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user);
static const struct kelp_rpc_stream_events link_events = {.message = on_message,
                                                          .closed = on_closed};

/* Silence after which a link is given up. */
static uint32_t silence_ms(const struct kelp_service *service)
{
    const uint32_t detect_ms = service->options.job->failure.detect_ms;

    return detect_ms > KELP_PS_LINK_SILENT_MIN_MS ? detect_ms : KELP_PS_LINK_SILENT_MIN_MS;
}

/* The link is locked. If there is no memory, the timer tries again. */
static bool open_channel(struct kelp__service_link *link)
{
    struct kelp_error error = {.text = ""};
    const kelp_status status = kelp_rpc_channel_open(
        link->service->options.loop, link->address, KELP_ROLE_SHARD,
        kelp__service_message_bytes_max(link->service->options.job), &link->channel, &error);

    if (status != KELP_OK) {
        link->channel = NULL;
        kelp_log_error("no link to a follower shard=%s error=\"%s\"", link->id, error.text);
    }
    return status == KELP_OK;
}

/* Use shared memory if the follower is on this host, as for workers. If it is demanded but missing,
 * gRPC tells whether the follower is alive. */
static kelp_status try_stream(struct kelp__service_link *link,
                              const struct kelp_rpc_stream_options *options)
{
    const bool demanded = link->service->options.job->transport.kind == KELP_TRANSPORT_SHM;
    struct kelp_error error = {.text = ""};
    kelp_status status = KELP_ERR_UNREACHABLE;

    if (kelp_rpc_server_shares(link->service->server)) {
        status = kelp_rpc_stream_open_shared(link->channel, options, &link->stream, &error);
    }
    link->shared = status == KELP_OK;
    free(link->unmet);
    const bool absent = status == KELP_ERR_UNREACHABLE || status == KELP_ERR_DENIED;
    link->unmet = demanded && absent ? strdup(error.text) : NULL;
    return link->shared || (demanded && !link->unmet)
               ? status
               : kelp_rpc_stream_open(link->channel, options, &link->stream, &error);
}

static void open_stream(struct kelp__service_link *link)
{
    struct kelp__service_replicas *replicas = link->service->replicas;
    const uint32_t connect_ms = link->service->options.job->transport.connect_timeout_ms;
    const uint32_t answer_ms = 2 * silence_ms(link->service); /* a handshake comes before it */
    const struct kelp_rpc_stream_options options = {
        .path = REPLICATE_PATH,
        .first_message_ms = connect_ms < answer_ms ? connect_ms : answer_ms,
        .hello = true,
        .events = &link_events,
        .user = link};

    atomic_fetch_add(&link->refs, 1); /* the stream's */
    atomic_fetch_add(&replicas->streams, 1);
    if (try_stream(link, &options) != KELP_OK) {
        link->stream = NULL;
        atomic_fetch_sub(&link->refs, 1); /* the list still has one */
        atomic_fetch_sub(&replicas->streams, 1);
        return;
    }
    link->serial = atomic_fetch_add(&replicas->stream_serial, 1) + 1;
    free(link->told_authors); /* it knows nobody yet */
    link->told_authors = NULL;
    (void)send_hello(link); /* when it fails, closed() follows */
}

/* The link is locked, and has no stream. When it fails, the timer tries again. */
static void connect_link(struct kelp__service_link *link, uint64_t now_us)
{
    if (now_us < link->open_us) {
        return;
    }
    link->open_us = now_us + link->retry_ms * UINT64_C(1000);
    link->retry_ms = 2 * link->retry_ms < KELP_PS_LINK_RETRY_MAX_MS ? 2 * link->retry_ms
                                                                    : KELP_PS_LINK_RETRY_MAX_MS;
    if (link->channel || open_channel(link)) {
        open_stream(link);
    }
}

/* NULL: out of memory. */
static struct kelp__service_link *make_link(struct kelp_service *service,
                                            const struct service_map_shard *shard)
{
    struct kelp__service_link *link = calloc(1, sizeof(*link));

    if (!link) {
        return NULL;
    }
    link->service = service;
    atomic_init(&link->refs, 1);
    (void)pthread_mutex_init(&link->lock, NULL);
    link->retry_ms = KELP_PS_REPLICA_TICK_MS;
    link->process = shard->process;
    link->incarnation = shard->incarnation;
    link->id = strdup(shard->id);
    link->address = strdup(shard->address);
    if (!link->id || !link->address) {
        kelp__service_link_unref(link);
        return NULL;
    }
    kelp__service_peers_expect(service->replicas->peers, link->id, link->incarnation);
    return link;
}

/* ---- which ones there are ---- */

/* replicas->lock is held. NULL: there is none. */
static struct kelp__service_link *find_link(const struct kelp_service *service, uint64_t process)
{
    struct kelp__service_link *link = service->replicas->links;

    while (link && link->process != process) {
        link = link->next;
    }
    return link;
}

struct kelp__service_link *kelp__service_link_take(struct kelp_service *service, uint64_t process)
{
    (void)pthread_mutex_lock(&service->replicas->lock);
    struct kelp__service_link *link = find_link(service, process);
    if (link) {
        atomic_fetch_add(&link->refs, 1);
    }
    (void)pthread_mutex_unlock(&service->replicas->lock);
    return link;
}

static void want_link(struct kelp_service *service, const struct service_map *map, uint32_t shard)
{
    struct kelp__service_replicas *replicas = service->replicas;

    if (shard == SERVICE_NOBODY) {
        return;
    }
    struct kelp__service_link *link = find_link(service, map->shards[shard].process);
    if (!link && !replicas->closing) {
        link = make_link(service, &map->shards[shard]);
        if (link) {
            link->next = replicas->links;
            replicas->links = link;
        } else {
            kelp__service_control_failed(0, KELP_ERR_NO_MEMORY, "no memory for a link", service);
        }
    }
    if (link) {
        link->wanted = true;
    }
}

/* replicas->lock is held: remove the links that are no longer wanted from the list. */
static struct kelp__service_link *unlist_unwanted(struct kelp__service_replicas *replicas)
{
    struct kelp__service_link **at = &replicas->links;
    struct kelp__service_link *unwanted = NULL;

    while (*at) {
        struct kelp__service_link *link = *at;
        if (link->wanted) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        link->next = unwanted;
        unwanted = link;
    }
    return unwanted;
}

/* They are in no list any more. */
static void close_links(struct kelp__service_link *link)
{
    while (link) {
        struct kelp__service_link *next = link->next;
        (void)pthread_mutex_lock(&link->lock);
        link->ended = true;
        if (link->stream) {
            kelp_rpc_stream_close(link->stream, KELP_OK, "no partition is led here and kept there");
        }
        (void)pthread_mutex_unlock(&link->lock);
        kelp__service_peers_release(link->service->replicas->peers, link->id, link->incarnation);
        kelp__service_link_unref(link);
        link = next;
    }
}

void kelp__service_links_follow(struct kelp_service *service, const struct service_map *map)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    for (struct kelp__service_link *link = replicas->links; link; link = link->next) {
        link->wanted = false;
    }
    for (uint32_t i = 0; i < map->partition_count; i++) {
        const struct service_map_partition *partition = &map->partitions[i];
        if (map->shards[partition->primary].process == 0) {
            want_link(service, map, partition->backup);
            want_link(service, map, partition->joiner);
        }
    }
    struct kelp__service_link *unwanted = unlist_unwanted(replicas);
    const bool any = replicas->links != NULL;
    (void)pthread_mutex_unlock(&replicas->lock);
    close_links(unwanted);
    if (any) {
        kelp__service_replicas_tick(service);
        kelp__service_replicas_hurry(service);
    }
}

void kelp__service_links_stop(struct kelp_service *service)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    for (struct kelp__service_link *link = replicas->links; link; link = link->next) {
        link->wanted = false;
    }
    struct kelp__service_link *unwanted = unlist_unwanted(replicas);
    (void)pthread_mutex_unlock(&replicas->lock);
    close_links(unwanted);
    while (atomic_load(&replicas->streams) > 0) {
        (void)kelp_rpc_loop_run(service->options.loop, 1000);
    }
}

/* The link is locked and has a stream: check that the other end is alive, and show it that we are.
 * A root is answered too, but not always at once. */
static void keep_link(struct kelp__service_link *link, uint64_t now_us, uint32_t quiet_ms)
{
    const uint64_t pause_us = KELP_PS_REPLICA_SILENT_MS * UINT64_C(1000);
    const bool is_due = quiet_ms >= KELP_PS_REPLICA_SILENT_MS || now_us - link->sent_us >= pause_us;

    if (link->is_up && quiet_ms > silence_ms(link->service)) {
        link->is_silent = true;
        kelp_rpc_stream_close(link->stream, KELP_ERR_TIMEOUT, "it says nothing any more");
    } else if (link->is_up && is_due && now_us - link->asked_us >= pause_us) {
        link->asked_us = now_us;
        kelp__service_link_send(link, true);
    }
}

void kelp__service_links_tick(struct kelp_service *service, uint64_t now_us, uint32_t passed_ms)
{
    struct kelp__service_replicas *replicas = service->replicas;

    (void)pthread_mutex_lock(&replicas->lock);
    for (struct kelp__service_link *link = replicas->links; link; link = link->next) {
        (void)pthread_mutex_lock(&link->lock);
        if (!link->stream) {
            connect_link(link, now_us);
        } else {
            keep_link(link, now_us,
                      (uint32_t)atomic_fetch_add(&link->quiet, passed_ms) + passed_ms);
        }
        (void)pthread_mutex_unlock(&link->lock);
    }
    (void)pthread_mutex_unlock(&replicas->lock);
}

bool kelp__service_links_idle(struct kelp_service *service, uint64_t process)
{
    struct kelp__service_link *link = find_link(service, process);
    bool idle = false;

    if (link) {
        (void)pthread_mutex_lock(&link->lock);
        idle = link->is_up && !link->copies;
        (void)pthread_mutex_unlock(&link->lock);
    }
    return idle;
}

/* ---- what leaves ---- */

/* The link is locked. */
static void list_link(struct kelp__service_turn *turn, struct kelp__service_link *link)
{
    if (!link->listed) {
        link->listed = true;
        atomic_fetch_add(&link->refs, 1);
        link->next_listed = turn->links;
        turn->links = link;
    }
}

void kelp__service_forward(const struct kelp_shard_root *root, void *turn, void *user)
{
    struct kelp__service_link *link = kelp__service_link_take(user, root->process);
    bool kept = false;

    if (link) {
        (void)pthread_mutex_lock(&link->lock);
        kept = link->is_up && kelp__service_link_add_root(link, root);
        if (kept && link->root_bytes >= KELP_PS_FORWARD_BYTES) {
            kelp__service_link_send(link, false);
        } else if (kept) {
            list_link(turn, link);
        }
        (void)pthread_mutex_unlock(&link->lock);
        kelp__service_link_unref(link);
    }
    if (!kept && root->lent) {
        kelp_gradients_return(&root->loan);
    }
}

void kelp__service_ask(const struct kelp_shard_question *question, void *turn, void *user)
{
    struct kelp__service_link *link = kelp__service_link_take(user, question->process);

    if (!link) {
        return;
    }
    (void)pthread_mutex_lock(&link->lock);
    if (link->is_up && kelp__service_link_add_question(link, question)) {
        list_link(turn, link);
    }
    (void)pthread_mutex_unlock(&link->lock);
    kelp__service_link_unref(link);
}

void kelp__service_links_flush(struct kelp__service_turn *turn)
{
    while (turn->links) {
        struct kelp__service_link *link = turn->links;
        turn->links = link->next_listed; /* it may be listed again once it is unlocked */
        (void)pthread_mutex_lock(&link->lock);
        link->listed = false;
        if (link->root_count > 0 || link->question_count > 0) {
            kelp__service_link_send(link, false);
        }
        (void)pthread_mutex_unlock(&link->lock);
        kelp__service_link_unref(link);
    }
}

/* ---- what comes in ---- */

/* The first reply: is it who we meant? */
static kelp_status check_first(const struct kelp__service_link *link,
                               const Kelp__V1__ReplicateReply *reply, struct kelp_error *reterr)
{
    kelp_status status = kelp_hello_check(reply->hello, &link->service->self, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (strcmp(reply->hello->id, link->id) != 0 || reply->hello->incarnation != link->incarnation) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "there is %.63s, another process",
                         reply->hello->id);
    }
    return KELP_OK;
}

static struct kelp_shard_link shard_link(const struct kelp__service_link *link)
{
    return (struct kelp_shard_link){
        .kind = KELP_REPLICA_LINK_FOLLOWER, .process = link->process, .serial = link->serial};
}

/* Shared memory is demanded: a follower that answers without it is alive, and that will not
 * change. */
static kelp_status check_shared(struct kelp__service_link *link, struct kelp_error *reterr)
{
    const struct kelp_service_options *options = &link->service->options;
    kelp_status status = KELP_OK;

    (void)pthread_mutex_lock(&link->lock);
    if (link->unmet) {
        status = kelp_fail(reterr, KELP_ERR_INVALID, KELP_SHM_UNMET, link->id, link->address,
                           link->unmet);
    }
    (void)pthread_mutex_unlock(&link->lock);
    if (status != KELP_OK) {
        options->refused(reterr, options->user);
    }
    return status;
}

static kelp_status hear_first(struct kelp__service_link *link, struct kelp_shard_turn *turn,
                              const Kelp__V1__ReplicateReply *reply, struct kelp_error *reterr)
{
    kelp_status status = check_first(link, reply, reterr);

    if (status == KELP_OK) {
        status = check_shared(link, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    link->heard = true;
    (void)pthread_mutex_lock(&link->lock);
    link->is_up = link->stream && !link->ended;
    link->up_us = kelp_clock_us();
    const bool is_up = link->is_up;
    const bool shared = link->shared;
    const struct kelp_shard_link up = shard_link(link);
    (void)pthread_mutex_unlock(&link->lock);
    kelp_log_info("follower connected shard=%s transport=%s", link->id, shared ? "shm" : "grpc");
    if (is_up) {
        kelp_shard_linked(link->service->shard, &up, true, turn);
    }
    return KELP_OK;
}

/* How much has come of the pieces. */
static kelp_status hear_copied(struct kelp__service_link *link, uint64_t bytes,
                               struct kelp_error *reterr)
{
    (void)pthread_mutex_lock(&link->lock);
    const bool fits = kelp__service_link_hear_copied(link, bytes);
    (void)pthread_mutex_unlock(&link->lock);
    return fits ? KELP_OK
                : kelp_fail(reterr, KELP_ERR_FORMAT,
                            "%" PRIu64 " bytes of copies have come, it says, which were not sent",
                            bytes);
}

static kelp_status hear_reply(struct kelp__service_link *link, struct kelp_shard_turn *turn,
                              const Kelp__V1__ReplicateReply *reply, struct kelp_error *reterr)
{
    if (reply->status != KELP_OK) {
        kelp_log_warn("follower refused a message shard=%s status=%s reason=\"%s\"", link->id,
                      kelp_status_known(reply->status) ? kelp_status_name(reply->status) : "?",
                      reply->error);
        return KELP_OK; /* it closes the stream */
    }
    kelp_status status = link->heard ? KELP_OK : hear_first(link, turn, reply, reterr);
    if (status == KELP_OK) {
        status = hear_copied(link, reply->copied, reterr);
    }
    for (size_t i = 0; status == KELP_OK && i < reply->n_acknowledgement; i++) {
        const Kelp__V1__Acknowledgement *said = reply->acknowledgement[i];
        const struct kelp_acknowledgement acknowledgement = {
            .process = link->process,
            .generation = reply->generation,
            .map_epoch = said->map_epoch,
            .holds = said->holds,
            .held = said->held,
            .digest = {said->digest_low, said->digest_high}};
        kelp_shard_acknowledged(link->service->shard, said->partition, &acknowledgement, turn);
    }
    return status;
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp__service_link *link = user;
    struct kelp_service *service = link->service;
    struct kelp__service_turn *turn = kelp__service_turn_take(service);
    struct kelp_error error = {.text = "no memory for a message"};
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;
    kelp_status status = KELP_ERR_NO_MEMORY;

    if (turn) {
        status = kelp_wire_decode(message, &kelp__v1__replicate_reply__descriptor,
                                  KELP_PS_FIELDS_BYTES_MAX, &fields, &payload, &error);
    }
    if (status == KELP_OK) {
        atomic_store(&link->quiet, 0);
        kelp__service_peers_heard(service->replicas->peers, link->id, link->incarnation);
        status = hear_reply(link, kelp__service_turn_shard(turn), (const void *)fields, &error);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (turn) {
        kelp__service_turn_finish(service, turn);
        kelp__service_keep_ticking(service);
    }
    if (status != KELP_OK) {
        kelp_log_warn("follower's message cannot be used shard=%s error=\"%s\"", link->id,
                      error.text);
        kelp_rpc_stream_close(stream, status, error.text);
    }
}

/* Stop sending; what was not sent is lost. True: the link was up. */
static bool take_down(struct kelp__service_link *link, bool *ret_wanted)
{
    (void)pthread_mutex_lock(&link->lock);
    const bool was_up = link->is_up;
    *ret_wanted = !link->ended;
    link->is_up = false;
    kelp__service_link_discard(link);
    kelp__service_link_discard_copies(link);
    (void)pthread_mutex_unlock(&link->lock);
    return was_up;
}

static void tell_down(struct kelp__service_link *link)
{
    const struct kelp_shard_link down = shard_link(link);
    struct kelp__service_turn *turn = kelp__service_turn_take(link->service);

    if (turn) {
        kelp_shard_linked(link->service->shard, &down, false, kelp__service_turn_shard(turn));
        kelp__service_turn_finish(link->service, turn);
    }
}

/* From here on another stream may be opened. True: at once. */
static bool end_stream(struct kelp__service_link *link, kelp_status status, bool was_up)
{
    struct kelp_rpc_channel *channel = NULL;

    (void)pthread_mutex_lock(&link->lock);
    if (link->is_silent || status == KELP_ERR_TIMEOUT) {
        channel = link->channel; /* its connection may wait for long before it sends again */
        link->channel = NULL;
    }
    const bool was_steady =
        was_up && kelp_clock_us() - link->up_us >= KELP_PS_LINK_STEADY_MS * UINT64_C(1000);
    if (was_steady) {
        link->open_us = 0;
        link->retry_ms = KELP_PS_REPLICA_TICK_MS;
    }
    const bool hurries = was_steady && !link->ended;
    link->sent_bytes = 0;
    link->sent_values = 0;
    link->copy_sent = 0;
    link->copy_taken = 0;
    link->is_silent = false;
    link->heard = false;
    atomic_store(&link->quiet, 0);
    link->stream = NULL;
    (void)pthread_mutex_unlock(&link->lock);
    kelp_rpc_channel_close(channel);
    return hurries;
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp__service_link *link = user;
    struct kelp_service *service = link->service;
    bool wanted = false;
    const bool was_up = take_down(link, &wanted);

    (void)stream;
    kelp__service_peers_ended(service->replicas->peers, link->id, link->incarnation, wanted);
    if (was_up) {
        kelp_log_info("follower's stream ended shard=%s bytes=%" PRIu64 " values=%" PRIu64
                      " copies=%" PRIu64 " status=%s text=\"%s\"",
                      link->id, link->sent_bytes, link->sent_values, link->copy_sent,
                      kelp_status_name(status), text ? text : "");
        tell_down(link); /* before another stream is opened */
    }
    if (end_stream(link, status, was_up)) {
        kelp__service_replicas_hurry(service);
    }
    kelp__service_link_unref(link);
    atomic_fetch_sub(&service->replicas->streams, 1);
}
