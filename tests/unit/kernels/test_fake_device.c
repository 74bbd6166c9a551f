/*
 * The fake device (tests/lib/fake/fake_device.h): it gives the CPU's bits to whoever keeps to the
 * device interface, and finds each mistake that a GPU would forgive now and then.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/cuda/operator_faults.h"
#include "tests/lib/fake/fake_device.h"
#include "tests/lib/models/channels_last.h"
#include "tests/lib/suite.h"

#define SEEDS 20 /* 0: nothing runs before its wait() */
#define COUNT 8u

static struct case_devices devices;
static struct kelp_device *fake;
static struct kelp_stream *stream, *other;
static const struct kelp_device_table *table;
static float *x, *y; /* on the device, float32[COUNT] */

static float *allocate(void)
{
    struct kelp_error error = {KELP_OK, ""};
    void *memory = NULL;
    ck_assert_msg(table->alloc(fake, COUNT * sizeof(float), &memory, &error) == KELP_OK, "%s",
                  error.text);
    return memory;
}

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(fake_device_create(&fake, &error) == KELP_OK, "%s", error.text);
    table = fake->table;
    ck_assert_int_eq(table->stream_create(fake, &stream, &error), KELP_OK);
    ck_assert_int_eq(table->stream_create(fake, &other, &error), KELP_OK);
    x = allocate();
    y = allocate();
    devices = (struct case_devices){.other = fake, .other_stream = stream};
    ck_assert_int_eq(channels_last_cpu_create(&devices.cpu, &error), KELP_OK);
    ck_assert_int_eq(devices.cpu->table->stream_create(devices.cpu, &devices.cpu_stream, &error),
                     KELP_OK);
}

static void teardown(void)
{
    devices.cpu->table->stream_destroy(devices.cpu_stream);
    devices.cpu->table->destroy(devices.cpu);
    table->stream_destroy(stream);
    table->stream_destroy(other);
    table->free(fake, x);
    table->free(fake, y);
    table->destroy(fake);
}

static void expect_ok(struct kelp_stream *on)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(table->wait(on, &error) == KELP_OK, "%s", error.text);
}

/* wait() finds it, and says each of the words; the stream goes on. */
static void expect_found_on(struct kelp_stream *on, const char *what, const char *why)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(table->wait(on, &error), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, what) && strstr(error.text, why),
                  "'%s' says neither '%s' nor "
                  "'%s'",
                  error.text, what, why);
    ck_assert_msg(strstr(error.text, " at test_fake_device+0x") != NULL, "%s", error.text);
    expect_ok(on);
}

static void expect_found(const char *what, const char *why)
{
    expect_found_on(stream, what, why);
}

static bool is_poison(const float *values)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        if (!isnan(values[i])) {
            return false;
        }
    }
    return true;
}

KELP_CASE("same_bits", .timeout_s = 120, .setup = setup, .teardown = teardown)

/* Each run of a case is in another order. */
static void draw_order(void *user, uint32_t run)
{
    const uint64_t *seed = user;
    fake_device_seed(*seed + run);
}

#define GROUP(group) cases_##group,
static void (*const groups[])(struct operator_cases *cases, bool large) = {OPERATOR_GROUPS(GROUP)};

/* Every operator, also those whose cases have a tolerance on GPUs. */
KELP_LOOP_TEST(operators, 0, KELP_ARRAY_COUNT(groups))
{
    struct operator_cases cases;
    uint64_t order = 0;
    double worst = 0.0;
    devices.before_run = draw_order;
    devices.user = &order;
    devices.worst = &worst;
    operator_cases_init(&cases, (uint64_t)_i);
    groups[_i](&cases, false);
    ck_assert_uint_gt(cases.count, 0);
    for (uint32_t i = 0; i < cases.count; i++) {
        struct kelp_error error = {KELP_OK, ""};
        ck_assert_msg(operator_case_check(&cases.cases[i], &devices, (uint64_t)_i, SEEDS, &error) ==
                          KELP_OK,
                      "%s", error.text);
        ck_assert_msg(worst == 0.0, "%s differs", cases.cases[i].name);
    }
    operator_cases_fini(&cases);
}

