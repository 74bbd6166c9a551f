#include "cli/preflight/preflight.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/preflight/machine.h"
#include "cli/preflight/model_probe.h"
#include "common/base/text.h"
#include "common/tensors/safetensors.h"
#include "common/training/control.h"
#include "worker/data/model_card.h"
#include "worker/model/derive.h"
#include "worker/model/footprint.h"

/* The file with the initial weights is there, and is one of this model. */
static kelp_status check_init(const struct kelp_job *job, const struct kelp_plan *plan,
                              struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;

    if (job->model.init[0] == '\0') {
        return KELP_OK;
    }
    kelp_status status = kelp_safetensors_open(job->model.init, &file, reterr);
    if (status == KELP_OK) {
        status = kelp_plan_check_init(plan, job, file, reterr);
        kelp_safetensors_close(file);
    }
    if (status != KELP_OK && job->run.mode == KELP_RUN_TRAIN) { /* others name it elsewhere */
        kelp_error_prefix(reterr, "model.init");
    }
    return status;
}

kelp_status kelp_model_build(const struct kelp_job *job, const struct kelp_sample_shape *shape,
                             struct kelp_model **ret_model, struct kelp_error *reterr)
{
    kelp_status status = kelp_model_probe(job, shape, KELP_PROBE_MS, reterr);

    return status == KELP_OK ? kelp_derive_model(job, shape, ret_model, reterr) : status;
}

kelp_status kelp_derived_check_device(const struct kelp_job *job,
                                      const struct kelp_derived *derived, uint32_t sharing,
                                      uint64_t memory_bytes, struct kelp_error *reterr)
{
    struct kelp_device_footprint footprint;

    if (memory_bytes == 0) {
        return KELP_OK;
    }
    kelp_footprint_device(job, &derived->plan, derived->model, &footprint);
    return kelp_footprint_device_check(job, &footprint, sharing, memory_bytes, reterr);
}

kelp_status kelp_derived_check(const struct kelp_job *job, const struct kelp_derived *derived,
                               uint32_t sharing, struct kelp_error *reterr)
{
    struct kelp_machine machine;

    kelp_machine_read(&machine);
    kelp_status status =
        kelp_machine_check(&machine, job, &derived->plan, derived->model, derived->dataset, reterr);
    if (status == KELP_OK) {
        status = kelp_derived_check_device(job, derived, sharing,
                                           kelp_model_device_memory(derived->model), reterr);
    }
    return status == KELP_OK ? check_init(job, &derived->plan, reterr) : status;
}

kelp_status kelp_derived_open(const struct kelp_job *job, const struct kelp_dataset_watch *watch,
                              struct kelp_derived *ret_derived, struct kelp_error *reterr)
{
    struct kelp_derived derived = {.dataset = NULL};

    kelp_status status = kelp_dataset_open_watched(job, watch, &derived.dataset, reterr);
    if (status == KELP_OK) {
        status = kelp_model_build(job, &kelp_dataset_info(derived.dataset)->shape, &derived.model,
                                  reterr);
    }
    if (status == KELP_OK) {
        status = kelp_derive_plan(job, derived.dataset, derived.model, &derived.plan, reterr);
    }
    if (status != KELP_OK) {
        kelp_derived_close(&derived);
        return status;
    }
    *ret_derived = derived;
    return KELP_OK;
}

void kelp_derived_close(struct kelp_derived *derived)
{
    kelp_plan_fini(&derived->plan);
    kelp_model_leave(derived->model);
    kelp_dataset_close(derived->dataset);
}

