#include "tests/lib/lone_shard.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"

#define SAMPLES_A_STEP 4

struct lone_shard lone_shard;
static struct kelp_shard_turn turn;

static void on_answer(const struct kelp_shard_answer *answer, void *user_turn, void *user)
{
    (void)user_turn, (void)user;
    lone_shard.errors += answer->core.status != KELP_OK ? 1 : 0;
    lone_shard.answers++;
    if (answer->core.send != KELP_WEIGHTS_NONE && answer->bytes == sizeof(lone_shard.weights)) {
        memcpy(lone_shard.weights, answer->weights, sizeof(lone_shard.weights));
        lone_shard.step = answer->core.step;
    }
    if (answer->core.has_word) {
        lone_shard.word = answer->core.word;
    }
    if (answer->lent) {
        kelp_extent_return(&answer->loan);
    }
}

static void on_refused(uint32_t partition, const struct kelp_refusal *refusal, void *user_turn,
                       void *user)
{
    (void)partition, (void)refusal, (void)user_turn, (void)user;
    lone_shard.refusals++;
}

static void on_record(const struct kelp_record *record, const struct kelp_control_word *word,
                      const struct kelp_best *best, void *user)
{
    (void)record, (void)word, (void)best, (void)user;
}

static void on_worked(const struct kelp_shard_work *work, void *user)
{
    (void)work, (void)user;
}

static void on_stepped(uint32_t partition, uint64_t since_us, void *user)
{
    (void)partition, (void)since_us, (void)user;
}

static void on_conflict(uint32_t partition, const struct kelp_conflict *conflict, void *user)
{
    (void)partition, (void)user;
    lone_shard.conflicts++;
    lone_shard.conflict = *conflict;
}

static void on_failed(uint32_t partition, kelp_status status, const char *text, void *user)
{
    (void)partition, (void)status, (void)text, (void)user;
    lone_shard.failures++;
}

static const struct kelp_shard_events events = {.answer = on_answer,
                                                .refused = on_refused,
                                                .record = on_record,
                                                .worked = on_worked,
                                                .stepped = on_stepped,
                                                .conflict = on_conflict,
                                                .failed = on_failed};

void lone_shard_init(void)
{
    memset(&lone_shard, 0, sizeof(lone_shard));
    lone_shard.job = (struct kelp_job){.train = {.optimizer = KELP_OPTIMIZER_ADAM,
                                                 .lr = 0.05,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.999,
                                                 .epochs = 100,
                                                 .batch_size = SAMPLES_A_STEP},
                                       .metrics = {.every = 100},
                                       .cluster = {.lanes = 2}};
}

void lone_shard_open(void)
{
    struct kelp_hosting *hosting = NULL;
    const struct kelp_hosting_place place = {.partition = 0, .entry = {.map_epoch = 1}};
    struct kelp_plan *plan = &lone_shard.plan;

    *plan = (struct kelp_plan){.tensor_count = 1, .samples = {[KELP_SPLIT_TRAIN] = 4000}};
    plan->tensors = calloc(1, sizeof(*plan->tensors));
    ck_assert_ptr_nonnull(plan->tensors);
    plan->tensors[0] = (struct kelp_tensor){.name = "w",
                                            .rank = 1,
                                            .shape = {LONE_SHARD_ELEMENTS},
                                            .init = KELP_INIT_CONSTANT,
                                            .init_a = 0.25f,
                                            .decays = true};
    ck_assert_int_eq(kelp_plan_lay_out(plan, 1, NULL), KELP_OK);
    ck_assert_uint_eq(plan->partition_count, 1);
    ck_assert_int_eq(kelp_shard_create(&lone_shard.job, &events, NULL, &lone_shard.shard, NULL),
                     KELP_OK);
    const struct kelp_hosting_config config = {.job = &lone_shard.job,
                                               .plan = plan,
                                               .generation = LONE_SHARD_GENERATION,
                                               .places = &place,
                                               .place_count = 1};
    ck_assert_int_eq(kelp_hosting_prepare(&config, &hosting, NULL), KELP_OK);
    kelp_shard_install(lone_shard.shard, hosting, &turn);
    lone_shard_pull();
}

void lone_shard_close(void)
{
    kelp_shard_destroy(lone_shard.shard);
    kelp_shard_turn_fini(&turn);
    turn = (struct kelp_shard_turn){0};
    kelp_plan_fini(&lone_shard.plan);
}

struct kelp_rpc_message *lone_shard_message(const float *values, uint32_t pieces)
{
    const size_t bytes = LONE_SHARD_ELEMENTS * sizeof(*values);
    struct kelp_rpc_message *message = kelp_rpc_message_create();
    const size_t piece = bytes / pieces + 1; /* pieces end within a float */

    ck_assert_ptr_nonnull(message);
    for (size_t at = 0; at < bytes; at += piece) {
        const size_t length = bytes - at < piece ? bytes - at : piece;
        /* Each piece has its own memory, as if it came from a socket. */
        char *copy = malloc(length);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, (const char *)values + at, length);
        ck_assert_int_eq(kelp_rpc_message_borrow(message, copy, length, free, copy), KELP_OK);
    }
    return message;
}

void lone_shard_push(uint32_t author, const struct kelp_control_word *word, uint32_t lane_first,
                     uint32_t lane_count, struct kelp_rpc_message *message)
{
    const size_t bytes = LONE_SHARD_ELEMENTS * sizeof(float);
    const struct kelp_wire_payload payload = {.message = message, .length = bytes};
    double sums[KELP_METRIC_SUM_COUNT] = {0};

    sums[KELP_METRIC_SUM_SAMPLES] = SAMPLES_A_STEP / 2 * lane_count;
    const struct kelp_shard_push push = {.push = {.requester = author,
                                                  .author = author,
                                                  .generation = LONE_SHARD_GENERATION,
                                                  .map_epoch = 1,
                                                  .word = word,
                                                  .lane_first = lane_first,
                                                  .lane_count = lane_count,
                                                  .sums = sums,
                                                  .sum_count = KELP_METRIC_SUM_SAMPLES + 1,
                                                  .digest = "00000000000000000000000000000000"},
                                         .payload = &payload,
                                         .length = bytes};
    lone_shard.errors += kelp_shard_push(lone_shard.shard, &push, &turn, NULL) != KELP_OK ? 1 : 0;
}

void lone_shard_pull(void)
{
    const struct kelp_pull pull = {.requester = 1,
                                   .generation = LONE_SHARD_GENERATION,
                                   .map_epoch = 1,
                                   .mode = KELP_PULL_CURRENT};

    lone_shard.errors +=
        kelp_shard_pull(lone_shard.shard, 0, &pull, &turn, NULL) != KELP_OK ? 1 : 0;
}

void lone_shard_values(uint32_t stream, float values[LONE_SHARD_ELEMENTS])
{
    for (uint32_t i = 0; i < LONE_SHARD_ELEMENTS; i++) {
        uint32_t words[4];
        kelp_philox(7, KELP_PHILOX_TEST, stream, i, words);
        values[i] = kelp_philox_float(words[0]) - 0.5f;
    }
}
