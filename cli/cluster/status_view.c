#include "cli/cluster/status_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/cluster/run_certificates.h"
#include "cli/cluster/run_client.h"
#include "cli/cluster/slow_view.h"
#include "common/base/json.h"
#include "common/training/control.h"
#include "proto/convert.h"

static bool evaluated(const Kelp__V1__Record *record)
{
    return record && record->word;
}

/* Of the newest training step; false: there is none. */
static bool newest_loss(const Kelp__V1__StatusReply *status, double *ret_loss)
{
    struct kelp_metrics metrics;

    if (!evaluated(status->latest_train) ||
        !kelp_wire_get_metrics(status->latest_train->measures, &metrics)) {
        return false;
    }
    *ret_loss = metrics.of[KELP_METRIC_LOSS];
    return true;
}

static void add_val(const Kelp__V1__StatusReply *status, struct kelp_meter *meter)
{
    struct kelp_metrics metrics;

    if (evaluated(status->latest_val) &&
        kelp_wire_get_metrics(status->latest_val->measures, &metrics)) {
        meter->val_known = kelp_metrics_have(&metrics, KELP_METRIC_LOSS);
        meter->val_loss = metrics.of[KELP_METRIC_LOSS];
    }
}

/* Completed epochs: a job that has made its last step counts its last one. */
static uint32_t epochs_done(const Kelp__V1__StatusReply *status)
{
    if (!status->word) {
        return 0;
    }
    if (status->word->kind == KELP_STEP_TRAIN || status->steps_per_epoch == 0) {
        return status->word->epoch;
    }
    return (uint32_t)(status->word->step / status->steps_per_epoch);
}

void kelp_status_meter(const Kelp__V1__StatusReply *status, uint32_t batch_size, double steps_per_s,
                       struct kelp_meter *ret_meter)
{
    struct kelp_meter meter = {.reason = status->reason, .left_s = -1};

    meter.running = strcmp(status->state, "running") == 0 && status->reason[0] == '\0';
    if (status->word) {
        meter.step = status->word->step;
        meter.epoch = status->word->epoch + 1;
        meter.steps_skipped = status->word->steps_skipped;
    }
    if (meter.epoch > status->epochs) {
        meter.epoch = status->epochs;
    }
    meter.total_steps = status->total_steps;
    meter.epochs = status->epochs;
    meter.loss_known = newest_loss(status, &meter.loss);
    add_val(status, &meter);
    meter.samples_per_s = steps_per_s * batch_size;
    meter.workers = (uint32_t)status->n_workers;
    for (size_t i = 0; i < status->n_shards; i++) {
        meter.shards += status->shards[i]->connected ? 1 : 0;
    }
    if (steps_per_s > 0 && status->total_steps >= meter.step) {
        meter.left_s = (double)(status->total_steps - meter.step) / steps_per_s;
    }
    *ret_meter = meter;
}

/* A sum of the job's own, or one of Kelp's metrics. */
static const char *metric_name(const Kelp__V1__StatusReply *status, enum kelp_metric metric)
{
    for (uint32_t i = 0; i < status->n_sum && i < KELP_JOB_SUMS_MAX; i++) {
        if (kelp_metric_of_sum(i) == metric) {
            return status->sum[i];
        }
    }
    return kelp_metric_name(metric);
}

static void add_metrics(const Kelp__V1__StatusReply *status, const Kelp__V1__Measures *message,
                        const char *split, struct kelp_result *result,
                        void (*add)(struct kelp_result *result, const char *name, double value))
{
    struct kelp_metrics metrics;
    char name[32];

    if (!kelp_wire_get_metrics(message, &metrics)) {
        return;
    }
    for (enum kelp_metric i = 0; i < KELP_METRIC_COUNT; i++) {
        if (kelp_metrics_have(&metrics, i)) {
            (void)snprintf(name, sizeof(name), "%s/%.*s", split, KELP_JOB_SUM_NAME_MAX,
                           metric_name(status, i));
            add(result, name, metrics.of[i]);
        }
    }
}

static void add_evaluation(const Kelp__V1__StatusReply *status, const Kelp__V1__Record *record,
                           const char *split, struct kelp_result *result)
{
    if (evaluated(record)) {
        add_metrics(status, record->measures, split, result, kelp_result_add);
    }
}

