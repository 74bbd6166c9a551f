/* Links between processes: in order, until they break. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/replicas/replicas.h"

static struct replicas_link *link_of(struct replicas *world, uint64_t from, uint64_t to)
{
    return &world->links[from - 1][to - 1];
}

static void enqueue(struct replicas *world, struct replicas_link *link,
                    const struct replicas_message *message)
{
    if (link->count == REPLICAS_QUEUE) {
        replicas_fail(world, "what is under way is bounded");
    }
    struct replicas_message *copy = malloc(sizeof(*copy));
    if (!copy) {
        abort();
    }
    *copy = *message;
    link->queue[link->count++] = copy;
}

static bool is_of_copy(const struct replicas_message *message)
{
    return message->kind == REPLICAS_PIECE || message->kind == REPLICAS_COPY;
}

/* Some come twice, which streams do not do: what counts is what a message says. */
void replicas_send(struct replicas *world, uint64_t from, uint64_t to,
                   const struct replicas_message *message)
{
    struct replicas_link *link = link_of(world, from, to);

    if (!link->is_up) {
        return;
    }
    enqueue(world, link, message);
    if (!is_of_copy(message) && replicas_draw(world, 16) == 0) {
        enqueue(world, link, message);
    }
}

void replicas_stop_copy(struct replicas *world, uint64_t process)
{
    free(world->processes[process - 1].copying);
    world->processes[process - 1].copying = NULL;
}

void replicas_send_rest(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = &world->processes[process - 1];

    if (ours->copying) {
        replicas_send(world, process, ours->copying_to, ours->copying);
        replicas_stop_copy(world, process);
    }
}

static void take_forward(struct replicas *world, struct replicas_process *process,
                         struct replicas_message *message)
{
    struct kelp_forward forward = message->forward;

    forward.map_epoch = message->map_epoch;
    forward.sums = world->holds_control ? message->sums : NULL;
    forward.digest = message->digest;
    forward.handle =
        message->gradient == 0 ? KELP_HANDLE_NONE : replicas_new_gradient(world, message->gradient);
    if (kelp_partition_forwarded(process->partition, &forward, &process->actions) != KELP_OK) {
        abort();
    }
}

/* The shell of a joiner: pieces of one copy, told apart by what they are of. */
static void take_piece(struct replicas *world, struct replicas_process *process,
                       const struct replicas_message *message)
{
    (void)world;
    const struct kelp_copy_piece piece = {.generation = 1,
                                          .map_epoch = message->map_epoch,
                                          .held = message->state.held,
                                          .stream = 1,
                                          .is_first = message->kind == REPLICAS_PIECE};
    kelp_status status = kelp_partition_fill(process->partition, &piece, &process->actions);
    if (status != KELP_OK) {
        return;
    }
    if (message->kind == REPLICAS_PIECE) {
        process->filling = message->state.held + 1;
        memset(process->weights, 0, sizeof(process->weights));
    } else if (process->filling == message->state.held + 1) {
        process->filling = 0;
        memcpy(process->weights, message->weights, sizeof(process->weights));
        process->recorded = message->state.version; /* records travel with the copy */
        if (kelp_partition_filled(process->partition, &piece, &message->state, &process->actions) !=
            KELP_OK) {
            replicas_fail(world, "a copy fits");
        }
    }
}

static void take_message(struct replicas *world, struct replicas_process *process,
                         struct replicas_message *message)
{
    kelp_status status = KELP_OK;

    switch (message->kind) {
    case REPLICAS_FORWARD:
        take_forward(world, process, message);
        break;
    case REPLICAS_ASK:
        status = kelp_partition_asked(process->partition, 1, message->map_epoch, &process->actions);
        break;
    case REPLICAS_ACKNOWLEDGE:
        status = kelp_partition_acknowledged(process->partition, &message->said, &process->actions);
        break;
    case REPLICAS_PIECE:
    case REPLICAS_COPY:
        take_piece(world, process, message);
        break;
    }
    if (status != KELP_OK) {
        abort();
    }
}

void replicas_deliver(struct replicas *world, uint64_t from, uint64_t to)
{
    struct replicas_link *link = link_of(world, from, to);
    struct replicas_process *process = &world->processes[to - 1];

    if (link->count == 0) {
        return;
    }
    struct replicas_message *message = link->queue[0];
    link->count--;
    memmove(&link->queue[0], &link->queue[1], link->count * sizeof(struct replicas_message *));
    if (process->is_up) {
        take_message(world, process, message);
        replicas_run_actions(world, to);
    }
    free(message);
}

/* What was under way is lost; now and then some of it comes late, over the next link. */
static void lose(struct replicas *world, struct replicas_link *link)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < link->count; i++) {
        if (!is_of_copy(link->queue[i]) && replicas_draw(world, 8) == 0) {
            link->queue[kept++] = link->queue[i];
        } else {
            free(link->queue[i]);
        }
    }
    link->count = kept;
}

static void notice(struct replicas *world, uint64_t process, uint64_t peer, bool is_up)
{
    struct replicas_process *ours = &world->processes[process - 1];

    if (!ours->is_up) {
        return;
    }
    if (ours->copying && ours->copying_to == peer) {
        replicas_stop_copy(world, process);
    }
    const bool leads = replicas_view(world, process).place == KELP_REPLICA_PRIMARY;
    const bool follows = !leads && world->map[ours->known].primary == peer;
    if (follows) {
        ours->filling = 0;
    }
    if ((leads || follows) && kelp_partition_linked(ours->partition, leads ? peer : 0, is_up,
                                                    &ours->actions) != KELP_OK) {
        abort();
    }
    replicas_run_actions(world, process);
}

/* Both directions break together, and are up together. */
void replicas_link(struct replicas *world, uint64_t from, uint64_t to, bool is_up)
{
    if (!is_up) {
        lose(world, link_of(world, from, to));
        lose(world, link_of(world, to, from));
    }
    link_of(world, from, to)->is_up = is_up;
    link_of(world, to, from)->is_up = is_up;
    notice(world, from, to, is_up);
    notice(world, to, from, is_up);
}

void replicas_free_links(struct replicas *world)
{
    for (uint64_t from = 1; from <= REPLICAS_PROCESSES; from++) {
        for (uint64_t to = 1; to <= REPLICAS_PROCESSES; to++) {
            struct replicas_link *link = link_of(world, from, to);
            for (uint32_t i = 0; i < link->count; i++) {
                free(link->queue[i]);
            }
            link->count = 0;
        }
    }
}
