#include "coordinator/job_plan.h"

#include <stdlib.h>
#include <string.h>

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
    bool differs = kelp_plan_difference(&kept->plan, &plan, job->cluster.mixed, line, sizeof(line));
    kelp_plan_fini(&plan);
    if (!differs) {
        return KELP_OK;
    }
    return job->data.path[0] != '\0' && strncmp(line, "data ", 5) == 0
               ? kelp_fail(reterr, KELP_ERR_MISMATCH, "%s (data.path %.200s)", line, job->data.path)
               : kelp_fail(reterr, KELP_ERR_MISMATCH, "%s", line);
}
