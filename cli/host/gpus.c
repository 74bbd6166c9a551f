#include "cli/host/gpus.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_name(const char *text, size_t bytes)
{
    bool plain = bytes > 0 && bytes <= KELP_GPU_NAME_MAX;

    for (size_t i = 0; i < bytes && plain; i++) {
        plain = isalnum((unsigned char)text[i]) || strchr("-/:_", text[i]);
    }
    return plain;
}

static bool is_known(const struct kelp_gpus *gpus, const char *name)
{
    for (size_t i = 0; i < gpus->count; i++) {
        if (strcmp(gpus->names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

kelp_status kelp_gpus_parse(const char *what, const char *text, struct kelp_gpus *ret_gpus,
                            struct kelp_error *reterr)
{
    *ret_gpus = (struct kelp_gpus){.count = 0};
    for (const char *at = text; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        char name[KELP_GPU_NAME_MAX + 1];
        size_t bytes = strcspn(at, ",");
        if (!is_name(at, bytes)) {
            return kelp_fail(reterr, KELP_ERR_INVALID,
                             "%s '%.200s': expected numbers or names of GPUs, such as 0,1", what,
                             text);
        }
        if (ret_gpus->count == KELP_GPUS_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT, "%s: a host has at most %d GPUs", what,
                             KELP_GPUS_MAX);
        }
        (void)snprintf(name, sizeof(name), "%.*s", (int)bytes, at);
        if (is_known(ret_gpus, name)) {
            return kelp_fail(reterr, KELP_ERR_INVALID, "%s '%.200s': %s is there twice", what, text,
                             name);
        }
        memcpy(ret_gpus->names[ret_gpus->count++], name, sizeof(name));
    }
    return KELP_OK;
}

/* CUDA numbers those that it can open from 0, whatever the numbers of their device files are. */
static void find_all(struct kelp_gpus *gpus)
{
    char path[32];

    for (size_t i = 0; i < KELP_GPUS_MAX; i++) {
        (void)snprintf(path, sizeof(path), "/dev/nvidia%zu", i);
        if (access(path, R_OK | W_OK) == 0) {
            (void)snprintf(gpus->names[gpus->count], sizeof(gpus->names[0]), "%zu", gpus->count);
            gpus->count++;
        }
    }
}

kelp_status kelp_gpus_find(const char *typed, bool cuda, struct kelp_gpus *ret_gpus,
                           struct kelp_error *reterr)
{
    const char *visible = getenv(KELP_GPU_ENTRY);

    if (!cuda) {
        ret_gpus->count = 0;
        return typed ? kelp_fail(reterr, KELP_ERR_INVALID,
                                 "--gpus is for a job with cluster.device: cuda")
                     : KELP_OK;
    }
    if (typed) {
        return kelp_gpus_parse("--gpus", typed, ret_gpus, reterr);
    }
    *ret_gpus = (struct kelp_gpus){.count = 0};
    if (visible) {
        return visible[0] == '\0' ? KELP_OK
                                  : kelp_gpus_parse(KELP_GPU_ENTRY, visible, ret_gpus, reterr);
    }
    find_all(ret_gpus);
    return KELP_OK;
}

uint32_t kelp_gpus_sharing(const struct kelp_gpus *gpus, uint32_t workers)
{
    const uint32_t count = (uint32_t)gpus->count;
    return count == 0 || workers <= count ? 1 : (workers + count - 1) / count;
}

void kelp_gpus_entry(const struct kelp_gpus *gpus, uint32_t worker,
                     char entry[KELP_GPU_ENTRY_MAX + 1])
{
    (void)snprintf(entry, KELP_GPU_ENTRY_MAX + 1, "%s=%s", KELP_GPU_ENTRY,
                   gpus->names[worker % gpus->count]);
}