static kelp_status make_card(const struct kelp_job_file *file, const struct kelp_dataset *dataset,
                             char **ret_text, struct kelp_error *reterr)
{
    struct kelp_model_card card = {.job = NULL};

    kelp_status status = kelp_dataset_describe(dataset, kelp_job_file_job(file), &card, reterr);
    if (status == KELP_OK) {
        status = kelp_job_file_print_model(file, &card.job, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_model_card_print(&card, ret_text, reterr);
    }
    kelp_model_card_fini(&card);
    return status;
}

static void list_classes(const struct kelp_dataset *dataset, char *list, size_t list_bytes)
{
    const struct kelp_sample_tensor *target = &kelp_dataset_info(dataset)->shape.target;
    char entry[KELP_DATASET_LABEL_BYTES + 16];

    list[0] = '\0';
    for (uint32_t i = 0; target->vocab_count > 0 && i < target->vocab[0]; i++) {
        const char *name = kelp_dataset_class_name(dataset, i);
        if (name[0] == '\0') {
            return;
        }
        (void)snprintf(entry, sizeof(entry), "%" PRIu32 " %s", i, name);
        kelp_text_list_add(list, list_bytes, entry);
    }
}

static void list_untrained(const struct kelp_dataset *dataset, char *list, size_t list_bytes)
{
    const char *name = "";

    list[0] = '\0';
    for (uint64_t i = 0; *(name = kelp_dataset_untrained_class(dataset, i)) != '\0'; i++) {
        kelp_text_list_add(list, list_bytes, name);
    }
}

/* More than a model can carry is no reason not to train it. */
static kelp_status describe(const struct kelp_job_file *file, const struct kelp_dataset *dataset,
                            struct kelp_carried *carried, struct kelp_error *reterr)
{
    struct kelp_error error = {.status = KELP_OK};

    if (kelp_job_file_job(file)->run.mode != KELP_RUN_TRAIN) {
        return KELP_OK;
    }
    kelp_status status = make_card(file, dataset, &carried->card, &error);
    if (status == KELP_ERR_LIMIT) {
        carried->why = error;
        return KELP_OK;
    }
    return status == KELP_OK ? KELP_OK : kelp_fail(reterr, status, "%s", error.text);
}

kelp_status kelp_preflight(const struct kelp_job_file *file, const struct kelp_dataset_watch *watch,
                           uint32_t sharing, struct kelp_carried *ret_carried,
                           struct kelp_error *reterr)
{
    const struct kelp_job *job = kelp_job_file_job(file);
    struct kelp_carried carried = {.card = NULL};
    struct kelp_derived derived;

    kelp_status status = kelp_derived_open(job, watch, &derived, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = kelp_derived_check(job, &derived, sharing, reterr);
    if (status == KELP_OK) {
        status = kelp_plan_print(&derived.plan, &carried.plan, reterr);
    }
    if (status == KELP_OK) {
        status = describe(file, derived.dataset, &carried, reterr);
        list_classes(derived.dataset, carried.classes, sizeof(carried.classes));
        list_untrained(derived.dataset, carried.untrained, sizeof(carried.untrained));
        carried.samples = derived.plan.samples[KELP_SPLIT_TRAIN];
        carried.steps = kelp_control_total_steps(job, &derived.plan);
    }
    kelp_derived_close(&derived);
    if (status != KELP_OK) {
        free(carried.card);
        free(carried.plan);
        return status;
    }
    *ret_carried = carried;
    return KELP_OK;
}

kelp_status kelp_preflight_program(const struct kelp_job *job, struct kelp_carried *ret_carried,
                                   struct kelp_error *reterr)
{
    struct kelp_safetensors *file = NULL;

    kelp_status status = job->model.init[0] != '\0'
                             ? kelp_safetensors_open(job->model.init, &file, reterr)
                             : KELP_OK;
    kelp_safetensors_close(file);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "model.init");
    } else {
        *ret_carried = (struct kelp_carried){.samples = UINT64_MAX, .steps = UINT64_MAX};
    }
    return status;
}

kelp_status kelp_preflight_bin_folder(char *ret_path, size_t path_bytes, struct kelp_error *reterr)
{
    ssize_t length = readlink("/proc/self/exe", ret_path, path_bytes);

    if (length < 0) {
        return kelp_fail(reterr, KELP_ERR_IO,
                         "cannot read /proc/self/exe: %s; /proc must be mounted", strerror(errno));
    }
    if ((size_t)length >= path_bytes) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "the path of kelp is too long");
    }
    ret_path[length] = '\0';
    char *slash = strrchr(ret_path, '/');
    if (slash && slash != ret_path) {
        *slash = '\0';
    }
    return KELP_OK;
}
