/* Snapshots of a simulated shard (ps/service/snapshot.c, ps/shard/snapshot_thread.c): the
 * product's core decides, a thread that does one thing at a time writes to the virtual disk. */
#include "tests/sim/processes/shard_snapshot.h"

#include <string.h>

#include "tests/sim/faults.h"
#include "tests/sim/invariants.h"
#include "tests/sim/processes/shard_control.h"

static void pump(struct sim_shard *shard);

/* ---- what follows ---- */

void sim_snapshot_say(struct sim_shard *shard, const struct kelp_snapshot_view *view)
{
    sim_say(shard->sim, shard->process, "snapshot of step %llu is %s %s",
            (unsigned long long)view->order.step, kelp_snapshot_state_name(view->state),
            view->error);
    if (view->state == KELP_SNAPSHOT_DURABLE) {
        sim_faults_durable(shard->sim, shard->process);
    }
}

static void begin(struct sim_shard *shard, const struct kelp_snapshot_order *order)
{
    struct sim_writer *writer = &shard->writer;
    sim_say(shard->sim, shard->process, "is ordered a snapshot of step %llu into %s",
            (unsigned long long)order->step, shard->folder);
    kelp_snapshot_work_begin(&writer->work, order->serial);
    memcpy(writer->folder, shard->folder, sizeof(writer->folder));
    shard->order = *order;
}

void sim_snapshot_act(struct sim_shard *shard, const struct kelp_snapshot_action *action)
{
    switch (action->kind) {
    case KELP_SNAPSHOT_DO_DISCARD:
        kelp_snapshot_work_discard(&shard->writer.work, action->ticket);
        break;
    case KELP_SNAPSHOT_DO_ORDER:
        begin(shard, &action->order);
        break;
    case KELP_SNAPSHOT_DO_WRITE:
        kelp_snapshot_work_want(&shard->writer.work, action->ticket, KELP_SNAPSHOT_JOB_WRITE,
                                action->partition);
        break;
    case KELP_SNAPSHOT_DO_SYNC:
        kelp_snapshot_work_want(&shard->writer.work, action->ticket, KELP_SNAPSHOT_JOB_SYNC, 0);
        break;
    case KELP_SNAPSHOT_DO_REPORT: /* turned into KELP_SHARD_DO_REPORT */
        break;
    }
    pump(shard);
}

void sim_snapshot_hand_out(struct sim_shard *shard, const uint32_t *partitions, uint32_t count)
{
    struct kelp_snapshot_order order = shard->order;
    shard->order.serial = 0;
    if (order.serial != 0 && shard->hosting) {
        sim_hosting_snapshot(shard->hosting, &order, partitions, count);
    }
}

/* ---- events ---- */

bool sim_snapshot_taken(struct sim_shard *shard, uint64_t ticket, uint32_t partition,
                        const struct kelp_control_word *word)
{
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_SNAPSHOT_TAKEN,
        .snapshot = {.ticket = ticket, .partition = partition, .word = word}};
    if (sim_control_apply(shard, &event) != KELP_OK) {
        return false;
    }
    struct kelp_shard_control_view view;
    kelp_shard_control_view(shard->control, &view);
    sim_invariants_kept(shard->process, &view.snapshot.order, partition);
    return true;
}

void sim_snapshot_past(struct sim_shard *shard, uint64_t ticket, uint64_t step)
{
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_SNAPSHOT_PAST,
                                     .snapshot = {.ticket = ticket, .step = step}};
    (void)sim_control_apply(shard, &event);
}

static void failed(struct sim_shard *shard, uint64_t ticket, kelp_status status)
{
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_SNAPSHOT_FAILED,
        .snapshot = {.ticket = ticket, .status = status, .text = kelp_status_text(status)}};
    if (shard->writer.storage != 0) {
        sim_storage_remove(shard->sim, shard->writer.storage);
        shard->writer.storage = 0;
    }
    (void)sim_control_apply(shard, &event);
}

/* ---- the thread ---- */

