/*
 * Job files in YAML, through libyaml's document API: each node knows its line. Only two levels of
 * mappings, scalars and flat lists are read, so that depth, aliases and cycles of a document do not
 * matter.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/value.h"
#include "common/job/job_options.h"
#include "common/job/yaml_text.h"

#define KEY_BYTES  64
#define LIST_BYTES (KELP_JOB_TEXTS_MAX + 1)

struct reader {
    struct kelp_job_file *file;
    yaml_document_t *document;
    bool seen[KELP__JOB_KEYS_MAX];
    struct kelp_error *reterr;
};

static kelp_status fail_at(struct reader *reader, const yaml_node_t *node, const char *key,
                           const char *text)
{
    return kelp_fail(reader->reterr, KELP_ERR_INVALID, "%.127s:%" PRIu32 ": %.63s%s%s",
                     reader->file->name, kelp_yaml_line(node), key, key[0] != '\0' ? ": " : "",
                     text);
}

/* What YAML reads as null: "key:", "key: ~", "key: null". */
static bool is_null(const yaml_node_t *node, const char *text)
{
    return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (text[0] == '\0' || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0);
}

/* Print one entry as --set accepts it in a list of this type; false: it cannot be one. */
static bool print_entry(enum kelp_job_type type, const char *entry, char *text, size_t text_bytes)
{
    uint64_t whole;
    double number;
    size_t used = 0;

    if (type == KELP_JOB_TEXTS) {
        text[used++] = '"';
        for (; *entry != '\0' && used + 4 < text_bytes; entry++) {
            if (*entry == '"' || *entry == '\\') {
                text[used++] = '\\';
            }
            text[used++] = *entry;
        }
        (void)snprintf(text + used, text_bytes - used, "\"");
        return *entry == '\0';
    }
    (void)snprintf(text, text_bytes, "%s", entry);
    return type == KELP_JOB_NUMBERS
               ? kelp_value_double(entry, -DBL_MAX, DBL_MAX, &number, NULL) == KELP_OK
               : kelp_value_u64(entry, 0, UINT64_MAX, &whole, NULL) == KELP_OK;
}

static const char *entry_kind(enum kelp_job_type type)
{
    return type == KELP_JOB_TEXTS     ? "an entry of the list is not a text, or too long"
           : type == KELP_JOB_NUMBERS ? "an entry of the list is not a number"
                                      : "an entry of the list is not an integer";
}

/* A list's entries as "[1, 2]", as --set accepts them. */
static kelp_status join_list(struct reader *reader, const yaml_node_t *node, size_t key_index,
                             char *text, size_t text_bytes)
{
    const char *key = kelp__job_keys[key_index].name;
    enum kelp_job_type type = kelp__job_keys[key_index].type;
    char printed[LIST_BYTES];
    size_t used = (size_t)snprintf(text, text_bytes, "[");

    for (yaml_node_item_t *item = node->data.sequence.items.start;
         item < node->data.sequence.items.top; item++) {
        const yaml_node_t *entry = yaml_document_get_node(reader->document, *item);
        const char *entry_text = entry ? kelp_yaml_scalar(entry) : NULL;
        if (!entry_text || !print_entry(type, entry_text, printed, sizeof(printed))) {
            return fail_at(reader, entry ? entry : node, key, entry_kind(type));
        }
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s%s", used > 1 ? ", " : "", printed);
        if (used + 2 > text_bytes) {
            return fail_at(reader, node, key, "the list is too long");
        }
    }
    (void)snprintf(text + used, text_bytes - used, "]");
    return KELP_OK;
}

static bool is_list(enum kelp_job_type type)
{
    return type == KELP_JOB_WIDTHS || type == KELP_JOB_SPLIT || type == KELP_JOB_NUMBERS ||
           type == KELP_JOB_TEXTS;
}

static kelp_status read_value(struct reader *reader, const char *key, const yaml_node_t *name,
                              const yaml_node_t *value)
{
    char list[LIST_BYTES];
    const char *text = kelp_yaml_scalar(value);
    size_t index = kelp__job_key_find(key);
    struct kelp_origin origin = {.kind = KELP_ORIGIN_FILE, .line = kelp_yaml_line(name)};

    if (index == kelp__job_key_count) {
        return kelp__job_file_assign(reader->file, key, "", origin, reader->reterr);
    }
    if (reader->seen[index]) {
        return fail_at(reader, name, key, "given twice");
    }
    reader->seen[index] = true;
    if (value->type == YAML_SEQUENCE_NODE && is_list(kelp__job_keys[index].type)) {
        kelp_status status = join_list(reader, value, index, list, sizeof(list));
        if (status != KELP_OK) {
            return status;
        }
        text = list;
    } else if (!text) {
        return fail_at(reader, value, key,
                       value->type == YAML_SEQUENCE_NODE  ? "is a list; the key takes one value"
                       : value->type == YAML_MAPPING_NODE ? "is a section; the key takes a value"
                                                          : "not a single value");
    } else if (is_null(value, text)) {
        return fail_at(reader, name, key, "has no value (an empty text is written \"\")");
    }
    return kelp__job_file_assign(reader->file, key, text, origin, reader->reterr);
}

/* The key "section.name" of a node; section is "" at the top level. */
static kelp_status full_key(struct reader *reader, const yaml_node_t *name, const char *section,
                            char *key)
{
    const char *text = kelp_yaml_scalar(name);

    if (!text) {
        return fail_at(reader, name, section, "a key is not a single word");
    }
    int bytes = snprintf(key, KEY_BYTES, "%s%s%s", section, section[0] != '\0' ? "." : "", text);
    if (bytes >= KEY_BYTES || kelp_value_text(text, KEY_BYTES, NULL) != KELP_OK) {
        return fail_at(reader, name, section,
                       "a key is longer than any that is allowed, or not "
                       "printable");
    }
    return KELP_OK;
}