KELP_LOOP_TEST(bad_ids_and_classes, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    fake_device_seed((uint64_t)_i);
    ck_assert_msg(operator_faults_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(too_large_an_allocation)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_memory_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_LOOP_TEST(marks, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    fake_device_seed((uint64_t)_i);
    ck_assert_msg(operator_marks_check(&devices, &error) == KELP_OK, "%s", error.text);
    devices.other = devices.cpu; /* whose streams are always done */
    devices.other_stream = devices.cpu_stream;
    ck_assert_msg(operator_marks_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_LOOP_TEST(streams_after_each_other, 0, SEEDS)
{
    struct kelp_error error = {KELP_OK, ""};
    fake_device_seed((uint64_t)_i);
    ck_assert_msg(operator_after_check(&devices, &error) == KELP_OK, "%s", error.text);
    devices.other = devices.cpu;
    devices.other_stream = devices.cpu_stream;
    ck_assert_msg(operator_after_check(&devices, &error) == KELP_OK, "%s", error.text);
}

/* The answer is the CPU's, where that takes both layouts, too; the kind is not: a job does not mix
 * them. */
KELP_LOOP_TEST(the_known_answer, 0, SEEDS)
{
    char cpu_text[KELP_COMPUTE_KIND_SIZE], text[KELP_COMPUTE_KIND_SIZE];
    char expected[2 * KELP_COMPUTE_KIND_SIZE];
    uint64_t cpu_answer = 0, answer = 0;
    struct kelp_error error = {KELP_OK, ""};
    fake_device_seed((uint64_t)_i);
    ck_assert_int_eq(kelp_compute_kind(devices.cpu, cpu_text, &cpu_answer, &error), KELP_OK);
    ck_assert_msg(kelp_compute_kind(fake, text, &answer, &error) == KELP_OK, "%s", error.text);
    ck_assert_uint_eq(answer, cpu_answer);
    (void)snprintf(expected, sizeof(expected), "fake seed=%d recordings=1 %s", _i, cpu_text);
    ck_assert_str_eq(text, expected);
}

KELP_CASE("memory", .timeout_s = 30, .setup = setup, .teardown = teardown)

/* Neither the host nor the kernel for it reads device memory. */
KELP_TEST(the_host_cannot_read_it)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], x, sizeof(float)), -1);
    ck_assert_int_eq(errno, EFAULT);
    (void)close(ends[0]);
    (void)close(ends[1]);
    const pid_t child = fork();
    if (child == 0) {
        (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO); /* a sanitizer's report */
        (void)*(volatile float *)x;
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(!WIFEXITED(status) || WEXITSTATUS(status) != 0, "it read the memory");
}

KELP_TEST(it_begins_as_no_number)
{
    float values[COUNT] = {0.0f};
    table->copy_out(stream, values, x, sizeof(values));
    expect_ok(stream);
    ck_assert(is_poison(values));
}

/* Freed memory is found by whatever runs after that, and its address is not used again. */
KELP_TEST(it_was_freed)
{
    float *freed = allocate();
    table->fill(stream, freed, 1.0f, COUNT);
    table->free(fake, freed);
    expect_found("fill", "y 0x");
    float *next = allocate();
    ck_assert_ptr_ne(next, freed);
    table->add(stream, next, x, freed, COUNT);
    expect_found("add", "is memory that was freed");
    table->free(fake, next);
}

KELP_TEST(a_copy_beyond_an_allocation)
{
    float values[COUNT + 1] = {0.0f};
    table->copy_in(stream, x, values, sizeof(values));
    expect_found("copy_in", "is not within an allocation of the device");
    table->copy_out(stream, values, x + 1, COUNT * sizeof(float));
    expect_found("copy_out", "is not within an allocation of the device");
}

KELP_CASE("host_pointers", .timeout_s = 30, .setup = setup, .teardown = teardown)

KELP_TEST(of_an_operator)
{
    float host[COUNT] = {0.0f};
    const struct kelp_bias bias = {
        .matrix = x, .ld = COUNT, .rows = 1, .columns = COUNT, .bias = host};
    const struct kelp_unary unary = {.x = host, .y = x, .count = COUNT};
    const struct kelp_matmul matmul = {
        .m = 1, .n = 1, .k = 1, .a = x, .lda = 1, .b = y, .ldb = 1, .c = host, .ldc = 1};
    const uint64_t seed_step[2] = {1, 2};
    const struct kelp_dropout dropout = {.x = x,
                                         .y = x,
                                         .samples = 1,
                                         .elements = COUNT,
                                         .seed_step = seed_step,
                                         .positions = (const uint32_t *)(const void *)y};
    double sums[KELP_LOSS_SUMS];
    const struct kelp_criterion criterion = {.output = x,
                                             .target = y,
                                             .samples = 1,
                                             .elements = COUNT,
                                             .target_elements = COUNT,
                                             .sums = sums};
    table->fill(stream, host, 1.0f, COUNT);
    expect_found("fill", "y 0x");
    table->axpy(stream, x, 1.0f, host, COUNT);
    expect_found("axpy", "a 0x");
    table->bias_add(stream, &bias);
    expect_found("bias_add", "bias 0x");
    table->unary(stream, &unary);
    expect_found("unary", "x 0x");
    table->matmul(stream, &matmul);
    expect_found("matmul", "c 0x");
    table->dropout(stream, &dropout);
    expect_found("dropout", "seed_step 0x");
    table->criterion(stream, &criterion);
    expect_found("criterion", "is memory of the host");
}

KELP_TEST(of_a_convolution)
{
    struct kelp_error error = {KELP_OK, ""};
    const struct kelp_conv2d_shape shape = {.window = {.channels = 1,
                                                       .input = {2, 2},
                                                       .kernel = {1, 1},
                                                       .stride = {1, 1},
                                                       .output = {2, 2}},
                                            .channels_out = 1,
                                            .groups = 1,
                                            .samples_max = 1};
    struct kelp_conv2d_run run = {.samples = 1, .x = x, .weight = y, .y = x};
    float bias = 0.0f;
    ck_assert_msg(table->conv2d_create(fake, &shape, &run.conv, &error) == KELP_OK, "%s",
                  error.text);
    run.bias = &bias;
    table->conv2d(stream, &run);
    expect_found("conv2d", "bias 0x");
    table->conv2d_destroy(run.conv);
}

KELP_TEST(of_a_copy)
{
    float host[COUNT] = {0.0f}, values[COUNT] = {0.0f};
    table->copy_in(stream, host, values, 0); /* nothing to do */
    expect_ok(stream);
    table->copy_out(stream, values, host, sizeof(values));
    expect_found("copy_out", "is memory of the host");
    ck_assert(is_poison(values));
}

/* What is wrong is left out; what comes before and after it is done. */
KELP_TEST(between_operators)
{
    float host = 0.0f, values[COUNT];
    struct kelp_error error = {KELP_OK, ""};
    table->fill(stream, x, 1.0f, COUNT);
    table->axpy(stream, x, 1.0f, &host, 1);
    table->axpy(stream, x, 1.0f, x, 1);
    table->fill(stream, &host, 1.0f, 1);
    table->copy_out(stream, values, x, sizeof(values));
    ck_assert_int_eq(table->wait(stream, &error), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "axpy at ") != NULL, "%s", error.text); /* the first */
    ck_assert(values[0] == 2.0f && values[1] == 1.0f && host == 0.0f);
}

