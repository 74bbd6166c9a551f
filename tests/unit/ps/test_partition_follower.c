/* A partition that follows its primary: what it takes, and what becomes of it when the entry
 * changes. */
#include "tests/lib/cores/partition_replicas.h"
#include "tests/lib/suite.h"

static void open_backup(void)
{
    bench_open_replica(1, &(struct kelp_partition_start){
                              .generation = 3, .map_epoch = 7, .place = KELP_REPLICA_BACKUP});
}

static void open_joiner(void)
{
    bench_open_replica(1, &(struct kelp_partition_start){
                              .generation = 3, .map_epoch = 7, .place = KELP_REPLICA_JOINER});
}

KELP_CASE("a backup", .setup = open_backup, .teardown = bench_close)

KELP_TEST(follows_root_after_root)
{
    bench_forward(7, 0, "a");
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "a");
    bench_finish_apply(true);
    bench_check_says(7, true, 1);
    bench_forward(7, 0, "a"); /* twice: it says again what it has */
    bench_check_says(7, true, 1);
    bench_forward(7, 2, "c"); /* not of its own state: kept, not applied */
    ck_assert_uint_eq(bench.apply_count, 1);
    bench_forward(7, 1, "b");
    bench_finish_apply(true);
    bench_check_says(7, true, 2);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "c");
    bench_finish_apply(true);
    bench_check_says(7, true, 3);
}

KELP_TEST(other_epochs_are_refused)
{
    bench_forward(6, 0, "a");
    ck_assert_uint_eq(bench.apply_count, 0);
    ck_assert_uint_eq(bench.replicated_count, 0);
    bench_forward(8, 0, "a");
    ck_assert_uint_eq(bench.apply_count, 0);
    ck_assert_uint_eq(bench.replicated_count, 0);
}

KELP_TEST(workers_are_refused)
{
    bench_push(0, 4, "r");
    ck_assert_int_eq(bench.refusal.status, KELP_ERR_NOT_PRIMARY);
    ck_assert_uint_eq(bench.refusal.map_epoch, 7);
}

/* Promoted, it shows what it has once its own follower has it: it sends what it kept. */
KELP_TEST(promoted_shows_when_its_follower_has_it)
{
    struct kelp_pull pull = {
        .requester = 5, .generation = 3, .map_epoch = 8, .mode = KELP_PULL_CURRENT};

    bench_forward(7, 0, "a");
    bench_finish_apply(true);
    bench_check_says(7, true, 1);
    bench_enter(8, KELP_REPLICA_PRIMARY, BENCH_BACKUP, 0);
    (void)bench_replicated(KELP_ACTION_ASK);
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &pull, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(bench.answer_count, 0);
    bench_say(BENCH_BACKUP, 8, true, 0);
    const struct kelp_action sent = bench_replicated(KELP_ACTION_FORWARD);
    ck_assert_str_eq(bench.gradients[sent.forward.forward.handle], "a");
    bench_say(BENCH_BACKUP, 8, true, 1);
    (void)bench_replicated(KELP_ACTION_IN_SYNC);
    ck_assert_uint_eq(bench.answer_count, 1);
    ck_assert_uint_eq(bench.answers[0].step, 1);
}

/* A follower says with its version what it has come to, as often as it is asked. */
KELP_TEST(follower_says_its_digest)
{
    bench_forward(7, 0, "a");
    ck_assert(bench.apply.apply.wants_digest);
    kelp_partition_digested(bench.partition, bench.apply.apply.token, &(struct kelp_content){9, 1});
    bench_finish_apply(true);
    const struct kelp_action said = bench_replicated(KELP_ACTION_ACKNOWLEDGE);
    ck_assert_uint_eq(said.acknowledge.held, 1);
    ck_assert_uint_eq(said.acknowledge.digest.low, 9);
    ck_assert_int_eq(kelp_partition_asked(bench.partition, 3, 7, &bench.actions), KELP_OK);
    bench_take_actions();
    const struct kelp_action again = bench_replicated(KELP_ACTION_ACKNOWLEDGE);
    ck_assert_uint_eq(again.acknowledge.digest.low, 9);
}

