/* Rows of a table and their gradient, compared bit by bit: the sum for a row of the table has a
 * defined order. Few rows and many, small and large vocabularies (ids that occur once, and one
 * id in nearly all rows), widths below and above a warp's, units of one and of four elements. */
#include "tests/lib/cuda/operator_cases.h"

enum { IDS, TABLE, Y, DY, DTABLE };

struct embedding_case {
    uint64_t ids_stride, rows;
    uint32_t vocab, width;
    enum kelp_write write;
    bool gradient;
};

static void run_embedding(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct embedding_case *how = arguments;
    const struct kelp_embedding embedding = {.ids = buffers[IDS],
                                             .ids_stride = how->ids_stride,
                                             .rows = how->rows,
                                             .vocab = how->vocab,
                                             .width = how->width,
                                             .table = buffers[TABLE],
                                             .y = buffers[Y],
                                             .dy = buffers[DY],
                                             .dtable = buffers[DTABLE],
                                             .write = how->write};
    if (how->gradient) {
        stream->table->embedding_gradient(stream, &embedding);
    } else {
        stream->table->embedding(stream, &embedding);
    }
}

/* used: ids are below it, so that a few rows of the table get all. */
static struct operator_case *add_case(struct operator_cases *cases,
                                      const struct embedding_case *how, uint32_t used)
{
    struct operator_case *one =
        cases_add(cases, run_embedding, how, sizeof(*how),
                  "embedding%s rows=%llu vocab=%u of %u width=%u stride=%llu%s",
                  how->gradient ? "_gradient" : "", (unsigned long long)how->rows, used, how->vocab,
                  how->width, (unsigned long long)how->ids_stride,
                  how->write == KELP_ACCUMULATE ? " +=" : "");
    one->buffers[IDS] =
        (struct case_buffer){.count = how->rows != 0 ? (how->rows - 1) * how->ids_stride + 1 : 0,
                             .content = CASE_IDS,
                             .limit = used};
    const bool aligned = cases_flip(cases);
    for (uint32_t i = IDS; i <= DTABLE && !aligned; i++) {
        one->buffers[i].misplaced = cases_draw(cases, 0, 3);
    }
    return one;
}

static void add_forward(struct operator_cases *cases, uint64_t rows, uint32_t vocab, uint32_t width)
{
    const struct embedding_case how = {
        .ids_stride = cases_draw(cases, 1, 3), .rows = rows, .vocab = vocab, .width = width};
    struct operator_case *one = add_case(cases, &how, vocab);
    one->buffers[TABLE].count = (uint64_t)vocab * width;
    one->buffers[Y].count = rows * width;
    one->buffers[Y].compared = true;
}

static void add_gradient(struct operator_cases *cases, uint64_t rows, uint32_t vocab, uint32_t used,
                         uint32_t width)
{
    const struct embedding_case how = {.ids_stride = cases_draw(cases, 1, 3),
                                       .rows = rows,
                                       .vocab = vocab,
                                       .width = width,
                                       .write = cases_draw_write(cases),
                                       .gradient = true};
    struct operator_case *one = add_case(cases, &how, used < vocab ? used : vocab);
    one->buffers[DY].count = rows * width;
    one->buffers[DTABLE].count = (uint64_t)vocab * width;
    one->buffers[DTABLE].compared = true;
}

static const uint32_t widths[] = {1, 2, 3, 4, 5, 8, 12, 16, 17, 32, 33, 64};

static void forward_sizes(struct operator_cases *cases)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(widths); i++) {
        const uint32_t vocab = cases_draw(cases, 1, 200);
        add_forward(cases, 1, vocab, widths[i]);
        add_forward(cases, cases_draw(cases, 2, 250), vocab, widths[i]);
        add_forward(cases, cases_draw(cases, 2, 250), vocab, widths[i]);
    }
    add_forward(cases, cases_draw(cases, 1024, 5000), 1000, 1);
    add_forward(cases, cases_draw(cases, 1024, 1200), 1000, 16);
    add_forward(cases, 0, 10, 4);
    add_forward(cases, 10, 10, 0);
}

/* So few rows that each is compared with all others. */
static void few_rows(struct operator_cases *cases)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(widths); i++) {
        add_gradient(cases, 1, cases_draw(cases, 1, 50), 50, widths[i]);
        add_gradient(cases, cases_draw(cases, 2, 200), 100, cases_draw(cases, 1, 100), widths[i]);
        add_gradient(cases, cases_draw(cases, 30, 200), 7, cases_draw(cases, 1, 7), widths[i]);
    }
    add_gradient(cases, cases_draw(cases, 300, 400), 5000, 5000, 3);
    add_gradient(cases, 1024, 5000, 2, 4);
    add_gradient(cases, 0, 10, 10, 4);
    add_gradient(cases, 10, 10, 10, 0);
}

/* So many rows that they are sorted. */
static void many_rows(struct operator_cases *cases)
{
    static const uint32_t few_widths[] = {1, 2,  3,
                                          8, 12, 17}; /* one for each load of several rows */
    for (size_t i = 0; i < KELP_ARRAY_COUNT(few_widths); i++) {
        const uint32_t rows = cases_draw(cases, 1025, 1100);
        add_gradient(cases, rows, cases_draw(cases, 1, 3), 3, few_widths[i]);
        if (i % 2 == 0) {
            add_gradient(cases, rows, 40, cases_draw(cases, 20, 40), few_widths[i]);
        } else if (i % 3 == 0) {
            add_gradient(cases, rows, 1000, cases_draw(cases, 500, 1000), few_widths[i]);
        }
    }
    static const uint32_t vocabs[] = {1, 255, 256, 1000, 70000}; /* one pass to three */
    for (size_t i = 0; i < KELP_ARRAY_COUNT(vocabs); i++) {
        add_gradient(cases, cases_draw(cases, 2049, 2200), vocabs[i], vocabs[i],
                     vocabs[i] < 10000 ? cases_draw(cases, 1, 3) : 1);
    }
    add_gradient(cases, cases_draw(cases, 1025, 1100), 300, cases_draw(cases, 1, 9), 33);
    add_gradient(cases, cases_draw(cases, 1025, 1100), 300, 2, 40);
}

static void large_sizes(struct operator_cases *cases)
{
    add_forward(cases, 1000000, 1000000, 10);
    add_forward(cases, 3000000, 100000, 1);
    add_forward(cases, 200000, 50000, 64);
    add_gradient(cases, 1000000, 1000000, 1000000, 10);
    add_gradient(cases, 1000000, 1000000, 1000, 8);
    add_gradient(cases, 1000000, 100000, 100000, 16);
    add_gradient(cases, 3000000, 2000000, 2000000, 1);
    add_gradient(cases, 100000, 3, 3, 16);
    add_gradient(cases, 200000, 50, 50, 32);
    add_gradient(cases, 100000, 1000, 1000, 100);
    add_gradient(cases, 100000, 1, 1, 1);
}

void cases_many_tiles(struct operator_cases *cases)
{
    add_gradient(cases, 256 * 2048 + 1, 2, 2, 1);
}

void cases_embedding(struct operator_cases *cases, bool large)
{
    forward_sizes(cases);
    few_rows(cases);
    many_rows(cases);
    if (large) {
        large_sizes(cases);
    }
}
