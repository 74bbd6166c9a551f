#include "tests/sim/world.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *const sim_count_names[SIM_COUNT_COUNT] = {
    [SIM_COUNT_CRASH_WORKER] = "workers killed",
    [SIM_COUNT_ASKED_WORKER] = "workers asked to end",
    [SIM_COUNT_ASKED_SHARD] = "shards asked to end",
    [SIM_COUNT_CRASH_SHARD] = "shards killed",
    [SIM_COUNT_CRASH_COORDINATOR] = "coordinators killed",
    [SIM_COUNT_PAUSE] = "processes stopped for a while",
    [SIM_COUNT_POWER_HOST] = "power losses of a host",
    [SIM_COUNT_POWER_ALL] = "power losses of everything",
    [SIM_COUNT_SPLIT] = "network splits",
    [SIM_COUNT_CUT] = "one-way cuts between two processes",
    [SIM_COUNT_ETCD_DOWN] = "times etcd was away",
    [SIM_COUNT_STREAM_BROKEN] = "streams broken",
    [SIM_COUNT_MESSAGE_LOST] = "messages lost",
    [SIM_COUNT_MESSAGE_LATE] = "messages late",
    [SIM_COUNT_MESSAGE_DOUBLED] = "messages doubled",
    [SIM_COUNT_ETCD_REQUEST_LOST] = "requests to etcd lost",
    [SIM_COUNT_ETCD_ANSWER_LOST] = "answers of etcd lost",
    [SIM_COUNT_ETCD_REQUEST_LATE] = "requests to etcd applied late",
    [SIM_COUNT_DISK_FAILED] = "errors of the disk",
    [SIM_COUNT_FILE_TORN] = "files torn",
    [SIM_COUNT_BIT_FLIPPED] = "bits flipped on disk",
    [SIM_COUNT_STORAGE_AWAY] = "times storage was not there yet",
    [SIM_COUNT_LIE] = "lies of a worker",
    [SIM_COUNT_GENERATION] = "generations opened",
    [SIM_COUNT_RESTORE] = "of these from a checkpoint",
    [SIM_COUNT_LEADER] = "coordinators elected",
    [SIM_COUNT_DEPOSED] = "coordinators deposed",
    [SIM_COUNT_COPY] = "copies of a partition to a joiner",
    [SIM_COUNT_STEP] = "training steps",
    [SIM_COUNT_STEP_AGAIN] = "of these computed again",
    [SIM_COUNT_SKIPPED] = "of these skipped",
    [SIM_COUNT_PAUSED] = "times the job was to rest",
    [SIM_COUNT_SCALED] = "times another size was asked for",
    [SIM_COUNT_DRAINED] = "processes that were to be drained",
    [SIM_COUNT_LIAR_FOUND] = "jobs ended since workers differ",
    [SIM_COUNT_REPLICAS_DIFFER] = "jobs ended since replicas differ after a lie",
    [SIM_COUNT_WORD_MENDED] = "false control words mended",
    [SIM_COUNT_APART_MENDED] = "times partitions that were driven apart were mended",
    [SIM_COUNT_CHECKPOINT] = "checkpoints committed",
    [SIM_COUNT_CHECKPOINT_ABANDONED] = "checkpoints abandoned",
    [SIM_COUNT_CHECKPOINT_REMOVED] = "checkpoints removed",
    [SIM_COUNT_CHECKPOINT_DAMAGED] = "checkpoints found damaged",
    [SIM_COUNT_OFFER] = "lanes offered to spares",
    [SIM_COUNT_COVERED] = "lanes computed by spares",
    [SIM_COUNT_AHEAD] = "versions begun with weights missing",
    [SIM_COUNT_GIVEN_UP] = "of these given up",
    [SIM_COUNT_EVENT] = "events",
};

void *sim_alloc(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (!memory) {
        abort();
    }
    return memory;
}

void *sim_grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) {
        return items;
    }
    size_t larger = *capacity ? 2 * *capacity : 16;
    void *moved = realloc(items, larger * size);
    if (!moved) {
        abort();
    }
    *capacity = larger;
    return moved;
}

/* ---- random numbers ----------------------------------------------------------------------------
 */

uint64_t sim_mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t sim_draw(struct sim *sim, uint64_t below)
{
    sim->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    return sim_mix(sim->random) % below;
}

uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high)
{
    return low + sim_draw(sim, high - low + 1);
}

bool sim_chance(struct sim *sim, uint32_t rate, uint32_t of)
{
    return rate > 0 && sim_draw(sim, of) < rate;
}

/* ---- the queue: a binary heap ------------------------------------------------------------------
 */

