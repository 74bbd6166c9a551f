/* One shard without rpc: partitions come and leave within a generation, and what was lent or
 * captured stays. */
#include <stdlib.h>
#include <string.h>

#include "ps/shard/shard.h"
#include "tests/lib/suite.h"

#define ELEMENTS   2048
#define PARTITIONS 2 /* of 1024 elements */
#define BYTES      (ELEMENTS / PARTITIONS * sizeof(float))
#define GENERATION 3

static struct kelp_job job;
static struct kelp_plan plan;
static struct kelp_shard *shard;
static struct kelp_shard_turn turn;

/* What the events said last. */
static struct {
    uint32_t answers;
    struct kelp_shard_answer answer; /* a loan is ours */
    uint32_t refusals;
    kelp_status refusal;
    uint32_t taken;
    uint32_t failed;
    uint32_t copied;
    uint32_t asked;
    uint32_t forwards;
    uint32_t stepped;
    uint64_t since_us;
    struct kelp_acknowledgement said;
} seen;

static void on_answer(const struct kelp_shard_answer *answer, void *user_turn, void *user)
{
    (void)user_turn, (void)user;
    if (seen.answer.lent) {
        kelp_extent_return(&seen.answer.loan);
    }
    seen.answers++;
    seen.answer = *answer;
}

static void on_refused(uint32_t partition, const struct kelp_refusal *refusal, void *user_turn,
                       void *user)
{
    (void)partition, (void)user_turn, (void)user;
    seen.refusals++;
    seen.refusal = refusal->status;
}

static bool on_taken(uint64_t ticket, uint32_t partition, const struct kelp_control_word *word,
                     void *user)
{
    (void)ticket, (void)partition, (void)word, (void)user;
    seen.taken++;
    return true;
}

static void on_failed(uint32_t partition, kelp_status status, const char *text, void *user)
{
    (void)partition, (void)status, (void)text, (void)user;
    seen.failed++;
}

static void on_worked(const struct kelp_shard_work *work, void *user)
{
    (void)work, (void)user;
}

static void on_stepped(uint32_t partition, uint64_t since_us, void *user)
{
    (void)partition, (void)user;
    seen.stepped++;
    seen.since_us = since_us;
}

static void on_copied(uint32_t partition, const void *records, void *user)
{
    (void)partition, (void)user;
    seen.copied++;
    ck_assert_ptr_eq(records, &seen);
}

static void on_ask(const struct kelp_shard_question *question, void *user_turn, void *user)
{
    (void)user_turn, (void)user;
    seen.asked++;
    ck_assert_uint_eq(question->process, 77);
}

static void on_forward(const struct kelp_shard_root *root, void *user_turn, void *user)
{
    (void)user_turn, (void)user;
    seen.forwards++;
    if (root->lent) {
        struct kelp_gradients_loan loan = root->loan;
        kelp_gradients_return(&loan);
    }
}

static void on_in_sync(uint32_t partition, void *user)
{
    (void)partition, (void)user;
}

static void on_acknowledge(uint32_t partition, uint64_t process,
                           const struct kelp_acknowledgement *said, void *user_turn, void *user)
{
    (void)partition, (void)process, (void)user_turn, (void)user;
    seen.said = *said;
}

static const struct kelp_shard_events events = {.answer = on_answer,
                                                .copied = on_copied,
                                                .ask = on_ask,
                                                .forward = on_forward,
                                                .in_sync = on_in_sync,
                                                .acknowledge = on_acknowledge,
                                                .refused = on_refused,
                                                .worked = on_worked,
                                                .stepped = on_stepped,
                                                .snapshot_taken = on_taken,
                                                .failed = on_failed};

/* Partition 1 alone is hosted. */
static void set_up(void)
{
    struct kelp_hosting *hosting = NULL;
    const struct kelp_hosting_place place = {.partition = 1, .entry = {.map_epoch = 1}};

    memset(&seen, 0, sizeof(seen));
    job = (struct kelp_job){
        .train = {.optimizer = KELP_OPTIMIZER_ADAMW, .lr = 0.5, .epochs = 100, .batch_size = 4},
        .cluster = {.lanes = 1}};
    plan = (struct kelp_plan){.tensor_count = 1, .samples = {[KELP_SPLIT_TRAIN] = 4}};
    plan.tensors = calloc(1, sizeof(*plan.tensors));
    plan.tensors[0] = (struct kelp_tensor){
        .name = "w", .rank = 1, .shape = {ELEMENTS}, .init = KELP_INIT_CONSTANT, .init_a = 0.25f};
    ck_assert_int_eq(kelp_plan_lay_out(&plan, PARTITIONS, NULL), KELP_OK);
    ck_assert_uint_eq(plan.partition_count, PARTITIONS);
    ck_assert_int_eq(kelp_shard_create(&job, &events, NULL, &shard, NULL), KELP_OK);
    const struct kelp_hosting_config config = {
        .job = &job, .plan = &plan, .generation = GENERATION, .places = &place, .place_count = 1};
    ck_assert_int_eq(kelp_hosting_prepare(&config, &hosting, NULL), KELP_OK);
    kelp_shard_install(shard, hosting, &turn);
}

