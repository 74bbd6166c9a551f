/*
 * The tracker of a shard's snapshot under random events: orders that replace each other, partitions
 * that are taken late, pass by or fail, a disk that is slow, late or broken, new generations.
 * Whatever happens, it asks the disk for one thing at a time, in order, and calls durable only what
 * the disk has synced.
 *
 * A failure prints its seed; KELP_SEED runs that one alone.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/core/snapshot/snapshot.h"
#include "tests/lib/suite.h"

#define SEEDS      2000
#define EVENTS     400
#define PARTITIONS 5
#define DIGEST     "00112233445566778899aabbccddeeff"

struct model {
    uint64_t seed;
    uint64_t state; /* of the random numbers */
    struct kelp_snapshot *snapshot;
    uint64_t generation;
    uint32_t hosted[PARTITIONS];
    uint32_t count;
    uint64_t ticket;        /* of the newest order that went to the partitions */
    bool waits[PARTITIONS]; /* by place: the partition has the order and is not there yet */
    uint32_t written;       /* of this ticket */
    bool disk_busy;         /* a WRITE or the SYNC of this ticket is under way */
    struct kelp_snapshot_action disk;
    bool synced; /* this ticket */
    uint64_t durable;
};

static struct model model;

static uint64_t pick(uint64_t below)
{
    model.state ^= model.state << 13;
    model.state ^= model.state >> 7;
    model.state ^= model.state << 17;
    return model.state % below;
}

#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            ck_abort_msg("seed %llu: %s", (unsigned long long)model.seed, #condition);             \
        }                                                                                          \
    } while (0)

static void forget_order(void)
{
    model.disk_busy = false;
    model.written = 0;
    model.synced = false;
    memset(model.waits, 0, sizeof(model.waits));
}

static void carry_out(const struct kelp_snapshot_actions *actions)
{
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct kelp_snapshot_action *action = &actions->items[i];
        switch (action->kind) {
        case KELP_SNAPSHOT_DO_DISCARD:
            must(action->ticket >= model.ticket);
            forget_order();
            break;
        case KELP_SNAPSHOT_DO_ORDER:
            must(action->ticket > model.ticket); /* they count up */
            must(action->order.serial == action->ticket);
            must(action->order.generation == model.generation);
            forget_order();
            model.ticket = action->ticket;
            for (uint32_t place = 0; place < model.count; place++) {
                model.waits[place] = true;
            }
            break;
        case KELP_SNAPSHOT_DO_WRITE:
            must(action->ticket == model.ticket);
            must(!model.disk_busy);
            must(model.written < model.count);
            must(action->partition == model.hosted[model.written]);
            must(!model.waits[model.written]); /* it was taken */
            model.disk_busy = true;
            model.disk = *action;
            break;
        case KELP_SNAPSHOT_DO_SYNC:
            must(action->ticket == model.ticket);
            must(!model.disk_busy);
            must(model.written == model.count);
            model.disk_busy = true;
            model.disk = *action;
            break;
        case KELP_SNAPSHOT_DO_REPORT:
            break;
        }
    }
}

static uint32_t waiting(void)
{
    uint32_t count = 0;
    for (uint32_t place = 0; place < model.count; place++) {
        count += model.waits[place] ? 1 : 0;
    }
    return count;
}

static void check_view(void)
{
    struct kelp_snapshot_view view;

    kelp_snapshot_view(model.snapshot, &view);
    must((view.status != KELP_OK) == (view.state == KELP_SNAPSHOT_FAILED));
    must((view.error[0] != '\0') == (view.state == KELP_SNAPSHOT_FAILED));
    if (view.state == KELP_SNAPSHOT_DURABLE && view.order.generation == model.generation) {
        must(model.synced || model.count == 0);
        must(view.part_count == model.count);
        must(view.has_word == (model.count > 0 && model.hosted[0] == 0));
    }
    must(view.state == KELP_SNAPSHOT_DURABLE || view.part_count == 0);
    if (view.state == KELP_SNAPSHOT_TAKING || view.state == KELP_SNAPSHOT_CAPTURED) {
        must((view.state == KELP_SNAPSHOT_CAPTURED) == (waiting() == 0));
    }
}

static void new_generation(struct kelp_snapshot_actions *actions)
{
    uint32_t hosted[PARTITIONS];
    uint32_t count = 0;

    for (uint32_t partition = 0; partition < PARTITIONS; partition++) {
        if (pick(3) > 0) {
            hosted[count++] = partition;
        }
    }
    model.generation += 1 + pick(3);
    kelp_snapshot_generation(model.snapshot, model.generation, hosted, count, actions);
    carry_out(actions);
    actions->count = 0;
    forget_order();
    model.count = count;
    memcpy(model.hosted, hosted, sizeof(hosted));
}

