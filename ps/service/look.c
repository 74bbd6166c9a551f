/* Gauges of the shard that are read at each look, not counted where they change. */
#include <stdlib.h>

#include "ps/service/map_internal.h"

static void set_all(struct kelp_service *service, const struct kelp_shard_view *view)
{
    struct kelp_figures *figures = service->options.figures;
    char newest[sizeof(service->conflict)];

    kelp_figures_set(figures, KELP_FIGURE_SHARD_LED, view->led_count);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_FOLLOWED, view->partition_count - view->led_count);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_GENERATION, view->generation);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_STEP,
                     view->partition_count > 0 ? view->step : KELP_FIGURE_NONE);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_PENDING, view->pending);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_WAITING, view->waiting);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_LAG, view->lag);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_PUSHES, view->counts.pushes);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_DUPLICATES, view->counts.duplicates);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_REFUSALS, view->counts.refusals);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_OFFERS, view->counts.offers);
    kelp_figures_set(figures, KELP_FIGURE_SHARD_RECEIVED, atomic_load(&service->bytes_in));
    kelp_figures_set(figures, KELP_FIGURE_SHARD_SENT, atomic_load(&service->bytes_out));
    kelp_figures_set(figures, KELP_FIGURE_SHARD_COPIED, atomic_load(&service->bytes_copied));
    kelp_figures_set(figures, KELP_FIGURE_SHARD_CONFLICTS,
                     kelp__service_conflicts(service, newest, sizeof(newest)));
}

static const char *why_not_ready(struct kelp_service *service)
{
    struct kelp_shard_control_view view;
    const char *why = NULL;

    (void)pthread_mutex_lock(&service->control_lock);
    kelp_shard_control_view(service->control, &view);
    if (view.status != KELP_OK) {
        why = "loading or training failed, see the log";
    } else if (view.loading != 0) {
        why = "its partitions are being loaded";
    } else if (view.generation == 0) {
        why = "no coordinator has given it a map of partitions yet";
    }
    (void)pthread_mutex_unlock(&service->control_lock);
    return why;
}

const char *kelp_service_look(struct kelp_service *service)
{
    struct kelp_shard_view *view = malloc(sizeof(*view));

    if (view) { /* otherwise the figures stay until the next look */
        kelp_shard_view(service->shard, view);
        set_all(service, view);
    }
    free(view);
    return why_not_ready(service);
}
