/*
 * Other names for the tensors of a file, by rules: "OLD=NEW", a line feed between two. A name that
 * begins with OLD begins with NEW instead, which may be empty. With a '*' in both, the rule is for
 * whole names: it stands for any text. The first rule that fits a name counts; a name that none
 * fits stays. Letter case counts. Pure.
 */
#ifndef KELP_COMMON_TENSORS_RENAME_H
#define KELP_COMMON_TENSORS_RENAME_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define KELP_RENAME_NONE SIZE_MAX

/* Errors: KELP_ERR_INVALID, the text names the rule. */
kelp_status kelp_rename_check(const char *rules, struct kelp_error *reterr) KELP_MUST_USE;

/* The other name, cut where it does not fit. Returns the number of the rule, or KELP_RENAME_NONE.
 * The rules have passed the check. */
size_t kelp_rename(const char *rules, const char *name, char *text, size_t text_bytes);

/* The rule of that number, or NULL; *ret_bytes: its length. */
const char *kelp_rename_rule(const char *rules, size_t number, size_t *ret_bytes);

#endif
