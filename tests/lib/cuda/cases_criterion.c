/* The losses: each kind, sizes from one element to several parts of a sample, with all sums or
 * only the loss, with and without a gradient. The gradient of an elementwise loss has the CPU's
 * bits; sums, in double, are added in another order. */
#include "tests/lib/cuda/operator_cases.h"

enum { OUTPUT, TARGET, SCALE, GRADIENT, SUMS, WORKSPACE };

#define QUANTILES_MAX 8u
struct criterion_case {
    enum kelp_loss_kind kind;
    uint32_t samples;
    uint64_t elements, target_elements;
    double beta, label_smoothing;
    double quantiles[QUANTILES_MAX];
    uint32_t quantile_count;
    bool loss_alone;
};

static void run_criterion(struct kelp_stream *stream, void *const *buffers, const void *arguments)
{
    const struct criterion_case *how = arguments;
    const struct kelp_criterion criterion = {.kind = how->kind,
                                             .output = buffers[OUTPUT],
                                             .target = buffers[TARGET],
                                             .samples = how->samples,
                                             .elements = how->elements,
                                             .target_elements = how->target_elements,
                                             .beta = how->beta,
                                             .label_smoothing = how->label_smoothing,
                                             .quantiles = how->quantiles,
                                             .quantile_count = how->quantile_count,
                                             .gradient_scale = buffers[SCALE],
                                             .gradient = buffers[GRADIENT],
                                             .sums = buffers[SUMS],
                                             .loss_alone = how->loss_alone,
                                             .workspace = buffers[WORKSPACE]};
    stream->table->criterion(stream, &criterion);
}

/* In half of the cases all buffers are aligned. */
static void place(struct operator_cases *cases, struct operator_case *one)
{
    const bool aligned = cases_flip(cases);
    for (uint32_t i = OUTPUT; i <= WORKSPACE && !aligned; i++) {
        one->buffers[i].misplaced = cases_draw(cases, 0, 3);
    }
}

static struct operator_case *add_case(struct operator_cases *cases,
                                      const struct criterion_case *how, const char *what)
{
    static const char *const names[] = {"mse", "mae", "smooth_l1",       "huber",   "cross_entropy",
                                        "nll", "bce", "bce_with_logits", "quantile"};
    struct operator_case *one = cases_add(
        cases, run_criterion, how, sizeof(*how), "%s %s samples=%u elements=%llu quantiles=%u%s",
        names[how->kind], what, how->samples, (unsigned long long)how->elements,
        how->quantile_count, how->loss_alone ? " loss alone" : "");
    one->buffers[OUTPUT] =
        (struct case_buffer){.count = how->samples * how->elements, .content = CASE_MODERATE};
    one->buffers[TARGET] = (struct case_buffer){.count = how->samples * how->target_elements,
                                                .content = CASE_POSITIVE};
    one->buffers[SUMS] = (struct case_buffer){.count = (uint64_t)how->samples * KELP_LOSS_SUMS,
                                              .content = CASE_DOUBLES};
    place(cases, one);
    return one;
}

static void set_gradient(struct operator_case *one)
{
    one->buffers[SCALE].count = 1;
    one->buffers[SCALE].content = CASE_POSITIVE;
    one->buffers[GRADIENT].count = one->buffers[OUTPUT].count;
    one->buffers[GRADIENT].content = CASE_MODERATE;
}

/* ---- elementwise losses ---- */

static struct operator_case *add_element_case(struct operator_cases *cases,
                                              const struct criterion_case *how, const char *what)
{
    struct operator_case *one = add_case(cases, how, what);
    if (how->kind == KELP_LOSS_BCE) { /* probabilities */
        one->buffers[OUTPUT].content = CASE_POSITIVE;
    }
    return one;
}

/* One case compares gradients bit by bit, one the sums: 1e-10 relative is far less than one
 * element. */
static void add_elements(struct operator_cases *cases, enum kelp_loss_kind kind, uint32_t samples,
                         uint64_t elements, bool loss_alone)
{
    struct criterion_case how = {.kind = kind,
                                 .samples = samples,
                                 .elements = elements,
                                 .target_elements = elements,
                                 .beta = cases_flip(cases) ? 1.0 : 0.3,
                                 .loss_alone = loss_alone};
    if (kind == KELP_LOSS_QUANTILE) {
        how.quantile_count = cases_draw(cases, 1, QUANTILES_MAX);
        how.target_elements = elements / how.quantile_count + 1;
        how.elements = how.target_elements * how.quantile_count;
        for (uint32_t i = 0; i < how.quantile_count; i++) {
            how.quantiles[i] = (i + 1.0) / (how.quantile_count + 1.0);
        }
    }
    struct operator_case *one = add_element_case(cases, &how, "gradient");
    set_gradient(one);
    one->buffers[GRADIENT].compared = true;
    one = add_element_case(cases, &how, "sums");
    if (cases_flip(cases)) {
        set_gradient(one);
    }
    one->buffers[SUMS].compared = true;
    one->tolerance = 1e-10;
}