KELP_CASE("waiting", .timeout_s = 30, .setup = setup, .teardown = teardown)

/* However early the copy runs. */
KELP_LOOP_TEST(a_result_is_not_there_before, 0, SEEDS)
{
    float values[COUNT] = {0.0f};
    fake_device_seed((uint64_t)_i);
    table->fill(stream, x, 3.0f, COUNT);
    table->copy_out(stream, values, x, sizeof(values));
    for (int i = 0; i < 100; i++) {
        table->fill(stream, x, 4.0f, COUNT);
        ck_assert(is_poison(values));
    }
    expect_ok(stream);
    ck_assert(values[0] == 3.0f && values[COUNT - 1] == 3.0f);
}

/* Before the copy runs, or after that. */
KELP_LOOP_TEST(a_source_changed_before, 0, SEEDS)
{
    float first[COUNT] = {1.0f}, second[COUNT] = {2.0f};
    char what[64];
    fake_device_seed((uint64_t)_i);
    table->copy_in(stream, x, first, sizeof(first));
    table->copy_in(stream, y, second, sizeof(second));
    for (int i = 0; i < 100; i++) {
        table->fill(stream, x, 4.0f, COUNT);
    }
    second[COUNT - 1] = 5.0f;
    (void)snprintf(what, sizeof(what), "its source, %zu bytes at %p,", sizeof(second),
                   (void *)second);
    expect_found("copy_in", what);
    second[COUNT - 1] = 6.0f; /* wait() returned: it is the host's again */
    expect_ok(stream);
}

KELP_LOOP_TEST(a_target_changed_before, 0, SEEDS)
{
    float values[COUNT];
    fake_device_seed((uint64_t)_i);
    table->fill(stream, x, 1.0f, COUNT);
    table->copy_out(stream, values, x, sizeof(values));
    values[1] = 2.0f;
    expect_found("copy_out", "changed before wait()");
}

/* What was queued before a mark that was waited for is the host's again, what came after it is
 * not. */
