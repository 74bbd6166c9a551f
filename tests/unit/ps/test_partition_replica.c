/* A partition whose entry has others: what its primary waits for. */
#include "tests/lib/cores/partition_replicas.h"
#include "tests/lib/suite.h"

static void open_primary(void)
{
    bench_open_replica(
        1, &(struct kelp_partition_start){.generation = 3, .map_epoch = 7, .backup = BENCH_BACKUP});
}

static void open_control(void)
{
    bench_open_replica(
        0, &(struct kelp_partition_start){.generation = 3, .map_epoch = 7, .backup = BENCH_BACKUP});
}

KELP_CASE("a primary with a backup", .setup = open_primary, .teardown = bench_close)

/* The root goes out before it is applied, and nobody sees the version before it is there too. */
KELP_TEST(visible_once_acknowledged)
{
    bench_level(0);
    bench_pull(5, KELP_PULL_STEP, 1, false, 0);
    bench_push(0, 4, "r");
    const struct kelp_action sent = bench_replicated(KELP_ACTION_FORWARD);
    ck_assert_uint_eq(sent.forward.process, BENCH_BACKUP);
    ck_assert_str_eq(bench.gradients[sent.forward.forward.handle], "r");
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_SYNCING);
    ck_assert_uint_eq(bench_view().step, 0);
    ck_assert_uint_eq(bench_view().held, 1);
    ck_assert_uint_eq(bench.answer_count, 0);
    bench_say(BENCH_BACKUP, 6, true, 1); /* of an older epoch */
    bench_say(BENCH_JOINER, 7, true, 1); /* of somebody else */
    ck_assert_uint_eq(bench_view().step, 0);
    bench_say(BENCH_BACKUP, 7, true, 1);
    ck_assert_uint_eq(bench_view().step, 1);
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(bench.answers[0].step, 1);
}

/* With a root goes who pushed what of it. */
KELP_TEST(evidence_goes_with_roots)
{
    struct kelp_node_claim claims[KELP_PS_EVIDENCE_TOLD_MAX];

    bench.compares = true;
    bench_level(0);
    bench.author = 4;
    bench_push(0, 2, "01");
    bench.author = 5;
    bench_push(2, 2, "23");
    bench_finish_merges();
    const struct kelp_action sent = bench_replicated(KELP_ACTION_FORWARD);
    ck_assert_uint_eq(kelp_partition_claims(bench.partition, &sent.forward.forward.word, claims),
                      3);
    ck_assert_uint_eq(claims[0].node, 2);
    ck_assert_uint_eq(claims[0].author, 4);
    ck_assert(claims[0].is_taken && !claims[0].is_sum);
    ck_assert_uint_eq(claims[1].content, (uint32_t)bench_content("23").low);
    ck_assert_uint_eq(claims[2].node, 1);
    ck_assert(claims[2].is_sum);
    ck_assert_uint_eq(claims[2].content, (uint32_t)bench_content("0123").low);
}

/* An acknowledgement may come first. */
KELP_TEST(acknowledged_before_it_is_applied)
{
    bench_level(0);
    bench_push(0, 4, "r");
    bench_say(BENCH_BACKUP, 7, true, 1);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().step, 1);
}

static void say_digest(uint64_t held, uint64_t low)
{
    const struct kelp_acknowledgement said = {.process = BENCH_BACKUP,
                                              .generation = 3,
                                              .map_epoch = 7,
                                              .holds = true,
                                              .held = held,
                                              .digest = {low, 1}};

    ck_assert_int_eq(kelp_partition_acknowledged(bench.partition, &said, &bench.actions), KELP_OK);
    bench_take_actions();
}

static void finish_with_digest(uint64_t low)
{
    ck_assert(bench.apply.apply.wants_digest);
    kelp_partition_digested(bench.partition, bench.apply.apply.token,
                            &(struct kelp_content){low, 1});
    bench_finish_apply(true);
}

/* One step by the root of all lanes. */
static void begin_step(uint64_t step)
{
    bench_push_at(7, step, "r");
    (void)bench_replicated(KELP_ACTION_FORWARD);
}

/* Whether the backup's digest comes first or ours: the version is not shown when they differ. */
KELP_LOOP_TEST(replicas_that_differ_stop, 0, 2)
{
    bench_level(0);
    begin_step(0);
    finish_with_digest(5);
    say_digest(1, 5); /* the same */
    ck_assert_uint_eq(bench_view().step, 1);
    begin_step(1);
    if (_i == 0) {
        finish_with_digest(6);
        say_digest(2, 7);
    } else {
        say_digest(2, 7);
        finish_with_digest(6);
    }
    const struct kelp_action differs = bench_replicated(KELP_ACTION_DIFFERS);
    ck_assert_uint_eq(differs.differs.process, BENCH_BACKUP);
    ck_assert_uint_eq(differs.differs.ours.step, 2);
    ck_assert_uint_eq(differs.differs.ours.content.low, 6);
    ck_assert_uint_eq(differs.differs.theirs.low, 7);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
    ck_assert_uint_eq(bench_view().step, 1);
}

/* After 1, 2, 4, … steps, and then once in a while; where nothing was computed nothing differs. */
KELP_TEST(digests_are_rare)
{
    unsigned wanted = 0;

    bench_level(0);
    for (uint64_t step = 0; step < 3 * KELP_PS_COMPARE_STEPS; step++) {
        begin_step(step);
        wanted += bench.apply.apply.wants_digest;
        if (bench.apply.apply.wants_digest) {
            kelp_partition_digested(bench.partition, bench.apply.apply.token,
                                    &(struct kelp_content){step, 1});
        }
        bench_finish_apply(true);
        bench_say(BENCH_BACKUP, 7, true, step + 1);
    }
    ck_assert_uint_eq(wanted, 6 + 2);
    ck_assert_uint_eq(bench_view().step, 3 * KELP_PS_COMPARE_STEPS);
}

