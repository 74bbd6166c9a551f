#include "kernels/optimizer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops.h"

uint32_t kelp_optimizer_slot_count(const struct kelp_job *job)
{
    switch (job->train.optimizer) {
    case KELP_OPTIMIZER_SGD:
        return (float)job->train.momentum != 0.0f ? 1 : 0;
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
        return 2;
    case KELP_OPTIMIZER_ADAGRAD: /* refused by kelp_job_file_finish() */
    case KELP_OPTIMIZER_RMSPROP:
    case KELP_OPTIMIZER_ADADELTA:
    case KELP_OPTIMIZER_LAMB:
        break;
    }
    return 0;
}

const char *kelp_optimizer_slot_name(const struct kelp_job *job, uint32_t slot)
{
    assert(slot < kelp_optimizer_slot_count(job));
    if (job->train.optimizer == KELP_OPTIMIZER_SGD) {
        return "momentum_buffer";
    }
    return slot == 0 ? "exp_avg" : "exp_avg_sq";
}

double kelp_optimizer_eps(const struct kelp_job *job)
{
    if (job->train.eps > 0.0) {
        return job->train.eps;
    }
    switch (job->train.optimizer) {
    case KELP_OPTIMIZER_ADAGRAD:
        return 1e-10;
    case KELP_OPTIMIZER_ADADELTA:
    case KELP_OPTIMIZER_LAMB:
        return 1e-6;
    case KELP_OPTIMIZER_SGD:
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
    case KELP_OPTIMIZER_RMSPROP:
        break;
    }
    return 1e-8;
}

/* base^exponent by squaring. pow() is left alone: its last bit depends on the C library and on the
 * processor, and ours must not. */
static double power(double base, uint64_t exponent)
{
    double result = 1.0;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

void kelp_optimizer_prepare(struct kelp_optimizer_step *step, const struct kelp_job *job, double lr,
                            uint64_t step_number)
{
    assert(step_number >= 1);
    memset(step, 0, sizeof(*step));
    step->kind = job->train.optimizer;
    step->lr = (float)lr;
    step->weight_decay = (float)job->train.weight_decay;
    if (step->kind == KELP_OPTIMIZER_SGD) {
        step->momentum = (float)job->train.momentum;
        step->dampening = (float)job->train.dampening;
        step->one_minus_dampening = (float)(1.0 - job->train.dampening);
        step->nesterov = job->train.nesterov;
        step->first = step_number == 1;
        return;
    }
    const double beta1 = job->train.beta1, beta2 = job->train.beta2;
    step->beta1 = (float)beta1;
    step->beta2 = (float)beta2;
    step->one_minus_beta1 = (float)(1.0 - beta1);
    step->one_minus_beta2 = (float)(1.0 - beta2);
    step->eps = (float)kelp_optimizer_eps(job);
    step->step_size = (float)(lr / (1.0 - power(beta1, step_number)));
    step->bias2_sqrt = (float)sqrt(1.0 - power(beta2, step_number));
    step->decay_factor = (float)(1.0 - lr * job->train.weight_decay);
}

bool kelp_optimizer_apply(const struct kelp_optimizer_step *step,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    const struct kelp_optimizer_loops *loops = kelp__loops()->optimizer;
    return step->kind == KELP_OPTIMIZER_SGD ? loops->sgd(step, buffers, count)
                                            : loops->adam(step, buffers, count);
}

bool kelp_vector_finite(const float *values, uint64_t count)
{
    const uint32_t exponent = 0x7f800000; /* all ones: infinite or not a number */
    uint32_t bad = 0;

    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        bad |= (bits & exponent) == exponent;
    }
    return bad == 0;
}

void kelp_vector_add(float *sum, const void *other, uint64_t count)
{
    kelp__loops()->optimizer->vector_add(sum, other, count);
}
