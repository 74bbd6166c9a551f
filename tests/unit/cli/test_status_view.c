/* `kelp status` of a run that goes on: its metrics are called as the summary at its end calls them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/run/run_certificates.h"
#include "cli/run/status_view.h"
#include "common/base/text.h"
#include "proto/convert.h"
#include "tests/lib/cluster/run_command.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

static struct kelp_test_folder folder;

static void setup(void)
{
    kelp_test_folder_init(&folder);
}

static void teardown(void)
{
    kelp_test_folder_fini(&folder);
}

/* The text of a run whose validation was measured, and whose processes are drained. Owned. */
static char *table(void)
{
    struct kelp_record record = {.word = {.kind = KELP_STEP_EVALUATE_VAL, .sample_count = 1}};
    struct kelp_wire_record message;
    Kelp__V1__StatusReply reply = KELP__V1__STATUS_REPLY__INIT;
    Kelp__V1__ShardInfo shard = KELP__V1__SHARD_INFO__INIT, *shards[] = {&shard};
    Kelp__V1__WorkerStatus worker = KELP__V1__WORKER_STATUS__INIT, *workers[] = {&worker};
    struct kelp_text text;
    char *bytes = NULL;
    size_t count = 0;

    record.metrics.present = 1u << KELP_METRIC_LOSS | 1u << KELP_METRIC_MAE_UNSCALED;
    record.metrics.of[KELP_METRIC_LOSS] = 0.5;
    record.metrics.of[KELP_METRIC_MAE_UNSCALED] = 34.25;
    kelp_wire_put_record(&record, &message);
    reply.latest_val = &message.message;
    shard.shard = (char *)"shard-1";
    shard.connected = shard.draining = true;
    shard.partitions = 3;
    shard.backups = 1;
    reply.shards = shards;
    reply.n_shards = 1;
    worker.id = (char *)"worker-2";
    worker.draining = true;
    reply.workers = workers;
    reply.n_workers = 1;
    ck_assert_int_eq(kelp_text_open(&text, NULL), KELP_OK);
    kelp_status_table(&reply, folder.path, text.out);
    ck_assert_int_eq(kelp_text_close(&text, &bytes, &count, NULL), KELP_OK);
    return bytes;
}

static void expect(const char *wanted)
{
    char *text = table();

    ck_assert_msg(strstr(text, wanted) != NULL, "no '%s' in:\n%s", wanted, text);
    free(text);
}

KELP_CASE("status_view", .setup = setup, .teardown = teardown)

KELP_TEST(unit_of_the_data)
{
    expect("mae (unscaled)"); /* a run without a job that can be read */
    (void)kelp_test_write(folder.path, "job.yaml",
                          "name: j\nmodel: {kind: dlinear}\n"
                          "data: {kind: synthetic, unit: rides, split: [200, 60, 60], seq_len: 8,\n"
                          "       pred_len: 4}\n");
    expect("mae (rides)");
    expect("34.25");
}

/* Who is to go, and what it still has. */
KELP_TEST(draining)
{
    expect("shard-1         draining     3 partitions, 1 backup  ");
    expect("worker-2        draining     spare  ");
}

/* One that has ended, and not those that have long to go. */
KELP_TEST(certificates)
{
    static const char *const roles[] = {"operator", "worker"};
    struct kelp_run_certificate list[KELP_RUN_CERTIFICATES_MAX];
    char text[400], out[64], name[64];

    kelp_test_authority(folder.path, "authority");
    for (int i = 0; i < 2; i++) {
        (void)snprintf(out, sizeof(out), "certs/%s", roles[i]);
        (void)snprintf(name, sizeof(name), "j/%s", roles[i]);
        kelp_test_issue(
            &(struct kelp_test_issue){folder.path, "authority", out, name, NULL, i == 0 ? 5 : -1});
    }
    (void)snprintf(text, sizeof(text),
                   "{\"job\":\"j\",\"etcd\":\"http://127.0.0.1:1\",\"private\":false,\"pid\":1,"
                   "\"certs\":\"%s/certs/operator\"}",
                   folder.path);
    (void)kelp_test_write(folder.path, "cluster.json", text);
    ck_assert_uint_eq(kelp_run_certificates(folder.path, (int64_t)time(NULL), list), 3);
    expect("warning    the certificate of worker has ended: 20");
    char *shown = table();
    ck_assert_ptr_null(strstr(shown, "of operator"));
    ck_assert_ptr_null(strstr(shown, "of authority"));
    free(shown);
}
