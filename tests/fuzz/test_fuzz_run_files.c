/* What a run leaves in its folder, damaged: results, digests, metrics, and where its cluster is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/run_client.h"
#include "cli/replay/digest_log.h"
#include "cli/run/metrics_log.h"
#include "common/base/files.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/fuzz.h"

#define TEXTS 20000
#define FILES 2000 /* each is written and read again */

static struct kelp_test_folder folder;

static void setup(void)
{
    kelp_test_folder_init(&folder);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

static void write_file(const char *name, const uint8_t *bytes, size_t count)
{
    char path[200];

    (void)snprintf(path, sizeof(path), "%s/%s", folder.path, name);
    ck_assert_int_eq(kelp_files_write(path, bytes, count, NULL), KELP_OK);
}

static const char *const words[] = {"\"version\":",
                                    "\"step\":",
                                    "\"epoch\":",
                                    "\"digest\":\"",
                                    "null",
                                    "1e999",
                                    "-1",
                                    "NaN",
                                    "9007199254740993",
                                    "{}",
                                    "[[[[",
                                    "\n",
                                    "\n{",
                                    "\\u0000",
                                    "\\u001b[2J",
                                    "\"val/mse\":",
                                    "\"",
                                    "18446744073709551616"};

/* ---- result.json ---------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed results[] = {
    KELP_FUZZ_TEXT(
        "{\"job\":\"etth1\",\"status\":\"done\",\"reason\":\"\",\"started\":\"2026-11-22T10:00:"
        "00Z\","
        "\"ended\":\"2026-11-22T10:01:00Z\",\"host\":\"h\",\"version\":\"0.9\",\"step\":2650,"
        "\"epoch\":10,\"metrics\":{\"val/mse\":0.5,\"test/mse\":0.25},\"best\":{\"step\":265,"
        "\"epoch\":1,\"val/mse\":0.5,\"checkpoint\":\"step-265.g1\"},"
        "\"digest\":\"0123456789abcdef0123456789abcdef\",\"steps_per_s\":400.5,\"wall_s\":8.5,"
        "\"restarts\":1,\"restores\":0,\"steps_recomputed\":0,\"checkpoints\":3,\"workers\":["
        "{\"id\":\"worker-0\",\"lanes_computed\":100}]}"),
    KELP_FUZZ_TEXT(
        "{\"job\":\"j\",\"status\":\"failed\",\"reason\":\"why\",\"step\":0,\"best\":null,"
        "\"metrics\":{}}")};

static const char *read_result(const uint8_t *bytes, size_t count)
{
    struct kelp_result result;
    struct kelp_error error = {.text = ""};

    if (kelp_result_parse((const char *)bytes, count, &result, &error) != KELP_OK) {
        return error.text[0] ? NULL : "refused without a word";
    }
    if (result.metric_count > KELP_RESULT_METRICS_MAX ||
        result.best_count > KELP_RESULT_METRICS_MAX ||
        result.worker_count > KELP_RESULT_WORKERS_MAX) {
        return "more than there is room for";
    }
    FILE *out = fopen("/dev/null", "w");
    ck_assert_ptr_nonnull(out);
    kelp_result_print(&result, out);
    kelp_result_table(out, &result);
    (void)fclose(out);
    return NULL;
}

KELP_CASE("result", .timeout_s = 120)

KELP_FUZZ_TEST(result, TEXTS, results, words, read_result)

/* ---- digests.jsonl -------------------------------------------------------------------------- */

#define DIGEST "\"digest\":\"0123456789abcdef0123456789abcdef\"}\n"

static const struct kelp_fuzz_seed digests[] = {
    KELP_FUZZ_TEXT("{\"version\":5,\"step\":5,\"epoch\":0," DIGEST
                   "{\"version\":10,\"step\":10,\"epoch\":1," DIGEST
                   "{\"version\":12,\"step\":10,\"epoch\":1," DIGEST),
    KELP_FUZZ_TEXT("{\"version\":1,\"step\":1,\"epoch\":0," DIGEST "{\"version\":2,\"st")};

static const char *read_digests(const uint8_t *bytes, size_t count)
{
    struct kelp_digest_log log = {.count = 0};
    const char *wrong = NULL;

    write_file("digests.jsonl", bytes, count);
    if (kelp_digest_log_read(folder.path, &log, NULL) != KELP_OK) {
        return NULL;
    }
    for (size_t i = 0; i < log.count && !wrong; i++) {
        if (i > 0 && log.lines[i].version <= log.lines[i - 1].version) {
            wrong = "versions do not grow";
        } else if (strnlen(log.lines[i].digest, KELP_DIGEST_HEX_BYTES) != 32) {
            wrong = "a digest that is none was taken";
        }
    }
    kelp_digest_log_fini(&log);
    return wrong;
}

KELP_CASE("digests", .timeout_s = 120, .setup = setup, .teardown = teardown)

KELP_FUZZ_TEST(digest_log, FILES, digests, words, read_digests)

/* ---- metrics.jsonl -------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed metrics[] = {
    KELP_FUZZ_TEXT("{\"version\":62,\"step\":62,\"epoch\":1,\"train/loss\":0.5}\n"
                   "{\"version\":63,\"step\":62,\"epoch\":1,\"val/mse\":0.25,\"val/mae\":0.5}\n"
                   "{\"version\":64,\"step\":62,\"epoch\":1,\"test/mse\":null}\n"),
    KELP_FUZZ_TEXT("{\"version\":1,\"step\":1,\"epoch\":0,\"train/loss\":1e300}\n{\"ver")};

static const char *check_metrics(const struct kelp_metrics_log *log)
{
    for (size_t i = 0; i < log->row_count; i++) {
        const struct kelp_metrics_row *row = &log->rows[i];
        if (row->cell_first > log->cell_count ||
            row->cell_count > log->cell_count - row->cell_first) {
            return "a row has cells that are not there";
        }
        (void)kelp_metrics_log_cell(log, row, "val/mse");
    }
    return log->name_count <= KELP_METRICS_LOG_NAMES_MAX ? NULL : "too many names";
}

static const char *read_metrics(const uint8_t *bytes, size_t count)
{
    struct kelp_metrics_log log = {.row_count = 0};
    const char *wrong = NULL;

    write_file("metrics.jsonl", bytes, count);
    if (kelp_metrics_log_read(folder.path, &log, NULL) == KELP_OK) {
        wrong = check_metrics(&log);
        kelp_metrics_log_fini(&log);
    }
    log = (struct kelp_metrics_log){.row_count = 0};
    if (!wrong && kelp_metrics_log_read_end(folder.path, &log, NULL) == KELP_OK) {
        wrong = check_metrics(&log);
        kelp_metrics_log_fini(&log);
    }
    return wrong;
}

KELP_CASE("metrics", .timeout_s = 120, .setup = setup, .teardown = teardown)

KELP_FUZZ_TEST(metrics_log, FILES, metrics, words, read_metrics)

/* ---- cluster.json --------------------------------------------------------------------------- */

static const struct kelp_fuzz_seed clusters[] = {
    KELP_FUZZ_TEXT("{\"job\":\"etth1\",\"etcd\":\"unix:/run/user/0/kelp/a/etcd\",\"private\":true,"
                   "\"pid\":1234,\"sockets\":\"/run/user/0/kelp/a\",\"certs\":\"/c/operator\"}"),
    KELP_FUZZ_TEXT("{\"job\":\"j\",\"etcd\":\"http://127.0.0.1:2379\",\"pid\":1}")};

static const char *read_cluster(const uint8_t *bytes, size_t count)
{
    struct kelp_run_cluster cluster;

    write_file("cluster.json", bytes, count);
    if (kelp_run_cluster_read(folder.path, &cluster, NULL) != KELP_OK) {
        return NULL;
    }
    bool ends = memchr(cluster.job, 0, sizeof(cluster.job)) != NULL &&
                memchr(cluster.etcd, 0, sizeof(cluster.etcd)) != NULL &&
                memchr(cluster.sockets, 0, sizeof(cluster.sockets)) != NULL &&
                memchr(cluster.certs, 0, sizeof(cluster.certs)) != NULL;
    return ends && cluster.pid >= 0 ? NULL : "a text without an end, or a pid below 0";
}

KELP_CASE("cluster", .timeout_s = 120, .setup = setup, .teardown = teardown)

KELP_FUZZ_TEST(cluster, FILES, clusters, words, read_cluster)
