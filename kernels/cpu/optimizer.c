#include "kernels/optimizer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/loops/loops.h"

/* Names of the slots in the loops' order; ret_names may be NULL. */
static uint32_t list_slots(const struct kelp_job *job,
                           const char *ret_names[KELP_OPTIMIZER_SLOTS_MAX])
{
    const char *names[KELP_OPTIMIZER_SLOTS_MAX] = {NULL};
    const bool momentum = (float)job->train.momentum != 0.0f;
    uint32_t count = 0;

    switch (job->train.optimizer) {
    case KELP_OPTIMIZER_SGD:
        if (momentum) {
            names[count++] = "momentum_buffer";
        }
        break;
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
    case KELP_OPTIMIZER_LAMB:
        names[count++] = "exp_avg";
        names[count++] = "exp_avg_sq";
        if (job->train.optimizer != KELP_OPTIMIZER_LAMB && job->train.amsgrad) {
            names[count++] = "max_exp_avg_sq";
        }
        break;
    case KELP_OPTIMIZER_ADAGRAD:
        names[count++] = "sum";
        break;
    case KELP_OPTIMIZER_RMSPROP:
        names[count++] = "square_avg";
        if (momentum) {
            names[count++] = "momentum_buffer";
        }
        if (job->train.centered) {
            names[count++] = "grad_avg";
        }
        break;
    case KELP_OPTIMIZER_ADADELTA:
        names[count++] = "square_avg";
        names[count++] = "acc_delta";
        break;
    }
    if (ret_names) {
        memcpy(ret_names, names, sizeof(names));
    }
    return count;
}

uint32_t kelp_optimizer_slot_count(const struct kelp_job *job)
{
    return list_slots(job, NULL);
}

const char *kelp_optimizer_slot_name(const struct kelp_job *job, uint32_t slot)
{
    const char *names[KELP_OPTIMIZER_SLOTS_MAX];
    const uint32_t count = list_slots(job, names);

    assert(slot < count);
    return names[slot];
}

float kelp_optimizer_slot_start(const struct kelp_job *job, uint32_t slot)
{
    assert(slot < kelp_optimizer_slot_count(job));
    return job->train.optimizer == KELP_OPTIMIZER_ADAGRAD ? (float)job->train.initial_accumulator
                                                          : 0.0f;
}

/* train.eps; 0: PyTorch's default for the job's optimizer. */
static double eps_of(const struct kelp_job *job)
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

/* base^exponent by squaring. Not pow(), whose last bit depends on the C library and the
 * processor. */
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

/* Scalars of adam, adamw and lamb. */
static void prepare_moments(struct kelp_optimizer_step *step, const struct kelp_job *job, double lr,
                            uint64_t step_number)
{
    const double beta1 = job->train.beta1, beta2 = job->train.beta2;

    step->beta1 = (float)beta1;
    step->beta2 = (float)beta2;
    step->one_minus_beta1 = (float)(1.0 - beta1);
    step->one_minus_beta2 = (float)(1.0 - beta2);
    step->amsgrad = step->kind != KELP_OPTIMIZER_LAMB && job->train.amsgrad;
    /* lamb applies its rate after the trust ratio, which must not include it */
    const double rate = step->kind == KELP_OPTIMIZER_LAMB ? 1.0 : lr;
    step->step_size = (float)(rate / (1.0 - power(beta1, step_number)));
    step->bias2_sqrt = (float)sqrt(1.0 - power(beta2, step_number));
    step->decay_factor = (float)(1.0 - lr * job->train.weight_decay);
}

void kelp_optimizer_prepare(struct kelp_optimizer_step *step, const struct kelp_job *job, double lr,
                            uint64_t step_number)
{
    assert(step_number >= 1);
    memset(step, 0, sizeof(*step));
    step->kind = job->train.optimizer;
    step->scale = 1.0f;
    step->lr = (float)lr;
    step->weight_decay = (float)job->train.weight_decay;
    step->eps = (float)eps_of(job);
    switch (step->kind) {
    case KELP_OPTIMIZER_SGD:
        step->momentum = (float)job->train.momentum;
        step->dampening = (float)job->train.dampening;
        step->one_minus_dampening = (float)(1.0 - job->train.dampening);
        step->nesterov = job->train.nesterov;
        step->first = step_number == 1;
        break;
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
    case KELP_OPTIMIZER_LAMB:
        prepare_moments(step, job, lr, step_number);
        break;
    case KELP_OPTIMIZER_ADAGRAD:
        step->step_size = (float)(lr / (1.0 + (double)(step_number - 1) * job->train.lr_decay));
        break;
    case KELP_OPTIMIZER_RMSPROP:
        step->momentum = (float)job->train.momentum;
        step->centered = job->train.centered;
        step->beta2 = (float)job->train.alpha;
        step->one_minus_beta2 = (float)(1.0 - job->train.alpha);
        break;
    case KELP_OPTIMIZER_ADADELTA:
        step->beta2 = (float)job->train.rho;
        step->one_minus_beta2 = (float)(1.0 - job->train.rho);
        break;
    }
}

void kelp_optimizer_leave_decay(struct kelp_optimizer_step *step)
{
    step->weight_decay = 0.0f;
    step->decay_factor = 1.0f;
}

bool kelp__optimizer_update(const struct kelp_optimizer_loops *loops,
                            const struct kelp_optimizer_step *step,
                            const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    switch (step->kind) {
    case KELP_OPTIMIZER_SGD:
        return loops->sgd(step, buffers, count);
    case KELP_OPTIMIZER_ADAM:
    case KELP_OPTIMIZER_ADAMW:
        return loops->adam(step, buffers, count);
    case KELP_OPTIMIZER_ADAGRAD:
        return loops->adagrad(step, buffers, count);
    case KELP_OPTIMIZER_RMSPROP:
        return loops->rmsprop(step, buffers, count);
    case KELP_OPTIMIZER_ADADELTA:
        return loops->adadelta(step, buffers, count);
    case KELP_OPTIMIZER_LAMB: /* needs tensors: kelp_update_apply() */
        break;
    }
    assert(false && "not element by element");
    return false;
}

bool kelp_optimizer_apply(const struct kelp_optimizer_step *step,
                          const struct kelp_optimizer_buffers *buffers, uint64_t count)
{
    return kelp__optimizer_update(kelp__loops()->optimizer, step, buffers, count);
}

bool kelp_vector_finite(const float *values, uint64_t count)
{
    return kelp__loops()->optimizer->vector_finite(values, count);
}

void kelp_vector_add(float *sum, const void *other, uint64_t count)
{
    kelp__loops()->optimizer->vector_add(sum, other, count);
}

void kelp_vector_sum(float *sum, const void *left, const void *right, uint64_t count)
{
    kelp__loops()->optimizer->vector_sum(sum, left, right, count);
}
