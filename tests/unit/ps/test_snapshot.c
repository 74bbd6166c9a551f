#include <stdlib.h>
#include <string.h>

#include "ps/core/snapshot/snapshot.h"
#include "tests/lib/suite.h"

#define DIGEST "00112233445566778899aabbccddeeff"

static const uint32_t hosted[] = {0, 3, 5};
static struct kelp_snapshot *snapshot;
static struct kelp_snapshot_actions actions;

static void open_snapshot(void)
{
    actions.count = 0;
    ck_assert_int_eq(kelp_snapshot_create(&snapshot, NULL), KELP_OK);
    kelp_snapshot_generation(snapshot, 4, hosted, 3, &actions);
    ck_assert_uint_eq(actions.count, 0);
}

static void close_snapshot(void)
{
    kelp_snapshot_destroy(snapshot);
}

static struct kelp_snapshot_view view(void)
{
    struct kelp_snapshot_view result;
    kelp_snapshot_view(snapshot, &result);
    return result;
}

static kelp_status order_of(uint64_t serial, uint64_t generation, struct kelp_snapshot_share share)
{
    struct kelp_snapshot_order wanted = {.serial = serial, .generation = generation, .step = 10};
    return kelp_snapshot_order(snapshot, &wanted, &share, &actions);
}

static kelp_status order(uint64_t serial, uint64_t generation, uint64_t step)
{
    struct kelp_snapshot_order wanted = {.serial = serial, .generation = generation, .step = step};
    struct kelp_snapshot_share share = {.partitions = hosted, .count = 3};
    return kelp_snapshot_order(snapshot, &wanted, &share, &actions);
}

/* Exactly these actions are asked for, as letters: Discard, Order, Write, Sync, Report. */
static void expect(const char *letters)
{
    char text[KELP_SNAPSHOT_ACTIONS_MAX + 1] = "";

    for (uint32_t i = 0; i < actions.count; i++) {
        text[i] = "DOWSR"[actions.items[i].kind];
    }
    ck_assert_str_eq(text, letters);
    actions.count = 0;
}

static uint64_t begin(uint64_t serial, uint64_t step)
{
    ck_assert_int_eq(order(serial, 4, step), KELP_OK);
    uint64_t ticket = actions.items[actions.count - 1].ticket;
    ck_assert_uint_eq(actions.items[actions.count - 1].order.serial, ticket);
    return ticket;
}

static void take(uint64_t ticket, uint32_t partition)
{
    struct kelp_control_word word = {.version = 12, .step = 10, .kind = KELP_STEP_TRAIN};
    ck_assert(
        kelp_snapshot_taken(snapshot, ticket, partition, partition == 0 ? &word : NULL, &actions));
}

static void write_part(uint64_t ticket, uint32_t partition)
{
    kelp_snapshot_written(snapshot, ticket, partition, DIGEST, 100 + partition, &actions);
}

KELP_CASE("snapshot", .setup = open_snapshot, .teardown = close_snapshot)

/* Writes go one at a time in ascending order, whatever the order in which partitions get there;
 * nothing is durable before the disk said so. */
KELP_TEST(durable_only_after_the_sync)
{
    uint64_t ticket = begin(77, 10);

    expect("RO");
    take(ticket, 3);
    expect(""); /* 0 first */
    take(ticket, 0);
    expect("W");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_TAKING);
    take(ticket, 5);
    expect("R");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_CAPTURED);
    write_part(ticket, 0);
    ck_assert_uint_eq(actions.items[0].partition, 3);
    expect("W");
    write_part(ticket, 3);
    ck_assert_uint_eq(actions.items[0].partition, 5);
    expect("W");
    write_part(ticket, 5);
    expect("S");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_CAPTURED);
    ck_assert_uint_eq(view().part_count, 0);
    ck_assert(kelp_snapshot_synced(snapshot, ticket, &actions));
    expect("R");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_DURABLE);
    ck_assert_uint_eq(view().part_count, 3);
    ck_assert_uint_eq(view().parts[1].partition, 3);
    ck_assert_uint_eq(view().parts[1].bytes, 103);
    ck_assert_str_eq(view().parts[2].digest, DIGEST);
    ck_assert(view().has_word);
    ck_assert_uint_eq(view().word.version, 12);
    ck_assert_uint_eq(view().order.serial, 77);
}