KELP_LOOP_TEST(a_mark, 0, SEEDS)
{
    float before[COUNT] = {1.0f}, after[COUNT] = {2.0f}, results[2][COUNT];
    fake_device_seed((uint64_t)_i);
    table->copy_in(stream, x, before, sizeof(before));
    table->copy_out(stream, results[0], x, sizeof(results[0]));
    const uint64_t mark = table->mark(stream);
    table->copy_in(stream, x, after, sizeof(after));
    table->copy_out(stream, results[1], x, sizeof(results[1]));
    ck_assert(is_poison(results[0]));
    ck_assert(table->wait_mark(stream, mark));
    ck_assert(results[0][0] == 1.0f && is_poison(results[1]));
    before[0] = 3.0f;
    ck_assert(table->wait_mark(stream, mark));
    after[0] = 4.0f;
    ck_assert(!table->wait_mark(stream, table->mark(stream)));
    expect_found("copy_in", "changed before wait()");
}

/* Of several streams without a wait() between them: true if the second one had its turn. */
static bool overtakes(uint64_t seed)
{
    float values[COUNT] = {0.0f};
    fake_device_seed(seed);
    table->fill(stream, x, 1.0f, COUNT);
    expect_ok(stream);
    for (int i = 0; i < 10; i++) {
        table->fill(stream, y, 1.0f, COUNT);
    }
    table->fill(stream, x, 2.0f, COUNT);
    table->copy_out(other, values, x, sizeof(values));
    expect_found_on(other, "copy_out", "is of fill on another stream too");
    expect_ok(stream);
    ck_assert(values[0] == 1.0f || values[0] == 2.0f);
    return values[0] == 1.0f;
}

/* Streams do not wait for each other. Which of them comes first is the seed's to say, and the same
 * for the same seed; that it was left to it is found each time. */
KELP_TEST(for_another_stream)
{
    uint32_t first = 0;
    ck_assert(overtakes(0));
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const bool overtook = overtakes(seed);
        first += overtook;
        for (int again = 0; again < 3; again++) {
            ck_assert_int_eq(overtakes(seed), overtook);
        }
    }
    ck_assert_uint_gt(first, 0);
    ck_assert_uint_lt(first, SEEDS);
}

/* What comes after a mark of another stream finds what that one did. */
KELP_LOOP_TEST(after_another_stream, 0, SEEDS)
{
    float values[COUNT], results[COUNT];
    fake_device_seed((uint64_t)_i);
    for (uint32_t i = 0; i < 50; i++) {
        values[0] = (float)i;
        table->copy_in(other, x, values, sizeof(values));
        table->after(stream, other, table->mark(other));
        table->add(stream, y, x, x, COUNT);
        table->after(other, stream, table->mark(stream));
        table->copy_in(other, x, results, 0);
        table->copy_out(other, results, y, sizeof(results));
        expect_ok(other);
        ck_assert(results[0] == 2.0f * (float)i);
        expect_ok(stream);
    }
}

/* A mark waits for what came before it alone, so a later write is at odds; and what is read is not
 * to be written either. */
KELP_LOOP_TEST(after_too_early_a_mark, 0, SEEDS)
{
    float values[COUNT] = {1.0f};
    fake_device_seed((uint64_t)_i);
    const uint64_t early = table->mark(other);
    table->copy_in(other, x, values, sizeof(values));
    table->after(stream, other, early);
    table->add(stream, y, x, x, COUNT);
    expect_found("add", "a 0x");
    expect_ok(other);
    table->add(stream, y, x, x, COUNT);
    table->copy_in(other, x, values, sizeof(values));
    expect_found_on(other, "copy_in", "is of add on another stream too");
    expect_ok(stream);
    table->copy_out(stream, values, y, sizeof(values)); /* two that read */
    table->unary(other, &(struct kelp_unary){.x = y, .y = x, .count = COUNT});
    expect_ok(other);
    expect_ok(stream);
}

/* A stream that goes is done. */
KELP_LOOP_TEST(after_a_stream_that_is_gone, 0, SEEDS)
{
    float values[COUNT];
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_stream *third = NULL;
    fake_device_seed((uint64_t)_i);
    ck_assert_int_eq(table->stream_create(fake, &third, &error), KELP_OK);
    table->fill(third, x, 1.0f, COUNT);
    table->after(stream, third, table->mark(third));
    table->stream_destroy(third);
    table->copy_out(stream, values, x, sizeof(values));
    expect_ok(stream);
    ck_assert(values[0] == 1.0f);
}

