/* Elementwise operators: each kind and way of writing, over whole arrays and rows, in place, and
 * with arrays that are aligned, all misaligned alike, or each misaligned differently. */
#include "tests/lib/cuda/operator_cases.h"

/* Alignment of the arrays of one case. */
enum placing { ALIGNED, ALIKE, APART, PLACINGS };
static const char *const placing_names[PLACINGS] = {"aligned", "alike", "apart"};

static void place(struct operator_cases *cases, struct operator_case *one, enum placing placing)
{
    const uint32_t alike = cases_draw(cases, 1, 3);
    for (uint32_t i = 0; i < CASE_BUFFERS_MAX && placing != ALIGNED; i++) {
        one->buffers[i].misplaced = placing == ALIKE ? alike : cases_draw(cases, 0, 3);
    }
}

static const char *written(enum kelp_write write)
{
    return write == KELP_ACCUMULATE ? " +=" : "";
}

static void set_buffer(struct operator_case *one, uint32_t which, uint64_t count,
                       enum case_content content)
{
    one->buffers[which] = (struct case_buffer){.count = count, .content = content};
}

static void set_output(struct operator_case *one, uint32_t which, uint64_t count,
                       enum case_content content)
{
    set_buffer(one, which, count, content);
    one->buffers[which].compared = true;
}

/* ---- arrays ---- */

enum array_operator { FILL, AXPY, ADD, SUBTRACT, MULTIPLY, UNARY, UNARY_GRADIENT, ARRAY_OPERATORS };
static const char *const array_names[ARRAY_OPERATORS] = {
    "fill", "axpy", "add", "subtract", "multiply", "unary", "unary_gradient"};

/* Buffer 0 is written, 1 and 2 are read. */
struct array_case {
    enum array_operator what;
    enum kelp_unary_kind kind;
    uint64_t count;
    enum kelp_write write;
    uint32_t in_place; /* 1 or 2: buffer 0 takes the place of that operand */
    float number;
};

static void run_unary_gradient(struct kelp_stream *stream, const struct array_case *how, float *dx,
                               const float *v, const float *dy)
{
    const bool by_x = how->kind == KELP_UNARY_GELU;
    const struct kelp_unary_gradient gradient = {.kind = how->kind,
                                                 .x = by_x ? v : NULL,
                                                 .y = by_x ? NULL : v,
                                                 .dy = dy,
                                                 .dx = dx,
                                                 .count = how->count,
                                                 .write = how->write};
    stream->table->unary_gradient(stream, &gradient);
}

static void run_array(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct array_case *how = arguments;
    float *y = buffers[0];
    const float *a = how->in_place == 1 ? y : buffers[1], *b = how->in_place == 2 ? y : buffers[2];
    switch (how->what) {
    case FILL:
        stream->table->fill(stream, y, how->number, how->count);
        break;
    case AXPY:
        stream->table->axpy(stream, y, how->number, a, how->count);
        break;
    case ADD:
        stream->table->add(stream, y, a, b, how->count);
        break;
    case SUBTRACT:
        stream->table->subtract(stream, y, a, b, how->count);
        break;
    case MULTIPLY:
        stream->table->multiply(
            stream, &(struct kelp_multiply){
                        .a = a, .b = b, .y = y, .count = how->count, .write = how->write});
        break;
    case UNARY:
        stream->table->unary(
            stream, &(struct kelp_unary){.kind = how->kind, .x = a, .y = y, .count = how->count});
        break;
    case UNARY_GRADIENT:
        run_unary_gradient(stream, how, y, a, b);
        break;
    case ARRAY_OPERATORS:
        break;
    }
}

static void add_array(struct operator_cases *cases, struct array_case how, enum placing placing)
{
    how.number = (float)cases_draw(cases, 1, 1000) / 256.0f - 2.0f;
    struct operator_case *one =
        cases_add(cases, run_array, &how, sizeof(how), "%s kind=%u count=%u%s in_place=%u %s",
                  array_names[how.what], (unsigned int)how.kind, (unsigned int)how.count,
                  written(how.write), how.in_place, placing_names[placing]);
    set_output(one, 0, how.count, CASE_SIGNED);
    set_buffer(one, 1, how.count, cases_flip(cases) ? CASE_SIGNED : CASE_MODERATE);
    set_buffer(one, 2, how.count, CASE_SIGNED);
    place(cases, one, placing);
}