/* A word of an order that was replaced changes nothing, even of one with the same serial. */
KELP_TEST(late_events_do_nothing)
{
    uint64_t first = begin(1, 10);

    take(first, 0);
    actions.count = 0;
    uint64_t second = begin(1, 11); /* another leader counts from 1, too */
    expect("DRO");
    ck_assert_uint_ne(first, second);
    write_part(first, 0);
    ck_assert(!kelp_snapshot_synced(snapshot, first, &actions));
    kelp_snapshot_failed(snapshot, first, KELP_ERR_IO, "late", &actions);
    kelp_snapshot_past(snapshot, first, 20, &actions);
    ck_assert(!kelp_snapshot_taken(snapshot, first, 3, NULL, &actions));
    expect("");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_TAKING);
    take(second, 0);
    expect("W");
    ck_assert(!kelp_snapshot_taken(snapshot, second, 0, NULL, &actions)); /* once */
    ck_assert(!kelp_snapshot_taken(snapshot, second, 4, NULL, &actions)); /* not ours */
    expect("");
}

/* The same order again changes nothing, in any state. */
KELP_TEST(repeated_orders)
{
    uint64_t ticket = begin(1, 10);

    actions.count = 0;
    ck_assert_int_eq(order(1, 4, 10), KELP_OK);
    expect("");
    kelp_snapshot_failed(snapshot, ticket, KELP_ERR_NO_SPACE, "disk full", &actions);
    expect("DR");
    ck_assert_int_eq(order(1, 4, 10), KELP_OK);
    expect("");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_FAILED);
    ck_assert_int_eq(view().status, KELP_ERR_NO_SPACE);
    ck_assert_str_eq(view().error, "disk full");
    (void)begin(2, 10);
    expect("RO");
    ck_assert_str_eq(view().error, "");
}

/* An order that comes late does not take the place of a newer one, which its leader waits for. */
KELP_TEST(late_orders)
{
    uint64_t ticket = begin(7, 10);

    actions.count = 0;
    ck_assert_int_eq(order(6, 4, 8), KELP_ERR_OLD_GENERATION);
    expect("");
    ck_assert_uint_eq(view().order.serial, 7);
    take(ticket, 0);
    expect("W");
}

/* One partition that went past ends it; the furthest one counts. */
KELP_TEST(past)
{
    uint64_t ticket = begin(1, 10);

    take(ticket, 0);
    actions.count = 0;
    kelp_snapshot_past(snapshot, ticket, 11, &actions);
    expect("DR");
    kelp_snapshot_past(snapshot, ticket, 12, &actions);
    kelp_snapshot_past(snapshot, ticket, 11, &actions);
    expect("");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_PAST);
    ck_assert_uint_eq(view().step, 12);
    ck_assert(!kelp_snapshot_taken(snapshot, ticket, 3, NULL, &actions));
    (void)begin(2, 14);
    expect("RO");
}

/* What is under way ends with its generation, what is durable stays. */
KELP_TEST(generations)
{
    static const uint32_t others[] = {1};
    uint64_t ticket;

    ck_assert_int_eq(order(1, 3, 10), KELP_ERR_OLD_GENERATION);
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_NONE);
    ck_assert_int_eq(order(1, 5, 10), KELP_OK);
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_FAILED);
    ck_assert_int_eq(view().status, KELP_ERR_BUSY);
    actions.count = 0;
    (void)begin(2, 10);
    actions.count = 0;
    kelp_snapshot_generation(snapshot, 5, others, 1, &actions);
    expect("DR");
    ck_assert_int_eq(view().status, KELP_ERR_OLD_GENERATION);
    ck_assert_int_eq(order_of(3, 5, (struct kelp_snapshot_share){others, 1, false}), KELP_OK);
    ticket = actions.items[actions.count - 1].ticket;
    expect("RO");
    take(ticket, 1);
    write_part(ticket, 1);
    ck_assert(kelp_snapshot_synced(snapshot, ticket, &actions));
    actions.count = 0;
    kelp_snapshot_generation(snapshot, 6, hosted, 3, &actions);
    expect("");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_DURABLE);
    ck_assert_uint_eq(view().part_count, 1);
    ck_assert(!view().has_word);
}

