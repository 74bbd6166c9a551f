/* Sums that a user's own program adds up (model.sums), by name. */
#include <stdio.h>
#include <string.h>

#include "common/job/job.h"

/* Entry `index` and its length; NULL: there is none. */
static const char *entry_at(const struct kelp_job *job, uint32_t index, size_t *ret_bytes)
{
    const char *at = job->model.sums;

    for (; *at != '\0' && index > 0; index--) {
        at += strcspn(at, "\n");
        at += *at == '\n' ? 1 : 0;
    }
    *ret_bytes = strcspn(at, "\n");
    return *at != '\0' ? at : NULL;
}

bool kelp_job_sum(const struct kelp_job *job, uint32_t index, struct kelp_job_sum *ret_sum)
{
    size_t bytes = 0;
    const char *entry = entry_at(job, index, &bytes);

    if (!entry) {
        return false;
    }
    const char *equal = memchr(entry, '=', bytes);
    const size_t length = equal ? (size_t)(equal - entry) : bytes;
    *ret_sum = (struct kelp_job_sum){
        .larger = !equal || (bytes - length == 4 && memcmp(equal, "=max", 4) == 0)};
    (void)snprintf(ret_sum->name, sizeof(ret_sum->name), "%.*s", (int)length, entry);
    return true;
}

bool kelp_job_sum_find(const struct kelp_job *job, const char *name, uint32_t *ret_index)
{
    struct kelp_job_sum sum;

    for (uint32_t i = 0; kelp_job_sum(job, i, &sum); i++) {
        if (strcmp(sum.name, name) == 0) {
            *ret_index = i;
            return true;
        }
    }
    return false;
}
