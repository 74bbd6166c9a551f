/*
 * What a shell completes, as functions of that shell. The scripts beside this file (kelp.bash,
 * kelp.zsh, kelp.fish) ask them:
 *
 *     _kelp_verbs PATH        each verb below "kelp" or "kelp checkpoint": NAME, SUMMARY
 *     _kelp_options PATH      each option: --NAME or -L, help
 *     _kelp_hint "PATH WHAT"  what may stand for the value of option WHAT, or at position
 *                             WHAT (1 to 9): the words of hint.h; nothing for a flag, or
 *                             where no value is taken
 *     _kelp_keys              each job key: NAME, help
 *     _kelp_choices KEY       each word that a job key takes; nothing when it takes others
 *
 * An answer is a line for each, with a tab between two parts.
 */
#ifndef KELP_CLI_DESCRIBE_COMPLETION_TABLES_H
#define KELP_CLI_DESCRIBE_COMPLETION_TABLES_H

#include <stdio.h>

#include "cli/describe/page_list.h"

enum kelp_shell { KELP_SHELL_POSIX /* bash and zsh */, KELP_SHELL_FISH };

void kelp_completion_tables_print(const struct kelp_page_list *list, enum kelp_shell shell,
                                  FILE *out);

#endif
