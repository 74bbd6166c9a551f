#include "worker/exchange_link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "proto/convert.h"

#define EXCHANGE_PATH "/kelp.v1.ParameterServer/Exchange"
#define RETRY_MS      50u
/* Bytes of a message besides its payload: 1024 answers of under 100 bytes, or with parts. */
#define FIELDS_MAX (2u << 20)
#define ITEMS_MAX  (2u * KELP_PARTITIONS_MAX)

struct kelp_shard_link {
    struct kelp_shard_link_options options;
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream;
    struct kelp_rpc_timer *timer; /* only while there is no stream */
    bool closing;
    bool helps;               /* what the shard was told on this stream */
    bool told;                /* the reason why there is no stream has been logged */
    uint32_t partition_first; /* of this shard: one contiguous run */
    uint32_t partition_end;
    /* Message under construction; memory reused. */
    Kelp__V1__PushItem *push_items;
    Kelp__V1__PushItem **push_pointers;
    const struct kelp_pushed *
        *push_nodes; /* whose gradient item i carries; its partition is in the item */
    Kelp__V1__PullItem *pull_items;
    Kelp__V1__PullItem **pull_pointers;
    Kelp__V1__StepPart *part_items; /* partition_count; when first needed */
    Kelp__V1__StepPart **part_pointers;
    size_t part_count;
    size_t push_count;
    size_t pull_count;
    size_t payload_bytes;
};

static void link_free(struct kelp_shard_link *link)
{
    (*link->options.alive)--;
    free(link->push_items);
    free(link->push_pointers);
    free(link->push_nodes);
    free(link->pull_items);
    free(link->pull_pointers);
    free(link->part_items);
    free(link->part_pointers);
    free(link);
}

static size_t partition_bytes(const struct kelp_shard_link *link, uint32_t partition)
{
    return (size_t)kelp_plan_partition(link->options.plan, partition).count * sizeof(float);
}

/* ---- receiving
 * ----------------------------------------------------------------------------------- */

static kelp_status check_answer(const struct kelp_shard_link *link,
                                const Kelp__V1__PullAnswer *answer,
                                const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    if (answer->table != 0 || answer->kind != 0 || answer->partition < link->partition_first ||
        answer->partition >= link->partition_end) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "answer for partition %u, which this shard does not have",
                         answer->partition);
    }
    if (!kelp_status_known(answer->status)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "answer with unknown status %d", answer->status);
    }
    if (answer->n_part > KELP_DECISION_SHARE_VALUES_MAX ||
        (answer->is_part && answer->length > 0)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "part of partition %u has %zu values, at most %d",
                         answer->partition, answer->n_part, KELP_DECISION_SHARE_VALUES_MAX);
    }
    if (answer->n_decision > (answer->word ? KELP_STEP_DECISION_MAX : 0)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "decision of %zu values, at most %d",
                         answer->n_decision, answer->word ? KELP_STEP_DECISION_MAX : 0);
    }
    if (answer->length == 0) {
        return KELP_OK;
    }
    if (answer->length != partition_bytes(link, answer->partition) ||
        answer->offset > payload->length || answer->length > payload->length - answer->offset) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "answer for partition %u has %llu bytes at %llu of %zu", answer->partition,
                         (unsigned long long)answer->length, (unsigned long long)answer->offset,
                         payload->length);
    }
    return KELP_OK;
}

static kelp_status check_offer(const struct kelp_shard_link *link, const Kelp__V1__Offer *offer,
                               struct kelp_error *reterr)
{
    uint32_t lanes = link->options.lanes;

    if (!offer->word || offer->partition < link->partition_first ||
        offer->partition >= link->partition_end || offer->lane_first > lanes ||
        offer->lane_count > lanes - offer->lane_first) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "offer of lanes [%u, +%u) of partition %u, which has %u",
                         offer->lane_first, offer->lane_count, offer->partition, lanes);
    }
    return KELP_OK;
}

