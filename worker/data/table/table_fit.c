#include "worker/data/table/table_fit.h"

#include <math.h>

void kelp_fit_first(struct kelp_fit *fit, double value)
{
    fit->count++;
    if (isnan(value)) {
        return;
    }
    fit->min = fit->present == 0 || value < fit->min ? value : fit->min;
    fit->max = fit->present == 0 || value > fit->max ? value : fit->max;
    fit->present++;
    fit->sum += value;
}

void kelp_fit_first_end(struct kelp_fit *fit)
{
    fit->mean = fit->present > 0 ? fit->sum / (double)fit->present : 0.0;
}

void kelp_fit_second(struct kelp_fit *fit, double value)
{
    double off = isnan(value) ? 0.0 : value - fit->mean;
    fit->squares += off * off;
}

bool kelp_fit_scale(const struct kelp_fit *fit, enum kelp_normalize_kind kind,
                    struct kelp_target_scale *ret_scale)
{
    *ret_scale = (struct kelp_target_scale){.factor = 1.0};
    double factor = 1.0;
    switch (kind) {
    case KELP_NORMALIZE_NONE:
        return true;
    case KELP_NORMALIZE_STANDARD:
        ret_scale->shift = fit->mean;
        factor = sqrt(fit->squares / (double)fit->count);
        break;
    case KELP_NORMALIZE_MINMAX:
        ret_scale->shift = fit->min;
        factor = fit->max - fit->min;
        break;
    }
    if (!isfinite(factor) || !(factor > 0.0) || fit->min == fit->max) {
        return false;
    }
    ret_scale->factor = factor;
    return true;
}

float kelp_fit_apply(const struct kelp_fit *fit, const struct kelp_target_scale *scale,
                     double value)
{
    return (float)(((isnan(value) ? fit->mean : value) - scale->shift) / scale->factor);
}
