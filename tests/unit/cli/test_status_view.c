/* `kelp status` of a run that goes on: its metrics are called as the summary at its end calls them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cluster/run_certificates.h"
#include "cli/cluster/status_view.h"
#include "common/base/text.h"
#include "proto/convert.h"
#include "tests/lib/commands/run_command.h"
#include "tests/lib/suite.h"
#include "tests/lib/tls/test_certificates.h"

static struct kelp_test_folder folder;
static Kelp__V1__Slow slow;
static Kelp__V1__WorkerTimes times;
static bool json;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    kelp__v1__slow__init(&slow);
    kelp__v1__worker_times__init(&times);
    json = false;
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
    reply.slow = slow.part[0] ? &slow : NULL;
    worker.times = times.serial > 0 ? &times : NULL;
    worker.behind_us = 300;
    ck_assert_int_eq(kelp_text_open(&text, NULL), KELP_OK);
    (json ? kelp_status_json : kelp_status_table)(&reply, folder.path, text.out);
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

/* Who is slow, and in what: one line for each part. */
KELP_TEST(slow_workers)
{
    expect("lost so far\nMETRIC"); /* nothing is known to be slow */
    slow.worker = (char *)"worker-1";
    slow.part = (char *)"computing";
    slow.us = 38000;
    slow.usual_us = 12000;
    slow.part_us = 31200;
    slow.wait_us = 24000;
    slow.step_us = 80000;
    expect("lost so far\nslow       worker-1: 38 ms a lane where others take 12 ms (median): "
           "computing 31 ms; others wait 24 ms a step\n");
    slow.part = (char *)"reading";
    slow.us = 3440;
    slow.usual_us = 420;
    slow.part_us = 2000000;
    expect("slow       worker-1: 3.4 ms a lane where others take 0.42 ms (median): reading 2.0 s; "
           "others wait 24 ms a step\n");
    slow.part = (char *)"pushing";
    expect("slow       worker-1: pushing 3.4 ms a step where others take 0.42 ms (median); others "
           "wait 24 ms a step\n");
    slow.late = true;
    expect("slow       worker-1: pushing: its lanes come 3.4 ms after the first of a step, those "
           "of others 0.42 ms (median), though its work is as short; others wait 24 ms a step\n");
    slow.part = (char *)"a part of a later version";
    expect("lost so far\nMETRIC");
}

KELP_TEST(slow_shards)
{
    slow.part = (char *)"shard";
    slow.shard = (char *)"shard-2";
    slow.us = 20000;
    slow.wait_us = 20000;
    slow.step_us = 30000;
    expect("slow       shard-2: workers wait for it alone, 20 ms of a step of 30 ms (median)\n");
    slow.address = (char *)"10.0.0.6:7001";
    expect("slow       shard-2 at 10.0.0.6:7001: workers wait for it alone, 20 ms of a step of 30 "
           "ms (median)\n");
    slow.worker = (char *)"worker-1";
    expect("slow       worker-1: waiting for shard-2 at 10.0.0.6:7001 alone, 20 ms of a step of "
           "30 ms; others wait 20 ms a step\n");
}

/* In JSON: null before anything is known. */
KELP_TEST(slow_in_json)
{
    json = true;
    expect(",\"slow\":null,");
    expect(",\"times\":null,");
    slow.worker = (char *)"worker-1";
    slow.part = (char *)"computing";
    slow.us = 38000;
    slow.usual_us = 12000;
    slow.part_us = 31200;
    slow.wait_us = 24000;
    slow.step_us = 80000;
    times.serial = 3;
    times.steps = 10;
    times.lanes = 20;
    times.length_us = 1000000;
    times.read_us = 100000;
    times.compute_us = 300000;
    times.push_us = 50000;
    times.wait_us = 550000;
    times.alone_us = 70000;
    times.shard = (char *)"shard-0";
    expect(",\"slow\":{\"worker\":\"worker-1\",\"part\":\"computing\",\"shard\":\"\","
           "\"address\":\"\",\"us\":38000,\"usual_us\":12000,\"part_us\":31200,"
           "\"wait_us\":24000,\"step_us\":80000,\"late\":false},");
    expect(",\"times\":{\"steps\":10,\"step_us\":100000,\"lane_us\":20000,\"reading_us\":10000,"
           "\"computing_us\":30000,\"pushing_us\":5000,\"waiting_us\":55000,"
           "\"shard\":\"shard-0\",\"shard_us\":7000,\"behind_us\":300},");
}
