/* A simulated worker's messages to shards: what the stepper says, as a sim_request. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/processes/shard.h"
#include "tests/sim/processes/worker.h"

#define AGAIN_US SIM_SECOND /* several times the longest delay before it is sent again */

static void put_pushes(struct sim_worker *worker, const struct kelp_stepper_message *message,
                       struct sim_request *request)
{
    request->pushes = sim_alloc((message->push_count + 1) * sizeof(*request->pushes));
    for (size_t i = 0; i < message->push_count; i++) {
        const struct kelp_stepper_push *push = &message->pushes[i];
        struct sim_node *node = push->node->content;
        node->refs++;
        node->sent = true;
        worker->refused[push->partition].number = 0;
        request->pushes[request->push_count++] = (struct sim_push){
            .partition = push->partition, .map_epoch = push->map_epoch, .node = node};
    }
}

static void put_shares(const struct kelp_stepper_message *message, struct sim_request *request)
{
    request->shares = sim_alloc((message->share_count + 1) * sizeof(*request->shares));
    for (size_t i = 0; i < message->share_count; i++) {
        const struct kelp_stepper_share *share = &message->shares[i];
        request->shares[request->share_count++] = (struct sim_share_push){
            .partition = share->partition, .map_epoch = share->map_epoch, .share = *share->share};
    }
}

static void put_pulls(const struct kelp_stepper_message *message, struct sim_request *request)
{
    request->pulls = sim_alloc((message->pull_count + 1) * sizeof(*request->pulls));
    for (size_t i = 0; i < message->pull_count; i++) {
        request->pulls[request->pull_count++] = (struct sim_pull){
            .map_epoch = message->pulls[i].map_epoch, .pull = message->pulls[i].pull};
    }
}

void sim_worker_send(struct sim_worker *worker, const struct kelp_stepper_message *message)
{
    const struct sim_worker_link *link = &worker->links[message->link];
    if (link->stream == 0) {
        return;
    }
    struct sim_request *request = sim_message_create(SIM_REQUEST, sizeof(*request));
    request->generation = message->generation;
    request->helps = message->helps;
    request->rank = sim_mix(worker->process->place + 1);
    request->author = worker->process->place + 1;
    request->has_word = message->has_word;
    if (message->has_word) {
        request->word = message->word;
        request->decision.count = message->decision.count;
        for (size_t i = 0; i < message->decision.count; i++) {
            request->decision.values[i] = message->decision.values[i];
        }
    }
    put_pushes(worker, message, request);
    put_shares(message, request);
    put_pulls(message, request);
    sim_stream_send(worker->sim, link->stream, SIM_CLIENT, request);
}

/* ---- what was refused ------------------------------------------------------------------------ */

/* number: of the refusal * SIM_PARTITIONS_MAX + the partition. */
static void check_refused(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    const uint32_t partition = (uint32_t)(number % SIM_PARTITIONS_MAX);
    const struct sim_refused *refused = &worker->refused[partition];
    struct kelp_stepper_view view;
    uint32_t link;
    uint64_t map_epoch;
    (void)data;
    kelp_stepper_view(worker->stepper, &view);
    if (refused->number != number / SIM_PARTITIONS_MAX || !view.working ||
        view.generation != refused->generation || view.word.version != refused->version) {
        return;
    }
    kelp_stepper_route(worker->stepper, partition, &link, &map_epoch);
    /* A shard that is away hears it later; who has begun the version anew computes it first. */
    if (worker->links[link].stream != 0 && !worker->computing) {
        sim_fail(sim, "what was refused is sent again",
                 "%s has not sent its part of version %llu to partition %u again", process->id,
                 (unsigned long long)refused->version, partition);
    }
    sim_after(sim, AGAIN_US,
              &(struct sim_call){.process = process, .run = check_refused, .number = number});
}

void sim_worker_refused(struct sim_worker *worker, const struct sim_reply *reply,
                        const struct sim_refusal *refusal)
{
    const uint32_t partition = refusal->partition;
    const kelp_status status = refusal->core.status;
    const bool is_lie = worker->process->index == 0 && partition == worker->sim->lie.partition &&
                        worker->sim->lie.told &&
                        !worker->sim->lie.apart; /* perhaps: not sent again */
    if (is_lie || worker->refused[partition].number != 0 ||
        (status != KELP_ERR_BUSY && status != KELP_ERR_NOT_PRIMARY)) {
        return;
    }
    worker->refused[partition] = (struct sim_refused){.number = ++worker->refused_count,
                                                      .generation = reply->generation,
                                                      .version = refusal->core.version};
    sim_after(worker->sim, AGAIN_US,
              &(struct sim_call){.process = worker->process,
                                 .run = check_refused,
                                 .number = worker->refused_count * SIM_PARTITIONS_MAX + partition});
}

/* ---- lies ------------------------------------------------------------------------------------ */

