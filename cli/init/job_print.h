/* The job as a YAML file, with a comment for each decision. */
#ifndef KELP_CLI_INIT_JOB_PRINT_H
#define KELP_CLI_INIT_JOB_PRINT_H

#include <stdio.h>

#include "cli/init/choice.h"
#include "cli/init/image_folder.h"
#include "cli/init/table_facts.h"

#define KELP_INIT_NAME_MAX 63

/* What the file says of itself. */
struct kelp_init_source {
    const char *shown; /* the data as they were named on the command line */
    const char *path;  /* of data.path */
    const char *name;  /* of the job */
    const char *file;  /* of the job, as `kelp train` takes it */
};

/* A job's name from a path: its last part without endings, of allowed characters. */
void kelp_init_job_name(const char *path, char ret_name[KELP_INIT_NAME_MAX + 1]);

void kelp_init_print_table(const struct kelp_init_source *source,
                           const struct kelp_table_facts *facts,
                           const struct kelp_init_choice *choice, FILE *out);
void kelp_init_print_images(const struct kelp_init_source *source,
                            const struct kelp_image_facts *facts, FILE *out);

#endif
