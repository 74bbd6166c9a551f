/*
 * Plans of faults in YAML, through libyaml's document API: each node knows its line. Two levels of
 * mappings and one of lists are looked at and nothing else, so that depth, aliases and cycles of a
 * document do not matter.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "cli/chaos/chaos_plan.h"
#include "common/base/value.h"

#define WORD_BYTES  64
#define NESTING_MAX 16 /* brackets: libyaml's parser takes stack for each */
#define PAIRS_MAX   16 /* keys of one mapping */

struct reader {
    struct kelp_chaos_plan *plan;
    yaml_document_t *document;
    struct kelp_error *reterr;
};

/* One key of a mapping and what its value means. */
struct key {
    const char *name;
    kelp_status (*read)(struct reader *reader, const yaml_node_t *value, const char *text,
                        void *into, struct kelp_error *reterr);
    bool required;
};

static uint32_t line_of(const yaml_node_t *node)
{
    return (uint32_t)(node->start_mark.line + 1);
}

static kelp_status fail_at(struct reader *reader, const yaml_node_t *node, const char *key,
                           const char *text)
{
    return kelp_fail(reader->reterr, KELP_ERR_INVALID, "%s:%" PRIu32 ": %.63s%s%.255s",
                     reader->plan->name, line_of(node), key, key[0] != '\0' ? ": " : "", text);
}

/* A scalar's text, or NULL when the node is none, holds a NUL, or is longer than any value. */
static const char *scalar(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE || node->data.scalar.length >= WORD_BYTES ||
        strlen((const char *)node->data.scalar.value) != node->data.scalar.length) {
        return NULL;
    }
    return (const char *)node->data.scalar.value;
}

static const struct key *find_key(const struct key *keys, size_t count, const char *name,
                                  size_t *ret_index)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            *ret_index = i;
            return &keys[i];
        }
    }
    return NULL;
}

static kelp_status unknown_key(struct reader *reader, const yaml_node_t *name, const char *text,
                               const struct key *keys, size_t count)
{
    char known[256] = "unknown key; known are";
    size_t used = strlen(known);

    for (size_t i = 0; i < count; i++) {
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s %s", i > 0 ? "," : "",
                                 keys[i].name);
    }
    return fail_at(reader, name, kelp_value_text(text, WORD_BYTES, NULL) == KELP_OK ? text : "",
                   known);
}

static kelp_status read_pair(struct reader *reader, const yaml_node_t *name,
                             const yaml_node_t *value, const struct key *keys, size_t count,
                             bool seen[PAIRS_MAX], void *into)
{
    struct kelp_error error = {.text = ""};
    const char *text = name ? scalar(name) : NULL;
    size_t index = 0;

    if (!text || !value) {
        return fail_at(reader, name ? name : yaml_document_get_root_node(reader->document), "",
                       "a key is not a single word");
    }
    const struct key *key = find_key(keys, count, text, &index);
    if (!key) {
        return unknown_key(reader, name, text, keys, count);
    }
    if (seen[index]) {
        return fail_at(reader, name, text, "given twice");
    }
    seen[index] = true;
    kelp_status status = key->read(reader, value, scalar(value), into, &error);
    if (status == KELP_OK || error.status == KELP_OK) {
        return status; /* a reader of nodes below has said all itself */
    }
    return fail_at(reader, value, text, error.text);
}

static kelp_status read_mapping(struct reader *reader, const yaml_node_t *node, const char *what,
                                const struct key *keys, size_t count, void *into)
{
    bool seen[PAIRS_MAX] = {false};

    if (node->type != YAML_MAPPING_NODE) {
        return fail_at(reader, node, what, "not keys and values (key: value)");
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        kelp_status status = read_pair(reader, yaml_document_get_node(reader->document, pair->key),
                                       yaml_document_get_node(reader->document, pair->value), keys,
                                       count, seen, into);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (keys[i].required && !seen[i]) {
            return fail_at(reader, node, keys[i].name, "is missing");
        }
    }
    return KELP_OK;
}

/* ---- values -------------------------------------------------------------------------------- */

static kelp_status need_text(const char *text, struct kelp_error *reterr)
{
    return text ? KELP_OK : kelp_fail(reterr, KELP_ERR_INVALID, "not a single value");
}

