/*
 * Partitions move between processes while workers train, and whatever was under way is sent again:
 * real steppers around model partitions. A process fails, and another is primary at once, with what
 * was visible and nothing of what was pushed, measured or heard since; or it is only thought to
 * have failed, and goes on refusing. The new one is busy until it has heard of its entry. Maps come
 * late, doubled, or never: then refusals tell, as long as nobody dies. In half of the worlds each
 * step is decided about, and in most a worker has several streams to a process.
 *
 * No lane has a second worker, and nothing is offered: what is not sent again stops the job.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/stepper.h"

#define PARTITIONS 3
#define PROCESSES  4
#define WORKERS    2
#define LANES      4
#define STEPS      6
#define QUEUE_MAX  256
#define MAPS_MAX   128
#define EVENTS_MAX 200000 /* in one world */

struct item { /* of a message to a process */
    enum { PUSH, SHARE, PULL } kind;
    uint32_t link;      /* on whose stream it came */
    uint32_t partition; /* SHARE: whose it is; it goes to partition 0 */
    uint64_t map_epoch;
    uint32_t lanes; /* PUSH: a bit for each */
    struct kelp_sync_pull pull;
    bool has_word;
    struct kelp_control_word word; /* of the message */
};

struct reply {
    bool refused;
    uint32_t partition;
    uint64_t map_epoch;
    bool tells; /* the entry */
    uint32_t primary;
    struct kelp_sync_answer answer;
    struct kelp_control_word word;
    double share;
};

/* A stream of a worker to a process. */
struct stream {
    bool open;
    uint32_t process;
    struct item out[QUEUE_MAX];
    size_t out_count;
    struct reply in[QUEUE_MAX];
    size_t in_count;
};

struct partition {
    uint32_t primary;
    uint64_t map_epoch;
    bool ready; /* the primary has heard of its entry */
    uint64_t step;
    uint32_t lanes; /* that are here */
    uint32_t shares;
    bool heard; /* the decision about this step */
    struct {
        bool waits;
        struct item item;
    } pulls[WORKERS][KELP_SYNC_PULL_SHARE + 1];
};

struct worker {
    struct kelp_stepper *stepper;
    struct kelp_stepper_actions actions;
    struct stream streams[2 * PROCESSES + PARTITIONS]; /* by link */
    bool retries[2 * PROCESSES + PARTITIONS];
    bool asks;
    bool apart;           /* gets the first map alone */
    uint8_t lanes[LANES]; /* contents of nodes */
};

static struct kelp_job job;
static struct kelp_plan plan;
static struct partition partitions[PARTITIONS];
static struct worker workers[WORKERS];
static bool alive[PROCESSES];
static uint64_t incarnation[PROCESSES];
static uint64_t serial;
static struct {
    uint64_t incarnation[PROCESSES];
    uint32_t primary[PARTITIONS];
    uint64_t map_epoch[PARTITIONS];
} maps[MAPS_MAX];        /* by serial */
static unsigned trouble; /* that is left to come */
static uint64_t dice;

static uint32_t draw(uint32_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (uint32_t)((dice >> 16) % below);
}

static struct kelp_control_word word_of(uint64_t step)
{
    return (struct kelp_control_word){.version = step,
                                      .step = step,
                                      .kind = step < STEPS ? KELP_STEP_TRAIN : KELP_STEP_DONE,
                                      .sample_count = LANES};
}