/* Step 0 comes as the root of what two workers pushed, one of whom lied. */
static void forward_lie(void)
{
    const struct kelp_node_claim claims[] = {
        {.node = 2, .author = 1, .is_taken = true, .content = (uint32_t)bench_content("01").low},
        {.node = 3, .author = 9, .is_taken = true, .content = (uint32_t)bench_content("zero").low},
        {.node = 1, .author = 1, .is_sum = true, .content = (uint32_t)bench_content("01zero").low}};
    const struct kelp_forward root = {.generation = 3,
                                      .map_epoch = 7,
                                      .word = bench_train_word(0, 0),
                                      .handle = bench_new_handle("01zero"),
                                      .claims = claims,
                                      .claim_count = KELP_ARRAY_COUNT(claims)};

    bench.compares = true;
    ck_assert_int_eq(kelp_partition_forwarded(bench.partition, &root, &bench.actions), KELP_OK);
    bench_take_actions();
    bench_finish_apply(true);
    bench_check_says(7, true, 1);
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0);
}

/* A push of lanes of step 0, once it is complete, from a worker that knows the new epoch. */
static void push_late(uint32_t author, uint32_t first, uint32_t count, const char *text)
{
    const struct kelp_control_word word = bench_train_word(0, 0);
    const struct kelp_push push = {.requester = 11,
                                   .author = author,
                                   .generation = 3,
                                   .map_epoch = 8,
                                   .word = &word,
                                   .lane_first = first,
                                   .lane_count = count,
                                   .handle = bench_new_handle(text),
                                   .content = bench_content(text)};

    ck_assert_int_eq(kelp_partition_push(bench.partition, &push, &bench.actions), KELP_OK);
    bench_take_actions();
}

/* What workers push to the primary before is compared with what they push to the next one. */
KELP_TEST(evidence_moves_with_the_partition)
{
    forward_lie();
    push_late(2, 0, 2, "01"); /* as it was pushed */
    ck_assert_uint_eq(bench.conflict_count, 0);
    push_late(2, 2, 2, "23");
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_uint_eq(bench.conflict.first.of[0], 9);
    ck_assert_uint_eq(bench.conflict.second.of[0], 2);
    ck_assert_uint_eq(bench.conflict.lane_first, 2);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

/* Smaller nodes add up, and larger ones are compared with the sum. */
KELP_LOOP_TEST(evidence_of_other_nodes_moves, 0, 2)
{
    forward_lie();
    if (_i == 0) {
        push_late(2, 2, 1, "2");
        push_late(3, 3, 1, "3");
        bench_finish_merges();
    } else {
        push_late(2, 0, 4, "0123");
    }
    ck_assert_uint_eq(bench.conflict_count, 1);
}

KELP_TEST(promoted_alone_shows_at_once)
{
    bench_forward(7, 0, "a");
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0); /* in the middle of an apply */
    bench_finish_apply(true);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_COLLECTING);
    ck_assert_uint_eq(bench_view().step, 1);
}

KELP_CASE("a joiner", .setup = open_joiner, .teardown = bench_close)

/* A piece of a copy of the state `held` comes. */
static void fill(uint64_t stream, uint64_t held, bool is_first, kelp_status expected)
{
    const struct kelp_copy_piece piece = {
        .generation = 3, .map_epoch = 7, .held = held, .stream = stream, .is_first = is_first};

    ck_assert_int_eq(kelp_partition_fill(bench.partition, &piece, &bench.actions), expected);
}

static void complete(uint64_t stream, const struct kelp_replica_state *state, kelp_status expected)
{
    const struct kelp_copy_piece piece = {
        .generation = 3, .map_epoch = 7, .held = state->held, .stream = stream};

    ck_assert_int_eq(kelp_partition_filled(bench.partition, &piece, state, &bench.actions),
                     expected);
    bench_take_actions();
}