static kelp_status read_kind(struct reader *reader, const yaml_node_t *value, const char *text,
                             void *into, struct kelp_error *reterr)
{
    struct kelp_chaos_entry *entry = into;
    const char *names[KELP_CHAOS_KIND_COUNT + 1] = {NULL};
    uint32_t index = 0;

    (void)reader;
    (void)value;
    for (size_t i = 0; i < KELP_CHAOS_KIND_COUNT; i++) {
        names[i] = kelp_chaos_kind_name((enum kelp_chaos_kind)i);
    }
    kelp_status status = need_text(text, reterr);
    if (status == KELP_OK) {
        status = kelp_value_choice(text, names, &index, reterr);
    }
    if (status == KELP_OK) {
        entry->kind = (enum kelp_chaos_kind)index;
    }
    return status;
}

/* "worker", "worker-3", "leader": the number may be missing. */
static kelp_status read_target(struct reader *reader, const yaml_node_t *value, const char *text,
                               void *into, struct kelp_error *reterr)
{
    struct kelp_chaos_entry *entry = into;

    (void)reader;
    (void)value;
    kelp_status status = need_text(text, reterr);
    for (size_t i = 0; status == KELP_OK && i < KELP_CHAOS_ROLE_COUNT; i++) {
        const char *name = kelp_chaos_role_name((enum kelp_chaos_role)i);
        size_t bytes = strlen(name);
        uint64_t index = 0;
        if (strncmp(text, name, bytes) != 0) {
            continue;
        }
        entry->role = (enum kelp_chaos_role)i;
        if (text[bytes] == '\0') {
            return KELP_OK;
        }
        if (text[bytes] == '-' && entry->role <= KELP_CHAOS_COORDINATOR &&
            kelp_value_u64(text + bytes + 1, 0, 9999, &index, NULL) == KELP_OK) {
            entry->numbered = true;
            entry->index = (uint32_t)index;
            return KELP_OK;
        }
    }
    return status != KELP_OK
               ? status
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "no target; allowed are worker, shard, coordinator (each "
                           "also with a number, as shard-0), leader, standby, etcd, disk, "
                           "everything");
}

static kelp_status read_steps(const char *text, uint32_t min, struct kelp_range *ret_range,
                              struct kelp_error *reterr)
{
    kelp_status status = need_text(text, reterr);

    return status == KELP_OK ? kelp_value_range(text, min, KELP_CHAOS_STEP_MAX, ret_range, reterr)
                             : status;
}

static kelp_status read_step(struct reader *reader, const yaml_node_t *value, const char *text,
                             void *into, struct kelp_error *reterr)
{
    struct kelp_chaos_entry *entry = into;

    (void)reader;
    (void)value;
    return read_steps(text, 1, &entry->step, reterr);
}

static kelp_status read_for(struct reader *reader, const yaml_node_t *value, const char *text,
                            void *into, struct kelp_error *reterr)
{
    struct kelp_chaos_entry *entry = into;
    char first[WORD_BYTES];
    uint64_t least = 0;
    uint64_t most = 0;

    (void)reader;
    (void)value;
    kelp_status status = need_text(text, reterr);
    if (status != KELP_OK) {
        return status;
    }
    const char *colon = strchr(text, ':');
    (void)snprintf(first, sizeof(first), "%.*s", (int)(colon ? colon - text : WORD_BYTES - 1),
                   text);
    status = kelp_value_duration(first, 1, KELP_CHAOS_FOR_MAX_MS, &least, reterr);
    most = least;
    if (status == KELP_OK && colon) {
        status = kelp_value_duration(colon + 1, least, KELP_CHAOS_FOR_MAX_MS, &most, reterr);
    }
    if (status == KELP_OK) {
        entry->for_ms = (struct kelp_range){.min = (uint32_t)least, .max = (uint32_t)most};
    }
    return status;
}

static kelp_status read_u32(const char *text, uint32_t min, uint32_t max, uint32_t *ret_value,
                            struct kelp_error *reterr)
{
    uint64_t number = 0;
    kelp_status status = need_text(text, reterr);

    if (status == KELP_OK) {
        status = kelp_value_u64(text, min, max, &number, reterr);
    }
    if (status == KELP_OK) {
        *ret_value = (uint32_t)number;
    }
    return status;
}