static const enum kelp_loss_kind element_kinds[] = {KELP_LOSS_MSE,       KELP_LOSS_MAE,
                                                    KELP_LOSS_SMOOTH_L1, KELP_LOSS_HUBER,
                                                    KELP_LOSS_BCE,       KELP_LOSS_BCE_WITH_LOGITS,
                                                    KELP_LOSS_QUANTILE};

static void element_sizes(struct operator_cases *cases, enum kelp_loss_kind kind, bool loss_alone)
{
    const uint32_t sizes[][4] = {/* samples from, to; elements from, to */
                                 {1, 1, 1, 1},     {2, 600, 1, 1},    {200, 300, 2, 8},
                                 {1, 50, 9, 64},   {1, 17, 65, 128},  {1, 5, 129, 512},
                                 {1, 2, 513, 900}, {1, 1, 8193, 8600}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(sizes); i++) {
        const uint32_t samples = cases_draw(cases, sizes[i][0], sizes[i][1]);
        add_elements(cases, kind, samples, cases_draw(cases, sizes[i][2], sizes[i][3]), loss_alone);
    }
}

static void large_element_sizes(struct operator_cases *cases, enum kelp_loss_kind kind,
                                bool loss_alone)
{
    add_elements(cases, kind, cases_draw(cases, 1000000, 1100000), 1, loss_alone);
    add_elements(cases, kind, cases_draw(cases, 30000, 40000), cases_draw(cases, 20, 60),
                 loss_alone);
    add_elements(cases, kind, cases_draw(cases, 100, 200), cases_draw(cases, 10000, 20000),
                 loss_alone);
    add_elements(cases, kind, 1, cases_draw(cases, 2000000, 3000000), loss_alone);
}

/* ---- losses of classes ---- */

static void add_classes(struct operator_cases *cases, enum kelp_loss_kind kind, uint32_t samples,
                        uint32_t classes)
{
    struct criterion_case how = {.kind = kind,
                                 .samples = samples,
                                 .elements = classes,
                                 .target_elements = 1,
                                 .label_smoothing = cases_flip(cases) ? 0.1 : 0.0,
                                 .loss_alone = cases_flip(cases)};
    struct operator_case *one =
        add_case(cases, &how, how.label_smoothing != 0.0 ? "smoothed" : "plain");
    one->buffers[TARGET].content = CASE_IDS;
    one->buffers[TARGET].limit = classes;
    one->buffers[WORKSPACE].count = one->buffers[OUTPUT].count;
    one->buffers[SUMS].compared = true;
    if (cases_draw(cases, 0, 3) != 0) {
        set_gradient(one);
        one->buffers[GRADIENT].compared = true;
    }
    one->tolerance = 1e-5;
}

static void class_sizes(struct operator_cases *cases, enum kelp_loss_kind kind)
{
    static const uint32_t few[] = {1, 2, 2, 3, 4, 5, 7, 10, 16, 17, 32, 33, 100, 128};
    static const uint32_t many[] = {129, 512, 513, 1000, 1024, 1025, 3001, 4096, 8300, 12289};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(few); i++) {
        add_classes(cases, kind, cases_draw(cases, 1, few[i] < 17 ? 600 : 70), few[i]);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(many); i++) {
        add_classes(cases, kind, cases_draw(cases, 1, 6), many[i]);
        add_classes(cases, kind, cases_draw(cases, 1, 6), many[i]);
    }
}

static void large_class_sizes(struct operator_cases *cases, enum kelp_loss_kind kind)
{
    add_classes(cases, kind, cases_draw(cases, 300000, 400000), 2);
    add_classes(cases, kind, cases_draw(cases, 300000, 400000), 10);
    add_classes(cases, kind, cases_draw(cases, 50000, 60000), 100);
    add_classes(cases, kind, cases_draw(cases, 5000, 6000), 1000);
    add_classes(cases, kind, cases_draw(cases, 60, 100), cases_draw(cases, 50000, 60000));
}

void cases_criterion(struct operator_cases *cases, bool large)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(element_kinds); i++) {
        element_sizes(cases, element_kinds[i], false);
        element_sizes(cases, element_kinds[i], true);
        if (large) {
            large_element_sizes(cases, element_kinds[i], cases_flip(cases));
        }
    }
    class_sizes(cases, KELP_LOSS_CROSS_ENTROPY);
    class_sizes(cases, KELP_LOSS_NLL);
    if (large) {
        large_class_sizes(cases, KELP_LOSS_CROSS_ENTROPY);
        large_class_sizes(cases, KELP_LOSS_NLL);
    }
}
