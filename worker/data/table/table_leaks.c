#include "worker/data/table/table_leaks.h"

#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

#define LINE_BYTES 512
#define LIST_BYTES 160

static const struct kelp_table_derived *derived_of(const struct kelp_table_schema *schema,
                                                   const struct kelp_table_output *output)
{
    for (uint32_t i = 0; i < schema->derived_count && !output->is_source; i++) {
        if (schema->derived[i].slot == output->index) {
            return &schema->derived[i];
        }
    }
    return NULL;
}

static bool has_slot(const struct kelp_table_slots *slots, uint32_t slot)
{
    return (slots->bits[slot / 64] >> slot % 64 & 1) != 0;
}

/* Is the derived column computed from this column of the file, in any view? */
static bool uses_column(const struct kelp_table_schema *schema,
                        const struct kelp_table_derived *derived, const char *name)
{
    for (uint32_t i = 0; i < schema->source_count; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        if (!source->is_word && has_slot(&derived->uses, source->slot) &&
            strcmp(source->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* Inputs of the rows to predict, all lists in a row. */
struct inputs {
    struct {
        const char *key;
        const struct kelp_table_output *items;
        uint32_t count;
    } lists[2];
};

static struct inputs inputs_of(const struct kelp_table_schema *schema, bool panel)
{
    if (panel) {
        return (struct inputs){
            .lists = {{"data.known", schema->numbers + schema->column_count, schema->known_count}}};
    }
    return (struct inputs){.lists = {{"data.columns", schema->numbers, schema->column_count},
                                     {"data.categories", schema->words, schema->word_count}}};
}

/* Is the input this column of the file, or computed from it alone? Parts of a time, such as the
 * hour, do not count, because they say little about it. */
static bool stands_for(const struct kelp_table_schema *schema,
                       const struct kelp_table_output *input, const char *column)
{
    const struct kelp_table_derived *derived = derived_of(schema, input);
    bool found = !derived && strcmp(input->name, column) == 0;
    for (uint32_t i = 0; i < schema->source_count && derived; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        if (!source->is_word && has_slot(&derived->uses, source->slot)) {
            found = strcmp(source->name, column) == 0 && source->view != KELP_VIEW_TIME;
            if (!found) {
                return false;
            }
        }
    }
    return found;
}

static bool is_input(const struct kelp_table_schema *schema, const struct inputs *inputs,
                     const char *column)
{
    for (size_t l = 0; l < KELP_ARRAY_COUNT(inputs->lists); l++) {
        for (uint32_t i = 0; i < inputs->lists[l].count; i++) {
            if (stands_for(schema, &inputs->lists[l].items[i], column)) {
                return true;
            }
        }
    }
    return false;
}

/* ---- leaks ----------------------------------------------------------------------------------- */

/* Print a line if the input is the target or is computed from it; otherwise false. */
static bool input_leaks(const struct kelp_table_schema *schema, const char *key,
                        const struct kelp_table_output *input,
                        const struct kelp_table_output *target, char line[LINE_BYTES])
{
    const struct kelp_table_derived *derived = derived_of(schema, input);
    if (strcmp(input->name, target->name) == 0) {
        (void)snprintf(line, LINE_BYTES,
                       "%s is in data.targets and in %s: the model is given what it is to predict",
                       target->name, key);
        return true;
    }
    if (!derived || !(derived_of(schema, target) ? has_slot(&derived->uses, target->index)
                                                 : uses_column(schema, derived, target->name))) {
        return false;
    }
    (void)snprintf(line, LINE_BYTES,
                   "%s in %s is computed from %s, which is in data.targets: the model is given "
                   "what it is to predict",
                   input->name, key, target->name);
    return true;
}

/* Print a line if the target is computed from columns that are all inputs; otherwise false. */
static bool target_leaks(const struct kelp_table_schema *schema, const struct inputs *inputs,
                         const struct kelp_table_output *target, char line[LINE_BYTES])
{
    const struct kelp_table_derived *derived = derived_of(schema, target);
    char list[LIST_BYTES] = "";
    const char *last = "";
    for (uint32_t i = 0; i < schema->source_count && derived; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        if (source->is_word || !has_slot(&derived->uses, source->slot)) {
            continue;
        }
        if (!is_input(schema, inputs, source->name)) {
            return false;
        }
        if (strcmp(source->name, last) != 0) { /* sources of one column are adjacent */
            kelp_text_list_add(list, sizeof(list), source->name);
        }
        last = source->name;
    }
    (void)snprintf(line, LINE_BYTES,
                   "%s in data.targets is computed from inputs alone (%s): the model is given what "
                   "it is to predict",
                   target->name, list);
    return list[0] != '\0';
}

void kelp_table_leaks_tell(const struct kelp_table_schema *schema, bool panel,
                           void (*tell)(void *user, const char *line), void *user)
{
    const struct inputs inputs = inputs_of(schema, panel);
    uint32_t first = schema->column_count + schema->known_count;
    char line[LINE_BYTES];
    for (uint32_t t = first; t < schema->number_count; t++) {
        const struct kelp_table_output *target = &schema->numbers[t];
        for (size_t l = 0; l < KELP_ARRAY_COUNT(inputs.lists); l++) {
            for (uint32_t i = 0; i < inputs.lists[l].count; i++) {
                if (input_leaks(schema, inputs.lists[l].key, &inputs.lists[l].items[i], target,
                                line)) {
                    tell(user, line);
                }
            }
        }
        if (target_leaks(schema, &inputs, target, line)) {
            tell(user, line);
        }
    }
}
