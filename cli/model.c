#include <float.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/checkpoint/run_plan.h"
#include "cli/cluster/run_client.h"
#include "cli/preflight/preflight.h"
#include "cli/run/plugin_consent.h"
#include "cli/verb/job_load.h"
#include "cli/verbs.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/base/value.h"
#include "worker/model/footprint.h"
#include "worker/model/graph/graph.h"

static const struct kelp_option options[] = {
    KELP_VERB_ALLOW_PLUGIN,
    KELP_VERB_SET(NULL, "set a job key, such as cluster.workers=4:4"),
    {.name = "device-memory",
     .type = KELP_OPTION_TEXT,
     .placeholder = "SIZE",
     .help = "with cluster.device: cuda, plan for a GPU with this much memory, such as 80GiB, and "
             "refuse a model that does not fit; this host needs no GPU"},
    KELP_VERB_OUTPUT("tables for people, or one JSON object"),
};

static const struct kelp_program program = {
    .name = "kelp model",
    .summary = "shows a job's model: layers, shapes, parameters, memory",
    .positional = "show JOB.yaml|RUN",
    .positional_min = 2,
    .positional_max = 2,
    .examples = "  kelp model show examples/etth1-dlinear.yaml\n"
                "  kelp model show job.yaml --set train.batch_size=1024 -o json\n"
                "  kelp model show job.yaml --set cluster.device=cuda --device-memory 80GiB\n"
                "  kelp model show runs/train-20260131-120000\n",
    KELP_VERB_OPTIONS(options),
};

/* The job, with its data; for a program, only the plan. */
struct shown {
    char run_path[KELP_RUN_PATH_MAX + 1]; /* "": a job file was typed */
    char job_path[KELP_RUN_PATH_MAX + 64];
    struct kelp_job_file *file;
    const struct kelp_job *job;
    struct kelp_job planned; /* the job, for a GPU that is not here */
    uint64_t device_memory;  /* bytes; 0: not known */
    struct kelp_derived derived;
};

static kelp_status lay_pairs(struct kelp_job_file *file, const void *given,
                             struct kelp_error *reterr)
{
    return kelp_job_set_pairs(file, given, reterr);
}

/* A job file, or the one of a run. */
static kelp_status choose(struct shown *shown, const char *typed, struct kelp_error *reterr)
{
    struct stat about;

    if (stat(typed, &about) != 0 || !S_ISDIR(about.st_mode)) {
        const int length = snprintf(shown->job_path, sizeof(shown->job_path), "%s", typed);
        return length > 0 && (size_t)length < sizeof(shown->job_path)
                   ? KELP_OK
                   : kelp_fail(reterr, KELP_ERR_LIMIT, "the job file's path is too long");
    }
    kelp_status status = kelp_run_choose(typed, shown->run_path, reterr);
    return status == KELP_OK ? kelp_run_dir_path(shown->run_path, "job.yaml", shown->job_path,
                                                 sizeof(shown->job_path), reterr)
                             : status;
}

/* What the program's workers told in a run: the program is not started here. */
static kelp_status read_plan(struct shown *shown, struct kelp_error *reterr)
{
    const struct kelp_job *job = shown->job;

    return shown->run_path[0] != '\0'
               ? kelp_run_plan(shown->run_path, &shown->derived.plan, reterr)
               : kelp_fail(reterr, KELP_ERR_INVALID,
                           "%.300s: only its program knows its tensors (%.300s); give the folder "
                           "of a run instead",
                           shown->job_path,
                           job->model.python[0] ? job->model.python : job->model.program);
}

/* For a GPU that is not here. */
static void plan_apart(struct shown *shown)
{
    shown->planned = *shown->job;
    shown->planned.cluster.device = KELP_DEVICE_PLANNED;
    shown->job = &shown->planned;
}

static kelp_status read_device_memory(struct shown *shown, const struct kelp_options *given,
                                      struct kelp_error *reterr)
{
    const char *typed = kelp_options_text(given, "device-memory");