/* Roots that come before the copy is complete are kept and applied after it. */
KELP_TEST(roots_before_the_copy_are_kept)
{
    const struct kelp_replica_state state = {.held = 4, .step = 4, .version = 4, .has_older = true};

    fill(1, 4, true, KELP_OK);
    bench_forward(7, 4, "e");
    bench_forward(7, 3, "d");
    bench_forward(7, 5, "f");
    ck_assert_uint_eq(bench.apply_count, 0);
    complete(1, &state, KELP_OK);
    bench_check_says(7, true, 4);
    ck_assert_str_eq(bench.gradients[bench.apply.apply.root], "e");
    bench_finish_apply(true);
    bench_check_says(7, true, 5);
    bench_finish_apply(true);
    bench_check_says(7, true, 6);
    fill(1, 5, true, KELP_ERR_INVALID);
}

/* Pieces of two copies are never taken for one: neither those of another state, nor those of a
 * stream that a newer one has replaced. */
KELP_TEST(pieces_belong_to_the_copy_that_was_begun)
{
    const struct kelp_replica_state state = {.held = 4, .step = 4, .version = 4};
    const struct kelp_replica_state newer = {.held = 6, .step = 6, .version = 6};

    fill(1, 4, false, KELP_ERR_FORMAT);
    fill(1, 4, true, KELP_OK);
    fill(1, 4, false, KELP_OK);
    fill(1, 6, false, KELP_ERR_FORMAT);
    fill(2, 6, true, KELP_OK); /* over the next stream */
    fill(1, 4, false, KELP_ERR_INVALID);
    fill(1, 6, false, KELP_ERR_INVALID);
    complete(1, &newer, KELP_ERR_INVALID);
    complete(2, &state, KELP_ERR_INVALID);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FILLING);
    complete(2, &newer, KELP_OK);
    bench_check_says(7, true, 6);
}

/* With a copy comes who pushed what of the entries before it. */
KELP_TEST(evidence_comes_with_a_copy)
{
    const struct kelp_node_claim claim = {
        .node = 1, .author = 9, .is_taken = true, .content = (uint32_t)bench_content("zero").low};
    const struct kelp_forward known = {
        .word = bench_train_word(0, 0), .claims = &claim, .claim_count = 1};
    const struct kelp_replica_state state = {
        .held = 4, .step = 4, .version = 4, .known = &known, .known_count = 1};

    bench.compares = true;
    fill(1, 4, true, KELP_OK);
    complete(1, &state, KELP_OK);
    bench_check_says(7, true, 4);
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0);
    push_late(2, 0, 4, "0123");
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_uint_eq(bench.conflict.first.of[0], 9);
}

static size_t offers_at(uint64_t now_us)
{
    const struct kelp_cover_candidate spare = {.requester = 5};
    uint64_t next_us = 0;

    bench.offer_count = 0;
    kelp_partition_clock(bench.partition, now_us);
    ck_assert_int_eq(kelp_partition_tick(bench.partition, &spare, 1, &bench.actions, &next_us),
                     KELP_OK);
    bench_take_actions();
    return bench.offer_count;
}

/* How long entries take comes with a copy: who is promoted asks nobody for lanes that are only not
 * there yet. */
KELP_TEST(promoted_waits_as_long_as_entries_take)
{
    const struct kelp_replica_state state = {
        .held = 4, .step = 4, .version = 4, .pace = {.median_us = {[KELP_STEP_TRAIN] = 100000}}};

    fill(1, 4, true, KELP_OK);
    bench_forward(7, 4, "e"); /* applied as soon as the copy is there: that is no measure */
    complete(1, &state, KELP_OK);
    bench_finish_apply(true);
    kelp_partition_clock(bench.partition, 1000000);
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0);
    kelp_partition_clock(bench.partition, 1010000);
    const struct kelp_control_word word = bench_train_word(5, 5);
    const struct kelp_push push = {.requester = 11,
                                   .generation = 3,
                                   .map_epoch = 8,
                                   .word = &word,
                                   .lane_count = 2,
                                   .handle = bench_new_handle("f"),
                                   .content = bench_content("f")};
    ck_assert_int_eq(kelp_partition_push(bench.partition, &push, &bench.actions), KELP_OK);
    bench_take_actions();
    ck_assert_uint_eq(offers_at(1290000), 0);
    ck_assert_uint_eq(offers_at(1310000), 1);
    ck_assert_uint_eq(bench.offers[0].lane_first, 2);
}

