#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cluster/run_client.h"
#include "cli/replay/compare.h"
#include "cli/run/plugin_consent.h"
#include "cli/runs/metrics_compare.h"
#include "cli/verbs.h"
#include "common/base/json.h"

#define ASK_MS 1000 /* for a run that goes on to say how far it is */

static const struct kelp_option options[] = {
    KELP_VERB_FLAG("no-replay", NULL, "compare only the records; compute nothing again"),
    KELP_VERB_ALLOW_PLUGIN,
    KELP_VERB_OUTPUT("lines for people, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp diff",
    .summary = "says where two runs diverge: record, job keys, step, tensors, metrics",
    .positional = "RUN_A RUN_B",
    .positional_min = 2,
    .positional_max = 2,
    .examples = "  kelp diff runs/a runs/b\n"
                "  kelp diff runs/a runs/b --no-replay -o json\n",
    KELP_VERB_OPTIONS(options),
};

static void warn(const char *text)
{
    (void)kelp_complain(KELP_EXIT_OK, "%s", text);
}

/* Weights and metrics. */
static bool are_same(const struct kelp_compare *compare, const struct kelp_metrics_compare *metrics)
{
    return compare->outcome == KELP_COMPARE_SAME && !metrics->difference.found;
}

/* ---- for people ---------------------------------------------------------------------------- */

/* A run that goes on where the other has nothing to compare with. */
static void print_end(const struct kelp_compare_run *run, uint64_t equal_step)
{
    uint64_t last = run->log.lines[run->log.count - 1].step;

    if (last > equal_step) {
        (void)printf("           %s goes on to step %" PRIu64 "\n", run->path, last);
    }
}

static void print_records(const struct kelp_compare *compare)
{
    const struct kelp_digest_log_comparison *records = &compare->records;
    const struct kelp_digest_log_line *lines[2] = {records->a, records->b};

    if (!records->a) {
        (void)printf("same       %zu digests that both have, up to step %" PRIu64 "\n",
                     records->common, records->equal_step);
        print_end(&compare->runs[0], records->equal_step);
        print_end(&compare->runs[1], records->equal_step);
        return;
    }
    (void)printf("differ     at step %" PRIu64 ", version %" PRIu64 ", epoch %u: first on record\n",
                 records->a->step, records->a->version, records->a->epoch);
    for (int i = 0; i < 2; i++) {
        (void)printf("           %s %s\n", lines[i]->digest, compare->runs[i].path);
    }
    if (records->any_equal) {
        (void)printf("same       up to step %" PRIu64 " on record\n", records->equal_step);
    }
}

/* Where a run's folder lies is no part of its job. */
static bool tells(const struct kelp_job_difference *item)
{
    return strcmp(item->key, "run.dir") != 0;
}

static void print_keys(const struct kelp_compare *compare)
{
    const char *label = "keys";

    for (size_t i = 0; i < compare->keys.count; i++) {
        const struct kelp_job_difference *item = &compare->keys.items[i];
        if (!tells(item)) {
            continue;
        }
        (void)printf("%-10s %s: %s, %s%s\n", label, item->key, item->before, item->now,
                     item->allowed ? " (does not shape a step)" : "");
        label = "";
    }
    if (label[0]) {
        (void)printf("keys       the jobs are the same\n");
    }
}

/* On different kinds of machines one job may give different bits. */
static void print_compute_kinds(const struct kelp_compare_run runs[2])
{
    if (runs[0].compute_kind[0] && runs[1].compute_kind[0] &&
        strcmp(runs[0].compute_kind, runs[1].compute_kind) != 0) {
        (void)printf("compute    %s: %s\n           %s: %s\n", runs[0].path, runs[0].compute_kind,
                     runs[1].path, runs[1].compute_kind);
    }
}

static void print_from(const struct kelp_compare_run *run, const char *label)
{
    (void)printf("%-10s %s computed again from %s%s\n", label, run->path,
                 run->from[0] ? "checkpoint " : "version 0", run->from);
}

static void print_tensors(const struct kelp_compare *compare)
{
    if (compare->step == 0) {
        (void)printf("first      the initial states differ: %u tensors\n", compare->tensor_count);
    } else {
        (void)printf("first      training step %" PRIu64 " makes the states differ: %u tensors\n",
                     compare->step, compare->tensor_count);
    }
    for (uint32_t i = 0; i < compare->tensor_count && i < KELP_COMPARE_TENSORS_MAX; i++) {
        (void)printf("           %s\n", compare->named[i].name);
    }
    if (compare->tensor_count > KELP_COMPARE_TENSORS_MAX) {
        (void)printf("           …\n");
    }
}

static void print_kinds_here(const struct kelp_compare *compare)
{
    const char *here = kelp_replay_plan(compare->runs[0].replay)->compute_kind;

    for (int i = 0; i < 2; i++) {
        const struct kelp_compare_run *run = &compare->runs[i];
        if (run->compute_kind[0] && strcmp(run->compute_kind, here) != 0) {
            (void)printf("           %s was computed on another kind of machine: %s, not %s\n",
                         run->path, run->compute_kind, here);
        }
    }
}

static void print_verdict(const struct kelp_compare *compare)
{
    const struct kelp_compare_run *runs = compare->runs;

    if (runs[0].reproduced && runs[1].reproduced) {
        (void)printf("verdict    both records are what their jobs give\n");
        return;
    }
    for (int i = 0; i < 2; i++) {
        (void)printf("%-10s the record of %s is %s\n", i == 0 ? "verdict" : "", runs[i].path,
                     runs[i].reproduced  ? "what its job gives"
                     : runs[i].digest[0] ? "not what its job gives"
                                         : "of a step that its job does not come to");
        if (!runs[i].reproduced && runs[i].digest[0]) {
            (void)printf("           %s its job, computed again\n", runs[i].digest);
        }
    }
    print_kinds_here(compare);
}

static void print_states(const struct kelp_compare *compare)
{
    switch (compare->outcome) {
    case KELP_COMPARE_SAME:
        return;
    case KELP_COMPARE_RECORDS:
        if (compare->text[0]) {
            (void)printf("replay     not possible: %s\n", compare->text);
        }
        return;
    case KELP_COMPARE_MODELS:
        (void)printf("models     %s\n", compare->text);
        return;
    case KELP_COMPARE_FOUND:
    case KELP_COMPARE_JOBS_SAME:
        break;
    }
    print_from(&compare->runs[0], "replay");
    print_from(&compare->runs[1], "");
    if (compare->outcome == KELP_COMPARE_FOUND) {
        print_tensors(compare);
    } else {
        (void)printf("first      none: both jobs give the same bits up to step %" PRIu64 "\n",
                     compare->records.a->step);
    }
    print_verdict(compare);
}

static void print_text(const struct kelp_compare *compare,
                       const struct kelp_metrics_compare *metrics)
{
    print_records(compare);
    print_keys(compare);
    print_compute_kinds(compare->runs);
    print_states(compare);
    kelp_metrics_compare_text(metrics, stdout);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void json_record(const struct kelp_digest_log_comparison *records)
{
    if (records->any_equal) {
        (void)printf(",\"equal_step\":%" PRIu64, records->equal_step);
    }
    if (records->a) {
        (void)printf(",\"record\":{\"version\":%" PRIu64 ",\"step\":%" PRIu64
                     ",\"epoch\":%u,\"digests\":[\"%s\",\"%s\"]}",
                     records->a->version, records->a->step, records->a->epoch, records->a->digest,
                     records->b->digest);
    }
}

static void json_keys(const struct kelp_job_differences *keys)
{
    const char *comma = "";

    (void)printf(",\"keys\":[");
    for (size_t i = 0; i < keys->count; i++) {
        if (!tells(&keys->items[i])) {
            continue;
        }
        (void)printf("%s{\"key\":\"%s\",\"values\":[", comma, keys->items[i].key);
        comma = ",";
        kelp_json_print_string(stdout, keys->items[i].before);
        (void)printf(",");
        kelp_json_print_string(stdout, keys->items[i].now);
        (void)printf("],\"shapes\":%s}", keys->items[i].allowed ? "false" : "true");
    }
    (void)printf("]");
}

static void json_run(const struct kelp_compare *compare, int index)
{
    const struct kelp_compare_run *run = &compare->runs[index];

    kelp_json_print_member(stdout, index > 0 ? ",{" : "{", "run", run->path);
    if (compare->outcome == KELP_COMPARE_FOUND || compare->outcome == KELP_COMPARE_JOBS_SAME) {
        kelp_json_print_member(stdout, ",", "from", run->from);
        (void)printf(",\"from_step\":%" PRIu64, run->from_step);
        kelp_json_print_member(stdout, ",", "digest", run->digest);
        (void)printf(",\"reproduced\":%s", run->reproduced ? "true" : "false");
    }
    if (run->compute_kind[0]) {
        kelp_json_print_member(stdout, ",", "compute_kind", run->compute_kind);
    }
    (void)printf("}");
}

static void json_first(const struct kelp_compare *compare)
{
    (void)printf(",\"first\":{\"step\":%" PRIu64 ",\"tensor_count\":%u,\"tensors\":[",
                 compare->step, compare->tensor_count);
    for (uint32_t i = 0; i < compare->tensor_count && i < KELP_COMPARE_TENSORS_MAX; i++) {
        kelp_json_print_member(stdout, i > 0 ? ",{" : "{", "name", compare->named[i].name);
        (void)printf(",\"digests\":[\"%s\",\"%s\"]}", compare->named[i].digests[0],
                     compare->named[i].digests[1]);
    }
    (void)printf("]}");
}

static void print_json(const struct kelp_compare *compare,
                       const struct kelp_metrics_compare *metrics)
{
    static const char *const outcomes[] = {[KELP_COMPARE_SAME] = "same",
                                           [KELP_COMPARE_RECORDS] = "records differ",
                                           [KELP_COMPARE_MODELS] = "models",
                                           [KELP_COMPARE_FOUND] = "found",
                                           [KELP_COMPARE_JOBS_SAME] = "jobs give the same"};

    (void)printf("{\"same\":%s", are_same(compare, metrics) ? "true" : "false");
    kelp_json_print_member(stdout, ",", "outcome", outcomes[compare->outcome]);
    if (compare->text[0]) {
        kelp_json_print_member(stdout, ",", "text", compare->text);
    }
    (void)printf(",\"common\":%zu", compare->records.common);
    json_record(&compare->records);
    json_keys(&compare->keys);
    if (compare->outcome == KELP_COMPARE_FOUND) {
        json_first(compare);
    }
    (void)printf(",\"runs\":[");
    json_run(compare, 0);
    json_run(compare, 1);
    (void)printf("]");
    kelp_metrics_compare_json(metrics, stdout);
    (void)printf("}\n");
}

/* ---- the verb ------------------------------------------------------------------------------ */

static int say(const struct kelp_compare *compare, const struct kelp_options *given)
{
    struct kelp_metrics_compare metrics;
    const char *const paths[2] = {compare->runs[0].path, compare->runs[1].path};
    const struct kelp_run_look look = {.now = time(NULL), .timeout_ms = ASK_MS};

    kelp_metrics_compare_read(paths, &look, &metrics);
    (kelp_verb_json(given) ? print_json : print_text)(compare, &metrics);
    return are_same(compare, &metrics) ? KELP_EXIT_OK : KELP_EXIT_FAILED;
}

/* Where one of both is portable; the other's kind is told beside its digest. */
static kelp_status replay(struct kelp_compare *compare, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;

    for (int i = 0; status == KELP_OK && i < 2; i++) {
        status = kelp_run_begin_portable(compare->runs[i].path, reterr);
    }
    return status == KELP_OK ? kelp_compare_replay(compare, reterr, warn) : status;
}

static int compare_runs(struct kelp_compare *compare, const struct kelp_options *given,
                        const char (*paths)[KELP_RUN_PATH_MAX + 1])
{
    struct kelp_error error;

    kelp_status status = kelp_compare_records(paths[0], paths[1], compare, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    compare->allow_plugin = kelp_options_flag(given, "allow-plugin");
    if (compare->outcome == KELP_COMPARE_RECORDS && !kelp_options_flag(given, "no-replay") &&
        replay(compare, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    return say(compare, given);
}

static int diff(const struct kelp_options *given)
{
    struct kelp_compare compare;
    struct kelp_error error;
    char paths[2][KELP_RUN_PATH_MAX + 1];

    for (size_t i = 0; i < 2; i++) {
        if (kelp_run_choose(kelp_options_positional(given, i), paths[i], &error) != KELP_OK) {
            return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
        }
    }
    memset(&compare, 0, sizeof(compare));
    int exit_status = compare_runs(&compare, given, paths);
    kelp_compare_fini(&compare);
    return exit_status;
}

const struct kelp_verb kelp_verb_diff = {
    "diff", "say where two runs diverge: step, tensor, job keys, metrics", &program, diff, NULL};
