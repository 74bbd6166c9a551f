#include "common/job/job_words.h"

#include "common/job/job_options.h"

bool kelp_job_words(size_t index, struct kelp_job_words *ret_words)
{
    static const char *const truths[] = {"true", "false", NULL};

    if (index >= kelp__job_key_count) {
        return false;
    }
    const struct kelp_job_key *key = &kelp__job_keys[index];
    const char *const *choices = key->type == KELP_JOB_CHOICE ? key->choices : NULL;
    *ret_words = (struct kelp_job_words){.name = key->name,
                                         .help = key->help,
                                         .choices = key->type == KELP_JOB_BOOL ? truths : choices};
    return true;
}