static void add_best(const Kelp__V1__StatusReply *status, struct kelp_result *result)
{
    const Kelp__V1__Best *best = status->best;

    result->best_known = best != NULL;
    result->best_count = 0;
    if (best) {
        result->best_step = best->step;
        result->best_epoch = best->epoch + 1;
        add_metrics(status, best->val, "val", result, kelp_result_add_best);
        add_metrics(status, best->test, "test", result, kelp_result_add_best);
    }
}

void kelp_status_result(const Kelp__V1__StatusReply *status, struct kelp_result *result)
{
    result->step = status->word ? status->word->step : 0;
    result->steps_skipped = status->word ? status->word->steps_skipped : 0;
    result->epoch = epochs_done(status);
    result->metric_count = 0;
    bool over = status->word &&
                (status->word->kind == KELP_STEP_FINISH || status->word->kind == KELP_STEP_DONE);
    if (result->epoch > 0 || (over && result->step > 0)) {
        kelp_result_add(result, "train/loss", status->epoch_loss);
    }
    add_evaluation(status, status->latest_val, "val", result);
    add_evaluation(status, status->latest_test, "test", result);
    add_best(status, result);
    (void)snprintf(result->digest, sizeof(result->digest), "%s", status->digest);
    result->restores = status->generation > 0 ? status->generation - 1 : 0;
    result->steps_recomputed = status->steps_recomputed;
    result->conflicts = status->conflicts;
    (void)snprintf(result->conflict, sizeof(result->conflict), "%s", status->conflict);
}

static void print_checkpoint(FILE *out, const Kelp__V1__CheckpointStatus *checkpoint)
{
    char age[32];

    if (!checkpoint) {
        return;
    }
    if (checkpoint->version > 0) {
        kelp_meter_duration((double)checkpoint->age_ms / 1000, age, sizeof(age));
        (void)fprintf(out, "checkpoint step %" PRIu64 ", %s old", checkpoint->step, age);
    } else {
        (void)fprintf(out, "checkpoint none yet");
    }
    if (checkpoint->under_way_step > 0) {
        (void)fprintf(out, "; step %" PRIu64 " is being written", checkpoint->under_way_step);
    }
    (void)fputc('\n', out);
    if (checkpoint->error[0]) {
        (void)fprintf(out, "           the last one failed: %s\n", checkpoint->error);
    }
}

/* What errors in the data's own unit are called, as in the summary of the run. */
static void name_unit(const char *run_path, struct kelp_result *result)
{
    struct kelp_job_file *file = NULL;

    if (kelp_run_job_read(run_path, &file, NULL) == KELP_OK) {
        kelp_result_unit(kelp_job_file_job(file), result);
        kelp_job_file_destroy(file);
    }
}

static void print_head(FILE *out, const Kelp__V1__StatusReply *status, const char *run_path)
{
    double loss;
    struct kelp_result result = {0};

    kelp_status_result(status, &result);
    name_unit(run_path, &result);
    (void)fprintf(out, "job        %s\nrun        %s\nstate      %s%s%s\n", status->job, run_path,
                  status->state, status->reason[0] ? ": " : "", status->reason);
    if (status->word) {
        uint32_t epoch = status->word->epoch + 1;
        (void)fprintf(out, "step       %" PRIu64 " of %" PRIu64 ", epoch %u of %u\n",
                      status->word->step, status->total_steps,
                      epoch > status->epochs ? status->epochs : epoch, status->epochs);
        if (status->word->steps_skipped > 0) {
            (void)fprintf(out, "skipped    %" PRIu64 " steps: their gradient was not finite\n",
                          status->word->steps_skipped);
        }
    }
    (void)fprintf(
        out, "generation %" PRIu64 ", %" PRIu64 " workers and %" PRIu64 " shards lost so far\n",
        status->generation, status->worker_losses, status->shard_losses);
    if (status->generation > 1) {
        (void)fprintf(out, "restored   from step %" PRIu64 ", %" PRIu64 " computed again so far\n",
                      status->restore_step, status->steps_recomputed);
    }
    if (status->conflicts > 0) {
        (void)fprintf(out, "conflicts  %" PRIu64 ", the newest: %s\n", status->conflicts,
                      status->conflict);
    }
    kelp_slow_line(status->slow, out);
    print_checkpoint(out, status->checkpoint);
    if (newest_loss(status, &loss)) {
        (void)fprintf(out, "loss       %.6g (newest step)\n", loss);
    }
    kelp_result_table(out, &result);
    if (status->digest[0]) {
        (void)fprintf(out, "digest     %s (step %" PRIu64 ")\n", status->digest,
                      status->digest_step);
    }
    kelp_run_certificates_warn(run_path, (int64_t)time(NULL), out);
}

