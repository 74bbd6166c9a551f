/*
 * Plans of faults, damaged: each input is refused with one line, or draws faults that lie within
 * their bounds.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/chaos/plan/chaos_plan.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 20000

static const struct kelp_fuzz_seed seeds[] = {
    KELP_FUZZ_TEXT("faults:\n  - {kind: kill, target: worker-1, step: 120}\n"
                   "  - {kind: pause, target: shard, step: 200:400, for: 1s:2s}\n"
                   "  - {kind: kill, target: etcd, step: 5, for: 1s}\n"
                   "if_possible: true\n"),
    KELP_FUZZ_TEXT("draw:\n  count: 20\n  first: 100\n  every: 60:140\n  mix:\n"
                   "    - {kind: kill, target: worker, weight: 3}\n"
                   "    - kind: split\n      target: leader\n      for: 2s\n"),
    KELP_FUZZ_TEXT("faults:\n  - {kind: scale, target: shard, to: 1:3, step: 5:9}\n"
                   "  - {kind: drain, target: primary, step: 20}\n"
                   "  - {kind: scale, target: worker, to: 2, step: 30}\n"
                   "if_possible: true\n"),
    KELP_FUZZ_TEXT("faults: &a [{kind: full, target: disk, step: 1, for: 5ms}, *a]\n"
                   "draw: *a\n"),
};
static const char *const words[] = {
    "faults:",    "draw:",      "mix:",    "count: ",   "every: ", "first: ", "kind: ",
    "target: ",   "step: ",     "for: ",   "weight: ",  "kill",    "pause",   "restart",
    "split",      "everything", "standby", "worker",    "shard-1", "1:2",     "4294967295",
    "1000000000", "0",          "10m",     "1ms:600s",  "- ",      "{",       "}",
    "to: ",       "scale",      "drain",   "backup",    "[",       "]",       "&a ",
    "*a",         "\n---\n",    "? ",      "\n    - {", "\\u0000", "~",       "true",
    "\t",         "\xc3\xa9",
};

static const char *check_faults(const struct kelp_chaos_fault *faults, uint32_t count,
                                const struct kelp_chaos_size *size)
{
    char text[KELP_CHAOS_TEXT_MAX];

    for (uint32_t i = 0; i < count; i++) {
        const struct kelp_chaos_fault *fault = &faults[i];
        if (i > 0 && fault->step < faults[i - 1].step) {
            return "faults are not in order";
        }
        if (fault->step > KELP_CHAOS_STEP_MAX || fault->for_ms > KELP_CHAOS_FOR_MAX_MS) {
            return "a fault is out of bounds";
        }
        if ((fault->kind == KELP_CHAOS_SCALE) != (fault->to > 0) || fault->to > KELP_CHAOS_TO_MAX) {
            return "a size is out of bounds";
        }
        if ((fault->role == KELP_CHAOS_WORKER && fault->index >= size->workers) ||
            (fault->role == KELP_CHAOS_SHARD && fault->index >= size->shards) ||
            (fault->role == KELP_CHAOS_COORDINATOR && fault->index >= size->coordinators)) {
            return "a fault has a target that is not there";
        }
        kelp_chaos_fault_print(fault, text);
    }
    return count <= KELP_CHAOS_FAULTS_MAX ? NULL : "too many faults";
}

static const char *target(const uint8_t *bytes, size_t count)
{
    static const struct kelp_chaos_size size = {
        .workers = 2, .shards = 2, .coordinators = 2, .lanes = 8};
    static struct kelp_chaos_plan plan;
    static struct kelp_chaos_fault faults[KELP_CHAOS_FAULTS_MAX];
    struct kelp_error error = {.text = ""};
    uint32_t drawn = 0;

    kelp_status status = kelp_chaos_plan_parse("x", (const char *)bytes, count, &plan, &error);
    if (status == KELP_OK) {
        status = kelp_chaos_plan_draw(&plan, &size, 1, faults, &drawn, &error);
    }
    if (status != KELP_OK) {
        return error.text[0] == '\0'      ? "refused without a word"
               : strchr(error.text, '\n') ? "the refusal is more than one line"
                                          : NULL;
    }
    return check_faults(faults, drawn, &size);
}

KELP_FUZZ_TEST(damaged, INPUTS, seeds, words, target)