struct lie {
    struct kelp_control_word word;
    uint64_t generation;
    struct sim_node *node; /* a reference */
};

static void drop_lie(void *data)
{
    struct lie *lie = data;
    sim_node_unref(lie->node);
    free(lie);
}

/* Takes the lie. False: its stream has ended meanwhile, or a newer map came. */
static bool send_lie(struct sim_worker *worker, struct lie *lie)
{
    struct sim *sim = worker->sim;
    const struct sim_process *process = worker->process;
    struct kelp_stepper_view view;
    uint32_t link;
    uint64_t map_epoch;
    kelp_stepper_view(worker->stepper, &view);
    kelp_stepper_route(worker->stepper, sim->lie.partition, &link, &map_epoch);
    const uint64_t stream = worker->links[link].stream;
    if (stream == 0 || view.generation != lie->generation) {
        drop_lie(lie);
        return false;
    }
    struct sim_request *request = sim_message_create(SIM_REQUEST, sizeof(*request));
    request->helps = view.spare; /* as it said before */
    request->rank = sim_mix(process->place + 1);
    request->generation = lie->generation;
    request->author = process->place + 1;
    request->has_word = true;
    request->word = lie->word;
    request->push_count = 1;
    request->pushes = sim_alloc(sizeof(*request->pushes));
    request->pushes[0] = (struct sim_push){
        .partition = sim->lie.partition, .map_epoch = map_epoch, .node = lie->node};
    sim_stream_send(sim, stream, SIM_CLIENT, request);
    free(lie);
    sim->lie.told = true;
    sim->counts[SIM_COUNT_LIE]++;
    sim_say(sim, process, "lies to partition %u about lanes [%u, +%u)%s", sim->lie.partition,
            sim->lie.lane_first, sim->lie.lane_count, sim->lie.about_word ? ": the word" : "");
    return true;
}

static void tell_lie(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    (void)sim;
    (void)number;
    (void)send_lie(sim_worker_of(process), data); /* else it waits in vain */
}

static struct lie *make_lie(struct sim_worker *worker, const struct kelp_control_word *word,
                            uint64_t generation)
{
    struct sim *sim = worker->sim;
    struct lie *lie = sim_alloc(sizeof(*lie));
    *lie = (struct lie){.word = *word, .generation = generation};
    lie->node = sim_model_node(sim, word, worker->weights[worker->current], sim->lie.lane_first,
                               sim->lie.lane_count);
    lie->node->is_lie = true;
    for (size_t i = 0; i < SIM_FLAT_MAX && !sim->lie.about_word; i++) {
        lie->node->values[i] += 1.0f;
    }
    return lie;
}

/* What partition 0 of that generation says with a pull: here nobody waits for the answer. */
static bool find_word(struct sim *sim, uint64_t generation, struct kelp_control_word *ret_word)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        const struct sim_process *process = &sim->processes[i];
        if (process->role != SIM_SHARD || process->incarnation == 0) {
            continue;
        }
        const struct sim_hosting *hosting = sim_shard_of(process)->hosting;
        uint32_t partitions[SIM_PARTITIONS_MAX];
        struct kelp_partition_view view;
        if (hosting && hosting->generation == generation &&
            sim_hosting_led(hosting, partitions, &view).word) {
            *ret_word = view.word;
            return view.has_word;
        }
    }
    return false;
}

/* number: of the generation. */
static void rush(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_worker *worker = sim_worker_of(process);
    struct kelp_control_word word;
    (void)data;
    if (!find_word(sim, number, &word) || word.kind == KELP_STEP_FINISH ||
        word.kind == KELP_STEP_DONE || !send_lie(worker, make_lie(worker, &word, number))) {
        return;
    }
    if (--sim->lie.pushes > 0) {
        sim_after(sim, sim->lie.gap_us,
                  &(struct sim_call){.process = process, .run = rush, .number = number});
    }
}

void sim_worker_lie(struct sim_worker *worker, const struct kelp_control_word *word)
{
    struct sim *sim = worker->sim;
    struct sim_lie *plan = &sim->lie;
    if (!plan->planned || worker->process->index != 0 || word->kind != KELP_STEP_TRAIN ||
        word->step != plan->step) {
        return;
    }
    plan->planned = false;
    struct kelp_stepper_view view;
    kelp_stepper_view(worker->stepper, &view);
    if (plan->rushes) {
        sim_after(
            sim, plan->delay_us,
            &(struct sim_call){.process = worker->process, .run = rush, .number = view.generation});
        return;
    }
    struct lie *lie = make_lie(worker, word, view.generation);
    lie->word.lr *= plan->about_word ? 2 : 1;
    sim_after(sim, plan->delay_us,
              &(struct sim_call){
                  .process = worker->process, .run = tell_lie, .data = lie, .drop = drop_lie});
}
