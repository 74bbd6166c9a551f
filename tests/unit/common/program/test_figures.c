/* The table of figures, and its text in Prometheus's format 0.0.4. */
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/scrape/figures.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"

static struct kelp_figures figures;
static char *text;

static void setup(void)
{
    kelp_figures_init(&figures);
}

static void teardown(void)
{
    free(text);
    text = NULL;
}

static const char *print_as(unsigned of, const char *id)
{
    const struct kelp_figures_process process = {
        .of = of, .role = "ps", .job = "etth1", .id = id, .version = "0.1.0", .commit = "abc1234"};
    struct kelp_text out;
    size_t count = 0;

    free(text);
    ck_assert_int_eq(kelp_text_open(&out, NULL), KELP_OK);
    kelp_figures_print(&figures, &process, out.out);
    ck_assert_int_eq(kelp_text_close(&out, &text, &count, NULL), KELP_OK);
    return text;
}

static bool has(const char *line)
{
    const char *found = strstr(text, line);

    return found && (found == text || found[-1] == '\n');
}

KELP_CASE("table", .setup = setup, .teardown = teardown)

static bool is_name(const char *name)
{
    return strncmp(name, "kelp_", 5) == 0 &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789") == strlen(name);
}

static bool ends_with(const char *name, const char *end)
{
    return strlen(name) > strlen(end) && strcmp(name + strlen(name) - strlen(end), end) == 0;
}

/* Each row has a name by the conventions; counters end in _total, and gauges do not; help stands in
 * the first row of a name alone, and rows of a name follow one another. */
KELP_LOOP_TEST(rows_are_whole, 0, KELP_FIGURE_COUNT)
{
    const struct kelp_figure_row *row = &kelp_figure_rows[_i];

    ck_assert_msg(row->name != NULL, "figure %d has no row", _i);
    ck_assert_msg(is_name(row->name), "%s", row->name);
    ck_assert_int_eq(ends_with(row->name, "_total"), row->type == KELP_FIGURE_COUNTER);
    ck_assert_msg(row->of != 0 && (row->of & ~KELP_FIGURE_OF_ALL) == 0, "%s", row->name);
    ck_assert_msg(row->scale == 1 || row->scale == 1000 || row->scale == 1000000, "%s", row->name);
    if (row->scale != 1) {
        ck_assert_msg(ends_with(row->name, "_seconds") || ends_with(row->name, "_seconds_total"),
                      "%s", row->name);
    }
    for (int i = 0; i < _i; i++) {
        const bool same = strcmp(kelp_figure_rows[i].name, row->name) == 0;
        if (same) {
            ck_assert_msg(!row->help && row->label && kelp_figure_rows[i].label, "%s", row->name);
            ck_assert_str_eq(kelp_figure_rows[_i - 1].name, row->name);
            ck_assert_str_ne(kelp_figure_rows[i].label, row->label);
        }
    }
    ck_assert_msg(row->help || strcmp(kelp_figure_rows[_i - 1].name, row->name) == 0, "%s",
                  row->name);
}

/* The same of histograms, whose names say seconds; bounds ascend, and their texts are seconds. */
KELP_LOOP_TEST(histograms_are_whole, 0, KELP_HISTOGRAM_COUNT)
{
    const struct kelp_histogram_row *row = &kelp_histogram_rows[_i];

    ck_assert_msg(row->name != NULL, "histogram %d has no row", _i);
    ck_assert_msg(is_name(row->name) && ends_with(row->name, "_seconds"), "%s", row->name);
    ck_assert_msg(row->of != 0 && (row->of & ~KELP_FIGURE_OF_ALL) == 0, "%s", row->name);
    for (int i = 0; i < KELP_HISTOGRAM_BOUNDS; i++) {
        char *end;
        const double bound_us = 1e6 * strtod(row->bounds[i].text, &end);
        ck_assert_str_eq(end, "");
        ck_assert(bound_us > (double)row->bounds[i].us - 0.5 &&
                  bound_us < (double)row->bounds[i].us + 0.5);
        ck_assert(i == 0 || row->bounds[i].us > row->bounds[i - 1].us);
    }
    for (int i = 0; i < KELP_FIGURE_COUNT; i++) {
        ck_assert_str_ne(kelp_figure_rows[i].name, row->name);
    }
    for (int i = 0; i < _i; i++) {
        if (strcmp(kelp_histogram_rows[i].name, row->name) == 0) {
            ck_assert_msg(!row->help && row->label && kelp_histogram_rows[i].label, "%s",
                          row->name);
            ck_assert_str_eq(kelp_histogram_rows[_i - 1].name, row->name);
            ck_assert_str_ne(kelp_histogram_rows[i].label, row->label);
        }
    }
    ck_assert_msg(row->help || strcmp(kelp_histogram_rows[_i - 1].name, row->name) == 0, "%s",
                  row->name);
}