static void give_up(uint64_t generation, uint64_t serial)
{
    kelp_snapshot_give_up(snapshot, generation, serial, &actions);
}

/* What is under way is given up by its name. */
KELP_TEST(giving_up)
{
    give_up(4, 1);
    expect("");
    (void)begin(1, 10);
    actions.count = 0;
    give_up(3, 1);
    expect("");
    give_up(4, 1);
    expect("DR");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_FAILED);
    ck_assert_int_eq(view().status, KELP_ERR_CLOSED);
    give_up(4, 1);
    expect("");
}

/* A leader that was deposed, and learns of it late, gives up its own: the order of the one that
 * leads now, in the same generation, goes on. */
KELP_TEST(giving_up_what_was_replaced)
{
    (void)begin(1, 10);
    actions.count = 0;
    uint64_t ticket = begin(7, 12);
    actions.count = 0;
    give_up(4, 1);
    expect("");
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_TAKING);
    take(ticket, 0);
    expect("W");
    give_up(4, 7);
    expect("DR");
}

/* Who captured all that it was asked for may lead other partitions, or none: it is written. Before
 * that the order is over with the first partition that goes. */
KELP_LOOP_TEST(led_elsewhere, 0, 2)
{
    uint64_t ticket = begin(1, 10);

    take(ticket, 0);
    take(ticket, 3);
    if (_i == 1) {
        take(ticket, 5);
    }
    actions.count = 0;
    kelp_snapshot_lead(snapshot, hosted, 2, &actions);
    if (_i == 0) {
        expect("DR");
        ck_assert_int_eq(view().status, KELP_ERR_BUSY);
        return;
    }
    expect("");
    for (uint32_t i = 0; i < 3; i++) {
        write_part(ticket, hosted[i]);
    }
    ck_assert(kelp_snapshot_synced(snapshot, ticket, &actions));
    ck_assert_uint_eq(view().part_count, 3);
    actions.count = 0;
    (void)order_of(2, 4, (struct kelp_snapshot_share){hosted, 2, false}); /* those of the order */
    expect("RO");
    ck_assert(!kelp_snapshot_taken(snapshot, ticket + 1, 5, NULL, &actions));
}

/* Nobody captures for an order that is another process's, or of a partition that it does not lead.
 */
KELP_TEST(orders_for_others)
{
    static const uint32_t others[] = {0, 4};

    ck_assert_int_eq(order_of(1, 4, (struct kelp_snapshot_share){hosted, 3, true}), KELP_OK);
    expect("RDR");
    ck_assert_str_eq(view().error, "the order names another process");
    ck_assert_int_eq(order_of(2, 4, (struct kelp_snapshot_share){others, 2, false}), KELP_OK);
    expect("RDR");
    ck_assert_int_eq(view().status, KELP_ERR_BUSY);
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_FAILED);
}

/* A shard that hosts nothing has nothing to lose. */
KELP_TEST(nothing_hosted)
{
    kelp_snapshot_generation(snapshot, 5, NULL, 0, &actions);
    ck_assert_int_eq(order_of(1, 5, (struct kelp_snapshot_share){NULL, 0, false}), KELP_OK);
    ck_assert_int_eq((int)view().state, KELP_SNAPSHOT_DURABLE);
    ck_assert_uint_eq(view().part_count, 0);
    expect("ROR");
}