/* What a reply of our own generation carries. */
static kelp_status take_content(struct kelp_shard_link *link, const Kelp__V1__ExchangeReply *reply,
                                const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < reply->n_refused; i++) {
        const Kelp__V1__Refusal *refusal = reply->refused[i];
        kelp_log_warn("push refused partition=%u version=%llu status=%s", refusal->partition,
                      (unsigned long long)refusal->version, kelp_status_name(refusal->status));
    }
    for (size_t i = 0; i < reply->n_answer && !link->closing && status == KELP_OK; i++) {
        status = check_answer(link, reply->answer[i], payload, reterr);
        if (status == KELP_OK) {
            link->options.events->answer(link, reply->answer[i],
                                         reply->answer[i]->length > 0 ? payload : NULL,
                                         link->options.user);
        }
    }
    for (size_t i = 0; i < reply->n_offer && !link->closing && status == KELP_OK; i++) {
        status = check_offer(link, reply->offer[i], reterr);
        if (status == KELP_OK) {
            link->options.events->offered(link, reply->offer[i], link->options.user);
        }
    }
    return status;
}

static kelp_status take_reply(struct kelp_shard_link *link, const Kelp__V1__ExchangeReply *reply,
                              const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    if (reply->status != KELP_OK) {
        kelp_log_warn("shard refused a message address=%s status=%s reason=\"%s\"",
                      link->options.map->shards[link->options.shard].address,
                      kelp_status_name(reply->status), reply->error);
        return KELP_OK; /* it closes the stream */
    }
    link->told = false;
    if (reply->generation != link->options.map->generation) {
        kelp_log_info("shard is in another generation ours=%llu its=%llu",
                      (unsigned long long)link->options.map->generation,
                      (unsigned long long)reply->generation);
        return KELP_OK; /* the map comes from the coordinator */
    }
    return take_content(link, reply, payload, reterr);
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct kelp_shard_link *link = user;
    struct kelp_error error;
    struct kelp_wire_payload payload;
    ProtobufCMessage *fields = NULL;

    if (link->closing) {
        return;
    }
    kelp_status status = kelp_wire_decode(message, &kelp__v1__exchange_reply__descriptor,
                                          FIELDS_MAX, &fields, &payload, &error);
    if (status == KELP_OK) {
        status = take_reply(link, (const Kelp__V1__ExchangeReply *)(const void *)fields, &payload,
                            &error);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (status != KELP_OK) {
        kelp_log_warn("shard sent a message that cannot be used error=\"%s\"", error.text);
        kelp_rpc_stream_close(stream, status, error.text);
    }
}

/* ---- life
 * ---------------------------------------------------------------------------------------- */

static void connect_now(struct kelp_shard_link *link);

static void retry(void *user)
{
    struct kelp_shard_link *link = user;
    kelp_rpc_timer_stop(link->timer);
    link->timer = NULL;
    connect_now(link);
}

static void retry_later(struct kelp_shard_link *link)
{
    if (!link->timer &&
        kelp_rpc_timer_start(link->options.loop, RETRY_MS, retry, link, &link->timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the shard will not be tried again");
    }
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct kelp_shard_link *link = user;
    (void)stream;
    link->stream = NULL;
    if (link->closing) {
        kelp_rpc_channel_close(link->channel);
        link_free(link);
        return;
    }
    if (!link->told) {
        kelp_log_warn("shard stream ended shard=%s address=%s status=%s reason=\"%s\"",
                      link->options.map->shards[link->options.shard].name,
                      link->options.map->shards[link->options.shard].address,
                      kelp_status_name(status), text);
        link->told = true; /* once until it works again */
    }
    retry_later(link);
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

static kelp_status send_hello(struct kelp_shard_link *link, struct kelp_error *reterr)
{
    struct kelp_rpc_message *message = NULL;
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;

    request.hello = (Kelp__V1__Hello *)(uintptr_t)link->options.hello;
    request.generation = link->options.map->generation;
    kelp_status status = kelp_wire_encode(&request.base, &message, reterr);
    return status == KELP_OK ? kelp_rpc_stream_send(link->stream, message) : status;
}

static void connect_now(struct kelp_shard_link *link)
{
    struct kelp_error error = {.text = ""};
    kelp_status status =
        kelp_rpc_stream_open(link->channel, EXCHANGE_PATH, link->options.connect_timeout_ms,
                             &stream_events, link, &link->stream, &error);
    if (status != KELP_OK) {
        link->stream = NULL;
        kelp_log_warn("stream to a shard not opened error=\"%s\"", error.text);
        retry_later(link);
        return;
    }
    link->helps = false;
    if (send_hello(link, &error) == KELP_OK) {
        link->options.events->opened(link, link->options.user);
    } /* otherwise closed() follows */
}

/* The partitions of a shard are one contiguous run (coordinator/core/placement): one range
 * describes them. */
static kelp_status find_partitions(struct kelp_shard_link *link, struct kelp_error *reterr)
{
    const struct kelp_worker_map *map = link->options.map;
    link->partition_first = map->partition_count;
    for (uint32_t p = 0; p < map->partition_count; p++) {
        if (map->primary[p] != link->options.shard) {
            continue;
        }
        if (link->partition_first == map->partition_count) {
            link->partition_first = p;
        } else if (link->partition_end != p) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "map: partitions of shard %u are not one run",
                             link->options.shard);
        }
        link->partition_end = p + 1;
    }
    return KELP_OK;
}

kelp_status kelp_shard_link_open(const struct kelp_shard_link_options *options,
                                 struct kelp_shard_link **ret_link, struct kelp_error *reterr)
{
    struct kelp_shard_link *link = calloc(1, sizeof(*link));
    if (!link) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "shard link: out of memory");
    }
    link->options = *options;
    (*options->alive)++;
    link->push_items = calloc(ITEMS_MAX, sizeof(*link->push_items));
    link->push_pointers = calloc(ITEMS_MAX, sizeof(*link->push_pointers));
    link->push_nodes = calloc(ITEMS_MAX, sizeof(*link->push_nodes));
    link->pull_items = calloc(ITEMS_MAX, sizeof(*link->pull_items));
    link->pull_pointers = calloc(ITEMS_MAX, sizeof(*link->pull_pointers));
    kelp_status status = KELP_OK;
    if (!link->push_items || !link->push_pointers || !link->push_nodes || !link->pull_items ||
        !link->pull_pointers) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "shard link: out of memory");
    }
    if (status == KELP_OK) {
        status = find_partitions(link, reterr);
    }
    if (status == KELP_OK) {
        size_t message_max =
            2 * (size_t)options->piece_bytes + partition_bytes(link, 0) + FIELDS_MAX;
        status = kelp_rpc_channel_open(options->loop, options->map->shards[options->shard].address,
                                       message_max, &link->channel, reterr);
    }
    if (status != KELP_OK) {
        link_free(link);
        return status;
    }
    *ret_link = link;
    connect_now(link);
    return KELP_OK;
}

