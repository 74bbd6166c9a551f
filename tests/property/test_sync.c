/*
 * A worker never works on weights of two different steps, and whatever is lost, late, doubled or
 * killed, the workers together bring every partition to the end: a small cluster of model
 * partitions and real kelp_sync objects on a network that is a bag of messages. In some worlds
 * steps need decisions over all partitions, which the workers carry; in some, lanes belong to
 * workers of which one stops for good, or all of them in the middle of their pushes, and only
 * offers to those who wait, or to a spare, keep the job going.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/lib/suite.h"
#include "worker/core/offers.h"
#include "worker/core/sync.h"

#define PARTITIONS 3
#define WORKERS    3
#define LANES      2
#define BAG_MAX    4096
#define SPARE      2 /* the worker without lanes, in worlds with owners */

static const enum kelp_step_kind entries[] = {
    KELP_STEP_TRAIN,  KELP_STEP_TRAIN,         KELP_STEP_EVALUATE_VAL, KELP_STEP_EVALUATE_TEST,
    KELP_STEP_TRAIN,  KELP_STEP_EVALUATE_TEST, KELP_STEP_TRAIN,        KELP_STEP_TRAIN,
    KELP_STEP_FINISH, KELP_STEP_DONE,
};
#define LAST (KELP_ARRAY_COUNT(entries) - 1)

struct message {
    enum { PUSH, PULL, ANSWER, PARTS, OFFER } kind;
    unsigned worker;
    unsigned life; /* of the worker: messages to an older one are lost */
    uint32_t partition;
    uint64_t version; /* PUSH */
    uint32_t lane;
    struct kelp_sync_pull pull;
    struct kelp_sync_answer answer;
    struct kelp_control_word word;
    bool has_news; /* PULL: goes with this word, and the decision */
    struct kelp_control_word news;
    uint32_t value_count; /* PULL: of the decision; ANSWER: of the decision or the part */
    double values[1];
};

struct partition {
    uint64_t step;
    uint64_t version; /* partition 0 */
    unsigned pending; /* lanes */
    struct message waiting[WORKERS];
    bool has_waiting[WORKERS];
    bool has_word;   /* others learn of a training entry by pushes; else they cannot offer */
    bool complete;   /* all lanes are there, and the decision is not */
    unsigned shares; /* partition 0: whose are here */
    struct message share_waiting[WORKERS];
    bool has_part_waiting[WORKERS];
};

struct worker {
    struct kelp_sync *sync;
    unsigned life;
    uint64_t next[PARTITIONS];
    uint64_t held[PARTITIONS];
    bool working;
    struct kelp_control_word word;
    struct kelp_offers offers;
    bool spare;    /* asks for nothing */
    bool fetching; /* the spare: gets weights for an offer */
    bool helped;   /* it has pushed lanes of `word` */
    bool dead;     /* does nothing any more */
};

struct world {
    uint32_t random;
    bool decides;
    bool owned;         /* lane l is worker l's; nobody else computes it without an offer */
    bool alone;         /* all owners stop, and of their last entry partition 0 alone has heard */
    bool died;          /* one has, or all have */
    uint64_t dies_when; /* at this version */
    struct partition partitions[PARTITIONS];
    struct worker workers[WORKERS];
    struct message bag[BAG_MAX];
    size_t bag_count;
    unsigned crashes;
    unsigned cuts;
};

static uint32_t draw(struct world *world, uint32_t below)
{
    world->random = world->random * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(world->random >> 8) * below) >> 24);
}

static uint64_t step_of(uint64_t version)
{
    uint64_t step = 0;
    for (uint64_t v = 0; v < version; v++) {
        step += entries[v] == KELP_STEP_TRAIN;
    }
    return step;
}

static uint64_t train_version(uint64_t step)
{
    uint64_t v = 0;
    while (!(entries[v] == KELP_STEP_TRAIN && step_of(v) == step)) {
        v++;
    }
    return v;
}

static bool finite_at(uint32_t partition, uint64_t step)
{
    return (step * 7 + partition * 3) % 4 != 0;
}

