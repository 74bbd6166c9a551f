/*
 * The part of the known-answer computation that goes through the operators of rows and elements:
 * each forward and backward, its results into the digest.
 */
#include "kernels/compute_kind_internal.h"

#define COUNT ((uint64_t)ROWS * COLUMNS)
#define PARTS 5u /* of a weighted sum; hidden size of a cell is COLUMNS / PARTS */

/* The first `count` of c. Each function ends with this. */
static kelp_status digest_c(struct answer *answer, uint64_t count, struct kelp_error *reterr)
{
    return kelp__compute_kind_answer_digest(answer, answer->c, count * sizeof(float), reterr);
}

static kelp_status unaries(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    for (int kind = KELP_UNARY_RELU; kind <= (int)KELP_UNARY_TANH; kind++) {
        const struct kelp_unary unary = {.kind = (enum kelp_unary_kind)kind,
                                         .x = answer->a,
                                         .y = answer->workspace,
                                         .count = COUNT};
        const struct kelp_unary_gradient gradient = {
            .kind = (enum kelp_unary_kind)kind,
            .x = answer->a,
            .y = answer->workspace,
            .dy = answer->b,
            .dx = answer->c,
            .count = COUNT,
            .write = kind == KELP_UNARY_RELU ? KELP_OVERWRITE : KELP_ACCUMULATE};
        table->unary(answer->stream, &unary);
        table->unary_gradient(answer->stream, &gradient);
    }
    const struct kelp_multiply multiply = {.a = answer->workspace,
                                           .b = answer->b,
                                           .y = answer->c,
                                           .count = COUNT,
                                           .write = KELP_ACCUMULATE};
    table->multiply(answer->stream, &multiply);
    return digest_c(answer, COUNT, reterr);
}

static kelp_status softmaxes(struct answer *answer, struct kelp_error *reterr)
{
    for (uint32_t way = 0; way < 3; way++) {
        const struct kelp_softmax softmax = {.x = answer->a,
                                             .y = answer->workspace,
                                             .rows = ROWS,
                                             .columns = COLUMNS,
                                             .logarithm = way == 1,
                                             .causal = way == 2,
                                             .queries = ROWS,
                                             .offset = 3,
                                             .dy = answer->b,
                                             .dx = answer->c,
                                             .write = way == 0 ? KELP_OVERWRITE : KELP_ACCUMULATE};
        answer->stream->table->softmax(answer->stream, &softmax);
        answer->stream->table->softmax_gradient(answer->stream, &softmax);
    }
    return digest_c(answer, COUNT, reterr);
}

static kelp_status norms(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    float *moments = answer->workspace + COUNT, *gradients = answer->c + COUNT;
    const struct kelp_layer_norm layer = {.x = answer->a,
                                          .weight = answer->b,
                                          .bias = answer->b,
                                          .y = answer->workspace,
                                          .mean = moments,
                                          .rstd = moments + ROWS,
                                          .rows = ROWS,
                                          .width = COLUMNS,
                                          .eps = 1e-5f,
                                          .dy = answer->b,
                                          .dx = answer->c,
                                          .dweight = gradients,
                                          .dbias = gradients + COLUMNS};
    table->layer_norm(answer->stream, &layer);
    table->layer_norm_gradient(answer->stream, &layer);
    kelp_status status = digest_c(answer, COUNT + 2 * (uint64_t)COLUMNS, reterr);
    for (uint32_t form = 0; form < 2 && status == KELP_OK; form++) { /* columns, then planes */
        const struct kelp_batch_norm batch = {.x = answer->a,
                                              .weight = answer->b,
                                              .bias = answer->b,
                                              .y = answer->workspace,
                                              .samples = form == 0 ? ROWS : 1,
                                              .channels = form == 0 ? COLUMNS : ROWS,
                                              .inner = form == 0 ? 1 : COLUMNS,
                                              .eps = 1e-5f,
                                              .training = true,
                                              .mean = moments,
                                              .rstd = moments + COLUMNS,
                                              .statistic_scale = answer->b,
                                              .statistic_mean = gradients + 2 * (size_t)COLUMNS,
                                              .statistic_variance = gradients + 3 * (size_t)COLUMNS,
                                              .dy = answer->b,
                                              .dx = answer->c,
                                              .dweight = gradients,
                                              .dbias = gradients + COLUMNS};
        table->batch_norm(answer->stream, &batch);
        table->batch_norm_gradient(answer->stream, &batch);
        status = digest_c(answer, COUNT + 4 * (uint64_t)COLUMNS, reterr);
    }
    return status;
}

