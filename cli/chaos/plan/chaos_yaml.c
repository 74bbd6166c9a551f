/*
 * Plans of faults in YAML. Two levels of mappings and one of lists are looked at and nothing else,
 * so that depth, aliases and cycles of a document do not matter.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "cli/chaos/plan/chaos_plan.h"
#include "common/base/value.h"
#include "common/job/yaml_text.h"

#define WORD_BYTES  64
#define NESTING_MAX 16 /* brackets: libyaml's parser takes stack for each */
#define PAIRS_MAX   16 /* keys of one mapping */

struct reader {
    struct kelp_chaos_plan *plan;
    yaml_document_t *document;
    struct kelp_error *reterr;
};

enum value {
    VALUE_KIND,   /* into an entry */
    VALUE_TARGET, /* into an entry */
    VALUE_FOR,    /* into an entry */
    VALUE_STEPS,  /* a kelp_range of steps */
    VALUE_TO,     /* a kelp_range of processes */
    VALUE_NUMBER, /* a uint32_t */
    VALUE_BOOL,
    VALUE_FAULTS, /* a list of entries, into the plan */
    VALUE_MIX,    /* likewise */
    VALUE_DRAW    /* a mapping, into the plan */
};

/* One key of a mapping and what its value means. */
struct key {
    const char *name;
    enum value value;
    bool required;
    size_t offset; /* STEPS, NUMBER, BOOL: where it goes in what the mapping is read into */
    uint32_t min;  /* STEPS, NUMBER */
    uint32_t max;  /* NUMBER */
};

struct mapping {
    const char *name;
    const struct key *keys;
    size_t count;
    void *into; /* a kelp_chaos_plan or a kelp_chaos_entry */
    bool seen[PAIRS_MAX];
};

#define ENTRY(field) offsetof(struct kelp_chaos_entry, field)
#define PLAN(field)  offsetof(struct kelp_chaos_plan, field)

static const struct key fault_keys[] = {{"kind", VALUE_KIND, true, 0, 0, 0},
                                        {"target", VALUE_TARGET, true, 0, 0, 0},
                                        {"step", VALUE_STEPS, true, ENTRY(step), 1, 0},
                                        {"for", VALUE_FOR, false, 0, 0, 0},
                                        {"to", VALUE_TO, false, ENTRY(to), 1, 0}};
static const struct key mix_keys[] = {
    {"kind", VALUE_KIND, true, 0, 0, 0},
    {"target", VALUE_TARGET, true, 0, 0, 0},
    {"for", VALUE_FOR, false, 0, 0, 0},
    {"to", VALUE_TO, false, ENTRY(to), 1, 0},
    {"weight", VALUE_NUMBER, false, ENTRY(weight), 1, KELP_CHAOS_WEIGHT_MAX}};
static const struct key draw_keys[] = {
    {"count", VALUE_NUMBER, true, PLAN(draw_count), 1, KELP_CHAOS_FAULTS_MAX},
    {"first", VALUE_STEPS, false, PLAN(first), 1, 0},
    {"every", VALUE_STEPS, true, PLAN(every), 0, 0},
    {"mix", VALUE_MIX, true, 0, 0, 0}};
static const struct key top_keys[] = {{"faults", VALUE_FAULTS, false, 0, 0, 0},
                                      {"draw", VALUE_DRAW, false, 0, 0, 0},
                                      {"if_possible", VALUE_BOOL, false, PLAN(if_possible), 0, 0}};

static kelp_status fail_at(struct reader *reader, const yaml_node_t *node, const char *key,
                           const char *text)
{
    return kelp_fail(reader->reterr, KELP_ERR_INVALID, "%s:%" PRIu32 ": %.63s%s%.255s",
                     reader->plan->name, kelp_yaml_line(node), key, key[0] != '\0' ? ": " : "",
                     text);
}

/* ---- values ---- */

/* A scalar's text, or NULL when there is none or it is longer than any value. */
static const char *scalar(const yaml_node_t *node)
{
    const char *text = kelp_yaml_scalar(node);

    return text && strlen(text) < WORD_BYTES ? text : NULL;
}

static kelp_status read_kind(const char *text, struct kelp_chaos_entry *entry,
                             struct kelp_error *reterr)
{
    const char *names[KELP_CHAOS_KIND_COUNT + 1] = {NULL};
    uint32_t index = 0;

    for (size_t i = 0; i < KELP_CHAOS_KIND_COUNT; i++) {
        names[i] = kelp_chaos_kind_name((enum kelp_chaos_kind)i);
    }
    kelp_status status = kelp_value_choice(text, names, &index, reterr);
    if (status == KELP_OK) {
        entry->kind = (enum kelp_chaos_kind)index;
    }
    return status;
}

