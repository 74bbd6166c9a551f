#include "worker/links/exchange_link.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log/log.h"
#include "proto/convert.h"

#define EXCHANGE_PATH "/kelp.v1.ParameterServer/Exchange"
/* Bytes of a message besides its payload: 1024 answers of under 100 bytes, or with decision
 * shares. */
#define FIELDS_MAX (2u << 20)
#define CAUSE_MAX  127
#define UNMET_MAX  191

struct kelp_shard_link {
    struct kelp_shard_link_options options;
    struct kelp_place place;
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream;
    struct kelp_rpc_timer *timer; /* only while there is no stream */
    bool closing;
    bool unopened;             /* the stream could not be opened: closed() is due */
    bool told;                 /* the reason why there is no stream has been logged */
    bool heard;                /* something came on this stream */
    bool shared;               /* it goes through shared memory */
    bool unshared;             /* that has failed for good: gRPC, where there is a choice */
    char unmet[UNMET_MAX + 1]; /* it is demanded, and this stream goes without: why */
    char cause[CAUSE_MAX + 1]; /* why the last stream ended */
    /* Message under construction; memory reused. */
    Kelp__V1__PushItem *push_items;
    Kelp__V1__PushItem **push_pointers;
    Kelp__V1__PullItem *pull_items;
    Kelp__V1__PullItem **pull_pointers;
    Kelp__V1__StepPart *share_items; /* partition_count; when first needed */
    Kelp__V1__StepPart **share_pointers;
};

static void link_free(struct kelp_shard_link *link)
{
    (*link->options.alive)--;
    free(link->push_items);
    free(link->push_pointers);
    free(link->pull_items);
    free(link->pull_pointers);
    free(link->share_items);
    free(link->share_pointers);
    free(link);
}

/* Of weights. */
static size_t partition_bytes(const struct kelp_shard_link *link, uint32_t partition)
{
    return (size_t)kelp_plan_partition(link->options.plan, partition).count * sizeof(float);
}

/* Whether the shard still has it, the stepper knows. */
static bool is_partition(const struct kelp_shard_link *link, uint32_t partition)
{
    return partition < link->options.plan->partition_count;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static kelp_status check_answer(const struct kelp_shard_link *link,
                                const Kelp__V1__PullAnswer *answer,
                                const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    if (answer->table != 0 || answer->kind != 0 || !is_partition(link, answer->partition)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "answer for partition %u of table %u, kind %u, which is not there",
                         answer->partition, answer->table, answer->kind);
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
                         "answer for partition %u has %" PRIu64 " bytes at %" PRIu64 " of %zu",
                         answer->partition, answer->length, answer->offset, payload->length);
    }
    return KELP_OK;
}

static kelp_status check_offer(const struct kelp_shard_link *link, const Kelp__V1__Offer *offer,
                               struct kelp_error *reterr)
{
    uint32_t lanes = link->options.lanes;

    if (!offer->word || !is_partition(link, offer->partition) || offer->lane_first > lanes ||
        offer->lane_count > lanes - offer->lane_first) {
        return kelp_fail(reterr, KELP_ERR_FORMAT,
                         "offer of lanes [%u, +%u) of partition %u, which has %u",
                         offer->lane_first, offer->lane_count, offer->partition, lanes);
    }
    return KELP_OK;
}

static kelp_status check_refusal(const struct kelp_shard_link *link,
                                 const Kelp__V1__Refusal *refusal, struct kelp_error *reterr)
{
    if (!is_partition(link, refusal->partition) || !kelp_status_known(refusal->status)) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "refusal of partition %u with status %d",
                         refusal->partition, refusal->status);
    }
    return KELP_OK;
}

/* Shared memory is demanded. A shard that answers without is alive, and nothing will change. */
static void report_unfit(struct kelp_shard_link *link)
{
    struct kelp_error error;

    (void)kelp_fail(&error, KELP_ERR_INVALID, KELP_SHM_UNMET, link->place.shard,
                    link->place.address, link->unmet);
    link->options.events->unfit(link, &error, link->options.user);
}

