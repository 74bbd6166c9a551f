#include "tests/lib/cuda/operator_faults.h"

#include <math.h>
#include <string.h>

#define ROWS      4u
#define CLASSES   5u /* or rows of the table */
#define WIDTH     3u
#define TOLERANCE 1e-5

/* All that an operator reads and writes, as floats of one piece of memory. */
enum place {
    AT_IDS = 0,        /* or classes, [ROWS] */
    AT_VALUES = 8,     /* what is computed from, [ROWS * CLASSES] at most */
    AT_SCALE = 30,     /* of the gradient */
    AT_RESULT = 32,    /* [ROWS * CLASSES] at most */
    AT_WORKSPACE = 64, /* [ROWS * CLASSES] */
    AT_SUMS = 96,      /* float64[ROWS * KELP_LOSS_SUMS] */
    PLACES = AT_SUMS + ROWS * KELP_LOSS_SUMS * 2
};

static void run_embedding(struct kelp_stream *stream, float *memory)
{
    const struct kelp_embedding embedding = {.ids = memory + AT_IDS,
                                             .ids_stride = 1,
                                             .rows = ROWS,
                                             .vocab = CLASSES,
                                             .width = WIDTH,
                                             .table = memory + AT_VALUES,
                                             .y = memory + AT_RESULT};
    stream->table->embedding(stream, &embedding);
}

static void run_embedding_gradient(struct kelp_stream *stream, float *memory)
{
    const struct kelp_embedding embedding = {.ids = memory + AT_IDS,
                                             .ids_stride = 1,
                                             .rows = ROWS,
                                             .vocab = CLASSES,
                                             .width = WIDTH,
                                             .dy = memory + AT_VALUES,
                                             .dtable = memory + AT_RESULT};
    stream->table->embedding_gradient(stream, &embedding);
}

static void run_class_loss(struct kelp_stream *stream, float *memory, enum kelp_loss_kind kind)
{
    const struct kelp_criterion criterion = {.kind = kind,
                                             .output = memory + AT_VALUES,
                                             .target = memory + AT_IDS,
                                             .samples = ROWS,
                                             .elements = CLASSES,
                                             .target_elements = 1,
                                             .gradient_scale = memory + AT_SCALE,
                                             .gradient = memory + AT_RESULT,
                                             .sums = (double *)(void *)(memory + AT_SUMS),
                                             .workspace = memory + AT_WORKSPACE};
    stream->table->criterion(stream, &criterion);
}

static void run_cross_entropy(struct kelp_stream *stream, float *memory)
{
    run_class_loss(stream, memory, KELP_LOSS_CROSS_ENTROPY);
}

static void run_nll(struct kelp_stream *stream, float *memory)
{
    run_class_loss(stream, memory, KELP_LOSS_NLL);
}

static const struct play {
    const char *name;
    void (*run)(struct kelp_stream *stream, float *memory);
} plays[] = {{"embedding", run_embedding},
             {"embedding_gradient", run_embedding_gradient},
             {"cross_entropy", run_cross_entropy},
             {"nll", run_nll}};

static const float good_ids[ROWS] = {3.0f, 0.0f, 3.0f, 4.0f};

/* Enqueued, or recorded and replayed. */
static kelp_status run_play(struct kelp_stream *stream, const struct play *what, float *memory,
                            struct kelp_recording **recording, struct kelp_error *reterr)
{
    if (!recording) {
        what->run(stream, memory);
        return KELP_OK;
    }
    stream->table->record_begin(stream);
    what->run(stream, memory);
    const kelp_status status = stream->table->record_end(stream, recording, reterr);
    if (status == KELP_OK) {
        stream->table->replay(stream, *recording);
    }
    return status;
}

/* One run: what wait() says is *ret_said, the memory afterwards ret. */
static kelp_status play_once(struct kelp_stream *stream, const struct play *what,
                             const float ids[ROWS], bool recorded, float ret[PLACES],
                             struct kelp_error *ret_said, struct kelp_error *reterr)
{
    struct kelp_device *device = stream->device;
    float values[PLACES];
    void *memory = NULL;
    struct kelp_recording *recording = NULL;
    kelp_status status = device->table->alloc(device, sizeof(values), &memory, reterr);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < PLACES; i++) {
        values[i] = 0.25f * (float)(i % 7) - 0.5f;
    }
    values[AT_SCALE] = 0.25f;
    memcpy(values + AT_IDS, ids, ROWS * sizeof(*ids));
    *ret_said = (struct kelp_error){.status = KELP_OK};
    stream->table->copy_in(stream, memory, values, sizeof(values));
    status = run_play(stream, what, memory, recorded ? &recording : NULL, reterr);
    stream->table->copy_out(stream, ret, memory, PLACES * sizeof(*ret));
    (void)stream->table->wait(stream, ret_said);
    if (recorded) {
        stream->table->recording_destroy(recording);
    }
    device->table->free(device, memory);
    return status;
}