static void print_row(FILE *out, const char *name, const char *label, const char *type, unsigned of,
                      const char *help)
{
    static const char *const daemons[] = {
        [KELP_FIGURE_OF_PS] = "shard",
        [KELP_FIGURE_OF_WORKER] = "worker",
        [KELP_FIGURE_OF_COORDINATOR] = "coordinator",
        [KELP_FIGURE_OF_ALL] = "all",
    };
    const int length = label ? (int)strcspn(label, "=") : 0;

    (void)fprintf(out, "| `%s%s%.*s%s` | %s | %s | %s |\n", name, label ? "{" : "", length,
                  label ? label : "", label ? "}" : "", type, daemons[of], help);
}

/* A line of the table of docs/METRICS.md for each name. */
static void print_reference(const void *nothing, FILE *out)
{
    (void)nothing;
    (void)fputs(
        "<!-- figures -->\n"
        "| name | type | of | meaning |\n| --- | --- | --- | --- |\n"
        "| `kelp_build_info{version,commit}` | gauge | all | What the process was built from; "
        "always 1 |\n"
        "| `kelp_process_info{kelp_job,role,id}` | gauge | all | Who the process is; always 1 "
        "|\n",
        out);
    for (int i = 0; i < KELP_FIGURE_COUNT; i++) {
        const struct kelp_figure_row *row = &kelp_figure_rows[i];
        if (row->help) {
            print_row(out, row->name, row->label,
                      row->type == KELP_FIGURE_GAUGE ? "gauge" : "counter", row->of, row->help);
        }
    }
    for (int i = 0; i < KELP_HISTOGRAM_COUNT; i++) {
        const struct kelp_histogram_row *row = &kelp_histogram_rows[i];
        if (row->help) {
            print_row(out, row->name, row->label, "histogram", row->of, row->help);
        }
    }
    (void)fputs("<!-- end -->\n", out);
}

/* docs/METRICS.md is what the table says. KELP_UPDATE=1 writes it. */
KELP_TEST(reference)
{
    const char *source = getenv("KELP_SOURCE");
    const char *root = source ? source : ".";
    char *wanted = NULL;
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/docs/METRICS.md", root);
    ck_assert_int_eq(kelp_text_print(print_reference, NULL, 1 << 20, &wanted, NULL), KELP_OK);
    char *page = kelp_test_read(root, "docs/METRICS.md", NULL);
    char *begin = strstr(page, "<!-- figures -->\n");
    char *end = strstr(page, "<!-- end -->\n");
    ck_assert_ptr_nonnull(begin);
    ck_assert_ptr_nonnull(end);
    if (getenv("KELP_UPDATE")) {
        FILE *out = fopen(path, "we");
        ck_assert_ptr_nonnull(out);
        (void)fprintf(out, "%.*s%s", (int)(begin - page), page, wanted);
        (void)fputs(strchr(end, '\n') + 1, out);
        ck_assert_int_eq(fclose(out), 0);
    } else {
        ck_assert_msg(strncmp(begin, wanted, strlen(wanted)) == 0,
                      "%s is older than common/scrape/figures.c: run this test with KELP_UPDATE=1",
                      path);
    }
    free(page);
    free(wanted);
}

KELP_CASE("text", .setup = setup, .teardown = teardown)

/* At first: who it is, counters at zero, and no gauge that nobody has set. */
KELP_TEST(what_is_not_known_is_not_told)
{
    (void)print_as(KELP_FIGURE_OF_PS, "shard-0");
    ck_assert(has("kelp_build_info{version=\"0.1.0\",commit=\"abc1234\"} 1\n"));
    ck_assert(has("kelp_process_info{kelp_job=\"etth1\",role=\"ps\",id=\"shard-0\"} 1\n"));
    ck_assert(has("kelp_ready 0\n"));
    ck_assert(has("kelp_shard_pushes_total 0\n"));
    ck_assert(!strstr(text, "kelp_shard_step "));
    ck_assert(!strstr(text, "kelp_shard_partitions"));
    ck_assert(!strstr(text, "kelp_worker"));
    ck_assert(!strstr(text, "kelp_coordinator"));
    ck_assert(!strstr(text, "kelp_job_"));
}

