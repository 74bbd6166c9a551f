#include "cli/infer/prediction_table.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/verb/csv_text.h"
#include "common/base/files.h"
#include "worker/compute/predictions.h"
#include "worker/core/schedule.h"

#define PATH_BYTES       4200
#define NPY_HEADER_BYTES 512
#define NPY_COUNT_DIGITS 20

/* What the values of a sample mean. */
enum meaning {
    MEANING_VALUES,    /* one for each element of the target */
    MEANING_CLASSES,   /* a score for each class */
    MEANING_QUANTILES, /* for each element one of each quantile */
};

struct writer {
    const struct kelp_prediction_table *table;
    const struct kelp_dataset_info *info;
    struct kelp_dataset_info plain; /* what info is where there is no data set */
    enum kelp_split split;
    FILE *out;
    char temporary[PATH_BYTES];
    uint64_t values; /* numbers of a sample; 0 until the first part was read */
    enum meaning meaning;
    uint32_t quantiles; /* 1 without */
    uint64_t rows;      /* of a sample's target: steps ahead */
    bool has_time, has_group;
    bool named;                       /* classes have names */
    struct kelp_target_scale *scales; /* [target_columns], of the sample being written */
    float *input, *target;            /* of one sample; NULL when not asked for */
};

/* ---- what it is ---------------------------------------------------------------------------- */

/* A program's predictions are plain rows of numbers. */
static void decide_plain(struct writer *writer)
{
    writer->plain.shape.target = (struct kelp_sample_tensor){.rank = 1, .dims = {writer->values}};
    writer->plain.target_columns = (uint32_t)writer->values;
    writer->quantiles = 1;
    writer->rows = 1;
}

static kelp_status decide(struct writer *writer, struct kelp_error *reterr)
{
    const struct kelp_job *job = writer->table->job;
    const struct kelp_sample_tensor *target = &writer->info->shape.target;
    uint64_t elements = kelp_sample_tensor_count(target);
    char label[KELP_DATASET_LABEL_BYTES];

    if (!writer->table->dataset) {
        decide_plain(writer);
        return KELP_OK;
    }
    writer->quantiles = 1;
    if (target->vocab_count > 0) {
        writer->meaning = MEANING_CLASSES;
    } else if (job->train.loss == KELP_LOSS_QUANTILE) {
        writer->meaning = MEANING_QUANTILES;
        writer->quantiles = job->train.quantile_count;
    }
    if (writer->meaning != MEANING_CLASSES && writer->values != elements * writer->quantiles) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT,
                         "%s: has %" PRIu64 " values for a sample, whose target has %" PRIu64
                         " elements",
                         writer->table->folder, writer->values, elements);
    }
    writer->rows = elements / writer->info->target_columns;
    writer->named = writer->meaning == MEANING_CLASSES &&
                    kelp_dataset_class_name(writer->table->dataset, 0)[0] != '\0';
    kelp_dataset_time(writer->table->dataset, writer->split, 0, 0, label);
    writer->has_time = label[0] != '\0';
    kelp_dataset_group(writer->table->dataset, writer->split, 0, label);
    writer->has_group = label[0] != '\0';
    return KELP_OK;
}

/* ---- CSV ----------------------------------------------------------------------------------- */

static void print_name(const struct writer *writer, uint32_t column, const char *ending)
{
    char text[KELP_DATASET_LABEL_BYTES + 64];
    const struct kelp_dataset *dataset = writer->table->dataset;
    const char *name = dataset ? kelp_dataset_target_name(dataset, column) : "";
    bool many = writer->info->target_columns > 1;

    if (name[0]) {
        (void)snprintf(text, sizeof(text), ",%s%s", name, ending);
    } else if (many) {
        (void)snprintf(text, sizeof(text), ",prediction_%" PRIu32 "%s", column, ending);
    } else {
        (void)snprintf(text, sizeof(text), ",prediction%s", ending);
    }
    (void)fputc(',', writer->out);
    kelp_csv_print_text(writer->out, text + 1);
}

static void print_names(const struct writer *writer)
{
    const struct kelp_job *job = writer->table->job;
    char ending[64] = "";

    for (uint32_t column = 0; column < writer->info->target_columns; column++) {
        for (uint32_t q = 0; q < writer->quantiles; q++) {
            if (writer->meaning == MEANING_QUANTILES) {
                (void)snprintf(ending, sizeof(ending), "_q%g", job->train.quantiles[q]);
            }
            print_name(writer, column, ending);
        }
    }
    for (uint32_t column = 0; writer->target && column < writer->info->target_columns; column++) {
        print_name(writer, column, "_target");
    }
}