/* As that; where the device records, a replay has the same results, and says the same. */
static kelp_status play(struct kelp_device *device, struct kelp_stream *stream,
                        const struct play *what, const float ids[ROWS], float ret[PLACES],
                        struct kelp_error *ret_said, struct kelp_error *reterr)
{
    float replayed[PLACES];
    struct kelp_error said;
    kelp_status status = play_once(stream, what, ids, false, ret, ret_said, reterr);
    if (status != KELP_OK || !device->table->replay) {
        return status;
    }
    status = play_once(stream, what, ids, true, replayed, &said, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (said.status != ret_said->status ||
        (said.status != KELP_OK && strcmp(said.text, ret_said->text) != 0)) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s replayed: \"%s\", not \"%s\"", what->name,
                         said.text, ret_said->text);
    }
    return said.status == KELP_OK && memcmp(replayed, ret, sizeof(replayed)) != 0
               ? kelp_fail(reterr, KELP_ERR_MISMATCH, "%s replayed has other results", what->name)
               : KELP_OK;
}

static bool near(double wanted, double got)
{
    return fabs(wanted - got) <= TOLERANCE * fmax(1.0, fabs(wanted));
}

static kelp_status compare(const float wanted[PLACES], const float got[PLACES],
                           struct kelp_error *reterr)
{
    double wanted_sums[ROWS * KELP_LOSS_SUMS], got_sums[ROWS * KELP_LOSS_SUMS];
    for (uint32_t i = AT_RESULT; i < AT_RESULT + ROWS * CLASSES; i++) {
        if (!near((double)wanted[i], (double)got[i])) {
            return kelp_fail(reterr, KELP_ERR_MISMATCH, "result %u is %g on the cpu and %g here",
                             i - AT_RESULT, (double)wanted[i], (double)got[i]);
        }
    }
    memcpy(wanted_sums, wanted + AT_SUMS, sizeof(wanted_sums));
    memcpy(got_sums, got + AT_SUMS, sizeof(got_sums));
    for (uint32_t i = 0; i < ROWS * KELP_LOSS_SUMS; i++) {
        if (!near(wanted_sums[i], got_sums[i])) {
            return kelp_fail(reterr, KELP_ERR_MISMATCH, "sum %u is %g on the cpu and %g here", i,
                             wanted_sums[i], got_sums[i]);
        }
    }
    return KELP_OK;
}

/* Good ids: the same results on both. */
static kelp_status check_good(const struct case_devices *devices, const struct play *what,
                              const char *after, struct kelp_error *reterr)
{
    float wanted[PLACES], got[PLACES];
    struct kelp_error cpu, other;
    kelp_status status =
        play(devices->cpu, devices->cpu_stream, what, good_ids, wanted, &cpu, reterr);
    if (status == KELP_OK) {
        status = play(devices->other, devices->other_stream, what, good_ids, got, &other, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (cpu.status != KELP_OK || other.status != KELP_OK) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s after %s: \"%s\" on the cpu, \"%s\" here",
                         what->name, after, cpu.text, other.text);
    }
    status = compare(wanted, got, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s after %s", what->name, after);
    }
    return status;
}

/* ---- ids and classes ---- */

/* One bad id: the CPU's words, which are ret_words. */
static kelp_status check_bad(const struct case_devices *devices, const struct play *what,
                             uint32_t row, float bad, struct kelp_error *ret_words,
                             struct kelp_error *reterr)
{
    float ids[ROWS], results[PLACES];
    struct kelp_error other;
    memcpy(ids, good_ids, sizeof(ids));
    ids[row] = bad;
    kelp_status status =
        play(devices->cpu, devices->cpu_stream, what, ids, results, ret_words, reterr);
    if (status == KELP_OK) {
        status = play(devices->other, devices->other_stream, what, ids, results, &other, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (other.status != KELP_ERR_INVALID || ret_words->status != KELP_ERR_INVALID ||
        strcmp(ret_words->text, other.text) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s of %g: the cpu says %s \"%s\", and here it is %s \"%s\"", what->name,
                         (double)bad, kelp_status_name(ret_words->status), ret_words->text,
                         kelp_status_name(other.status), other.text);
    }
    status = devices->other_stream->table->wait(devices->other_stream, &other);
    return status == KELP_OK ? KELP_OK
                             : kelp_fail(reterr, KELP_ERR_MISMATCH, "%s of %g: said twice: \"%s\"",
                                         what->name, (double)bad, other.text);
}

/* Two bad ids: the first one's words. */
static kelp_status check_two(const struct case_devices *devices, const struct play *what,
                             struct kelp_error *reterr)
{
    const float ids[ROWS] = {0.0f, 7.0f, 1.0f, -1.0f};
    float results[PLACES];
    struct kelp_error words, said;
    kelp_status status = check_bad(devices, what, 1, ids[1], &words, reterr);
    if (status == KELP_OK) {
        status = play(devices->other, devices->other_stream, what, ids, results, &said, reterr);
    }
    if (status == KELP_OK && strcmp(words.text, said.text) != 0) {
        return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s of two bad rows: \"%s\", not \"%s\"",
                         what->name, said.text, words.text);
    }
    return status;
}

