/* Names of environment variables: KELP_TRAIN_LR is train.lr. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/value.h"
#include "common/job/job_options.h"

void kelp__job_variable(const char *key, char *name, size_t name_bytes)
{
    (void)snprintf(name, name_bytes, "KELP_%s", key);
    for (char *c = name; *c != '\0'; c++) {
        *c = *c == '.' ? '_' : (char)toupper((unsigned char)*c);
    }
}

/* Does the variable start like those of the key's section? "KELP_TRAIN_LRR" does, like
 * KELP_TRAIN_LR. */
static bool in_section_of(const char *variable, const char *key, const char *other)
{
    size_t section = strcspn(key, ".");

    return key[section] == '.' && strncmp(variable, other, strlen("KELP_") + section + 1) == 0;
}

bool kelp_job_variable_unknown(const char *variable, char *nearest, size_t nearest_bytes)
{
    uint32_t best = UINT32_MAX;
    bool section = false;

    nearest[0] = '\0';
    if (strncmp(variable, "KELP_", strlen("KELP_")) != 0) {
        return false;
    }
    for (size_t i = 0; i < kelp__job_key_count; i++) {
        char name[64];
        kelp__job_variable(kelp__job_keys[i].name, name, sizeof(name));
        const char *rest = name + strlen("KELP_");
        uint32_t distance = kelp_value_distance(variable + strlen("KELP_"), rest);
        if (distance == 0) {
            return false;
        }
        if (distance < best && kelp_value_near(distance, rest)) {
            best = distance;
            (void)snprintf(nearest, nearest_bytes, "%s", name);
        }
        section = section || in_section_of(variable, kelp__job_keys[i].name, name);
    }
    return section || nearest[0] != '\0';
}