void kelp_shard_link_close(struct kelp_shard_link *link)
{
    if (!link) {
        return;
    }
    link->closing = true;
    if (link->timer) {
        kelp_rpc_timer_stop(link->timer);
        link->timer = NULL;
    }
    if (link->stream) {
        kelp_rpc_stream_close(link->stream, KELP_OK, "done"); /* on_closed() frees the link */
        return;
    }
    kelp_rpc_channel_close(link->channel);
    link_free(link);
}

uint32_t kelp_shard_link_shard(const struct kelp_shard_link *link)
{
    return link->options.shard;
}

/* ---- sending
 * ------------------------------------------------------------------------------------- */

static void release_gradient(void *user)
{
    kelp_gradient_unref(user);
}

static kelp_status borrow_slice(struct kelp_shard_link *link, struct kelp_rpc_message *message,
                                struct kelp_gradient *gradient, uint32_t partition_first,
                                size_t length)
{
    struct kelp_slice_range range = kelp_plan_partition(link->options.plan, partition_first);
    kelp_gradient_ref(gradient);
    kelp_status status = kelp_rpc_message_borrow(message, gradient->values + range.first, length,
                                                 release_gradient, gradient);
    if (status != KELP_OK) {
        kelp_gradient_unref(gradient);
    }
    return status;
}

/* The payload: slices of neighbouring partitions of one gradient are one piece of memory. */
static kelp_status add_payload(struct kelp_shard_link *link, struct kelp_rpc_message *message)
{
    size_t i = 0;
    while (i < link->push_count) {
        const struct kelp_pushed *node = link->push_nodes[i];
        uint32_t partition_first = link->push_items[i].partition;
        size_t length = (size_t)link->push_items[i].length;
        size_t end = i + 1;
        while (end < link->push_count && link->push_nodes[end] == node &&
               link->push_items[end].partition == link->push_items[end - 1].partition + 1) {
            length += (size_t)link->push_items[end].length;
            end++;
        }
        if (length > 0) {
            kelp_status status =
                borrow_slice(link, message, node->gradient, partition_first, length);
            if (status != KELP_OK) {
                return status;
            }
        }
        i = end;
    }
    return KELP_OK;
}

