/* A library that ends its process while the model is built: how=abort, exit or hang; or abort in
 * the workers alone, with how=worker. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kelp/model.h>

static void misbehave(const char *how)
{
    if (strcmp(how, "exit") == 0) {
        exit(3);
    }
    while (strcmp(how, "hang") == 0) {
        (void)pause();
    }
    if (strcmp(how, "abort") == 0 ||
        (strcmp(how, "worker") == 0 && strcmp(program_invocation_short_name, "kelp-worker") == 0)) {
        if (strcmp(how, "worker") == 0) {
            (void)fputs("unruly gives up\n", stderr); /* the log's last words */
        }
        abort();
    }
}

static uint32_t build(const struct kelp_model_api *api, struct kelp_model_builder *b)
{
    const struct kelp_model_tensor *in = api->sample_input(b, 0);
    const struct kelp_model_tensor *target = api->sample_target(b);
    misbehave(api->param(b, "how"));
    uint32_t x = api->input(b, "window", in->rank, in->dims);
    x = api->transpose(b, "by channel", x);
    x = api->layer_linear(b, "fc", x, target->dims[0], 1);
    return api->transpose(b, "by time", x);
}

KELP_MODEL("unruly", build)
