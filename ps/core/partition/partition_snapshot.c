#include "ps/core/partition/partition_internal.h"

static void add_snapshot(const struct kelp_partition *partition, struct kelp_actions *actions)
{
    struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_SNAPSHOT);

    action->snapshot.serial = partition->snapshot.serial;
    action->snapshot.step = partition->step;
    action->snapshot.version = partition->version;
    action->snapshot.has_control = kelp__partition_holds_control(partition);
    if (kelp__partition_holds_control(partition)) {
        action->snapshot.control = partition->control;
        action->snapshot.word = partition->word;
    }
}

void kelp__partition_settle_snapshot(struct kelp_partition *partition, struct kelp_actions *actions)
{
    const bool applies = partition->phase == KELP_PARTITION_APPLYING || partition->is_applied;

    if (partition->snapshot.serial == 0 || partition->snapshot.step > partition->step ||
        (partition->phase == KELP_PARTITION_SYNCING && !applies)) {
        return;
    }
    if (partition->snapshot.step == partition->step && !applies) {
        add_snapshot(partition, actions);
    } else {
        struct kelp_action *action = kelp__actions_add(actions, KELP_ACTION_PAST);
        action->past.serial = partition->snapshot.serial;
        action->past.step = partition->step + (applies ? 1 : 0);
    }
    partition->snapshot.serial = 0;
}

kelp_status kelp_partition_snapshot(struct kelp_partition *partition,
                                    const struct kelp_snapshot_order *order,
                                    struct kelp_actions *actions)
{
    if (kelp__partition_reserve(partition, actions) != KELP_OK) {
        return KELP_ERR_NO_MEMORY;
    }
    if (partition->phase == KELP_PARTITION_ABSENT || partition->place != KELP_REPLICA_PRIMARY ||
        order->generation != partition->generation) {
        return KELP_OK;
    }
    partition->snapshot = *order;
    if (!kelp__partition_has_given_up(partition)) {
        kelp__partition_settle_snapshot(partition, actions);
    }
    return KELP_OK;
}
