/*
 * Happy path: one stream to each shard; each is asked for what its partitions have now
 * (PULL_CURRENT). When all labels are equal, that is the model.
 *
 * While the job goes on, labels differ by one at most. The highest becomes the target, and the
 * partitions behind it are asked for that step (PULL_STEP), which they answer when they have it. A
 * partition that has gone more than one step past the target can no longer read it and says so:
 * then everything begins again, until the deadline.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cluster/model_file.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "proto/hello.h"
#include "proto/wire.h"

#define EXCHANGE_PATH    "/kelp.v1.ParameterServer/Exchange"
#define FIELDS_BYTES_MAX (4u << 20)

struct request {
    const struct kelp_plan *plan;
    const Kelp__V1__Map *map; /* as a status gave it */
    uint64_t spec_digest;
    uint32_t deadline_ms; /* for all of it */
};

struct partition {
    bool have;
    bool asked; /* and not answered */
    uint64_t step;
    uint64_t map_epoch;
    uint32_t shard;
};

struct shard {
    struct pull *pull;
    struct kelp_rpc_channel *channel;
    struct kelp_rpc_stream *stream; /* NULL: closed, or it is primary of nothing */
    bool is_primary;                /* of some partition */
};

struct pull {
    const struct request *request;
    struct kelp_rpc_loop *loop;
    const char *job;
    uint64_t incarnation;
    float *flat;
    struct partition *partitions;
    uint32_t partition_count;
    struct shard *shards;
    size_t shard_count;
    uint32_t open_answers;
    bool too_late; /* a partition can no longer read the target */
    kelp_status status;
    struct kelp_error error;
};

static void fail(struct pull *pull, kelp_status status, const char *text)
{
    if (pull->status == KELP_OK) {
        pull->status = kelp_fail(&pull->error, status, "%s", text);
    }
}

static void store_weights(struct pull *pull, const Kelp__V1__PullAnswer *answer,
                          const struct kelp_wire_payload *payload)
{
    struct partition *entry = &pull->partitions[answer->partition];
    struct kelp_slice_range range = kelp_plan_partition(pull->request->plan, answer->partition);

    if (answer->length != range.count * sizeof(float) || answer->offset > payload->length ||
        answer->length > payload->length - answer->offset) {
        fail(pull, KELP_ERR_FORMAT, "a shard sent weights of another length than the plan's");
        return;
    }
    if (answer->length > 0) {
        kelp_wire_payload_copy(payload, answer->offset, answer->length, pull->flat + range.first);
    }
    entry->have = true;
    entry->step = answer->step;
}

static void handle_answer(struct pull *pull, const Kelp__V1__PullAnswer *answer,
                          const struct kelp_wire_payload *payload)
{
    if (answer->partition >= pull->partition_count || !pull->partitions[answer->partition].asked) {
        fail(pull, KELP_ERR_FORMAT, "a shard answered for a partition it was not asked for");
        return;
    }
    pull->partitions[answer->partition].asked = false;
    pull->open_answers--;
    if (answer->status == KELP_OK) {
        store_weights(pull, answer, payload);
    } else if (answer->status == KELP_ERR_NOT_FOUND) {
        pull->too_late = true;
    } else {
        fail(pull,
             kelp_status_known(answer->status) ? (kelp_status)answer->status : KELP_ERR_FORMAT,
             kelp_status_text(answer->status));
    }
}

static void on_message(struct kelp_rpc_stream *stream, struct kelp_rpc_message *message, void *user)
{
    struct shard *shard = user;
    struct pull *pull = shard->pull;
    ProtobufCMessage *fields = NULL;
    struct kelp_wire_payload payload;

    (void)stream;
    if (pull->status != KELP_OK) {
        return;
    }
    pull->status = kelp_wire_decode(message, &kelp__v1__exchange_reply__descriptor,
                                    FIELDS_BYTES_MAX, &fields, &payload, &pull->error);
    if (pull->status != KELP_OK) {
        return;
    }
    Kelp__V1__ExchangeReply *reply = (Kelp__V1__ExchangeReply *)(void *)fields;
    if (reply->status != KELP_OK) {
        fail(pull, kelp_status_known(reply->status) ? (kelp_status)reply->status : KELP_ERR_FORMAT,
             reply->error[0] ? reply->error : kelp_status_text(reply->status));
    }
    for (size_t i = 0; i < reply->n_answer && pull->status == KELP_OK; i++) {
        handle_answer(pull, reply->answer[i], &payload);
    }
    protobuf_c_message_free_unpacked(fields, NULL);
}