static bool before(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

static void push(struct sim_queue *queue, const struct sim_event *event)
{
    queue->heap = sim_grow(queue->heap, queue->count, &queue->capacity, sizeof(*queue->heap));
    size_t at = queue->count++;
    while (at > 0 && before(event, &queue->heap[(at - 1) / 2])) {
        queue->heap[at] = queue->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->heap[at] = *event;
}

static struct sim_event pop(struct sim_queue *queue)
{
    struct sim_event first = queue->heap[0];
    struct sim_event last = queue->heap[--queue->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < queue->count && before(&queue->heap[child + 1], &queue->heap[child])) {
            child++;
        }
        if (child >= queue->count || !before(&queue->heap[child], &last)) {
            break;
        }
        queue->heap[at] = queue->heap[child];
        at = child;
    }
    if (queue->count > 0) {
        queue->heap[at] = last;
    }
    return first;
}

void sim_after(struct sim *sim, uint64_t delay_us, const struct sim_call *call)
{
    struct sim_event event = {.at_us = sim->now + delay_us,
                              .order = sim->order++,
                              .process = call->process,
                              .incarnation = call->process ? call->process->incarnation : 0,
                              .run = call->run,
                              .data = call->data,
                              .drop = call->drop,
                              .number = call->number};
    push(&sim->queue, &event);
}

static void drop(const struct sim_event *event)
{
    if (event->drop) {
        event->drop(event->data);
    }
}

static void hold(struct sim_process *process, const struct sim_event *event)
{
    process->held = sim_grow(process->held, process->held_count, &process->held_capacity,
                             sizeof(*process->held));
    process->held[process->held_count++] = *event;
}

bool sim_next(struct sim *sim)
{
    if (sim->queue.count == 0) {
        return false;
    }
    struct sim_event event = pop(&sim->queue);
    sim->now = event.at_us;
    sim->counts[SIM_COUNT_EVENT]++;
    if (event.process && !sim_lives(event.process, event.incarnation)) {
        drop(&event);
    } else if (event.process && event.process->paused) {
        hold(event.process, &event);
    } else {
        event.run(sim, event.process, event.data, event.number);
    }
    return true;
}

uint64_t sim_ms(const struct sim *sim)
{
    return 1000 + sim->now / SIM_MS;
}

/* ---- processes ---------------------------------------------------------------------------------
 */

bool sim_lives(const struct sim_process *process, uint64_t incarnation)
{
    return process->incarnation != 0 && process->incarnation == incarnation;
}

void sim_process_begin(struct sim *sim, struct sim_process *process)
{
    process->incarnation = ++sim->incarnations;
    process->paused = false;
}

static void drop_held(struct sim_process *process)
{
    for (size_t i = 0; i < process->held_count; i++) {
        drop(&process->held[i]);
    }
    process->held_count = 0;
}

void sim_process_end(struct sim *sim, struct sim_process *process)
{
    (void)sim;
    process->incarnation = 0;
    process->paused = false;
    drop_held(process);
}

void sim_process_pause(struct sim_process *process)
{
    process->paused = true;
}

/* Everything that came meanwhile is there at once, in order. */
void sim_process_wake(struct sim *sim, struct sim_process *process)
{
    process->paused = false;
    for (size_t i = 0; i < process->held_count; i++) {
        struct sim_event event = process->held[i];
        event.at_us = sim->now;
        event.order = sim->order++;
        push(&sim->queue, &event);
    }
    process->held_count = 0;
}

struct sim_process *sim_find(struct sim *sim, enum sim_role role, unsigned index)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        if (sim->processes[i].role == role && sim->processes[i].index == index) {
            return &sim->processes[i];
        }
    }
    return NULL;
}

struct sim_process *sim_find_id(struct sim *sim, const char *id)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        if (strcmp(sim->processes[i].id, id) == 0) {
            return &sim->processes[i];
        }
    }
    return NULL;
}

void sim_world_fini(struct sim *sim)
{
    for (unsigned i = 0; i < sim->process_count; i++) {
        drop_held(&sim->processes[i]);
        free(sim->processes[i].held);
    }
    for (size_t i = 0; i < sim->queue.count; i++) {
        drop(&sim->queue.heap[i]);
    }
    free(sim->queue.heap);
}

/* ---- stories and failures ----------------------------------------------------------------------
 */

void sim__say(struct sim *sim, const struct sim_process *who, const char *format, ...)
{
    struct sim_story *story = sim->story;
    char line[sizeof(story->lines[0])];
    va_list args;
    int used = snprintf(line, sizeof(line), "%10.6f  %-13s ", (double)sim->now / 1e6,
                        who ? who->id : "world");
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
    va_end(args);
    if (story->out) {
        (void)fprintf(story->out, "%s\n", line);
    }
    if (story->keep) {
        memcpy(story->lines[story->count % SIM_STORY_LINES], line, sizeof(line));
    }
    story->count++;
}

void sim_fail(struct sim *sim, const char *invariant, const char *format, ...)
{
    va_list args;
    int used = snprintf(sim->failure, sizeof(sim->failure), "%s: ", invariant);
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): va_start is right above */
    (void)vsnprintf(sim->failure + used, sizeof(sim->failure) - (size_t)used, format, args);
    va_end(args);
    siglongjmp(sim->failed, 1);
}