/* Promoted without a state it cannot serve, and says so. */
KELP_TEST(promoted_without_a_state_fails)
{
    bench_enter(8, KELP_REPLICA_PRIMARY, 0, 0);
    (void)bench_replicated(KELP_ACTION_DIVERGES);
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_FAILED);
}

static void open_hearing(void)
{
    bench_open_deciding(1);
}

KELP_CASE("decisions", .setup = open_hearing, .teardown = bench_close)

/* A worker says what was decided about `step`. */
static void hear(uint64_t step, bool skipped)
{
    struct kelp_control_word word = bench_train_word(step + 1, step + 1);
    const struct kelp_pull pull = {.requester = 5,
                                   .generation = 3,
                                   .map_epoch = 7,
                                   .word = &word,
                                   .mode = KELP_PULL_STEP,
                                   .step = step + 1};

    word.skipped = skipped;
    ck_assert_int_eq(kelp_partition_pull(bench.partition, &pull, &bench.actions), KELP_OK);
    bench_take_actions();
}

static void measure(void)
{
    const struct kelp_decision_share share = {.count = 1,
                                              .values = {[KELP_DECISION_SHARE_FINITE] = 1.0}};

    ck_assert_int_eq(
        kelp_partition_measured(bench.partition, bench.measure.apply.token, &share, &bench.actions),
        KELP_OK);
    bench_take_actions();
}

/* What comes before the lanes do (a new primary lacks them) is not said twice: it is remembered for
 * its step, and for no other. */
KELP_TEST(early_decision_is_remembered_for_its_step)
{
    hear(0, true);
    bench_push(0, 4, "r");
    measure();
    ck_assert_uint_eq(bench.repeat_count, 1);
    ck_assert_uint_eq(bench_view().step, 1);
    bench_push(0, 4, "s");
    measure();
    ck_assert_uint_eq(bench_view().phase, KELP_PARTITION_DECIDING);
    hear(1, false);
    ck_assert_uint_eq(bench.apply_count, 1);
    bench_finish_apply(true);
}

KELP_TEST(two_early_decisions_are_compared)
{
    hear(0, true);
    hear(0, true);
    ck_assert_uint_eq(bench.conflict_count, 0);
    hear(0, false);
    ck_assert_uint_eq(bench.conflict_count, 1);
    ck_assert_int_eq((int)bench.conflict.kind, KELP_CONFLICT_DECISION);
}

static void open_clipping(void)
{
    bench.clips = true;
    bench_open_deciding(1);
    bench.clips = false;
}

KELP_CASE("factors", .setup = open_clipping, .teardown = bench_close)

/* A worker says with which factor the gradient of step 0 is scaled. */
static void hear_factor(uint64_t map_epoch, double factor)
{
    const struct kelp_control_word word = bench_train_word(1, 1);
    const struct kelp_pull pull = {.requester = 5,
                                   .generation = 3,
                                   .map_epoch = map_epoch,
                                   .word = &word,
                                   .mode = KELP_PULL_STEP,
                                   .step = 1,
                                   .decision = {.count = 1, .values = &factor}};

    ck_assert_int_eq(kelp_partition_pull(bench.partition, &pull, &bench.actions), KELP_OK);
    bench_take_actions();
}

/* Who followed in between has the factor of a later step: what a late worker repeats is not
 * measured against that. */
KELP_TEST(factors_of_a_follower_are_not_those_it_heard)
{
    const double later = 0.25;
    const struct kelp_forward root = {.generation = 3,
                                      .map_epoch = 8,
                                      .word = bench_train_word(1, 1),
                                      .decision = {.count = 1, .values = &later},
                                      .handle = bench_new_handle("s")};

    bench_push(0, 4, "r");
    measure();
    hear_factor(7, 0.5);
    bench_finish_apply(true);
    bench_enter(8, KELP_REPLICA_BACKUP, 0, 0);
    ck_assert_int_eq(kelp_partition_forwarded(bench.partition, &root, &bench.actions), KELP_OK);
    bench_take_actions();
    bench_finish_apply(true);
    bench_enter(9, KELP_REPLICA_PRIMARY, 0, 0);
    hear_factor(9, 0.5);
    ck_assert_uint_eq(bench.conflict_count, 0);
}
