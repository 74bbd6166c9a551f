#include "coordinator/common/job_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

void kelp_job_plan_forget(struct kelp_job_plan *kept)
{
    if (kept->text) {
        kelp_plan_fini(&kept->plan);
        free(kept->text);
        kept->text = NULL;
    }
}

kelp_status kelp_job_plan_keep(struct kelp_job_plan *kept, const char *text,
                               struct kelp_error *reterr)
{
    struct kelp_plan plan;
    if (kept->text && strcmp(kept->text, text) == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_plan_parse(text, strlen(text), &plan, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *copy = strdup(text);
    if (!copy) {
        kelp_plan_fini(&plan);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "no memory for the plan");
    }
    kelp_job_plan_forget(kept);
    kept->plan = plan;
    kept->text = copy;
    return KELP_OK;
}

/* Name the files that the samples come from, for a message. */
static void name_files(const struct kelp_job *job, char *text, size_t text_bytes)
{
    const struct {
        const char *key, *path;
    } files[] = {{"data.path", job->data.path},
                 {"data.target_path", job->data.target_path},
                 {"data.val_path", job->data.val_path},
                 {"data.val_target_path", job->data.val_target_path},
                 {"data.test_path", job->data.test_path},
                 {"data.test_target_path", job->data.test_target_path}};

    text[0] = '\0';
    for (size_t i = 0; i < KELP_ARRAY_COUNT(files); i++) {
        char file[160];
        if (files[i].path[0] != '\0') {
            (void)snprintf(file, sizeof(file), "%s '%.120s'", files[i].key, files[i].path);
            kelp_text_list_add(text, text_bytes, file);
        }
    }
}

static kelp_status other_data(const struct kelp_job *job, const char *how,
                              struct kelp_error *reterr)
{
    char files[256];

    name_files(job, files, sizeof(files));
    /* A script's data may also depend on random numbers, as with torch's random_split(). */
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "%s%sthe data is not what the run began with (%s); %s, or start a new run",
                     files, files[0] ? ": " : "", how,
                     job->model.python[0] ? "give a seed to random_split() and other random "
                                            "choices of data, restore changed files"
                                          : "bring the files back");
}

kelp_status kelp_job_plan_compare(const struct kelp_job_plan *kept, const struct kelp_job *job,
                                  const char *text, struct kelp_error *reterr)
{
    struct kelp_plan plan;
    char line[sizeof(reterr->text)];
    if (strcmp(text, kept->text) == 0) {
        return KELP_OK;
    }
    kelp_status status = kelp_plan_parse(text, strlen(text), &plan, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "the worker's plan");
        return status;
    }
    const enum kelp_plan_part part =
        kelp_plan_difference(&kept->plan, &plan, job->cluster.mixed, line, sizeof(line));
    kelp_plan_fini(&plan);
    switch (part) {
    case KELP_PLAN_EQUAL:
        return KELP_OK;
    case KELP_PLAN_DATA:
        return other_data(job, line, reterr);
    case KELP_PLAN_MODEL:
        return kelp_fail(reterr, KELP_ERR_MISMATCH,
                         "%s; this worker needs the programs and the model.plugin that the run "
                         "began with",
                         line);
    case KELP_PLAN_COMPUTE:
        break;
    }
    return kelp_fail(reterr, KELP_ERR_MISMATCH, "%s", line);
}
