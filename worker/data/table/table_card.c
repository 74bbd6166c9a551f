#include "worker/data/table/table_card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "worker/data/text/csv.h"

/* ---- columns of the job ---------------------------------------------------------------------- */

struct column_list {
    const char *key;
    const struct kelp_table_output *outputs;
    uint32_t count;
};

static kelp_status other_columns(const struct kelp_table_input *input,
                                 const struct column_list *list, const char *have, const char *want,
                                 struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "%s: has %s%s where the model in %s was trained with %s%s", list->key,
                     have ? "column " : "no column", have ? have : "", input->job->model.init,
                     want ? "column " : "no column", want ? want : "");
}

static kelp_status check_names(const struct kelp_table_input *input, const struct column_list *list,
                               const struct kelp_card_columns *columns, struct kelp_error *reterr)
{
    uint32_t most = list->count > columns->count ? list->count : columns->count;
    for (uint32_t i = 0; i < most; i++) {
        const char *have = i < list->count ? list->outputs[i].name : NULL;
        const char *want = i < columns->count ? columns->items[i].name : NULL;
        if (!have || !want || strcmp(have, want) != 0) {
            return other_columns(input, list, have, want, reterr);
        }
    }
    return KELP_OK;
}

static kelp_status check_categories(const struct kelp_table_input *input, struct kelp_error *reterr)
{
    const struct kelp_model_card *card = input->dataset->card;
    const struct column_list list = {"data.categories", input->schema->words,
                                     input->schema->word_count};
    uint32_t most = list.count > card->category_count ? list.count : card->category_count;
    for (uint32_t i = 0; i < most && input->job->data.kind == KELP_DATA_TABLE; i++) {
        const char *have = i < list.count ? list.outputs[i].name : NULL;
        const char *want = i < card->category_count ? card->categories[i].name : NULL;
        if (!have || !want || strcmp(have, want) != 0) {
            return other_columns(input, &list, have, want, reterr);
        }
    }
    return KELP_OK;
}

static kelp_status check_job(const struct kelp_table_input *input, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    const struct kelp_model_card *card = input->dataset->card;
    const struct kelp_table_output *numbers = schema->numbers;
    const struct {
        struct column_list list;
        const struct kelp_card_columns *columns;
    } lists[] = {
        {{"data.columns", numbers, schema->column_count}, &card->inputs},
        {{"data.known", numbers + schema->column_count, schema->known_count}, &card->known},
        {{"data.targets", numbers + schema->column_count + schema->known_count,
          schema->target_count},
         &card->targets},
    };
    kelp_status status = KELP_OK;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(lists) && status == KELP_OK; i++) {
        status = check_names(input, &lists[i].list, lists[i].columns, reterr);
    }
    return status == KELP_OK ? check_categories(input, reterr) : status;
}

/* ---- columns of the files -------------------------------------------------------------------- */

