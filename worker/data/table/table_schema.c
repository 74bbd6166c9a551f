#include "worker/data/table/table_schema.h"

#include <stdlib.h>
#include <string.h>

#include "worker/data/dataset_internal.h"
#include "worker/data/sample.h"

/* What is under way: expressions ask for slots while they are compiled. */
struct builder {
    struct kelp_table_schema *schema;
    const char *key;
    bool classes;                  /* the loss is over classes */
    struct kelp_table_slots *uses; /* of what is compiled now; NULL: nobody asks */
};

static kelp_status too_many(const char *key, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: the job takes more than %d columns", key,
                     KELP_TABLE_COLUMNS_MAX);
}

/* ---- what is computed from what ---------------------------------------------------------------
 */

static void add_slot(struct kelp_table_slots *slots, uint32_t slot)
{
    slots->bits[slot / 64] |= UINT64_C(1) << slot % 64;
}

static bool has_slot(const struct kelp_table_slots *slots, uint32_t slot)
{
    return (slots->bits[slot / 64] >> slot % 64 & 1) != 0;
}

static void add_slots(struct kelp_table_slots *slots, const struct kelp_table_slots *more)
{
    for (size_t i = 0; i < KELP_ARRAY_COUNT(slots->bits); i++) {
        slots->bits[i] |= more->bits[i];
    }
}

/* What a slot is computed from: itself, and what a derived column is computed from. */
static void add_uses(const struct kelp_table_schema *schema, uint32_t slot,
                     struct kelp_table_slots *uses)
{
    for (uint32_t i = 0; i < schema->derived_count; i++) {
        if (schema->derived[i].slot == slot) {
            add_slots(uses, &schema->derived[i].uses);
            add_slot(uses, slot);
            return;
        }
    }
    add_slot(uses, slot);
}

/* Sources that some outputs are computed from, by slot and, those that fill none, by index. */
struct used {
    struct kelp_table_slots slots;
    bool sources[KELP_TABLE_COLUMNS_MAX];
};

static void use_output(const struct kelp_table_schema *schema,
                       const struct kelp_table_output *output, struct used *used)
{
    if (output->is_source) {
        used->sources[output->index] = true;
    } else {
        add_uses(schema, output->index, &used->slots);
    }
}

