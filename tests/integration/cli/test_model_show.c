/*
 * `kelp model show`: layers, parameters and memory of a job's model, as tables and as JSON. Models
 * from shared libraries: shown, trained to the same bits by one worker and by two, and refused
 * with one line and exit code 2 before anything starts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/commands/json_fields.h"
#include "tests/lib/commands/model_jobs.h"
#include "tests/lib/commands/run_train.h"
#include "tests/lib/suite.h"

#define TIMEOUT_MS KELP_TEST_HANG_MS

static struct kelp_test_folder folder;
static struct kelp_test_command command;

static void setup(void)
{
    kelp_test_folder_init(&folder);
    memset(&command, 0, sizeof(command));
}

static void teardown(void)
{
    kelp_test_command_fini(&command);
    kelp_test_folder_fini(&folder);
}

static void run(const char *const *args)
{
    kelp_test_command_fini(&command);
    kelp_test_command_run(&command, folder.path, args, TIMEOUT_MS);
}

static const char *write_job(const char *model)
{
    char text[2048];
    (void)snprintf(text, sizeof(text),
                   "name: show\nmodel: %s\n"
                   "data: {kind: synthetic, seq_len: 24, pred_len: 6, split: [300, 60, 60]}\n"
                   "train: {epochs: 1, batch_size: 32}\ncluster: {lanes: 4}\n",
                   model);
    return kelp_test_write(folder.path, "job.yaml", text);
}

static const char *plugin_model(const char *name, const char *params)
{
    static char text[1200];
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    ck_assert_ptr_nonnull(programs);
    (void)snprintf(text, sizeof(text), "{plugin: \"%s/plugins/%s.so\", params: [%s]}", programs,
                   name, params);
    return text;
}

KELP_CASE("model_show", .setup = setup, .teardown = teardown, .timeout_s = KELP_TEST_HANG_S)

KELP_TEST(test_tables)
{
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    run((const char *[]){"model", "show", job, NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    /* 24 x 16 + 16, 16 x 6 + 6 */
    ck_assert_ptr_nonnull(strstr(command.out, "LAYER"));
    ck_assert_ptr_nonnull(strstr(command.out, " 400\n"));
    ck_assert_ptr_nonnull(strstr(command.out, " 102\n"));
    ck_assert_ptr_nonnull(strstr(command.out, "502 parameters in 4 tensors"));
    ck_assert_ptr_nonnull(strstr(command.out, "activations"));
    for (const char *line = command.out; *line != '\0'; line += strcspn(line, "\n") + 1) {
        ck_assert_uint_le(strcspn(line, "\n"), 100);
    }
}

/* The parts of the memory add up, parameters too; more samples at once take more. */
KELP_TEST(test_json)
{
    static const char *const parts[] = {"weights", "gradients", "activations", "batch",
                                        "data",    "messages",  "process"};
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    double activations[2];
    for (int round = 0; round < 2; round++) {
        run((const char *[]){"model", "show", job, "-o", "json", "--set",
                             round == 0 ? "train.batch_size=32" : "train.batch_size=4096", "--set",
                             "data.split=[6000, 60, 60]", NULL});
        ck_assert_msg(command.exit_code == 0, "%s", command.err);
        cJSON *json = cJSON_Parse(command.out);
        const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json, "memory_bytes");
        double total = 0.0, parameters = 0.0;
        for (size_t i = 0; i < KELP_ARRAY_COUNT(parts); i++) {
            total += kelp_test_number(memory, parts[i]);
        }
        ck_assert_double_eq(total, kelp_test_number(memory, "total"));
        const cJSON *layer;
        cJSON_ArrayForEach(layer, cJSON_GetObjectItemCaseSensitive(json, "layers"))
        {
            parameters += kelp_test_number(layer, "parameters");
        }
        ck_assert_double_eq(parameters, kelp_test_number(json, "parameters"));
        activations[round] = kelp_test_number(memory, "activations");
        cJSON_Delete(json);
    }
    ck_assert_double_gt(activations[1], activations[0]);
}