static kelp_status read_section(struct reader *reader, const char *section,
                                const yaml_node_t *mapping)
{
    for (yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
         pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(reader->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(reader->document, pair->value);
        char key[KEY_BYTES] = "";
        if (!name || !value) {
            return fail_at(reader, mapping, section, "malformed");
        }
        kelp_status status = full_key(reader, name, section, key);
        if (status == KELP_OK) {
            status = read_value(reader, key, name, value);
        }
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

static bool is_section(const char *name)
{
    size_t bytes = strlen(name);

    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const char *key = kelp__job_keys[i].name;
        if (strncmp(key, name, bytes) == 0 && key[bytes] == '.') {
            return true;
        }
    }
    return false;
}

static kelp_status read_top_pair(struct reader *reader, const yaml_node_t *name,
                                 const yaml_node_t *value, const yaml_node_t **sections,
                                 size_t *section_count)
{
    char key[KEY_BYTES] = "";
    kelp_status status = full_key(reader, name, "", key);

    if (status != KELP_OK) {
        return status;
    }
    if (!is_section(key)) {
        /* "train.lr: 1" at the top would be a second way to write a key. */
        return strchr(key, '.') ? fail_at(reader, name, key,
                                          "write the section and the key as two "
                                          "levels, the key indented")
                                : read_value(reader, key, name, value);
    }
    for (size_t i = 0; i < *section_count; i++) {
        if (strcmp(kelp_yaml_scalar(sections[i]), key) == 0) {
            return fail_at(reader, name, key, "given twice");
        }
    }
    sections[(*section_count)++] = name; /* fits: unknown and repeated ones were refused */
    if (value->type != YAML_MAPPING_NODE) {
        return fail_at(reader, value, key, "is a section; its keys must be indented below it");
    }
    return read_section(reader, key, value);
}

static kelp_status read_top(yaml_document_t *document, const yaml_node_t *root, void *user)
{
    struct reader *reader = user;
    const yaml_node_t *sections[KELP__JOB_KEYS_MAX];
    size_t section_count = 0;

    reader->document = document;
    if (root->type != YAML_MAPPING_NODE) {
        return fail_at(reader, root, "",
                       "is not a job: sections and keys are expected, such as name: …");
    }
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start;
         pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(reader->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(reader->document, pair->value);
        kelp_status status = name && value
                                 ? read_top_pair(reader, name, value, sections, &section_count)
                                 : fail_at(reader, root, "", "malformed");
        if (status != KELP_OK) {
            return status;
        }
    }
    return KELP_OK;
}

kelp_status kelp_job_file_parse(struct kelp_job_file *file, const char *name, const char *text,
                                size_t text_bytes, struct kelp_error *reterr)
{
    struct reader reader = {.file = file, .reterr = reterr};

    if (text_bytes > KELP_JOB_FILE_BYTES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%.127s: over %u bytes: is this a job file?", name,
                         KELP_JOB_FILE_BYTES_MAX);
    }
    if (kelp_yaml_too_deep(text, text_bytes, KELP_JOB_FILE_NESTING_MAX)) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "%.127s: over %d nested brackets", name,
                         KELP_JOB_FILE_NESTING_MAX);
    }
    char *copy = strdup(name);
    if (!copy) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.127s: out of memory", name);
    }
    free(file->name);
    file->name = copy;
    const struct kelp_yaml_text yaml = {.name = name,
                                        .text = text,
                                        .text_bytes = text_bytes,
                                        .missing = "holds no keys",
                                        .read = read_top,
                                        .user = &reader};
    return kelp_yaml_read(&yaml, reterr);
}

/* Read the whole file; *ret_text is owned. One byte beyond the limit is read, so that the parser
 * refuses the file. */
#define INPUT_PATH "-" /* standard input */

static kelp_status load(const char *path, char **ret_text, size_t *ret_bytes,
                        struct kelp_error *reterr)
{
    bool given = strcmp(path, INPUT_PATH) == 0;
    FILE *in = given ? fdopen(dup(STDIN_FILENO), "r") : fopen(path, "re");
    kelp_status status = KELP_OK;

    if (!in) {
        return kelp_fail(reterr, errno == ENOENT ? KELP_ERR_NOT_FOUND : KELP_ERR_IO, "%.255s: %s",
                         path, errno == ENOENT ? "there is no such job file" : strerror(errno));
    }
    char *text = malloc(KELP_JOB_FILE_BYTES_MAX + 1);
    if (!text) {
        status = kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.255s: out of memory", path);
    } else {
        *ret_bytes = fread(text, 1, KELP_JOB_FILE_BYTES_MAX + 1, in);
        if (ferror(in)) {
            status = kelp_fail(reterr, KELP_ERR_IO, "%.255s: %s", path,
                               errno == EISDIR ? "is a folder; give a job file" : strerror(errno));
        }
    }
    (void)fclose(in); /* it was only read */
    if (status != KELP_OK) {
        free(text);
        return status;
    }
    *ret_text = text;
    return KELP_OK;
}

kelp_status kelp_job_file_read(struct kelp_job_file *file, const char *path,
                               struct kelp_error *reterr)
{
    char *text = NULL;
    size_t text_bytes = 0;
    char *folder = NULL;
    kelp_status status = load(path, &text, &text_bytes, reterr);

    if (status == KELP_OK) {
        status = kelp__job_path_folder(path, &folder, reterr);
    }
    if (status == KELP_OK) {
        free(file->folder);
        file->folder = folder;
        status = kelp_job_file_parse(file, strcmp(path, INPUT_PATH) == 0 ? "standard input" : path,
                                     text, text_bytes, reterr);
    }
    free(text);
    return status;
}
