/*
 * Every program and verb that has a man page and completions: kelp, its verbs, the daemons.
 */
#ifndef KELP_CLI_DESCRIBE_PAGE_LIST_H
#define KELP_CLI_DESCRIBE_PAGE_LIST_H

#include <stddef.h>

#include "cli/verb/verb.h"

#define KELP_PAGES_MAX     128
#define KELP_PAGE_NAME_MAX 63

struct kelp_page {
    const struct kelp_program *program;   /* its name is what is typed: "kelp checkpoint ls" */
    const struct kelp_verb *const *verbs; /* below it, ends with NULL; or NULL */
    const struct kelp_program *of;        /* whose verb it is; or NULL */
};

struct kelp_page_list {
    struct kelp_page pages[KELP_PAGES_MAX];
    size_t count;
};

/* In the order of the tables. */
void kelp_page_list_fill(struct kelp_page_list *list);

/* "kelp-checkpoint-ls": the name of its man page. */
void kelp_page_name(const struct kelp_program *program, char name[KELP_PAGE_NAME_MAX + 1]);

#endif
