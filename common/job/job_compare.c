#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/job/job_options.h"

#define MORE "…"

static kelp_status value_text(const struct kelp_job_key *key, const struct kelp_job *job,
                              char **ret_text, struct kelp_error *reterr)
{
    struct kelp_text text;
    size_t count;
    kelp_status status = kelp_text_open(&text, reterr);

    if (status != KELP_OK) {
        return status;
    }
    kelp__job_key_print(text.out, key, job);
    return kelp_text_close(&text, ret_text, &count, reterr);
}

/* Does the learning rate depend on the run's length, so that more epochs would have changed past
 * rates? */
static bool goes_by_whole_run(const struct kelp_job *job)
{
    return job->train.schedule_total == 0 &&
           (job->train.schedule == KELP_SCHEDULE_COSINE ||
            job->train.schedule == KELP_SCHEDULE_COSINE_RESTARTS ||
            job->train.schedule == KELP_SCHEDULE_LINEAR);
}

/* A path with the same last name in another folder. */
static bool only_moved(const struct kelp_job_key *key, const struct kelp_job *before,
                       const struct kelp_job *now)
{
    return key->type == KELP_JOB_PATH &&
           strcmp(kelp__job_path_name((const char *)before + key->offset),
                  kelp__job_path_name((const char *)now + key->offset)) == 0;
}

static bool may_differ(const struct kelp_job_key *key, const struct kelp_job *before,
                       const struct kelp_job *now)
{
    uint32_t values[2];

    switch (key->change) {
    case KELP_JOB_STAYS:
        return only_moved(key, before, now);
    case KELP_JOB_CHANGES:
        return true;
    case KELP_JOB_GROWS:
        assert(key->type == KELP_JOB_U32);
        memcpy(&values[0], (const char *)before + key->offset, sizeof(values[0]));
        memcpy(&values[1], (const char *)now + key->offset, sizeof(values[1]));
        return values[1] == values[0] || (values[1] > values[0] && !goes_by_whole_run(now));
    }
    assert(false && "job change");
    return false;
}

/* Add the key if its values differ. Values are compared as text, which is canonical, because
 * unused bytes of a list or text mean nothing. */
static kelp_status compare_key(const struct kelp_job_key *key, const struct kelp_job *before,
                               const struct kelp_job *now, struct kelp_job_differences *differences,
                               struct kelp_error *reterr)
{
    struct kelp_job_difference *item = &differences->items[differences->count];
    char *texts[2] = {NULL, NULL};

    kelp_status status = value_text(key, before, &texts[0], reterr);
    if (status == KELP_OK) {
        status = value_text(key, now, &texts[1], reterr);
    }
    if (status != KELP_OK || strcmp(texts[0], texts[1]) == 0) {
        free(texts[0]);
        free(texts[1]);
        return status;
    }
    *item = (struct kelp_job_difference){.key = key->name,
                                         .before = texts[0],
                                         .now = texts[1],
                                         .allowed = may_differ(key, before, now)};
    differences->count++;
    differences->refused += !item->allowed;
    return KELP_OK;
}

kelp_status kelp_job_compare(const struct kelp_job_file *before, const struct kelp_job_file *now,
                             struct kelp_job_differences *ret_differences,
                             struct kelp_error *reterr)
{
    struct kelp_job_differences differences = {
        .items = calloc(kelp__job_key_count, sizeof(*differences.items))};

    if (!differences.items) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        const struct kelp_job_key *key = &kelp__job_keys[i];
        if (!kelp__job_key_applies(key, &before->job) || !kelp__job_key_applies(key, &now->job)) {
            continue;
        }
        kelp_status status = compare_key(key, &before->job, &now->job, &differences, reterr);
        if (status != KELP_OK) {
            kelp_job_differences_fini(&differences);
            return status;
        }
    }
    *ret_differences = differences;
    return KELP_OK;
}

void kelp_job_differences_fini(struct kelp_job_differences *differences)
{
    for (size_t i = 0; i < differences->count; i++) {
        free(differences->items[i].before);
        free(differences->items[i].now);
    }
    free(differences->items);
    *differences = (struct kelp_job_differences){0};
}

void kelp_job_differences_text(const struct kelp_job_differences *differences, bool allowed,
                               char *text, size_t text_bytes)
{
    size_t used = 0;

    assert(text_bytes > sizeof(MORE) + 2);
    text[0] = '\0';
    for (size_t i = 0; i < differences->count; i++) {
        const struct kelp_job_difference *item = &differences->items[i];
        if (item->allowed != allowed) {
            continue;
        }
        size_t room = text_bytes - used - sizeof(MORE) - 2; /* for ", …" */
        const char *comma = used > 0 ? ", " : "";
        char one[160];
        int length = snprintf(one, sizeof(one), "%s%s %.40s -> %.40s", comma, item->key,
                              item->before, item->now);
        assert(length > 0 && (size_t)length < sizeof(one));
        if ((size_t)length > room) {
            (void)snprintf(text + used, text_bytes - used, "%s" MORE, comma);
            return;
        }
        memcpy(text + used, one, (size_t)length + 1);
        used += (size_t)length;
    }
}
