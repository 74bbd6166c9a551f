/* The verbs of `kelp certs`. */
#ifndef KELP_CLI_CERTS_CERTS_VERBS_H
#define KELP_CLI_CERTS_CERTS_VERBS_H

#include "cli/verb/verb.h"

#define KELP_CERTS_AUTHORITY                                                                       \
    {                                                                                              \
        .name = "authority", .type = KELP_OPTION_TEXT, .placeholder = "FOLDER",                    \
        .default_text = "authority", .help = "folder of the authority, with its key"               \
    }

extern const struct kelp_verb kelp_certs_verb_init;
extern const struct kelp_verb kelp_certs_verb_issue;
extern const struct kelp_verb kelp_certs_verb_show;
extern const struct kelp_verb kelp_certs_verb_users;

/* All of them, ending with NULL. */
extern const struct kelp_verb *const kelp_certs_verbs[];

#endif