/* A stream that was waited for is done, whichever stream goes on with it. */
KELP_LOOP_TEST(streams_in_turn, 0, SEEDS)
{
    float values[COUNT] = {0.0f}, results[COUNT];
    fake_device_seed((uint64_t)_i);
    for (uint32_t i = 0; i < 50; i++) {
        struct kelp_stream *here = i % 2 == 0 ? stream : other;
        values[0] = (float)i;
        table->copy_in(here, x, values, sizeof(values));
        table->add(here, y, x, x, COUNT);
        table->copy_out(here, results, y, sizeof(results));
        expect_ok(here);
        ck_assert(results[0] == 2.0f * (float)i);
    }
}

KELP_CASE("recordings", .timeout_s = 30, .setup = setup, .teardown = teardown)

/* x += 1, y = 2 x. */
static struct kelp_recording *record(void)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = NULL;
    table->record_begin(stream);
    table->axpy(stream, x, 1.0f, y, COUNT);
    table->fill(stream, y, 1.0f, COUNT);
    ck_assert_int_eq(table->record_end(stream, &recording, &error), KELP_OK);
    return recording;
}

/* Nothing runs while it is recorded; each replay runs all of it, on what memory holds then. */
KELP_LOOP_TEST(replays, 0, SEEDS)
{
    float values[COUNT] = {3.0f}, results[COUNT];
    fake_device_seed((uint64_t)_i);
    struct kelp_recording *recording = record();
    table->copy_in(stream, x, values, sizeof(values));
    table->copy_in(stream, y, values, sizeof(values));
    for (uint32_t i = 0; i < 3; i++) {
        table->replay(stream, recording);
    }
    table->copy_out(stream, results, x, sizeof(results));
    expect_ok(stream);
    ck_assert(results[0] == 3.0f + 3.0f + 1.0f + 1.0f && results[1] == 2.0f);
    table->recording_destroy(recording);
    table->recording_destroy(NULL);
}

KELP_TEST(memory_that_was_freed_since)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = record();
    table->free(fake, y);
    y = NULL;
    table->replay(stream, recording);
    expect_found("axpy", "is memory that was freed");
    void *larger = NULL; /* another size is another place */
    ck_assert_int_eq(table->alloc(fake, 2 * COUNT * sizeof(float), &larger, &error), KELP_OK);
    table->replay(stream, recording);
    expect_found("axpy", "is memory that was freed");
    table->free(fake, larger);
    table->recording_destroy(recording);
}

KELP_TEST(of_anything_but_operators)
{
    float values[COUNT] = {0.0f};
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = NULL;
    table->record_begin(stream);
    table->copy_in(stream, x, values, sizeof(values));
    ck_assert_int_eq(table->record_end(stream, &recording, &error), KELP_OK);
    expect_found("copy_in", "operators alone are recorded");
    table->recording_destroy(recording);
    static const char *const calls[] = {"mark", "wait", "record_begin"};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(calls); i++) {
        table->record_begin(stream);
        if (i == 0) {
            (void)table->mark(stream);
        } else if (i == 1) {
            ck_assert_int_eq(table->wait(stream, &error), KELP_ERR_DEVICE);
        } else {
            table->record_begin(stream);
        }
        ck_assert_int_eq(table->record_end(stream, &recording, &error), KELP_OK);
        table->recording_destroy(recording);
        if (i != 1) {
            ck_assert_int_eq(table->wait(stream, &error), KELP_ERR_DEVICE);
        }
        ck_assert_msg(strstr(error.text, calls[i]) != NULL, "%s", error.text);
    }
}

KELP_TEST(of_another_stream)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = record();
    table->replay(other, recording);
    ck_assert_int_eq(table->wait(other, &error), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "another stream") != NULL, "%s", error.text);
    table->recording_destroy(recording);
}

KELP_TEST(that_go_too_early)
{
    struct kelp_error error = {KELP_OK, ""};
    struct kelp_recording *recording = record();
    table->replay(stream, recording);
    table->recording_destroy(recording);
    ck_assert_int_eq(table->wait(stream, &error), KELP_ERR_DEVICE);
    ck_assert_msg(strstr(error.text, "recording_destroy") != NULL, "%s", error.text);
}

KELP_CASE("ends", .timeout_s = 30, .setup = setup, .teardown = teardown)

/* A mistake that nobody waited for is not lost. */
KELP_ABORT_TEST(a_stream_that_nobody_waits_for)
{
    float values[COUNT] = {0.0f};
    (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    table->copy_in(stream, x, values, sizeof(values));
    values[0] = 1.0f;
    table->stream_destroy(stream);
}