static bool skipped_at(uint64_t step)
{
    bool finite = true;
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        finite = finite && finite_at(p, step);
    }
    return !finite;
}

/* What is decided about a step that is not skipped. */
static double decided_at(uint64_t step)
{
    return 1000.5 + (double)step;
}

static void post(struct world *world, const struct message *message)
{
    ck_assert_uint_lt(world->bag_count, BAG_MAX);
    world->bag[world->bag_count++] = *message;
}

static struct kelp_control_word word_at(const struct world *world, uint64_t version)
{
    uint64_t step = step_of(version);
    return (struct kelp_control_word){.version = version,
                                      .step = step,
                                      .kind = entries[version],
                                      .skipped =
                                          world->decides && step > 0 && skipped_at(step - 1)};
}

static void answer(struct world *world, const struct message *pull, kelp_status status,
                   uint64_t step)
{
    struct partition *partition = &world->partitions[pull->partition];
    struct message message = *pull;
    message.kind = ANSWER;
    message.answer = (struct kelp_sync_answer){
        .partition = pull->partition,
        .status = status,
        .step = step,
        .current_step = partition->step,
        .has_weights = status == KELP_OK && !(pull->pull.holds && pull->pull.held_step == step),
    };
    message.value_count = 0;
    if (pull->partition == 0 && status == KELP_OK) {
        message.word =
            word_at(world, step == partition->step ? partition->version : train_version(step));
        if (world->decides && step == partition->step && step > 0 && !skipped_at(step - 1)) {
            message.value_count = 1;
            message.values[0] = decided_at(step - 1);
        }
    }
    post(world, &message);
}

static void serve_share(struct world *world, const struct message *pull)
{
    struct partition *partition = &world->partitions[pull->partition];
    struct message message = *pull;
    bool known = partition->complete && partition->step == pull->pull.step;

    if (!known && partition->step <= pull->pull.step) {
        partition->share_waiting[pull->worker] = *pull;
        partition->has_part_waiting[pull->worker] = true;
        return;
    }
    message.kind = ANSWER;
    message.answer = (struct kelp_sync_answer){.partition = pull->partition,
                                               .step = pull->pull.step,
                                               .current_step = partition->step,
                                               .is_share = true};
    message.value_count = known ? 1 : 0;
    message.values[0] = finite_at(pull->partition, pull->pull.step) ? 1 : 0;
    post(world, &message);
}

static void advance(struct world *world, uint32_t p, uint64_t version);

static void serve(struct world *world, const struct message *pull)
{
    struct partition *partition = &world->partitions[pull->partition];

    if (pull->has_news && pull->partition > 0 && partition->complete &&
        pull->news.step == partition->step + 1) {
        ck_assert_int_eq(pull->news.skipped, skipped_at(partition->step));
        ck_assert_uint_eq(pull->value_count, pull->news.skipped ? 0 : 1);
        ck_assert(pull->news.skipped || pull->values[0] == decided_at(partition->step));
        advance(world, pull->partition, train_version(partition->step));
    }
    if (pull->pull.mode == KELP_SYNC_PULL_SHARE) {
        serve_share(world, pull);
        return;
    }
    bool current =
        pull->pull.mode == KELP_SYNC_PULL_CURRENT ||
        (pull->pull.mode == KELP_SYNC_PULL_VERSION && partition->version >= pull->pull.version);

    if (current) {
        answer(world, pull, KELP_OK, partition->step);
    } else if (pull->pull.mode == KELP_SYNC_PULL_VERSION || pull->pull.step > partition->step) {
        partition->waiting[pull->worker] = *pull;
        partition->has_waiting[pull->worker] = true;
    } else if (pull->pull.step + 1 >= partition->step) {
        answer(world, pull, KELP_OK, pull->pull.step);
    } else {
        answer(world, pull, KELP_ERR_NOT_FOUND, 0);
    }
}

