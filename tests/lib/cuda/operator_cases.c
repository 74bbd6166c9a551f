/*
 * Operators on the CPU and on another device, compared. A buffer is an image of bytes: a guard, the
 * elements, a guard. Images are copied in and out as a whole.
 */
#include "tests/lib/cuda/operator_cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64u /* bytes before and behind the elements */
/* Of the guards, from the lowest byte on: no number as float32, so that reading it shows too. */
static const unsigned char guard_word[4] = {0xa5, 0xa5, 0xa5, 0xff};

/* ---- drawing ---- */

/* splitmix64 */
static uint64_t next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t bits = *state;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return bits ^ (bits >> 31);
}

/* 0 to 1, 1 not included. */
static float next_share(uint64_t *state)
{
    return (float)(next(state) >> 40) * 0x1p-24f;
}

/* Of a buffer: cases of one seed do not all begin with the same values. */
static uint64_t buffer_seed(const struct operator_case *one, uint64_t seed, uint32_t buffer)
{
    uint64_t state = seed * CASE_BUFFERS_MAX + buffer;
    for (const char *letter = one->name; *letter != '\0'; letter++) {
        state = next(&state) ^ (uint64_t)(unsigned char)*letter;
    }
    return state;
}

void operator_cases_init(struct operator_cases *cases, uint64_t seed)
{
    *cases = (struct operator_cases){.seed = seed};
}

void operator_cases_fini(struct operator_cases *cases)
{
    free(cases->cases);
    *cases = (struct operator_cases){.count = 0};
}

uint32_t cases_draw(struct operator_cases *cases, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(next(&cases->seed) % ((uint64_t)high - low + 1));
}

bool cases_flip(struct operator_cases *cases)
{
    return (next(&cases->seed) & 1) != 0;
}

static _Noreturn void give_up(const char *why)
{
    fprintf(stderr, "operator cases: %s\n", why);
    abort();
}

void cases_set_buffer(struct operator_cases *cases, struct case_buffer *buffer, uint64_t count,
                      enum case_content content)
{
    *buffer = (struct case_buffer){.count = count, .content = content};
    buffer->misplaced = cases_flip(cases) ? 0 : cases_draw(cases, 1, 3);
}

enum kelp_write cases_draw_write(struct operator_cases *cases)
{
    return cases_flip(cases) ? KELP_ACCUMULATE : KELP_OVERWRITE;
}

double cases_precision_tolerance(enum kelp_product_precision precision)
{
    return precision == KELP_PRODUCT_BFLOAT16 ? 1e-2 : 1e-3;
}

void cases_set_precision(struct operator_cases *cases, enum kelp_product_precision precision)
{
    for (uint32_t i = 0; precision != KELP_PRODUCT_FLOAT32 && i < cases->count; i++) {
        if (cases->cases[i].tolerance != 0.0) {
            cases->cases[i].tolerance = cases_precision_tolerance(precision);
        }
    }
}

void cases_align(struct operator_cases *cases)
{
    for (uint32_t i = 0; i < cases->count; i++) {
        for (uint32_t j = 0; j < CASE_BUFFERS_MAX; j++) {
            cases->cases[i].buffers[j].misplaced = 0;
        }
    }
}

const char *case_sign(enum kelp_write write)
{
    return write == KELP_ACCUMULATE ? "+=" : "=";
}

struct operator_case *cases_add(struct operator_cases *cases,
                                void (*run)(struct kelp_stream *, void *const *, const void *),
                                const void *arguments, size_t arguments_size, const char *format,
                                ...)
{
    if (cases->count == cases->capacity) {
        const uint32_t capacity = cases->capacity != 0 ? 2 * cases->capacity : 64;
        struct operator_case *larger = realloc(cases->cases, capacity * sizeof(*larger));
        if (!larger) {
            give_up("out of memory");
        }
        cases->cases = larger;
        cases->capacity = capacity;
    }
    struct operator_case *one = &cases->cases[cases->count++];
    memset(one, 0, sizeof(*one));
    one->run = run;
    if (arguments_size > sizeof(one->arguments)) {
        give_up("more arguments than a case has room for");
    }
    if (arguments_size != 0) {
        memcpy(one->arguments, arguments, arguments_size);
    }
    va_list values;
    va_start(values, format);
    (void)vsnprintf(one->name, sizeof(one->name), format, values);
    va_end(values);
    return one;
}

