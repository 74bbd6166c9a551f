/*
 * The target of a loss over classes, where it is a column of the files: its fields as they came,
 * and the number that stands for each of them in a sample. A number stands for itself. Where one
 * field is no number, all are names, and table_class_fit.h numbers them. Pure.
 */
#ifndef KELP_WORKER_DATA_TABLE_TABLE_CLASSES_H
#define KELP_WORKER_DATA_TABLE_TABLE_CLASSES_H

#include <stdint.h>

#include "common/base/status.h"
#include "worker/data/limits.h"
#include "worker/data/words.h"

/* One field. */
struct kelp_table_class {
    char text[KELP_TABLE_WORD_MAX + 1]; /* "": it is missing */
    bool is_name;                       /* no number */
    double value;                       /* of a number; NaN: missing, with policy mean */
};

/* An empty one is all zero. */
struct kelp_table_classes {
    struct kelp_words fields; /* different ones, in the order of their first rows */
    double *values;           /* [fields.count], what samples have; owned */
    uint32_t capacity;        /* of values */
    bool named;               /* some field is a name */
    struct kelp_words names;  /* once they were fitted: classes by their numbers */
};

void kelp_table_classes_fini(struct kelp_table_classes *classes);

/* *ret_field is its index. Errors: KELP_ERR_LIMIT (more than KELP_SAMPLE_CATEGORIES_MAX),
 * KELP_ERR_NO_MEMORY. */
kelp_status kelp_table_classes_add(struct kelp_table_classes *classes,
                                   const struct kelp_table_class *field, uint32_t *ret_field,
                                   struct kelp_error *reterr) KELP_MUST_USE;

#endif
