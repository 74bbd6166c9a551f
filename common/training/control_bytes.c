/*
 * The control state as bytes: all numbers little-endian, doubles as their bits.
 *
 *     u32 layout | u32 kind | u64 version | u64 step | u64 step_in_epoch | u32 epoch | u32 flags
 *     (1: skipped, 2: stopped) | double epoch_loss | double epoch_samples | best | best_before |
 *     double patience_best | u32 patience_count | u32 plateau_count | double plateau_best |
 *     double plateau_lr | u64 steps_skipped | double window_loss | double window_samples |
 *     double val[9..10] and test[9..10] of best, then of best_before
 * Programs that did not count steps_skipped left zeros there and behind it: still the same layout.
 * best, best_before:
 *     u32 known | u32 epoch | u64 step | u32 present in val | u32 present in test |
 *     double val[9] | double test[9]
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/training/control.h"

#define LAYOUT     2
#define FIRST      9 /* metrics stored in best; the others come at the end */
#define BEST_BYTES (4 + 4 + 8 + 4 + 4 + 2 * FIRST * 8)
#define MORE_BYTES (4 * (KELP_METRIC_COUNT - FIRST) * 8)
#define USED                                                                                       \
    (4 + 4 + 3 * 8 + 4 + 4 + 2 * 8 + 2 * BEST_BYTES + 8 + 4 + 4 + 2 * 8 + 3 * 8 + MORE_BYTES)
#define FLAG_SKIPPED 1u
#define FLAG_STOPPED 2u

_Static_assert(USED <= KELP_CONTROL_BYTES, "the state fits");
_Static_assert(KELP_METRIC_COUNT == 11, "another number of metrics is another layout");

/* ---- writing ---- */

static void put_u64(unsigned char **at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++) {
        *(*at)++ = (unsigned char)(value >> (8 * i));
    }
}

static void put_u32(unsigned char **at, uint32_t value)
{
    put_u64(at, value, 4);
}

static void put_double(unsigned char **at, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    put_u64(at, bits, 8);
}

static void put_best(unsigned char **at, const struct kelp_best *best)
{
    put_u32(at, best->known ? 1 : 0);
    put_u32(at, best->epoch);
    put_u64(at, best->step, 8);
    put_u32(at, best->val.present);
    put_u32(at, best->test.present);
    for (unsigned i = 0; i < FIRST; i++) {
        put_double(at, best->val.of[i]);
    }
    for (unsigned i = 0; i < FIRST; i++) {
        put_double(at, best->test.of[i]);
    }
}

static void put_more(unsigned char **at, const struct kelp_best *best)
{
    for (unsigned i = FIRST; i < KELP_METRIC_COUNT; i++) {
        put_double(at, best->val.of[i]);
    }
    for (unsigned i = FIRST; i < KELP_METRIC_COUNT; i++) {
        put_double(at, best->test.of[i]);
    }
}

void kelp_control_pack(const struct kelp_control_state *state, unsigned char *ret_bytes)
{
    unsigned char *at = ret_bytes;

    memset(ret_bytes, 0, KELP_CONTROL_BYTES);
    put_u32(&at, LAYOUT);
    put_u32(&at, (uint32_t)state->kind);
    put_u64(&at, state->version, 8);
    put_u64(&at, state->step, 8);
    put_u64(&at, state->step_in_epoch, 8);
    put_u32(&at, state->epoch);
    put_u32(&at, (state->skipped ? FLAG_SKIPPED : 0) | (state->stopped ? FLAG_STOPPED : 0));
    put_double(&at, state->epoch_loss);
    put_double(&at, state->epoch_samples);
    put_best(&at, &state->best);
    put_best(&at, &state->best_before);
    put_double(&at, state->patience_best);
    put_u32(&at, state->patience_count);
    put_u32(&at, state->plateau_count);
    put_double(&at, state->plateau_best);
    put_double(&at, state->plateau_lr);
    put_u64(&at, state->steps_skipped, 8);
    put_double(&at, state->window_loss);
    put_double(&at, state->window_samples);
    put_more(&at, &state->best);
    put_more(&at, &state->best_before);
    assert(at == ret_bytes + USED);
}

/* ---- reading ---- */

static uint64_t get_u64(const unsigned char **at, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t) * (*at)++ << (8 * i);
    }
    return value;
}

static uint32_t get_u32(const unsigned char **at)
{
    return (uint32_t)get_u64(at, 4);
}