    if (!typed) {
        return KELP_OK;
    }
    if (shown->job->cluster.device != KELP_DEVICE_CUDA) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "--device-memory is for a job with cluster.device: cuda");
    }
    const kelp_status status = kelp_value_size(typed, 1, UINT64_MAX, &shown->device_memory, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "--device-memory");
        return status;
    }
    plan_apart(shown);
    return KELP_OK;
}

static kelp_status derive(struct shown *shown, const struct kelp_options *given,
                          struct kelp_error *reterr)
{
    kelp_status status = read_device_memory(shown, given, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_plugin_consent(
        shown->file,
        &(struct kelp_plugin_consent){.own_job = shown->run_path[0] == '\0',
                                      .allowed = kelp_options_flag(given, "allow-plugin")},
        reterr);
    if (status == KELP_OK) {
        status = kelp_job_begin_portable(shown->job, shown->job_path, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_derived_open(shown->job, NULL, &shown->derived, reterr);
    }
    if (status == KELP_ERR_NOT_FOUND && shown->job->cluster.device == KELP_DEVICE_CUDA) {
        plan_apart(shown);
        status = kelp_derived_open(shown->job, NULL, &shown->derived, reterr);
    }
    if (status == KELP_OK) {
        const uint64_t real = kelp_model_device_memory(shown->derived.model);
        status =
            kelp_derived_check_device(shown->job, &shown->derived, 1,
                                      shown->device_memory ? shown->device_memory : real, reterr);
    }
    return status;
}

static kelp_status find(struct shown *shown, const struct kelp_options *given,
                        struct kelp_error *reterr)
{
    const struct kelp_job_source source = {
        .path = shown->job_path, .environment = true, .lay = lay_pairs, .user = given};

    kelp_status status = choose(shown, kelp_options_positional(given, 1), reterr);
    if (status == KELP_OK) {
        status = kelp_job_load(&source, &shown->file, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    shown->job = kelp_job_file_job(shown->file);
    return shown->job->model.kind == KELP_MODEL_PROGRAM ? read_plan(shown, reterr)
                                                        : derive(shown, given, reterr);
}

/* Elements of the parameters, of those that are held, and of the running statistics. */
struct counts {
    uint64_t parameters, held, statistics;
};

/* A momentum so small changes nothing where gradients are zero, either. */
static bool is_held(const struct kelp_tensor *tensor)
{
    return tensor->statistic && tensor->momentum <= FLT_MIN;
}

static struct counts count_tensors(const struct kelp_plan *plan)
{
    struct counts counts = {0, 0, 0};
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        *(!tensor->statistic ? &counts.parameters
          : is_held(tensor)  ? &counts.held
                             : &counts.statistics) += tensor->elem_count;
    }
    return counts;
}

/* Parameters and statistics are shown with the layer that uses them. */
static bool is_layer(const struct kelp_graph_layer *layer)
{
    return strcmp(layer->operator_name, "parameter") != 0 &&
           strcmp(layer->operator_name, "statistic") != 0;
}

/* Uses of memory, in the order in which they are printed. */
struct item {
    const char *name, *what;
    size_t offset;
    bool if_any; /* a table has it where it is not zero */
};

/* Of a worker. */
static const struct item items[] = {
    {"weights", "two versions", offsetof(struct kelp_footprint, weights), false},
    {"gradients", "of the lanes in work", offsetof(struct kelp_footprint, gradients), false},
    {"activations", "values, their gradients, workspaces",
     offsetof(struct kelp_footprint, activations), false},
    {"batch", "the samples in work", offsetof(struct kelp_footprint, batch), false},
    {"data", "what the data set keeps", offsetof(struct kelp_footprint, data), false},
    {"messages", "weights on their way in", offsetof(struct kelp_footprint, messages), false},
    {"process", "program, libraries, threads", offsetof(struct kelp_footprint, process), false},
    {"total", "", offsetof(struct kelp_footprint, total), false},
};

/* Of its GPU. */
static const struct item device_items[] = {
    {"weights", "", offsetof(struct kelp_device_footprint, weights), false},
    {"gradient", "and sums of lanes", offsetof(struct kelp_device_footprint, gradient), false},
    {"activations", "values, their gradients, workspaces, samples",
     offsetof(struct kelp_device_footprint, activations), false},
    {"cudnn", "workspaces of convolutions, at most", offsetof(struct kelp_device_footprint, cudnn),
     true},
    {"libraries", "CUDA and cuBLASLt, roughly", offsetof(struct kelp_device_footprint, libraries),
     false},
    {"total", "", offsetof(struct kelp_device_footprint, total), false},
};

static uint64_t item_bytes(const void *footprint, const struct item *item)
{
    uint64_t bytes;
    memcpy(&bytes, (const char *)footprint + item->offset, sizeof(bytes));
    return bytes;
}

static void print_items(const void *footprint, const struct item *of, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = item_bytes(footprint, &of[i]);
        if (!of[i].if_any || bytes > 0) {
            (void)printf("  %-12s %10.2f MiB%s%s\n", of[i].name, (double)bytes / (1024.0 * 1024.0),
                         of[i].what[0] != '\0' ? "   " : "", of[i].what);
        }
    }
}

static void json_items(const char *name, const void *footprint, const struct item *of, size_t count)
{
    (void)printf(",\"%s\":", name);
    for (size_t i = 0; i < count; i++) {
        (void)printf("%s\"%s\":%" PRIu64, i > 0 ? "," : "{", of[i].name,
                     item_bytes(footprint, &of[i]));
    }
    (void)fputc('}', stdout);
}

static void device_footprint(const struct shown *shown, struct kelp_device_footprint *footprint)
{
    kelp_footprint_device(shown->job, &shown->derived.plan, shown->derived.model, footprint);
}

static void print_layers(const struct kelp_graph *graph)
{
    (void)printf("%-28s %-14s %-20s %14s\n", "LAYER", "OPERATOR", "SHAPE", "PARAMETERS");
    for (uint32_t i = 0; i < kelp_graph_layer_count(graph); i++) {
        struct kelp_graph_layer layer;
        char shape[64];
        kelp_graph_layer(graph, i, &layer);
        if (!is_layer(&layer)) {
            continue;
        }
        kelp_shape_print(&layer.shape, shape, sizeof(shape));
        (void)printf("%-*s %-14s ", kelp_utf8_field(layer.name, 28), layer.name,
                     layer.operator_name);
        if (layer.parameters > 0) {
            (void)printf("%-20s %14" PRIu64 "\n", shape, layer.parameters);
        } else {
            (void)printf("%s\n", shape);
        }
    }
}

static void print_text(const struct shown *shown, const struct kelp_footprint *footprint)
{
    const struct counts counts = count_tensors(&shown->derived.plan);
    print_layers(kelp_model_graph(shown->derived.model));
    (void)printf("\n%" PRIu64 " parameters in %" PRIu32 " tensors", counts.parameters,
                 shown->derived.plan.tensor_count);
    if (counts.statistics > 0) {
        (void)printf(", %" PRIu64 " running statistics", counts.statistics);
    }
    (void)printf(", %" PRIu32 " partition%s\n", shown->derived.plan.partition_count,
                 shown->derived.plan.partition_count == 1 ? "" : "s");
    (void)printf(
        "samples: %" PRIu64 " to train, %" PRIu64 " validation, %" PRIu64 " test; "
        "%" PRIu32 " at once\n",
        shown->derived.plan.samples[KELP_SPLIT_TRAIN], shown->derived.plan.samples[KELP_SPLIT_VAL],
        shown->derived.plan.samples[KELP_SPLIT_TEST], kelp_model_batch_max(shown->derived.model));
    (void)printf("compute: %s\n\n", shown->derived.plan.compute_kind);
    (void)printf("memory of a worker, of %" PRIu32 " that share %" PRIu32 " lane%s:\n",
                 shown->job->cluster.workers.min, shown->job->cluster.lanes,
                 shown->job->cluster.lanes == 1 ? "" : "s");
    print_items(footprint, items, KELP_ARRAY_COUNT(items));
    if (shown->job->cluster.device != KELP_DEVICE_CPU) {
        struct kelp_device_footprint device;
        device_footprint(shown, &device);
        (void)printf("\nmemory of its GPU:\n");
        print_items(&device, device_items, KELP_ARRAY_COUNT(device_items));
    }
}

static void json_shape(const struct kelp_shape *shape)
{
    (void)fputc('[', stdout);
    for (uint32_t d = 0; d < shape->rank; d++) {
        (void)printf("%s%" PRIu64, d > 0 ? "," : "", shape->dims[d]);
    }
    (void)fputc(']', stdout);
}

static void print_json(const struct shown *shown, const struct kelp_footprint *footprint)
{
    const struct kelp_graph *graph = kelp_model_graph(shown->derived.model);
    const struct counts counts = count_tensors(&shown->derived.plan);
    bool first = true;
    (void)fputs("{\"layers\":[", stdout);
    for (uint32_t i = 0; i < kelp_graph_layer_count(graph); i++) {
        struct kelp_graph_layer layer;
        kelp_graph_layer(graph, i, &layer);
        if (!is_layer(&layer)) {
            continue;
        }
        kelp_json_print_member(stdout, first ? "{" : ",{", "name", layer.name);
        first = false;
        kelp_json_print_member(stdout, ",", "operator", layer.operator_name);
        (void)fputs(",\"shape\":", stdout);
        json_shape(&layer.shape);
        (void)printf(",\"parameters\":%" PRIu64 "}", layer.parameters);
    }
    (void)printf("],\"parameters\":%" PRIu64 ",\"statistics\":%" PRIu64 ",\"tensors\":%" PRIu32
                 ",\"partitions\":%" PRIu32,
                 counts.parameters, counts.statistics, shown->derived.plan.tensor_count,
                 shown->derived.plan.partition_count);
    (void)printf(
        ",\"samples\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],\"batch_max\":%" PRIu32
        ",\"compute_kind\":",
        shown->derived.plan.samples[KELP_SPLIT_TRAIN], shown->derived.plan.samples[KELP_SPLIT_VAL],
        shown->derived.plan.samples[KELP_SPLIT_TEST], kelp_model_batch_max(shown->derived.model));
    kelp_json_print_string(stdout, shown->derived.plan.compute_kind);
    json_items("memory_bytes", footprint, items, KELP_ARRAY_COUNT(items));
    if (shown->job->cluster.device != KELP_DEVICE_CPU) {
        struct kelp_device_footprint device;
        device_footprint(shown, &device);
        json_items("device_memory_bytes", &device, device_items, KELP_ARRAY_COUNT(device_items));
    }
    (void)fputs("}\n", stdout);
}

/* ---- of a program ---- */

static const char *role_of(const struct kelp_tensor *tensor)
{
    return !tensor->statistic ? "parameter" : is_held(tensor) ? "held" : "statistic";
}

static struct kelp_shape shape_of(const struct kelp_tensor *tensor)
{
    struct kelp_shape shape = {.rank = tensor->rank};

    memcpy(shape.dims, tensor->shape, tensor->rank * sizeof(shape.dims[0]));
    return shape;
}

static void print_plan_text(const struct kelp_plan *plan)
{
    const struct counts counts = count_tensors(plan);

    (void)printf("%-36s %-10s %-20s %14s\n", "TENSOR", "ROLE", "SHAPE", "ELEMENTS");
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        const struct kelp_shape shape = shape_of(tensor);
        char text[128];
        kelp_shape_print(&shape, text, sizeof(text));
        (void)printf("%-*s %-10s %-20s %14" PRIu64 "\n", kelp_utf8_field(tensor->name, 36),
                     tensor->name, role_of(tensor), text, tensor->elem_count);
    }
    (void)printf("\n%" PRIu64 " parameters", counts.parameters);
    if (counts.held > 0) {
        (void)printf(", %" PRIu64 " held", counts.held);
    }
    if (counts.statistics > 0) {
        (void)printf(", %" PRIu64 " running statistics", counts.statistics);
    }
    const double kib = (double)plan->flat_count * sizeof(float) / 1024;
    (void)printf(" in %" PRIu32 " tensors of %.2f %s, %" PRIu32 " partition%s\n",
                 plan->tensor_count, kib < 1024 ? kib : kib / 1024, kib < 1024 ? "KiB" : "MiB",
                 plan->partition_count, plan->partition_count == 1 ? "" : "s");
    (void)printf("samples: %" PRIu64 " to train, %" PRIu64 " validation, %" PRIu64 " test\n",
                 plan->samples[KELP_SPLIT_TRAIN], plan->samples[KELP_SPLIT_VAL],
                 plan->samples[KELP_SPLIT_TEST]);
    (void)printf("compute: %s\n", plan->compute_kind);
}

static void print_plan_json(const struct kelp_plan *plan)
{
    const struct counts counts = count_tensors(plan);

    (void)fputs("{\"layers\":[", stdout);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct kelp_tensor *tensor = &plan->tensors[i];
        const struct kelp_shape shape = shape_of(tensor);
        kelp_json_print_member(stdout, i == 0 ? "{" : ",{", "name", tensor->name);
        kelp_json_print_member(stdout, ",", "operator", role_of(tensor));
        (void)fputs(",\"shape\":", stdout);
        json_shape(&shape);
        (void)printf(",\"parameters\":%" PRIu64 "}", tensor->elem_count);
    }
    (void)printf("],\"parameters\":%" PRIu64 ",\"held\":%" PRIu64 ",\"statistics\":%" PRIu64
                 ",\"tensors\":%" PRIu32 ",\"partitions\":%" PRIu32 ",\"bytes\":%" PRIu64,
                 counts.parameters, counts.held, counts.statistics, plan->tensor_count,
                 plan->partition_count, plan->flat_count * sizeof(float));
    (void)printf(",\"samples\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "],\"compute_kind\":",
                 plan->samples[KELP_SPLIT_TRAIN], plan->samples[KELP_SPLIT_VAL],
                 plan->samples[KELP_SPLIT_TEST]);
    kelp_json_print_string(stdout, plan->compute_kind);
    (void)fputs("}\n", stdout);
}

