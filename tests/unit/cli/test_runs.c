/* Runs at a glance: what became of each, in which order, as table, JSON and CSV. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli/runs/run_table.h"
#include "common/base/files.h"
#include "tests/lib/commands/json_fields.h"
#include "tests/lib/suite.h"

#define JOB "model: {kind: dlinear}\ndata: {kind: synthetic}\ntrain: {epochs: 4}\n"

static char folder[64];
static struct kelp_error error;
static struct kelp_run_list list;

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-runs-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(mkdir("runs", 0777), 0);
    memset(&list, 0, sizeof(list));
}

static void teardown(void)
{
    kelp_run_list_fini(&list);
    (void)chdir("/");
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

/* A file of a run, whose folder is made; it is age_s old. */
static void put(const char *run, const char *name, const char *text, unsigned age_s)
{
    char path[256];

    (void)snprintf(path, sizeof(path), "runs/%s", run);
    ck_assert_int_eq(kelp_files_make_folder(path, NULL), KELP_OK);
    (void)snprintf(path, sizeof(path), "runs/%s/%s", run, name);
    ck_assert_int_eq(kelp_files_write(path, text, strlen(text), NULL), KELP_OK);
    struct timespec times[2] = {{.tv_sec = time(NULL) - (time_t)age_s}};
    times[1] = times[0];
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A run that ended so long ago, with its last and its best loss. */
static void put_ended(const char *run, const char *status, unsigned age_s, double loss, double best)
{
    struct kelp_result result = {.step = 40, .epoch = 4, .best_known = true, .best_step = 20};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    (void)snprintf(result.status, sizeof(result.status), "%s", status);
    (void)snprintf(result.job, sizeof(result.job), "demo");
    kelp_result_add(&result, "train/loss", loss / 2);
    kelp_result_add(&result, "val/loss", loss);
    kelp_result_add_best(&result, "val/loss", best);
    kelp_result_print(&result, out);
    ck_assert_int_eq(fclose(out), 0);
    put(run, "job.yaml", "name: demo\n" JOB, age_s);
    put(run, "result.json", text, age_s);
    free(text);
}

static void find(void)
{
    struct kelp_run_look look = {.now = time(NULL), .timeout_ms = 100};

    kelp_run_list_fini(&list);
    ck_assert_msg(kelp_run_list_add(&list, "runs", &look, &error) == KELP_OK, "%s", error.text);
}

/* Names in the order of the key, with spaces between them. */
static const char *sorted(const char *key, bool reverse)
{
    static char text[256];
    struct kelp_run_order order = {.key = key, .reverse = reverse};
    size_t used = 0;

    ck_assert_msg(kelp_run_list_sort(&list, &order, &error) == KELP_OK, "%s", error.text);
    text[0] = '\0';
    for (size_t i = 0; i < list.count; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? " " : "",
                                 kelp_run_list_name(&list.items[i]));
    }
    return text;
}

static const struct kelp_run_info *run_of(const char *name)
{
    for (size_t i = 0; i < list.count; i++) {
        if (strcmp(kelp_run_list_name(&list.items[i]), name) == 0) {
            return &list.items[i];
        }
    }
    ck_abort_msg("%s is not in the list", name);
}

KELP_CASE("runs", .setup = setup, .teardown = teardown)

/* A run is what result.json says, unless it is held; whatever is missing or damaged makes it broken
 * and nothing fails. What is no run, and the link to the newest one, are passed over. */
KELP_TEST(states)
{
    struct kelp_run_dir held;

    put_ended("done", "done", 100, 3, 2);
    put_ended("paused", "paused", 50, 3, 2);
    put_ended("strange", "quiet", 5, 3, 2);
    put("killed", "job.yaml", "name: demo\n" JOB, 70);
    put("killed", "metrics.jsonl",
        "{\"version\":9,\"step\":10,\"epoch\":1,\"train/loss\":5,\"lr\":1}\n"
        "{\"version\":10,\"step\":10,\"epoch\":1,\"val/loss\":7}\n{\"version\":11,\"st",
        60);
    put("cut", "job.yaml", "name: [", 9);
    put("cut", "result.json", "{\"status\":\"do", 9);
    put("other", "notes.txt", "no run\n", 9);
    ck_assert_int_eq(kelp_run_dir_create("runs/held", false, &held, &error), KELP_OK);
    ck_assert_int_eq(symlink("done", "runs/latest"), 0);
    find();
    ck_assert_uint_eq(list.count, 6);
    ck_assert_int_eq(run_of("done")->state, KELP_RUN_STATE_DONE);
    ck_assert_double_eq_tol(run_of("done")->age_s, 100, 5);
    ck_assert_uint_eq(run_of("done")->epochs, 4);
    ck_assert_int_eq(run_of("paused")->state, KELP_RUN_STATE_PAUSED);
    ck_assert_int_eq(run_of("held")->state, KELP_RUN_STATE_RUNNING);
    ck_assert_int_eq(run_of("strange")->state, KELP_RUN_STATE_BROKEN);
    ck_assert_int_eq(run_of("cut")->state, KELP_RUN_STATE_BROKEN);
    ck_assert_str_eq(run_of("cut")->job, "");
    ck_assert_ptr_nonnull(strstr(run_of("cut")->reason, "result.json: "));
    const struct kelp_run_info *killed = run_of("killed");
    ck_assert_int_eq(killed->state, KELP_RUN_STATE_BROKEN);
    ck_assert_uint_eq(killed->step, 10);
    ck_assert_uint_eq(killed->epoch, 1);
    ck_assert_uint_eq(killed->metric_count, 2);
    ck_assert_double_eq_tol(killed->age_s, 60, 5);
    kelp_run_dir_close(&held);
}