static double get_double(const unsigned char **at)
{
    uint64_t bits = get_u64(at, 8);
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void get_metrics(const unsigned char **at, struct kelp_metrics *metrics, unsigned first,
                        unsigned end)
{
    for (unsigned i = first; i < end; i++) {
        metrics->of[i] = get_double(at);
    }
}

static void get_best(const unsigned char **at, uint32_t *ret_known, struct kelp_best *best)
{
    *ret_known = get_u32(at);
    best->known = *ret_known != 0;
    best->epoch = get_u32(at);
    best->step = get_u64(at, 8);
    best->val.present = get_u32(at);
    best->test.present = get_u32(at);
    get_metrics(at, &best->val, 0, FIRST);
    get_metrics(at, &best->test, 0, FIRST);
}

static void get_more(const unsigned char **at, struct kelp_best *best)
{
    get_metrics(at, &best->val, FIRST, KELP_METRIC_COUNT);
    get_metrics(at, &best->test, FIRST, KELP_METRIC_COUNT);
}

/* Absent metrics must be zero, and no unknown metric may be present. */
static bool metrics_possible(const struct kelp_metrics *metrics)
{
    bool possible = metrics->present >> KELP_METRIC_COUNT == 0;

    for (unsigned i = 0; i < KELP_METRIC_COUNT; i++) {
        possible = possible && (kelp_metrics_have(metrics, i) ||
                                (metrics->of[i] == 0.0 && !signbit(metrics->of[i])));
    }
    return possible;
}

static bool best_possible(uint32_t known, const struct kelp_best *best,
                          const struct kelp_control_state *state)
{
    if (known == 0) {
        return best->epoch == 0 && best->step == 0 && best->val.present == 0 &&
               best->test.present == 0 && metrics_possible(&best->val) &&
               metrics_possible(&best->test);
    }
    return known == 1 && best->epoch <= state->epoch && best->step <= state->step &&
           best->val.present != 0 && metrics_possible(&best->val) && metrics_possible(&best->test);
}

static kelp_status decode(const unsigned char *bytes, struct kelp_control_state *state,
                          struct kelp_error *reterr)
{
    const unsigned char *at = bytes;
    uint32_t layout = get_u32(&at), known[2];

    if (layout != LAYOUT) {
        return kelp_fail(reterr, KELP_ERR_UNSUPPORTED,
                         "control state of layout %" PRIu32 "; this program reads layout %d",
                         layout, LAYOUT);
    }
    memset(state, 0, sizeof(*state));
    uint32_t kind = get_u32(&at);
    state->version = get_u64(&at, 8);
    state->step = get_u64(&at, 8);
    state->step_in_epoch = get_u64(&at, 8);
    state->epoch = get_u32(&at);
    uint32_t flags = get_u32(&at);
    state->skipped = (flags & FLAG_SKIPPED) != 0;
    state->stopped = (flags & FLAG_STOPPED) != 0;
    state->epoch_loss = get_double(&at);
    state->epoch_samples = get_double(&at);
    get_best(&at, &known[0], &state->best);
    get_best(&at, &known[1], &state->best_before);
    state->patience_best = get_double(&at);
    state->patience_count = get_u32(&at);
    state->plateau_count = get_u32(&at);
    state->plateau_best = get_double(&at);
    state->plateau_lr = get_double(&at);
    state->steps_skipped = get_u64(&at, 8);
    state->window_loss = get_double(&at);
    state->window_samples = get_double(&at);
    get_more(&at, &state->best);
    get_more(&at, &state->best_before);
    bool zeros = true;
    while (at < bytes + KELP_CONTROL_BYTES) {
        zeros = *at++ == 0 && zeros;
    }
    /* A loss may have any value, even infinity; counts and values that are compared may not. */
    if (kind < KELP_STEP_TRAIN || kind > KELP_STEP_KIND_MAX || !zeros ||
        flags > (FLAG_SKIPPED | FLAG_STOPPED) || (state->skipped && state->step == 0) ||
        !(state->epoch_samples >= 0 && isfinite(state->epoch_samples)) ||
        !(state->window_samples >= 0 && isfinite(state->window_samples)) ||
        state->steps_skipped > state->step || !best_possible(known[0], &state->best, state) ||
        !best_possible(known[1], &state->best_before, state) || isnan(state->patience_best) ||
        isnan(state->plateau_best) || !(state->plateau_lr >= 0 && isfinite(state->plateau_lr))) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT, "control state with impossible values");
    }
    state->kind = (enum kelp_step_kind)kind;
    return KELP_OK;
}

/* ---- the state among the job's entries ---- */

static kelp_status other_schedule(struct kelp_error *reterr, const struct kelp_control_state *state)
{
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "control state of version %" PRIu64 ", step %" PRIu64 " (epoch %" PRIu32
                     ", step %" PRIu64 " of it) does not fit this job's epochs, batches and "
                     "evaluations",
                     state->version, state->step, state->epoch, state->step_in_epoch);
}

/* Is this the end of training, of this job or of one with fewer epochs? */
static bool at_an_end(const struct kelp_control_state *state, const struct kelp_job *job,
                      const struct kelp_plan *plan)
{
    return state->step == kelp_control_total_steps(job, plan) ||
           (state->step_in_epoch == kelp_control_steps_per_epoch(job, plan) &&
            state->step < kelp_control_total_steps(job, plan));
}

