/*
 * The training arithmetic of the simulated job: real float32, small, and built so that mistakes
 * show. The gradient of a parameter depends on another partition's weights and on the sample;
 * values are spread over many magnitudes, so that a sum in another order has other bits; a momentum
 * slot makes a state more than its weights.
 *
 * The reference is the quiet run: one loop, no messages, no partitions, sums by plain recursion. It
 * shares with the programs under test only common/training/control (what an entry is) and
 * worker/core/schedule (which samples a lane has).
 */
#ifndef KELP_TESTS_SIM_MODEL_H
#define KELP_TESTS_SIM_MODEL_H

#include "tests/sim/world.h"

/* The sum over some lanes of one entry, as a worker made it. Counted: messages share it. */
struct sim_node {
    uint32_t refs;
    uint32_t lane_first;
    uint32_t lane_count;
    bool present; /* some lane has samples, and it is a training step */
    bool sent;
    bool is_lie; /* struct sim_lie */
    double sums[KELP_METRIC_SUM_SCALARS];
    char digest[33]; /* of w_v, when due; or empty */
    float values[SIM_FLAT_MAX];
};
void sim_node_unref(struct sim_node *node);

/* w_0 of flat elements; zero beyond the plan's. */
void sim_model_initialise(const struct sim *sim, float flat[SIM_FLAT_MAX]);

/* Compute the node; owned by the caller. The digest is set if it is due and lane 0 is in it. */
struct sim_node *sim_model_node(const struct sim *sim, const struct kelp_control_word *word,
                                const float flat[SIM_FLAT_MAX], uint32_t lane_first,
                                uint32_t lane_count);

/* Is there a gradient of this step that is not finite? Only in jobs that leave such steps out. */
bool sim_model_is_bad(const struct sim *sim, uint64_t step);
bool sim_model_finite(const float *values, size_t count);

/* What the slice tells of a step in jobs that decide about each. */
void sim_model_measure(const struct sim *sim, struct kelp_slice_range range, const float *gradient,
                       struct kelp_decision_share *ret_part);
/* weights_next and momentum of one slice from its gradient (NULL: no elements) times `scale`. */
void sim_model_apply(const struct kelp_control_word *word, double scale, const float *gradient,
                     size_t count, const float *weights, float *weights_next, float *momentum);

void sim_model_digest(const struct sim *sim, const float flat[SIM_FLAT_MAX], char ret_hex[33]);

struct kelp_slice_range sim_slice(const struct sim *sim, uint32_t partition);

/* S_v: weights and momentum by training step, control state and record by version. */
struct sim_reference {
    uint64_t steps;    /* training steps of the whole job */
    uint64_t versions; /* entries, FINISH included: the version of DONE */
    float (*weights)[SIM_FLAT_MAX];
    float (*momentum)[SIM_FLAT_MAX];
    struct kelp_control_state *controls; /* [versions + 1] */
    struct kelp_record *records;         /* [versions] */
    char digest[33];                     /* of the final weights */
};
/* Computed from sim->job and sim->plan. */
struct sim_reference *sim_reference_create(const struct sim *sim);
void sim_reference_destroy(struct sim_reference *reference);

#endif