/* Is the source's column among them, in whatever view? */
static bool uses_column(const struct kelp_table_schema *schema, const struct used *used,
                        const char *name)
{
    for (uint32_t i = 0; i < schema->source_count; i++) {
        const struct kelp_table_source *source = &schema->sources[i];
        bool there = source->is_word ? used->sources[i] : has_slot(&used->slots, source->slot);
        if (there && strcmp(source->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Columns of which targets are made and no input. Texts that a filter alone compares with count. */
static void mark_labels(struct kelp_table_schema *schema, bool panel)
{
    struct used inputs = {.slots = {{0}}};
    struct used targets = {.slots = {{0}}};
    uint32_t first_target = schema->column_count + schema->known_count;
    for (uint32_t i = 0; i < schema->number_count; i++) {
        /* The past of a panel's targets is an input. */
        use_output(schema, &schema->numbers[i], i < first_target || panel ? &inputs : &targets);
    }
    for (uint32_t i = 0; i < schema->word_count; i++) {
        use_output(schema, &schema->words[i], &inputs);
    }
    if (schema->has_time) {
        add_uses(schema, schema->time_slot, &inputs.slots);
    }
    for (uint32_t i = 0; i < schema->source_count; i++) {
        struct kelp_table_source *source = &schema->sources[i];
        source->label = uses_column(schema, &targets, source->name) &&
                        !uses_column(schema, &inputs, source->name);
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

static const struct kelp_table_derived *find_derived(const struct kelp_table_schema *schema,
                                                     const char *name)
{
    for (uint32_t i = schema->derived_count; i > 0; i--) {
        if (strcmp(schema->derived[i - 1].name, name) == 0) {
            return &schema->derived[i - 1];
        }
    }
    return NULL;
}

static bool is_same(const struct kelp_table_source *source,
                    const struct kelp_expression_column *column, bool is_word)
{
    return source->view == column->view && source->is_word == is_word &&
           strcmp(source->name, column->name) == 0 &&
           (!column->literal || strcmp(source->literal, column->literal) == 0);
}

/* The source for a column of the file in a view, a new one when there was none. */
static kelp_status read_source(struct builder *builder, const struct kelp_expression_column *column,
                               bool is_word, uint32_t *ret_source, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    for (uint32_t i = 0; i < schema->source_count; i++) {
        if (is_same(&schema->sources[i], column, is_word)) {
            *ret_source = i;
            return KELP_OK;
        }
    }
    if (schema->source_count == KELP_TABLE_COLUMNS_MAX) {
        return too_many(builder->key, reterr);
    }
    struct kelp_table_source *source = &schema->sources[schema->source_count];
    *source =
        (struct kelp_table_source){.key = builder->key, .view = column->view, .is_word = is_word};
    memcpy(source->name, column->name, strlen(column->name) + 1);
    if (column->literal) {
        memcpy(source->literal, column->literal, strlen(column->literal) + 1);
    }
    source->slot = is_word ? 0 : schema->slot_count++;
    *ret_source = schema->source_count++;
    return KELP_OK;
}

static kelp_status find_slot(void *context, const struct kelp_expression_column *column,
                             uint32_t *ret_slot, struct kelp_error *reterr)
{
    struct builder *builder = context;
    const struct kelp_table_derived *derived = find_derived(builder->schema, column->name);
    if (derived && column->view == KELP_VIEW_TEXT) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "column %s: is derived, so a number; compare it with a number",
                         column->name);
    }
    uint32_t source = 0;
    kelp_status status = derived ? KELP_OK : read_source(builder, column, false, &source, reterr);
    if (status != KELP_OK) {
        return status;
    }
    *ret_slot = derived ? derived->slot : builder->schema->sources[source].slot;
    if (builder->uses) {
        add_uses(builder->schema, *ret_slot, builder->uses);
    }
    return KELP_OK;
}

/* ---- lists of the job file ------------------------------------------------------------------- */

/* Calls take for each text of a list. */
static kelp_status for_each_text(struct builder *builder, const char *key, const char *list,
                                 kelp_status (*take)(struct builder *, const char *,
                                                     struct kelp_error *),
                                 struct kelp_error *reterr)
{
    builder->key = key;
    kelp_status status = KELP_OK;
    while (*list != '\0' && status == KELP_OK) {
        char text[KELP_JOB_TEXTS_MAX + 1];
        size_t bytes = strcspn(list, "\n");
        memcpy(text, list, bytes);
        text[bytes] = '\0';
        status = take(builder, text, reterr);
        list += bytes + (list[bytes] == '\n' ? 1 : 0);
    }
    return status;
}

static kelp_status check_name(const struct builder *builder, const char *name,
                              struct kelp_error *reterr)
{
    if (name[0] == '\0' || strlen(name) > KELP_CSV_COLUMN_NAME_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: '%.40s' is not a column's name; names have 1 to %d bytes",
                         builder->key, name, KELP_CSV_COLUMN_NAME_MAX);
    }
    return KELP_OK;
}

static kelp_status add_derived(struct builder *builder, const char *text, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    const struct kelp_expression_columns columns = {.slot = find_slot, .context = builder};
    if (schema->derived_count == KELP_TABLE_COLUMNS_MAX) {
        return too_many(builder->key, reterr);
    }
    const char *name = NULL;
    size_t bytes = 0;
    const char *expression = NULL;
    struct kelp_table_derived derived = {0};
    kelp_status status = kelp_expression_named(text, &name, &bytes, &expression, reterr);
    if (status == KELP_OK) {
        memcpy(derived.name, name, bytes);
        builder->uses = &derived.uses;
        status = kelp_expression_compile(expression, &columns, &derived.expression, reterr);
        builder->uses = NULL;
    }
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s: '%.60s'", builder->key, text);
        return status;
    }
    derived.slot = schema->slot_count++;
    schema->derived[schema->derived_count++] = derived;
    return KELP_OK;
}

static kelp_status add_filter(struct builder *builder, const char *text, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    const struct kelp_expression_columns columns = {.slot = find_slot, .context = builder};
    if (schema->filter_count == KELP_TABLE_COLUMNS_MAX) {
        return too_many(builder->key, reterr);
    }
    struct kelp_expression *filter = NULL;
    builder->uses = &schema->filter_uses[schema->filter_count];
    kelp_status status = kelp_expression_compile(text, &columns, &filter, reterr);
    builder->uses = NULL;
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "%s: '%.60s'", builder->key, text);
        return status;
    }
    schema->filters[schema->filter_count++] = filter;
    return KELP_OK;
}