/* The entry is over: those who waited are answered. */
static void advance(struct world *world, uint32_t p, uint64_t version)
{
    struct partition *partition = &world->partitions[p];

    partition->has_word = false;
    partition->complete = false;
    partition->shares = 0;
    partition->pending = 0;
    partition->step += entries[version] == KELP_STEP_TRAIN;
    partition->version += p == 0;
    for (unsigned w = 0; w < WORKERS; w++) {
        if (partition->has_waiting[w]) {
            partition->has_waiting[w] = false;
            serve(world, &partition->waiting[w]);
        }
    }
}

static void decide_if_known(struct world *world)
{
    struct partition *partition = &world->partitions[0];

    if (partition->complete && partition->shares == (1u << PARTITIONS) - 2) {
        advance(world, 0, partition->version);
    }
}

static void hear_shares(struct world *world, const struct message *shares)
{
    if (shares->version == world->partitions[0].version) {
        world->partitions[0].shares = (1u << PARTITIONS) - 2;
        decide_if_known(world);
    }
}

static void take_push(struct world *world, const struct message *push)
{
    struct partition *partition = &world->partitions[push->partition];
    bool fits = push->partition == 0 ? push->version == partition->version
                                     : push->word.step == partition->step &&
                                           entries[push->version] == KELP_STEP_TRAIN;
    if (!fits) {
        ck_assert_msg(push->word.step <= partition->step, "a push from the future");
        return;
    }
    partition->has_word = true;
    partition->pending |= 1u << push->lane;
    if (partition->pending != (1u << LANES) - 1 || partition->complete) {
        return;
    }
    if (!world->decides || entries[push->version] != KELP_STEP_TRAIN) {
        advance(world, push->partition, push->version);
        return;
    }
    partition->complete = true;
    for (unsigned w = 0; w < WORKERS; w++) {
        if (partition->has_part_waiting[w]) {
            partition->has_part_waiting[w] = false;
            serve_share(world, &partition->share_waiting[w]);
        }
    }
    decide_if_known(world);
}

static void send_pulls(struct world *world, unsigned w)
{
    struct worker *worker = &world->workers[w];
    struct kelp_step_decision decision;
    const struct kelp_control_word *news = kelp_sync_news(worker->sync, &decision);

    if (kelp_sync_shares_due(worker->sync)) {
        struct message shares = {
            .kind = PARTS, .worker = w, .life = worker->life, .version = worker->word.version};
        for (uint32_t p = 1; p < PARTITIONS; p++) {
            const struct kelp_decision_share *share = kelp_sync_share(worker->sync, p);
            ck_assert_uint_eq(share->count, 1);
            ck_assert(share->values[0] == (finite_at(p, worker->word.step) ? 1 : 0));
        }
        post(world, &shares);
    }
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        struct message message = {.kind = PULL,
                                  .worker = w,
                                  .life = worker->life,
                                  .partition = p,
                                  .has_news = news != NULL};
        if (news) {
            message.news = *news;
            message.value_count = decision.count;
            ck_assert_uint_le(decision.count, 1);
            message.values[0] = decision.count > 0 ? decision.values[0] : 0;
        }
        while (kelp_sync_pull(worker->sync, p, &message.pull)) {
            post(world, &message);
        }
    }
}

static void push_lane(struct world *world, unsigned w, uint32_t lane)
{
    struct worker *worker = &world->workers[w];
    bool last =
        world->owned && world->alone && w != SPARE && worker->word.version == world->dies_when;
    uint32_t partition_count = worker->word.kind == KELP_STEP_TRAIN && !last ? PARTITIONS : 1;
    for (uint32_t p = 0; p < partition_count; p++) {
        struct message push = {
            .kind = PUSH,
            .worker = w,
            .life = worker->life,
            .partition = p,
            .version = worker->word.version,
            .lane = lane,
            .word = worker->word,
        };
        post(world, &push);
    }
}

/* Any lane, since the assignment is only advice, and every lane is drawn some time; or, in worlds
 * with owners, the worker's own, and what it was offered. */
