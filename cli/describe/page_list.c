#include "cli/describe/page_list.h"

#include <assert.h>
#include <stdio.h>

#include "cli/verbs.h"
#include "coordinator/coordinator_program.h"
#include "ps/ps_program.h"
#include "worker/worker_program.h"

static void add(struct kelp_page_list *list, const struct kelp_page *page)
{
    assert(list->count < KELP_PAGES_MAX);
    list->pages[list->count++] = *page;
    for (size_t i = 0; page->verbs && page->verbs[i]; i++) {
        const struct kelp_verb *verb = page->verbs[i];
        const struct kelp_page below = {verb->program, verb->verbs, page->program};
        add(list, &below); /* verbs of verbs of kelp: two deep */
    }
}

void kelp_page_list_fill(struct kelp_page_list *list)
{
    const struct kelp_page programs[] = {
        {&kelp_command_program, kelp_verbs, NULL},
        {&kelp_coordinator_program, NULL, NULL},
        {&kelp_ps_program, NULL, NULL},
        {&kelp_worker_program, NULL, NULL},
    };

    list->count = 0;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(programs); i++) {
        add(list, &programs[i]);
    }
}

void kelp_page_name(const struct kelp_program *program, char name[KELP_PAGE_NAME_MAX + 1])
{
    (void)snprintf(name, KELP_PAGE_NAME_MAX + 1, "%s", program->name);
    for (char *c = name; *c != '\0'; c++) {
        *c = *c == ' ' ? '-' : *c;
    }
}
