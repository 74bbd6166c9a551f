/* Transposition, and copies between strides: dense ones, slices, repetitions, permutations, with
 * sizes that are multiples of four and others. */
#include "tests/lib/cuda/operator_cases.h"

static const char *written(enum kelp_write write)
{
    return write == KELP_ACCUMULATE ? " +=" : "";
}

/* Buffer 0 is written, 1 is read. */
static void set_buffers(struct operator_cases *cases, struct operator_case *one, uint64_t y_count,
                        uint64_t x_count)
{
    one->buffers[0] =
        (struct case_buffer){.count = y_count, .content = CASE_SIGNED, .compared = true};
    one->buffers[1] = (struct case_buffer){.count = x_count, .content = CASE_SIGNED};
    if (cases_draw(cases, 0, 3) == 0) {
        one->buffers[0].misplaced = cases_draw(cases, 0, 3);
        one->buffers[1].misplaced = cases_draw(cases, 0, 3);
    }
}

/* ---- transposition ---- */

static void run_transpose(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_transpose transpose = *(const struct kelp_transpose *)arguments;
    transpose.y = buffers[0];
    transpose.x = buffers[1];
    stream->table->transpose(stream, &transpose);
}

/* Overwriting and accumulating. */
static void add_transpose(struct operator_cases *cases, uint32_t batch, uint32_t rows,
                          uint32_t columns)
{
    for (uint32_t write = KELP_OVERWRITE; write <= KELP_ACCUMULATE; write++) {
        const struct kelp_transpose transpose = {
            .batch = batch, .rows = rows, .columns = columns, .write = (enum kelp_write)write};
        struct operator_case *one = cases_add(cases, run_transpose, &transpose, sizeof(transpose),
                                              "transpose batch=%u rows=%u columns=%u%s", batch,
                                              rows, columns, written(transpose.write));
        const uint64_t count = (uint64_t)batch * rows * columns;
        set_buffers(cases, one, count, count);
    }
}

static void add_transposes(struct operator_cases *cases, bool large)
{
    add_transpose(cases, 0, 3, 5);
    add_transpose(cases, 3, 0, 5);
    add_transpose(cases, 3, 5, 0);
    add_transpose(cases, 1, 1, 1);
    add_transpose(cases, 1, 1, 77);
    add_transpose(cases, 2, 77, 1);
    add_transpose(cases, 1, 32, 32);
    add_transpose(cases, 2, 64, 32);
    add_transpose(cases, 50, 3, 5);
    add_transpose(cases, 1, 2, 1025);
    add_transpose(cases, 2, 700, 3);
    add_transpose(cases, 1, 512, 2);
    for (uint32_t i = 0; i < 6; i++) {
        add_transpose(cases, cases_draw(cases, 1, 4), cases_draw(cases, 1, 70),
                      cases_draw(cases, 1, 70));
        add_transpose(cases, cases_draw(cases, 1, 3), cases_draw(cases, 1, 31),
                      cases_draw(cases, 32, 200));
        add_transpose(cases, cases_draw(cases, 1, 3), cases_draw(cases, 32, 200),
                      cases_draw(cases, 1, 31));
    }
    /* So many elements that they are moved in tiles of fours. */
    add_transpose(cases, 3, 4 * cases_draw(cases, 74, 80), 4 * cases_draw(cases, 74, 80));
    add_transpose(cases, 1, 4, 65540);
    add_transpose(cases, 1, 21848, 12);
    if (large) {
        add_transpose(cases, 1, 2048, 2048);
        add_transpose(cases, 1, 2047, 2049);
        add_transpose(cases, 64, 196, 256);
        add_transpose(cases, 20000, 7, 9);
        add_transpose(cases, 1, 3, 1000000);
        add_transpose(cases, 1, 1000000, 3);
        add_transpose(cases, cases_draw(cases, 10, 20), cases_draw(cases, 100, 400),
                      cases_draw(cases, 100, 400));
    }
}

/* ---- copies ---- */

