/* Snapshots of a simulated shard (ps/service/service_snapshot.c, ps/shard/snapshot_thread.c): the
 * real kelp_snapshot decides, a thread that does one thing at a time writes to the virtual disk. */
#include "tests/sim/shard_snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/faults.h"
#include "tests/sim/invariants.h"
#include "tests/sim/shard_control.h"

static void pump(struct sim_shard *shard);

/* ---- what follows ------------------------------------------------------------------------------
 */

static void discard(struct sim_shard *shard, uint64_t ticket)
{
    struct sim_writer *writer = &shard->writer;
    if (writer->discarded < ticket) {
        writer->discarded = ticket;
    }
    if (writer->ticket <= ticket) {
        writer->job = SIM_JOB_NONE;
    }
    pump(shard);
}

static void want(struct sim_shard *shard, uint64_t ticket, enum sim_writer_job job,
                 uint32_t partition)
{
    struct sim_writer *writer = &shard->writer;
    if (writer->ticket == ticket && writer->discarded < ticket) {
        writer->job = job;
        writer->partition = partition;
        pump(shard);
    }
}

static void say_state(struct sim_shard *shard)
{
    struct kelp_snapshot_view view;
    kelp_snapshot_view(shard->snapshot, &view);
    sim_say(shard->sim, shard->process, "snapshot of step %llu is %s %s",
            (unsigned long long)view.order.step, kelp_snapshot_state_name(view.state), view.error);
    if (view.state == KELP_SNAPSHOT_DURABLE) {
        sim_faults_durable(shard->sim, shard->process);
    }
}

static struct kelp_snapshot_order carry_out(struct sim_shard *shard,
                                            const struct kelp_snapshot_actions *actions)
{
    struct kelp_snapshot_order order = {.serial = 0};
    for (uint32_t i = 0; i < actions->count; i++) {
        const struct kelp_snapshot_action *action = &actions->items[i];
        switch (action->kind) {
        case KELP_SNAPSHOT_DO_DISCARD:
            discard(shard, action->ticket);
            break;
        case KELP_SNAPSHOT_DO_ORDER:
            order = action->order;
            break;
        case KELP_SNAPSHOT_DO_WRITE:
            want(shard, action->ticket, SIM_JOB_WRITE, action->partition);
            break;
        case KELP_SNAPSHOT_DO_SYNC:
            want(shard, action->ticket, SIM_JOB_SYNC, 0);
            break;
        case KELP_SNAPSHOT_DO_REPORT:
            say_state(shard);
            sim_shard_report_all(shard);
            break;
        }
    }
    return order;
}

/* ---- orders and events -------------------------------------------------------------------------
 */

void sim_snapshot_order(struct sim_shard *shard, const struct kelp_snapshot_order *order,
                        const char *folder)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    struct sim_writer *writer = &shard->writer;
    if (kelp_snapshot_order(shard->snapshot, order, &actions) != KELP_OK) {
        return;
    }
    struct kelp_snapshot_order hand_out = carry_out(shard, &actions);
    if (hand_out.serial == 0) {
        return;
    }
    sim_say(shard->sim, shard->process, "is ordered a snapshot of step %llu into %s",
            (unsigned long long)order->step, folder);
    writer->ticket = hand_out.serial;
    writer->discarded = hand_out.serial - 1;
    writer->job = SIM_JOB_NONE;
    (void)snprintf(writer->folder, sizeof(writer->folder), "%s", folder);
    if (shard->hosting) {
        sim_hosting_snapshot(shard->hosting, &hand_out);
    }
}

void sim_snapshot_give_up(struct sim_shard *shard, const struct kelp_snapshot_order *order)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    kelp_snapshot_give_up(shard->snapshot, order->generation, order->serial, &actions);
    (void)carry_out(shard, &actions);
}

void sim_snapshot_cancel(struct sim_shard *shard)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    kelp_snapshot_cancel(shard->snapshot, KELP_ERR_OLD_GENERATION,
                         "a newer generation is being loaded", &actions);
    (void)carry_out(shard, &actions);
}

void sim_snapshot_generation(struct sim_shard *shard)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    uint32_t partitions[SIM_PARTITIONS_MAX];
    for (uint32_t i = 0; i < shard->hosting->count; i++) {
        partitions[i] = shard->hosting->hosted[i].index;
    }
    kelp_snapshot_generation(shard->snapshot, shard->hosting->generation, partitions,
                             shard->hosting->count, &actions);
    (void)carry_out(shard, &actions);
}

bool sim_snapshot_taken(struct sim_shard *shard, uint64_t ticket, uint32_t partition,
                        const struct kelp_control_word *word)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    bool wanted = kelp_snapshot_taken(shard->snapshot, ticket, partition, word, &actions);
    (void)carry_out(shard, &actions);
    return wanted;
}

