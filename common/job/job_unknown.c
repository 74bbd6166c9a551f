/* Suggests the key that was meant by an unknown one. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/value.h"
#include "common/job/job_options.h"

static bool in_section(const char *key, const char *section, size_t section_bytes)
{
    return strncmp(key, section, section_bytes) == 0 && key[section_bytes] == '.';
}

/* List the names of a section's keys, without the section, as far as there is room. */
static void list_section(const char *section, size_t section_bytes, char *text, size_t text_bytes)
{
    static const char more[] = ", … (kelp explain lists all)";
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const char *key = kelp__job_keys[i].name;
        if (!in_section(key, section, section_bytes)) {
            continue;
        }
        const char *name = key + section_bytes + 1;
        if (used + strlen(name) + 2 + sizeof(more) > text_bytes) {
            (void)snprintf(text + used, text_bytes - used, "%s", more);
            return;
        }
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? ", " : "", name);
    }
}

static void list_top(char *text, size_t text_bytes)
{
    char section[32] = "";

    text[0] = '\0';
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const char *key = kelp__job_keys[i].name;
        size_t length = strcspn(key, ".");
        if (strlen(section) == length && strncmp(section, key, length) == 0) {
            continue;
        }
        (void)snprintf(section, sizeof(section), "%.*s", (int)length, key);
        kelp_text_list_add(text, text_bytes, section);
    }
}

/* Names of keys in other programs. */
static const struct {
    const char *typed; /* without the section */
    const char *key;
} aliases[] = {
    {"learning_rate", "train.lr"},
    {"num_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"n_epochs", "train.epochs"},
    {"batch", "train.batch_size"},
    {"bs", "train.batch_size"},
    {"scheduler", "train.schedule"},
    {"lr_scheduler", "train.schedule"},
    {"criterion", "train.loss"},
    {"early_stopping", "train.patience"},
    {"gradient_clip", "train.clip_norm"},
    {"grad_clip", "train.clip_norm"},
    {"random_seed", "seed"},
    {"num_classes", "model.classes"},
    {"n_classes", "model.classes"},
    {"hidden_size", "model.hidden"},
    {"hidden_layers", "model.hidden"},
    {"architecture", "model.kind"},
    {"dataset", "data.path"},
    {"file", "data.path"},
    {"csv", "data.path"},
    {"label", "data.targets"},
    {"labels", "data.targets"},
    {"categorical", "data.categories"},
    {"horizon", "data.pred_len"},
    {"num_workers", "cluster.workers"},
    {"n_workers", "cluster.workers"},
    {"output_dir", "run.dir"},
    {"out_dir", "run.dir"},
};

/* The key without its section. */
static const char *leaf_of(const char *key)
{
    const char *dot = strchr(key, '.');

    return dot ? dot + 1 : key;
}

/* "train.lr" or "model.kind or data.kind": the keys of that name in any section. */
static bool same_leaf(const char *leaf, char *text, size_t text_bytes)
{
    size_t used = 0;

    for (size_t i = 0; i < KELP_ARRAY_COUNT(aliases); i++) {
        if (strcmp(aliases[i].typed, leaf) == 0) {
            (void)snprintf(text, text_bytes, "%s", aliases[i].key);
            return true;
        }
    }
    for (size_t i = 0; i < kelp__job_key_count && used < text_bytes; i++) {
        if (strcmp(leaf_of(kelp__job_keys[i].name), leaf) == 0) {
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 0 ? " or " : "",
                                     kelp__job_keys[i].name);
        }
    }
    return used > 0;
}

/* The nearest candidate so far. */
struct nearest {
    char word[64];
    uint32_t distance;
};

static void consider(struct nearest *nearest, uint32_t distance, const char *word)
{
    if (distance < nearest->distance && kelp_value_near(distance, word)) {
        nearest->distance = distance;
        (void)snprintf(nearest->word, sizeof(nearest->word), "%s", word);
    }
}

/* The nearest key. If no section was typed, also the nearest section, or keys of any section
 * whose last word is nearest. */
static bool nearest_key(const char *typed, char *text, size_t text_bytes)
{
    struct nearest whole = {.distance = UINT32_MAX}, leaf = {.distance = UINT32_MAX};

    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const char *key = kelp__job_keys[i].name;
        char head[32];
        (void)snprintf(head, sizeof(head), "%.*s", (int)strcspn(key, "."), key);
        consider(&whole, kelp_value_distance(typed, key), key);
        if (!strchr(typed, '.')) {
            consider(&whole, kelp_value_distance(typed, head), head);
            consider(&leaf, kelp_value_distance(typed, leaf_of(key)), leaf_of(key));
        }
    }
    if (leaf.distance < whole.distance) {
        return same_leaf(leaf.word, text, text_bytes);
    }
    (void)snprintf(text, text_bytes, "%s", whole.word);
    return whole.word[0] != '\0';
}

/* Lower case, dashes as underscores: "Learning-Rate" is learning_rate. */
static void plain(const char *typed, char *text, size_t text_bytes)
{
    (void)snprintf(text, text_bytes, "%s", typed);
    for (char *c = text; *c != '\0'; c++) {
        *c = *c == '-' ? '_' : (char)tolower((unsigned char)*c);
    }
}

kelp_status kelp__job_key_unknown(const char *typed, struct kelp_error *reterr)
{
    char list[384], meant[160], word[64];
    size_t section = strcspn(typed, ".");

    plain(typed, word, sizeof(word));
    list_section(typed, section, list, sizeof(list));
    bool is_section = list[0] != '\0' && typed[section] == '\0';
    if (!is_section && (same_leaf(leaf_of(word), meant, sizeof(meant)) ||
                        nearest_key(word, meant, sizeof(meant)))) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "unknown key; did you mean %s?", meant);
    }
    if (list[0] != '\0') {
        return kelp_fail(reterr, KELP_ERR_INVALID, "unknown key; allowed in %.*s are %s",
                         (int)section, typed, list);
    }
    list_top(list, sizeof(list));
    return kelp_fail(reterr, KELP_ERR_INVALID, "unknown key; allowed are %s", list);
}