/* "worker", "worker-3", "leader": the number may be missing. */
static kelp_status read_target(const char *text, struct kelp_chaos_entry *entry,
                               struct kelp_error *reterr)
{
    for (size_t i = 0; i < KELP_CHAOS_ROLE_COUNT; i++) {
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
        if (text[bytes] == '-' &&
            (entry->role <= KELP_CHAOS_COORDINATOR || entry->role == KELP_CHAOS_HOST) &&
            kelp_value_u64(text + bytes + 1, 0, 9999, &index, NULL) == KELP_OK) {
            entry->numbered = true;
            entry->index = (uint32_t)index;
            return KELP_OK;
        }
    }
    return kelp_fail(
        reterr, KELP_ERR_INVALID,
        "no target; allowed are worker, shard, coordinator (each also with a number, such as "
        "shard-0), leader, standby, primary, backup, both, etcd, disk, everything; "
        "and host, also with a number");
}

static kelp_status read_for(const char *text, struct kelp_chaos_entry *entry,
                            struct kelp_error *reterr)
{
    const char *colon = strchr(text, ':');
    char first[WORD_BYTES];
    uint64_t least = 0;

    (void)snprintf(first, sizeof(first), "%.*s", (int)(colon ? colon - text : WORD_BYTES - 1),
                   text);
    kelp_status status = kelp_value_duration(first, 1, KELP_CHAOS_FOR_MAX_MS, &least, reterr);
    uint64_t most = least;
    if (status == KELP_OK && colon) {
        status = kelp_value_duration(colon + 1, least, KELP_CHAOS_FOR_MAX_MS, &most, reterr);
    }
    if (status == KELP_OK) {
        entry->for_ms = (struct kelp_range){.min = (uint32_t)least, .max = (uint32_t)most};
    }
    return status;
}

static kelp_status read_scalar(const struct key *key, const char *text, void *into,
                               struct kelp_error *reterr)
{
    void *field = (char *)into + key->offset;
    uint64_t number = 0;
    kelp_status status = KELP_OK;

    if (!text) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "not a single value");
    }
    switch (key->value) {
    case VALUE_KIND:
        return read_kind(text, into, reterr);
    case VALUE_TARGET:
        return read_target(text, into, reterr);
    case VALUE_FOR:
        return read_for(text, into, reterr);
    case VALUE_STEPS:
        return kelp_value_range(text, key->min, KELP_CHAOS_STEP_MAX, field, reterr);
    case VALUE_TO:
        return kelp_value_range(text, key->min, KELP_CHAOS_TO_MAX, field, reterr);
    case VALUE_BOOL:
        return kelp_value_bool(text, field, reterr);
    default:
        status = kelp_value_u64(text, key->min, key->max, &number, reterr);
        if (status == KELP_OK) {
            *(uint32_t *)field = (uint32_t)number;
        }
        return status;
    }
}

/* ---- mappings and lists ---- */

static kelp_status read_mapping(struct reader *reader, const yaml_node_t *node,
                                struct mapping *mapping);

static kelp_status read_entry(struct reader *reader, const yaml_node_t *node, bool faults,
                              struct kelp_chaos_entry *entries, uint32_t *count)
{
    struct kelp_error error = {.text = ""};
    struct kelp_chaos_entry entry = {.weight = 1, .line = kelp_yaml_line(node)};
    struct mapping mapping = {.name = faults ? "faults" : "mix",
                              .keys = faults ? fault_keys : mix_keys,
                              .count = faults ? KELP_ARRAY_COUNT(fault_keys)
                                              : KELP_ARRAY_COUNT(mix_keys),
                              .into = &entry};

    if (*count == KELP_CHAOS_ENTRIES_MAX) {
        return fail_at(reader, node, mapping.name, "more than 128 entries");
    }
    kelp_status status = read_mapping(reader, node, &mapping);
    if (status == KELP_OK && kelp__chaos_entry_check(&entry, &error) != KELP_OK) {
        status = fail_at(reader, node, "", error.text);
    }
    if (status == KELP_OK) {
        entries[(*count)++] = entry;
    }
    return status;
}