static void print_class_names(const struct writer *writer)
{
    char text[KELP_DATASET_LABEL_BYTES];

    (void)fputs(writer->named ? ",class,class_name" : ",class", writer->out);
    for (uint64_t i = 0; i < writer->values; i++) {
        const char *name = kelp_dataset_class_name(writer->table->dataset, i);
        if (name[0] != '\0') {
            (void)snprintf(text, sizeof(text), "score_%s", name);
        } else {
            (void)snprintf(text, sizeof(text), "score_%" PRIu64, i);
        }
        (void)fputc(',', writer->out);
        kelp_csv_print_text(writer->out, text);
    }
    if (writer->target) {
        (void)fputs(writer->named ? ",class_target,class_name_target" : ",class_target",
                    writer->out);
    }
}

static void print_header(const struct writer *writer)
{
    (void)fputs("sample", writer->out);
    if (writer->has_group) {
        (void)fputs(",series", writer->out);
    }
    if (writer->meaning == MEANING_CLASSES) {
        print_class_names(writer);
    } else {
        if (writer->rows > 1) {
            (void)fputs(",ahead", writer->out);
        }
        if (writer->has_time) {
            (void)fputs(",time", writer->out);
        }
        print_names(writer);
    }
    (void)fputc('\n', writer->out);
}

/* The first of the largest. */
static uint64_t largest(const float *values, uint64_t count)
{
    uint64_t best = 0;
    for (uint64_t i = 1; i < count; i++) {
        if (values[i] > values[best]) {
            best = i;
        }
    }
    return best;
}

static void print_class_name(const struct writer *writer, uint64_t number)
{
    if (writer->named) {
        (void)fputc(',', writer->out);
        kelp_csv_print_text(writer->out, kelp_dataset_class_name(writer->table->dataset, number));
    }
}

static void print_class(const struct writer *writer, const float *values)
{
    uint64_t best = largest(values, writer->values);

    (void)fprintf(writer->out, ",%" PRIu64, best);
    print_class_name(writer, best);
    for (uint64_t i = 0; i < writer->values; i++) {
        (void)fprintf(writer->out, ",%.9g", (double)values[i]);
    }
    if (writer->target) {
        (void)fprintf(writer->out, ",%.9g", (double)writer->target[0]);
        print_class_name(writer, (uint64_t)writer->target[0]);
    }
    (void)fputc('\n', writer->out);
}

static float scaled_back(const struct writer *writer, float value, uint64_t column)
{
    if (writer->table->normalized || !writer->table->dataset) {
        return value;
    }
    const struct kelp_target_scale *scale = &writer->scales[column];
    return (float)((double)value * scale->factor + scale->shift);
}

/* One line: a row of the sample's target. */
static void print_row(const struct writer *writer, uint64_t sample, uint32_t row,
                      const float *values)
{
    char label[KELP_DATASET_LABEL_BYTES];
    uint32_t columns = writer->info->target_columns;

    if (writer->rows > 1) {
        (void)fprintf(writer->out, ",%" PRIu32, row + 1);
    }
    if (writer->has_time) {
        kelp_dataset_time(writer->table->dataset, writer->split, sample, row, label);
        (void)fputc(',', writer->out);
        kelp_csv_print_text(writer->out, label);
    }
    for (uint32_t i = 0; i < columns * writer->quantiles; i++) {
        (void)fprintf(writer->out, ",%.9g",
                      (double)scaled_back(writer, values[i], i / writer->quantiles));
    }
    for (uint32_t column = 0; writer->target && column < columns; column++) {
        float target = writer->target[(uint64_t)row * columns + column];
        (void)fputc(',', writer->out);
        if (!isnan(target)) { /* it lies beyond the end of the data */
            (void)fprintf(writer->out, "%.9g", (double)scaled_back(writer, target, column));
        }
    }
    (void)fputc('\n', writer->out);
}

static void print_start(const struct writer *writer, uint64_t sample)
{
    char label[KELP_DATASET_LABEL_BYTES];

    (void)fprintf(writer->out, "%" PRIu64, sample);
    if (writer->has_group) {
        kelp_dataset_group(writer->table->dataset, writer->split, sample, label);
        (void)fputc(',', writer->out);
        kelp_csv_print_text(writer->out, label);
    }
}

static void print_sample(const struct writer *writer, uint64_t sample, const float *values)
{
    uint64_t row_values = (uint64_t)writer->info->target_columns * writer->quantiles;

    if (writer->meaning == MEANING_CLASSES) {
        print_start(writer, sample);
        print_class(writer, values);
        return;
    }
    for (uint64_t row = 0; row < writer->rows; row++) {
        print_start(writer, sample);
        print_row(writer, sample, (uint32_t)row, values + row * row_values);
    }
}

