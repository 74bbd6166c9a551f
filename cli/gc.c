#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/runs/run_sweep.h"
#include "cli/runs/run_table.h"
#include "cli/verbs.h"
#include "common/base/environment.h"

#define FOLDERS_MAX 1024
#define AGE_MAX     (UINT64_C(10) * 365 * 86400 * 1000) /* ms */
#define LOOK_MS     1000                                /* for a run that goes on to say so */

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("keep", INTEGER, 0, 1000000, NULL, NULL,
                     "runs that stay: the newest N of those that ended"),
    KELP_VERB_NUMBER("older", DURATION, 0, AGE_MAX, NULL, NULL,
                     "remove runs that ended longer ago, such as 720h"),
    KELP_VERB_NUMBER("cache", DURATION, 0, AGE_MAX, NULL, NULL,
                     "remove prepared data that nobody used for so long"),
    KELP_VERB_FLAG("newest", NULL, "the newest run that is done may go too"),
    KELP_VERB_FLAG("yes", NULL, "do not ask"),
};

static const struct kelp_program program = {
    .name = "kelp gc",
    .summary = "removes old runs and data caches, after it has listed them and asked",
    .positional = "[FOLDER]...",
    .positional_max = FOLDERS_MAX,
    .examples = "  kelp gc --keep 20\n"
                "  kelp gc --older 720h --cache 720h --yes\n"
                "  kelp gc /data/runs --keep 5 --older 2160h\n",
    KELP_VERB_OPTIONS(options),
};

static double seconds(const struct kelp_options *given, const char *option)
{
    return (double)kelp_options_duration_ms(given, option) / 1000;
}

static kelp_status mark_runs(const struct kelp_options *given, const struct kelp_run_list *list,
                             struct kelp_sweep *sweep, struct kelp_error *reterr)
{
    struct kelp_sweep_rule rule = {.by_count = kelp_options_given(given, "keep"),
                                   .by_age = kelp_options_given(given, "older"),
                                   .newest = kelp_options_flag(given, "newest")};
    bool *marks = calloc(list->count + 1, sizeof(*marks));

    if (!marks) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    rule.keep = rule.by_count ? (uint32_t)kelp_options_integer(given, "keep") : 0;
    rule.older_s = rule.by_age ? seconds(given, "older") : 0;
    kelp_sweep_mark_runs(list, &rule, marks);
    kelp_status status = kelp_sweep_add_runs(sweep, list, marks, reterr);
    free(marks);
    return status;
}

static kelp_status find(const struct kelp_options *given, struct kelp_sweep *sweep,
                        struct kelp_error *reterr)
{
    struct kelp_run_list list = {.count = 0};
    char cache[4096];
    struct kelp_run_look look = {.now = time(NULL), .timeout_ms = LOOK_MS};

    kelp_status status = kelp_run_list_find(&list, given, &look, reterr);
    if (status == KELP_OK) {
        status = mark_runs(given, &list, sweep, reterr);
    }
    kelp_run_list_fini(&list);
    if (status == KELP_OK && kelp_options_given(given, "cache") &&
        kelp_environment_cache(cache, sizeof(cache))) {
        status = kelp_sweep_add_caches(sweep, cache, seconds(given, "cache"), look.now, reterr);
    }
    return status;
}

/* ---- listing and asking -------------------------------------------------------------------- */

static void print_bytes(uint64_t bytes, char *text, size_t text_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < KELP_ARRAY_COUNT(units)) {
        value /= 1024;
        unit++;
    }
    (void)snprintf(text, text_bytes, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

static void print_list(const struct kelp_sweep *sweep)
{
    static const char *const kinds[] = {
        [KELP_SWEEP_RUN] = "run", [KELP_SWEEP_CACHE] = "cache", [KELP_SWEEP_SCRATCH] = "scratch"};
    uint64_t total = 0;
    char bytes[32];
    char age[32];

    (void)printf("%-8s %10s %8s  %s\n", "KIND", "SIZE", "AGE", "PATH");
    for (size_t i = 0; i < sweep->count; i++) {
        const struct kelp_sweep_item *item = &sweep->items[i];
        print_bytes(item->bytes, bytes, sizeof(bytes));
        kelp_run_table_age(item->age_s, age, sizeof(age));
        (void)printf("%-8s %10s %8s  %s\n", kinds[item->kind], bytes, age, item->path);
        total += item->bytes;
    }
    print_bytes(total, bytes, sizeof(bytes));
    (void)printf("%-8s %10s\n", "total", bytes);
    (void)fflush(stdout);
}

static bool agreed(const struct kelp_options *given)
{
    char answer[16] = "";

    if (kelp_options_flag(given, "yes")) {
        return true;
    }
    (void)fputs("kelp: remove these? [y/N] ", stderr);
    (void)fflush(stderr);
    return fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int remove_all(const struct kelp_sweep *sweep)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    for (size_t i = 0; i < sweep->count; i++) {
        if (kelp_sweep_remove(&sweep->items[i], &error) != KELP_OK) {
            exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
        }
    }
    return exit_status;
}

static int gc(const struct kelp_options *given)
{
    struct kelp_sweep sweep = {.count = 0};
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    if (!kelp_options_given(given, "keep") && !kelp_options_given(given, "older") &&
        !kelp_options_given(given, "cache")) {
        return kelp_complain(KELP_EXIT_USAGE, "kelp gc needs --keep, --older or --cache, which say "
                                              "what may go; see kelp gc --help");
    }
    kelp_status status = find(given, &sweep, &error);
    if (status != KELP_OK) {
        exit_status = kelp_complain(
            status == KELP_ERR_NOT_FOUND ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error.text);
    } else if (sweep.count == 0) {
        (void)kelp_complain(KELP_EXIT_OK, "there is nothing to remove");
    } else {
        print_list(&sweep);
        exit_status = agreed(given) ? remove_all(&sweep)
                                    : kelp_complain(KELP_EXIT_FAILED, "nothing is removed");
    }
    kelp_sweep_fini(&sweep);
    return exit_status;
}

const struct kelp_verb kelp_verb_gc = {
    "gc", "remove old runs and data caches; lists them and asks first", &program, gc, NULL};