/* A plan for a GPU needs none: what it would hold there, refused with the figures where it is more
 * than there is. A convolution's workspace is the GPU's. */
KELP_TEST(test_planned_for_a_gpu)
{
    static const char *const parts[] = {"weights", "gradient", "activations", "cudnn", "libraries"};
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    const char *const device[] = {"--set", "cluster.device=cuda", "--device-memory"};
    run((const char *[]){"model", "show", job, device[0], device[1], device[2], "80GiB", "-o",
                         "json", NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    cJSON *json = cJSON_Parse(command.out);
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json, "device_memory_bytes");
    double total = 0.0;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(parts); i++) {
        total += kelp_test_number(memory, parts[i]);
    }
    ck_assert_double_eq(total, kelp_test_number(memory, "total"));
    ck_assert_double_ge(kelp_test_number(memory, "weights"), 502 * sizeof(float));
    /* each of two workers adds up two lanes, which it computes beside each other */
    ck_assert_double_eq(kelp_test_number(memory, "gradient"),
                        3 * kelp_test_number(memory, "weights"));
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "compute_kind")),
                     "cuda, planned without a device");
    const double activations = kelp_test_number(memory, "activations");
    ck_assert_double_eq(kelp_test_number(memory, "cudnn"), 0.0); /* there is no convolution */
    cJSON_Delete(json);

    run((const char *[]){"model", "show", job, device[0], device[1], device[0], "cluster.streams=1",
                         "-o", "json", NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    json = cJSON_Parse(command.out);
    memory = cJSON_GetObjectItemCaseSensitive(json, "device_memory_bytes");
    ck_assert_double_eq(kelp_test_number(memory, "gradient"),
                        2 * kelp_test_number(memory, "weights"));
    ck_assert_double_eq(2 * kelp_test_number(memory, "activations"), activations);
    cJSON_Delete(json);

    run((const char *[]){"model", "show", job, device[0], device[1], device[2], "1TiB", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    run((const char *[]){"model", "show", job, device[0], device[1], device[2], "1MiB", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(command.err, "kelp: a worker takes 0.66 GiB of its GPU's memory "
                                              "(weights 0.00, gradient 0.00, activations 0.00, "
                                              "CUDA 0.66), and that has 0.00 GiB; take a smaller "
                                              "train.batch_size"));
    /* 4 GiB of weights, which nobody allocates. */
    run((const char *[]){"model", "show", job, device[0], device[1], device[2], "8GiB", "--set",
                         "model.hidden=[32768, 32768]", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, "(weights 4.0") != NULL, "%s", command.err);
    ck_assert_msg(strstr(command.err, "that has 8.00 GiB") != NULL, "%s", command.err);
    run((const char *[]){"model", "show", job, "--device-memory", "8GiB", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_ptr_nonnull(
        strstr(command.err, "kelp: --device-memory is for a job with cluster.device: cuda\n"));
}

/* What predictions come to counts, of as many blocks as are in work. */
KELP_TEST(test_predictions_take_memory)
{
    static const char header[] = "{\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[16,24],"
                                 "\"data_offsets\":[0,1536]},"
                                 "\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[16],"
                                 "\"data_offsets\":[1536,1600]},"
                                 "\"fc2.weight\":{\"dtype\":\"F32\",\"shape\":[6,16],"
                                 "\"data_offsets\":[1600,1984]},"
                                 "\"fc2.bias\":{\"dtype\":\"F32\",\"shape\":[6],"
                                 "\"data_offsets\":[1984,2008]}}";
    static const char weights[2008];
    static const struct {
        const char *device;
        double blocks; /* in work: a GPU gets one ahead */
    } rounds[] = {{"cluster.device=cpu", 1.0}, {"cluster.device=cuda", 2.0}};
    const uint64_t length = sizeof(header) - 1;
    char init[300];
    (void)snprintf(init, sizeof(init), "model.init=%s",
                   kelp_test_write(folder.path, "zeros.safetensors", ""));
    FILE *file = fopen(strchr(init, '=') + 1, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(&length, sizeof(length), 1, file), 1);
    ck_assert_uint_eq(fwrite(header, length, 1, file), 1);
    ck_assert_uint_eq(fwrite(weights, sizeof(weights), 1, file), 1);
    ck_assert_int_eq(fclose(file), 0);
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(rounds); i++) {
        const bool cuda = i == 1;
        double batch[2], batch_max = 0.0;
        for (int predict = 0; predict < 2; predict++) {
            run((const char *[]){"model", "show", job, "-o", "json", "--set", rounds[i].device,
                                 "--set", init, "--set",
                                 predict ? "run.mode=predict" : "run.mode=evaluate",
                                 cuda ? "--device-memory" : NULL, "80GiB", NULL});
            ck_assert_msg(command.exit_code == 0, "%s", command.err);
            cJSON *json = cJSON_Parse(command.out);
            batch[predict] =
                kelp_test_number(cJSON_GetObjectItemCaseSensitive(json, "memory_bytes"), "batch");
            batch_max = kelp_test_number(json, "batch_max");
            cJSON_Delete(json);
        }
        ck_assert_double_eq(batch[1] - batch[0], rounds[i].blocks * batch_max * 6 * sizeof(float));
    }
}

/* cuDNN's workspace counts as much as it may be, and the turned weights before it, on each stream,
 * unless the job does without: that is said where it is what is missing. */
KELP_TEST(test_planned_with_cudnn)
{
    static const struct {
        const char *cudnn, *streams;
        double workspaces;
    } cases[] = {{"cluster.cudnn=auto", "cluster.streams=1", 1},
                 {"cluster.cudnn=always", "cluster.streams=2", 2},
                 {"cluster.cudnn=never", "cluster.streams=2", 0}};
    const double turned = 32.0 * 64 * 9 * sizeof(float), most = 256.0 * 1024 * 1024;
    const char *job = model_job_write(folder.path, model_job_find("convnet"));
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        run((const char *[]){"model", "show", job, "--device-memory", "80GiB", "--set",
                             cases[i].cudnn, "--set", cases[i].streams, "-o", "json", NULL});
        ck_assert_msg(command.exit_code == 0, "%s", command.err);
        cJSON *json = cJSON_Parse(command.out);
        const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json, "device_memory_bytes");
        ck_assert_double_eq(kelp_test_number(memory, "cudnn"),
                            cases[i].workspaces * (turned + most));
        cJSON_Delete(json);
        run((const char *[]){"model", "show", job, "--device-memory", "80GiB", "--set",
                             cases[i].cudnn, "--set", cases[i].streams, NULL});
        ck_assert_int_eq(strstr(command.out, "workspaces of convolutions, at most\n") != NULL,
                         cases[i].workspaces > 0);
    }
    run((const char *[]){"model", "show", job, "--device-memory", "900MiB", "--set",
                         "cluster.streams=1", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, ", cuDNN up to 0.25, CUDA 0.62), and that has 0.88 GiB; take "
                                      "cluster.cudnn: never, a smaller train.batch_size"),
                  "%s", command.err);
    run((const char *[]){"model", "show", job, "--device-memory", "900MiB", "--set",
                         "cluster.streams=1", "--set", "cluster.cudnn=never", NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    run((const char *[]){"model", "show", job, "--device-memory", "300MiB", "--set",
                         "cluster.streams=1", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, "and that has 0.29 GiB; take a smaller"), "%s", command.err);
}

/* From now on, in this test. False: a build without the emulated GPU. */
static bool use_the_emulated_gpu(void)
{
    const char *programs = getenv("KELP_TEST_PROGRAMS");
    char kelp[1200];
    ck_assert_ptr_nonnull(programs);
    (void)snprintf(kelp, sizeof(kelp), "%s/emulated/bin", programs);
    ck_assert_int_eq(setenv("KELP_BIN", kelp, 1), 0);
    return access(kelp, X_OK) == 0;
}

/* Where cuDNN is not there, nothing of it counts; a plan, which cannot know, is not below. */
KELP_TEST(test_the_gpu_that_is_there_has_cudnn)
{
    const char *job = model_job_write(folder.path, model_job_find("convnet"));
    double cudnn[2];
    ck_assert_int_eq(setenv("KELP_CLUSTER_DEVICE", "cuda", 1), 0);
    if (!use_the_emulated_gpu()) {
        return;
    }
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(i == 0 ? unsetenv("EMULATED_CUDNN") : setenv("EMULATED_CUDNN", "1", 1), 0);
        run((const char *[]){"model", "show", job, "-o", "json", NULL});
        ck_assert_msg(command.exit_code == 0, "%s", command.err);
        cJSON *json = cJSON_Parse(command.out);
        cudnn[i] = kelp_test_number(cJSON_GetObjectItemCaseSensitive(json, "device_memory_bytes"),
                                    "cudnn");
        cJSON_Delete(json);
    }
    run((const char *[]){"model", "show", job, "-o", "json", "--device-memory", "80GiB", NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    cJSON *json = cJSON_Parse(command.out);
    ck_assert_double_eq(cudnn[0], 0.0);
    ck_assert_double_gt(cudnn[1], 0.0);
    ck_assert_double_eq(
        kelp_test_number(cJSON_GetObjectItemCaseSensitive(json, "device_memory_bytes"), "cudnn"),
        cudnn[1]);
    cJSON_Delete(json);
}

/* Without --device-memory the GPU that is there counts: its own memory, and real plans. */
KELP_TEST(test_the_gpu_that_is_there)
{
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    if (!use_the_emulated_gpu()) {
        return;
    }
    ck_assert_int_eq(setenv("KELP_EMULATED_MEMORY", "734003200", 1), 0); /* 700 MiB */
    run((const char *[]){"model", "show", job, "--set", "cluster.device=cuda", NULL});
    ck_assert_msg(command.exit_code == 0, "%s", command.err);
    ck_assert_ptr_nonnull(strstr(command.out, "compute: cuda sm_90"));
    ck_assert_ptr_nonnull(strstr(command.out, "memory of its GPU:"));
    run((const char *[]){"train", job, "--set", "cluster.device=cuda", "--gpus", "0", "--workers",
                         "3", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, "3 workers share a GPU, and each takes 0.66 GiB of its GPU's "
                                      "memory") &&
                      strstr(command.err, "take fewer workers, more GPUs, a smaller"),
                  "%s", command.err);
    ck_assert_int_eq(setenv("KELP_EMULATED_MEMORY", "629145600", 1), 0); /* 600 MiB */
    run((const char *[]){"model", "show", job, "--set", "cluster.device=cuda", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, "that has 0.59 GiB") != NULL, "%s", command.err);
    run((const char *[]){"train", job, "--set", "cluster.device=cuda", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_msg(strstr(command.err, "that has 0.59 GiB") != NULL, "%s", command.err);
}

/* Gradients that travel as bfloat16 are beside their float32. */
KELP_TEST(test_precision)
{
    static const char *const precisions[] = {"transport.precision=float32",
                                             "transport.precision=bfloat16"};
    const char *job = write_job("{kind: mlp, hidden: [16]}");
    double gradients[2], total[2];
    for (size_t i = 0; i < 2; i++) {
        run((const char *[]){"model", "show", job, "-o", "json", "--set", precisions[i], NULL});
        ck_assert_msg(command.exit_code == 0, "%s", command.err);
        cJSON *json = cJSON_Parse(command.out);
        const cJSON *memory = cJSON_GetObjectItemCaseSensitive(json, "memory_bytes");
        gradients[i] = kelp_test_number(memory, "gradients");
        total[i] = kelp_test_number(memory, "total");
        cJSON_Delete(json);
    }
    ck_assert_double_eq(gradients[1], 1.5 * gradients[0]);
    ck_assert_double_eq(total[1] - total[0], gradients[1] - gradients[0]);
}

KELP_TEST(test_mistakes)
{
    static const struct {
        const char *model, *text;
    } cases[] = {{"{kind: mlpx}", "model.kind"}, {"{kind: plugin}", "model.plugin"}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        run((const char *[]){"model", "show", write_job(cases[i].model), NULL});
        ck_assert_int_eq(command.exit_code, 2);
        ck_assert_msg(strstr(command.err, cases[i].text) != NULL, "%s", command.err);
    }
    run((const char *[]){"model", "hide", "job.yaml", NULL});
    ck_assert_int_eq(command.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(command.err, "'hide'"));
    run((const char *[]){"model", "show", "none.yaml", NULL});
    ck_assert_int_eq(command.exit_code, 2);
}

/* Shown and trained alike: one line, exit code 2, nothing left behind. */
KELP_TEST(test_bad_plugins)
{
    static const struct {
        const char *name, *params, *text;
    } cases[] = {{"wrong_abi", "", "built for ABI"},
                 {"no_symbol", "", "no symbol"},
                 {"there_is_none", "", "there_is_none.so"},
                 {"conv_small", "", "takes an image"},
                 {"windows", "hiden=3", "'hiden'"},
                 {"unruly", "how=abort", "unruly.so crashed while it built the model: killed by"},
                 {"unruly", "how=exit", "unruly.so ended the process while it built the model"}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        const char *job = write_job(plugin_model(cases[i].name, cases[i].params));
        for (int verb = 0; verb < 2; verb++) {
            run(verb == 0 ? (const char *[]){"model", "show", job, NULL}
                          : (const char *[]){"train", job, "--run", "run", NULL});
            ck_assert_msg(command.exit_code == 2, "%s: exit %d", cases[i].name, command.exit_code);
            ck_assert_msg(strstr(command.err, cases[i].text) != NULL, "%s", command.err);
            ck_assert_ptr_eq(strchr(command.err, '\n') + 1, strchr(command.err, '\0'));
        }
    }
}

KELP_TEST(test_plugin_trains)
{
    char digests[2][40];
    for (int workers = 1; workers <= 2; workers++) {
        struct kelp_run trained;
        kelp_run_prepare(&trained);
        kelp_run_train(&trained, write_job(plugin_model("windows", "hidden=5, dropout=0.3")),
                       (const char *[]){"--workers", workers == 1 ? "1" : "2", NULL}, 60);
        ck_assert_msg(trained.exit_code == 0, "%s", trained.output);
        (void)snprintf(digests[workers - 1], sizeof(digests[0]), "%s", kelp_run_digest(&trained));
        kelp_run_fini(&trained);
    }
    ck_assert_str_eq(digests[0], digests[1]);
}

/* What only workers die of: the run ends with that reason and what the log says, not with a limit
 * of restarts. */
KELP_TEST(test_same_end_again_and_again)
{
    const char *job = write_job(plugin_model("unruly", "how=worker"));
    run((const char *[]){"train", job, "--run", "run", "--workers", "1", "--set",
                         "failure.restart_backoff=10ms", NULL});
    ck_assert_msg(command.exit_code == 4, "exit %d: %s", command.exit_code, command.err);
    ck_assert_ptr_nonnull(
        strstr(command.err, "killed by signal 6 (Aborted), 8 times in a row: unruly"));
    ck_assert_ptr_nonnull(strstr(command.err, "the end of run/logs/worker-0.log:\n"));
    ck_assert_ptr_null(strstr(command.err, "failure.max_failures"));
}

/* A model of half a terabyte and more is refused before there is a folder for the run. */
KELP_TEST(test_too_large_for_this_machine)
{
    const char *job = write_job("{kind: mlp, hidden: [1048576, 65536]}");
    run((const char *[]){"train", job, "--run", "run", NULL});
    ck_assert_msg(command.exit_code == 2, "exit %d: %s", command.exit_code, command.err);
    ck_assert_ptr_nonnull(strstr(command.err, "GiB of memory on this machine (2 workers of "));
    ck_assert_ptr_nonnull(strstr(command.err, "use fewer --workers"));
    ck_assert_ptr_eq(strchr(command.err, '\n') + 1, strchr(command.err, '\0'));
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/run", folder.path);
    ck_assert_int_ne(access(path, F_OK), 0);
}