static void run_copy(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    struct kelp_copy copy = *(const struct kelp_copy *)arguments;
    copy.y = buffers[0];
    copy.x = buffers[1];
    stream->table->copy(stream, &copy);
}

/* Elements of a copy's array, from the first to the last. */
static uint64_t extent(const struct kelp_copy *copy, const uint64_t *strides)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < copy->rank; i++) {
        if (copy->dims[i] == 0) {
            return 0;
        }
        last += (copy->dims[i] - 1) * strides[i];
    }
    return last + 1;
}

/* Overwriting and accumulating, and with a scale. */
static void add_copy(struct operator_cases *cases, const char *what, struct kelp_copy copy)
{
    for (uint32_t way = 0; way < 3; way++) {
        copy.write = way == 1 ? KELP_ACCUMULATE : KELP_OVERWRITE;
        copy.scale = way == 2 || cases_flip(cases) ? 0.3f : 1.0f;
        struct operator_case *one = cases_add(
            cases, run_copy, &copy, sizeof(copy), "copy %s rank=%u dims=%u,%u,%u,%u scale=%g%s",
            what, copy.rank, (unsigned int)copy.dims[0], (unsigned int)copy.dims[1],
            (unsigned int)copy.dims[2], (unsigned int)copy.dims[3], (double)copy.scale,
            written(copy.write));
        set_buffers(cases, one, extent(&copy, copy.y_strides), extent(&copy, copy.x_strides));
    }
}

/* Strides for dimensions in the given order, innermost first; gaps: not dense. */
static void set_strides(struct operator_cases *cases, const struct kelp_copy *copy,
                        const uint32_t *order, bool gaps, uint64_t *strides)
{
    uint64_t stride = gaps && cases_draw(cases, 0, 3) == 0 ? 2 : 1;
    for (uint32_t i = 0; i < copy->rank; i++) {
        strides[order[i]] = stride;
        stride *= copy->dims[order[i]];
        if (gaps && cases_flip(cases)) {
            stride += stride * cases_draw(cases, 1, 2);
        }
    }
}