/* What was sent over a link that broke is sent again, when the backup has said what it has. */
KELP_TEST(sent_again_after_a_broken_link)
{
    bench_level(0);
    bench_push(0, 4, "r");
    bench_finish_apply(true);
    (void)bench_replicated(KELP_ACTION_FORWARD);
    ck_assert_int_eq(kelp_partition_linked(bench.partition, BENCH_BACKUP, false, &bench.actions),
                     KELP_OK);
    ck_assert_int_eq(kelp_partition_linked(bench.partition, BENCH_BACKUP, true, &bench.actions),
                     KELP_OK);
    bench_take_actions();
    (void)bench_replicated(KELP_ACTION_ASK);
    ck_assert_uint_eq(bench.replicated_count, 0);
    bench_say(BENCH_BACKUP, 7, true, 0);
    (void)bench_replicated(KELP_ACTION_FORWARD);
    bench_say(BENCH_BACKUP, 7, true, 1);
    ck_assert_uint_eq(bench_view().step, 1);
}

/* The map alone lets a backup go. */
KELP_TEST(lost_backup_leaves_by_the_map)
{
    bench_level(0);
    bench_push(0, 4, "r");
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().step, 0);
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0);
    ck_assert_uint_eq(bench_view().step, 1);
    bench.replicated_count = 0;
}

/* A joiner gets a copy where applied equals visible, and the roots from then on; it counts once it
 * has what is applied. */
KELP_TEST(joiner_catches_up)
{
    bench_level(0);
    bench_enter(8, KELP_REPLICA_PRIMARY, BENCH_BACKUP, BENCH_JOINER);
    (void)bench_replicated(KELP_ACTION_ASK);
    (void)bench_replicated(KELP_ACTION_ASK);
    bench_say(BENCH_BACKUP, 8, true, 0);
    (void)bench_replicated(KELP_ACTION_IN_SYNC);
    bench_say(BENCH_JOINER, 8, false, 0);
    (void)bench_replicated(KELP_ACTION_WANT_COPY);
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0); /* not newer: nothing */
    ck_assert_int_eq(kelp_partition_copy(bench.partition, BENCH_JOINER, &bench.actions), KELP_OK);
    bench_take_actions();
    const struct kelp_action copy = bench_replicated(KELP_ACTION_COPY);
    ck_assert_uint_eq(copy.copy.process, BENCH_JOINER);
    ck_assert_uint_eq(copy.copy.state.held, 0);
    bench_say(BENCH_JOINER, 8, true, 0);
    ck_assert_uint_eq(bench_replicated(KELP_ACTION_IN_SYNC).in_sync.process, BENCH_JOINER);
    ck_assert(bench_view().replication.joiner_in_sync);
}

/* What is under way to a joiner is bounded: the next step waits for it. */
KELP_TEST(roots_for_a_joiner_are_bounded)
{
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, BENCH_JOINER);
    bench_say(BENCH_JOINER, 8, false, 0);
    ck_assert_int_eq(kelp_partition_copy(bench.partition, BENCH_JOINER, &bench.actions), KELP_OK);
    bench_take_actions();
    for (uint64_t step = 0; step < KELP_PS_FORWARDS_QUEUED_MAX; step++) {
        bench_push_at(8, step, "r");
        ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
        bench_finish_apply(true); /* visible at once: nobody counts */
    }
    bench_push_at(8, KELP_PS_FORWARDS_QUEUED_MAX, "r");
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
    bench_say(BENCH_JOINER, 8, true, 0);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
    bench_say(BENCH_JOINER, 8, true, 1);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_APPLYING);
    bench.replicated_count = 0;
}

/* Demoted in the middle of an apply, it ends it and says so. */
KELP_TEST(apply_under_way_counts_after_a_demotion)
{
    bench_level(0);
    bench_pull(5, KELP_PULL_STEP, 1, false, 0);
    bench_push(0, 4, "r");
    (void)bench_replicated(KELP_ACTION_FORWARD);
    bench_enter(8, KELP_REPLICA_BACKUP, 0, 0);
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_int_eq(bench.answers[0].status, KELP_ERR_NOT_PRIMARY);
    ck_assert_uint_eq(bench.replicated_count, 0); /* it says what it has when it is done */
    bench_finish_apply(true);
    bench_check_says(8, true, 1);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FOLLOWING);
}

KELP_CASE("partition 0 with a backup", .setup = open_control, .teardown = bench_close)

/* Entries that move no weights are forwarded too, with their sums and digest. */
KELP_TEST(evaluations_are_forwarded)
{
    bench_level(0);
    for (uint64_t version = 0; version < 3; version++) {
        bench_push(0, 4, version < 2 ? "r" : NULL);
        const struct kelp_action sent = bench_replicated(KELP_ACTION_FORWARD);
        ck_assert_uint_eq(sent.forward.forward.word.version, version);
        ck_assert_uint_gt(sent.forward.forward.sum_count, KELP_METRIC_SUM_SAMPLES);
        if (version < 2) {
            bench_finish_apply(true);
        }
        ck_assert_uint_eq(bench.record_count, version);
        bench_say(BENCH_BACKUP, 7, true, version + 1);
        ck_assert_uint_eq(bench.record_count, version + 1);
    }
}