static void write_part(struct sim_shard *shard, uint64_t ticket, uint32_t partition)
{
    struct sim *sim = shard->sim;
    struct sim_writer *writer = &shard->writer;
    struct sim_hosted *hosted = shard->hosting ? &shard->hosting->hosted[partition] : NULL;
    if (writer->storage == 0) {
        char name[SIM_NAME_MAX + 1];
        (void)snprintf(name, sizeof(name), "%s.%016llx", shard->process->id,
                       (unsigned long long)shard->process->incarnation);
        writer->storage = sim_storage_begin(sim, shard->process, writer->folder, name);
        writer->storage_ticket = ticket;
    }
    if (!hosted || hosted->capture_ticket != ticket) {
        failed(shard, ticket, KELP_ERR_NOT_FOUND);
        return;
    }
    kelp_status status = sim_storage_write(sim, writer->storage, partition, &hosted->capture);
    hosted->capture_ticket = 0;
    if (status != KELP_OK) {
        failed(shard, ticket, status);
        return;
    }
    struct kelp_shard_event event = {
        .kind = KELP_SHARD_ON_SNAPSHOT_WRITTEN,
        .snapshot = {.ticket = ticket,
                     .partition = partition,
                     .digest = hosted->capture.digest,
                     .bytes = hosted->range.count * 2 * sizeof(float)}};
    (void)sim_control_apply(shard, &event);
}

/* False: there is more of it to do. */
static bool sync_more(struct sim_shard *shard, uint64_t ticket)
{
    struct sim_writer *writer = &shard->writer;
    struct kelp_shard_event event = {.kind = KELP_SHARD_ON_SNAPSHOT_SYNCED,
                                     .snapshot = {.ticket = ticket}};
    uint32_t storage = writer->storage;
    bool durable = false;
    kelp_status status = sim_storage_finish(shard->sim, storage, &durable);
    if (status != KELP_OK) {
        failed(shard, ticket, status);
        return true;
    }
    if (!durable) {
        return false;
    }
    writer->storage = 0;
    if (sim_control_apply(shard, &event) != KELP_OK) {
        sim_storage_remove(shard->sim, storage);
    }
    return true;
}

static void job_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number);

static void start_job(struct sim_shard *shard)
{
    shard->writer.busy = true;
    sim_after(shard->sim, sim_draw(shard->sim, shard->sim->profile.disk_us),
              &(struct sim_call){.process = shard->process, .run = job_done});
}

static void job_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    const struct kelp_snapshot_task *task = &shard->writer.task;
    (void)sim;
    (void)data;
    (void)number;
    if (task->job == KELP_SNAPSHOT_JOB_WRITE) {
        write_part(shard, task->ticket, task->partition);
    } else if (!sync_more(shard, task->ticket)) {
        start_job(shard);
        return;
    }
    shard->writer.busy = false;
    pump(shard);
    sim_shard_end_turn(shard);
}

/* The thread looks for its next task. */
static void pump(struct sim_shard *shard)
{
    struct sim_writer *writer = &shard->writer;
    while (!writer->busy && kelp_snapshot_work_next(&writer->work, &writer->task)) {
        if (writer->storage != 0 && writer->storage_ticket <= writer->task.discard) {
            sim_storage_remove(shard->sim, writer->storage);
            writer->storage = 0;
        }
        if (writer->task.job == KELP_SNAPSHOT_JOB_WRITE ||
            writer->task.job == KELP_SNAPSHOT_JOB_SYNC) {
            start_job(shard);
        }
    }
}

/* ---- reports ---- */

void sim_snapshot_report(const struct sim_shard *shard, const struct kelp_snapshot_view *view,
                         struct sim_snapshot_report *ret_report)
{
    *ret_report = (struct sim_snapshot_report){.serial = view->order.serial,
                                               .state = view->state,
                                               .step = view->order.step,
                                               .current_step = view->step,
                                               .part_count = view->part_count,
                                               .has_word = view->has_word,
                                               .word = view->word};
    (void)snprintf(ret_report->error, sizeof(ret_report->error), "%s", view->error);
    (void)snprintf(ret_report->storage, sizeof(ret_report->storage), "%s.%016llx",
                   shard->process->id, (unsigned long long)shard->process->incarnation);
    for (uint32_t i = 0; i < view->part_count; i++) {
        ret_report->parts[i] = view->parts[i];
    }
}