static kelp_status read_weight(struct reader *reader, const yaml_node_t *value, const char *text,
                               void *into, struct kelp_error *reterr)
{
    struct kelp_chaos_entry *entry = into;

    (void)reader;
    (void)value;
    return read_u32(text, 1, KELP_CHAOS_WEIGHT_MAX, &entry->weight, reterr);
}

static kelp_status read_count(struct reader *reader, const yaml_node_t *value, const char *text,
                              void *into, struct kelp_error *reterr)
{
    (void)value;
    (void)into;
    return read_u32(text, 1, KELP_CHAOS_FAULTS_MAX, &reader->plan->draw_count, reterr);
}

static kelp_status read_first(struct reader *reader, const yaml_node_t *value, const char *text,
                              void *into, struct kelp_error *reterr)
{
    (void)value;
    (void)into;
    return read_steps(text, 1, &reader->plan->first, reterr);
}

static kelp_status read_every(struct reader *reader, const yaml_node_t *value, const char *text,
                              void *into, struct kelp_error *reterr)
{
    (void)value;
    (void)into;
    return read_steps(text, 0, &reader->plan->every, reterr);
}

static kelp_status read_if_possible(struct reader *reader, const yaml_node_t *value,
                                    const char *text, void *into, struct kelp_error *reterr)
{
    kelp_status status = need_text(text, reterr);

    (void)value;
    (void)into;
    return status == KELP_OK ? kelp_value_bool(text, &reader->plan->if_possible, reterr) : status;
}

/* ---- lists --------------------------------------------------------------------------------- */

static const struct key fault_keys[] = {{"kind", read_kind, true},
                                        {"target", read_target, true},
                                        {"step", read_step, true},
                                        {"for", read_for, false}};
static const struct key mix_keys[] = {{"kind", read_kind, true},
                                      {"target", read_target, true},
                                      {"for", read_for, false},
                                      {"weight", read_weight, false}};

struct list {
    const char *name;
    const struct key *keys;
    size_t key_count;
    struct kelp_chaos_entry *entries;
    uint32_t *count;
};

static kelp_status read_entry(struct reader *reader, const yaml_node_t *node,
                              const struct list *list)
{
    struct kelp_error error = {.text = ""};
    struct kelp_chaos_entry entry = {.weight = 1, .line = line_of(node)};

    if (*list->count == KELP_CHAOS_ENTRIES_MAX) {
        return fail_at(reader, node, list->name, "more than 128 entries");
    }
    kelp_status status =
        read_mapping(reader, node, list->name, list->keys, list->key_count, &entry);
    if (status != KELP_OK) {
        return status;
    }
    if (kelp__chaos_entry_check(&entry, &error) != KELP_OK) {
        return fail_at(reader, node, "", error.text);
    }
    list->entries[*list->count] = entry;
    *list->count += 1;
    return KELP_OK;
}

