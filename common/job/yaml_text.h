/*
 * One YAML document by libyaml's document API, in which each node knows its line.
 */
#ifndef KELP_COMMON_JOB_YAML_TEXT_H
#define KELP_COMMON_JOB_YAML_TEXT_H

#include <stdint.h>
#include <yaml.h>

#include "common/base/status.h"

/* Is there so much nesting of brackets that libyaml's parser, which takes stack for each, is not to
 * see it? Brackets are counted wherever they stand, in comments and quotes too. */
bool kelp_yaml_too_deep(const char *text, size_t text_bytes, size_t nesting_max);

struct kelp_yaml_text {
    const char *name; /* of the file, in errors */
    const char *text;
    size_t text_bytes;
    const char *missing; /* of an empty text: "holds no keys" */
    /* What is done with the document; its errors are the caller's. */
    kelp_status (*read)(yaml_document_t *document, const yaml_node_t *root, void *user);
    void *user;
};

/* Read exactly one document. Errors: KELP_ERR_INVALID ("NAME:LINE: what"), KELP_ERR_NO_MEMORY, and
 * those of read(). */
kelp_status kelp_yaml_read(const struct kelp_yaml_text *text,
                           struct kelp_error *reterr) KELP_MUST_USE;

uint32_t kelp_yaml_line(const yaml_node_t *node);
/* A scalar's text, or NULL when the node is none, or holds a NUL. */
const char *kelp_yaml_scalar(const yaml_node_t *node);

#endif
