/*
 * The control state as bytes: all numbers little-endian, doubles as their bits.
 *
 *     u32 layout | u32 kind | u64 version | u64 step | u64 step_in_epoch | u32 epoch |
 *     u32 parts whose last values are set, a bit each | double epoch_loss | double epoch_samples |
 *     double last[3 parts][3] | double best_val_mse | u32 best_epoch | u32 skipped | zeros to the
 * end
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/control.h"

#define LAYOUT 1
#define USED   (4 + 4 + 8 + 8 + 8 + 4 + 4 + 8 + 8 + KELP_PART_COUNT * 3 * 8 + 8 + 4 + 4)

_Static_assert(USED <= KELP_CONTROL_BYTES, "the state fits");
_Static_assert(KELP_PART_COUNT == 3, "another number of parts is another layout");

/* ---- writing -----------------------------------------------------------------------------------
 */

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

void kelp_control_pack(const struct kelp_control_state *state, unsigned char *ret_bytes)
{
    unsigned char *at = ret_bytes;
    uint32_t set = 0;

    memset(ret_bytes, 0, KELP_CONTROL_BYTES);
    for (unsigned part = 0; part < KELP_PART_COUNT; part++) {
        set |= state->last_set[part] ? 1u << part : 0;
    }
    put_u32(&at, LAYOUT);
    put_u32(&at, (uint32_t)state->kind);
    put_u64(&at, state->version, 8);
    put_u64(&at, state->step, 8);
    put_u64(&at, state->step_in_epoch, 8);
    put_u32(&at, state->epoch);
    put_u32(&at, set);
    put_double(&at, state->epoch_loss);
    put_double(&at, state->epoch_samples);
    for (unsigned part = 0; part < KELP_PART_COUNT; part++) {
        for (unsigned i = 0; i < 3; i++) {
            put_double(&at, state->last[part][i]);
        }
    }
    put_double(&at, state->best_val_mse);
    put_u32(&at, state->best_epoch);
    put_u32(&at, state->skipped ? 1 : 0);
    assert(at == ret_bytes + USED);
}

/* ---- reading -----------------------------------------------------------------------------------
 */

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

static kelp_status decode(const unsigned char *bytes, struct kelp_control_state *state,
                          struct kelp_error *reterr)
{
    const unsigned char *at = bytes;
    uint32_t layout = get_u32(&at);

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
    uint32_t set = get_u32(&at);
    state->epoch_loss = get_double(&at);
    state->epoch_samples = get_double(&at);
    for (unsigned part = 0; part < KELP_PART_COUNT; part++) {
        state->last_set[part] = (set >> part & 1) != 0;
        for (unsigned i = 0; i < 3; i++) {
            state->last[part][i] = get_double(&at);
        }
    }
    state->best_val_mse = get_double(&at);
    state->best_epoch = get_u32(&at);
    uint32_t skipped = get_u32(&at);
    state->skipped = skipped != 0;
    bool zeros = true;
    while (at < bytes + KELP_CONTROL_BYTES) {
        zeros = *at++ == 0 && zeros;
    }
    /* A loss may be anything, also infinite; counts and the best of comparisons may not. */
    if (kind < KELP_STEP_TRAIN || kind > KELP_STEP_DONE || set >> KELP_PART_COUNT != 0 || !zeros ||
        skipped > 1 || (skipped && state->step == 0) ||
        !(state->epoch_samples >= 0 && isfinite(state->epoch_samples)) ||
        !(state->best_val_mse >= 0) || state->best_epoch > state->epoch) {
        return kelp_fail(reterr, KELP_ERR_CORRUPT, "control state with impossible values");
    }
    state->kind = (enum kelp_step_kind)kind;
    return KELP_OK;
}

static kelp_status other_schedule(struct kelp_error *reterr, const struct kelp_control_state *state)
{
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "control state of version %" PRIu64 ", step %" PRIu64 " (epoch %" PRIu32
                     ", step %" PRIu64 " of it) does not fit this job's epochs, batches and "
                     "evaluations",
                     state->version, state->step, state->epoch, state->step_in_epoch);
}

/* Everything but epoch, position and kind follows from these. */
static kelp_status check(const struct kelp_control_state *state, const struct kelp_job *job,
                         const struct kelp_plan *plan, struct kelp_error *reterr)
{
    uint64_t steps = kelp_control_steps_per_epoch(job, plan);
    bool val = job->train.evaluate && plan->samples[KELP_PART_VAL] > 0;
    bool test = job->train.evaluate && plan->samples[KELP_PART_TEST] > 0;
    bool stepped = state->step_in_epoch == steps; /* all of the epoch's */
    uint64_t entries = state->step_in_epoch;      /* of the epoch, complete */
    bool fits = state->epoch < job->train.epochs;

    switch (state->kind) {
    case KELP_STEP_TRAIN:
        fits = fits && state->step_in_epoch < steps;
        break;
    case KELP_STEP_EVALUATE_VAL:
        fits = fits && stepped && val;
        break;
    case KELP_STEP_EVALUATE_TEST:
        fits = fits && stepped && test;
        entries += val;
        break;
    case KELP_STEP_FINISH:
        fits = fits && stepped;
        entries += (uint64_t)val + test;
        break;
    case KELP_STEP_DONE:
        fits = fits && stepped;
        entries += (uint64_t)val + test + 1;
        break;
    }
    if (!fits || state->step != state->epoch * steps + state->step_in_epoch ||
        state->version != state->epoch * (steps + val + test) + entries) {
        return other_schedule(reterr, state);
    }
    return KELP_OK;
}

kelp_status kelp_control_unpack(const unsigned char *bytes, const struct kelp_job *job,
                                const struct kelp_plan *plan, struct kelp_control_state *ret_state,
                                struct kelp_error *reterr)
{
    struct kelp_control_state state;
    kelp_status status = decode(bytes, &state, reterr);

    if (status == KELP_OK) {
        status = check(&state, job, plan, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    bool ended = state.kind == KELP_STEP_FINISH || state.kind == KELP_STEP_DONE;
    if (ended && state.epoch + 1 < job->train.epochs) {
        /* The longer job has no FINISH here. */
        state.version -= state.kind == KELP_STEP_DONE ? 1 : 0;
        kelp__control_end_epoch(&state, job, plan);
    }
    *ret_state = state;
    return KELP_OK;
}