/* UINT32_MAX: not found. */
static uint32_t find_column(const struct kelp_csv *csv, const char *name)
{
    for (uint32_t i = 0; i < kelp_csv_column_count(csv); i++) {
        if (strcmp(kelp_csv_column(csv, i), name) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

/* Does an earlier source have the same column? There is one source for each view of a column. */
static bool is_repeated(const struct kelp_table_schema *schema, uint32_t source)
{
    for (uint32_t i = 0; i < source; i++) {
        if (strcmp(schema->sources[i].name, schema->sources[source].name) == 0) {
            return true;
        }
    }
    return false;
}

static kelp_status lacks_input(const struct kelp_table_input *input, const struct kelp_csv *csv,
                               const char *name, struct kelp_error *reterr)
{
    const struct kelp_table_schema *schema = input->schema;
    char list[256] = "";
    for (uint32_t i = 0; i < schema->source_count; i++) {
        if (!schema->sources[i].label && !is_repeated(schema, i)) {
            kelp_text_list_add(list, sizeof(list), schema->sources[i].name);
        }
    }
    return kelp_csv_lacks(csv, name, list, reterr);
}

static kelp_status check_header(struct kelp_table_input *input, const struct kelp_csv *csv,
                                struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = input->schema;
    for (uint32_t i = 0; i < schema->source_count; i++) {
        struct kelp_table_source *source = &schema->sources[i];
        if (find_column(csv, source->name) != UINT32_MAX) {
            continue;
        }
        if (!source->label) {
            return lacks_input(input, csv, source->name, reterr);
        }
        if (input->job->run.mode != KELP_RUN_PREDICT) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s:1: column %s: no such column; data.targets are made of it, and "
                             "there is nothing to compare with; kelp predict needs no targets",
                             kelp_csv_name(csv), source->name);
        }
        source->absent = true;
        schema->unlabelled = true;
    }
    return KELP_OK;
}

/* Does any row have a value in a label column? In a file to train on, the first row does. */
static kelp_status find_label(const struct kelp_table_schema *schema, struct kelp_csv *csv,
                              bool *ret_found, struct kelp_error *reterr)
{
    uint32_t columns[KELP_TABLE_COLUMNS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < schema->source_count; i++) {
        uint32_t column = find_column(csv, schema->sources[i].name);
        if (schema->sources[i].label && column != UINT32_MAX) {
            columns[count++] = column;
        }
    }
    const struct kelp_csv_field *fields = NULL;
    kelp_status status = kelp_csv_next(csv, &fields, reterr);
    *ret_found = count == 0 || !fields; /* a file without rows is reported elsewhere */
    while (status == KELP_OK && fields && !*ret_found) {
        for (uint32_t i = 0; i < count; i++) {
            *ret_found = *ret_found || !kelp_table_field_is_missing(&fields[columns[i]]);
        }
        if (!*ret_found) {
            status = kelp_csv_next(csv, &fields, reterr);
        }
    }
    return status;
}

/* Empty label columns count as missing ones. */
static kelp_status check_labels(struct kelp_table_input *input, struct kelp_csv *csv,
                                struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = input->schema;
    bool found = false;
    if (input->job->run.mode != KELP_RUN_PREDICT || schema->unlabelled) {
        return KELP_OK;
    }
    kelp_status status = find_label(schema, csv, &found, reterr);
    for (uint32_t i = 0; i < schema->source_count && status == KELP_OK && !found; i++) {
        schema->sources[i].absent = schema->sources[i].label;
        schema->unlabelled = true;
    }
    return status;
}

kelp_status kelp_table_card_fits(struct kelp_table_input *input, struct kelp_error *reterr)
{
    kelp_status status = check_job(input, reterr);
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        for (uint32_t i = 0; i < input->files[split].count && status == KELP_OK; i++) {
            struct kelp_csv *csv = NULL;
            status = kelp_csv_open(input->files[split].paths[i], &csv, reterr);
            if (status == KELP_OK) {
                status = check_header(input, csv, reterr);
            }
            if (status == KELP_OK) {
                status = check_labels(input, csv, reterr);
            }
            kelp_csv_close(csv);
        }
    }
    if (status == KELP_OK && input->schema->unlabelled) {
        kelp_table_schema_drop_labels(input->schema);
    }
    return status;
}

/* ---- fitted values --------------------------------------------------------------------------- */

struct kelp_card_number kelp_table_card_number(const struct kelp_fit *fit,
                                               const struct kelp_target_scale *scale)
{
    return (struct kelp_card_number){
        .shift = scale->shift, .factor = scale->factor, .fill = fit->mean};
}

void kelp_table_card_fit(const struct kelp_card_number *number, struct kelp_fit *ret_fit,
                         struct kelp_target_scale *ret_scale)
{
    *ret_fit = (struct kelp_fit){.mean = number->fill};
    *ret_scale = (struct kelp_target_scale){.factor = number->factor, .shift = number->shift};
}

void kelp_table_card_take(const struct kelp_card_columns *columns, struct kelp_fit *ret_fits,
                          struct kelp_target_scale *ret_scales)
{
    for (uint32_t i = 0; i < columns->count; i++) {
        kelp_table_card_fit(&columns->items[i].number, &ret_fits[i], &ret_scales[i]);
    }
}

kelp_status kelp_table_card_put(const struct kelp_table_numbers *numbers,
                                const struct kelp_table_schema *schema,
                                struct kelp_card_columns *ret_columns, struct kelp_error *reterr)
{
    kelp_status status = kelp_card_columns_init(ret_columns, numbers->count, reterr);
    for (uint32_t i = 0; i < numbers->count && status == KELP_OK; i++) {
        struct kelp_card_column *column = &ret_columns->items[i];
        memcpy(column->name, schema->numbers[numbers->first + i].name, sizeof(column->name));
        if (numbers->fits) {
            column->number = kelp_table_card_number(&numbers->fits[i], &numbers->scales[i]);
        }
    }
    return status;
}

kelp_status kelp_table_card_text(const struct kelp_model_card *card, char **ret_text,
                                 struct kelp_error *reterr)
{
    kelp_status status = kelp_model_card_print(card, ret_text, reterr);
    if (status != KELP_ERR_LIMIT) {
        return status;
    }
    *ret_text = strdup("");
    return *ret_text ? KELP_OK : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
}

kelp_status kelp_table_card_of(const struct kelp_prepared *prepared,
                               struct kelp_model_card *ret_card, struct kelp_error *reterr)
{
    if (prepared->card_bytes == 0) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the words of the categories take over %u bytes",
                         KELP_MODEL_CARD_BYTES_MAX);
    }
    return kelp_model_card_parse_fit(prepared->card, prepared->card_bytes, ret_card, reterr);
}
