/* Shards that are to go: what is saved when all of them go, and what is said of one. */
#include <stdio.h>
#include <string.h>

#include "coordinator/term/parts/departure.h"
#include "tests/lib/cores/placement_bench.h"
#include "tests/lib/suite.h"

static struct kelp_checkpointer checkpointer;
static struct kelp_departure departure;

static void setup(void)
{
    static const struct kelp_retention policy = {.keep_last = 3};
    placement_setup();
    memset(&checkpointer, 0, sizeof(checkpointer));
    ck_assert_int_eq(kelp_committed_list_init(&checkpointer.list, &policy, NULL), KELP_OK);
    checkpointer.word_known = true;
    checkpointer.word.version = checkpointer.word.step = 120;
    departure = (struct kelp_departure){.saves = true};
    placement_start();
}

static void teardown(void)
{
    kelp_committed_list_fini(&checkpointer.list);
    placement_teardown();
}

static void tell_to_end(const char *id, uint64_t incarnation)
{
    (void)placement_apply((struct kelp_placement_event){
        .kind = KELP_PLACEMENT_LEAVING, .leaving = {.id = id, .incarnation = incarnation}});
}

static void tell_all(void)
{
    tell_to_end("shard-0", 10);
    tell_to_end("shard-1", 11);
}

static void commit(uint64_t step)
{
    struct kelp_committed committed = {.version = step, .step = step};
    ck_assert_int_eq(kelp_committed_list_add(&checkpointer.list, &committed, NULL, NULL), KELP_OK);
}

static bool look(void)
{
    return kelp_departure_look(&departure, &placement_bench.machine, &checkpointer);
}

/* Asked for, as the checkpointer counts. */
static void ask(void)
{
    ck_assert(look());
    departure.serial = ++checkpointer.requested;
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict, "");
}

static const char *waits(const char *id)
{
    static char text[KELP_DEPARTURE_TEXT_MAX];
    kelp_departure_waits(&placement_bench.machine, &checkpointer,
                         kelp_placement_find(&placement_bench.machine, id), text);
    return text;
}

KELP_CASE("departure", .setup = setup, .teardown = teardown)

/* While one stays, others are drained to it. Once all are to end, they wait for a checkpoint. */
KELP_TEST(all_go_when_it_is_saved)
{
    commit(40);
    tell_to_end("shard-0", 10);
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict, "");
    tell_to_end("shard-1", 11);
    ask();
    commit(130);
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict, "");
    checkpointer.answered = 1;
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict, "no other shard is there to take over: saved at step 130, "
                                        "from which the job goes on with new shards");
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-0", 10);
    ck_assert(!look()); /* the first of them has gone */
    ck_assert(strstr(departure.verdict, "saved at step 130"));
}

/* No folder, no room: it says what is lost, and they may go. */
KELP_TEST(says_what_is_lost)
{
    tell_all();
    ask();
    checkpointer.refused = 1;
    (void)snprintf(checkpointer.trouble, sizeof(checkpointer.trouble), "shard-0: no room");
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict,
                     "no other shard is there to take over, and no checkpoint could be made: the "
                     "job continues from the beginning (shard-0: no room)");
    commit(40);
    ck_assert(!look());
    ck_assert(strstr(departure.verdict, "the job continues from step 40 ("));
}

/* One more comes: they are drained after all, and what was saved counts no more at the next end. */
KELP_TEST(another_shard_takes_over)
{
    tell_all();
    ask();
    (void)placement_appear("shard-2", 12);
    checkpointer.answered = 1;
    commit(130);
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict, "");
    tell_to_end("shard-2", 12);
    ck_assert(look());
}

/* Nothing was made, or nothing that a checkpoint holds: nobody waits. */
KELP_TEST(nothing_to_save)
{
    tell_all();
    departure.saves = false;
    ck_assert(!look());
    ck_assert_str_eq(departure.verdict,
                     "no other shard is there to take over: the job goes on from "
                     "the beginning");
    departure.saves = true;
    checkpointer.word.version = 0;
    ck_assert(!look());
    ck_assert_str_ne(departure.verdict, "");
    checkpointer.word.version = 1;
    ck_assert(look());
}

/* A leader that is told to end too hears of shards within a moment, and sees them off. */
KELP_TEST(holds_the_leader)
{
    const struct kelp_placement *placement = &placement_bench.machine;
    ck_assert(kelp_departure_holds_leader(placement, 0));
    ck_assert(!kelp_departure_holds_leader(placement, KELP_COORDINATOR_HEAR_MS));
    tell_to_end("shard-0", 10);
    ck_assert(kelp_departure_holds_leader(placement, 20000));
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-0", 10);
    ck_assert(kelp_departure_holds_leader(placement, 20000)); /* its lease is there */
    (void)placement_say(KELP_PLACEMENT_UNREGISTERED, "shard-0", 10);
    ck_assert(!kelp_departure_holds_leader(placement, 20000));
    tell_to_end("shard-1", 11);
    ck_assert(kelp_departure_holds_leader(placement, 20000));
    (void)placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .stopped = "enough"});
    ck_assert(!kelp_departure_holds_leader(placement, 0));
}

KELP_TEST(says_what_is_left)
{
    const struct kelp_map *map = &placement_bench.machine.map;
    ck_assert(strstr(waits("shard-0"), " left"));
    for (uint32_t i = 0; i < map->partition_count; i++) {
        map->partitions[i].primary = 0;
        map->partitions[i].joiner = i == 0 ? 1 : KELP_MAP_NOBODY;
    }
    const struct kelp_replica_report report = {.partition = 0,
                                               .map_epoch = map->partitions[0].map_epoch,
                                               .copied = 512 * 1024,
                                               .to_copy = 2 * 1024 * 1024};
    (void)kelp_replicas_take(&placement_bench.machine.replicas, map, 0, &report);
    char expected[128];
    (void)snprintf(expected, sizeof(expected), "%u partitions left, 0.5 of 2.0 MiB copied",
                   map->partition_count);
    ck_assert_str_eq(waits("shard-0"), expected);
    placement_bench.machine.promotion_waits = true;
    checkpointer.order.step = 140;
    ck_assert(strstr(waits("shard-0"), "copied; the checkpoint of step 140 is captured first"));
    ck_assert(strstr(waits("shard-1"), "1 backup left"));
    tell_all();
    ck_assert(strstr(waits("shard-0"), "; no shard stays that could take it: start another one"));
}

KELP_TEST(says_what_is_missing)
{
    tell_to_end("shard-0", 10);
    (void)placement_say(KELP_PLACEMENT_DISCONNECTED, "shard-1", 11);
    ck_assert(strstr(waits("shard-0"), " left; shard-1 is not heard"));
    (void)placement_apply(
        (struct kelp_placement_event){.kind = KELP_PLACEMENT_STOPPED, .stopped = "enough"});
    ck_assert(strstr(waits("shard-0"), " left"));
}