/* ---- images ---- */

static size_t element_size(const struct case_buffer *buffer)
{
    switch (buffer->content) {
    case CASE_NUMBERS:
        return sizeof(uint32_t);
    case CASE_DOUBLES:
        return sizeof(double);
    default:
        return sizeof(float);
    }
}

/* Where the elements begin, and where they end. */
static size_t image_begin(const struct case_buffer *buffer)
{
    return GUARD + buffer->misplaced * element_size(buffer);
}

static size_t image_end(const struct case_buffer *buffer)
{
    return image_begin(buffer) + buffer->count * element_size(buffer);
}

static size_t image_size(const struct case_buffer *buffer)
{
    return image_end(buffer) + GUARD;
}

static float draw_float(const struct case_buffer *buffer, uint64_t index, uint64_t *state)
{
    const float share = next_share(state);
    switch (buffer->content) {
    case CASE_MODERATE:
        return 4.0f * share - 2.0f;
    case CASE_POSITIVE:
        return 0.05f + 0.95f * share;
    case CASE_SMALL:
        return 0.5f * share - 0.25f;
    case CASE_IDS:
        return buffer->limit != 0 ? (float)(next(state) % buffer->limit) : 0.0f;
    default:
        break;
    }
    float value = 2.0f * share - 1.0f;
    if (index % 13 == 12) {
        return 0.0f;
    }
    value = index % 17 == 16 ? value * 1e4f : value;
    return index % 19 == 18 ? value * 1e-6f : value;
}

static void draw_elements(const struct case_buffer *buffer, uint64_t state, unsigned char *elements)
{
    for (uint64_t i = 0; i < buffer->count; i++) {
        if (buffer->content == CASE_DOUBLES) {
            ((double *)(void *)elements)[i] = 0.0;
        } else if (buffer->content == CASE_NUMBERS) {
            const uint32_t number = (uint32_t)(next(&state) >> 32);
            ((uint32_t *)(void *)elements)[i] =
                buffer->limit != 0 ? number % buffer->limit : number;
        } else {
            ((float *)(void *)elements)[i] = draw_float(buffer, i, &state);
        }
    }
}

static void set_guard(unsigned char *image, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        image[i] = guard_word[i % sizeof(guard_word)];
    }
}

static bool guard_is_whole(const unsigned char *image, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        if (image[i] != guard_word[i % sizeof(guard_word)]) {
            return false;
        }
    }
    return true;
}

static void draw_image(const struct case_buffer *buffer, uint64_t seed, unsigned char *image)
{
    set_guard(image, 0, image_begin(buffer));
    draw_elements(buffer, seed, image + image_begin(buffer));
    set_guard(image, image_end(buffer), image_size(buffer));
}

/* ---- devices ---- */

/* A case's buffers on one device, and what they held after the first run. */
struct side {
    struct kelp_device *device;
    struct kelp_stream *stream;
    const char *name; /* "on the cpu" */
    void *memory[CASE_BUFFERS_MAX];
    void *buffers[CASE_BUFFERS_MAX];
    unsigned char *results[CASE_BUFFERS_MAX];
};

struct check {
    const struct operator_case *one;
    const struct case_devices *devices;
    struct side cpu, other;
    unsigned char *initial[CASE_BUFFERS_MAX];
    bool changed[CASE_BUFFERS_MAX];   /* by the first run here */
    unsigned char *again;             /* one buffer after a later run */
    struct kelp_recording *recording; /* of the case, on `other`; NULL: not yet */
    struct kelp_error *reterr;
};

