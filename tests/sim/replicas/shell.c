/* A process of the small world: the partition's actions, carried out on numbers for weights. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/replicas/replicas.h"

static void must(kelp_status status)
{
    if (status != KELP_OK) {
        abort(); /* no memory */
    }
}

static struct replicas_process *at(struct replicas *world, uint64_t process)
{
    return &world->processes[process - 1];
}

struct kelp_partition_view replicas_view(const struct replicas *world, uint64_t process)
{
    struct kelp_partition_view view;

    kelp_partition_view(world->processes[process - 1].partition, &view);
    return view;
}

/* ---- actions ---- */

static void forward(struct replicas *world, uint64_t from, const struct kelp_action *action)
{
    const struct kelp_forward *root = &action->forward.forward;
    struct replicas_message message = {
        .kind = REPLICAS_FORWARD, .map_epoch = root->map_epoch, .forward = *root};

    if (root->handle != KELP_HANDLE_NONE) {
        message.gradient = world->gradients[root->handle - 1];
    }
    if (root->sums) {
        memcpy(message.sums, root->sums, root->sum_count * sizeof(root->sums[0]));
    }
    memcpy(message.digest, root->digest, strlen(root->digest) + 1);
    replicas_send(world, from, action->forward.process, &message);
}

static void copy(struct replicas *world, uint64_t from, const struct kelp_action *action)
{
    struct replicas_message message = {
        .kind = REPLICAS_PIECE, .map_epoch = action->copy.map_epoch, .state = action->copy.state};

    memcpy(message.weights, at(world, from)->weights, sizeof(message.weights));
    replicas_send(world, from, action->copy.process, &message);
    replicas_stop_copy(world, from);
    at(world, from)->copying = malloc(sizeof(message));
    if (!at(world, from)->copying) {
        abort();
    }
    message.kind = REPLICAS_COPY;
    *at(world, from)->copying = message;
    at(world, from)->copying_to = action->copy.process;
}

static void answer(struct replicas *world, uint64_t process, const struct kelp_answer *answer)
{
    const uint64_t *weights = at(world, process)->weights;

    if (answer->status != KELP_OK || answer->is_share) {
        return;
    }
    uint64_t value = answer->send == KELP_WEIGHTS_OLDER ? weights[1] : weights[0];
    if (value != replicas_weights(world, answer->step)) {
        replicas_fail(world, "weights are those of the quiet run");
    }
    if (answer->step == world->other && world->other < world->steps) {
        world->other++; /* it had what it needed for its step */
    }
}

/* Each entry is recorded once by each process, with the figures of the quiet run. */
static void record(struct replicas *world, uint64_t process, const struct kelp_record *record)
{
    if (record->word.version != at(world, process)->recorded) {
        replicas_fail(world, "records come in order");
    }
    at(world, process)->recorded++;
}