/* By each key, both ways; runs without the metric are last both ways, equal ones stand by name. */
KELP_TEST(orders)
{
    put_ended("b", "done", 10, 4, 1);
    put_ended("a", "failed", 30, 3, 2);
    put_ended("c", "done", 20, 5, 3);
    put("none", "job.yaml", "name: demo\n" JOB, 40);
    find();
    ck_assert_str_eq(sorted("age", false), "b c a none");
    ck_assert_str_eq(sorted("age", true), "none a c b");
    ck_assert_str_eq(sorted("name", false), "a b c none");
    ck_assert_str_eq(sorted("status", false), "b c a none");
    ck_assert_str_eq(sorted("val/loss", false), "b a c none");
    ck_assert_str_eq(sorted("val/loss", true), "c a b none");
    ck_assert_str_eq(sorted("train/loss", false), "a b c none");
    ck_assert_str_eq(sorted("step", true), "a b c none");
    struct kelp_run_order order = {.key = "val/lss"};
    ck_assert_int_eq(kelp_run_list_sort(&list, &order, &error), KELP_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "did you mean 'val/loss'?"));
}

static char *printed(void (*print)(const struct kelp_run_list *runs, FILE *out))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    print(&list, out);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

/* One row for each run; the head says which metric it is where all have the same. */
KELP_TEST(table)
{
    put_ended("b", "done", 600, 4, 1);
    find();
    char *text = printed(kelp_run_table_text);
    ck_assert_str_eq(text, "NAME  STATUS  EPOCH  STEP  LOSS  VAL LOSS  TEST LOSS     AGE\n"
                           "b     done      4/4    40     2         1          -  10 min\n");
    free(text);
    put_ended("f\u00e4rd", "done", 1200, 4, 1); /* columns are those of the terminal, not bytes */
    put_ended("\u6771\u4eac", "done", 1800, 4, 1);
    find();
    (void)sorted("age", false);
    text = printed(kelp_run_table_text);
    ck_assert_str_eq(text,
                     "NAME  STATUS  EPOCH  STEP  LOSS  VAL LOSS  TEST LOSS     AGE\n"
                     "b     done      4/4    40     2         1          -  10 min\n"
                     "f\u00e4rd  done      4/4    40     2         1          -  20 min\n"
                     "\u6771\u4eac  done      4/4    40     2         1          -  30 min\n");
    free(text);
    put_ended("c", "done", 5, 4, 1);
    put("c", "job.yaml",
        "name: demo\nmodel: {kind: dlinear}\ndata: {kind: synthetic}\n"
        "train: {monitor: val/mse}\n",
        5);
    find();
    text = printed(kelp_run_table_text);
    ck_assert_ptr_nonnull(strstr(text, "loss 1"));
    ck_assert_ptr_nonnull(strstr(text, "  VAL  "));
    free(text);
}

KELP_TEST(json_and_csv)
{
    put_ended("a,1", "done", 600, 4, 1);
    find();
    char *text = printed(kelp_run_table_json);
    cJSON *json = kelp_test_json(text);
    const cJSON *run = cJSON_GetArrayItem(kelp_test_member(json, "runs"), 0);
    ck_assert_str_eq(kelp_test_text(run, "run"), "runs/a,1");
    ck_assert_str_eq(kelp_test_text(run, "status"), "done");
    ck_assert_double_eq(
        kelp_test_number(kelp_test_member(kelp_test_member(run, "best"), "metrics"), "val/loss"),
        1);
    cJSON_Delete(json);
    free(text);
    text = printed(kelp_run_table_csv);
    ck_assert_ptr_nonnull(strstr(text,
                                 "epochs,best_step,best_epoch,train/loss,val/loss,best/val/loss\n"
                                 "\"a,1\",\"runs/a,1\",demo,done,,"));
    ck_assert_ptr_nonnull(strstr(text, ",40,4,4,20,0,2,4,1\n"));
    free(text);
}

/* Ages in the unit that fits. */
KELP_TEST(ages)
{
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0 s"},        {119, "119 s"}, {120, "2 min"},
                 {7199, "119 min"}, {7200, "2 h"},  {48 * 3600.0, "2 d"}};
    char text[32];

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        kelp_run_table_age(cases[i].seconds, text, sizeof(text));
        ck_assert_str_eq(text, cases[i].text);
    }
}