/* Every combination of arguments of the operators over arrays. */
static void add_array_ways(struct operator_cases *cases, uint64_t count, enum placing placing)
{
    for (uint32_t what = FILL; what < ARRAY_OPERATORS; what++) {
        const bool writes = what == MULTIPLY || what == UNARY_GRADIENT;
        const bool kinds = what == UNARY || what == UNARY_GRADIENT;
        const uint32_t last_kind = kinds ? KELP_UNARY_TANH : KELP_UNARY_RELU;
        for (uint32_t kind = KELP_UNARY_RELU; kind <= last_kind; kind++) {
            for (uint32_t write = KELP_OVERWRITE; write <= (writes ? KELP_ACCUMULATE : 0u);
                 write++) {
                const struct array_case how = {.what = (enum array_operator)what,
                                               .kind = (enum kelp_unary_kind)kind,
                                               .count = count,
                                               .write = (enum kelp_write)write};
                add_array(cases, how, placing);
            }
        }
    }
}

/* In place, where kernels/operators.h allows it. */
static void add_arrays_in_place(struct operator_cases *cases, uint64_t count, enum placing placing)
{
    for (uint32_t in_place = 1; in_place <= 2; in_place++) {
        add_array(cases, (struct array_case){.what = ADD, .count = count, .in_place = in_place},
                  placing);
        add_array(cases,
                  (struct array_case){.what = SUBTRACT, .count = count, .in_place = in_place},
                  placing);
    }
    for (uint32_t kind = KELP_UNARY_RELU; kind <= KELP_UNARY_TANH; kind++) {
        struct array_case how = {
            .what = UNARY, .kind = (enum kelp_unary_kind)kind, .count = count, .in_place = 1};
        add_array(cases, how, placing);
        how.what = UNARY_GRADIENT;
        how.in_place = 2;
        add_array(cases, how, placing);
    }
}

static void add_arrays(struct operator_cases *cases, bool large)
{
    static const uint32_t few[] = {0, 1, 2, 3, 4, 5, 7, 8};
    for (uint32_t i = 0; i < KELP_ARRAY_COUNT(few); i++) {
        add_array_ways(cases, few[i], (enum placing)(i % PLACINGS));
    }
    for (uint32_t placing = ALIGNED; placing < PLACINGS; placing++) {
        add_array_ways(cases, cases_draw(cases, 9, 40), (enum placing)placing);
        add_array_ways(cases, cases_draw(cases, 1000, 2500), (enum placing)placing);
        add_arrays_in_place(cases, cases_draw(cases, 1, 2500), (enum placing)placing);
    }
    add_array_ways(cases, 2048, ALIGNED);
    if (large) {
        add_array_ways(cases, UINT64_C(1) << 21, ALIGNED);
        add_array_ways(cases, cases_draw(cases, 1000000, 1400000), ALIKE);
        add_array_ways(cases, cases_draw(cases, 1000000, 1400000), APART);
        add_arrays_in_place(cases, cases_draw(cases, 1000000, 1400000), ALIGNED);
    }
}

/* ---- rows ---- */

/* Multiples of four, and other sizes. */
static uint32_t draw_width(struct operator_cases *cases, uint32_t most)
{
    const uint32_t width = cases_draw(cases, 1, most);
    return cases_flip(cases) ? 4 * ((width + 3) / 4) : width;
}

struct row_case {
    uint64_t rows, ld;
    uint32_t width;
    enum kelp_write write;
};

static void run_bias(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct row_case *how = arguments;
    const struct kelp_bias bias = {.matrix = buffers[0],
                                   .ld = how->ld,
                                   .rows = (uint32_t)how->rows,
                                   .columns = how->width,
                                   .bias = buffers[1]};
    stream->table->bias_add(stream, &bias);
}

static void add_bias(struct operator_cases *cases, uint32_t rows, uint32_t width,
                     enum placing placing)
{
    const uint32_t gap = cases_flip(cases) ? 0 : cases_draw(cases, 0, 9);
    const struct row_case how = {.rows = rows, .ld = (uint64_t)width + gap, .width = width};
    struct operator_case *one =
        cases_add(cases, run_bias, &how, sizeof(how), "bias_add rows=%u columns=%u ld=%u %s", rows,
                  width, (unsigned int)how.ld, placing_names[placing]);
    set_output(one, 0, rows != 0 ? (rows - 1) * how.ld + width : 0, CASE_SIGNED);
    set_buffer(one, 1, width, CASE_SIGNED);
    place(cases, one, placing);
}

static void run_glu(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct row_case *how = arguments;
    const struct kelp_glu glu = {
        .x = buffers[0], .y = buffers[1], .rows = how->rows, .width = how->width};
    stream->table->glu(stream, &glu);
}