/* A name has its HELP and TYPE once, before its first sample, also when its first row is unknown.
 */
KELP_TEST(help_and_type_stand_once)
{
    kelp_figures_set(&figures, KELP_FIGURE_SHARD_FOLLOWED, 3);
    (void)print_as(KELP_FIGURE_OF_PS, "shard-0");
    ck_assert(has("# HELP kelp_shard_partitions Partitions on this shard\n"
                  "# TYPE kelp_shard_partitions gauge\n"
                  "kelp_shard_partitions{place=\"follower\"} 3\n"));
    kelp_figures_set(&figures, KELP_FIGURE_SHARD_LED, 2);
    (void)print_as(KELP_FIGURE_OF_PS, "shard-0");
    ck_assert(has("# TYPE kelp_shard_partitions gauge\n"
                  "kelp_shard_partitions{place=\"primary\"} 2\n"
                  "kelp_shard_partitions{place=\"follower\"} 3\n"));
    (void)print_as(KELP_FIGURE_OF_WORKER, "worker-0");
    ck_assert(has("# TYPE kelp_worker_seconds_total counter\n"
                  "kelp_worker_seconds_total{part=\"data\"} 0.000000\n"
                  "kelp_worker_seconds_total{part=\"compute\"} 0.000000\n"
                  "kelp_worker_seconds_total{part=\"push\"} 0.000000\n"
                  "kelp_worker_seconds_total{part=\"wait\"} 0.000000\n"));
}

/* Times are seconds, exact to what was measured; the largest numbers too. */
KELP_TEST(numbers_have_base_units)
{
    kelp_figures_add(&figures, KELP_FIGURE_WORKER_WAIT, 1234567);
    kelp_figures_add(&figures, KELP_FIGURE_WORKER_WAIT, 5);
    kelp_figures_set(&figures, KELP_FIGURE_STARTED, UINT64_C(1795690487007));
    kelp_figures_set(&figures, KELP_FIGURE_WORKER_SENT, UINT64_MAX - 1);
    (void)print_as(KELP_FIGURE_OF_WORKER, "worker-0");
    ck_assert(has("kelp_worker_seconds_total{part=\"wait\"} 1.234572\n"));
    ck_assert(has("kelp_process_start_time_seconds 1795690487.007\n"));
    ck_assert(has("kelp_worker_sent_bytes_total 18446744073709551614\n"));
}

/* Buckets of a histogram are cumulative, a bound belongs to the bucket below it, and what is above
 * all bounds is in the last one, which is the count. Each label has all of them. */
KELP_TEST(buckets_are_cumulative)
{
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_WAIT, 0);
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_WAIT, 100);
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_WAIT, 101);
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_WAIT, 30000000);
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_WAIT, 30000001);
    kelp_figures_observe(&figures, KELP_HISTOGRAM_WORKER_DATA, 2500);
    (void)print_as(KELP_FIGURE_OF_WORKER, "worker-0");
    ck_assert(has("# TYPE kelp_worker_step_seconds histogram\n"
                  "kelp_worker_step_seconds_bucket{part=\"data\",le=\"0.0001\"} 0\n"
                  "kelp_worker_step_seconds_bucket{part=\"data\",le=\"0.0003\"} 0\n"
                  "kelp_worker_step_seconds_bucket{part=\"data\",le=\"0.001\"} 0\n"
                  "kelp_worker_step_seconds_bucket{part=\"data\",le=\"0.003\"} 1\n"));
    ck_assert(has("kelp_worker_step_seconds_sum{part=\"data\"} 0.002500\n"
                  "kelp_worker_step_seconds_count{part=\"data\"} 1\n"
                  "kelp_worker_step_seconds_bucket{part=\"compute\",le=\"0.0001\"} 0\n"));
    ck_assert(has("kelp_worker_step_seconds_bucket{part=\"wait\",le=\"0.0001\"} 2\n"
                  "kelp_worker_step_seconds_bucket{part=\"wait\",le=\"0.0003\"} 3\n"));
    ck_assert(has("kelp_worker_step_seconds_bucket{part=\"wait\",le=\"30\"} 4\n"
                  "kelp_worker_step_seconds_bucket{part=\"wait\",le=\"+Inf\"} 5\n"
                  "kelp_worker_step_seconds_sum{part=\"wait\"} 60.000202\n"
                  "kelp_worker_step_seconds_count{part=\"wait\"} 5\n"));
    ck_assert(!strstr(text, "kelp_shard_step_seconds"));
    (void)print_as(KELP_FIGURE_OF_PS, "shard-0");
    ck_assert(has("kelp_shard_step_seconds_bucket{le=\"+Inf\"} 0\n"
                  "kelp_shard_step_seconds_sum 0.000000\n"
                  "kelp_shard_step_seconds_count 0\n"));
    kelp_figures_observe(&figures, KELP_HISTOGRAM_CHECKPOINT, UINT64_C(3600000001));
    (void)print_as(KELP_FIGURE_OF_COORDINATOR, "coordinator-0");
    ck_assert(has("kelp_coordinator_checkpoint_duration_seconds_bucket{le=\"3600\"} 0\n"
                  "kelp_coordinator_checkpoint_duration_seconds_bucket{le=\"+Inf\"} 1\n"));
}