static kelp_status read_list(struct reader *reader, const yaml_node_t *node, bool faults)
{
    struct kelp_chaos_plan *plan = reader->plan;
    const char *name = faults ? "faults" : "mix";

    if (node->type != YAML_SEQUENCE_NODE ||
        node->data.sequence.items.start == node->data.sequence.items.top) {
        return fail_at(reader, node, name, "not a list of faults (- {kind: kill, …})");
    }
    for (yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        const yaml_node_t *entry = yaml_document_get_node(reader->document, *item);
        kelp_status status =
            entry ? read_entry(reader, entry, faults, faults ? plan->faults : plan->mix,
                               faults ? &plan->fault_count : &plan->mix_count)
                  : fail_at(reader, node, name, "malformed");
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static kelp_status read_draw(struct reader *reader, const yaml_node_t *node)
{
    struct mapping mapping = {.name = "draw",
                              .keys = draw_keys,
                              .count = KELP_ARRAY_COUNT(draw_keys),
                              .into = reader->plan};

    kelp_status status = read_mapping(reader, node, &mapping);
    if (status == KELP_OK && reader->plan->first.max == 0) {
        reader->plan->first = reader->plan->every;
    }
    return status;
}

static kelp_status read_value(struct reader *reader, const yaml_node_t *node, const struct key *key,
                              void *into)
{
    struct kelp_error error = {.text = ""};

    if (key->value == VALUE_DRAW) {
        return read_draw(reader, node);
    }
    if (key->value == VALUE_FAULTS || key->value == VALUE_MIX) {
        return read_list(reader, node, key->value == VALUE_FAULTS);
    }
    kelp_status status = read_scalar(key, scalar(node), into, &error);
    return status == KELP_OK ? KELP_OK : fail_at(reader, node, key->name, error.text);
}

static kelp_status unknown_key(struct reader *reader, const yaml_node_t *name, const char *text,
                               const struct mapping *mapping)
{
    char known[256] = "unknown key; known are";
    size_t used = strlen(known);

    for (size_t i = 0; i < mapping->count; i++) {
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s %s", i > 0 ? "," : "",
                                 mapping->keys[i].name);
    }
    return fail_at(reader, name, kelp_value_text(text, WORD_BYTES, NULL) == KELP_OK ? text : "",
                   known);
}

static kelp_status read_pair(struct reader *reader, const yaml_node_pair_t *pair,
                             struct mapping *mapping)
{
    const yaml_node_t *name = yaml_document_get_node(reader->document, pair->key);
    const yaml_node_t *value = yaml_document_get_node(reader->document, pair->value);
    const char *text = name ? scalar(name) : NULL;
    size_t index = 0;

    if (!text || !value) {
        return fail_at(reader, name ? name : yaml_document_get_root_node(reader->document), "",
                       "a key is not a single word");
    }
    while (index < mapping->count && strcmp(mapping->keys[index].name, text) != 0) {
        index++;
    }
    if (index == mapping->count) {
        return unknown_key(reader, name, text, mapping);
    }
    if (mapping->seen[index]) {
        return fail_at(reader, name, text, "given twice");
    }
    mapping->seen[index] = true;
    return read_value(reader, value, &mapping->keys[index], mapping->into);
}

static kelp_status read_mapping(struct reader *reader, const yaml_node_t *node,
                                struct mapping *mapping)
{
    if (node->type != YAML_MAPPING_NODE) {
        return fail_at(reader, node, mapping->name, "not keys and values (key: value)");
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start;
         pair < node->data.mapping.pairs.top; pair++) {
        kelp_status status = read_pair(reader, pair, mapping);
        if (status != KELP_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < mapping->count; i++) {
        if (mapping->keys[i].required && !mapping->seen[i]) {
            return fail_at(reader, node, mapping->keys[i].name, "is missing");
        }
    }
    return KELP_OK;
}

static kelp_status read_top(yaml_document_t *document, const yaml_node_t *root, void *user)
{
    struct reader *reader = user;
    struct mapping mapping = {
        .name = "", .keys = top_keys, .count = KELP_ARRAY_COUNT(top_keys), .into = reader->plan};

    reader->document = document;
    kelp_status status = read_mapping(reader, root, &mapping);
    if (status == KELP_OK && reader->plan->fault_count + reader->plan->draw_count == 0) {
        return fail_at(reader, root, "", "no faults: the plan has neither faults nor draw");
    }
    return status;
}

kelp_status kelp_chaos_plan_parse(const char *name, const char *text, size_t text_bytes,
                                  struct kelp_chaos_plan *ret_plan, struct kelp_error *reterr)
{
    struct reader reader = {.plan = ret_plan, .reterr = reterr};
    const struct kelp_yaml_text yaml = {.name = name,
                                        .text = text,
                                        .text_bytes = text_bytes,
                                        .missing = "holds no plan",
                                        .read = read_top,
                                        .user = &reader};

    memset(ret_plan, 0, sizeof(*ret_plan));
    (void)snprintf(ret_plan->name, sizeof(ret_plan->name), "%s", name);
    if (text_bytes > KELP_CHAOS_PLAN_BYTES_MAX ||
        kelp_yaml_too_deep(text, text_bytes, NESTING_MAX)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT,
                         "%s: over %u bytes or %d nested brackets: is this a plan?", ret_plan->name,
                         KELP_CHAOS_PLAN_BYTES_MAX, NESTING_MAX);
    }
    return kelp_yaml_read(&yaml, reterr);
}
