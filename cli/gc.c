#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/runs/run_sweep.h"
#include "cli/runs/run_table.h"
#include "cli/verbs.h"
#include "common/base/environment.h"
#include "common/base/json.h"

#define FOLDERS_MAX 1024
#define AGE_MAX     (UINT64_C(10) * 365 * 86400 * 1000) /* ms */
#define LOOK_MS     1000                                /* for a run that goes on to say so */

static const struct kelp_option options[] = {
    KELP_VERB_NUMBER("keep", INTEGER, 0, 1000000, NULL, NULL,
                     "keep the newest N runs that have ended"),
    KELP_VERB_NUMBER("older", DURATION, 0, AGE_MAX, NULL, NULL,
                     "remove runs that ended longer ago than this, such as 720h"),
    KELP_VERB_NUMBER(
        "previous", DURATION, 0, AGE_MAX, NULL, NULL,
        "remove what resumes replaced longer ago than this (previous/N of the runs kept)"),
    KELP_VERB_FLAG("leftovers", NULL,
                   "remove what killed commands left in the folders of the runs kept"),
    KELP_VERB_NUMBER("cache", DURATION, 0, AGE_MAX, NULL, NULL,
                     "remove prepared data unused for this long, from the user's cache and the "
                     "runs' data.cache"),
    KELP_VERB_FLAG("newest", NULL, "allow removing the newest finished training run"),
    KELP_VERB_FLAG("yes", NULL, "do not ask"),
    KELP_VERB_FLAG("dry-run", NULL, "list what would be removed; remove nothing"),
    KELP_VERB_OUTPUT("a table for people, or one JSON object with what was removed"),
};

static const struct kelp_program program = {
    .name = "kelp gc",
    .summary = "removes old runs, leftovers and data caches; lists them and asks first",
    .positional = "[FOLDER]...",
    .positional_max = FOLDERS_MAX,
    .examples = "  kelp gc --keep 20\n"
                "  kelp gc --older 720h --cache 720h --yes\n"
                "  kelp gc --leftovers --previous 168h --dry-run\n"
                "  kelp gc /data/runs --keep 5 --older 2160h\n",
    KELP_VERB_OPTIONS(options),
};

static double seconds(const struct kelp_options *given, const char *option)
{
    return (double)kelp_options_duration_ms(given, option) / 1000;
}

/* ---- what may go ---------------------------------------------------------------------------- */

static void mark_runs(const struct kelp_options *given, const struct kelp_run_list *list,
                      bool *marks)
{
    struct kelp_sweep_rule rule = {.by_count = kelp_options_given(given, "keep"),
                                   .by_age = kelp_options_given(given, "older"),
                                   .newest = kelp_options_flag(given, "newest")};

    rule.keep = rule.by_count ? (uint32_t)kelp_options_integer(given, "keep") : 0;
    rule.older_s = rule.by_age ? seconds(given, "older") : 0;
    kelp_sweep_mark_runs(list, &rule, marks);
}

/* The folder that the run's job names, if it does. */
static kelp_status add_cache_of(struct kelp_sweep *sweep, const char *run_path, double older_s,
                                time_t now, struct kelp_error *reterr)
{
    struct kelp_job_file *file = NULL;
    kelp_status status = KELP_OK;

    if (kelp_run_job_read(run_path, &file, NULL) != KELP_OK) {
        return KELP_OK; /* whatever it named */
    }
    const char *folder = kelp_job_file_job(file)->data.cache;
    if (folder[0] != '\0') {
        status = kelp_sweep_add_caches(sweep, folder, older_s, now, reterr);
    }
    kelp_job_file_destroy(file);
    return status;
}

static kelp_status find_caches(const struct kelp_options *given, const struct kelp_run_list *list,
                               time_t now, struct kelp_sweep *sweep, struct kelp_error *reterr)
{
    double older_s = seconds(given, "cache");
    char cache[4096];
    kelp_status status = KELP_OK;

    if (kelp_environment_cache(cache, sizeof(cache))) {
        status = kelp_sweep_add_caches(sweep, cache, older_s, now, reterr);
    }
    for (size_t i = 0; i < list->count && status == KELP_OK; i++) {
        status = add_cache_of(sweep, list->items[i].path, older_s, now, reterr);
    }
    return status;
}

static kelp_status find_in(const struct kelp_options *given, const struct kelp_run_list *list,
                           time_t now, struct kelp_sweep *sweep, struct kelp_error *reterr)
{
    bool *marks = calloc(list->count + 1, sizeof(*marks));

    if (!marks) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    mark_runs(given, list, marks);
    kelp_status status = kelp_sweep_add_runs(sweep, list, marks, reterr);
    if (status == KELP_OK && kelp_options_given(given, "previous")) {
        status =
            kelp_sweep_add_replaced(sweep, list, marks, seconds(given, "previous"), now, reterr);
    }
    if (status == KELP_OK && kelp_options_flag(given, "leftovers")) {
        status = kelp_sweep_add_leftovers(sweep, list, marks, now, reterr);
    }
    if (status == KELP_OK && kelp_options_given(given, "cache")) {
        status = find_caches(given, list, now, sweep, reterr);
    }
    free(marks);
    return status;
}