void sim_snapshot_past(struct sim_shard *shard, uint64_t ticket, uint64_t step)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    kelp_snapshot_past(shard->snapshot, ticket, step, &actions);
    (void)carry_out(shard, &actions);
}

static void failed(struct sim_shard *shard, uint64_t ticket, kelp_status status)
{
    struct kelp_snapshot_actions actions = {.count = 0};
    if (shard->writer.storage != 0) {
        sim_storage_remove(shard->sim, shard->writer.storage);
        shard->writer.storage = 0;
    }
    kelp_snapshot_failed(shard->snapshot, ticket, status, kelp_status_text(status), &actions);
    (void)carry_out(shard, &actions);
}

/* ---- the thread --------------------------------------------------------------------------------
 */

static void write_part(struct sim_shard *shard, uint64_t ticket, uint32_t partition)
{
    struct sim *sim = shard->sim;
    struct sim_writer *writer = &shard->writer;
    struct sim_hosted *hosted = shard->hosting ? shard->hosting->by_index[partition] : NULL;
    struct kelp_snapshot_actions actions = {.count = 0};
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
    kelp_snapshot_written(shard->snapshot, ticket, partition, hosted->capture.digest,
                          hosted->range.count * 2 * sizeof(float), &actions);
    (void)carry_out(shard, &actions);
}

/* False: there is more of it to do. */
static bool sync_more(struct sim_shard *shard, uint64_t ticket)
{
    struct sim_writer *writer = &shard->writer;
    struct kelp_snapshot_actions actions = {.count = 0};
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
    bool wanted = kelp_snapshot_synced(shard->snapshot, ticket, &actions);
    (void)carry_out(shard, &actions);
    if (!wanted) {
        sim_storage_remove(shard->sim, storage);
    }
    return true;
}

/* What was begun is done. number: the ticket. */
static void job_done(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_shard *shard = sim_shard_of(process);
    struct sim_writer *writer = &shard->writer;
    bool again = false;
    (void)data;
    writer->busy = false;
    if (writer->doing == SIM_JOB_WRITE) {
        write_part(shard, number, writer->doing_partition);
    } else if (!sync_more(shard, number)) {
        writer->busy = true;
        again = true;
    }
    if (again) {
        sim_after(sim, sim_draw(sim, sim->profile.disk_us),
                  &(struct sim_call){.process = process, .run = job_done, .number = number});
        return;
    }
    pump(shard);
    sim_shard_end_turn(shard);
}

static void pump(struct sim_shard *shard)
{
    struct sim_writer *writer = &shard->writer;
    if (writer->busy) {
        return;
    }
    if (writer->storage != 0 && writer->storage_ticket <= writer->discarded) {
        sim_storage_remove(shard->sim, writer->storage);
        writer->storage = 0;
    }
    if (writer->job == SIM_JOB_NONE) {
        return;
    }
    writer->busy = true;
    writer->doing = writer->job;
    writer->doing_partition = writer->partition;
    writer->job = SIM_JOB_NONE;
    sim_after(
        shard->sim, sim_draw(shard->sim, shard->sim->profile.disk_us),
        &(struct sim_call){.process = shard->process, .run = job_done, .number = writer->ticket});
}

void sim_snapshot_open(struct sim_shard *shard)
{
    if (kelp_snapshot_create(&shard->snapshot, NULL) != KELP_OK) {
        abort();
    }
    sim_storage_remove_leftovers(shard->sim, shard->process->id);
}

void sim_snapshot_close(struct sim_shard *shard)
{
    kelp_snapshot_destroy(shard->snapshot);
}

/* ---- reports -----------------------------------------------------------------------------------
 */

void sim_snapshot_report(const struct sim_shard *shard, struct sim_snapshot_report *ret_report)
{
    struct kelp_snapshot_view view;
    kelp_snapshot_view(shard->snapshot, &view);
    *ret_report = (struct sim_snapshot_report){.serial = view.order.serial,
                                               .state = view.state,
                                               .step = view.order.step,
                                               .current_step = view.step,
                                               .part_count = view.part_count,
                                               .has_word = view.has_word,
                                               .word = view.word};
    (void)snprintf(ret_report->error, sizeof(ret_report->error), "%s", view.error);
    (void)snprintf(ret_report->storage, sizeof(ret_report->storage), "%s.%016llx",
                   shard->process->id, (unsigned long long)shard->process->incarnation);
    for (uint32_t i = 0; i < view.part_count; i++) {
        ret_report->parts[i] = view.parts[i];
    }
}
