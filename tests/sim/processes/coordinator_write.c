/* What a simulated coordinator writes to etcd (coordinator/etcd/leader_tasks.c,
 * leader_checkpoints.c): each write compares the key of its election. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/outside/disk.h"
#include "tests/sim/processes/coordinator.h"

void sim_coordinator_manifest_key(uint64_t version, char key[SIM_ETCD_KEY_MAX + 1])
{
    (void)snprintf(key, SIM_ETCD_KEY_MAX + 1, "checkpoint/%llu", (unsigned long long)version);
}

static void add_compare(struct sim_transaction *transaction, const char *key, bool create,
                        int64_t revision)
{
    struct sim_compare *compare = &transaction->compares[transaction->compare_count++];
    *compare = (struct sim_compare){.create = create, .revision = revision};
    (void)snprintf(compare->key, sizeof(compare->key), "%s", key);
}

/* value: a reference that is transferred, or NULL: delete. */
static void add_operation(struct sim_transaction *transaction, const char *key,
                          struct sim_value *value)
{
    struct sim_operation *operation = &transaction->operations[transaction->operation_count++];
    *operation = (struct sim_operation){.value = value};
    (void)snprintf(operation->key, sizeof(operation->key), "%s", key);
}

static struct sim_value *new_value(const struct sim_task *task)
{
    struct sim_value *value = sim_value_create();
    value->nonce = task->nonce;
    return value;
}

static void fill_state(const struct sim_coordinator *coordinator, const struct sim_task *task,
                       struct sim_transaction *transaction)
{
    struct sim_value *value = new_value(task);
    struct kelp_job_state *state = sim_alloc(sizeof(*state));
    *state = task->state;
    (void)snprintf(value->text, sizeof(value->text), "%s", task->state.state);
    value->content = state;
    value->unref = free;
    add_compare(transaction, "state", false, coordinator->state_revision);
    add_operation(transaction, "state", value);
}

static struct sim_value *map_value(const struct sim_task *task)
{
    struct sim_value *value = new_value(task);
    struct sim_map *map = sim_map_create(&task->map);
    map->asked_us = task->asked_us;
    value->content = map;
    value->unref = (void (*)(void *))sim_map_unref;
    return value;
}

static void fill_change(const struct sim_coordinator *coordinator, const struct sim_task *task,
                        struct sim_transaction *transaction)
{
    add_compare(transaction, "map", false, coordinator->map_revision);
    add_operation(transaction, "map", map_value(task));
    (void)snprintf(transaction->nonce_key, sizeof(transaction->nonce_key), "map");
}

static void fill_map(const struct sim_coordinator *coordinator, const struct sim_task *task,
                     struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    if (task->map.restore_version > 0) {
        sim_coordinator_manifest_key(task->map.restore_version, key);
        add_compare(transaction, key, false, task->opening.restored_revision);
    }
    add_operation(transaction, "map", map_value(task));
    add_operation(transaction, "fence", new_value(task));
    for (uint32_t i = 0; i < task->opening.gone_count; i++) {
        sim_coordinator_manifest_key(task->opening.gone[i], key);
        add_operation(transaction, key, NULL);
    }
    (void)snprintf(transaction->nonce_key, sizeof(transaction->nonce_key), "map");
}

static void fill_commit(const struct sim_coordinator *coordinator, const struct sim_task *task,
                        struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    struct sim_value *value = new_value(task);
    value->content = sim_manifest_ref(task->manifest);
    value->unref = (void (*)(void *))sim_manifest_unref;
    sim_coordinator_manifest_key(task->manifest->version, key);
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    add_compare(transaction, key, false, 0);
    add_operation(transaction, key, value);
    memcpy(transaction->nonce_key, key, sizeof(transaction->nonce_key));
}

static void fill_remove(const struct sim_coordinator *coordinator, const struct sim_task *task,
                        struct sim_transaction *transaction)
{
    char key[SIM_ETCD_KEY_MAX + 1];
    sim_coordinator_manifest_key(task->version, key);
    add_compare(transaction, "fence", false, coordinator->fence_revision);
    add_compare(transaction, "map", false, coordinator->map_revision);
    add_operation(transaction, key, NULL);
    add_operation(transaction, "fence", new_value(task));
    (void)snprintf(transaction->nonce_key, sizeof(transaction->nonce_key), "fence");
}

static void fill_scale(const struct sim_coordinator *coordinator, const struct sim_task *task,
                       struct sim_transaction *transaction)
{
    struct sim_value *value = new_value(task);
    struct kelp_scale *scale = sim_alloc(sizeof(*scale));
    *scale = task->scale;
    value->content = scale;
    value->unref = free;
    add_compare(transaction, "scale", false, coordinator->scale_revision);
    add_operation(transaction, "scale", value);
}

void sim_coordinator_fill(const struct sim_coordinator *coordinator, const struct sim_task *task,
                          struct sim_transaction *transaction)
{
    add_compare(transaction, "coordinator", true, task->revision);
    switch (task->kind) {
    case SIM_TASK_PLAN:
        add_compare(transaction, "plan", false, 0);
        add_operation(transaction, "plan", new_value(task));
        break;
    case SIM_TASK_STATE:
        fill_state(coordinator, task, transaction);
        break;
    case SIM_TASK_SCALE:
        fill_scale(coordinator, task, transaction);
        break;
    case SIM_TASK_MAP:
        fill_map(coordinator, task, transaction);
        break;
    case SIM_TASK_CHANGE:
        fill_change(coordinator, task, transaction);
        break;
    case SIM_TASK_COMMIT:
        fill_commit(coordinator, task, transaction);
        break;
    case SIM_TASK_REMOVE:
        fill_remove(coordinator, task, transaction);
        break;
    case SIM_TASK_READ:
    case SIM_TASK_READ_MAP:
    case SIM_TASK_FILE:
    case SIM_TASK_HOLD:
    case SIM_TASK_DESCRIBE:
    case SIM_TASK_REMOVE_FOLDER:
        abort(); /* they write nothing there */
    }
}