static kelp_status find(const struct kelp_options *given, struct kelp_sweep *sweep,
                        struct kelp_error *reterr)
{
    struct kelp_run_list list = {.count = 0};
    struct kelp_run_look look = {.now = time(NULL), .timeout_ms = LOOK_MS};

    kelp_status status = kelp_run_list_find(&list, given, &look, reterr);
    if (status == KELP_OK) {
        status = find_in(given, &list, look.now, sweep, reterr);
    }
    kelp_run_list_fini(&list);
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

static void print_list(const struct kelp_sweep *sweep, FILE *out)
{
    uint64_t total = 0;
    char bytes[32];
    char age[32];

    (void)fprintf(out, "%-8s %10s %8s  %s\n", "KIND", "SIZE", "AGE", "PATH");
    for (size_t i = 0; i < sweep->count; i++) {
        const struct kelp_sweep_item *item = &sweep->items[i];
        print_bytes(item->bytes, bytes, sizeof(bytes));
        kelp_run_table_age(item->age_s, age, sizeof(age));
        (void)fprintf(out, "%-8s %10s %8s  %s\n", kelp_sweep_kind_name(item->kind), bytes, age,
                      item->path);
        total += item->bytes;
    }
    print_bytes(total, bytes, sizeof(bytes));
    (void)fprintf(out, "%-8s %10s\n", "total", bytes);
    (void)fflush(out);
}

static void print_json(const struct kelp_sweep *sweep)
{
    (void)fputs("{\"items\":[", stdout);
    for (size_t i = 0; i < sweep->count; i++) {
        const struct kelp_sweep_item *item = &sweep->items[i];
        kelp_json_print_member(stdout, i > 0 ? ",{" : "{", "kind",
                               kelp_sweep_kind_name(item->kind));
        kelp_json_print_member(stdout, ",", "path", item->path);
        (void)printf(",\"bytes\":%" PRIu64 ",\"age_s\":%.0f,\"removed\":%s}", item->bytes,
                     item->age_s, item->removed ? "true" : "false");
    }
    (void)fputs("]}\n", stdout);
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

static int remove_all(struct kelp_sweep *sweep)
{
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    for (size_t i = 0; i < sweep->count; i++) {
        struct kelp_sweep_item *item = &sweep->items[i];
        if (kelp_sweep_remove(item, &error) != KELP_OK) {
            exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
        } else if (!item->removed) {
            exit_status = kelp_complain(KELP_EXIT_FAILED, "'%s' is needed by now", item->path);
        }
    }
    return exit_status;
}

/* JSON says in the end what was removed; who is asked sees the list before, as in any case. */
static int offer(const struct kelp_options *given, struct kelp_sweep *sweep)
{
    bool json = kelp_verb_json(given);
    bool dry = kelp_options_flag(given, "dry-run");
    int exit_status = KELP_EXIT_OK;

    if (sweep->count == 0) {
        (void)kelp_complain(KELP_EXIT_OK, "there is nothing to remove");
    } else {
        if (!json || (!dry && !kelp_options_flag(given, "yes"))) {
            print_list(sweep, json ? stderr : stdout);
        }
        if (!dry) {
            exit_status = agreed(given) ? remove_all(sweep)
                                        : kelp_complain(KELP_EXIT_FAILED, "nothing is removed");
        }
    }
    if (json) {
        print_json(sweep);
    }
    return exit_status;
}

static int gc(const struct kelp_options *given)
{
    static const char *const wanted[] = {"keep", "older", "previous", "leftovers", "cache"};
    struct kelp_sweep sweep = {.count = 0};
    struct kelp_error error;
    size_t i = 0;

    while (i < KELP_ARRAY_COUNT(wanted) && !kelp_options_given(given, wanted[i])) {
        i++;
    }
    if (i == KELP_ARRAY_COUNT(wanted)) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "kelp gc needs --keep, --older, --previous, --leftovers or --cache, "
                             "to say what to remove; see kelp gc --help");
    }
    kelp_status status = find(given, &sweep, &error);
    int exit_status =
        status == KELP_OK
            ? offer(given, &sweep)
            : kelp_complain(status == KELP_ERR_NOT_FOUND ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s",
                            error.text);
    kelp_sweep_fini(&sweep);
    return exit_status;
}

const struct kelp_verb kelp_verb_gc = {
    "gc", "remove old runs and data caches; lists them and asks first", &program, gc, NULL};
