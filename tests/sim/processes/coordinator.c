#include "tests/sim/processes/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/invariants.h"
#include "tests/sim/outside/disk.h"

struct sim_coordinator *sim_coordinator_of(const struct sim_process *process)
{
    return process->state;
}

struct kelp_leadership *sim_coordinator_touch(struct sim_coordinator *coordinator)
{
    kelp_leadership_touch(&coordinator->leadership, sim_ms(coordinator->sim));
    return &coordinator->leadership;
}

struct kelp_term *sim_coordinator_term(struct sim_coordinator *coordinator)
{
    return sim_coordinator_touch(coordinator)->term;
}

const char *sim_coordinator_reason(const struct sim_process *process)
{
    const struct kelp_term *term = sim_coordinator_of(process)->leadership.term;
    return term ? term->placement.reason : "stands by";
}

void sim_coordinator_request(const struct sim_process *process, bool pause)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    struct kelp_error error;
    uint64_t serial = 0;
    if (term && kelp_term_request(term, pause, &serial, &error) == KELP_OK) {
        coordinator->sim->counts[SIM_COUNT_PAUSED] += pause ? 1 : 0;
        sim_say(coordinator->sim, process, "was asked for a checkpoint%s",
                pause ? " and to let the job rest then" : "");
    }
}

void sim_coordinator_scale(const struct sim_process *process, const struct kelp_targets *targets)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    struct kelp_error error;
    if (term && kelp_term_scale(term, targets, &error) == KELP_OK) {
        coordinator->sim->counts[SIM_COUNT_SCALED]++;
        sim_say(coordinator->sim, process,
                "was asked for %u:%u workers and %u shards (0: as before)", targets->workers_min,
                targets->workers_max, targets->shards);
    }
}

void sim_coordinator_drain(const struct sim_process *process, const char *id)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    struct kelp_term *term = sim_coordinator_term(coordinator);
    struct kelp_error error;
    if (term && kelp_term_drain(term, id, &error) == KELP_OK) {
        coordinator->sim->counts[SIM_COUNT_DRAINED]++;
        sim_say(coordinator->sim, process, "was asked to let %s go", id);
    }
}

const struct kelp_term *sim_coordinator_status(const struct sim_process *process)
{
    const struct kelp_term *term = sim_coordinator_of(process)->leadership.term;
    return term && term->reading.done ? term : NULL;
}

/* ---- effects of no file in particular ---- */

static void on_log(enum kelp_log_level level, const char *peer, const char *text, void *user)
{
    struct sim_coordinator *coordinator = user;
    if (strstr(text, "refused an event") != NULL) {
        sim_fail(coordinator->sim, "cores take every event", "%s", text);
    }
    (void)level;
    (void)peer;
    sim_say(coordinator->sim, coordinator->process, "%s", text);
}

static void give_up(const char *text, void *user)
{
    struct sim_coordinator *coordinator = user;
    sim_fail(coordinator->sim, "a coordinator does not give up", "%s", text);
}

static kelp_status begin_term(struct kelp_error *reterr, void *user)
{
    struct sim_coordinator *coordinator = user;
    (void)reterr;
    sim_say(coordinator->sim, coordinator->process, "leads");
    coordinator->sim->counts[SIM_COUNT_LEADER]++;
    return KELP_OK;
}

/* Where nothing goes wrong, nobody counts as silent. */
static void on_told(const struct kelp_event *event, void *user)
{
    struct sim *sim = ((const struct sim_coordinator *)user)->sim;
    if (sim->profile.quiet && event->kind == KELP_EVENT_WORKER_LOST &&
        strncmp(event->why, "silent", 6) == 0) {
        sim_fail(sim, "a loss has a cause", "%s was lost: %s", event->who, event->why);
    }
}

static void end_term(void *user)
{
    struct sim_coordinator *coordinator = user;
    coordinator->given_up = 0;
    sim_coordinator_leave_followers(coordinator);
}

static kelp_status keep_plan(const char *text, const struct kelp_plan **ret_plan,
                             struct kelp_error *reterr, void *user)
{
    struct sim_coordinator *coordinator = user;
    (void)text;
    (void)reterr;
    *ret_plan = &coordinator->sim->plan;
    return KELP_OK;
}

