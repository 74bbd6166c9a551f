#include "cli/preflight/notices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "worker/data/table/table_leaks.h"

/* ---- the environment ----------------------------------------------------------------------- */

static bool is_option(const struct kelp_program *program, const char *variable)
{
    char name[KELP_OPTION_VARIABLE_MAX + 1];

    for (size_t i = 0; i < program->option_count; i++) {
        kelp_option_variable(&program->options[i], name);
        if (strcmp(name, variable) == 0) {
            return true;
        }
    }
    return false;
}

static void say_variables(const struct kelp_program *program, struct kelp_display *display)
{
    for (char **entry = environ; *entry; entry++) {
        char name[96], nearest[96];
        size_t length = strcspn(*entry, "=");
        if (length >= sizeof(name)) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, *entry);
        if (kelp_job_variable_unknown(name, nearest, sizeof(nearest)) &&
            !is_option(program, name)) {
            kelp_display_say(display, "environment %s: not a job key, so it is ignored%s%s%s", name,
                             nearest[0] ? "; did you mean " : "", nearest, nearest[0] ? "?" : "");
        }
    }
}

/* ---- the job ------------------------------------------------------------------------------- */

static void say_line(void *user, const char *line)
{
    kelp_display_say(user, "%s", line);
}

/* What tells the model what it is to find out. */
static void say_leaks(const struct kelp_job *job, struct kelp_display *display)
{
    struct kelp_table_schema *schema = NULL;

    if (kelp_table_schema_create(job, &schema, NULL) == KELP_OK) { /* the data were read with it */
        kelp_table_leaks_tell(schema, job->data.kind == KELP_DATA_PANEL, say_line, display);
    }
    kelp_table_schema_destroy(schema);
}

static void say_sizes(const struct kelp_job *job, uint64_t samples, struct kelp_display *display)
{
    if (job->cluster.workers.max > job->cluster.lanes) {
        kelp_display_say(display,
                         "%" PRIu32 " workers for %" PRIu32 " lanes (cluster.lanes): %" PRIu32
                         " of them will be spares",
                         job->cluster.workers.max, job->cluster.lanes,
                         job->cluster.workers.max - job->cluster.lanes);
    }
    if (job->train.batch_size > samples) {
        kelp_display_say(display,
                         "train.batch_size %" PRIu32 " is more than the %" PRIu64
                         " training samples: an epoch is one step over all of them",
                         job->train.batch_size, samples);
    }
}

/* Past its end a cosine stays at train.lr_min: with 0 nothing is learnt any more, in silence. */
static void say_schedule(const struct kelp_job *job, uint64_t steps, struct kelp_display *display)
{
    const bool by_step = job->train.schedule_unit == KELP_SCHEDULE_BY_STEP;
    const uint64_t total = job->train.schedule_total;
    const uint64_t units = by_step ? steps : job->train.epochs;
    const char *unit = by_step ? "step" : "epoch";

    if (job->train.schedule != KELP_SCHEDULE_COSINE || job->train.lr_min > 0 || total == 0 ||
        units <= total) {
        return;
    }
    if (units == UINT64_MAX) { /* a program says later how many there are */
        return;
    }
    kelp_display_say(display,
                     "the learning rate is 0 from %s %" PRIu64 " on, where train.schedule cosine "
                     "ends (train.schedule_total): the %s%s %" PRIu64 " to %" PRIu64
                     " change nothing",
                     unit, total + 1, unit, units > total + 1 ? "s" : "", total + 1, units);
}

void kelp_notices_say(const struct kelp_program *program, const struct kelp_job *job,
                      const struct kelp_carried *carried, struct kelp_display *display)
{
    say_variables(program, display);
    say_sizes(job, carried->samples, display);
    say_schedule(job, carried->steps, display);
    if (carried->classes[0] != '\0') {
        kelp_display_say(display, "classes of %s: %s", job->data.targets, carried->classes);
    }
    if (carried->untrained[0] != '\0') {
        kelp_display_say(display, "classes without a training sample: %s%s", carried->untrained,
                         job->data.random_split ? "" : "; data.random_split is for sorted files");
    }
    if (job->data.kind == KELP_DATA_TABLE || job->data.kind == KELP_DATA_PANEL) {
        say_leaks(job, display);
    }
}