kelp_status operator_faults_check(const struct case_devices *devices, struct kelp_error *reterr)
{
    static const float bad[] = {(float)CLASSES, -1.0f, 0.5f, 1e10f, INFINITY, NAN};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(plays); i++) {
        const struct play *what = &plays[i];
        kelp_status status = KELP_OK;
        struct kelp_error words;
        for (uint32_t j = 0; j < KELP_ARRAY_COUNT(bad) && status == KELP_OK; j++) {
            status = check_bad(devices, what, j % ROWS, bad[j], &words, reterr);
            if (status == KELP_OK) {
                status = check_good(devices, what, "a bad row", reterr);
            }
        }
        if (status == KELP_OK) {
            status = check_two(devices, what, reterr);
        }
        if (status == KELP_OK) {
            status = check_good(devices, what, "two bad rows", reterr);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* ---- memory ---- */

/* Of both kinds of memory, also where the sizes are odd. */
static kelp_status check_alignment(struct kelp_device *device, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = device->table;
    const uint32_t alignment = table->alignment;
    void *memory[2][4] = {{NULL}};
    kelp_status status = KELP_OK;
    bool aligned = alignment >= KELP_DEVICE_ALIGN && (alignment & (alignment - 1)) == 0;
    for (uint32_t i = 0; i < 4 && status == KELP_OK; i++) {
        status = table->alloc(device, 1 + 77 * i, &memory[0][i], reterr);
        if (status == KELP_OK) {
            status = table->host_alloc(device, 1 + 77 * i, &memory[1][i], reterr);
        }
        aligned = aligned && (uintptr_t)memory[0][i] % alignment == 0 &&
                  (uintptr_t)memory[1][i] % alignment == 0;
    }
    for (uint32_t i = 0; i < 4; i++) {
        table->free(device, memory[0][i]);
        table->host_free(device, memory[1][i]);
    }
    return status != KELP_OK || aligned ? status
                                        : kelp_fail(reterr, KELP_ERR_MISMATCH,
                                                    "memory is not aligned to %u bytes", alignment);
}

kelp_status operator_memory_check(const struct case_devices *devices, struct kelp_error *reterr)
{
    static const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX};
    const kelp_status placed = check_alignment(devices->other, reterr);
    if (placed != KELP_OK) {
        return placed;
    }
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(sizes); i++) {
        void *memory = NULL;
        struct kelp_error said = {KELP_OK, ""};
        const kelp_status status =
            devices->other->table->alloc(devices->other, sizes[i], &memory, &said);
        if (status == KELP_OK) {
            devices->other->table->free(devices->other, memory);
        }
        if (status != KELP_ERR_NO_MEMORY && status != KELP_ERR_DEVICE) {
            return kelp_fail(reterr, KELP_ERR_MISMATCH, "%zu bytes: %s \"%s\"", sizes[i],
                             kelp_status_name(status), said.text);
        }
        if (said.status != status || said.text[0] == '\0') {
            return kelp_fail(reterr, KELP_ERR_MISMATCH, "%zu bytes: refused without a word",
                             sizes[i]);
        }
    }
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(plays) && status == KELP_OK; i++) {
        status = check_good(devices, &plays[i], "too large an allocation", reterr);
    }
    return status;
}

/* ---- marks ---- */

#define MARKS 2500u /* more than a device keeps apart */

/* Row i of `host` is 2 (i + from) once it came back. */
static void enqueue_rows(const struct case_devices *devices, float *memory, float *host,
                         float *results, uint32_t from, uint64_t marks[MARKS])
{
    struct kelp_stream *stream = devices->other_stream;
    for (uint32_t i = 0; i < MARKS; i++) {
        float *row = memory + (size_t)i * WIDTH;
        for (uint32_t j = 0; j < WIDTH; j++) {
            host[i * WIDTH + j] = (float)(i + from);
        }
        stream->table->copy_in(stream, row, host + (size_t)i * WIDTH, WIDTH * sizeof(*row));
        stream->table->add(stream, row, row, row, WIDTH);
        stream->table->copy_out(stream, results + (size_t)i * WIDTH, row, WIDTH * sizeof(*row));
        marks[i] = stream->table->mark(stream);
    }
}

