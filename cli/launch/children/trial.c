#include "cli/launch/children/trial.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "coordinator-0", "shard-1", "worker-12": exactly a role, '-', and a number. */
static bool child_id(const char *text, size_t length)
{
    static const char *const roles[] = {"worker-", "shard-", "coordinator-"};

    if (length > KELP_TRIAL_ID_MAX) {
        return false;
    }
    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        size_t prefix = strlen(roles[i]);
        if (length <= prefix || strncmp(text, roles[i], prefix) != 0) {
            continue;
        }
        for (size_t at = prefix; at < length; at++) {
            if (!isdigit((unsigned char)text[at])) {
                return false;
            }
        }
        return true;
    }
    return false;
}

/* The length of the first word that text begins with; 0: of none. */
static size_t begins_with(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strncmp(text, words[i], strlen(words[i])) == 0) {
            return strlen(words[i]);
        }
    }
    return 0;
}

/* What kelp-worker --fault takes. */
static bool fault_spec(const char *text)
{
    static const char *const kinds[] = {"kill@", "kill-pushing@", "stall@", "hang@"};
    static const char *const units[] = {"step=", "version="};

    size_t kind = begins_with(text, kinds, KELP_ARRAY_COUNT(kinds));
    size_t unit = begins_with(text + kind, units, KELP_ARRAY_COUNT(units));
    size_t digits = strspn(text + kind + unit, "0123456789");
    return kind > 0 && unit > 0 && digits > 0 && text[kind + unit + digits] == '\0' &&
           strlen(text) <= KELP_TRIAL_SPEC_MAX;
}

kelp_status kelp_trials_add_fault(struct kelp_trials *trials, const char *text,
                                  struct kelp_error *reterr)
{
    const char *colon = strchr(text, ':');
    size_t id_length = colon ? (size_t)(colon - text) : 0;

    if (!colon || !child_id(text, id_length) || strncmp(text, "worker-", 7) != 0 ||
        !fault_spec(colon + 1)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--fault '%s': expected worker-N:FAULT@step=N, or @version=N, FAULT one "
                         "of kill, kill-pushing, stall, hang",
                         text);
    }
    if (trials->fault_count == KELP_TRIALS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "--fault: at most %d are allowed",
                         KELP_TRIALS_MAX);
    }
    for (uint32_t i = 0; i < trials->fault_count; i++) {
        if (strlen(trials->faults[i].id) == id_length &&
            memcmp(trials->faults[i].id, text, id_length) == 0) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "--fault '%s': %s has the fault %s already; a process fails once, at "
                             "its first start",
                             text, trials->faults[i].id, trials->faults[i].spec);
        }
    }
    struct kelp_fault *fault = &trials->faults[trials->fault_count++];
    memcpy(fault->id, text, id_length);
    fault->id[id_length] = '\0';
    memcpy(fault->spec, colon + 1, strlen(colon + 1) + 1);
    return KELP_OK;
}

kelp_status kelp_trials_add_faults(struct kelp_trials *trials, const struct kelp_options *given,
                                   struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (size_t i = 0; status == KELP_OK && i < kelp_options_repeat_count(given, "fault"); i++) {
        status = kelp_trials_add_fault(trials, kelp_options_repeat(given, "fault", i), reterr);
    }
    return status;
}

/* "step=100:" at the start of text; *ret_rest is what follows. */
static bool parse_step(const char *text, uint64_t *ret_step, const char **ret_rest)
{
    char *end;

    if (strncmp(text, "step=", 5) != 0 || !isdigit((unsigned char)text[5])) {
        return false;
    }
    errno = 0;
    unsigned long long step = strtoull(text + 5, &end, 10);
    if (errno != 0 || *end != ':') {
        return false;
    }
    *ret_step = step;
    *ret_rest = end + 1;
    return true;
}

kelp_status kelp_trials_add_timed(struct kelp_trials *trials, const char *text,
                                  struct kelp_error *reterr)
{
    struct kelp_timed timed = {0};
    const char *action = "";
    bool valid = parse_step(text, &timed.step, &action);

    if (valid && strcmp(action, "add-worker") == 0) {
        timed.action = KELP_TIMED_ADD_WORKER;
    } else if (valid && strncmp(action, "kill=", 5) == 0 &&
               child_id(action + 5, strlen(action + 5))) {
        timed.action = KELP_TIMED_KILL;
        memcpy(timed.id, action + 5, strlen(action + 5) + 1);
    } else {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--at '%s': expected step=N:add-worker or step=N:kill=ID, for example "
                         "step=100:kill=worker-1",
                         text);
    }
    if (trials->timed_count == KELP_TRIALS_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "--at: at most %d are allowed", KELP_TRIALS_MAX);
    }
    trials->timed[trials->timed_count++] = timed;
    return KELP_OK;
}

uint32_t kelp_trials_added_workers(const struct kelp_trials *trials)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < trials->timed_count; i++) {
        count += trials->timed[i].action == KELP_TIMED_ADD_WORKER;
    }
    return count;
}

/* "worker-9" of a run with fewer: its last one into text. */
static bool has_process(const struct kelp_trials_run *run, const char *id, char *last,
                        size_t last_bytes)
{
    const struct {
        const char *role;
        uint32_t count;
    } roles[] = {
        {"worker", run->workers}, {"shard", run->shards}, {"coordinator", run->coordinators}};
    const char *dash = strrchr(id, '-');

    for (size_t i = 0; i < KELP_ARRAY_COUNT(roles); i++) {
        if (strncmp(id, roles[i].role, (size_t)(dash - id)) == 0) {
            (void)snprintf(last, last_bytes, "%s-%" PRIu32, roles[i].role, roles[i].count - 1);
            return strtoull(dash + 1, NULL, 10) < roles[i].count;
        }
    }
    return false;
}

static kelp_status check_process(const struct kelp_trials_run *run, const char *option,
                                 const char *id, struct kelp_error *reterr)
{
    char last[32] = "";

    return has_process(run, id, last, sizeof(last))
               ? KELP_OK
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "%s %s: the run has no such process; its last one is %s", option, id,
                           last);
}

static kelp_status check_step(const struct kelp_trials_run *run, const char *option, uint64_t step,
                              struct kelp_error *reterr)
{
    return step <= run->steps ? KELP_OK
                              : kelp_fail(reterr, KELP_ERR_INVALID,
                                          "%s step=%" PRIu64 ": the job has %" PRIu64 " steps",
                                          option, step, run->steps);
}

kelp_status kelp_trials_check(const struct kelp_trials *trials, const struct kelp_trials_run *run,
                              struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (uint32_t i = 0; status == KELP_OK && i < trials->fault_count; i++) {
        const char *step = strstr(trials->faults[i].spec, "@step=");
        status = check_process(run, "--fault", trials->faults[i].id, reterr);
        if (status == KELP_OK && step) {
            status = check_step(run, "--fault", strtoull(step + 6, NULL, 10), reterr);
        }
    }
    for (uint32_t i = 0; status == KELP_OK && i < trials->timed_count; i++) {
        status = check_step(run, "--at", trials->timed[i].step, reterr);
        if (status == KELP_OK && trials->timed[i].action == KELP_TIMED_KILL) {
            status = check_process(run, "--at kill", trials->timed[i].id, reterr);
        }
    }
    return status;
}