/* "5 partitions, 3 backups, 2 joining 40%" */
static void shard_work(const Kelp__V1__ShardInfo *shard, char *text, size_t text_bytes)
{
    int used = snprintf(text, text_bytes, "%u partition%s", shard->partitions,
                        shard->partitions == 1 ? "" : "s");
    if (shard->backups > 0) {
        used += snprintf(text + used, text_bytes - (size_t)used, ", %u backup%s", shard->backups,
                         shard->backups == 1 ? "" : "s");
    }
    if (shard->joining > 0) {
        used += snprintf(text + used, text_bytes - (size_t)used, ", %u joining", shard->joining);
    }
    if (shard->joining > 0 && shard->to_copy > 0) {
        (void)snprintf(text + used, text_bytes - (size_t)used, " %u%%",
                       (unsigned)(100.0 * (double)shard->copied / (double)shard->to_copy));
    }
}

static const char *shard_state(const Kelp__V1__ShardInfo *shard)
{
    return !shard->connected ? "lost" : shard->draining ? "draining" : "serving";
}

static void print_shard(FILE *out, const Kelp__V1__ShardInfo *shard)
{
    char text[128];

    shard_work(shard, text, sizeof(text));
    (void)fprintf(out, "%-15s %-12s %-24s %10s\n", shard->shard, shard_state(shard), text, "-");
    if (shard->zone[0]) {
        (void)fprintf(out, "    zone %s\n", shard->zone);
    }
    if (shard->lag > 1) { /* one is on its way in each step */
        (void)fprintf(out, "    a follower is %" PRIu64 " versions behind\n", shard->lag);
    }
    if (shard->waits[0]) {
        (void)fprintf(out, "    %s\n", shard->waits);
    }
}

static void print_rows(FILE *out, const Kelp__V1__StatusReply *status)
{
    char text[64];
    char age[32];

    (void)fprintf(out, "\n%-15s %-12s %-24s %10s\n", "NAME", "STATE", "WORK", "AGE");
    (void)fprintf(out, "%-15s %-12s %-24s %10s\n", status->leader, "leading", "-", "-");
    for (size_t i = 0; i < status->n_shards; i++) {
        print_shard(out, status->shards[i]);
    }
    for (size_t i = 0; i < status->n_workers; i++) {
        const Kelp__V1__WorkerStatus *worker = status->workers[i];
        if (worker->lane_count == 0) {
            (void)snprintf(text, sizeof(text), "spare");
        } else {
            (void)snprintf(text, sizeof(text), "lanes %u-%u", worker->lane_first,
                           worker->lane_first + worker->lane_count - 1);
        }
        kelp_meter_duration((double)worker->age_ms / 1000, age, sizeof(age));
        (void)fprintf(out, "%-15s %-12s %-24s %10s\n", worker->id,
                      worker->draining     ? "draining"
                      : worker->trouble[0] ? "in trouble"
                                           : "working",
                      text, age);
        if (worker->trouble[0]) {
            (void)fprintf(out, "    %s\n", worker->trouble);
        }
    }
}

void kelp_status_table(const Kelp__V1__StatusReply *status, const char *run_path, FILE *out)
{
    print_head(out, status, run_path);
    print_rows(out, status);
}

static void json_metrics(FILE *out, const Kelp__V1__StatusReply *status)
{
    struct kelp_result result = {0};

    kelp_status_result(status, &result);
    (void)fprintf(out,
                  ",\"step\":%" PRIu64 ",\"total_steps\":%" PRIu64 ",\"epoch\":%u,"
                  "\"epochs\":%u,\"steps_skipped\":%" PRIu64 ",",
                  result.step, status->total_steps, result.epoch, status->epochs,
                  result.steps_skipped);
    kelp_result_print_metrics(out, result.metrics, result.metric_count);
    kelp_result_print_best(out, &result, false);
}