static void tear_down(void)
{
    kelp_shard_destroy(shard);
    if (seen.answer.lent) {
        kelp_extent_return(&seen.answer.loan); /* after the shard: loans keep their memory */
    }
    kelp_shard_turn_fini(&turn);
    turn = (struct kelp_shard_turn){0};
    kelp_plan_fini(&plan);
    ck_assert_uint_eq(seen.failed, 0);
}

static void pull(uint32_t partition, enum kelp_pull_mode mode, uint64_t step)
{
    const struct kelp_pull pull = {
        .requester = 5, .generation = GENERATION, .map_epoch = 1, .mode = mode, .step = step};

    ck_assert_int_eq(kelp_shard_pull(shard, partition, &pull, &turn, NULL), KELP_OK);
}

/* One worker pushes all of step `step` to partition 1. */
static void push_at(uint64_t map_epoch, uint64_t step)
{
    static const float gradient[ELEMENTS / PARTITIONS] = {1.0f};
    struct kelp_rpc_message *message = kelp_rpc_message_create();
    const struct kelp_control_word word = {
        .version = step, .step = step, .kind = KELP_STEP_TRAIN, .sample_count = 4, .lr = 0.5};

    ck_assert_ptr_nonnull(message);
    ck_assert_int_eq(kelp_rpc_message_copy(message, gradient, BYTES), KELP_OK);
    const struct kelp_wire_payload payload = {.message = message, .length = BYTES};
    const struct kelp_shard_push push = {.partition = 1,
                                         .push = {.requester = 5,
                                                  .author = 1,
                                                  .generation = GENERATION,
                                                  .map_epoch = map_epoch,
                                                  .word = &word,
                                                  .lane_count = 1},
                                         .payload = &payload,
                                         .length = BYTES};
    ck_assert_int_eq(kelp_shard_push(shard, &push, &turn, NULL), KELP_OK);
    kelp_rpc_message_unref(message);
}

static void push(uint64_t step)
{
    push_at(1, step);
}

/* The map's next serial: this process has no part in partition 1 any more. */
static void leave(void)
{
    kelp_shard_enter(shard, GENERATION, NULL, 0, &turn);
}

static uint32_t hosted_count(void)
{
    struct kelp_shard_view view;

    kelp_shard_view(shard, &view);
    return view.partition_count;
}

KELP_CASE("partitions come and leave", .setup = set_up, .teardown = tear_down)

/* One that leaves takes nothing away that was lent: neither bytes nor memory. */
KELP_TEST(lent_weights_outlive_the_partition)
{
    pull(1, KELP_PULL_CURRENT, 0);
    ck_assert_int_eq(seen.answer.core.status, KELP_OK);
    ck_assert(seen.answer.lent);
    leave();
    ck_assert_uint_eq(hosted_count(), 0);
    size_t bytes;
    const float *values = kelp_extent_loan_bytes(&seen.answer.loan, &bytes);
    ck_assert_uint_eq(bytes, BYTES);
    ck_assert_float_eq(values[0], 0.25f);
    ck_assert_float_eq(values[ELEMENTS / PARTITIONS - 1], 0.25f);
}

/* Each step that is made is told once, with the time of its first push. */
KELP_TEST(steps_are_told)
{
    turn.now_us = 1000;
    push(0);
    ck_assert_uint_eq(seen.stepped, 1);
    ck_assert_uint_eq(seen.since_us, 1000);
    turn.now_us = 2000;
    push(0); /* a duplicate of a step that is complete */
    ck_assert_uint_eq(seen.stepped, 1);
    turn.now_us = 3000;
    push(1);
    ck_assert_uint_eq(seen.stepped, 2);
    ck_assert_uint_eq(seen.since_us, 3000);
}

/* Who waits for the next weights of a partition that leaves is told to look for its primary. */
KELP_TEST(waiting_pulls_are_answered)
{
    pull(1, KELP_PULL_STEP, 1);
    ck_assert_uint_eq(seen.answers, 0);
    leave();
    ck_assert_uint_eq(seen.answers, 1);
    ck_assert_int_eq(seen.answer.core.status, KELP_ERR_NOT_PRIMARY);
    push(0);
    ck_assert_uint_eq(seen.refusals, 1);
}