static kelp_status add_number(struct builder *builder, const char *name, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    if (schema->number_count == KELP_TABLE_COLUMNS_MAX) {
        return too_many(builder->key, reterr);
    }
    struct kelp_table_output *output = &schema->numbers[schema->number_count];
    kelp_status status = check_name(builder, name, reterr);
    if (status == KELP_OK) {
        const struct kelp_expression_column column = {.name = name, .view = KELP_VIEW_NUMBER};
        status = find_slot(builder, &column, &output->index, reterr);
    }
    if (status == KELP_OK) {
        memcpy(output->name, name, strlen(name) + 1);
        schema->number_count++;
    }
    return status;
}

/* A class is read as text: it may be a name. */
static kelp_status add_target(struct builder *builder, const char *name, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    if (!builder->classes || find_derived(schema, name)) {
        return add_number(builder, name, reterr);
    }
    if (schema->number_count == KELP_TABLE_COLUMNS_MAX) {
        return too_many(builder->key, reterr);
    }
    struct kelp_table_output *output = &schema->numbers[schema->number_count];
    const struct kelp_expression_column column = {.name = name, .view = KELP_VIEW_NUMBER};
    kelp_status status = check_name(builder, name, reterr);
    if (status == KELP_OK) {
        status = read_source(builder, &column, true, &output->index, reterr);
    }
    if (status == KELP_OK) {
        memcpy(output->name, name, strlen(name) + 1);
        output->is_source = true;
        schema->has_class = true;
        schema->class_number = schema->number_count++;
    }
    return status;
}

static kelp_status add_word(struct builder *builder, const char *name, struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    if (schema->word_count == KELP_TABLE_WORDS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: more than %d columns of categories",
                         builder->key, KELP_TABLE_WORDS_MAX);
    }
    struct kelp_table_output *output = &schema->words[schema->word_count];
    kelp_status status = check_name(builder, name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_table_derived *derived = find_derived(schema, name);
    const struct kelp_expression_column column = {.name = name, .view = KELP_VIEW_NUMBER};
    output->is_source = !derived;
    if (derived) {
        output->index = derived->slot;
    } else {
        status = read_source(builder, &column, true, &output->index, reterr);
    }
    if (status == KELP_OK) {
        memcpy(output->name, name, strlen(name) + 1);
        schema->word_count++;
    }
    return status;
}