static kelp_status read_list(struct reader *reader, const yaml_node_t *node,
                             const struct list *list)
{
    if (node->type != YAML_SEQUENCE_NODE ||
        node->data.sequence.items.start == node->data.sequence.items.top) {
        return fail_at(reader, node, list->name, "not a list of faults (- {kind: kill, …})");
    }
    for (yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        const yaml_node_t *entry = yaml_document_get_node(reader->document, *item);
        kelp_status status = entry ? read_entry(reader, entry, list)
                                   : fail_at(reader, node, list->name, "malformed");
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status read_faults(struct reader *reader, const yaml_node_t *value, const char *text,
                               void *into, struct kelp_error *reterr)
{
    struct list list = {"faults", fault_keys, KELP_ARRAY_COUNT(fault_keys), reader->plan->faults,
                        &reader->plan->fault_count};

    (void)text;
    (void)into;
    (void)reterr;
    return read_list(reader, value, &list);
}

static kelp_status read_mix(struct reader *reader, const yaml_node_t *value, const char *text,
                            void *into, struct kelp_error *reterr)
{
    struct list list = {"mix", mix_keys, KELP_ARRAY_COUNT(mix_keys), reader->plan->mix,
                        &reader->plan->mix_count};

    (void)text;
    (void)into;
    (void)reterr;
    return read_list(reader, value, &list);
}

static kelp_status read_draw(struct reader *reader, const yaml_node_t *value, const char *text,
                             void *into, struct kelp_error *reterr)
{
    static const struct key keys[] = {{"count", read_count, true},
                                      {"first", read_first, false},
                                      {"every", read_every, true},
                                      {"mix", read_mix, true}};

    (void)text;
    (void)into;
    (void)reterr;
    kelp_status status =
        read_mapping(reader, value, "draw", keys, KELP_ARRAY_COUNT(keys), reader->plan);
    if (status == KELP_OK && reader->plan->first.max == 0) {
        reader->plan->first = reader->plan->every;
    }
    return status;
}

static kelp_status read_top(struct reader *reader, const yaml_node_t *root)
{
    static const struct key keys[] = {{"faults", read_faults, false},
                                      {"draw", read_draw, false},
                                      {"if_possible", read_if_possible, false}};

    kelp_status status = read_mapping(reader, root, "", keys, KELP_ARRAY_COUNT(keys), reader->plan);
    if (status == KELP_OK && reader->plan->fault_count + reader->plan->draw_count == 0) {
        return fail_at(reader, root, "", "no faults: neither faults nor draw is there");
    }
    return status;
}

/* ---- the text ------------------------------------------------------------------------------ */

static kelp_status parser_error(struct reader *reader, const yaml_parser_t *parser)
{
    if (parser->error == YAML_MEMORY_ERROR) {
        return kelp_fail(reader->reterr, KELP_ERR_NO_MEMORY, "%s: out of memory",
                         reader->plan->name);
    }
    return kelp_fail(reader->reterr, KELP_ERR_INVALID, "%s:%zu: not YAML: %s", reader->plan->name,
                     parser->problem_mark.line + 1,
                     parser->problem ? parser->problem : "malformed");
}

static kelp_status check_end(struct reader *reader, yaml_parser_t *parser)
{
    yaml_document_t document;

    if (!yaml_parser_load(parser, &document)) {
        return parser_error(reader, parser);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    kelp_status status = root ? fail_at(reader, root, "", "a second document") : KELP_OK;
    yaml_document_delete(&document);
    return status;
}

static kelp_status read_document(struct reader *reader, yaml_parser_t *parser)
{
    yaml_document_t document;

    if (!yaml_parser_load(parser, &document)) {
        return parser_error(reader, parser);
    }
    reader->document = &document;
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    kelp_status status =
        root ? read_top(reader, root)
             : kelp_fail(reader->reterr, KELP_ERR_INVALID, "%s: holds no plan", reader->plan->name);
    yaml_document_delete(&document);
    reader->document = NULL;
    return status == KELP_OK ? check_end(reader, parser) : status;
}

/* Brackets are counted wherever they stand: no plan comes near. */
static bool too_deep(const char *text, size_t text_bytes)
{
    size_t depth = 0;

    for (size_t i = 0; i < text_bytes && depth <= NESTING_MAX; i++) {
        if (text[i] == '[' || text[i] == '{') {
            depth++;
        } else if ((text[i] == ']' || text[i] == '}') && depth > 0) {
            depth--;
        }
    }
    return depth > NESTING_MAX;
}

kelp_status kelp_chaos_plan_parse(const char *name, const char *text, size_t text_bytes,
                                  struct kelp_chaos_plan *ret_plan, struct kelp_error *reterr)
{
    yaml_parser_t parser;
    struct reader reader = {.plan = ret_plan, .reterr = reterr};

    memset(ret_plan, 0, sizeof(*ret_plan));
    (void)snprintf(ret_plan->name, sizeof(ret_plan->name), "%s", name);
    if (text_bytes > KELP_CHAOS_PLAN_BYTES_MAX || too_deep(text, text_bytes)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%s: over %u bytes or %d nested brackets: is this "
                         "a plan?",
                         ret_plan->name, KELP_CHAOS_PLAN_BYTES_MAX, NESTING_MAX);
    }
    if (!yaml_parser_initialize(&parser)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", ret_plan->name);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, text_bytes);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    kelp_status status = read_document(&reader, &parser);
    yaml_parser_delete(&parser);
    return status;
}