static void shuffle(struct operator_cases *cases, uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t other = cases_draw(cases, 0, i - 1), kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

/* Any order of dimensions on both sides, with gaps; in some dimensions x has stride 0. */
static void add_drawn(struct operator_cases *cases, uint32_t most)
{
    struct kelp_copy copy = {.rank = cases_draw(cases, 1, KELP_COPY_RANK_MAX)};
    uint64_t left = most;
    for (uint32_t i = 0; i < copy.rank; i++) {
        const uint64_t side = left < 40 ? left : 40;
        copy.dims[i] = cases_draw(cases, 1, side > 0 ? (uint32_t)side : 1);
        left /= copy.dims[i];
    }
    uint32_t order[KELP_COPY_RANK_MAX];
    shuffle(cases, order, copy.rank);
    set_strides(cases, &copy, order, cases_flip(cases), copy.y_strides);
    if (cases_flip(cases)) {
        shuffle(cases, order, copy.rank);
    }
    set_strides(cases, &copy, order, cases_flip(cases), copy.x_strides);
    if (cases_draw(cases, 0, 2) == 0) {
        copy.x_strides[cases_draw(cases, 0, copy.rank - 1)] = 0;
    }
    add_copy(cases, "drawn", copy);
}

static void add_dense(struct operator_cases *cases, uint64_t count)
{
    add_copy(cases, "dense",
             (struct kelp_copy){.rank = 1, .dims = {count}, .x_strides = {1}, .y_strides = {1}});
}

/* Copy some columns of a matrix into some columns of another. */
static void add_slice(struct operator_cases *cases, uint32_t rows, uint32_t columns,
                      uint32_t x_more, uint32_t y_more)
{
    add_copy(cases, "slice",
             (struct kelp_copy){.rank = 2,
                                .dims = {rows, columns},
                                .x_strides = {(uint64_t)columns + x_more, 1},
                                .y_strides = {(uint64_t)columns + y_more, 1}});
}

/* Repeat a row for all rows, or each element of a column for all columns. */
static void add_repetition(struct operator_cases *cases, uint32_t rows, uint32_t columns)
{
    struct kelp_copy copy = {
        .rank = 2, .dims = {rows, columns}, .x_strides = {0, 1}, .y_strides = {columns, 1}};
    add_copy(cases, "repeated row", copy);
    copy.x_strides[0] = 1;
    copy.x_strides[1] = 0;
    add_copy(cases, "repeated column", copy);
}

/* [batch, length, heads, width] to [batch, heads, length, width], or turned: to [batch, heads,
 * width, length]. */
static void add_heads(struct operator_cases *cases, const uint64_t sizes[4], bool turned)
{
    const uint64_t length = sizes[1], heads = sizes[2], width = sizes[3];
    const uint64_t all = length * heads * width;
    struct kelp_copy copy = {
        .rank = 4,
        .dims = {sizes[0], heads, length, width},
        .x_strides = {all, width, heads * width, 1},
        .y_strides = {all, length * width, width, 1},
    };
    if (turned) {
        copy.y_strides[2] = 1;
        copy.y_strides[3] = length;
    }
    add_copy(cases, turned ? "turned heads" : "heads", copy);
}

static void add_drawn_heads(struct operator_cases *cases)
{
    const uint64_t any[4] = {cases_draw(cases, 1, 3), cases_draw(cases, 1, 20),
                             cases_draw(cases, 1, 4), cases_draw(cases, 1, 20)};
    const uint64_t fours[4] = {2, cases_draw(cases, 10, 40), 3,
                               4 * (uint64_t)cases_draw(cases, 1, 8)};
    add_heads(cases, any, false);
    add_heads(cases, any, true);
    add_heads(cases, fours, false);
    add_heads(cases, fours, true);
}

static void add_large(struct operator_cases *cases)
{
    add_dense(cases, UINT64_C(1) << 22);
    add_dense(cases, 1000001);
    add_slice(cases, 2000, 1024, 512, 0);
    add_slice(cases, 2000, 1023, 2, 7);
    add_slice(cases, 300000, 4, 4, 0);
    add_repetition(cases, 2048, 1000);
    for (uint32_t turned = 0; turned < 2; turned++) {
        add_heads(cases, (const uint64_t[4]){8, 256, 8, 64}, turned == 1);
        add_heads(cases, (const uint64_t[4]){8, 255, 7, 33}, turned == 1);
    }
    for (uint32_t i = 0; i < 6; i++) {
        add_drawn(cases, 1000000);
    }
}

static void add_copies(struct operator_cases *cases, bool large)
{
    add_copy(cases, "single", (struct kelp_copy){.rank = 0});
    add_copy(
        cases, "nothing",
        (struct kelp_copy){.rank = 2, .dims = {3, 0}, .x_strides = {1, 1}, .y_strides = {1, 1}});
    for (uint32_t count = 1; count < 9; count++) {
        add_dense(cases, count);
    }
    add_dense(cases, 2048);
    add_dense(cases, cases_draw(cases, 1000, 5000));
    for (uint32_t i = 0; i < 3; i++) {
        add_slice(cases, cases_draw(cases, 1, 60), cases_draw(cases, 1, 60),
                  cases_draw(cases, 0, 9), cases_draw(cases, 0, 9));
        add_slice(cases, cases_draw(cases, 1, 60), 4 * cases_draw(cases, 1, 15),
                  4 * cases_draw(cases, 0, 3), 4 * cases_draw(cases, 0, 3));
        add_repetition(cases, cases_draw(cases, 1, 60), cases_draw(cases, 1, 60));
        add_repetition(cases, cases_draw(cases, 1, 60), 4 * cases_draw(cases, 1, 15));
        add_drawn_heads(cases);
    }
    /* So many elements that they are moved in tiles of fours. */
    add_heads(cases, (const uint64_t[4]){2, 260, 4, 128}, true);
    for (uint32_t i = 0; i < 40; i++) {
        add_drawn(cases, 3000);
    }
    if (large) {
        add_large(cases);
    }
}

void cases_shape(struct operator_cases *cases, bool large)
{
    add_transposes(cases, large);
    add_copies(cases, large);
}