static kelp_status check_row(const float *results, uint32_t row, uint32_t from,
                             struct kelp_error *reterr)
{
    for (uint32_t j = 0; j < WIDTH; j++) {
        const float value = results[row * WIDTH + j], wanted = 2.0f * (float)(row + from);
        if (value != wanted) {
            return kelp_fail(reterr, KELP_ERR_MISMATCH, "behind mark %u: %g, not %g", row,
                             (double)value, (double)wanted);
        }
    }
    return KELP_OK;
}

/* Waits for every `stride`th mark, the others are then there too. */
static kelp_status check_marks(const struct case_devices *devices, float *memory, float *host,
                               float *results, uint32_t stride, struct kelp_error *reterr)
{
    struct kelp_stream *stream = devices->other_stream;
    uint64_t marks[MARKS];
    kelp_status status = KELP_OK;
    enqueue_rows(devices, memory, host, results, stride, marks);
    for (uint32_t i = stride - 1; i < MARKS && status == KELP_OK; i += stride) {
        if (!stream->table->wait_mark(stream, marks[i])) {
            return stream->table->wait(stream, reterr);
        }
        for (uint32_t row = i + 1 - stride; row <= i && status == KELP_OK; row++) {
            status = check_row(results, row, stride, reterr);
        }
    }
    if (status == KELP_OK && !stream->table->wait_mark(stream, marks[0])) { /* long ago */
        status = kelp_fail(reterr, KELP_ERR_MISMATCH, "an early mark is not reached");
    }
    const kelp_status waited = stream->table->wait(stream, status == KELP_OK ? reterr : NULL);
    return status == KELP_OK ? waited : status;
}

kelp_status operator_marks_check(const struct case_devices *devices, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = devices->other->table;
    const size_t bytes = (size_t)MARKS * WIDTH * sizeof(float);
    void *memory = NULL, *host = NULL, *results = NULL;
    kelp_status status = table->alloc(devices->other, bytes, &memory, reterr);
    if (status == KELP_OK) {
        status = table->host_alloc(devices->other, bytes, &host, reterr);
    }
    if (status == KELP_OK) {
        status = table->host_alloc(devices->other, bytes, &results, reterr);
    }
    for (uint32_t stride = 1; stride <= MARKS && status == KELP_OK; stride *= 5) {
        status = check_marks(devices, memory, host, results, stride, reterr);
    }
    table->host_free(devices->other, results);
    table->host_free(devices->other, host);
    table->host_free(devices->other, NULL);
    table->free(devices->other, memory);
    return status;
}

/* ---- streams ---- */

#define AFTER_ROUNDS 50u
#define AFTER_COUNT  (1u << 16)

/* Values go in on the second stream, are doubled on the first, and come out on the second. */
static kelp_status check_after(struct kelp_stream *first, struct kelp_stream *second, float *memory,
                               float *host, struct kelp_error *reterr)
{
    const size_t bytes = AFTER_COUNT * sizeof(float);
    float *x = memory, *y = memory + AFTER_COUNT, *results = host + AFTER_COUNT;
    for (uint32_t round = 0; round < AFTER_ROUNDS; round++) {
        for (uint32_t i = 0; i < AFTER_COUNT; i++) {
            host[i] = (float)(i + round);
        }
        second->table->copy_in(second, x, host, bytes);
        first->table->after(first, second, second->table->mark(second));
        first->table->add(first, y, x, x, AFTER_COUNT);
        second->table->after(second, first, first->table->mark(first));
        second->table->copy_out(second, results, y, bytes);
        kelp_status status = second->table->wait(second, reterr);
        for (uint32_t i = 0; i < AFTER_COUNT && status == KELP_OK; i++) {
            if (results[i] != 2.0f * (float)(i + round)) {
                status = kelp_fail(reterr, KELP_ERR_MISMATCH, "after: element %u is %g, not %g", i,
                                   (double)results[i], 2.0 * (double)(i + round));
            }
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return first->table->wait(first, reterr);
}

kelp_status operator_after_check(const struct case_devices *devices, struct kelp_error *reterr)
{
    struct kelp_device *device = devices->other;
    const struct kelp_device_table *table = device->table;
    const size_t bytes = 2 * AFTER_COUNT * sizeof(float);
    struct kelp_stream *second = NULL;
    void *memory = NULL, *host = NULL;
    kelp_status status = table->stream_create(device, &second, reterr);
    if (status == KELP_OK) {
        status = table->alloc(device, bytes, &memory, reterr);
    }
    if (status == KELP_OK) {
        status = table->host_alloc(device, bytes, &host, reterr);
    }
    if (status == KELP_OK) {
        status = check_after(devices->other_stream, second, memory, host, reterr);
    }
    table->host_free(device, host);
    table->stream_destroy(second);
    table->free(device, memory);
    return status;
}