/* ---- NPY ----------------------------------------------------------------------------------- */

/* A header of version 1.0: the length is a multiple of 64, as NumPy has it. */
static kelp_status write_npy_header(const struct writer *writer, struct kelp_error *reterr)
{
    const struct kelp_sample_tensor *target = &writer->info->shape.target;
    uint64_t samples = writer->info->samples[writer->split];
    char text[NPY_HEADER_BYTES] = "";
    int used = snprintf(text, sizeof(text),
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRIu64 ",", samples);

    for (uint32_t i = 0; writer->meaning != MEANING_CLASSES && i < target->rank; i++) {
        used +=
            snprintf(text + used, sizeof(text) - (size_t)used, " %" PRIu64 ",", target->dims[i]);
    }
    if (writer->meaning == MEANING_CLASSES) {
        used += snprintf(text + used, sizeof(text) - (size_t)used, " %" PRIu64 ",", writer->values);
    }
    if (writer->meaning == MEANING_QUANTILES) {
        used +=
            snprintf(text + used, sizeof(text) - (size_t)used, " %" PRIu32 ",", writer->quantiles);
    }
    used += snprintf(text + used, sizeof(text) - (size_t)used, "), }");
    assert((size_t)used + 64 < sizeof(text)); /* the rank is bounded */
    size_t length = ((size_t)used + 1 + 10 + 63) / 64 * 64 - 10;
    memset(text + used, ' ', length - (size_t)used);
    text[length - 1] = '\n';
    const unsigned char start[10] = {0x93,
                                     'N',
                                     'U',
                                     'M',
                                     'P',
                                     'Y',
                                     1,
                                     0,
                                     (unsigned char)(length & 0xff),
                                     (unsigned char)(length >> 8)};
    if (fwrite(start, 1, sizeof(start), writer->out) != sizeof(start) ||
        fwrite(text, 1, length, writer->out) != length) {
        return kelp_files_error(errno, "write", writer->temporary, reterr);
    }
    return KELP_OK;
}

static void write_npy_sample(const struct writer *writer, float *values)
{
    if (writer->meaning != MEANING_CLASSES) {
        for (uint64_t i = 0; i < writer->values; i++) {
            uint64_t element = i / writer->quantiles;
            values[i] = scaled_back(writer, values[i], element % writer->info->target_columns);
        }
    }
    (void)fwrite(values, sizeof(*values), (size_t)writer->values, writer->out);
}

/* ---- joining ------------------------------------------------------------------------------- */

static kelp_status write_sample(struct writer *writer, uint64_t sample, float *values,
                                struct kelp_error *reterr)
{
    const struct kelp_prediction_table *table = writer->table;

    if (table->dataset) {
        kelp_dataset_target_scales(table->dataset, writer->split, sample, writer->scales);
    }
    if (writer->target) {
        kelp_status status = kelp_dataset_read(table->dataset, writer->split, &sample, 1,
                                               writer->input, writer->target);
        if (status != KELP_OK) {
            return kelp_fail(reterr, status, "sample %" PRIu64 " cannot be read: %s", sample,
                             kelp_status_text(status));
        }
    }
    if (table->format == KELP_PREDICTION_CSV) {
        print_sample(writer, sample, values);
    } else {
        write_npy_sample(writer, values);
    }
    /* Check after each sample, so that a full disk is reported early. */
    return ferror(writer->out) ? kelp_files_error(errno, "write", writer->temporary, reterr)
                               : KELP_OK;
}

static kelp_status begin_output(struct writer *writer, uint64_t values, struct kelp_error *reterr)
{
    writer->values = values;
    kelp_status status = decide(writer, reterr);
    if (status != KELP_OK) {
        return status;
    }
    if (writer->table->format == KELP_PREDICTION_NPY) {
        return write_npy_header(writer, reterr);
    }
    print_header(writer);
    return KELP_OK;
}

static kelp_status join_part(struct writer *writer, struct kelp_prediction_part *part,
                             struct kelp_error *reterr)
{
    float *values = NULL;

    part->values = writer->values;
    kelp_status status = kelp_prediction_read(writer->table->folder, part, &values, reterr);
    if (status == KELP_OK && writer->values == 0) {
        status = begin_output(writer, part->values, reterr);
    }
    for (uint64_t i = 0; i < part->count && status == KELP_OK; i++) {
        status = write_sample(writer, part->first + i, values + i * part->values, reterr);
    }
    free(values);
    return status == KELP_OK ? kelp_prediction_remove(writer->table->folder, part, reterr) : status;
}