static bool is_there(const struct check *check, uint32_t buffer)
{
    return check->one->buffers[buffer].count != 0;
}

/* The error, behind the case's name. */
static kelp_status named(const struct check *check, kelp_status status)
{
    if (status != KELP_OK) {
        kelp_error_prefix(check->reterr, "%s", check->one->name);
    }
    return status;
}

static kelp_status side_init(const struct check *check, struct side *side)
{
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        const struct case_buffer *buffer = &check->one->buffers[i];
        if (!is_there(check, i)) {
            continue;
        }
        side->results[i] = malloc(image_size(buffer));
        if (!side->results[i]) {
            return kelp_fail(check->reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        const kelp_status status = side->device->table->alloc(side->device, image_size(buffer),
                                                              &side->memory[i], check->reterr);
        if (status != KELP_OK) {
            return status;
        }
        side->buffers[i] = (unsigned char *)side->memory[i] + image_begin(buffer);
    }
    return KELP_OK;
}

static void side_fini(struct side *side)
{
    (void)side->stream->table->wait(side->stream, NULL); /* nothing may still use the memory */
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        side->device->table->free(side->device, side->memory[i]);
        free(side->results[i]);
    }
}

static void put_in(const struct check *check, const struct side *side, uint32_t buffer)
{
    side->stream->table->copy_in(side->stream, side->memory[buffer], check->initial[buffer],
                                 image_size(&check->one->buffers[buffer]));
}

/* The first run: everything in, and everything out. */
static kelp_status run_first(const struct check *check, const struct side *side)
{
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        if (is_there(check, i)) {
            put_in(check, side, i);
        }
    }
    check->one->run(side->stream, side->buffers, check->one->arguments);
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        if (is_there(check, i)) {
            side->stream->table->copy_out(side->stream, side->results[i], side->memory[i],
                                          image_size(&check->one->buffers[i]));
        }
    }
    return side->stream->table->wait(side->stream, check->reterr);
}

/* ---- comparing ---- */

static double element_value(const struct case_buffer *buffer, const unsigned char *image,
                            uint64_t index)
{
    const unsigned char *elements = image + image_begin(buffer);
    switch (buffer->content) {
    case CASE_NUMBERS:
        return (double)((const uint32_t *)(const void *)elements)[index];
    case CASE_DOUBLES:
        return ((const double *)(const void *)elements)[index];
    default:
        return (double)((const float *)(const void *)elements)[index];
    }
}

/* The first element from `from` on with other bits; the number of elements if there is none. */
static uint64_t next_other(const struct case_buffer *buffer, const unsigned char *a,
                           const unsigned char *b, uint64_t from)
{
    const size_t begin = image_begin(buffer), size = element_size(buffer);
    while (from < buffer->count &&
           memcmp(a + begin + from * size, b + begin + from * size, size) == 0) {
        from++;
    }
    return from;
}

/* The first of all; most often there is none. */
static uint64_t first_other(const struct case_buffer *buffer, const unsigned char *a,
                            const unsigned char *b)
{
    const size_t begin = image_begin(buffer), end = image_end(buffer);
    return memcmp(a + begin, b + begin, end - begin) == 0 ? buffer->count
                                                          : next_other(buffer, a, b, 0);
}

static double largest_value(const struct case_buffer *buffer, const unsigned char *image)
{
    double largest = 1e-6;
    for (uint64_t i = 0; i < buffer->count; i++) {
        const double value = fabs(element_value(buffer, image, i));
        largest = isfinite(value) && value > largest ? value : largest;
    }
    return largest;
}

static kelp_status check_guards(const struct check *check, const struct side *side, uint32_t i)
{
    const struct case_buffer *buffer = &check->one->buffers[i];
    const bool before = guard_is_whole(side->results[i], 0, image_begin(buffer));
    if (before && guard_is_whole(side->results[i], image_end(buffer), image_size(buffer))) {
        return KELP_OK;
    }
    return kelp_fail(check->reterr, KELP_ERR_MISMATCH, "wrote %s buffer %u %s",
                     before ? "behind" : "before", i, side->name);
}