/* What a reply of our own generation carries. */
static kelp_status hear_content(struct kelp_shard_link *link, const Kelp__V1__ExchangeReply *reply,
                                const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < reply->n_refused && !link->closing && status == KELP_OK; i++) {
        status = check_refusal(link, reply->refused[i], reterr);
        if (status == KELP_OK) {
            link->options.events->refused(link, reply->refused[i], link->options.user);
        }
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

static kelp_status hear_reply(struct kelp_shard_link *link, const Kelp__V1__ExchangeReply *reply,
                              const struct kelp_wire_payload *payload, struct kelp_error *reterr)
{
    if (reply->status != KELP_OK) {
        if (!link->told) {
            kelp_log_warn("shard refused a message address=%s status=%s reason=\"%s\"",
                          link->place.address, kelp_status_name(reply->status), reply->error);
            link->told = true;
        }
        return KELP_OK; /* it closes the stream */
    }
    link->told = false;
    if (link->unmet[0] != '\0') {
        report_unfit(link);
        return KELP_OK;
    }
    if (!link->heard) {
        link->heard = true;
        kelp_log(link->options.stream == 0 ? KELP_LOG_INFO : KELP_LOG_DEBUG,
                 "shard answers shard=%s address=%s stream=%u transport=%s", link->place.shard,
                 link->place.address, link->options.stream, link->shared ? "shm" : "grpc");
        link->options.events->opened(link, link->options.user);
    }
    if (reply->generation != link->options.generation) {
        kelp_log_info("shard is in another generation ours=%" PRIu64 " its=%" PRIu64,
                      link->options.generation, reply->generation);
        return KELP_OK; /* the map comes from the coordinator */
    }
    return hear_content(link, reply, payload, reterr);
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
    kelp_figures_add(link->options.figures, KELP_FIGURE_WORKER_RECEIVED,
                     kelp_rpc_message_length(message));
    kelp_status status = kelp_wire_decode(message, &kelp__v1__exchange_reply__descriptor,
                                          FIELDS_MAX, &fields, &payload, &error);
    if (status == KELP_OK) {
        status = hear_reply(link, (const Kelp__V1__ExchangeReply *)(const void *)fields, &payload,
                            &error);
        protobuf_c_message_free_unpacked(fields, NULL);
    }
    if (status != KELP_OK) {
        kelp_log_warn("shard sent a message that cannot be used error=\"%s\"", error.text);
        kelp_rpc_stream_close(stream, status, error.text);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

static void on_timer(void *user)
{
    struct kelp_shard_link *link = user;
    bool unopened = link->unopened;
    kelp_rpc_timer_stop(link->timer);
    link->timer = NULL;
    link->unopened = false;
    if (unopened) {
        link->options.events->closed(link, link->options.user);
    } else {
        link->options.events->retry(link, link->options.user);
    }
}

void kelp_shard_link_retry_later(struct kelp_shard_link *link, uint32_t after_ms)
{
    if (!link->timer && kelp_rpc_timer_start(link->options.loop, after_ms, on_timer, link,
                                             &link->timer) != KELP_OK) {
        kelp_log_error("no memory for a timer: the shard will not be tried again");
    }
}

/* No memory to share, here or there, or another version of it: the next try would end like that. */
static bool is_for_good(const struct kelp_shard_link *link, kelp_status status)
{
    return status == KELP_ERR_UNSUPPORTED || kelp_status_group(status) == KELP_GROUP_RESOURCE ||
           (!link->heard && status == KELP_ERR_UNREACHABLE);
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
    link->unshared = link->unshared || (link->shared && is_for_good(link, status));
    if (!link->told) {
        kelp_log_warn("shard stream ended shard=%s status=%s reason=\"%s\"", link->place.shard,
                      kelp_status_name(status), text);
        link->told = true; /* once until it works again */
    }
    (void)snprintf(link->cause, sizeof(link->cause), "%s",
                   status == KELP_ERR_TIMEOUT ? "timed out: it does not answer" : text);
    link->options.events->closed(link, link->options.user);
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

static kelp_status send_hello(struct kelp_shard_link *link, struct kelp_error *reterr)
{
    struct kelp_rpc_message *message = NULL;
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;

    request.hello = (Kelp__V1__Hello *)(uintptr_t)link->options.hello;
    request.generation = link->options.generation;
    kelp_status status = kelp_wire_encode(&request.base, &message, reterr);
    return status == KELP_OK ? kelp_rpc_stream_send(link->stream, message) : status;
}

/* Through shared memory where that is wanted and there. Where it is demanded and not there, gRPC
 * tells whether the shard is alive. */
static kelp_status open_stream(struct kelp_shard_link *link, struct kelp_error *reterr)
{
    const enum kelp_transport transport = link->options.transport;
    const struct kelp_rpc_stream_options options = {.path = EXCHANGE_PATH,
                                                    .first_message_ms =
                                                        link->options.connect_timeout_ms,
                                                    .hello = true,
                                                    .events = &stream_events,
                                                    .user = link};
    const bool demanded = transport == KELP_TRANSPORT_SHM;
    kelp_status status = KELP_ERR_UNREACHABLE;

    link->unmet[0] = '\0';
    if (demanded || (transport == KELP_TRANSPORT_AUTO && !link->unshared)) {
        status = kelp_rpc_stream_open_shared(link->channel, &options, &link->stream, reterr);
    }
    link->shared = status == KELP_OK;
    if (demanded && (status == KELP_ERR_UNREACHABLE || status == KELP_ERR_DENIED)) {
        (void)snprintf(link->unmet, sizeof(link->unmet), "%.*s", UNMET_MAX, reterr->text);
    }
    return link->shared || (demanded && link->unmet[0] == '\0')
               ? status
               : kelp_rpc_stream_open(link->channel, &options, &link->stream, reterr);
}

void kelp_shard_link_connect(struct kelp_shard_link *link)
{
    struct kelp_error error = {.text = ""};
    link->heard = false;
    kelp_status status = open_stream(link, &error);
    if (status != KELP_OK) {
        link->stream = NULL;
        link->unopened = true;
        if (!link->told) {
            kelp_log_warn("stream to a shard not opened shard=%s error=\"%s\"", link->place.shard,
                          error.text);
            link->told = true; /* once until it works again */
        }
        (void)snprintf(link->cause, sizeof(link->cause), "%.*s", CAUSE_MAX, error.text);
        kelp_shard_link_retry_later(link, 1);
        return;
    }
    (void)send_hello(link, &error); /* when it fails, closed() follows */
}

kelp_status kelp_shard_link_open(const struct kelp_shard_link_options *options,
                                 struct kelp_shard_link **ret_link, struct kelp_error *reterr)
{
    struct kelp_shard_link *link = calloc(1, sizeof(*link));
    if (!link) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "shard link: out of memory");
    }
    link->options = *options;
    link->place = *options->place;
    link->options.place = &link->place;
    (*options->alive)++;
    link->push_items = calloc(KELP_STEPPER_ITEMS_MAX, sizeof(*link->push_items));
    link->push_pointers = calloc(KELP_STEPPER_ITEMS_MAX, sizeof(*link->push_pointers));
    link->pull_items = calloc(KELP_STEPPER_ITEMS_MAX, sizeof(*link->pull_items));
    link->pull_pointers = calloc(KELP_STEPPER_ITEMS_MAX, sizeof(*link->pull_pointers));
    kelp_status status = KELP_OK;
    if (!link->push_items || !link->push_pointers || !link->pull_items || !link->pull_pointers) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "shard link: out of memory");
    } else {
        size_t message_max =
            2 * (size_t)options->piece_bytes + partition_bytes(link, 0) + FIELDS_MAX;
        status = options->carrier
                     ? kelp_rpc_channel_open_carried(options->carrier, link->place.address,
                                                     KELP_ROLE_SHARD, message_max, &link->channel,
                                                     reterr)
                     : kelp_rpc_channel_open(options->loop, link->place.address, KELP_ROLE_SHARD,
                                             message_max, &link->channel, reterr);
    }
    if (status != KELP_OK) {
        link_free(link);
        return status;
    }
    *ret_link = link;
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

uint32_t kelp_shard_link_number(const struct kelp_shard_link *link)
{
    return link->options.number;
}

uint64_t kelp_shard_link_generation(const struct kelp_shard_link *link)
{
    return link->options.generation;
}

bool kelp_shard_link_is_shared(const struct kelp_shard_link *link)
{
    return link->shared;
}

const char *kelp_shard_link_cause(const struct kelp_shard_link *link)
{
    return link->cause;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void gradient_returned(void *user, bool read)
{
    struct kelp_gradient *gradient = user;
    if (!read) {
        kelp_gradient_abandon(gradient);
    }
    kelp_gradient_unref(gradient);
}

static kelp_status borrow_slice(struct kelp_shard_link *link, struct kelp_rpc_message *message,
                                const struct kelp_stepper_push *first, size_t length)
{
    struct kelp_gradient *gradient = first->node->content;
    struct kelp_slice_range range = kelp_plan_partition(link->options.plan, first->partition);
    const struct kelp_rpc_loan loan = {.bytes = kelp_gradient_bytes(gradient, range.first),
                                       .length = length,
                                       .area = gradient->area,
                                       .returned = gradient_returned,
                                       .user = gradient};
    kelp_gradient_ref(gradient);
    kelp_status status = kelp_rpc_message_lend(message, &loan);
    if (status != KELP_OK) {
        kelp_gradient_unref(gradient);
    }
    return status;
}

/* The payload: slices of neighbouring partitions of one gradient are one piece of memory. */
static kelp_status add_payload(struct kelp_shard_link *link, struct kelp_rpc_message *message,
                               const struct kelp_stepper_message *content)
{
    const struct kelp_stepper_push *pushes = content->pushes;
    size_t i = 0;
    while (i < content->push_count) {
        size_t first = i;
        size_t length = (size_t)pushes[i++].bytes;
        while (i < content->push_count && pushes[i].node == pushes[first].node &&
               pushes[i].partition == pushes[i - 1].partition + 1) {
            length += (size_t)pushes[i++].bytes;
        }
        kelp_status status =
            length > 0 ? borrow_slice(link, message, &pushes[first], length) : KELP_OK;
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static void put_pushes(struct kelp_shard_link *link, const struct kelp_stepper_message *message)
{
    uint64_t offset = 0;
    for (size_t i = 0; i < message->push_count; i++) {
        const struct kelp_stepper_push *push = &message->pushes[i];
        struct kelp_gradient *gradient = push->node->content;
        Kelp__V1__PushItem *item = &link->push_items[i];

        kelp__v1__push_item__init(item);
        item->kind = link->options.precision;
        item->partition = push->partition;
        item->map_epoch = push->map_epoch;
        item->lane_first = push->node->lane_first;
        item->lane_count = push->node->lane_count;
        item->offset = offset;
        item->length = push->bytes;
        if (push->partition == 0) {
            item->n_sums = kelp_metric_sum_trim(gradient->sums, gradient->sum_count);
            item->sums = gradient->sums;
            item->digest = gradient->digest;
        }
        link->push_pointers[i] = item;
        offset += push->bytes;
    }
}

static void put_pulls(struct kelp_shard_link *link, const struct kelp_stepper_message *message)
{
    static const Kelp__V1__PullMode modes[] = {
        [KELP_SYNC_PULL_CURRENT] = KELP__V1__PULL_MODE__PULL_CURRENT,
        [KELP_SYNC_PULL_STEP] = KELP__V1__PULL_MODE__PULL_STEP,
        [KELP_SYNC_PULL_VERSION] = KELP__V1__PULL_MODE__PULL_VERSION,
        [KELP_SYNC_PULL_SHARE] = KELP__V1__PULL_MODE__PULL_PART,
    };
    for (size_t i = 0; i < message->pull_count; i++) {
        const struct kelp_sync_pull *pull = &message->pulls[i].pull;
        Kelp__V1__PullItem *item = &link->pull_items[i];

        kelp__v1__pull_item__init(item);
        item->partition = pull->partition;
        item->map_epoch = message->pulls[i].map_epoch;
        item->mode = modes[pull->mode];
        item->step = pull->step;
        item->version = pull->version;
        item->holds = pull->holds;
        item->held_step = pull->held_step;
        link->pull_pointers[i] = item;
    }
}

static kelp_status put_shares(struct kelp_shard_link *link,
                              const struct kelp_stepper_message *message, struct kelp_error *reterr)
{
    uint32_t count = link->options.plan->partition_count;

    if (message->share_count > 0 && !link->share_items) {
        link->share_items = calloc(count, sizeof(*link->share_items));
        link->share_pointers = calloc(count, sizeof(*link->share_pointers));
        if (!link->share_items || !link->share_pointers) {
            return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for decision shares");
        }
    }
    for (size_t i = 0; i < message->share_count; i++) {
        const struct kelp_stepper_share *share = &message->shares[i];
        Kelp__V1__StepPart *item = &link->share_items[i];

        kelp__v1__step_part__init(item);
        item->partition = share->partition;
        item->map_epoch = share->map_epoch;
        item->n_values = share->share->count;
        item->values = (double *)(uintptr_t)share->share->values; /* only read */
        link->share_pointers[i] = item;
    }
    return KELP_OK;
}

static kelp_status send_request(struct kelp_shard_link *link, Kelp__V1__ExchangeRequest *request,
                                const struct kelp_stepper_message *content,
                                struct kelp_error *reterr)
{
    struct kelp_rpc_message *message = NULL;
    kelp_status status =
        kelp_wire_encode_payload(&request->base, (size_t)content->push_bytes, &message, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = add_payload(link, message, content);
    if (status != KELP_OK) {
        kelp_rpc_message_unref(message);
    } else {
        kelp_figures_add(link->options.figures, KELP_FIGURE_WORKER_SENT,
                         kelp_rpc_message_length(message));
        status = kelp_rpc_stream_send(link->stream, message);
    }
    if (status == KELP_OK || status == KELP_ERR_CLOSED) {
        return KELP_OK; /* CLOSED: closed() follows, and the next stream sends everything again */
    }
    return kelp_fail(reterr, status, "exchange not sent: %s", kelp_status_text(status));
}

kelp_status kelp_shard_link_send(struct kelp_shard_link *link,
                                 const struct kelp_stepper_message *message,
                                 struct kelp_error *reterr)
{
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__ControlWord word;

    if (!link->stream) {
        return KELP_OK;
    }
    put_pushes(link, message);
    put_pulls(link, message);
    kelp_status status = put_shares(link, message, reterr);
    if (status != KELP_OK) {
        return status;
    }
    request.generation = message->generation;
    request.n_push = message->push_count;
    request.push = link->push_pointers;
    request.n_pull = message->pull_count;
    request.pull = link->pull_pointers;
    request.n_part = message->share_count;
    request.part = link->share_pointers;
    request.helps = message->helps;
    if (message->has_word) {
        kelp_wire_put_word(&message->word, &word);
        request.word = &word;
        request.n_decision = message->decision.count;
        request.decision = (double *)(uintptr_t)message->decision.values; /* only read */
    }
    return send_request(link, &request, message, reterr);
}
