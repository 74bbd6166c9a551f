/* `kelp checkpoint ls` and `show`. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/checkpoint/checkpoint_verbs.h"
#include "cli/cluster/run_client.h"
#include "cli/verb/meter.h"
#include "common/base/json.h"

#define METRICS KELP_CHECKPOINT_METRICS

/* "val/mse" of each metric that is kept. */
struct names {
    char of[METRICS][KELP_JOB_SUM_NAME_MAX + sizeof("val/")];
};

/* file NULL: a job that cannot be read. */
static void name_metrics(const struct kelp_job_file *file, struct names *ret_names)
{
    static const char *const plain[METRICS] = {"loss", "mse", "mae", "accuracy", "auc"};

    for (uint32_t i = 0; i < METRICS; i++) {
        char name[KELP_JOB_SUM_NAME_MAX + 1];
        (void)snprintf(name, sizeof(name), "%s", plain[i]);
        if (file) {
            const struct kelp_job *job = kelp_job_file_job(file);
            kelp_metric_name_in(job, kelp_metric_of_checkpoint(job, i), name);
        }
        (void)snprintf(ret_names->of[i], sizeof(ret_names->of[i]), "val/%s", name);
    }
}

/* By the job that the checkpoint has. */
static void names_of(const struct kelp_checkpoint *checkpoint, struct names *ret_names)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;

    const kelp_status status = kelp_checkpoint_job(checkpoint, &file, &plan, NULL);
    name_metrics(status == KELP_OK ? file : NULL, ret_names);
    if (status == KELP_OK) {
        kelp_plan_fini(&plan);
        kelp_job_file_destroy(file);
    }
}

static const struct kelp_option options[] = {
    KELP_CHECKPOINT_OPTION_RUN,
    KELP_CHECKPOINT_OPTION_OUTPUT,
};

static const struct kelp_program ls_program = {
    .name = "kelp checkpoint ls",
    .summary = "lists the checkpoints that a run has, oldest first",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp checkpoint ls\n"
                "  kelp checkpoint ls runs/etth1-dlinear-20260131-120000 -o json\n",
    KELP_VERB_OPTIONS(options),
};

static const struct kelp_program show_program = {
    .name = "kelp checkpoint show",
    .summary = "shows all about one checkpoint; without a name, the newest",
    .positional = "[NAME|FOLDER]",
    .positional_max = 1,
    .examples = "  kelp checkpoint show\n"
                "  kelp checkpoint show step-1500.g2 --run runs/etth1 -o json\n",
    KELP_VERB_OPTIONS(options),
};

static void age_text(const struct kelp_manifest *manifest, char *text, size_t text_bytes)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    double now_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    kelp_meter_duration(now_s - (double)manifest->unix_ms / 1000, text, text_bytes);
}

/* ---- ls ------------------------------------------------------------------------------------ */

static void print_row(const struct kelp_checkpoint *checkpoint, uint32_t metric)
{
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    char digest[KELP_DIGEST_HEX_BYTES];
    char value[32] = "-";
    char size[32];
    char age[32];

    if (checkpoint->fault.status != KELP_OK) {
        (void)printf("%-18s DAMAGED: %s\n", checkpoint->name, checkpoint->fault.text);
        return;
    }
    if (manifest->has_metric && !isnan(manifest->metric[metric])) {
        (void)snprintf(value, sizeof(value), "%.6g", manifest->metric[metric]);
    }
    kelp_meter_size(kelp_checkpoint_bytes(checkpoint), size, sizeof(size));
    kelp_manifest_state_digest(manifest, digest);
    age_text(manifest, age, sizeof(age));
    (void)printf("%-18s %8" PRIu64 " %5u %12s %9s %.8s %12s\n", checkpoint->name, manifest->step,
                 manifest->epochs, value, size, digest, age);
}

