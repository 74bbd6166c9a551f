/*
 * Man pages of section 1, in the man macros of groff.
 */
#ifndef KELP_CLI_DESCRIBE_MAN_PAGE_H
#define KELP_CLI_DESCRIBE_MAN_PAGE_H

#include <stdio.h>

#include "cli/describe/page_list.h"

/* The page of list->pages[index]. */
void kelp_man_page_print(const struct kelp_page_list *list, size_t index, FILE *out);

#endif
