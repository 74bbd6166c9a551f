#include "coordinator/etcd/leader_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log/log.h"

static void found_fini(struct kelp_found *found)
{
    free(found->plan);
    kelp_map_fini(&found->map);
    for (uint32_t i = 0; i < found->checkpoint_count; i++) {
        free(found->checkpoints[i].manifest);
    }
    free(found->checkpoints);
    kelp_checkpoint_names_fini(&found->folders);
    *found = (struct kelp_found){0};
}

static kelp_status get_plan(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, leader->plan_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    if (range.count > 0) {
        task->found.plan = strdup(range.pairs[0].value);
        free(leader->plan);
        leader->plan = strdup(range.pairs[0].value);
        if (!task->found.plan || !leader->plan) {
            status = kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for the plan");
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

static kelp_status get_map(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->leader->map_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    task->leader->map_revision = 0;
    task->leader->map_generation = 0;
    if (range.count > 0) {
        task->leader->map_revision = range.pairs[0].mod_revision;
        status = kelp_map_parse(range.pairs[0].value, range.pairs[0].value_bytes, &task->found.map,
                                &task->error);
        if (status != KELP_OK) {
            kelp_error_prefix(&task->error, "%s", task->leader->map_key);
        }
        task->leader->map_generation = task->found.map.generation;
    }
    kelp_etcd_range_fini(&range);
    return status;
}

static kelp_status get_state(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->leader->state_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    task->leader->state_revision = range.count > 0 ? range.pairs[0].mod_revision : 0;
    if (range.count > 0) {
        task->found.has_state = true;
        status = kelp_job_state_parse(range.pairs[0].value, range.pairs[0].value_bytes,
                                      &task->found.state, &task->error);
        if (status != KELP_OK) {
            kelp_error_prefix(&task->error, "%s", task->leader->state_key);
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

static kelp_status get_scale(struct kelp__leader_task *task)
{
    struct kelp_etcd_range range = {0};
    kelp_status status = kelp__leader_get(task, task->leader->scale_key, &range);
    if (status != KELP_OK) {
        return status;
    }
    task->leader->scale_revision = range.count > 0 ? range.pairs[0].mod_revision : 0;
    if (range.count > 0) {
        task->found.has_scale = true;
        status = kelp_scale_parse(range.pairs[0].value, range.pairs[0].value_bytes,
                                  &task->found.scale, &task->error);
        if (status != KELP_OK) {
            kelp_error_prefix(&task->error, "%s", task->leader->scale_key);
        }
    }
    kelp_etcd_range_fini(&range);
    return status;
}

/* Put key = task->text if our election key still stands, and the key as *revision says (0: not
 * there), which is that of our put afterwards. */
static kelp_status put_if_leading(struct kelp__leader_task *task, const char *key,
                                  int64_t *revision)
{
    struct kelp_etcd_compare compares[2] = {
        {.key = task->leader->election_key,
         .what = KELP_ETCD_CREATE_REVISION,
         .revision = task->revision},
        {.key = key, .what = KELP_ETCD_MOD_REVISION, .revision = *revision},
    };
    struct kelp_etcd_operation operation = {.key = key, .value = task->text};
    int64_t put = 0;
    if (task->revision == 0) {
        return kelp_fail(&task->error, KELP_ERR_NOT_LEADER, "not elected now");
    }
    kelp_status status = kelp_etcd_transaction(
        task->leader->etcd,
        &(struct kelp_etcd_transaction){.compares = compares,
                                        .compare_count = 2,
                                        .operations = &operation,
                                        .operation_count = 1,
                                        .deadline_ms = KELP_COORDINATOR_ETCD_MS},
        &task->succeeded, &put, &task->error);
    if (status != KELP_OK) {
        kelp_error_prefix(&task->error, "writing %s", key);
    } else if (task->succeeded) {
        *revision = put;
    }
    return status;
}

/* A write whose answer was lost may be applied late: not over a newer one, since each compares the
 * revision. When that has changed, what stands there is read, and the next attempt goes by it. */
static kelp_status put_state(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    kelp_status status = put_if_leading(task, leader->state_key, &leader->state_revision);
    return status == KELP_OK && !task->succeeded ? get_state(task) : status;
}

/* etcd has lost the plan that we saw there: write it again, or the first worker that joins would
 * define it. */
static kelp_status put_plan_back(struct kelp__leader_task *task)
{
    int64_t absent = 0;
    task->text = strdup(task->leader->plan);
    if (!task->text) {
        return kelp_fail(&task->error, KELP_ERR_NO_MEMORY, "no memory for the plan");
    }
    kelp_status status = put_if_leading(task, task->leader->plan_key, &absent);
    task->succeeded = false;
    return status == KELP_OK ? get_plan(task) : status;
}

/* Likewise. */
static kelp_status put_scale(struct kelp__leader_task *task)
{
    struct kelp_leader *leader = task->leader;
    const struct kelp_scale scale = task->found.scale;
    kelp_status status = put_if_leading(task, leader->scale_key, &leader->scale_revision);
    if (status == KELP_OK && !task->succeeded) {
        status = get_scale(task);
    }
    task->found.scale = scale;
    return status;
}

static kelp_status read_all(struct kelp__leader_task *task)
{
    kelp_status status = get_plan(task);
    if (status == KELP_OK && !task->found.plan && task->leader->plan) {
        status = put_plan_back(task);
    }
    if (status == KELP_OK) {
        status = get_map(task);
    }
    if (status == KELP_OK) {
        status = get_state(task);
    }
    if (status == KELP_OK) {
        status = get_scale(task);
    }
    return status == KELP_OK ? kelp__leader_get_checkpoints(task) : status;
}

static void run_task(struct kelp_task *base)
{
    struct kelp__leader_task *task = KELP_CONTAINER_OF(base, struct kelp__leader_task, task);
    struct kelp_leader *leader = task->leader;
    int64_t absent = 0;
    switch (task->kind) {
    case KELP__TASK_READ:
        task->status = read_all(task);
        break;
    case KELP__TASK_READ_MAP:
        task->status = get_map(task);
        if (task->status == KELP_OK) {
            task->status = kelp__leader_get_checkpoints(task);
        }
        break;
    case KELP__TASK_SPEC:
        task->status = put_if_leading(task, leader->spec_key, &absent);
        break;
    case KELP__TASK_PLAN:
        task->status = put_if_leading(task, leader->plan_key, &absent);
        /* Whether it was written, was there already, or is unknown: the value in etcd counts. */
        if (task->status == KELP_OK || task->status == KELP_ERR_TIMEOUT) {
            task->status = get_plan(task);
        }
        break;
    case KELP__TASK_MAP:
        task->status = kelp__leader_open_map(task);
        break;
    case KELP__TASK_CHANGE:
        task->status = kelp__leader_change_map(task);
        break;
    case KELP__TASK_STATE:
        task->status = put_state(task);
        break;
    case KELP__TASK_SCALE:
        task->status = put_scale(task);
        break;
    case KELP__TASK_COMMIT:
        task->status = kelp__leader_commit(task);
        break;
    case KELP__TASK_REMOVE:
        task->status = kelp__leader_remove(task);
        break;
    }
}

static void report_map(struct kelp_leader *leader, struct kelp__leader_task *task)
{
    const char *text = task->error.text;
    if (task->status == KELP_OK && !task->succeeded) {
        text = "the election key, the map or the checkpoint has changed";
    }
    leader->events->map_written(kelp_written_of(task->status, task->succeeded), text, leader->user);
}

/* Interpret the end of a transaction; *text says why it was refused. */
static enum kelp_checkpointer_result result_of(const struct kelp__leader_task *task,
                                               const char **text)
{
    if (task->status == KELP_OK && !task->succeeded) {
        *text = "the election key, the map or the list of checkpoints in etcd has changed";
    }
    return kelp_checkpointer_result_of(task->status, task->succeeded);
}

static void report_commit(struct kelp_leader *leader, struct kelp__leader_task *task)
{
    struct kelp_commit_answer answer = {
        .serial = task->serial, .revision = task->key_revision, .text = task->error.text};
    answer.result = result_of(task, &answer.text);
    leader->events->committed(&answer, leader->user);
}

static void report(struct kelp_leader *leader, struct kelp__leader_task *task)
{
    const char *text = task->error.text;
    enum kelp_checkpointer_result result = KELP_CHECKPOINTER_OK;
    switch (task->kind) {
    case KELP__TASK_READ:
        leader->events->read(task->status, &task->found, text, leader->user);
        break;
    case KELP__TASK_READ_MAP:
        leader->events->map_read(task->status, &task->found, text, leader->user);
        break;
    case KELP__TASK_SPEC:
        if (task->status != KELP_OK) {
            leader->events->trouble(text, leader->user);
        } else if (task->succeeded) {
            kelp_log_warn("etcd had lost the job's specification: it is there again");
        }
        break;
    case KELP__TASK_PLAN:
        if (task->status == KELP_OK && !task->found.plan) {
            task->status = KELP_ERR_NOT_LEADER;
            text = "the election key has changed";
        }
        leader->events->plan_written(task->status, task->found.plan, text, leader->user);
        break;
    case KELP__TASK_MAP:
    case KELP__TASK_CHANGE:
        report_map(leader, task);
        break;
    case KELP__TASK_STATE:
        leader->events->state_written(task->status == KELP_OK && task->succeeded, leader->user);
        break;
    case KELP__TASK_SCALE:
        leader->events->scale_written(
            task->status == KELP_OK && task->succeeded ? &task->found.scale.targets : NULL,
            leader->user);
        break;
    case KELP__TASK_COMMIT:
        report_commit(leader, task);
        break;
    case KELP__TASK_REMOVE:
        result = result_of(task, &text);
        leader->events->removed(result, text, leader->user);
        break;
    }
}

static void task_done(struct kelp_task *base)
{
    struct kelp__leader_task *task = KELP_CONTAINER_OF(base, struct kelp__leader_task, task);
    struct kelp_leader *leader = task->leader;
    if (task->kind == KELP__TASK_SPEC) {
        leader->spec_under_way = false;
    }
    if (!base->cancelled && !leader->closed && task->term == leader->term) {
        report(leader, task);
    }
    found_fini(&task->found);
    free(task->text);
    free(task->gone);
    free(task);
}

/* text is transferred, even on an error; NULL with an error is out of memory. */
static struct kelp__leader_task *make(struct kelp_leader *leader, enum kelp__leader_task_kind kind,
                                      char *text)
{
    struct kelp__leader_task *task = calloc(1, sizeof(*task));
    if (!task) {
        free(text);
        return NULL;
    }
    task->task.run = run_task;
    task->task.done = task_done;
    task->leader = leader;
    task->kind = kind;
    task->term = leader->term;
    task->revision = leader->revision;
    task->text = text;
    return task;
}

/* The task is transferred, even on an error. */
static kelp_status hand_in(struct kelp__leader_task *task)
{
    kelp_status status = kelp_task_thread_submit(task->leader->options.tasks, &task->task);
    if (status != KELP_OK) {
        free(task->text);
        free(task->gone);
        free(task);
    }
    return status;
}

static kelp_status submit(struct kelp_leader *leader, enum kelp__leader_task_kind kind, char *text)
{
    struct kelp__leader_task *task = make(leader, kind, text);
    return task ? hand_in(task) : KELP_ERR_NO_MEMORY;
}

void kelp_leader_tick(struct kelp_leader *leader)
{
    if (!leader->spec_gone || leader->revision == 0 || leader->spec_under_way) {
        leader->spec_wait = 0;
    } else if (leader->spec_wait > 0) {
        leader->spec_wait--;
    } else {
        char *text = strdup(leader->spec);
        leader->spec_wait = KELP_COORDINATOR_RETRY_MS / KELP_COORDINATOR_TICK_MS;
        leader->spec_under_way = text && submit(leader, KELP__TASK_SPEC, text) == KELP_OK;
    }
}

/* A fence value that nobody has written before. */
static void new_fence(struct kelp_leader *leader, struct kelp__leader_task *task)
{
    (void)snprintf(task->fence, sizeof(task->fence), "%" PRIx64 "-%" PRIx64 "-%" PRIu64,
                   leader->options.incarnation, leader->term, ++leader->fences);
}

kelp_status kelp_leader_read(struct kelp_leader *leader)
{
    return submit(leader, KELP__TASK_READ, NULL);
}

kelp_status kelp_leader_read_map(struct kelp_leader *leader)
{
    return submit(leader, KELP__TASK_READ_MAP, NULL);
}

kelp_status kelp_leader_write_plan(struct kelp_leader *leader, const char *plan)
{
    char *text = strdup(plan);
    return text ? submit(leader, KELP__TASK_PLAN, text) : KELP_ERR_NO_MEMORY;
}

kelp_status kelp_leader_write_map(struct kelp_leader *leader, const struct kelp_opening *opening)
{
    char *text = NULL;
    kelp_status status = kelp_map_print(opening->map, &text, NULL);
    struct kelp__leader_task *task = status == KELP_OK ? make(leader, KELP__TASK_MAP, text) : NULL;
    if (!task) {
        return KELP_ERR_NO_MEMORY;
    }
    task->gone = calloc((size_t)opening->gone_count + 1, sizeof(*task->gone));
    if (!task->gone) {
        free(task->text);
        free(task);
        return KELP_ERR_NO_MEMORY;
    }
    memcpy(task->gone, opening->gone, opening->gone_count * sizeof(*task->gone));
    task->gone_count = opening->gone_count;
    task->generation = opening->map->generation;
    if (opening->map->restore_version > 0) {
        kelp__manifest_key(leader, opening->map->restore_version, task->key);
        task->key_revision = opening->restored_revision;
    }
    new_fence(leader, task);
    return hand_in(task);
}

kelp_status kelp_leader_change_map(struct kelp_leader *leader, const struct kelp_map *map)
{
    char *text = NULL;
    kelp_status status = kelp_map_print(map, &text, NULL);
    return status == KELP_OK ? submit(leader, KELP__TASK_CHANGE, text) : status;
}

kelp_status kelp_leader_commit(struct kelp_leader *leader, const struct kelp_commit *commit)
{
    char *text = strdup(commit->manifest);
    struct kelp__leader_task *task = text ? make(leader, KELP__TASK_COMMIT, text) : NULL;
    if (!task) {
        return KELP_ERR_NO_MEMORY;
    }
    task->generation = commit->generation;
    task->election = commit->election;
    task->serial = commit->serial;
    kelp__manifest_key(leader, commit->version, task->key);
    return hand_in(task);
}

kelp_status kelp_leader_remove(struct kelp_leader *leader, uint64_t version)
{
    struct kelp__leader_task *task = make(leader, KELP__TASK_REMOVE, NULL);
    if (!task) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp__manifest_key(leader, version, task->key);
    new_fence(leader, task);
    return hand_in(task);
}

kelp_status kelp_leader_write_state(struct kelp_leader *leader, const struct kelp_job_state *state)
{
    char *text = NULL;
    kelp_status status = kelp_job_state_print(state, &text, NULL);
    return status == KELP_OK ? submit(leader, KELP__TASK_STATE, text) : status;
}

kelp_status kelp_leader_write_scale(struct kelp_leader *leader, const struct kelp_scale *scale)
{
    char *text = NULL;
    kelp_status status = kelp_scale_print(scale, &text, NULL);
    struct kelp__leader_task *task =
        status == KELP_OK ? make(leader, KELP__TASK_SCALE, text) : NULL;
    if (!task) {
        return KELP_ERR_NO_MEMORY;
    }
    task->found.scale = *scale;
    return hand_in(task);
}