/* Goes with a word of which nobody has to hear what was decided before it. */
static const struct kelp_step_decision undecided = {.count = 0};

/* Send what has been collected as one message, and begin another. */
static kelp_status send_collected(struct kelp_shard_link *link,
                                  const struct kelp_control_word *word,
                                  const struct kelp_step_decision *decision,
                                  struct kelp_error *reterr)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__ControlWord wire_word;
    struct kelp_rpc_message *message = NULL;

    request.generation = link->options.map->generation;
    request.n_push = link->push_count;
    request.push = link->push_pointers;
    request.n_pull = link->pull_count;
    request.pull = link->pull_pointers;
    request.n_part = link->part_count;
    request.part = link->part_pointers;
    request.helps = link->helps;
    if (word) {
        kelp_wire_put_word(word, &wire_word);
        request.word = &wire_word;
        request.n_decision = decision->count;
        request.decision = (double *)(uintptr_t)decision->values; /* only read */
    }
    kelp_status status =
        kelp_wire_encode_payload(&request.base, link->payload_bytes, &message, reterr);
    if (status == KELP_OK) {
        status = add_payload(link, message);
        if (status != KELP_OK) {
            kelp_rpc_message_unref(message);
        }
    }
    if (status == KELP_OK) {
        status = kelp_rpc_stream_send(link->stream, message);
    }
    link->push_count = 0;
    link->pull_count = 0;
    link->part_count = 0;
    link->payload_bytes = 0;
    if (status == KELP_ERR_CLOSED) {
        return KELP_OK; /* closed() follows, and everything is sent again on the next stream */
    }
    return status == KELP_OK
               ? KELP_OK
               : kelp_fail(reterr, status, "exchange not sent: %s", kelp_status_text(status));
}

static void collect_push(struct kelp_shard_link *link, const struct kelp_pushed *node,
                         uint32_t partition, bool train)
{
    Kelp__V1__PushItem *item = &link->push_items[link->push_count];
    bool carries = train && node->gradient->present;

    kelp__v1__push_item__init(item);
    item->partition = partition;
    item->map_epoch = link->options.map->map_epoch[partition];
    item->lane_first = node->lane_first;
    item->lane_count = node->lane_count;
    item->offset = link->payload_bytes;
    item->length = carries ? partition_bytes(link, partition) : 0;
    if (partition == 0) {
        item->n_sums = kelp_metric_sum_trim(node->gradient->sums, node->gradient->sum_count);
        item->sums = node->gradient->sums;
        item->digest = (char *)(uintptr_t)node->digest;
    }
    link->push_pointers[link->push_count] = item;
    link->push_nodes[link->push_count] = node;
    link->push_count++;
    link->payload_bytes += (size_t)item->length;
}

/* The first partition of a run that ends before `end` and fits into one piece. */
static uint32_t run_before(const struct kelp_shard_link *link, uint32_t end)
{
    uint32_t first = end - 1;
    size_t bytes = partition_bytes(link, first);
    while (first > link->partition_first &&
           bytes + partition_bytes(link, first - 1) <= link->options.piece_bytes) {
        first--;
        bytes += partition_bytes(link, first);
    }
    return first;
}

/* Push nodes for partitions [first, end), sending each time a message is full. */
static kelp_status collect_run(struct kelp_shard_link *link,
                               const struct kelp_shard_link_batch *batch, uint32_t first,
                               uint32_t end, struct kelp_error *reterr)
{
    bool train = batch->word->kind == KELP_STEP_TRAIN;
    for (size_t n = 0; n < batch->pushed_count; n++) {
        const struct kelp_pushed *node = &batch->pushed[n];
        if (node->sent && !batch->resend) {
            continue;
        }
        for (uint32_t p = first; p < end; p++) {
            if (link->push_count == ITEMS_MAX ||
                (link->push_count > 0 &&
                 link->payload_bytes + partition_bytes(link, p) > link->options.piece_bytes)) {
                kelp_status status = send_collected(link, batch->word, &undecided, reterr);
                if (status != KELP_OK) {
                    return status;
                }
            }
            collect_push(link, node, p, train);
        }
    }
    return KELP_OK;
}

/* The last partitions first: their gradients are complete first. Other entries live on partition 0
 * alone. */