static void on_closed(struct kelp_rpc_stream *stream, kelp_status status, const char *text,
                      void *user)
{
    struct shard *shard = user;

    (void)stream;
    shard->stream = NULL;
    if (shard->pull->open_answers > 0) {
        fail(shard->pull, status == KELP_OK ? KELP_ERR_CLOSED : status,
             text && text[0] ? text : "a shard ended the stream");
    }
}

static const struct kelp_rpc_stream_events stream_events = {.message = on_message,
                                                            .closed = on_closed};

static kelp_status check_map(const struct request *request, struct kelp_error *reterr)
{
    const Kelp__V1__Map *map = request->map;

    if (!map || map->n_partitions != request->plan->partition_count || map->n_shards == 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "the job has no partition map yet");
    }
    for (size_t i = 0; i < map->n_partitions; i++) {
        if (map->partitions[i]->partition != i || map->partitions[i]->primary >= map->n_shards) {
            return kelp_fail(reterr, KELP_ERR_FORMAT, "the coordinator's partition map is damaged");
        }
    }
    return KELP_OK;
}

static kelp_status open_shards(struct pull *pull, struct kelp_error *reterr)
{
    const Kelp__V1__Map *map = pull->request->map;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < map->n_shards && status == KELP_OK; i++) {
        struct shard *shard = &pull->shards[i];
        shard->pull = pull;
        if (!shard->is_primary) {
            continue;
        }
        status = kelp_rpc_channel_open(pull->loop, map->shards[i]->address, KELP_ROLE_SHARD,
                                       KELP_MODEL_ANSWER_MAX, &shard->channel, reterr);
        if (status == KELP_OK) {
            status = kelp_rpc_stream_open(
                shard->channel,
                &(struct kelp_rpc_stream_options){.path = EXCHANGE_PATH,
                                                  .first_message_ms = pull->request->deadline_ms,
                                                  .hello = true,
                                                  .events = &stream_events,
                                                  .user = shard},
                &shard->stream, reterr);
        }
    }
    return status;
}

/* Ask one shard for its partitions: for all (PULL_CURRENT), or for those whose label is not the
 * target. */
static kelp_status ask_shard(struct pull *pull, uint32_t shard, bool current, uint64_t target,
                             struct kelp_error *reterr)
{
    Kelp__V1__Hello hello;
    Kelp__V1__ExchangeRequest request = KELP__V1__EXCHANGE_REQUEST__INIT;
    Kelp__V1__PullItem *items = calloc(pull->partition_count, sizeof(*items));
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is what protobuf-c takes */
    Kelp__V1__PullItem **pointers = calloc(pull->partition_count, sizeof(*pointers));
    struct kelp_rpc_message *message = NULL;
    kelp_status status = KELP_OK;

    if (!items || !pointers) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_items;
    }
    for (uint32_t i = 0; i < pull->partition_count; i++) {
        struct partition *entry = &pull->partitions[i];
        if (entry->shard != shard || (!current && entry->step == target)) {
            continue;
        }
        Kelp__V1__PullItem *item = &items[request.n_pull];
        kelp__v1__pull_item__init(item);
        item->partition = i;
        item->map_epoch = entry->map_epoch;
        item->mode = current ? KELP__V1__PULL_MODE__PULL_CURRENT : KELP__V1__PULL_MODE__PULL_STEP;
        item->step = target;
        pointers[request.n_pull++] = item;
        entry->asked = true;
        entry->have = false;
        pull->open_answers++;
    }
    if (request.n_pull == 0) {
        goto free_items;
    }
    kelp_hello_write(&(struct kelp_hello){.job = pull->job,
                                          .spec_digest = pull->request->spec_digest,
                                          .id = "export-0",
                                          .incarnation = pull->incarnation},
                     &hello);
    request.hello = &hello;
    request.generation = pull->request->map->generation;
    request.pull = pointers;
    status = kelp_wire_encode(&request.base, &message, reterr);
    if (status == KELP_OK && !pull->shards[shard].stream) {
        kelp_rpc_message_unref(message);
        status = kelp_fail(reterr, KELP_ERR_CLOSED, "a shard ended the stream");
    } else if (status == KELP_OK) {
        status = kelp_rpc_stream_send(pull->shards[shard].stream, message);
        if (status != KELP_OK) {
            (void)kelp_fail(reterr, status, "cannot ask a shard: %s", kelp_status_text(status));
        }
    }