/* The column of a run's checkpoint.metric; the first one when its job cannot be read. */
static uint32_t metric_of(const char *run_path, struct names *ret_names)
{
    struct kelp_job_file *file = NULL;
    uint32_t metric = 0;

    if (kelp_run_job_read(run_path, &file, NULL) == KELP_OK) {
        metric = kelp_checkpoint_metric_index(kelp_job_file_job(file));
    }
    name_metrics(file, ret_names);
    kelp_job_file_destroy(file);
    return metric;
}

static void list_text(const struct kelp_checkpoints *list, const char *run_path)
{
    struct names names;
    uint32_t metric = metric_of(run_path, &names);

    (void)printf("%-18s %8s %5s %12s %9s %-8s %12s\n", "NAME", "STEP", "EPOCH", names.of[metric],
                 "SIZE", "STATE", "AGE");
    for (size_t i = 0; i < list->count; i++) {
        print_row(&list->items[i], metric);
    }
}

static void json_metrics(const struct kelp_checkpoint *checkpoint)
{
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    struct names names;

    names_of(checkpoint, &names);
    (void)printf(",\"metrics\":{");
    for (uint32_t i = 0; manifest->has_metric && i < METRICS; i++) {
        if (i > 0 && isnan(manifest->metric[i])) {
            continue; /* most jobs have only some of them */
        }
        (void)printf("%s\"%s\":", i > 0 ? "," : "", names.of[i]);
        kelp_json_print_double(stdout, manifest->metric[i]);
    }
    (void)printf("}");
}

/* Without the closing brace. */
static void json_checkpoint(const struct kelp_checkpoint *checkpoint)
{
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    char digest[KELP_DIGEST_HEX_BYTES];

    kelp_json_print_member(stdout, "{", "name", checkpoint->name);
    kelp_json_print_member(stdout, ",", "path", checkpoint->path);
    if (checkpoint->fault.status != KELP_OK) {
        kelp_json_print_member(stdout, ",", "damaged", checkpoint->fault.text);
        return;
    }
    kelp_manifest_state_digest(manifest, digest);
    (void)printf(",\"version\":%" PRIu64 ",\"step\":%" PRIu64
                 ",\"epoch\":%u,\"generation\":%" PRIu64 ",\"unix_ms\":%" PRIu64
                 ",\"bytes\":%" PRIu64 ",\"partitions\":%u,\"storages\":%u"
                 ",\"state_digest\":\"%s\"",
                 manifest->version, manifest->step, manifest->epochs, manifest->generation,
                 manifest->unix_ms, kelp_checkpoint_bytes(checkpoint), manifest->part_count,
                 manifest->storage_count, digest);
    json_metrics(checkpoint);
}

static void list_json(const struct kelp_checkpoints *list, const char *run_path)
{
    kelp_json_print_member(stdout, "{", "run", run_path);
    (void)printf(",\"checkpoints\":[");
    for (size_t i = 0; i < list->count; i++) {
        (void)printf("%s", i > 0 ? "," : "");
        json_checkpoint(&list->items[i]);
        (void)printf("}");
    }
    (void)printf("]}\n");
}

static int ls(const struct kelp_options *given)
{
    struct kelp_checkpoints list;
    char run_path[KELP_RUN_PATH_MAX + 1];
    int exit_status = KELP_EXIT_OK;

    if (kelp_checkpoint_choose(given, kelp_verb_typed(given), run_path, &list, &exit_status)) {
        (kelp_verb_json(given) ? list_json : list_text)(&list, run_path);
        kelp_checkpoints_fini(&list);
    }
    return exit_status;
}

const struct kelp_verb kelp_checkpoint_verb_ls = {"ls", "list the checkpoints of a run",
                                                  &ls_program, ls, NULL};

/* ---- show ---------------------------------------------------------------------------------- */

