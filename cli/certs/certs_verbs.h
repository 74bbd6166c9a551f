/* The verbs of `kelp certs`. */
#ifndef KELP_CLI_CERTS_CERTS_VERBS_H
#define KELP_CLI_CERTS_CERTS_VERBS_H

#include "cli/verb/verb.h"

extern const struct kelp_verb kelp_certs_verb_init;
extern const struct kelp_verb kelp_certs_verb_issue;
extern const struct kelp_verb kelp_certs_verb_show;

/* All of them, ending with NULL. */
extern const struct kelp_verb *const kelp_certs_verbs[];

#endif
