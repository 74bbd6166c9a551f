/* What float64_check.json tells about the fixtures: how far PyTorch's own run is from one in
 * float64. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/golden/golden.h"

/* The second element of "<model>"/"<optimizer>/step<k>_param_worst_abs"; 0: absent. */
static double drift(const struct kelp_golden_file *file, const char *optimizer, uint32_t steps)
{
    char key[KELP_GOLDEN_NAME_SIZE + 64], model[KELP_GOLDEN_NAME_SIZE];
    cJSON *json = NULL;
    (void)snprintf(key, sizeof(key), "%s/step%u_param_worst_abs", optimizer, steps);
    (void)snprintf(model, sizeof(model), "%.*s", (int)strcspn(file->name, "."), file->name);
    if (kelp_golden_json("float64_check.json", &json, NULL) != KELP_OK) {
        return 0.0;
    }
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(json, model);
    const cJSON *worst = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(entry, key), 1);
    const double value = cJSON_IsNumber(worst) ? worst->valuedouble : 0.0;
    cJSON_Delete(json);
    return value;
}

static void widen(const struct kelp_golden_file *file, const struct kelp_job *job,
                  const char *optimizer, uint32_t steps, struct kelp_golden_tolerances *tolerances)
{
    const double worst = drift(file, optimizer, steps);
    if (worst <= 0.02 * job->train.lr * steps) {
        return;
    }
    tolerances->parameters.atol = fmax(tolerances->parameters.atol, 1.2 * worst);
    tolerances->statistics.atol = fmax(tolerances->statistics.atol, fmin(worst, 0.02));
    tolerances->statistics.rtol = fmax(tolerances->statistics.rtol, 0.02);
    tolerances->losses.rtol = fmax(tolerances->losses.rtol, 0.01);
}

struct kelp_golden_tolerances kelp_golden_after(const struct kelp_golden_file *file,
                                                const struct kelp_job *job, const char *optimizer,
                                                uint32_t steps)
{
    struct kelp_golden_tolerances tolerances = {.parameters = kelp_golden_after_steps(job, steps),
                                                .statistics =
                                                    kelp_golden_statistics_after(job, steps),
                                                .losses = kelp_golden_losses(job, steps)};
    widen(file, job, optimizer, steps, &tolerances);
    return tolerances;
}
