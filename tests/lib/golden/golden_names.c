/* What the names of cases mean: settings of an optimizer or a schedule, and the cases
 * themselves. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/golden/golden.h"

bool kelp_golden_number(const char *text, const char *word, uint32_t *ret_value)
{
    const char *found = strstr(text, word);
    if (found == NULL) {
        return false;
    }
    char *end = NULL;
    const unsigned long value = strtoul(found + strlen(word), &end, 10);
    if (end == found + strlen(word) || value > UINT32_MAX) {
        return false;
    }
    *ret_value = (uint32_t)value;
    return true;
}

double kelp_golden_real(const char *text, const char *word, double otherwise)
{
    const char *at = strstr(text, word);
    return at != NULL ? strtod(at + strlen(word), NULL) : otherwise;
}

/* True: `word` is this setting, and it was set. */
static bool set_one(const struct kelp_golden_setting *setting, const char *word)
{
    const size_t length = strlen(setting->word);
    if (strncmp(word, setting->word, length) != 0) {
        return false;
    }
    const char *behind = word + length;
    if (setting->flag != NULL) {
        *setting->flag = true;
        return *behind == '\0';
    }
    char *end = NULL;
    if (!isdigit((unsigned char)*behind)) {
        return false;
    }
    if (setting->number != NULL) {
        *setting->number = strtod(behind, &end);
    } else {
        const uint32_t at = setting->count != NULL ? *setting->count : 0;
        if (at == KELP_JOB_LIST_MAX) {
            return false;
        }
        setting->whole[at] = (uint32_t)strtoul(behind, &end, 10);
        if (setting->count != NULL) {
            *setting->count = at + 1;
        }
    }
    return end != NULL && *end == '\0';
}

bool kelp_golden_settings(const char *words, const struct kelp_golden_setting *settings,
                          size_t count)
{
    char copy[KELP_GOLDEN_NAME_SIZE];
    (void)snprintf(copy, sizeof(copy), "%s", words);
    char *rest = copy;
    for (const char *word; (word = strsep(&rest, "_")) != NULL;) {
        size_t i = 0;
        while (i < count && !set_one(&settings[i], word)) {
            i++;
        }
        if (i == count) {
            return false;
        }
    }
    return true;
}

/* torch.optim's defaults for what the names leave out. */
static bool optimizer_defaults(const char *word, size_t length, struct kelp_job *job)
{
    static const struct {
        const char *word;
        enum kelp_optimizer_kind kind;
        double weight_decay;
    } kinds[] = {
        {"sgd", KELP_OPTIMIZER_SGD, 0.0},         {"adam", KELP_OPTIMIZER_ADAM, 0.0},
        {"adamw", KELP_OPTIMIZER_ADAMW, 0.01},    {"adagrad", KELP_OPTIMIZER_ADAGRAD, 0.0},
        {"rmsprop", KELP_OPTIMIZER_RMSPROP, 0.0}, {"adadelta", KELP_OPTIMIZER_ADADELTA, 0.0}};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(kinds); i++) {
        if (strlen(kinds[i].word) == length && memcmp(word, kinds[i].word, length) == 0) {
            job->train.optimizer = kinds[i].kind;
            job->train.weight_decay = kinds[i].weight_decay;
            job->train.momentum = job->train.dampening = job->train.eps = 0.0;
            job->train.lr_decay = job->train.initial_accumulator = 0.0;
            job->train.nesterov = job->train.amsgrad = job->train.centered = false;
            job->train.beta1 = 0.9;
            job->train.beta2 = 0.999;
            job->train.alpha = 0.99;
            job->train.rho = 0.9;
            return true;
        }
    }
    return false;
}

bool kelp_golden_optimizer(const char *name, struct kelp_job *job)
{
    double lr = -1.0;
    const struct kelp_golden_setting settings[] = {
        {"lr", .number = &lr},
        {"momentum", .number = &job->train.momentum},
        {"dampening", .number = &job->train.dampening},
        {"wd", .number = &job->train.weight_decay},
        {"eps", .number = &job->train.eps},
        {"lrdecay", .number = &job->train.lr_decay},
        {"acc", .number = &job->train.initial_accumulator},
        {"alpha", .number = &job->train.alpha},
        {"rho", .number = &job->train.rho},
        {"nesterov", .flag = &job->train.nesterov},
        {"amsgrad", .flag = &job->train.amsgrad},
        {"centered", .flag = &job->train.centered},
    };
    const size_t length = strcspn(name, "_");
    if (name[length] == '\0' || !optimizer_defaults(name, length, job) ||
        !kelp_golden_settings(name + length + 1, settings, KELP_ARRAY_COUNT(settings))) {
        return false;
    }
    job->train.lr = lr;
    return lr >= 0.0;
}

uint32_t kelp_golden_cases(const struct kelp_golden_file *file, const char *prefix,
                           char cases[KELP_GOLDEN_CASES_MAX][KELP_GOLDEN_NAME_SIZE])
{
    uint32_t count = 0;
    for (size_t i = 0; i < kelp_safetensors_count(file->tensors); i++) {
        const char *name = kelp_safetensors_at(file->tensors, i)->name;
        if (strncmp(name, prefix, strlen(prefix)) != 0) {
            continue;
        }
        name += strlen(prefix);
        const char *slash = strchr(name, '/');
        if (slash == NULL || slash == name || slash - name >= KELP_GOLDEN_NAME_SIZE) {
            continue;
        }
        const size_t length = (size_t)(slash - name);
        bool known = false;
        for (uint32_t c = 0; c < count && !known; c++) {
            known = strlen(cases[c]) == length && memcmp(cases[c], name, length) == 0;
        }
        if (!known && count < KELP_GOLDEN_CASES_MAX) {
            memcpy(cases[count], name, length);
            cases[count++][length] = '\0';
        }
    }
    return count;
}
