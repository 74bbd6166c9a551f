#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/runs/run_table.h"
#include "cli/verbs.h"

#define FOLDERS_MAX 1024

static const char *const outputs[] = {"text", "json", "csv", NULL};

static const struct kelp_option options[] = {
    {.name = "sort",
     .type = KELP_OPTION_TEXT,
     .placeholder = "COLUMN",
     .default_text = "age",
     .help =
         "name, status, age, step, epoch, or a metric such as val/loss, from the best evaluation "
         "if there is one, else from the newest"},
    KELP_VERB_FLAG("reverse", NULL, "largest first"),
    {.name = "output",
     .letter = 'o',
     .type = KELP_OPTION_CHOICE,
     .choices = outputs,
     .default_text = "text",
     .help = "a table for people, one JSON object, or CSV"},
    KELP_VERB_NUMBER("timeout", DURATION, 10, 60000, "1s", NULL,
                     "how long to try to reach each active run"),
};

static const struct kelp_program program = {
    .name = "kelp ls",
    .summary = "lists runs with their state, age and metrics",
    .positional = "[FOLDER]...",
    .positional_max = FOLDERS_MAX,
    .examples = "  kelp ls\n"
                "  kelp ls --sort val/mse\n"
                "  kelp ls runs/etth1-dlinear-20260131-120000 /data/runs -o csv\n",
    KELP_VERB_OPTIONS(options),
};

static void print(const struct kelp_run_list *list, uint32_t output)
{
    static void (*const forms[])(const struct kelp_run_list *list, FILE *out) = {
        kelp_run_table_text, kelp_run_table_json, kelp_run_table_csv};

    if (list->count == 0 && output == 0) {
        (void)kelp_complain(KELP_EXIT_OK, "there are no runs; kelp train JOB.yaml starts one");
        return;
    }
    forms[output](list, stdout);
}

static int list_runs(const struct kelp_options *given)
{
    struct kelp_run_list list = {.count = 0};
    struct kelp_error error;
    struct kelp_run_look look = {
        .now = time(NULL), .timeout_ms = (uint32_t)kelp_options_duration_ms(given, "timeout")};
    struct kelp_run_order order = {.key = kelp_options_text(given, "sort"),
                                   .reverse = kelp_options_flag(given, "reverse")};

    kelp_status status = kelp_run_list_find(&list, given, &look, &error);
    if (status == KELP_OK) {
        status = kelp_run_list_sort(&list, &order, &error);
    }
    int exit_status = KELP_EXIT_OK;
    if (status == KELP_OK) {
        print(&list, kelp_options_choice(given, "output"));
    } else {
        exit_status = kelp_complain(status == KELP_ERR_NOT_FOUND || status == KELP_ERR_INVALID
                                        ? KELP_EXIT_USAGE
                                        : KELP_EXIT_FAILED,
                                    "%s", error.text);
    }
    kelp_run_list_fini(&list);
    return exit_status;
}

const struct kelp_verb kelp_verb_ls = {"ls", "list runs: state, age, steps, metrics", &program,
                                       list_runs, NULL};