static void run_glu_gradient(struct kelp_stream *stream, void *const *buffers,
                             const void *arguments)
{
    const struct row_case *how = arguments;
    const struct kelp_glu glu = {.x = buffers[0],
                                 .rows = how->rows,
                                 .width = how->width,
                                 .dy = buffers[1],
                                 .dx = buffers[2],
                                 .write = how->write};
    stream->table->glu_gradient(stream, &glu);
}

static void add_glu(struct operator_cases *cases, uint32_t rows, uint32_t width,
                    enum placing placing)
{
    const uint64_t count = (uint64_t)rows * width;
    struct row_case how = {.rows = rows, .width = width};
    struct operator_case *one =
        cases_add(cases, run_glu, &how, sizeof(how), "glu rows=%u width=%u %s", rows, width,
                  placing_names[placing]);
    set_buffer(one, 0, 2 * count, CASE_SIGNED);
    set_output(one, 1, count, CASE_SIGNED);
    place(cases, one, placing);
    for (uint32_t write = KELP_OVERWRITE; write <= KELP_ACCUMULATE; write++) {
        how.write = (enum kelp_write)write;
        one = cases_add(cases, run_glu_gradient, &how, sizeof(how),
                        "glu_gradient rows=%u width=%u%s %s", rows, width, written(how.write),
                        placing_names[placing]);
        set_buffer(one, 0, 2 * count, CASE_SIGNED);
        set_buffer(one, 1, count, CASE_SIGNED);
        set_output(one, 2, 2 * count, CASE_SIGNED);
        place(cases, one, placing);
    }
}

static void run_lstm(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct row_case *how = arguments;
    const struct kelp_lstm_cell cell = {.batch = (uint32_t)how->rows,
                                        .hidden = how->width,
                                        .gates = buffers[0],
                                        .c_before = buffers[1],
                                        .c = buffers[2],
                                        .h = buffers[3],
                                        .h_ld = how->ld};
    stream->table->lstm_cell(stream, &cell);
}

static void run_lstm_gradient(struct kelp_stream *stream, void *const *buffers,
                              const void *arguments)
{
    const struct row_case *how = arguments;
    const struct kelp_lstm_cell cell = {.batch = (uint32_t)how->rows,
                                        .hidden = how->width,
                                        .gates = buffers[0],
                                        .c_before = buffers[1],
                                        .c = buffers[2],
                                        .dh = buffers[3],
                                        .dh_ld = how->ld,
                                        .dc = buffers[4],
                                        .dgates = buffers[5]};
    stream->table->lstm_cell_gradient(stream, &cell);
}

static void add_lstm(struct operator_cases *cases, uint32_t batch, uint32_t hidden,
                     enum placing placing)
{
    const uint32_t gap = cases_flip(cases) ? 0 : cases_draw(cases, 0, 9);
    const struct row_case how = {.rows = batch, .ld = (uint64_t)hidden + gap, .width = hidden};
    const uint64_t count = (uint64_t)batch * hidden;
    const uint64_t with_gaps = batch != 0 ? (batch - 1) * how.ld + hidden : 0;
    struct operator_case *one =
        cases_add(cases, run_lstm, &how, sizeof(how), "lstm_cell batch=%u hidden=%u ld=%u %s",
                  batch, hidden, (unsigned int)how.ld, placing_names[placing]);
    set_output(one, 0, 4 * count, CASE_SIGNED);
    set_buffer(one, 1, count, CASE_SIGNED);
    set_output(one, 2, count, CASE_SIGNED);
    set_output(one, 3, with_gaps, CASE_SIGNED);
    place(cases, one, placing);
    one = cases_add(cases, run_lstm_gradient, &how, sizeof(how),
                    "lstm_cell_gradient batch=%u hidden=%u ld=%u %s", batch, hidden,
                    (unsigned int)how.ld, placing_names[placing]);
    set_buffer(one, 0, 4 * count, CASE_POSITIVE);
    set_buffer(one, 1, count, CASE_MODERATE);
    set_buffer(one, 2, count, CASE_MODERATE);
    set_buffer(one, 3, with_gaps, CASE_SIGNED);
    set_output(one, 4, count, CASE_SIGNED);
    set_output(one, 5, 4 * count, CASE_SIGNED);
    place(cases, one, placing);
}

