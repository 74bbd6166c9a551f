/*
 * What a shard is built of, as far as it reaches the weights: "0.1.0+" and what it computes on
 * fixed operands (kernels/update_answer.h) in 16 hexadecimal digits. All shards of a job are of one
 * build.
 */
#ifndef KELP_PS_ETCD_BUILD_H
#define KELP_PS_ETCD_BUILD_H

#include <stdbool.h>

#include "common/etcd/etcd.h"

#define KELP_BUILD_MAX 63 /* bytes */

/* Who asks. Everything is borrowed for the call. */
struct kelp_build {
    const char *job;
    const char *shard;
    const char *text; /* of this process */
    bool mixed;       /* cluster.mixed: versions only are compared */
};

/* This process's. */
void kelp_build_print(char text[KELP_BUILD_MAX + 1]);

/*
 * Is each shard that has registered of this build? One that names none is taken for it.
 *
 * earlier  look only at those that have registered before this one: of two that did at once, the
 *          later one goes.
 *
 * Errors: KELP_ERR_MISMATCH (it names both), those of kelp_etcd_get_prefix().
 */
kelp_status kelp_build_check(struct kelp_etcd *etcd, const struct kelp_build *build, bool earlier,
                             uint32_t deadline_ms, struct kelp_error *reterr) KELP_MUST_USE;

#endif
