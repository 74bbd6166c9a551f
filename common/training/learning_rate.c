/* A step's learning rate; kelp_learning_rate() is at the end, after the schedules. */
#include "common/training/learning_rate.h"

#include <assert.h>

#define PI 3.14159265358979323846

/* base^exponent by squaring: as exact as repeated multiplication, in fewer steps. */
static double power(double base, uint64_t exponent)
{
    double result = 1;

    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

/* sin(pi x) and cos(pi x) for 0 <= x <= 1/4: series whose first omitted term is below 2^-60. */
static double sine_series(double x)
{
    double angle = PI * x, square = angle * angle, term = angle, sum = 0;

    for (int k = 1; k <= 19; k += 2) {
        sum += term;
        term *= -square / ((k + 1.0) * (k + 2.0));
    }
    return sum;
}

static double cosine_series(double x)
{
    double angle = PI * x, square = angle * angle, term = 1, sum = 0;

    for (int k = 0; k <= 18; k += 2) {
        sum += term;
        term *= -square / ((k + 1.0) * (k + 2.0));
    }
    return sum;
}

/* (1 + cos(pi x)) / 2 = cos(pi x / 2)^2 for 0 <= x <= 1, written so that it is exactly 0 at the
 * end. */
static double cosine_share(double x)
{
    double root = x <= 0.5 ? cosine_series(x / 2) : sine_series((1 - x) / 2);
    return root * root;
}

static double cosine(const struct kelp_job *job, uint64_t unit, uint64_t total)
{
    double x = unit >= total ? 1 : (double)unit / (double)total;
    return job->train.lr_min + (job->train.lr - job->train.lr_min) * cosine_share(x);
}

/* Position of `unit` within its period, and the period's length. */
static double cosine_restarts(const struct kelp_job *job, uint64_t unit, uint64_t total)
{
    uint64_t period = total, factor = job->train.restart_factor;

    if (factor <= 1) {
        return cosine(job, unit % period, period);
    }
    while (unit >= period) {
        unit -= period;
        period = period <= UINT64_MAX / factor ? period * factor : UINT64_MAX;
    }
    return cosine(job, unit, period);
}

static uint64_t milestones_before(const struct kelp_job *job, uint64_t unit)
{
    uint64_t count = 0;

    while (count < job->train.milestone_count && job->train.milestones[count] <= unit) {
        count++;
    }
    return count;
}

static double linear(const struct kelp_job *job, uint64_t unit, uint64_t total)
{
    double start = job->train.start_factor;
    double share = unit >= total ? 1 : (double)unit / (double)total;
    return job->train.lr * (start + (1 - start) * share);
}

/* Length of a schedule in units, without warm-up; at least one. */
static uint64_t total_of(const struct kelp_job *job, uint64_t run)
{
    uint64_t total = job->train.schedule_total > 0 ? job->train.schedule_total : run;
    uint64_t warmup = job->train.schedule == KELP_SCHEDULE_COSINE ? job->train.warmup : 0;
    return total > warmup ? total - warmup : 1;
}

static double scheduled(const struct kelp_job *job, const struct kelp_run_place *place,
                        uint64_t unit, uint64_t run)
{
    const double lr = job->train.lr;
    uint64_t after = unit > job->train.warmup ? unit - job->train.warmup : 0;

    switch (job->train.schedule) {
    case KELP_SCHEDULE_CONSTANT:
        return lr;
    case KELP_SCHEDULE_STEP:
        assert(job->train.schedule_step > 0);
        return lr * power(job->train.gamma, unit / job->train.schedule_step);
    case KELP_SCHEDULE_MULTISTEP:
        return lr * power(job->train.gamma, milestones_before(job, unit));
    case KELP_SCHEDULE_EXPONENTIAL:
        return lr * power(job->train.gamma, unit);
    case KELP_SCHEDULE_TYPE1:
        /* The article's code sets lr / 2^e after epoch e (from 0), so the first two epochs have
         * the full rate. Powers of two are exact. */
        return place->epoch < 2 ? lr : lr * power(0.5, place->epoch - 1);
    case KELP_SCHEDULE_COSINE:
        return cosine(job, after, total_of(job, run));
    case KELP_SCHEDULE_COSINE_RESTARTS:
        return cosine_restarts(job, after, total_of(job, run));
    case KELP_SCHEDULE_LINEAR:
        return linear(job, unit, total_of(job, run));
    case KELP_SCHEDULE_PLATEAU:
        return place->plateau_lr;
    }
    assert(false && "schedule kind");
    return lr;
}

double kelp_learning_rate(const struct kelp_job *job, const struct kelp_run_place *place)
{
    bool steps = job->train.schedule_unit == KELP_SCHEDULE_BY_STEP;
    uint64_t unit = steps ? place->step : place->epoch;
    double lr = scheduled(job, place, unit, steps ? place->step_total : place->epoch_total);
    double warmup = job->train.warmup;

    if (unit < job->train.warmup) {
        lr *= ((double)unit + 1) / (warmup + 1);
    }
    return lr;
}