static void run_action(struct replicas *world, uint64_t process, const struct kelp_action *action)
{
    struct replicas_process *ours = at(world, process);
    const uint64_t primary = world->map[ours->known].primary;
    struct replicas_message message = {.map_epoch = ours->known};

    switch (action->kind) {
    case KELP_ACTION_MEASURE:
    case KELP_ACTION_APPLY:
        ours->work = (struct replicas_work){.there = true, .action = *action};
        ours->work.gradient =
            action->apply.root == KELP_HANDLE_NONE ? 0 : world->gradients[action->apply.root - 1];
        break;
    case KELP_ACTION_REPEAT:
        ours->weights[1] = ours->weights[0];
        break;
    case KELP_ACTION_ANSWER:
        answer(world, process, &action->answer);
        break;
    case KELP_ACTION_RELEASE:
        if (world->gradients[action->release - 1] == 0) {
            replicas_fail(world, "a gradient is given back once");
        }
        world->gradients[action->release - 1] = 0;
        break;
    case KELP_ACTION_RECORD:
        record(world, process, &action->record);
        break;
    case KELP_ACTION_COMPARE:
        must(kelp_partition_compared(ours->partition, action->compare.token,
                                     &(struct kelp_content){.low = 1}, &ours->actions));
        break;
    case KELP_ACTION_FORWARD:
        forward(world, process, action);
        break;
    case KELP_ACTION_ASK:
        message.kind = REPLICAS_ASK;
        message.map_epoch = action->ask.map_epoch;
        replicas_send(world, process, action->ask.process, &message);
        break;
    case KELP_ACTION_ACKNOWLEDGE:
        message.kind = REPLICAS_ACKNOWLEDGE;
        message.said = action->acknowledge;
        message.said.process = process;
        replicas_send(world, process, primary, &message);
        break;
    case KELP_ACTION_WANT_COPY:
        ours->wants_copy = action->copy.process;
        break;
    case KELP_ACTION_COPY:
        copy(world, process, action);
        break;
    case KELP_ACTION_IN_SYNC:
        if (action->in_sync.process == world->map[action->in_sync.map_epoch].joiner) {
            world->map[action->in_sync.map_epoch].in_sync = true;
        }
        break;
    case KELP_ACTION_REFUSE: /* workers send again */
        break;
    case KELP_ACTION_DIVERGES:
        replicas_fail(world, "a follower has its primary's state");
    case KELP_ACTION_DIFFERS:
        replicas_fail(world, "replicas compute the same");
    case KELP_ACTION_CONFLICT:
        replicas_fail(world, "honest workers do not differ");
    case KELP_ACTION_MERGE:
    case KELP_ACTION_GIVE_UP:
    case KELP_ACTION_SNAPSHOT:
    case KELP_ACTION_PAST:
    case KELP_ACTION_OFFER:
        replicas_fail(world, "nobody asked for this action");
    }
}

/* What workers may see of it: `held`, or nothing. */
static bool shows(const struct kelp_partition_view *view)
{
    return view->place == KELP_REPLICA_PRIMARY &&
           (view->phase == KELP_PARTITION_COLLECTING || view->phase == KELP_PARTITION_MEASURING ||
            view->phase == KELP_PARTITION_DECIDING || view->phase == KELP_PARTITION_APPLYING);
}

void replicas_run_actions(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = at(world, process);

    for (size_t i = 0; i < ours->actions.count; i++) {
        const struct kelp_action action = ours->actions.items[i]; /* the list may move */
        run_action(world, process, &action);
    }
    ours->actions.count = 0;
    struct kelp_partition_view view = replicas_view(world, process);
    if (world->trace) {
        (void)printf("  process %llu: epoch %llu phase %d held %llu step %llu\n",
                     (unsigned long long)process, (unsigned long long)view.map_epoch,
                     (int)view.phase, (unsigned long long)view.held, (unsigned long long)view.step);
    }
    if (shows(&view) && view.held > world->shown) {
        if (world->map[view.map_epoch].primary != process) {
            replicas_fail(world, "one process in an epoch makes versions visible");
        }
        world->shown = view.held;
    }
}

/* ---- work that takes time ---- */

static void apply(struct replicas *world, uint64_t process, const struct replicas_work *work)
{
    struct replicas_process *ours = at(world, process);
    const uint64_t step = work->action.apply.word.step;

    if (work->gradient != replicas_gradient(step) ||
        ours->weights[0] != replicas_weights(world, step)) {
        replicas_fail(world, "a root is applied to its own state");
    }
    if (world->decides && replicas_skips(world, step)) {
        replicas_fail(world, "what was decided is done");
    }
    ours->weights[1] = ours->weights[0];
    ours->weights[0] = replicas_weights(world, step + 1);
    if (work->action.apply.wants_digest) {
        kelp_partition_digested(ours->partition, work->action.apply.token,
                                &(struct kelp_content){.low = ours->weights[0], .high = 1});
    }
    must(kelp_partition_applied(ours->partition, work->action.apply.token, true, &ours->actions));
}