free_items:
    free(items);
    free(pointers);
    return status;
}

static kelp_status ask_all(struct pull *pull, bool current, uint64_t target, uint64_t deadline,
                           struct kelp_error *reterr)
{
    for (uint32_t shard = 0; shard < pull->shard_count; shard++) {
        kelp_status status = ask_shard(pull, shard, current, target, reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    while (pull->open_answers > 0 && pull->status == KELP_OK) {
        uint64_t now = kelp_clock_ms();
        if (now >= deadline) {
            return kelp_fail(reterr, KELP_ERR_TIMEOUT, "the shards did not answer in time");
        }
        (void)kelp_rpc_loop_run(pull->loop, (int)(deadline - now));
    }
    if (pull->status != KELP_OK && reterr) {
        *reterr = pull->error;
    }
    return pull->status;
}

/* The highest label; true when all have it. */
static bool one_step(const struct pull *pull, uint64_t *ret_step)
{
    bool same = true;

    *ret_step = 0;
    for (uint32_t i = 0; i < pull->partition_count; i++) {
        *ret_step = pull->partitions[i].step > *ret_step ? pull->partitions[i].step : *ret_step;
    }
    for (uint32_t i = 0; i < pull->partition_count; i++) {
        same = same && pull->partitions[i].step == *ret_step;
    }
    return same;
}

static kelp_status pull_rounds(struct pull *pull, uint64_t *ret_step, struct kelp_error *reterr)
{
    uint64_t deadline = kelp_clock_ms() + pull->request->deadline_ms;

    for (;;) {
        uint64_t target = 0;
        kelp_status status = ask_all(pull, true, 0, deadline, reterr);
        if (status == KELP_OK && !one_step(pull, &target)) {
            status = ask_all(pull, false, target, deadline, reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
        if (!pull->too_late && one_step(pull, ret_step)) {
            return KELP_OK;
        }
        pull->too_late = false;
    }
}

static bool any_stream(const struct pull *pull)
{
    for (size_t i = 0; i < pull->shard_count; i++) {
        if (pull->shards[i].stream) {
            return true;
        }
    }
    return false;
}

static void close_shards(struct pull *pull)
{
    pull->open_answers = 0;
    for (size_t i = 0; i < pull->shard_count; i++) {
        if (pull->shards[i].stream) {
            kelp_rpc_stream_close(pull->shards[i].stream, KELP_OK, "");
        }
    }
    while (any_stream(pull)) { /* closing cancels, so that each reports its end */
        (void)kelp_rpc_loop_run(pull->loop, 50);
    }
    for (size_t i = 0; i < pull->shard_count; i++) {
        if (pull->shards[i].channel) {
            kelp_rpc_channel_close(pull->shards[i].channel);
        }
    }
}

/*
 * All partitions are of one training step: where the job goes on meanwhile, those that are behind
 * are waited for, and when they have gone too far it begins again. flat: float32[plan->flat_count].
 * KELP_ERR_OLD_GENERATION and KELP_ERR_OLD_MAP_EPOCH: the map is an old one.
 */
static kelp_status pull_weights(struct kelp_job_client *client, const struct request *request,
                                float *flat, uint64_t *ret_step, struct kelp_error *reterr)
{
    struct pull pull = {.request = request,
                        .loop = kelp_job_client_loop(client),
                        .job = kelp_job_client_job(client),
                        .flat = flat,
                        .status = KELP_OK};

    kelp_status status = check_map(request, reterr);
    if (status != KELP_OK) {
        return status;
    }
    pull.partition_count = request->plan->partition_count;
    pull.shard_count = request->map->n_shards;
    pull.partitions = calloc(pull.partition_count, sizeof(*pull.partitions));
    pull.shards = calloc(pull.shard_count, sizeof(*pull.shards));
    if (!pull.partitions || !pull.shards) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
        goto free_tables;
    }
    for (uint32_t i = 0; i < pull.partition_count; i++) {
        pull.partitions[i].shard = request->map->partitions[i]->primary;
        pull.partitions[i].map_epoch = request->map->partitions[i]->map_epoch;
        pull.shards[pull.partitions[i].shard].is_primary = true;
    }
    memset(flat, 0, request->plan->flat_count * sizeof(*flat)); /* padding is zero */
    status = kelp_random_id(&pull.incarnation, reterr);
    if (status == KELP_OK) {
        status = open_shards(&pull, reterr);
    }
    if (status == KELP_OK) {
        status = pull_rounds(&pull, ret_step, reterr);
    }
    close_shards(&pull);
free_tables:
    free(pull.partitions);
    free(pull.shards);
    return status;
}

static kelp_status get_plan(struct kelp_job_client *client, uint32_t deadline_ms,
                            struct kelp_plan *ret_plan, struct kelp_error *reterr)
{
    char *text = NULL;

    kelp_status status = kelp_job_client_get(client, "plan", deadline_ms, &text, reterr);
    if (status == KELP_OK) {
        status = kelp_plan_parse(text, strlen(text), ret_plan, reterr);
        free(text);
    }
    return status;
}

static kelp_status fetch_flat(struct kelp_job_client *client, struct request *pull, float *flat,
                              uint64_t *ret_step, struct kelp_error *reterr)
{
    Kelp__V1__StatusReply *reply = NULL;
    uint32_t question_ms = pull->deadline_ms < 2000 ? pull->deadline_ms : 2000;

    kelp_status status = kelp_job_client_status(client, question_ms, &reply, reterr);
    if (status != KELP_OK) {
        return status;
    }
    pull->map = reply->map;
    status = pull_weights(client, pull, flat, ret_step, reterr);
    kelp_job_client_status_free(reply);
    pull->map = NULL;
    return status;
}

kelp_status kelp_model_fetch(struct kelp_job_client *client, uint64_t spec_digest,
                             uint32_t deadline_ms, struct kelp_model_copy *ret_copy,
                             struct kelp_error *reterr)
{
    struct kelp_model_copy copy = {.flat = NULL};
    uint64_t end_ms = kelp_clock_ms() + deadline_ms;

    kelp_status status = get_plan(client, deadline_ms, &copy.plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    copy.flat = malloc(copy.plan.flat_count * sizeof(*copy.flat) + 1);
    if (!copy.flat) {
        kelp_model_copy_fini(&copy);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for the model");
    }
    struct request request = {.plan = &copy.plan, .spec_digest = spec_digest};
    do {
        uint64_t now = kelp_clock_ms();
        request.deadline_ms = now < end_ms ? (uint32_t)(end_ms - now) : 1;
        status = fetch_flat(client, &request, copy.flat, &copy.step, reterr);
        /* Fenced, busy or broken: the map has changed, or is about to. */
    } while ((kelp_status_group(status) == KELP_GROUP_FENCED ||
              kelp_status_group(status) == KELP_GROUP_PEER || status == KELP_ERR_BUSY) &&
             kelp_clock_ms() + 50 < end_ms && usleep(50000) == 0);
    if (status != KELP_OK) {
        kelp_model_copy_fini(&copy);
        return status;
    }
    *ret_copy = copy;
    return KELP_OK;
}

void kelp_model_copy_fini(struct kelp_model_copy *copy)
{
    free(copy->flat);
    copy->flat = NULL;
    kelp_plan_fini(&copy->plan);
}
