#include "common/job/yaml_text.h"

#include <inttypes.h>
#include <string.h>

bool kelp_yaml_too_deep(const char *text, size_t text_bytes, size_t nesting_max)
{
    size_t depth = 0;

    for (size_t i = 0; i < text_bytes && depth <= nesting_max; i++) {
        if (text[i] == '[' || text[i] == '{') {
            depth++;
        } else if ((text[i] == ']' || text[i] == '}') && depth > 0) {
            depth--;
        }
    }
    return depth > nesting_max;
}

uint32_t kelp_yaml_line(const yaml_node_t *node)
{
    return (uint32_t)(node->start_mark.line + 1); /* at most 2^20: the file's size */
}

const char *kelp_yaml_scalar(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE ||
        strlen((const char *)node->data.scalar.value) != node->data.scalar.length) {
        return NULL;
    }
    return (const char *)node->data.scalar.value;
}

/* Is line `line` (from 0) indented with a tab, which YAML forbids? */
static bool has_tab(const struct kelp_yaml_text *text, size_t line)
{
    const char *at = text->text, *end = text->text + text->text_bytes;

    while (line > 0 && at < end) {
        line -= *at++ == '\n';
    }
    while (at < end && *at == ' ') {
        at++;
    }
    return at < end && *at == '\t';
}

static kelp_status parser_error(const struct kelp_yaml_text *text, const yaml_parser_t *parser,
                                struct kelp_error *reterr)
{
    const char *name = text->name;
    size_t line = parser->problem_mark.line;

    if (parser->error == YAML_MEMORY_ERROR) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.127s: out of memory", name);
    }
    if (has_tab(text, line)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%.127s:%zu: is indented with a tab; YAML allows only spaces", name,
                         line + 1);
    }
    return kelp_fail(reterr, KELP_ERR_INVALID, "%.127s:%zu: not YAML: %s", name, line + 1,
                     parser->problem ? parser->problem : "malformed");
}

/* Nothing may follow the one document. */
static kelp_status check_end(const struct kelp_yaml_text *text, yaml_parser_t *parser,
                             struct kelp_error *reterr)
{
    yaml_document_t document;

    if (!yaml_parser_load(parser, &document)) {
        return parser_error(text, parser, reterr);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    kelp_status status =
        root ? kelp_fail(reterr, KELP_ERR_INVALID, "%.127s:%" PRIu32 ": a second document",
                         text->name, kelp_yaml_line(root))
             : KELP_OK;
    yaml_document_delete(&document);
    return status;
}

static kelp_status read_document(const struct kelp_yaml_text *text, yaml_parser_t *parser,
                                 struct kelp_error *reterr)
{
    yaml_document_t document;

    if (!yaml_parser_load(parser, &document)) {
        return parser_error(text, parser, reterr);
    }
    const yaml_node_t *root = yaml_document_get_root_node(&document);
    kelp_status status =
        root ? text->read(&document, root, text->user)
             : kelp_fail(reterr, KELP_ERR_INVALID, "%.127s: %s", text->name, text->missing);
    yaml_document_delete(&document);
    return status == KELP_OK ? check_end(text, parser, reterr) : status;
}

kelp_status kelp_yaml_read(const struct kelp_yaml_text *text, struct kelp_error *reterr)
{
    static const char byte_order_mark[3] = {'\xef', '\xbb', '\xbf'};
    const bool marked = text->text_bytes >= sizeof(byte_order_mark) &&
                        memcmp(text->text, byte_order_mark, sizeof(byte_order_mark)) == 0;
    const size_t skipped = marked ? sizeof(byte_order_mark) : 0;
    yaml_parser_t parser;

    if (!yaml_parser_initialize(&parser)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%.127s: out of memory", text->name);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text->text + skipped,
                                 text->text_bytes - skipped);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    kelp_status status = read_document(text, &parser, reterr);
    yaml_parser_delete(&parser);
    return status;
}
