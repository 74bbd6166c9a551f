/* A run of the small world: workers, faults, and what must hold after every event. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/replicas/replicas.h"

#define LANES        2
#define EVENTS       400  /* with faults */
#define EVENTS_QUIET 8000 /* and without: it must be done by then */

_Noreturn void replicas_fail(struct replicas *world, const char *rule)
{
    (void)snprintf(world->failure, 512, "%s", rule);
    longjmp(*world->end, 1);
}

static uint64_t mix(uint64_t value)
{
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

uint64_t replicas_draw(struct replicas *world, uint64_t below)
{
    world->random += UINT64_C(0x9e3779b97f4a7c15);
    return mix(world->random) % below;
}

bool replicas_skips(const struct replicas *world, uint64_t step)
{
    return world->decides && step % 3 == 1;
}

uint64_t replicas_gradient(uint64_t step)
{
    return mix(step + 77) | 1;
}

uint64_t replicas_weights(const struct replicas *world, uint64_t step)
{
    uint64_t value = 1;

    for (uint64_t i = 0; i < step; i++) {
        value = replicas_skips(world, i) ? value : mix(value + replicas_gradient(i)) | 1;
    }
    return value;
}

uint64_t replicas_new_gradient(struct replicas *world, uint64_t value)
{
    for (uint64_t i = 0; i < REPLICAS_HANDLES; i++) {
        if (world->gradients[i] == 0) {
            world->gradients[i] = value;
            return i + 1;
        }
    }
    replicas_fail(world, "gradients are bounded");
}

/* ---- workers ---- */

/* The word of the entry that the process is at. */
static struct kelp_control_word word_of(const struct replicas *world,
                                        const struct kelp_partition_view *view)
{
    if (world->holds_control) {
        return view->word;
    }
    return (struct kelp_control_word){.version = view->step,
                                      .step = view->step,
                                      .kind = KELP_STEP_TRAIN,
                                      .sample_count = 4,
                                      .lr = 0.5};
}

static void push(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = &world->processes[process - 1];
    const struct kelp_partition_view view = replicas_view(world, process);
    const struct kelp_control_word word = word_of(world, &view);
    const double sums[KELP_METRIC_SUM_SCALARS] = {[KELP_METRIC_SUM_SAMPLES] = 4};
    const bool trains = word.kind == KELP_STEP_TRAIN;

    /* Workers compute from what every partition shows. */
    if (word.kind == KELP_STEP_DONE || view.phase != KELP_PARTITION_COLLECTING ||
        word.step > world->other || (trains && word.step >= world->steps)) {
        return;
    }
    const struct kelp_push push = {
        .requester = 1,
        .author = 1,
        .generation = 1,
        .map_epoch = view.map_epoch,
        .word = &word,
        .lane_count = LANES,
        .handle =
            trains ? replicas_new_gradient(world, replicas_gradient(word.step)) : KELP_HANDLE_NONE,
        .content = {.low = 1},
        .sums = world->holds_control ? sums : NULL,
        .sum_count = world->holds_control ? KELP_METRIC_SUM_SCALARS : 0,
        .digest = word.digest_due ? "00112233445566778899aabbccddeeff" : ""};
    if (kelp_partition_push(ours->partition, &push, &ours->actions) != KELP_OK) {
        abort();
    }
    replicas_run_actions(world, process);
}

static void pull(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = &world->processes[process - 1];
    struct kelp_pull pull = {.requester = 1,
                             .author = 1,
                             .generation = 1,
                             .map_epoch = replicas_view(world, process).map_epoch,
                             .mode = KELP_PULL_STEP,
                             .step = world->other};

    if (kelp_partition_pull(ours->partition, &pull, &ours->actions) != KELP_OK) {
        abort();
    }
    replicas_run_actions(world, process);
}

/* What partition 0 has decided; said to the primary of the map, and again after each change. */
static void tell_decision(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = &world->processes[process - 1];
    const struct kelp_partition_view view = replicas_view(world, process);
    struct kelp_control_word word = {.version = view.step + 1,
                                     .step = view.step + 1,
                                     .kind = KELP_STEP_TRAIN,
                                     .sample_count = 4,
                                     .lr = 0.5,
                                     .skipped = replicas_skips(world, view.step)};
    struct kelp_pull pull = {.requester = 2,
                             .author = 1,
                             .generation = 1,
                             .map_epoch = view.map_epoch,
                             .word = &word,
                             .mode = KELP_PULL_STEP,
                             .step = view.step + 1};

    if (view.step >= world->other || view.step >= world->steps ||
        ours->told_step == view.step + 1) {
        return; /* the other partition could not have applied it; or it was told */
    }
    if (kelp_partition_pull(ours->partition, &pull, &ours->actions) != KELP_OK) {
        abort();
    }
    if (view.place == KELP_REPLICA_PRIMARY) { /* or it is refused, and sent again */
        ours->told_step = view.step + 1;
    }
    replicas_run_actions(world, process);
}

/* ---- events ---- */

enum event {
    PUSH,
    PULL,
    TELL,
    DELIVER,
    WORK,
    LEARN,
    PERMIT,
    SEND_REST,
    LEAD,
    /* From here on: faults, and their end */
    LINK_UP,
    LINK_DOWN,
    KILL,
    KINDS
};
_Static_assert(KINDS <= REPLICAS_EVENTS, "there is a weight for each");

static enum event draw_event(struct replicas *world, bool quiet)
{
    uint64_t sum = 0;
    uint64_t at;
    int kind = 0;

    if (quiet) {
        return (enum event)replicas_draw(world, LINK_UP);
    }
    for (int i = 0; i < KINDS; i++) {
        sum += world->weights[i];
    }
    at = replicas_draw(world, sum);
    while (at >= world->weights[kind]) {
        at -= world->weights[kind++];
    }
    return (enum event)kind;
}

static void permit(struct replicas *world, uint64_t process)
{
    struct replicas_process *ours = &world->processes[process - 1];

    if (kelp_partition_copy(ours->partition, ours->wants_copy, &ours->actions) != KELP_OK) {
        abort();
    }
    ours->wants_copy = 0;
    replicas_run_actions(world, process);
}

/* An older notice may come first. */
static void learn(struct replicas *world, uint64_t process)
{
    const uint64_t known = world->processes[process - 1].known;

    replicas_learn(world, process, replicas_draw(world, 4) == 0 ? known + 1 : world->epoch);
}

static bool is_hosted(const struct replicas *world, uint64_t process)
{
    return replicas_view(world, process).phase != KELP_PARTITION_ABSENT;
}

static void change_link(struct replicas *world, uint64_t process, uint64_t peer, bool is_up)
{
    if (process == peer || !world->processes[peer - 1].is_up ||
        world->links[process - 1][peer - 1].is_up == is_up || (!is_up && world->breaks == 0)) {
        return;
    }
    world->breaks -= is_up ? 0 : 1;
    replicas_link(world, process, peer, is_up);
}

/* One of those links that carry something; false: none does. */
static bool draw_link(struct replicas *world, bool quiet, uint64_t *ret_from, uint64_t *ret_to)
{
    uint64_t count = 0;

    for (uint64_t from = 1; from <= REPLICAS_PROCESSES; from++) {
        for (uint64_t to = 1; to <= REPLICAS_PROCESSES; to++) {
            const bool late = !quiet && to == world->slow && replicas_draw(world, 16) != 0;
            if (world->links[from - 1][to - 1].count > 0 && !late &&
                replicas_draw(world, ++count) == 0) {
                *ret_from = from;
                *ret_to = to;
            }
        }
    }
    return count > 0;
}

/* Whom an event of this kind is about: somebody for whom there is something to do. */
static bool concerns(const struct replicas *world, uint64_t process, enum event kind)
{
    const struct replicas_process *ours = &world->processes[process - 1];

    switch (kind) {
    case PUSH:
    case PULL:
    case TELL:
        return ours->is_up && is_hosted(world, process) &&
               replicas_view(world, process).place == KELP_REPLICA_PRIMARY;
    case WORK:
        return ours->is_up && ours->work.there;
    case LEARN:
        return ours->is_up && ours->known < world->epoch;
    case PERMIT:
        return ours->is_up && ours->wants_copy != 0;
    case SEND_REST:
        return ours->is_up && ours->copying;
    case LINK_UP:
    case LINK_DOWN:
    case KILL:
        return ours->is_up;
    case DELIVER:
    case LEAD:
    case KINDS:
        break;
    }
    return false;
}

static void one_event(struct replicas *world, bool quiet)
{
    const enum event kind = draw_event(world, quiet);
    const uint64_t peer = 1 + replicas_draw(world, REPLICAS_PROCESSES);
    uint64_t process = 0;
    uint64_t to = 0;
    uint64_t count = 0;

    if (kind == LEAD) {
        replicas_lead(world);
        return;
    }
    if (kind == DELIVER) {
        if (draw_link(world, quiet, &process, &to)) {
            replicas_deliver(world, process, to);
        }
        return;
    }
    for (uint64_t i = 1; i <= REPLICAS_PROCESSES; i++) {
        if (concerns(world, i, kind) && replicas_draw(world, ++count) == 0) {
            process = i;
        }
    }
    if (process == 0) {
        return;
    }
    switch (kind) {
    case PUSH:
        push(world, process);
        break;
    case PULL:
        pull(world, process);
        break;
    case TELL:
        if (world->decides) {
            tell_decision(world, process);
        }
        break;
    case WORK:
        replicas_finish_work(world, process);
        break;
    case LEARN:
        learn(world, process);
        break;
    case PERMIT:
        permit(world, process);
        break;
    case SEND_REST:
        replicas_send_rest(world, process);
        break;
    case LINK_UP:
    case LINK_DOWN:
        change_link(world, process, peer, kind == LINK_UP);
        break;
    case KILL:
        if (world->kills > 0) {
            world->kills--;
            replicas_kill(world, process);
        }
        break;
    case LEAD:
    case DELIVER:
    case KINDS:
        break;
    }
}

/* Has it every version that was shown? */
static bool is_good(const struct replicas *world, uint64_t process)
{
    if (process == 0 || !world->processes[process - 1].is_up) {
        return true;
    }
    struct kelp_partition_view view = replicas_view(world, process);
    return view.phase != KELP_PARTITION_ABSENT && view.phase != KELP_PARTITION_FILLING &&
           view.phase != KELP_PARTITION_FAILED && view.held >= world->shown;
}

static void check(struct replicas *world)
{
    const struct replicas_entry *entry = &world->map[world->epoch];

    if (world->restored) {
        return;
    }
    if (!is_good(world, entry->primary) || !is_good(world, entry->backup) ||
        (entry->in_sync && !is_good(world, entry->joiner))) {
        replicas_fail(world, "whoever may be promoted has what was shown");
    }
}

static bool is_done(const struct replicas *world)
{
    return world->restored || (world->other >= world->steps && world->shown >= world->entries);
}

/* ---- life ---- */

static void open_world(struct replicas *world)
{
    world->holds_control = replicas_draw(world, 2) == 0;
    world->decides = !world->holds_control && replicas_draw(world, 2) == 0;
    const bool restless = replicas_draw(world, 4) == 0; /* one move after the other */
    world->steps = replicas_draw(world, 2) == 0 ? 4 : 8;
    /* Evaluations of two parts, after each of two epochs, and FINISH. */
    world->entries = world->steps + (world->holds_control ? 5 : 0);
    world->kills = restless ? 0 : (unsigned)replicas_draw(world, 3);
    world->suspicions = restless ? 0 : (unsigned)replicas_draw(world, 3);
    world->joiners = restless ? 12 : (unsigned)replicas_draw(world, 5);
    world->breaks = (unsigned)replicas_draw(world, 6);
    world->slow = replicas_draw(world, 2 * REPLICAS_PROCESSES);
    for (int i = 0; i < KINDS; i++) {
        world->weights[i] = UINT64_C(1) << replicas_draw(world, 6);
    }
    world->weights[KILL] = 1;
    world->weights[LEAD] = restless ? 64 : world->weights[LEAD];
    world->job.cluster.lanes = LANES;
    world->job.train.epochs = 2;
    world->job.train.batch_size = 4;
    world->job.train.evaluate = true;
    world->job.train.evaluate_epochs = 1;
    world->job.train.lr = 0.5;
    world->job.failure.on_nan = world->decides ? KELP_NAN_SKIP : KELP_NAN_STOP;
    world->plan.partition_count = 2;
    world->plan.samples[KELP_SPLIT_TRAIN] = 2 * world->steps; /* two epochs, batches of 4 */
    world->plan.samples[KELP_SPLIT_VAL] = 3;
    world->plan.samples[KELP_SPLIT_TEST] = 3;
    world->epoch = 1;
    world->map[1] = (struct replicas_entry){.primary = 1, .backup = 2};
    for (uint64_t i = 1; i <= REPLICAS_PROCESSES; i++) {
        struct replicas_process *ours = &world->processes[i - 1];
        const struct kelp_partition_config config = {.index = world->holds_control ? 0 : 1,
                                                     .replicated = true,
                                                     .job = &world->job,
                                                     .plan = &world->plan};
        ours->is_up = true;
        ours->known = 1;
        if (kelp_partition_create(&config, &ours->partition, NULL) != KELP_OK) {
            abort();
        }
    }
    replicas_start(world, 1, KELP_REPLICA_PRIMARY);
    replicas_start(world, 2, KELP_REPLICA_BACKUP);
    for (uint64_t i = 1; i <= REPLICAS_PROCESSES; i++) {
        for (uint64_t j = 1; j < i; j++) {
            replicas_link(world, j, i, true);
        }
    }
}

static void close_world(struct replicas *world)
{
    for (uint64_t i = 1; i <= REPLICAS_PROCESSES; i++) {
        replicas_kill(world, i);
        kelp_partition_destroy(world->processes[i - 1].partition);
        kelp_actions_fini(&world->processes[i - 1].actions);
    }
    replicas_free_links(world);
    for (uint64_t i = 0; i < REPLICAS_HANDLES; i++) {
        if (world->gradients[i] != 0) {
            replicas_fail(world, "every gradient is given back");
        }
    }
}

static void heal(struct replicas *world)
{
    world->kills = world->suspicions = world->joiners = 0;
    for (uint64_t i = 1; i <= REPLICAS_PROCESSES; i++) {
        for (uint64_t j = 1; j < i; j++) {
            if (world->processes[i - 1].is_up && world->processes[j - 1].is_up &&
                !world->links[i - 1][j - 1].is_up) {
                replicas_link(world, j, i, true);
            }
        }
    }
}

static void run_world(struct replicas *world, struct replicas_counts *counts)
{
    uint64_t events = 0;

    open_world(world);
    for (; events < EVENTS && !is_done(world); events++) {
        one_event(world, false);
        check(world);
    }
    heal(world);
    for (; !is_done(world); events++) {
        if (events == EVENTS + EVENTS_QUIET) {
            replicas_fail(world, "the job ends");
        }
        one_event(world, true);
        check(world);
    }
    close_world(world);
    counts->events += events;
    counts->promotions += world->promotions;
    counts->restored += world->restored ? 1 : 0;
}

bool replicas_run(uint64_t seed, bool trace, struct replicas_counts *counts, char ret_failure[512])
{
    struct replicas *world = calloc(1, sizeof(*world));
    jmp_buf end;

    if (!world) {
        abort();
    }
    world->random = seed * 1000003;
    world->trace = trace;
    world->end = &end;
    world->failure = ret_failure;
    if (setjmp(end) != 0) {
        return false;
    }
    run_world(world, counts);
    free(world);
    return true;
}