static void add_rows(struct operator_cases *cases, bool large)
{
    for (uint32_t placing = ALIGNED; placing < PLACINGS; placing++) {
        const enum placing where = (enum placing)placing;
        add_bias(cases, 1, 1, where);
        add_glu(cases, 1, 1, where);
        add_lstm(cases, 1, 1, where);
        for (uint32_t i = 0; i < 3; i++) {
            add_bias(cases, cases_draw(cases, 1, 40), draw_width(cases, 60), where);
            add_bias(cases, cases_draw(cases, 1, 5), draw_width(cases, 600), where);
            add_glu(cases, cases_draw(cases, 1, 40), draw_width(cases, 60), where);
            add_glu(cases, cases_draw(cases, 1, 3), draw_width(cases, 600), where);
            add_lstm(cases, cases_draw(cases, 1, 20), draw_width(cases, 60), where);
            add_lstm(cases, cases_draw(cases, 1, 3), draw_width(cases, 300), where);
        }
    }
    add_bias(cases, 0, 5, ALIGNED);
    add_glu(cases, 0, 5, ALIGNED);
    add_glu(cases, 5, 0, ALIGNED);
    add_lstm(cases, 0, 5, ALIGNED);
    for (uint32_t placing = ALIGNED; placing < PLACINGS && large; placing++) {
        const enum placing where = (enum placing)placing;
        add_bias(cases, cases_draw(cases, 2000, 3000), draw_width(cases, 1200), where);
        add_bias(cases, cases_draw(cases, 300000, 400000), draw_width(cases, 12), where);
        add_glu(cases, cases_draw(cases, 1000, 3000), draw_width(cases, 1200), where);
        add_lstm(cases, cases_draw(cases, 500, 1000), draw_width(cases, 1024), where);
    }
}

/* ---- dropout ---- */

struct dropout_case {
    uint32_t samples, use;
    uint64_t elements;
    float p;
    enum kelp_write write;
    bool in_place;
};

static void run_dropout(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct dropout_case *how = arguments;
    const struct kelp_dropout dropout = {.x = how->in_place ? buffers[0] : buffers[1],
                                         .y = buffers[0],
                                         .samples = how->samples,
                                         .elements = how->elements,
                                         .p = how->p,
                                         .use = how->use,
                                         .seed_step = buffers[2],
                                         .positions = buffers[3],
                                         .write = how->write};
    stream->table->dropout(stream, &dropout);
}

static void add_dropout(struct operator_cases *cases, struct dropout_case how, enum placing placing)
{
    static const float ps[] = {0.0f, 0.1f, 0.25f, 0.5f, 0.999f};
    how.p = ps[cases_draw(cases, 0, KELP_ARRAY_COUNT(ps) - 1)];
    how.use = cases_draw(cases, 0, 100);
    const uint64_t count = how.samples * how.elements;
    struct operator_case *one = cases_add(
        cases, run_dropout, &how, sizeof(how), "dropout samples=%u elements=%u p=%g%s%s %s",
        how.samples, (unsigned int)how.elements, (double)how.p, written(how.write),
        how.in_place ? " in place" : "", placing_names[placing]);
    set_output(one, 0, count, CASE_SIGNED);
    set_buffer(one, 1, count, CASE_SIGNED);
    place(cases, one, placing);
    set_buffer(one, 2, 4, CASE_NUMBERS); /* two 64-bit numbers, which must be aligned */
    set_buffer(one, 3, how.samples, CASE_NUMBERS);
}

/* Samples with every alignment, in place and not. */
static void add_dropout_ways(struct operator_cases *cases, uint32_t samples, uint64_t elements)
{
    for (uint32_t placing = ALIGNED; placing < PLACINGS; placing++) {
        struct dropout_case how = {.samples = samples, .elements = elements};
        add_dropout(cases, how, (enum placing)placing);
        how.in_place = true;
        add_dropout(cases, how, (enum placing)placing);
        how.in_place = false;
        how.write = KELP_ACCUMULATE;
        add_dropout(cases, how, (enum placing)placing);
    }
}

void cases_elements(struct operator_cases *cases, bool large)
{
    add_arrays(cases, large);
    add_rows(cases, large);
    for (uint32_t elements = 1; elements < 10; elements++) {
        add_dropout_ways(cases, cases_draw(cases, 1, 5), elements);
    }
    add_dropout_ways(cases, cases_draw(cases, 1, 3), 4 * (uint64_t)cases_draw(cases, 3, 300));
    add_dropout_ways(cases, cases_draw(cases, 1, 5), cases_draw(cases, 10, 600));
    add_dropout_ways(cases, 0, 7);
    add_dropout_ways(cases, 3, 0);
    if (large) {
        add_dropout_ways(cases, cases_draw(cases, 1, 3), cases_draw(cases, 300000, 1000000));
        add_dropout_ways(cases, cases_draw(cases, 1000, 2000), 1024);
    }
}