static void print_plan(const struct kelp_plan *plan, const struct kelp_options *given)
{
    if (kelp_verb_json(given)) {
        print_plan_json(plan);
    } else {
        print_plan_text(plan);
    }
}

static int show(const struct kelp_options *given)
{
    struct shown shown = {.run_path = ""};
    struct kelp_footprint footprint;
    struct kelp_error error;
    int exit_status = KELP_EXIT_OK;

    if (find(&shown, given, &error) != KELP_OK) {
        exit_status = kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    } else if (!shown.derived.model) {
        print_plan(&shown.derived.plan, given);
    } else {
        kelp_footprint(shown.job, &shown.derived.plan, shown.derived.model, shown.derived.dataset,
                       &footprint);
        if (kelp_verb_json(given)) {
            print_json(&shown, &footprint);
        } else {
            print_text(&shown, &footprint);
        }
    }
    kelp_derived_close(&shown.derived);
    kelp_job_file_destroy(shown.file);
    return exit_status;
}

static int model(const struct kelp_options *given)
{
    const char *action = kelp_options_positional(given, 0);

    return strcmp(action, "show") == 0
               ? show(given)
               : kelp_complain(KELP_EXIT_USAGE,
                               "'%s' is not a verb of kelp model; its verb is show", action);
}

const struct kelp_verb kelp_verb_model = {
    "model", "show a job's model: layers, shapes, parameters, memory", &program, model, NULL};