/* Gates of rows that have no whole number of vectors, and the sums of parts. */
static kelp_status gates(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    const uint32_t hidden = COLUMNS / PARTS;
    const struct kelp_glu glu = {.x = answer->a,
                                 .y = answer->workspace,
                                 .rows = ROWS,
                                 .width = COLUMNS / 2,
                                 .dy = answer->b,
                                 .dx = answer->c};
    table->glu(answer->stream, &glu);
    table->glu_gradient(answer->stream, &glu);
    const struct kelp_weighted_sum sum = {.weights = answer->b,
                                          .x = answer->a,
                                          .y = answer->workspace + COUNT,
                                          .rows = ROWS,
                                          .count = PARTS,
                                          .width = hidden,
                                          .dy = answer->b,
                                          .dweights = answer->c + COUNT,
                                          .dx = answer->c + 2 * COUNT};
    table->weighted_sum(answer->stream, &sum);
    table->weighted_sum_gradient(answer->stream, &sum);
    const struct kelp_lstm_cell cell = {.batch = ROWS / PARTS,
                                        .hidden = hidden,
                                        .gates = answer->workspace,
                                        .c_before = answer->b,
                                        .c = answer->workspace + 2 * COUNT,
                                        .h = answer->workspace + 3 * COUNT,
                                        .h_ld = hidden,
                                        .dh = answer->a,
                                        .dh_ld = hidden,
                                        .dc = answer->c + 3 * COUNT,
                                        .dgates = answer->c + 4 * COUNT};
    table->fill(answer->stream, answer->c + 3 * COUNT, 0.5f, COUNT);
    table->fill(answer->stream, answer->c + 4 * COUNT, 0.0f, COUNT);
    table->lstm_cell(answer->stream, &cell);
    table->lstm_cell_gradient(answer->stream, &cell);
    const uint64_t weights = (uint64_t)ROWS * PARTS;
    kelp_status status = digest_c(answer, (uint64_t)ROWS * (COLUMNS / 2) * 2, reterr);
    const struct {
        uint64_t first, count;
    } results[] = {{COUNT, weights},
                   {2 * COUNT, weights * hidden},
                   {3 * COUNT, 2 * COUNT}}; /* the cell's gradients lie in filled memory */
    for (size_t i = 0; i < KELP_ARRAY_COUNT(results) && status == KELP_OK; i++) {
        status = kelp__compute_kind_answer_digest(answer, answer->c + results[i].first,
                                                  results[i].count * sizeof(float), reterr);
    }
    return status;
}

/* Copies with a turn, sums along each side, a table's rows, and dropout by the generator. */
static kelp_status selections(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    const struct kelp_copy copy = {.rank = 2,
                                   .dims = {COLUMNS, ROWS},
                                   .x = answer->a,
                                   .x_strides = {1, COLUMNS},
                                   .y = answer->c,
                                   .y_strides = {ROWS, 1},
                                   .scale = 0.3f};
    const struct kelp_reduce rows = {.x = answer->a,
                                     .y = answer->c,
                                     .outer = ROWS,
                                     .middle = COLUMNS,
                                     .inner = 1,
                                     .scale = 0.7f,
                                     .write = KELP_ACCUMULATE};
    const struct kelp_reduce columns = {.x = answer->a,
                                        .y = answer->c + ROWS,
                                        .outer = 1,
                                        .middle = ROWS,
                                        .inner = COLUMNS,
                                        .scale = 0.7f,
                                        .write = KELP_ACCUMULATE};
    float ids[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        ids[i] = (float)(i * i % PARTS);
    }
    const struct kelp_embedding embedding = {.ids = answer->workspace,
                                             .ids_stride = 1,
                                             .rows = ROWS,
                                             .vocab = PARTS,
                                             .width = COLUMNS,
                                             .table = answer->a,
                                             .y = answer->workspace + COUNT,
                                             .dy = answer->b,
                                             .dtable = answer->c + COUNT};
    const uint64_t seed_step[2] = {1, 2};
    const uint32_t position = 3;
    const struct kelp_dropout dropout = {.x = answer->workspace + COUNT,
                                         .y = answer->c,
                                         .samples = 1,
                                         .elements = COUNT,
                                         .p = 0.3f,
                                         .use = 4,
                                         .seed_step = (const void *)(answer->workspace + 2 * COUNT),
                                         .positions = (const void *)(answer->workspace + 3 * COUNT),
                                         .write = KELP_ACCUMULATE};
    table->copy_in(answer->stream, answer->workspace, ids, sizeof(ids));
    table->copy_in(answer->stream, answer->workspace + 2 * COUNT, seed_step, sizeof(seed_step));
    table->copy_in(answer->stream, answer->workspace + 3 * COUNT, &position, sizeof(position));
    table->copy(answer->stream, &copy);
    table->reduce(answer->stream, &rows);
    table->reduce(answer->stream, &columns);
    table->embedding(answer->stream, &embedding);
    table->embedding_gradient(answer->stream, &embedding);
    table->dropout(answer->stream, &dropout);
    return digest_c(answer, COUNT + (uint64_t)PARTS * COLUMNS, reterr);
}