/* Does this entry exist after `step` training steps, and does it have this version? */
static bool version_fits(const struct kelp_control_state *state, const struct kelp_job *job,
                         const struct kelp_plan *plan)
{
    bool val = kelp_control_evaluates(job, plan, KELP_SPLIT_VAL);
    bool test = kelp_control_evaluates(job, plan, KELP_SPLIT_TEST);
    uint64_t behind = kelp_control_version_after(job, plan, state->step);
    bool due = kelp_control_evaluation_due(job, plan, state->step);
    bool end = at_an_end(state, job, plan);
    bool over = end || (state->stopped && due);
    uint64_t before = behind - (due ? (uint64_t)val + test : 0); /* the evaluations of this step */

    switch (state->kind) {
    case KELP_STEP_TRAIN:
        return !state->stopped && state->version == behind;
    case KELP_STEP_EVALUATE_VAL:
        return val && (due || end) && state->version == before;
    case KELP_STEP_EVALUATE_TEST:
        return test && (due || end) && state->version == before + val;
    case KELP_STEP_FINISH:
        return over && state->version == before + val + test;
    case KELP_STEP_DONE:
        return over && state->version == before + val + test + 1;
    case KELP_STEP_PREDICT:
        break;
    }
    return false;
}

static bool place_fits(const struct kelp_control_state *state, const struct kelp_job *job,
                       const struct kelp_plan *plan)
{
    uint64_t steps = kelp_control_steps_per_epoch(job, plan);
    uint64_t total = kelp_control_total_steps(job, plan);

    if (state->step != state->epoch * steps + state->step_in_epoch || state->step > total ||
        state->epoch >= job->train.epochs || (steps == 0 && state->epoch > 0)) {
        return false;
    }
    if (state->best_before.known &&
        (state->kind == KELP_STEP_TRAIN || kelp_control_evaluation_due(job, plan, state->step))) {
        return false;
    }
    bool place = state->kind == KELP_STEP_TRAIN
                     ? state->step_in_epoch < steps && state->step < total
                     : state->step_in_epoch <= steps && (state->step_in_epoch > 0 || total == 0);
    return place && version_fits(state, job, plan);
}

static bool predict_fits(const struct kelp_control_state *state, const struct kelp_job *job,
                         const struct kelp_plan *plan)
{
    uint64_t blocks = kelp_control_predict_blocks(job, plan);

    if (state->step != 0 || state->epoch != 0 || state->step_in_epoch != 0) {
        return false;
    }
    return state->kind == KELP_STEP_PREDICT  ? state->version < blocks
           : state->kind == KELP_STEP_FINISH ? state->version == blocks
           : state->kind == KELP_STEP_DONE   ? state->version == blocks + 1
                                             : false;
}

/* Are the counts for early stopping and the rate possible in this job? */
static bool counts_fit(const struct kelp_control_state *state, const struct kelp_job *job)
{
    bool out = job->train.patience > 0 && state->patience_count == job->train.patience;

    return state->stopped == out &&
           state->patience_count <= (job->train.patience > 0 ? job->train.patience : 0) &&
           state->plateau_count <= job->train.plateau_patience &&
           state->plateau_lr <= job->train.lr;
}

/* The state is at the end of a job with fewer epochs: turn it into the state that this job has
 * there. */
static void go_on(struct kelp_control_state *state, const struct kelp_job *job,
                  const struct kelp_plan *plan)
{
    bool due = kelp_control_evaluation_due(job, plan, state->step);
    bool over = state->kind == KELP_STEP_FINISH || state->kind == KELP_STEP_DONE;

    if (state->kind == KELP_STEP_TRAIN || state->stopped || (due && !over) ||
        state->step >= kelp_control_total_steps(job, plan)) {
        return;
    }
    if (!due) {
        state->best = state->best_before;
        memset(&state->best_before, 0, sizeof(state->best_before));
    }
    state->version = kelp_control_version_after(job, plan, state->step);
    kelp__control_next_step(state, job, plan);
}

kelp_status kelp_control_unpack(const unsigned char *bytes, const struct kelp_job *job,
                                const struct kelp_plan *plan, struct kelp_control_state *ret_state,
                                struct kelp_error *reterr)
{
    struct kelp_control_state state;
    kelp_status status = decode(bytes, &state, reterr);

    if (status != KELP_OK) {
        return status;
    }
    if (job->run.mode == KELP_RUN_PREDICT ? !predict_fits(&state, job, plan)
                                          : !place_fits(&state, job, plan)) {
        return other_schedule(reterr, &state);
    }
    if (!counts_fit(&state, job)) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT, "control state with impossible counts");
    }
    go_on(&state, job, plan);
    *ret_state = state;
    return KELP_OK;
}

bool kelp_control_packed_at(const unsigned char *bytes, uint64_t version, uint64_t step)
{
    const unsigned char *at = bytes + 8;
    uint64_t its_version = get_u64(&at, 8);

    return its_version == version && get_u64(&at, 8) == step;
}
