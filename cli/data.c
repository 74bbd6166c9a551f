#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/verb/out_file.h"
#include "cli/verbs.h"
#include "worker/data/dataset.h"
#include "worker/data/limits.h"

static const struct kelp_option options[] = {
    KELP_VERB_REQUIRED("out", "FILE", "where to write; an existing file is replaced"),
    KELP_VERB_NUMBER("rows", INTEGER, 1, KELP_SYNTHETIC_ROWS_MAX, "17420", NULL, "hours of data"),
    KELP_VERB_NUMBER("seed", INTEGER, 0, 0, "1", NULL, "the same seed gives the same bytes"),
};

static const struct kelp_program program = {
    .name = "kelp data",
    .summary = "generates the built-in data set as CSV in the ETT layout",
    .positional = "generate",
    .positional_min = 1,
    .positional_max = 1,
    .examples = "  kelp data generate --out series.csv\n"
                "  kelp data generate --out small.csv --rows 2000 --seed 7\n",
    KELP_VERB_OPTIONS(options),
};

static int data(const struct kelp_options *given)
{
    struct kelp_error error;
    const char *action = kelp_options_positional(given, 0);
    const char *path = kelp_options_text(given, "out");
    uint64_t rows = kelp_options_integer(given, "rows");

    if (strcmp(action, "generate") != 0) {
        return kelp_complain(KELP_EXIT_USAGE,
                             "'%s' is not a verb of kelp data; its verb is generate", action);
    }
    kelp_status status = kelp_out_file_check("--out", path, &error);
    if (status == KELP_OK) {
        status =
            kelp_dataset_write_synthetic(path, rows, kelp_options_integer(given, "seed"), &error);
    }
    if (status != KELP_OK) {
        return kelp_complain(status == KELP_ERR_INVALID ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s",
                             error.text);
    }
    (void)printf("%s: %" PRIu64 " rows\n", path, rows);
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_verb_data = {"data", "generate the built-in data set as CSV", &program,
                                         data, NULL};