static kelp_status add_time(struct builder *builder, const char *name, struct kelp_error *reterr)
{
    kelp_status status = check_name(builder, name, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const struct kelp_expression_column column = {.name = name, .view = KELP_VIEW_TIME};
    builder->schema->has_time = true;
    return find_slot(builder, &column, &builder->schema->time_slot, reterr);
}

/* ---- whole ----------------------------------------------------------------------------------- */

/* Lists of columns in the order of the schema. */
static kelp_status fill(struct builder *builder, const struct kelp_job *job,
                        struct kelp_error *reterr)
{
    struct kelp_table_schema *schema = builder->schema;
    bool panel = job->data.kind == KELP_DATA_PANEL;
    const struct {
        const char *key;
        const char *list;
        kelp_status (*add)(struct builder *, const char *, struct kelp_error *);
        uint32_t *ret_numbers; /* how many numbers the list added */
    } lists[] = {
        {"data.derive", job->data.derive, add_derived, NULL},
        {"data.filter", job->data.filter, add_filter, NULL},
        {"data.columns", job->data.columns, add_number, &schema->column_count},
        {"data.known", panel ? job->data.known : "", add_number, &schema->known_count},
        {"data.targets", job->data.targets, add_target, &schema->target_count},
        {panel ? "data.group" : "data.categories", panel ? job->data.group : job->data.categories,
         add_word, NULL},
        {"data.time", panel ? job->data.time : "", add_time, NULL},
    };
    for (size_t i = 0; i < KELP_ARRAY_COUNT(lists); i++) {
        uint32_t before = schema->number_count;
        kelp_status status =
            for_each_text(builder, lists[i].key, lists[i].list, lists[i].add, reterr);
        if (status != KELP_OK) {
            return status;
        }
        if (lists[i].ret_numbers) {
            *lists[i].ret_numbers = schema->number_count - before;
        }
    }
    return KELP_OK;
}

static kelp_status check(const struct kelp_table_schema *schema, const struct kelp_job *job,
                         struct kelp_error *reterr)
{
    bool panel = job->data.kind == KELP_DATA_PANEL;
    if (schema->target_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.targets: is empty; it must name the columns to learn");
    }
    if (panel && job->data.time[0] == '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.time: is empty; it must name the column that orders the rows");
    }
    if (!panel && schema->column_count + schema->word_count == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.columns: is empty, and data.categories too; name the columns to "
                         "learn from");
    }
    return KELP_OK;
}

kelp_status kelp_table_schema_create(const struct kelp_job *job,
                                     struct kelp_table_schema **ret_schema,
                                     struct kelp_error *reterr)
{
    /* With a list of targets the loss is refused. */
    struct builder builder = {.schema = calloc(1, sizeof(*builder.schema)),
                              .classes = job->data.kind == KELP_DATA_TABLE &&
                                         kelp__dataset_learns_classes(job) &&
                                         !strchr(job->data.targets, '\n')};
    if (!builder.schema) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    kelp_status status = fill(&builder, job, reterr);
    if (status == KELP_OK) {
        status = check(builder.schema, job, reterr);
    }
    if (status != KELP_OK) {
        kelp_table_schema_destroy(builder.schema);
        return status;
    }
    mark_labels(builder.schema, job->data.kind == KELP_DATA_PANEL);
    *ret_schema = builder.schema;
    return KELP_OK;
}

/* Whether a value is computed from a source that is not there. */
static bool lacks(const struct kelp_table_schema *schema, const struct kelp_table_slots *uses)
{
    for (uint32_t i = 0; i < schema->source_count; i++) {
        if (schema->sources[i].absent && !schema->sources[i].is_word &&
            has_slot(uses, schema->sources[i].slot)) {
            return true;
        }
    }
    return false;
}

void kelp_table_schema_drop_labels(struct kelp_table_schema *schema)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < schema->filter_count; i++) {
        if (lacks(schema, &schema->filter_uses[i])) {
            kelp_expression_destroy(schema->filters[i]);
        } else {
            schema->filter_uses[kept] = schema->filter_uses[i];
            schema->filters[kept++] = schema->filters[i];
        }
    }
    schema->filter_count = kept;
    schema->unlabelled = true;
}

void kelp_table_schema_destroy(struct kelp_table_schema *schema)
{
    if (!schema) {
        return;
    }
    for (uint32_t i = 0; i < schema->derived_count; i++) {
        kelp_expression_destroy(schema->derived[i].expression);
    }
    for (uint32_t i = 0; i < schema->filter_count; i++) {
        kelp_expression_destroy(schema->filters[i]);
    }
    free(schema);
}

const char *kelp_table_schema_target(const struct kelp_table_schema *schema, uint32_t target)
{
    return schema->numbers[schema->column_count + schema->known_count + target].name;
}