/* The lanes of one block, as the schedule cuts it. */
static kelp_status join_block(struct writer *writer, const struct kelp_control_word *word,
                              struct kelp_error *reterr)
{
    const struct kelp_job *job = writer->table->job;
    struct kelp_schedule schedule;

    kelp_status status =
        kelp_schedule_init(&schedule, job, writer->table->plan->samples, word, reterr);
    for (uint32_t lane = 0; lane < job->cluster.lanes && status == KELP_OK; lane++) {
        struct kelp_schedule_range range = kelp_schedule_lane(&schedule, lane);
        struct kelp_prediction_part part = {.version = word->version,
                                            .lane = lane,
                                            .first = word->sample_first + range.first,
                                            .count = range.count};
        if (range.count > 0) {
            status = join_part(writer, &part, reterr);
        }
    }
    return status;
}

/* All entries of the job, from its first control state on: the same entries as in the cluster. */
static kelp_status join(struct writer *writer, struct kelp_error *reterr)
{
    const struct kelp_prediction_table *table = writer->table;
    const double sums[KELP_METRIC_SUM_COUNT] = {0};
    struct kelp_control_state state;
    struct kelp_control_word word;
    struct kelp_record record;
    kelp_status status = KELP_OK;

    kelp_control_init(&state, table->job, table->plan);
    kelp_control_word(&state, table->job, table->plan, &word);
    while (word.kind == KELP_STEP_PREDICT && status == KELP_OK) {
        status = join_block(writer, &word, reterr);
        kelp_control_apply(&state, table->job, table->plan, sums, "", &record);
        kelp_control_word(&state, table->job, table->plan, &word);
    }
    return status;
}

/* ---- the file ------------------------------------------------------------------------------ */

static kelp_status allocate(struct writer *writer, struct kelp_error *reterr)
{
    size_t input = (size_t)kelp_sample_input_count(&writer->info->shape);
    size_t target = (size_t)kelp_sample_target_count(&writer->info->shape);

    if (!writer->table->dataset) {
        return KELP_OK;
    }
    writer->scales = calloc(writer->info->target_columns, sizeof(*writer->scales));
    if (writer->table->targets) {
        writer->input = calloc(input, sizeof(*writer->input));
        writer->target = calloc(target, sizeof(*writer->target));
    }
    if (!writer->scales || (writer->table->targets && (!writer->input || !writer->target))) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    return KELP_OK;
}

static kelp_status open_file(struct writer *writer, struct kelp_error *reterr)
{
    int length =
        snprintf(writer->temporary, sizeof(writer->temporary), "%s.new", writer->table->path);
    if (length < 0 || (size_t)length >= sizeof(writer->temporary)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the output's path is too long");
    }
    writer->out = fopen(writer->temporary, "we");
    return writer->out ? KELP_OK : kelp_files_error(errno, "create", writer->temporary, reterr);
}

static kelp_status close_file(struct writer *writer, kelp_status status, struct kelp_error *reterr)
{
    if (!writer->out) {
        return status;
    }
    if (fclose(writer->out) != 0 && status == KELP_OK) {
        status = kelp_files_error(errno, "write", writer->temporary, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_files_sync(writer->temporary, reterr);
    }
    if (status == KELP_OK && rename(writer->temporary, writer->table->path) != 0) {
        status = kelp_files_error(errno, "write", writer->table->path, reterr);
    }
    if (status != KELP_OK) {
        (void)unlink(writer->temporary); /* half a file is of no use */
    }
    return status;
}

kelp_status kelp_prediction_table_write(const struct kelp_prediction_table *table,
                                        struct kelp_error *reterr)
{
    static const enum kelp_split splits[] = {[KELP_RUN_PART_TRAIN] = KELP_SPLIT_TRAIN,
                                             [KELP_RUN_PART_VAL] = KELP_SPLIT_VAL,
                                             [KELP_RUN_PART_TEST] = KELP_SPLIT_TEST};
    struct writer *writer = calloc(1, sizeof(*writer));

    if (!writer) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    writer->table = table;
    writer->info = table->dataset ? kelp_dataset_info(table->dataset) : &writer->plain;
    memcpy(writer->plain.samples, table->plan->samples, sizeof(writer->plain.samples));
    writer->split = splits[table->job->run.part];
    kelp_status status = allocate(writer, reterr);
    if (status == KELP_OK) {
        status = open_file(writer, reterr);
    }
    if (status == KELP_OK) {
        status = join(writer, reterr);
    }
    status = close_file(writer, status, reterr);
    free(writer->scales);
    free(writer->input);
    free(writer->target);
    free(writer);
    return status;
}
