/* What float64_check.json says of the fixtures: how far PyTorch's own run is from one in float64.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/files.h"
#include "tests/lib/golden.h"

/* The second element of "<model>"/"<optimizer>/step<k>_param_worst_abs"; 0 when it is not there. */
static double read_worst(const char *text, const char *model, const char *key)
{
    cJSON *json = cJSON_Parse(text);
    const cJSON *file = cJSON_GetObjectItemCaseSensitive(json, model);
    const cJSON *worst = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(file, key), 1);
    const double value = cJSON_IsNumber(worst) ? worst->valuedouble : 0.0;
    cJSON_Delete(json);
    return value;
}

static double drift(const struct kelp_golden_file *file, const char *optimizer, uint32_t steps)
{
    char path[KELP_TEST_PATH_MAX + 32], key[KELP_GOLDEN_NAME_SIZE + 64];
    char model[KELP_GOLDEN_NAME_SIZE];
    char *text = NULL;
    size_t count = 0;
    (void)snprintf(path, sizeof(path), "%s/float64_check.json", file->set->folder);
    (void)snprintf(key, sizeof(key), "%s/step%u_param_worst_abs", optimizer, steps);
    (void)snprintf(model, sizeof(model), "%s", file->name);
    model[strcspn(model, ".")] = '\0';
    if (kelp_files_read(path, 1 << 24, &text, &count, NULL) != KELP_OK) {
        return 0.0;
    }
    const double value = read_worst(text, model, key);
    free(text);
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
