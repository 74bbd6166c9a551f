#include "worker/data/table/table_classes.h"

#include <stdlib.h>

#define VALUES_FIRST 64u

void kelp_table_classes_fini(struct kelp_table_classes *classes)
{
    kelp_words_fini(&classes->fields);
    kelp_words_fini(&classes->names);
    free(classes->values);
    *classes = (struct kelp_table_classes){.values = NULL};
}

static bool make_room(struct kelp_table_classes *classes)
{
    if (classes->fields.count < classes->capacity) {
        return true;
    }
    uint32_t larger = classes->capacity > 0 ? 2 * classes->capacity : VALUES_FIRST;
    double *moved = realloc(classes->values, larger * sizeof(*moved));
    if (!moved) {
        return false;
    }
    classes->values = moved;
    classes->capacity = larger;
    return true;
}

kelp_status kelp_table_classes_add(struct kelp_table_classes *classes,
                                   const struct kelp_table_class *field, uint32_t *ret_field,
                                   struct kelp_error *reterr)
{
    uint32_t before = classes->fields.count;
    if (!make_room(classes)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u classes", before);
    }
    kelp_status status = kelp_words_add(&classes->fields, field->text, ret_field, reterr);
    if (status == KELP_OK && *ret_field == before) {
        classes->values[before] = field->value;
        classes->named = classes->named || field->is_name;
    }
    return status;
}
