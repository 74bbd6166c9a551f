/* `kelp plot`. */
#include <stdio.h>

#include "cli/cluster/run_client.h"
#include "cli/plot/plot_run.h"
#include "cli/run/plugin_consent.h"
#include "cli/verbs.h"

static const struct kelp_option options[] = {
    KELP_VERB_TEXT("out", "FOLDER", NULL, "where to write, instead of RUN/" KELP_PLOTS_FOLDER),
    KELP_VERB_ALLOW_PLUGIN,
};

static const struct kelp_program program = {
    .name = "kelp plot",
    .summary = "draws a run: metrics.svg and .png, and forecasts of time series",
    .positional = "[RUN]",
    .positional_max = 1,
    .examples = "  kelp plot\n"
                "  kelp plot runs/etth1-dlinear-20260131-120000 --out /tmp/plots\n",
    KELP_VERB_OPTIONS(options),
};

static int plot(const struct kelp_options *given)
{
    const char *out = kelp_options_text(given, "out");
    char run_path[KELP_RUN_PATH_MAX + 1];
    struct kelp_error error;

    kelp_status status = kelp_run_choose(kelp_verb_typed(given), run_path, &error);
    if (status != KELP_OK) {
        return kelp_complain(KELP_EXIT_USAGE, "%s", error.text);
    }
    if (kelp_run_begin_portable(run_path, &error) != KELP_OK) {
        return kelp_complain(KELP_EXIT_FAILED, "%s", error.text);
    }
    status =
        kelp_plot_run(run_path,
                      &(struct kelp_plot_what){
                          .folder = out, .allow_plugin = kelp_options_flag(given, "allow-plugin")},
                      &error);
    if (status != KELP_OK) {
        enum kelp_status_group group = kelp_status_group(status);
        bool input = group == KELP_GROUP_CALLER || group == KELP_GROUP_DATA;
        return kelp_complain(input ? KELP_EXIT_USAGE : KELP_EXIT_FAILED, "%s", error.text);
    }
    (void)printf("%s%s\n", out ? out : run_path, out ? "" : "/" KELP_PLOTS_FOLDER);
    return KELP_EXIT_OK;
}

const struct kelp_verb kelp_verb_plot = {"plot", "draw a run's curves and forecasts as SVG and PNG",
                                         &program, plot, NULL};