static void random_order(struct kelp_snapshot_actions *actions)
{
    struct kelp_snapshot_order order = {.serial = model.ticket / 2 + pick(4), /* some meet */
                                        .generation = model.generation + pick(3) - 1,
                                        .step = pick(3)};
    struct kelp_snapshot_view before;
    kelp_snapshot_view(model.snapshot, &before);
    bool late = before.state != KELP_SNAPSHOT_NONE && order.generation == before.order.generation &&
                order.serial < before.order.serial;
    const struct kelp_snapshot_share share = {.partitions = model.hosted, .count = model.count};
    kelp_status status = kelp_snapshot_order(model.snapshot, &order, &share, actions);

    must((status == KELP_ERR_OLD_GENERATION) == (order.generation < model.generation || late));
    must(status == KELP_OK || actions->count == 0);
}

static bool is_open(const struct kelp_snapshot_view *view)
{
    return view->state == KELP_SNAPSHOT_TAKING || view->state == KELP_SNAPSHOT_CAPTURED;
}

/* Of the order under way, of one before it, or of another leader's. */
static void random_give_up(struct kelp_snapshot_actions *actions)
{
    uint64_t generation = model.generation - pick(2);
    struct kelp_snapshot_view before;
    kelp_snapshot_view(model.snapshot, &before);
    uint64_t serial = before.order.serial + pick(3) - 1;
    bool its =
        is_open(&before) && serial == before.order.serial && generation == before.order.generation;
    kelp_snapshot_give_up(model.snapshot, generation, serial, actions);

    must((actions->count > 0) == its);
}

/* A partition gets to the step, now and then for an order that was replaced. */
static void random_taken(struct kelp_snapshot_actions *actions)
{
    struct kelp_control_word word = {.version = 1};
    uint64_t ticket = model.ticket - (pick(8) == 0 && model.ticket > 0 ? 1 : 0);
    uint32_t place = (uint32_t)pick(PARTITIONS);

    if (place >= model.count) {
        return;
    }
    bool waited = model.waits[place] && ticket == model.ticket;
    model.waits[place] = waited ? false : model.waits[place];
    bool wanted = kelp_snapshot_taken(model.snapshot, ticket, model.hosted[place],
                                      model.hosted[place] == 0 ? &word : NULL, actions);
    must(wanted == waited);
}

static void disk_goes_on(struct kelp_snapshot_actions *actions)
{
    struct kelp_snapshot_action done = model.disk;

    if (!model.disk_busy) { /* a late word of an order that is gone */
        must(!kelp_snapshot_synced(model.snapshot, model.ticket > 0 ? model.ticket - 1 : 0,
                                   actions));
        kelp_snapshot_failed(model.snapshot, model.ticket > 0 ? model.ticket - 1 : 0, KELP_ERR_IO,
                             "late", actions);
        must(actions->count == 0);
        return;
    }
    model.disk_busy = false;
    if (pick(12) == 0) {
        kelp_snapshot_failed(model.snapshot, done.ticket, KELP_ERR_NO_SPACE, "full", actions);
    } else if (done.kind == KELP_SNAPSHOT_DO_SYNC) {
        model.synced = true;
        model.durable++;
        must(kelp_snapshot_synced(model.snapshot, done.ticket, actions));
    } else {
        model.written++;
        kelp_snapshot_written(model.snapshot, done.ticket, done.partition, DIGEST, 1, actions);
    }
}

static void run_seed(uint64_t seed, uint64_t *durable)
{
    model = (struct model){.seed = seed, .state = seed * 0x9e3779b97f4a7c15u + 1, .generation = 1};
    must(kelp_snapshot_create(&model.snapshot, NULL) == KELP_OK);
    for (unsigned i = 0; i < EVENTS; i++) {
        struct kelp_snapshot_actions actions = {.count = 0};
        uint64_t what = pick(100);
        if (what < 2 || i == 0) {
            new_generation(&actions);
        } else if (what < 5) {
            random_order(&actions);
        } else if (what < 6) {
            random_give_up(&actions);
        } else if (what < 7) {
            kelp_snapshot_past(model.snapshot, model.ticket, 1 + pick(3), &actions);
        } else if (what < 60) {
            random_taken(&actions);
        } else {
            disk_goes_on(&actions);
        }
        carry_out(&actions);
        check_view();
    }
    kelp_snapshot_destroy(model.snapshot);
    *durable += model.durable;
}

KELP_CASE("events", .timeout_s = 120)

KELP_LOOP_TEST(random_events, 0, kelp_suite_seed() < 0 ? 1 : 0)
{
    uint64_t durable = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_seed(seed, &durable);
    }
    ck_assert_uint_gt(durable, SEEDS / 4); /* it does get there */
}

KELP_LOOP_TEST(one_seed, kelp_suite_seed(), kelp_suite_seed() < 0 ? -1 : kelp_suite_seed() + 1)
{
    uint64_t durable = 0;

    run_seed((uint64_t)_i, &durable);
}