static void push_some(struct world *world, unsigned w)
{
    static const uint8_t computed[KELP_JOB_LANES_MAX];
    struct worker *worker = &world->workers[w];
    uint32_t first, count;

    if (!world->owned) {
        push_lane(world, w, draw(world, LANES));
        return;
    }
    if (w < LANES) {
        push_lane(world, w, w);
    }
    if (kelp_offers_find(&worker->offers, &worker->word, computed, &first, &count)) {
        for (uint32_t i = 0; i < count; i++) {
            push_lane(world, w, first + i);
        }
        worker->helped = true;
    }
}

/* A spare is one again when it holds what it fetched; but sees decisions through (client.c). */
static bool follows(const struct world *world, const struct worker *worker, unsigned w)
{
    return !world->owned || w != SPARE || (world->decides && worker->helped);
}

static void work(struct world *world, unsigned w)
{
    struct worker *worker = &world->workers[w];
    bool swap;

    if (worker->dead) {
        return;
    }
    if (kelp_sync_complete(worker->sync, &worker->word, &swap)) {
        if (swap) {
            memcpy(worker->held, worker->next, sizeof(worker->held));
        }
        for (uint32_t p = 0; p < PARTITIONS; p++) {
            ck_assert_uint_eq(worker->held[p], worker->word.step);
        }
        worker->working = true;
        worker->helped = false;
        if (worker->fetching) {
            kelp_offers_fetched(&worker->offers, &worker->word);
        }
        worker->fetching = false;
        worker->spare = world->owned && w == SPARE;
    }
    if (worker->working && worker->word.kind != KELP_STEP_DONE) {
        push_some(world, w);
        if (follows(world, worker, w) && kelp_sync_state(worker->sync) == KELP_SYNC_HOLDING &&
            draw(world, 2)) {
            worker->spare = false;
            kelp_sync_next(worker->sync);
        }
    }
    if (!worker->spare) {
        send_pulls(world, w);
    }
}

/* A partition asks somebody who waits there, or the spare, for a lane that it lacks. */
static void offer(struct world *world)
{
    uint32_t p = draw(world, PARTITIONS);
    unsigned w = draw(world, WORKERS);
    struct partition *partition = &world->partitions[p];

    if (p > 0 && !partition->has_word) {
        return;
    }
    uint64_t version = p == 0 ? partition->version : train_version(partition->step);
    uint32_t lane = partition->complete ? 0 : draw(world, LANES);
    bool waits = partition->has_waiting[w] && partition->waiting[w].pull.step > partition->step;
    bool missing = partition->complete ? w == SPARE : (partition->pending & 1u << lane) == 0;

    if (missing && (waits || w == SPARE) && entries[version] != KELP_STEP_DONE) {
        struct message message = {.kind = OFFER,
                                  .worker = w,
                                  .life = world->workers[w].life,
                                  .partition = p,
                                  .lane = lane,
                                  .word = word_at(world, version)};
        post(world, &message);
    }
}

static void take_offer(struct world *world, const struct message *message)
{
    struct worker *worker = &world->workers[message->worker];

    if (!kelp_offers_add(&worker->offers, &message->word, message->lane, 1)) {
        return;
    }
    if (worker->spare && !(worker->working && worker->word.version == message->word.version)) {
        worker->spare = false;
        worker->fetching = true;
        worker->working = false;
        kelp_sync_restart(worker->sync);
    } else if (!worker->working) {
        (void)kelp_sync_offered(worker->sync, message->word.step);
    }
}

static void deliver(struct world *world)
{
    size_t at = draw(world, (uint32_t)world->bag_count);
    struct message message = world->bag[at];
    bool doubled = draw(world, 8) == 0;
    if (!doubled) {
        world->bag[at] = world->bag[--world->bag_count];
    }
    struct worker *worker = &world->workers[message.worker];
    if (worker->dead && message.kind != PUSH) {
        return;
    }
    switch (message.kind) {
    case PARTS:
        hear_shares(world, &message);
        break;
    case OFFER:
        if (message.life == worker->life) {
            take_offer(world, &message);
        }
        break;
    case PUSH:
        take_push(world, &message);
        break;
    case PULL:
        serve(world, &message);
        break;
    case ANSWER:
        if (message.life != worker->life) {
            break;
        }
        message.answer.word =
            message.partition == 0 && message.answer.status == KELP_OK ? &message.word : NULL;
        message.answer.values = message.values;
        message.answer.value_count = message.value_count;
        if (kelp_sync_take(worker->sync, &message.answer) && message.answer.has_weights) {
            worker->next[message.partition] = message.answer.step;
        }
        break;
    }
}