/* What the CPU left as it was must be left as it was. */
static kelp_status check_unchanged(const struct check *check, uint32_t i)
{
    const struct case_buffer *buffer = &check->one->buffers[i];
    if (first_other(buffer, check->initial[i], check->cpu.results[i]) != buffer->count) {
        return KELP_OK; /* a workspace */
    }
    const uint64_t at = first_other(buffer, check->initial[i], check->other.results[i]);
    if (at == buffer->count) {
        return KELP_OK;
    }
    return kelp_fail(check->reterr, KELP_ERR_MISMATCH,
                     "changed buffer %u, which the cpu only reads, at element %" PRIu64 ": %.9g to "
                     "%.9g",
                     i, at, element_value(buffer, check->initial[i], at),
                     element_value(buffer, check->other.results[i], at));
}

/* Bits differ: whether the values may. */
static bool near(const struct check *check, double cpu, double other, double largest)
{
    if (isnan(cpu) || isnan(other)) {
        return isnan(cpu) && isnan(other);
    }
    if (check->one->tolerance == 0.0) {
        return false;
    }
    if (cpu == other) { /* infinities too */
        return true;
    }
    const double share = fabs(cpu - other) / largest;
    if (check->devices->worst && share > *check->devices->worst) {
        *check->devices->worst = share;
    }
    return share <= check->one->tolerance;
}

static kelp_status check_output(const struct check *check, uint32_t i)
{
    const struct case_buffer *buffer = &check->one->buffers[i];
    const unsigned char *cpu = check->cpu.results[i], *other = check->other.results[i];
    uint64_t at = first_other(buffer, cpu, other);
    const double largest = at != buffer->count ? largest_value(buffer, cpu) : 0.0;
    while (at != buffer->count) {
        const double wanted = element_value(buffer, cpu, at),
                     got = element_value(buffer, other, at);
        const bool number = buffer->content == CASE_NUMBERS;
        if (number || !near(check, wanted, got, largest)) {
            return kelp_fail(check->reterr, KELP_ERR_MISMATCH,
                             "buffer %u element %" PRIu64 " is %.9g on the cpu and %.9g here "
                             "(tolerance %g of %.9g)",
                             i, at, wanted, got, number ? 0.0 : check->one->tolerance, largest);
        }
        at = next_other(buffer, cpu, other, at + 1);
    }
    return KELP_OK;
}