void replicas_finish_work(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = at(world, process);
    const struct replicas_work work = ours->work;

    ours->work.there = false;
    if (work.action.kind == KELP_ACTION_APPLY) {
        apply(world, process, &work);
    } else {
        const struct kelp_decision_share share = {.count = 1,
                                                  .values = {[KELP_DECISION_SHARE_FINITE] = 1.0}};
        must(kelp_partition_measured(ours->partition, work.action.apply.token, &share,
                                     &ours->actions));
    }
    replicas_run_actions(world, process);
}

/* ---- life, and the map ---- */

static struct kelp_replica_entry seen_by(const struct replicas *world, uint64_t process,
                                         uint64_t epoch)
{
    const struct replicas_entry *entry = &world->map[epoch];
    struct kelp_replica_entry seen = {.map_epoch = epoch,
                                      .place = entry->primary == process  ? KELP_REPLICA_PRIMARY
                                               : entry->backup == process ? KELP_REPLICA_BACKUP
                                               : entry->joiner == process ? KELP_REPLICA_JOINER
                                                                          : KELP_REPLICA_NOBODY};
    if (seen.place == KELP_REPLICA_PRIMARY) {
        seen.backup = entry->backup;
        seen.joiner = entry->joiner;
    }
    return seen;
}

void replicas_start(struct replicas *world, uint64_t process, enum kelp_replica_place place)
{
    struct replicas_process *ours = at(world, process);
    const struct kelp_replica_entry seen = seen_by(world, process, ours->known);
    const struct kelp_partition_start start = {.generation = 1,
                                               .map_epoch = ours->known,
                                               .place = place,
                                               .backup = seen.backup,
                                               .joiner = seen.joiner};

    ours->weights[0] = place == KELP_REPLICA_JOINER ? 0 : replicas_weights(world, 0);
    ours->weights[1] = 0;
    ours->recorded = 0;
    kelp_partition_load(ours->partition, &start);
}

static void name_links(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = at(world, process);
    const bool leads = replicas_view(world, process).place == KELP_REPLICA_PRIMARY;

    for (uint64_t peer = 1; peer <= REPLICAS_PROCESSES; peer++) {
        if (peer != process && world->links[process - 1][peer - 1].is_up &&
            (leads || world->map[ours->known].primary == peer)) {
            must(kelp_partition_linked(ours->partition, leads ? peer : 0, true, &ours->actions));
        }
    }
}

void replicas_learn(struct replicas *world, uint64_t process, uint64_t epoch)
{
    struct replicas_process *ours = at(world, process);
    const struct kelp_replica_entry seen = seen_by(world, process, epoch);

    if (!ours->is_up || epoch <= ours->known) {
        return;
    }
    ours->known = epoch;
    ours->wants_copy = 0;
    ours->filling = 0;
    ours->told_step = 0;
    replicas_stop_copy(world, process);
    if (replicas_view(world, process).phase == KELP_PARTITION_ABSENT) {
        if (seen.place == KELP_REPLICA_NOBODY) {
            return;
        }
        if (seen.place != KELP_REPLICA_JOINER) {
            replicas_fail(world, "only who has the state gets another place");
        }
        replicas_start(world, process, KELP_REPLICA_JOINER);
        name_links(world, process);
    } else {
        must(kelp_partition_enter(ours->partition, &seen, &ours->actions));
        if (seen.place == KELP_REPLICA_NOBODY) {
            ours->work.there = false;
        }
    }
    replicas_run_actions(world, process);
}

void replicas_kill(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = at(world, process);

    if (!ours->is_up) {
        return;
    }
    if (world->trace) {
        (void)printf("process %llu dies\n", (unsigned long long)process);
    }
    must(kelp_partition_unload(ours->partition, KELP_ERR_CLOSED, &ours->actions));
    replicas_run_actions(world, process);
    ours->is_up = false;
    replicas_stop_copy(world, process);
    for (uint64_t peer = 1; peer <= REPLICAS_PROCESSES; peer++) {
        if (peer != process) {
            replicas_link(world, process, peer, false);
        }
    }
}