static void show_storages(const struct kelp_manifest *manifest)
{
    for (uint32_t storage = 0; storage < manifest->storage_count; storage++) {
        uint64_t bytes = 0;
        uint32_t count = 0;
        char size[32];
        for (uint32_t i = 0; i < manifest->part_count; i++) {
            bool here = manifest->parts[i].storage == storage;
            bytes += here ? manifest->parts[i].bytes : 0;
            count += here;
        }
        kelp_meter_size(bytes, size, sizeof(size));
        (void)printf("%-10s %s: %u partitions, %s\n", storage == 0 ? "storages" : "",
                     manifest->storages[storage], count, size);
    }
}

/* Of the plan, when that can be read. */
static void show_model(const struct kelp_checkpoint *checkpoint)
{
    struct kelp_job_file *file = NULL;
    struct kelp_plan plan;
    struct kelp_error error;

    if (kelp_checkpoint_job(checkpoint, &file, &plan, &error) != KELP_OK) {
        (void)printf("model      DAMAGED: %s\n", error.text);
        return;
    }
    uint64_t elements = 0;
    for (uint32_t i = 0; i < plan.tensor_count; i++) {
        elements += plan.tensors[i].elem_count;
    }
    (void)printf("model      %" PRIu64
                 " parameters and statistics in %u tensors, %u optimizer slots\n",
                 elements, plan.tensor_count, kelp_optimizer_slot_count(kelp_job_file_job(file)));
    (void)printf("compute    %s\n", plan.compute_kind);
    kelp_plan_fini(&plan);
    kelp_job_file_destroy(file);
}

static void show_text(const struct kelp_checkpoint *checkpoint)
{
    const struct kelp_manifest *manifest = &checkpoint->manifest;
    char digest[KELP_DIGEST_HEX_BYTES];
    char made[32] = "";
    char age[32];
    struct tm utc;
    struct names names;
    time_t seconds = (time_t)(manifest->unix_ms / 1000);

    if (gmtime_r(&seconds, &utc)) {
        (void)strftime(made, sizeof(made), "%Y-%m-%d %H:%M:%S UTC", &utc);
    }
    age_text(manifest, age, sizeof(age));
    names_of(checkpoint, &names);
    kelp_manifest_state_digest(manifest, digest);
    (void)printf("checkpoint %s\nfolder     %s\njob        %s\n", checkpoint->name,
                 checkpoint->path, manifest->job);
    (void)printf("step       %" PRIu64 ", version %" PRIu64
                 ", %u epochs complete, generation %" PRIu64 "\nmade       %s, %s ago\n",
                 manifest->step, manifest->version, manifest->epochs, manifest->generation, made,
                 age);
    for (uint32_t i = 0; manifest->has_metric && i < METRICS; i++) {
        if (i > 0 && isnan(manifest->metric[i])) {
            continue;
        }
        (void)printf("%-10s %.6g\n", names.of[i], manifest->metric[i]);
    }
    (void)printf("state      %s\n", digest);
    show_storages(manifest);
    show_model(checkpoint);
}

static int show_json(const struct kelp_checkpoint *checkpoint)
{
    struct kelp_error error;
    char *text = NULL;

    if (kelp_manifest_print(&checkpoint->manifest, &text, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    json_checkpoint(checkpoint);
    (void)printf(",\"manifest\":%s}\n", text);
    free(text);
    return KELP_EXIT_OK;
}

static int show(const struct kelp_options *given)
{
    struct kelp_checkpoint_source source = {.listed = false};
    int exit_status = KELP_EXIT_OK;

    const struct kelp_checkpoint *checkpoint =
        kelp_checkpoint_find(&source, given, kelp_verb_typed(given), &exit_status);
    if (checkpoint && checkpoint->fault.status != KELP_OK) {
        exit_status = kelp_complain(KELP_EXIT_FAILED, "%s", checkpoint->fault.text);
    } else if (checkpoint && kelp_verb_json(given)) {
        exit_status = show_json(checkpoint);
    } else if (checkpoint) {
        show_text(checkpoint);
    }
    kelp_checkpoint_source_fini(&source);
    return exit_status;
}

const struct kelp_verb kelp_checkpoint_verb_show = {"show", "tell all about one checkpoint",
                                                    &show_program, show, NULL};
