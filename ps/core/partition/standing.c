#include "ps/core/partition/standing.h"

void kelp_standing_add(struct kelp_standing *standing, uint32_t partition,
                       const struct kelp_partition_view *view)
{
    const struct kelp_standing_end end = {
        .partition = partition, .map_epoch = view->map_epoch, .step = view->step};

    if (view->place != KELP_REPLICA_PRIMARY || view->phase == KELP_PARTITION_ABSENT) {
        return;
    }
    if (!standing->known || end.step < standing->lowest.step) {
        standing->lowest = end;
    }
    if (!standing->known || end.step > standing->highest.step) {
        standing->highest = end;
    }
    standing->known = true;
}
