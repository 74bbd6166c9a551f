#include "worker/data/table/table_class_fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

/* Bytes of the list of names in an error. */
#define LISTED_BYTES 200

/* ---- errors ---------------------------------------------------------------------------------- */

static kelp_status no_class(const struct kelp_table_input *input, uint64_t row,
                            const struct kelp_words *names, struct kelp_error *reterr)
{
    const struct kelp_table_raw *raw = input->raw;
    const char *field = kelp_words_at(&raw->classes.fields, kelp_table_raw_class(raw, row));
    const char *column = input->schema->numbers[input->schema->class_number].name;
    char place[256], list[LISTED_BYTES] = "";
    kelp_table_raw_place(raw, input->files, row, place, sizeof(place));
    for (uint32_t i = 0; i < names->count; i++) {
        kelp_text_list_add(list, sizeof(list), kelp_words_at(names, i));
    }
    if (field[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: column %s: has no value in this row, and data.missing cannot make up "
                         "a class; leave such rows out by data.filter: 'not missing(%s)'",
                         place, column, column);
    }
    if (!input->dataset->card) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: column %s: '%s' is not one of the classes in data.path: %s", place,
                         column, field, list);
    }
    return kelp_fail(
        reterr, KELP_ERR_INVALID, "%s: column %s: '%s' is none of the model's classes: %s%s", place,
        column, field, names->count > 0 ? list : "they are numbers",
        input->job->run.mode == KELP_RUN_PREDICT ? "; to predict, leave the column out" : "");
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Learn the names in data.path, sorted, so that neither their order in the file nor the splits
 * matter. */
static kelp_status learn_names(const struct kelp_table_raw *raw, struct kelp_words *ret_names,
                               struct kelp_error *reterr)
{
    struct kelp_words found = {0};
    uint32_t number = 0;
    kelp_status status = KELP_OK;
    for (uint64_t row = 0; row < raw->file_rows[KELP_SPLIT_TRAIN] && status == KELP_OK; row++) {
        const char *name = kelp_words_at(&raw->classes.fields, kelp_table_raw_class(raw, row));
        status = name[0] != '\0' ? kelp_words_add(&found, name, &number, reterr) : KELP_OK;
    }
    const char **sorted = status == KELP_OK ? kelp_words_sorted(&found) : NULL;
    if (status == KELP_OK && !sorted) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u classes", found.count);
    }
    for (uint32_t i = 0; sorted && i < found.count && status == KELP_OK; i++) {
        status = kelp_words_add(ret_names, sorted[i], &number, reterr);
    }
    free(sorted);
    kelp_words_fini(&found);
    return status;
}

/* NaN: the field is no known name. */
static void number_fields(struct kelp_table_classes *classes, const struct kelp_words *names)
{
    for (uint32_t i = 0; i < classes->fields.count; i++) {
        uint32_t number = 0;
        bool known = kelp_words_find(names, kelp_words_at(&classes->fields, i), &number);
        classes->values[i] = known ? (double)number : (double)NAN;
    }
}

static kelp_status check_rows(const struct kelp_table_input *input,
                              const struct kelp_splits *splits, const struct kelp_words *names,
                              struct kelp_error *reterr)
{
    const struct kelp_table_raw *raw = input->raw;
    for (int split = 0; split < KELP_SPLIT_COUNT; split++) {
        for (uint64_t i = 0; i < splits->rows[split].count; i++) {
            uint64_t row = kelp_splits_row(splits, (enum kelp_split)split, i);
            if (isnan(raw->classes.values[kelp_table_raw_class(raw, row)])) {
                return no_class(input, row, names, reterr);
            }
        }
    }
    return KELP_OK;
}

kelp_status kelp_table_classes_fit(const struct kelp_table_input *input,
                                   const struct kelp_splits *splits, struct kelp_error *reterr)
{
    struct kelp_table_classes *classes = &input->raw->classes;
    const struct kelp_model_card *card = input->dataset->card;
    bool counted = !classes->named && (!card || card->classes.count == 0);
    if (!input->schema->has_class || input->schema->unlabelled || counted) {
        return KELP_OK;
    }
    kelp_status status = card ? KELP_OK : learn_names(input->raw, &classes->names, reterr);
    const struct kelp_words *names = card ? &card->classes : &classes->names;
    if (status == KELP_OK) {
        number_fields(classes, names);
        status = check_rows(input, splits, names, reterr);
    }
    for (uint32_t i = 0; i < classes->fields.count && status == KELP_OK; i++) {
        /* Only rows of no split have NaN. */
        classes->values[i] = isnan(classes->values[i]) ? 0.0 : classes->values[i];
    }
    return status;
}
