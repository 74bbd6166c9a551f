/*
 * What a shell completes, as functions of that shell. The scripts beside this file (kelp.bash,
 * kelp.zsh, kelp.fish) ask them:
 *
 *     _kelp_verbs PATH       a line for each verb below "kelp" or "kelp checkpoint": NAME and
 * SUMMARY, a tab in between _kelp_options PATH     a line for each option: --NAME or -L and help, a
 * tab in between _kelp_hint "PATH WHAT" what may stand for the value of option WHAT, or at position
 * WHAT (1 to 9): the words of hint.h; nothing for a flag, and where nothing is taken _kelp_keys a
 * line for each job key: NAME and help, a tab in between _kelp_choices KEY      a line for each
 * word that a job key takes; nothing when it takes others
 */
#ifndef KELP_CLI_DESCRIBE_COMPLETION_TABLES_H
#define KELP_CLI_DESCRIBE_COMPLETION_TABLES_H

#include <stdio.h>

#include "cli/describe/page_list.h"

enum kelp_shell { KELP_SHELL_POSIX /* bash and zsh */, KELP_SHELL_FISH };

void kelp_completion_tables_print(const struct kelp_page_list *list, enum kelp_shell shell,
                                  FILE *out);

#endif