static kelp_status check_first(struct check *check)
{
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        if (!is_there(check, i)) {
            continue;
        }
        const struct case_buffer *buffer = &check->one->buffers[i];
        check->changed[i] =
            first_other(buffer, check->initial[i], check->other.results[i]) != buffer->count;
        kelp_status status = check_guards(check, &check->cpu, i);
        if (status == KELP_OK) {
            status = check_guards(check, &check->other, i);
        }
        if (status == KELP_OK) {
            status = buffer->compared ? check_output(check, i) : check_unchanged(check, i);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

/* ---- more runs ---- */

static kelp_status same_bits(const struct check *check, uint32_t i, uint32_t run)
{
    const struct case_buffer *buffer = &check->one->buffers[i];
    if (memcmp(check->again, check->other.results[i], image_size(buffer)) == 0) {
        return KELP_OK;
    }
    const uint64_t at = first_other(buffer, check->other.results[i], check->again);
    if (at == buffer->count) {
        return kelp_fail(check->reterr, KELP_ERR_MISMATCH, "run %u wrote outside of buffer %u", run,
                         i);
    }
    return kelp_fail(check->reterr, KELP_ERR_MISMATCH,
                     "run %u gave other bits in buffer %u element %" PRIu64 ": %.9g, not %.9g", run,
                     i, at, element_value(buffer, check->again, at),
                     element_value(buffer, check->other.results[i], at));
}

/* The first time it is recorded, and replayed as every second time from then on. */
static kelp_status enqueue_again(struct check *check, uint32_t run)
{
    const struct operator_case *one = check->one;
    const struct side *side = &check->other;
    const struct kelp_device_table *table = side->stream->table;
    if (!table->replay || one->unrecorded || run % 2 == 0) {
        one->run(side->stream, side->buffers, one->arguments);
        return KELP_OK;
    }
    if (!check->recording) {
        table->record_begin(side->stream);
        one->run(side->stream, side->buffers, one->arguments);
        const kelp_status status =
            table->record_end(side->stream, &check->recording, check->reterr);
        if (status != KELP_OK) {
            return status;
        }
    }
    table->replay(side->stream, check->recording);
    return KELP_OK;
}

/* What the first run changed is put back before. */
static kelp_status run_again(struct check *check, uint32_t run)
{
    const struct side *side = &check->other;
    const struct case_buffer *buffers = check->one->buffers;
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        if (check->changed[i]) {
            put_in(check, side, i);
        }
    }
    if (check->devices->before_run) {
        check->devices->before_run(check->devices->user, run);
    }
    kelp_status status = enqueue_again(check, run);
    if (status == KELP_OK) {
        status = side->stream->table->wait(side->stream, check->reterr);
    }
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX && status == KELP_OK; i++) {
        if (!is_there(check, i) || !buffers[i].compared) {
            continue;
        }
        side->stream->table->copy_out(side->stream, check->again, side->memory[i],
                                      image_size(&buffers[i]));
        status = side->stream->table->wait(side->stream, check->reterr);
        if (status == KELP_OK) {
            status = same_bits(check, i, run);
        }
    }
    return status;
}

/* ---- a check ---- */

static kelp_status check_init(struct check *check, uint64_t seed)
{
    size_t largest = 1;
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        const size_t size = image_size(&check->one->buffers[i]);
        if (!is_there(check, i)) {
            continue;
        }
        check->initial[i] = malloc(size);
        if (!check->initial[i]) {
            return kelp_fail(check->reterr, KELP_ERR_NO_MEMORY, "out of memory");
        }
        draw_image(&check->one->buffers[i], buffer_seed(check->one, seed, i), check->initial[i]);
        largest = size > largest ? size : largest;
    }
    check->again = malloc(largest);
    if (!check->again) {
        return kelp_fail(check->reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    const kelp_status status = side_init(check, &check->cpu);
    return status == KELP_OK ? side_init(check, &check->other) : status;
}

static void check_fini(struct check *check)
{
    if (check->recording) {
        check->other.stream->table->recording_destroy(check->recording);
    }
    side_fini(&check->cpu);
    side_fini(&check->other);
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX; i++) {
        free(check->initial[i]);
    }
    free(check->again);
}

static kelp_status check_run(struct check *check, uint32_t repeats)
{
    kelp_status status = run_first(check, &check->cpu);
    if (status != KELP_OK) {
        return status;
    }
    if (check->devices->before_run) {
        check->devices->before_run(check->devices->user, 0);
    }
    status = run_first(check, &check->other);
    if (status == KELP_OK) {
        status = check_first(check);
    }
    for (uint32_t run = 1; run <= repeats && status == KELP_OK; run++) {
        status = run_again(check, run);
    }
    return status;
}

kelp_status operator_case_check(const struct operator_case *one, const struct case_devices *devices,
                                uint64_t seed, uint32_t repeats, struct kelp_error *reterr)
{
    struct check check = {
        .one = one,
        .devices = devices,
        .cpu = {.device = devices->cpu, .stream = devices->cpu_stream, .name = "on the cpu"},
        .other = {.device = devices->other, .stream = devices->other_stream, .name = "here"},
        .reterr = reterr};
    kelp_status status = check_init(&check, seed);
    if (status == KELP_OK) {
        status = check_run(&check, repeats);
    }
    check_fini(&check);
    return named(&check, status);
}