/* What a snapshot keeps of a partition that leaves is written all the same, and no later one's. */
KELP_TEST(captures_outlive_the_partition)
{
    const struct kelp_snapshot_order order = {.serial = 9, .generation = GENERATION, .step = 1};
    struct kelp_capture capture = {0};
    struct kelp_error error;
    const uint32_t both[] = {0, 1};

    push(0);
    kelp_shard_snapshot(shard, &order, both, 2, &turn);
    ck_assert_uint_eq(seen.taken, 1);
    push(1);
    pull(1, KELP_PULL_CURRENT, 0);
    ck_assert_uint_eq(seen.answer.core.step, 2);
    leave();
    ck_assert_int_eq(kelp_shard_snapshot_part(shard, 8, 1, &capture, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_shard_snapshot_part(shard, 9, 0, &capture, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_shard_snapshot_part(shard, 9, 1, &capture, &error), KELP_OK);
    ck_assert_float_ne(capture.weights[0], 0.25f);
    ck_assert_float_eq(capture.weights[1], 0.25f);
    kelp_capture_release(&capture);
    ck_assert_int_eq(kelp_shard_snapshot_part(shard, 9, 1, &capture, &error), KELP_ERR_NOT_FOUND);
}

/* … unless the snapshot is given up. */
KELP_TEST(captures_of_partitions_that_left_are_discarded)
{
    const struct kelp_snapshot_order order = {.serial = 9, .generation = GENERATION, .step = 0};
    struct kelp_capture capture = {0};
    struct kelp_error error;
    const uint32_t both[] = {0, 1};

    kelp_shard_snapshot(shard, &order, both, 2, &turn);
    leave();
    kelp_shard_snapshot_discard(shard, 9);
    ck_assert_int_eq(kelp_shard_snapshot_part(shard, 9, 1, &capture, &error), KELP_ERR_NOT_FOUND);
}

/* One that comes serves nobody before it has a state; the others go on. */
KELP_TEST(joiners_wait_for_their_state)
{
    const struct kelp_hosting_place places[] = {
        {.partition = 0, .entry = {.map_epoch = 2, .place = KELP_REPLICA_JOINER}, .primary = 77},
        {.partition = 1, .entry = {.map_epoch = 1}}};

    kelp_shard_enter(shard, GENERATION - 1, places, 2, &turn);
    ck_assert_uint_eq(hosted_count(), 1); /* of another generation */
    kelp_shard_enter(shard, GENERATION, places, 2, &turn);
    kelp_shard_enter(shard, GENERATION, places, 2, &turn);
    ck_assert_uint_eq(hosted_count(), 2);
    pull(0, KELP_PULL_CURRENT, 0);
    ck_assert_int_ne(seen.answer.core.status, KELP_OK);
    push(0);
    pull(1, KELP_PULL_CURRENT, 0);
    ck_assert_int_eq(seen.answer.core.status, KELP_OK);
    ck_assert_uint_eq(seen.answer.core.step, 1);
    kelp_shard_enter(shard, GENERATION, &places[1], 1, &turn);
    ck_assert_uint_eq(hosted_count(), 1);
}

/* A map that says that a state is here which never was is an error, not a zero state. */
KELP_TEST(states_are_not_made_up)
{
    const struct kelp_hosting_place places[] = {
        {.partition = 0, .entry = {.map_epoch = 2, .place = KELP_REPLICA_BACKUP}, .primary = 77},
        {.partition = 1, .entry = {.map_epoch = 1}}};

    kelp_shard_enter(shard, GENERATION, places, 2, &turn);
    ck_assert_uint_eq(hosted_count(), 1);
    ck_assert_uint_eq(seen.failed, 1);
    seen.failed = 0;
}

/* A piece for an array that is not there yet is refused, not written anywhere. */
KELP_TEST(copies_begin_at_their_beginning)
{
    static const uint32_t kinds[] = {KELP_REPLICA_OLDER, KELP_REPLICA_SLOT, KELP_REPLICA_SLOT + 9};
    static const float values[ELEMENTS / PARTITIONS] = {1.0f};
    const struct kelp_hosting_place joiner = {
        .partition = 0, .entry = {.map_epoch = 2, .place = KELP_REPLICA_JOINER}, .primary = 77};
    struct kelp_rpc_message *message = kelp_rpc_message_create();

    ck_assert_ptr_nonnull(message);
    ck_assert_int_eq(kelp_rpc_message_copy(message, values, BYTES), KELP_OK);
    const struct kelp_wire_payload payload = {.message = message, .length = BYTES};
    kelp_shard_enter(shard, GENERATION, &joiner, 1, &turn);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        const struct kelp_shard_piece piece = {
            .partition = 0,
            .process = 77,
            .core = {.generation = GENERATION, .map_epoch = 2, .stream = 1},
            .kind = kinds[i],
            .payload = &payload,
            .length = BYTES};
        struct kelp_error error;
        ck_assert_int_eq(kelp_shard_fill(shard, &piece, &turn, &error), KELP_ERR_FORMAT);
    }
    kelp_rpc_message_unref(message);
}

/* A whole copy of partition 1, all of `value`. */
static kelp_status copy_comes(uint64_t stream, uint64_t process, uint64_t map_epoch, float value)
{
    static float values[ELEMENTS / PARTITIONS];
    const struct kelp_replica_state state = {0};
    struct kelp_shard_piece piece = {
        .partition = 1,
        .process = process,
        .core = {.generation = GENERATION, .map_epoch = map_epoch, .stream = stream},
        .length = BYTES};
    const uint32_t kinds[] = {KELP_REPLICA_WEIGHTS, KELP_REPLICA_SLOT, KELP_REPLICA_SLOT + 1};
    struct kelp_rpc_message *message = kelp_rpc_message_create();
    struct kelp_error error;
    kelp_status status = KELP_OK;

    for (size_t i = 0; i < ELEMENTS / PARTITIONS; i++) {
        values[i] = value;
    }
    ck_assert_int_eq(kelp_rpc_message_copy(message, values, BYTES), KELP_OK);
    const struct kelp_wire_payload payload = {.message = message, .length = BYTES};
    piece.payload = &payload;
    for (size_t i = 0; status == KELP_OK && i < KELP_ARRAY_COUNT(kinds); i++) {
        piece.kind = kinds[i];
        status = kelp_shard_fill(shard, &piece, &turn, &error);
    }
    piece.kind = KELP_REPLICA_WEIGHTS;
    piece.length = 0;
    piece.state = &state;
    piece.records = &seen;
    status = status == KELP_OK ? kelp_shard_fill(shard, &piece, &turn, &error) : status;
    kelp_rpc_message_unref(message);
    return status;
}

/* What goes with a copy counts only once the copy does: from the primary, in this epoch. */
KELP_TEST(records_of_a_copy_come_with_its_end)
{
    const struct kelp_hosting_place joiner = {
        .partition = 1, .entry = {.map_epoch = 2, .place = KELP_REPLICA_JOINER}, .primary = 77};

    leave();
    kelp_shard_enter(shard, GENERATION, &joiner, 1, &turn);
    ck_assert_int_eq(copy_comes(1, 78, 2, 0.5f), KELP_OK); /* of somebody else */
    ck_assert_int_eq(copy_comes(1, 77, 1, 0.5f), KELP_OK); /* of an older epoch */
    ck_assert_uint_eq(seen.copied, 0);
    ck_assert_int_eq(copy_comes(1, 77, 2, 0.5f), KELP_OK);
    ck_assert_uint_eq(seen.copied, 1);
    ck_assert(seen.said.holds);
    ck_assert_int_eq(copy_comes(1, 77, 2, 0.75f), KELP_OK); /* again: it has as much already */
    ck_assert_uint_eq(seen.copied, 1);
}

static void link_to_backup(uint64_t serial, bool is_up)
{
    const struct kelp_shard_link link = {
        .kind = KELP_REPLICA_LINK_FOLLOWER, .process = 77, .serial = serial};

    kelp_shard_linked(shard, &link, is_up, &turn);
}

/* A link to the same process came up before the end of the one before it was noticed, or even its
 * beginning. */
KELP_TEST(ends_of_older_links_change_nothing)
{
    const struct kelp_hosting_place followed = {
        .partition = 1, .entry = {.map_epoch = 2, .place = KELP_REPLICA_PRIMARY, .backup = 77}};
    const struct kelp_hosting_place again = {
        .partition = 1, .entry = {.map_epoch = 3, .place = KELP_REPLICA_PRIMARY, .backup = 77}};
    const struct kelp_acknowledgement level = {
        .process = 77, .generation = GENERATION, .map_epoch = 2, .holds = true};
    struct kelp_shard_replica replica;

    kelp_shard_enter(shard, GENERATION, &followed, 1, &turn);
    seen.asked = 0;
    link_to_backup(1, true);
    link_to_backup(3, true);
    ck_assert_uint_eq(seen.asked, 2);
    kelp_shard_acknowledged(shard, 1, &level, &turn);
    link_to_backup(1, false);
    link_to_backup(2, true);
    link_to_backup(2, false);
    ck_assert_uint_eq(seen.asked, 2);
    push_at(2, 0); /* its root is sent: the link is not taken for broken */
    ck_assert_uint_eq(seen.forwards, 1);
    ck_assert_uint_eq(kelp_shard_replicas(shard, &replica, 1), 1);
    ck_assert(replica.view.backup_in_sync);
    link_to_backup(3, false);
    link_to_backup(3, true);
    ck_assert_uint_eq(seen.asked, 3);
    kelp_shard_enter(shard, GENERATION, &again, 1, &turn);
    ck_assert_uint_eq(seen.asked, 4);
}