static void json_checkpoint(FILE *out, const Kelp__V1__CheckpointStatus *checkpoint)
{
    if (!checkpoint) {
        (void)fputs(",\"checkpoint\":null", out);
        return;
    }
    (void)fprintf(out,
                  ",\"checkpoint\":{\"version\":%" PRIu64 ",\"step\":%" PRIu64
                  ",\"generation\":%" PRIu64 ",\"age_ms\":%" PRIu64 ",\"committed\":%" PRIu64
                  ",\"failed\":%" PRIu64 ",\"under_way_step\":%" PRIu64,
                  checkpoint->version, checkpoint->step, checkpoint->generation, checkpoint->age_ms,
                  checkpoint->committed, checkpoint->failed, checkpoint->under_way_step);
    kelp_json_print_member(out, ",", "error", checkpoint->error);
    (void)fputc('}', out);
}

static void json_workers(FILE *out, const Kelp__V1__StatusReply *status)
{
    (void)fputs(",\"workers\":[", out);
    for (size_t i = 0; i < status->n_workers; i++) {
        const Kelp__V1__WorkerStatus *worker = status->workers[i];
        kelp_json_print_member(out, i > 0 ? ",{" : "{", "id", worker->id);
        (void)fprintf(out,
                      ",\"lane_first\":%u,\"lane_count\":%u,\"lanes_computed\":%" PRIu64
                      ",\"age_ms\":%" PRIu64 ",\"silent_ms\":%" PRIu64,
                      worker->lane_first, worker->lane_count, worker->lanes_computed,
                      worker->age_ms, worker->silent_ms);
        kelp_json_print_member(out, ",", "trouble", worker->trouble);
        kelp_slow_times_json(worker, out);
        (void)fprintf(out, ",\"draining\":%s}", worker->draining ? "true" : "false");
    }
    (void)fputc(']', out);
}

static void json_shards(FILE *out, const Kelp__V1__StatusReply *status)
{
    (void)fputs(",\"shards\":[", out);
    for (size_t i = 0; i < status->n_shards; i++) {
        const Kelp__V1__ShardInfo *shard = status->shards[i];
        kelp_json_print_member(out, i > 0 ? ",{" : "{", "id", shard->shard);
        kelp_json_print_member(out, ",", "address", shard->address);
        kelp_json_print_member(out, ",", "zone", shard->zone);
        kelp_json_print_member(out, ",", "waits", shard->waits);
        (void)fprintf(out,
                      ",\"partitions\":%u,\"backups\":%u,\"joining\":%u,\"copied\":%" PRIu64
                      ",\"to_copy\":%" PRIu64 ",\"lag\":%" PRIu64,
                      shard->partitions, shard->backups, shard->joining, shard->copied,
                      shard->to_copy, shard->lag);
        (void)fprintf(out, ",\"connected\":%s,\"draining\":%s,\"silent_ms\":%" PRIu64 "}",
                      shard->connected ? "true" : "false", shard->draining ? "true" : "false",
                      shard->silent_ms);
    }
    (void)fputc(']', out);
}

void kelp_status_json(const Kelp__V1__StatusReply *status, const char *run_path, FILE *out)
{
    kelp_json_print_member(out, "{", "status", status->state);
    json_metrics(out, status);
    kelp_json_print_member(out, ",", "digest", status->digest);
    (void)fprintf(out, ",\"digest_step\":%" PRIu64, status->digest_step);
    kelp_json_print_member(out, ",", "job", status->job);
    kelp_json_print_member(out, ",", "run", run_path);
    kelp_json_print_member(out, ",", "reason", status->reason);
    kelp_json_print_member(out, ",", "leader", status->leader);
    (void)fprintf(out,
                  ",\"generation\":%" PRIu64 ",\"map_serial\":%" PRIu64
                  ",\"worker_losses\":%" PRIu64 ",\"shard_losses\":%" PRIu64,
                  status->generation, status->map ? status->map->serial : 0, status->worker_losses,
                  status->shard_losses);
    (void)fprintf(out, ",\"restore_step\":%" PRIu64 ",\"steps_recomputed\":%" PRIu64,
                  status->restore_step, status->steps_recomputed);
    (void)fprintf(out, ",\"conflicts\":%" PRIu64, status->conflicts);
    kelp_json_print_member(out, ",", "conflict", status->conflict);
    json_checkpoint(out, status->checkpoint);
    kelp_slow_json(status->slow, out);
    json_workers(out, status);
    json_shards(out, status);
    kelp_run_certificates_json(run_path, (int64_t)time(NULL), out);
    (void)fputs("}\n", out);
}