/* Backslashes, quotes and line breaks in a label are escaped. */
KELP_TEST(labels_are_escaped)
{
    (void)print_as(KELP_FIGURE_OF_PS, "a\\b\"c\nd");
    ck_assert(has("kelp_process_info{kelp_job=\"etth1\",role=\"ps\",id=\"a\\\\b\\\"c\\nd\"} 1\n"));
}

/* The text ends with a line break; each line is a comment or a sample, and each figure has one. */
KELP_TEST(every_line_is_one)
{
    unsigned samples = 0;

    for (int i = 0; i < KELP_FIGURE_COUNT; i++) {
        kelp_figures_set(&figures, (enum kelp_figure)i, 7000000);
    }
    (void)print_as(KELP_FIGURE_OF_ALL, "all");
    for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
        ck_assert_ptr_nonnull(strchr(line, '\n'));
        const bool comment =
            strncmp(line, "# HELP kelp_", 12) == 0 || strncmp(line, "# TYPE kelp_", 12) == 0;
        ck_assert_msg(comment || strncmp(line, "kelp_", 5) == 0, "%.80s", line);
        samples += comment ? 0 : 1;
    }
    /* kelp_build_info, kelp_process_info; the buckets, sum and count of each histogram. */
    ck_assert_uint_eq(samples, KELP_FIGURE_COUNT + 2 +
                                   KELP_HISTOGRAM_COUNT * (KELP_HISTOGRAM_BOUNDS + 1 + 2));
}

KELP_CASE("health", .setup = setup, .teardown = teardown)

/* Not ready at first; ready and back; the figure says the same. */
KELP_TEST(ready_and_back)
{
    ck_assert_str_eq(kelp_figures_why_not_ready(&figures), "it starts");
    kelp_figures_ready(&figures, NULL);
    ck_assert_ptr_null(kelp_figures_why_not_ready(&figures));
    ck_assert_uint_eq(kelp_figures_get(&figures, KELP_FIGURE_READY), 1);
    kelp_figures_ready(&figures, "it waits");
    ck_assert_str_eq(kelp_figures_why_not_ready(&figures), "it waits");
    ck_assert_uint_eq(kelp_figures_get(&figures, KELP_FIGURE_READY), 0);
}

/* Healthy before the loop runs, while it runs, and no more once it has been silent for long. */
KELP_TEST(silence_is_seen)
{
    ck_assert(kelp_figures_healthy(&figures));
    kelp_figures_beat(&figures);
    ck_assert(kelp_figures_healthy(&figures));
    (void)print_as(KELP_FIGURE_OF_PS, "shard-0");
    ck_assert_ptr_nonnull(strstr(text, "\nkelp_loop_silent_seconds 0.0"));
    figures.beat_ms = 1; /* long ago */
    ck_assert(!kelp_figures_healthy(&figures));
}

/* Without anybody who watches, nothing is set and nothing fails. */
KELP_TEST(nobody_watches)
{
    kelp_figures_set(NULL, KELP_FIGURE_READY, 1);
    kelp_figures_add(NULL, KELP_FIGURE_READY, 1);
    kelp_figures_observe(NULL, KELP_HISTOGRAM_SHARD_STEP, 1);
    kelp_figures_beat(NULL);
    kelp_figures_ready(NULL, NULL);
    ck_assert_uint_eq(kelp_figures_get(&figures, KELP_FIGURE_READY), 0);
}