static struct kelp_place place_of(uint32_t process)
{
    struct kelp_place place = {.shard = "shard-0", .incarnation = incarnation[process]};
    place.shard[6] = (char)('0' + process);
    return place;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Where the item came from, if that is still there. */
static void reply_to(uint32_t worker, uint32_t process, const struct item *item,
                     const struct reply *reply)
{
    struct stream *stream = &workers[worker].streams[item->link];

    if (stream->open && stream->process == process) {
        ck_assert_uint_lt(stream->in_count, QUEUE_MAX);
        stream->in[stream->in_count++] = *reply;
    }
}

static void answer(uint32_t worker, uint32_t p, kelp_status status, const struct item *item)
{
    const struct partition *partition = &partitions[p];
    struct reply reply = {.partition = p, .map_epoch = partition->map_epoch};
    uint64_t step = item->pull.mode == KELP_SYNC_PULL_STEP ? item->pull.step : partition->step;

    reply.answer = (struct kelp_sync_answer){
        .partition = p, .status = status, .step = step, .current_step = partition->step};
    if (item->pull.mode == KELP_SYNC_PULL_SHARE) {
        reply.answer.is_share = true;
        reply.answer.step = item->pull.step;
        reply.answer.value_count = item->pull.step == partition->step ? 1 : 0;
        reply.share = 1;
    } else if (status == KELP_OK) {
        reply.answer.has_weights = !item->pull.holds || item->pull.held_step != step;
        reply.word = word_of(step);
    }
    reply_to(worker, partition->primary, item, &reply);
}

/* True: answered. */
static bool try_pull(uint32_t worker, uint32_t p, const struct item *item)
{
    const struct partition *partition = &partitions[p];
    kelp_status status = KELP_OK;

    switch (item->pull.mode) {
    case KELP_SYNC_PULL_CURRENT:
        break;
    case KELP_SYNC_PULL_STEP:
        if (item->pull.step > partition->step) {
            return false;
        }
        status = item->pull.step + 1 >= partition->step ? KELP_OK : KELP_ERR_NOT_FOUND;
        break;
    case KELP_SYNC_PULL_VERSION:
        if (item->pull.version > partition->step) {
            return false;
        }
        break;
    case KELP_SYNC_PULL_SHARE:
        if (item->pull.step == partition->step && partition->lanes != (1u << LANES) - 1) {
            return false;
        }
        break;
    }
    answer(worker, p, status, item);
    return true;
}

/* Apply what is complete, and answer who waits. */
static void advance(uint32_t p)
{
    struct partition *partition = &partitions[p];
    bool decides = job.failure.on_nan == KELP_NAN_SKIP;
    bool decided = p == 0 ? partition->shares == (1u << PARTITIONS) - 2 : partition->heard;

    if (partition->lanes == (1u << LANES) - 1 && (decided || !decides) && partition->step < STEPS) {
        partition->step++;
        partition->lanes = 0;
        partition->shares = 0;
        partition->heard = false;
    }
    for (uint32_t w = 0; w < WORKERS; w++) {
        for (unsigned mode = 0; mode <= KELP_SYNC_PULL_SHARE; mode++) {
            if (partition->pulls[w][mode].waits) {
                struct item item = partition->pulls[w][mode].item;
                partition->pulls[w][mode].waits = !try_pull(w, p, &item);
            }
        }
    }
}

static void refuse(uint32_t worker, uint32_t process, const struct item *item, kelp_status status)
{
    uint32_t p = item->kind == SHARE ? 0 : item->partition;
    const struct partition *partition = &partitions[p];
    struct reply reply = {.refused = item->kind != PULL, .partition = p};

    reply.answer = (struct kelp_sync_answer){
        .partition = p, .status = status, .is_share = item->pull.mode == KELP_SYNC_PULL_SHARE};
    /* Who cannot hear the leader depends on it. */
    reply.tells = status != KELP_ERR_BUSY && (workers[worker].apart || draw(2) == 0);
    reply.map_epoch = reply.tells || status == KELP_ERR_OLD_MAP_EPOCH ? partition->map_epoch : 0;
    reply.primary = partition->primary;
    reply_to(worker, process, item, &reply);
}

static void take_item(uint32_t worker, uint32_t process, const struct item *item)
{
    uint32_t p = item->kind == SHARE ? 0 : item->partition;
    struct partition *partition = &partitions[p];

    if (partition->primary != process) {
        refuse(worker, process, item, KELP_ERR_NOT_PRIMARY);
        return;
    }
    if (!partition->ready || item->map_epoch != partition->map_epoch) {
        bool old = partition->ready && item->map_epoch < partition->map_epoch;
        refuse(worker, process, item, old ? KELP_ERR_OLD_MAP_EPOCH : KELP_ERR_BUSY);
        return;
    }
    if (item->kind == PUSH && item->word.step == partition->step) {
        partition->lanes |= item->lanes;
    } else if (item->kind == SHARE && item->word.step == partition->step) {
        partition->shares |= 1u << item->partition;
    } else if (item->kind == PULL) {
        partition->heard = partition->heard ||
                           (item->has_word && p != 0 && item->word.step == partition->step + 1);
        partition->pulls[worker][item->pull.mode].waits = true;
        partition->pulls[worker][item->pull.mode].item = *item;
    }
    advance(p);
}

/* ---- workers --------------------------------------------------------------------------------- */

static void handle(uint32_t w, const struct kelp_stepper_event *event);

static void put(struct stream *stream, const struct item *item)
{
    ck_assert_uint_lt(stream->out_count, QUEUE_MAX);
    stream->out[stream->out_count++] = *item;
}

static void send(struct worker *worker, const struct kelp_stepper_message *message)
{
    struct stream *stream = &worker->streams[message->link];
    struct item item = {
        .link = message->link, .has_word = message->has_word, .word = message->word};

    if (!stream->open) {
        return;
    }
    for (size_t i = 0; i < message->push_count; i++) {
        const struct kelp_stepper_node *node = message->pushes[i].node;
        item.kind = PUSH;
        item.partition = message->pushes[i].partition;
        item.map_epoch = message->pushes[i].map_epoch;
        item.lanes = ((1u << node->lane_count) - 1) << node->lane_first;
        put(stream, &item);
    }
    for (size_t i = 0; i < message->share_count; i++) {
        item.kind = SHARE;
        item.partition = message->shares[i].partition;
        item.map_epoch = message->shares[i].map_epoch;
        put(stream, &item);
    }
    for (size_t i = 0; i < message->pull_count; i++) {
        item.kind = PULL;
        item.pull = message->pulls[i].pull;
        item.partition = item.pull.partition;
        item.map_epoch = message->pulls[i].map_epoch;
        put(stream, &item);
    }
}

static void connect(struct worker *worker, const struct kelp_stepper_action *action)
{
    struct stream *stream = &worker->streams[action->connect.link];
    uint32_t process = (uint32_t)(action->connect.place->shard[6] - '0');

    ck_assert_uint_lt(action->connect.link, KELP_ARRAY_COUNT(worker->streams));
    *stream = (struct stream){.process = process};
    stream->open = alive[process] && action->connect.place->incarnation == incarnation[process];
    worker->retries[action->connect.link] = !stream->open; /* stands for CLOSED and its delay */
}

static void compute(uint32_t w, const struct kelp_stepper_action *action)
{
    for (uint32_t lane = 0; lane < action->compute.lane_count; lane++) {
        struct kelp_stepper_event event = {.kind = KELP_STEPPER_COMPUTED};
        event.computed.lane_first = action->compute.lane_first + lane;
        event.computed.lane_count = 1;
        event.computed.present = true;
        event.computed.content = &workers[w].lanes[event.computed.lane_first];
        ck_assert_int_eq(kelp_stepper_event(workers[w].stepper, &event, &workers[w].actions),
                         KELP_OK);
    }
    handle(w, &(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
}

static void handle(uint32_t w, const struct kelp_stepper_event *event)
{
    struct worker *worker = &workers[w];
    struct kelp_stepper_action work = {.kind = KELP_STEPPER_FAIL};

    ck_assert_int_eq(kelp_stepper_event(worker->stepper, event, &worker->actions), KELP_OK);
    for (size_t i = 0; i < worker->actions.count; i++) {
        const struct kelp_stepper_action *action = &worker->actions.items[i];
        switch (action->kind) {
        case KELP_STEPPER_CONNECT:
            connect(worker, action);
            break;
        case KELP_STEPPER_CLOSE:
            worker->streams[action->close].open = false;
            worker->retries[action->close] = false;
            break;
        case KELP_STEPPER_SEND:
            send(worker, &action->send);
            break;
        case KELP_STEPPER_RETRY_LATER:
            worker->retries[action->later.link] = true;
            break;
        case KELP_STEPPER_ASK_LATER:
            worker->asks = true;
            break;
        case KELP_STEPPER_COMPUTE:
            work = *action;
            break;
        case KELP_STEPPER_FAIL:
            ck_abort_msg("%s", action->fail.text);
            break;
        default:
            break;
        }
    }
    if (work.kind == KELP_STEPPER_COMPUTE) {
        compute(w, &work);
    } else if (event->kind != KELP_STEPPER_TURN) {
        handle(w, &(struct kelp_stepper_event){.kind = KELP_STEPPER_TURN});
    }
}

static void take_reply(uint32_t w, uint32_t link, struct reply *reply)
{
    struct kelp_place primary = place_of(reply->primary);
    struct kelp_stepper_event event = {.kind = KELP_STEPPER_ANSWER};

    if (reply->refused) {
        event.kind = KELP_STEPPER_REFUSED;
        event.refused.link = link;
        event.refused.generation = 1;
        event.refused.partition = reply->partition;
        event.refused.map_epoch = reply->map_epoch;
        event.refused.primary = reply->tells ? &primary : NULL;
        event.refused.status = reply->answer.status;
    } else {
        event.answer.link = link;
        event.answer.generation = 1;
        event.answer.map_epoch = reply->map_epoch;
        event.answer.primary = reply->tells ? &primary : NULL;
        event.answer.answer = reply->answer;
        event.answer.answer.word =
            reply->answer.status == KELP_OK && !reply->answer.is_share && reply->partition == 0
                ? &reply->word
                : NULL;
        event.answer.answer.values = &reply->share;
    }
    handle(w, &event);
}

/* ---- the world ------------------------------------------------------------------------------- */

static void keep_map(void)
{
    ck_assert_uint_lt(serial, MAPS_MAX);
    memcpy(maps[serial].incarnation, incarnation, sizeof(incarnation));
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        maps[serial].primary[p] = partitions[p].primary;
        maps[serial].map_epoch[p] = partitions[p].map_epoch;
    }
}

/* Of that serial: perhaps it comes late, or was there before. */
static void send_map(uint32_t w, uint64_t number)
{
    struct kelp_place shards[PROCESSES];
    const struct kelp_news news = {
        .has_assignment = true, .lane_first = w * LANES / WORKERS, .lane_count = LANES / WORKERS};

    for (uint32_t i = 0; i < PROCESSES; i++) {
        shards[i] = place_of(i);
        shards[i].incarnation = maps[number].incarnation[i];
    }
    const struct kelp_places places = {.generation = 1,
                                       .serial = number,
                                       .shard_count = PROCESSES,
                                       .partition_count = PARTITIONS,
                                       .shards = shards,
                                       .primary = maps[number].primary,
                                       .map_epoch = maps[number].map_epoch};
    handle(w, &(struct kelp_stepper_event){.kind = KELP_STEPPER_NEWS,
                                           .news = {.news = &news, .places = &places}});
}

/* The entry changes, for another process or the same. What is visible is there. */
static void change_entry(uint32_t p, uint32_t primary)
{
    struct partition *partition = &partitions[p];

    uint32_t before = partition->primary;

    serial++;
    partition->map_epoch++;
    partition->ready = false;
    if (before == primary) {
        return;
    }
    partition->primary = primary;
    for (uint32_t w = 0; alive[before] && w < WORKERS; w++) {
        for (unsigned mode = 0; mode <= KELP_SYNC_PULL_SHARE; mode++) {
            if (partition->pulls[w][mode].waits) {
                refuse(w, before, &partition->pulls[w][mode].item, KELP_ERR_NOT_PRIMARY);
            }
        }
    }
    partition->lanes = 0;
    partition->shares = 0;
    partition->heard = false;
    memset(partition->pulls, 0, sizeof(partition->pulls));
}

static void break_streams(uint32_t process)
{
    for (uint32_t w = 0; w < WORKERS; w++) {
        for (uint32_t i = 0; i < KELP_ARRAY_COUNT(workers[w].streams); i++) {
            struct stream *stream = &workers[w].streams[i];
            if (stream->open && stream->process == process) {
                stream->open = false;
                handle(w,
                       &(struct kelp_stepper_event){.kind = KELP_STEPPER_CLOSED, .stream.link = i});
            }
        }
    }
}

static void make_trouble(void)
{
    uint32_t p = draw(PARTITIONS);
    uint32_t process = partitions[p].primary;

    trouble--;
    if (draw(3) != 0 || workers[1].apart) { /* detached, or taken for dead by mistake */
        change_entry(p, draw(PROCESSES));
        keep_map();
        return;
    }
    alive[process] = false; /* it is started again as another incarnation */
    for (uint32_t i = 0; i < PARTITIONS; i++) {
        if (partitions[i].primary == process) {
            change_entry(i, (process + 1 + draw(PROCESSES - 1)) % PROCESSES);
            keep_map();
        }
    }
    break_streams(process);
    incarnation[process]++;
    alive[process] = true;
}

static void deliver(uint32_t w)
{
    uint32_t link = draw(KELP_ARRAY_COUNT(workers[w].streams));
    struct stream *stream = &workers[w].streams[link];

    if (stream->open && stream->out_count > 0 && draw(2) == 0) {
        struct item item = stream->out[0];
        memmove(stream->out, stream->out + 1, --stream->out_count * sizeof(item));
        take_item(w, stream->process, &item);
    } else if (stream->open && stream->in_count > 0) {
        struct reply reply = stream->in[0];
        memmove(stream->in, stream->in + 1, --stream->in_count * sizeof(reply));
        take_reply(w, link, &reply);
    } else if (workers[w].retries[link] && draw(4) == 0) {
        workers[w].retries[link] = false;
        handle(w, &(struct kelp_stepper_event){.kind = KELP_STEPPER_RETRY, .stream.link = link});
    } else if (workers[w].asks && draw(8) == 0) {
        workers[w].asks = false;
        handle(w, &(struct kelp_stepper_event){.kind = KELP_STEPPER_ASK_AGAIN});
    }
}

static bool is_done(void)
{
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        if (partitions[p].step < STEPS) {
            return false;
        }
    }
    return true;
}

static void happen(void)
{
    uint32_t w = draw(WORKERS);

    if (trouble > 0 && draw(40) == 0) {
        make_trouble();
    } else if (draw(20) == 0) {
        partitions[draw(PARTITIONS)].ready = true;
    } else if (!workers[w].apart && draw(20) == 0) {
        send_map(w, draw(3) == 0 ? 1 + draw((uint32_t)serial) : serial);
    } else {
        deliver(w);
    }
}

static void begin_world(int seed)
{
    dice = 0x9e3779b97f4a7c15u * (uint64_t)(seed + 1);
    job = (struct kelp_job){.name = "job"};
    job.cluster.lanes = LANES;
    job.train.batch_size = LANES;
    job.train.epochs = 1;
    job.transport.piece_bytes = 1024;
    job.transport.streams = 1 + (uint32_t)seed % 3;
    job.failure.on_nan = seed % 2 == 0 ? KELP_NAN_STOP : KELP_NAN_SKIP;
    plan = (struct kelp_plan){.partition_count = PARTITIONS, .flat_count = PARTITIONS * 16};
    plan.samples[KELP_SPLIT_TRAIN] = LANES * STEPS;
    memset(partitions, 0, sizeof(partitions));
    memset(workers, 0, sizeof(workers));
    serial = 1;
    trouble = 2 + draw(12);
    for (uint32_t i = 0; i < PROCESSES; i++) {
        alive[i] = true;
        incarnation[i] = 1;
    }
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        partitions[p] = (struct partition){.primary = draw(PROCESSES), .map_epoch = 1};
    }
    keep_map();
    for (uint32_t w = 0; w < WORKERS; w++) {
        workers[w].stepper = kelp_stepper_create(&job, &plan);
        ck_assert_ptr_nonnull(workers[w].stepper);
        send_map(w, serial);
        workers[w].apart = w == 1 && draw(4) == 0;
    }
}

static void end_world(void)
{
    for (uint32_t w = 0; w < WORKERS; w++) {
        kelp_stepper_destroy(workers[w].stepper);
        kelp_stepper_actions_fini(&workers[w].actions);
    }
}

KELP_CASE("moves", .timeout_s = 300)

KELP_TEST(the_job_ends_wherever_partitions_go)
{
    for (int seed = 0; seed < 2000; seed++) {
        unsigned events = 0;
        begin_world(seed);
        while (!is_done() && events < EVENTS_MAX) {
            happen();
            events++;
        }
        ck_assert_msg(events < EVENTS_MAX, "seed %d: partitions stand at %d %d %d", seed,
                      (int)partitions[0].step, (int)partitions[1].step, (int)partitions[2].step);
        end_world();
    }
}