static kelp_status collect_pushes(struct kelp_shard_link *link,
                                  const struct kelp_shard_link_batch *batch,
                                  struct kelp_error *reterr)
{
    bool train = batch->word->kind == KELP_STEP_TRAIN;
    uint32_t end = train ? link->partition_end : (link->partition_first == 0 ? 1 : 0);
    while (end > link->partition_first) {
        uint32_t first = run_before(link, end);
        kelp_status status = collect_run(link, batch, first, end, reterr);
        if (status != KELP_OK) {
            return status;
        }
        end = first;
    }
    return KELP_OK;
}

static void collect_pull(struct kelp_shard_link *link, const struct kelp_sync_pull *pull)
{
    static const Kelp__V1__PullMode modes[] = {
        [KELP_SYNC_PULL_CURRENT] = KELP__V1__PULL_MODE__PULL_CURRENT,
        [KELP_SYNC_PULL_STEP] = KELP__V1__PULL_MODE__PULL_STEP,
        [KELP_SYNC_PULL_VERSION] = KELP__V1__PULL_MODE__PULL_VERSION,
        [KELP_SYNC_PULL_PART] = KELP__V1__PULL_MODE__PULL_PART,
    };
    Kelp__V1__PullItem *item = &link->pull_items[link->pull_count];

    kelp__v1__pull_item__init(item);
    item->partition = pull->partition;
    item->map_epoch = link->options.map->map_epoch[pull->partition];
    item->mode = modes[pull->mode];
    item->step = pull->step;
    item->version = pull->version;
    item->holds = pull->holds;
    item->held_step = pull->held_step;
    link->pull_pointers[link->pull_count++] = item;
}

static void collect_pulls(struct kelp_shard_link *link, struct kelp_sync *sync)
{
    struct kelp_sync_pull pull;

    for (uint32_t p = link->partition_first; p < link->partition_end; p++) {
        while (kelp_sync_pull(sync, p, &pull)) {
            assert(link->pull_count < ITEMS_MAX);
            collect_pull(link, &pull);
        }
    }
}

/* To the host of partition 0: all the others' parts, once they are there. */
static kelp_status collect_parts(struct kelp_shard_link *link, struct kelp_sync *sync,
                                 struct kelp_error *reterr)
{
    uint32_t count = link->options.map->partition_count;

    if (link->partition_first != 0 || !kelp_sync_parts_due(sync)) {
        return KELP_OK;
    }
    if (!link->part_items) {
        link->part_items = calloc(count, sizeof(*link->part_items));
        link->part_pointers = calloc(count, sizeof(*link->part_pointers));
        if (!link->part_items || !link->part_pointers) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for parts of a decision");
        }
    }
    for (uint32_t p = 1; p < count; p++) {
        const struct kelp_decision_share *part = kelp_sync_part(sync, p);
        Kelp__V1__StepPart *item = &link->part_items[link->part_count];
        kelp__v1__step_part__init(item);
        item->partition = p;
        item->map_epoch = link->options.map->map_epoch[0];
        item->n_values = part->count;
        item->values = (double *)(uintptr_t)part->values; /* only read */
        link->part_pointers[link->part_count++] = item;
    }
    return KELP_OK;
}

kelp_status kelp_shard_link_send(struct kelp_shard_link *link,
                                 const struct kelp_shard_link_batch *batch,
                                 struct kelp_error *reterr)
{
    if (!link->stream || link->partition_end == 0) {
        return KELP_OK;
    }
    kelp_status status = KELP_OK;
    bool news = batch->helps != link->helps;
    link->helps = batch->helps;
    if (batch->word) {
        status = collect_pushes(link, batch, reterr);
    }
    if (status == KELP_OK && batch->sync && batch->word) {
        status = collect_parts(link, batch->sync, reterr);
    }
    struct kelp_step_decision decision = undecided;
    const struct kelp_control_word *word =
        batch->sync ? kelp_sync_news(batch->sync, &decision) : NULL;
    if (status == KELP_OK && word && (link->push_count > 0 || link->part_count > 0)) {
        /* pulls go with another word */
        status = send_collected(link, batch->word, &undecided, reterr);
    }
    if (status == KELP_OK && batch->sync) {
        collect_pulls(link, batch->sync);
    }
    if (status == KELP_OK &&
        (link->push_count > 0 || link->part_count > 0 || link->pull_count > 0 || news)) {
        status = send_collected(link, word ? word : batch->word, &decision, reterr);
    }
    return status;
}
