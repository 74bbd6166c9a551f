#include "common/tensors/rename.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* A text up to its star, if it has one, and what follows the star. */
struct pattern {
    const char *head;
    size_t head_bytes;
    const char *tail; /* NULL: no star */
    size_t tail_bytes;
};
struct rule {
    struct pattern from, to;
};

static struct pattern read_pattern(const char *text, size_t bytes)
{
    const char *star = memchr(text, '*', bytes);
    if (!star) {
        return (struct pattern){.head = text, .head_bytes = bytes};
    }
    size_t head_bytes = (size_t)(star - text);
    return (struct pattern){.head = text,
                            .head_bytes = head_bytes,
                            .tail = star + 1,
                            .tail_bytes = bytes - head_bytes - 1};
}

/* A rule has one '=', no star or one on each side, and a non-empty left side. */
static bool read_rule(const char *text, size_t bytes, struct rule *ret_rule)
{
    const char *equals = memchr(text, '=', bytes);
    if (!equals || equals == text) {
        return false;
    }
    size_t from_bytes = (size_t)(equals - text);
    size_t to_bytes = bytes - from_bytes - 1;
    ret_rule->from = read_pattern(text, from_bytes);
    ret_rule->to = read_pattern(equals + 1, to_bytes);
    const struct pattern *from = &ret_rule->from, *to = &ret_rule->to;
    return !memchr(equals + 1, '=', to_bytes) && (from->tail != NULL) == (to->tail != NULL) &&
           (!from->tail ||
            (!memchr(from->tail, '*', from->tail_bytes) && !memchr(to->tail, '*', to->tail_bytes)));
}

const char *kelp_rename_rule(const char *rules, size_t number, size_t *ret_bytes)
{
    const char *rule = rules;
    for (size_t i = 0; *rule != '\0'; i++) {
        *ret_bytes = strcspn(rule, "\n");
        if (i == number) {
            return rule;
        }
        rule += *ret_bytes + (rule[*ret_bytes] == '\n' ? 1 : 0);
    }
    return NULL;
}

kelp_status kelp_rename_check(const char *rules, struct kelp_error *reterr)
{
    const char *text = NULL;
    size_t bytes = 0;
    for (size_t i = 0; (text = kelp_rename_rule(rules, i, &bytes)); i++) {
        struct rule rule;
        if (!read_rule(text, bytes, &rule)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "'%.*s' is not OLD=NEW: a name's beginning in the file and in the "
                             "model, or whole names with one * on each side",
                             (int)(bytes < 64 ? bytes : 64), text);
        }
    }
    return KELP_OK;
}

static bool fits(const struct pattern *from, const char *name, size_t bytes)
{
    if (bytes < from->head_bytes + from->tail_bytes ||
        memcmp(name, from->head, from->head_bytes) != 0) {
        return false;
    }
    return !from->tail ||
           memcmp(name + bytes - from->tail_bytes, from->tail, from->tail_bytes) == 0;
}

size_t kelp_rename(const char *rules, const char *name, char *text, size_t text_bytes)
{
    const char *at = NULL;
    size_t rule_bytes = 0, bytes = strlen(name);
    for (size_t i = 0; (at = kelp_rename_rule(rules, i, &rule_bytes)); i++) {
        struct rule rule;
        if (!read_rule(at, rule_bytes, &rule) || !fits(&rule.from, name, bytes)) {
            continue;
        }
        size_t kept = bytes - rule.from.head_bytes - rule.from.tail_bytes;
        (void)snprintf(text, text_bytes, "%.*s%.*s%.*s", (int)rule.to.head_bytes, rule.to.head,
                       (int)kept, name + rule.from.head_bytes, (int)rule.to.tail_bytes,
                       rule.to.tail ? rule.to.tail : "");
        return i;
    }
    (void)snprintf(text, text_bytes, "%s", name);
    return KELP_RENAME_NONE;
}