/* Every loss: on classes where it takes them, else on targets in (0, 1). */
static kelp_status losses(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    const double quantiles[1] = {0.9};
    const struct kelp_unary probabilities = {
        .kind = KELP_UNARY_SIGMOID, .x = answer->a, .y = answer->workspace, .count = COUNT};
    float classes[ROWS];
    float *target = answer->workspace + COUNT, *room = answer->workspace + 2 * COUNT;
    kelp_status status = KELP_OK;
    for (uint32_t i = 0; i < ROWS; i++) {
        classes[i] = (float)(i * i % COLUMNS);
    }
    for (int kind = KELP_LOSS_MSE; kind <= (int)KELP_LOSS_QUANTILE && status == KELP_OK; kind++) {
        const bool of_class = kind == KELP_LOSS_CROSS_ENTROPY || kind == KELP_LOSS_NLL;
        const struct kelp_criterion criterion = {.kind = (enum kelp_loss_kind)kind,
                                                 .output = answer->workspace,
                                                 .target = target,
                                                 .samples = ROWS,
                                                 .elements = COLUMNS,
                                                 .target_elements = of_class ? 1 : COLUMNS,
                                                 .beta = 0.3,
                                                 .label_smoothing = 0.1,
                                                 .quantiles = quantiles,
                                                 .quantile_count = 1,
                                                 .gradient_scale = answer->a,
                                                 .gradient = answer->c,
                                                 .sums = answer->sums,
                                                 .workspace = of_class ? room : NULL};
        struct kelp_unary targets = probabilities;
        targets.x = answer->b;
        targets.y = target;
        table->unary(answer->stream, &probabilities);
        table->unary(answer->stream, &targets);
        if (of_class) {
            table->copy_in(answer->stream, target, classes, sizeof(classes));
        }
        table->criterion(answer->stream, &criterion);
        status = digest_c(answer, COUNT, reterr);
        if (status == KELP_OK) {
            status = kelp__compute_kind_answer_digest(
                answer, answer->sums, (size_t)ROWS * KELP_LOSS_SUMS * sizeof(double), reterr);
        }
    }
    return status;
}

/* One step of Adam, of slots that begin with 0. */
static kelp_status updates(struct answer *answer, struct kelp_error *reterr)
{
    const struct kelp_device_table *table = answer->stream->table;
    const struct kelp_job job = {.train = {.optimizer = KELP_OPTIMIZER_ADAM,
                                           .lr = 0.01,
                                           .weight_decay = 0.1,
                                           .amsgrad = true,
                                           .beta1 = 0.9,
                                           .beta2 = 0.999}};
    float *room = answer->workspace;
    struct kelp_optimizer_run run = {.count = COUNT,
                                     .weights = answer->a,
                                     .gradient = answer->b,
                                     .weights_next = answer->c,
                                     .slots = {room, room + COUNT, room + 2 * COUNT},
                                     .not_finite = (void *)(room + 3 * COUNT)};
    kelp_optimizer_prepare(&run.step, &job, job.train.lr, 3);
    table->fill(answer->stream, room, 0.0f, 3 * COUNT + 1);
    table->optimizer(answer->stream, &run);
    return digest_c(answer, COUNT, reterr);
}

kelp_status kelp__compute_kind_answer_rows(struct answer *answer, struct kelp_error *reterr)
{
    static kelp_status (*const parts[])(struct answer * answer, struct kelp_error * reterr) = {
        unaries, softmaxes, norms, gates, selections, losses, updates};
    kelp_status status = kelp__compute_kind_answer_operand(answer, answer->a, 3, reterr);
    if (status == KELP_OK) {
        status = kelp__compute_kind_answer_operand(answer, answer->b, 4, reterr);
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts) && status == KELP_OK; i++) {
        status = parts[i](answer, reterr);
    }
    return status;
}