static kelp_status compare_plan(const char *text, struct kelp_error *reterr, void *user)
{
    (void)text;
    (void)reterr;
    (void)user;
    return KELP_OK;
}

/* ---- records on file ---- */

static uint64_t recorded_step(void *user)
{
    struct sim_coordinator *coordinator = user;
    return sim_journal_step(coordinator->sim);
}

/* The journal here knows which records there are, not what they say. */
static bool recorded_metric(uint64_t step, double ret_metric[KELP_CHECKPOINT_METRICS], void *user)
{
    (void)step;
    (void)ret_metric;
    (void)user;
    return false;
}

/* What it says is known: that of the quiet run. */
static void recall(struct kelp_progress *progress, void *user)
{
    const struct sim *sim = ((const struct sim_coordinator *)user)->sim;
    const struct sim_reference *reference = sim->reference;
    for (uint64_t v = reference->versions; v-- > 0;) {
        const struct kelp_record *record = &reference->records[v];
        if (record->digest[0] != '\0' && sim_journal_has(sim, v)) {
            kelp_progress_recall(progress, record->digest, record->word.step);
            return;
        }
    }
}

/* ---- time ---- */

static void count_abandoned(struct sim_coordinator *coordinator, const struct kelp_term *term)
{
    if (term && term->keeper.machine.given_up != coordinator->given_up) {
        coordinator->given_up = term->keeper.machine.given_up;
        coordinator->sim->counts[SIM_COUNT_CHECKPOINT_ABANDONED]++;
    }
}

static void on_tick(struct sim *sim, struct sim_process *process, void *data, uint64_t number)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    (void)data;
    (void)number;
    sim_after(sim, KELP_COORDINATOR_TICK_MS * SIM_MS,
              &(struct sim_call){.process = process, .run = on_tick});
    count_abandoned(coordinator, sim_coordinator_term(coordinator));
    kelp_leadership_tick(&coordinator->leadership);
    if (coordinator->leadership.term) {
        sim_invariants_told(process, coordinator->leadership.term);
    }
    sim_coordinator_beat(coordinator);
}

/* ---- life ---- */

static void set_effects(struct sim_coordinator *coordinator)
{
    coordinator->term_effects = (struct kelp_term_effects){.log = on_log,
                                                           .tell = on_told,
                                                           .give_up = give_up,
                                                           .keep_plan = keep_plan,
                                                           .compare_plan = compare_plan,
                                                           .recorded_step = recorded_step,
                                                           .recorded_metric = recorded_metric,
                                                           .recall = recall};
    sim_coordinator_task_effects(&coordinator->term_effects);
    sim_coordinator_stream_effects(&coordinator->term_effects);
    coordinator->leadership_effects =
        (struct kelp_leadership_effects){.open = begin_term, .close = end_term};
    sim_coordinator_election_effects(coordinator);
    sim_coordinator_follow_effects(&coordinator->leadership_effects);
}

void sim_coordinator_start(struct sim *sim, struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_alloc(sizeof(*coordinator));
    struct kelp_error error;
    coordinator->sim = sim;
    coordinator->process = process;
    coordinator->term = 1;
    process->state = coordinator;
    set_effects(coordinator);
    const struct kelp_leadership_options options = {
        .effects = &coordinator->leadership_effects,
        .outside = {.effects = &coordinator->term_effects, .user = coordinator},
        .id = process->id,
        .incarnation = process->incarnation * 1000};
    kelp_leadership_init(&coordinator->leadership, &options);
    if (kelp_leadership_stand(sim_coordinator_touch(coordinator), &sim->job, &error) != KELP_OK) {
        abort();
    }
    sim_after(sim, sim_draw(sim, KELP_COORDINATOR_TICK_MS * SIM_MS),
              &(struct sim_call){.process = process, .run = on_tick});
}

void sim_coordinator_forget(struct sim_process *process)
{
    struct sim_coordinator *coordinator = sim_coordinator_of(process);
    coordinator->dead = true;
    kelp_term_destroy(coordinator->leadership.term);
    sim_coordinator_forget_tasks(coordinator);
    free(coordinator);
    process->state = NULL;
}