static void crash(struct world *world, unsigned w)
{
    struct worker *worker = &world->workers[w];
    worker->life++;
    worker->spare = world->owned && w == SPARE;
    worker->working = false;
    worker->fetching = false;
    kelp_offers_clear(&worker->offers);
    kelp_sync_restart(worker->sync);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        world->partitions[p].has_waiting[w] = false;
        world->partitions[p].has_part_waiting[w] = false;
    }
}

/* A stream broke: its messages are lost, what is open is asked again. */
static void cut(struct world *world, unsigned w, uint32_t p)
{
    size_t kept = 0;
    for (size_t i = 0; i < world->bag_count; i++) {
        if (world->bag[i].worker != w || world->bag[i].partition != p) {
            world->bag[kept++] = world->bag[i];
        }
    }
    world->bag_count = kept;
    world->partitions[p].has_waiting[w] = false;
    world->partitions[p].has_part_waiting[w] = false;
    kelp_sync_reask(world->workers[w].sync, p);
}

static bool time_to_die(const struct world *world)
{
    uint64_t version = world->partitions[0].version;

    return world->owned && !world->died &&
           (world->alone ? version > world->dies_when : version == world->dies_when);
}

static void die(struct world *world)
{
    uint32_t one = draw(world, LANES);

    world->died = true;
    for (unsigned w = 0; w < LANES; w++) {
        world->workers[w].dead = world->alone || w == one;
    }
}

KELP_SUITE(.no_fork = true)
KELP_CASE("cluster", .timeout_s = 120)

KELP_LOOP_TEST(every_partition_reaches_the_end, 0, 400)
{
    struct world *world = calloc(1, sizeof(*world));
    ck_assert_ptr_nonnull(world);
    world->random = (uint32_t)_i * 2654435761u + 1;
    world->decides = _i % 2 == 1;
    world->owned = _i / 2 % 2 == 1;
    world->alone = _i / 4 % 2 == 1;
    world->workers[SPARE].spare = world->owned;
    world->dies_when = draw(world, LAST);
    for (unsigned w = 0; w < WORKERS; w++) {
        world->workers[w].sync = kelp_sync_create(PARTITIONS);
        ck_assert_ptr_nonnull(world->workers[w].sync);
        if (world->decides) {
            ck_assert_int_eq(kelp_sync_decide(world->workers[w].sync, 1), KELP_OK);
        }
    }
    unsigned events = 0;
    while (world->partitions[0].version < LAST) {
        ck_assert_msg(events++ < 200000, "stuck at version %llu",
                      (unsigned long long)world->partitions[0].version);
        uint32_t what = draw(world, 100);
        if (time_to_die(world)) {
            die(world);
        } else if (world->owned && what % 8 == 7 && world->bag_count < BAG_MAX / 2) {
            offer(world);
        } else if (what < 2 && world->crashes < 20) {
            world->crashes++;
            crash(world, draw(world, WORKERS));
        } else if (what < 5 && world->cuts < 40) { /* not for ever: a new stream asks again */
            world->cuts++;
            cut(world, draw(world, WORKERS), draw(world, PARTITIONS));
        } else if (world->bag_count > 0 && (what < 70 || world->bag_count > BAG_MAX / 2)) {
            deliver(world);
        } else {
            work(world, draw(world, WORKERS));
        }
    }
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        ck_assert_uint_eq(step_of(LAST), world->partitions[p].step);
    }
    for (unsigned w = 0; w < WORKERS; w++) {
        kelp_sync_destroy(world->workers[w].sync);
    }
    free(world);
}
