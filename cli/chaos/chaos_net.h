/*
 * Network splits on one machine: this process moves into a network namespace of its own, with
 * nothing but loopback in it, and all that it starts from then on lives there. In it, rules of the
 * kernel's routing drop what comes from or goes to the ports of a process that is split off.
 *
 * A connection that the process opens while it is split off is found a moment after it was begun
 * (kelp_chaos_split_renew()): so a little gets through, as it does on a network that is failing.
 * Delay is not there: it would take a queueing discipline (netem) that many kernels lack.
 */
#ifndef KELP_CLI_CHAOS_CHAOS_NET_H
#define KELP_CLI_CHAOS_CHAOS_NET_H

#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

#define KELP_CHAOS_CUTS_MAX 8192 /* of one split: two of each port of a process */

/*
 * Move into the namespace; once, from the main thread, before others are made. Errors:
 * KELP_ERR_UNSUPPORTED (not root, or a kernel without namespaces or rules by port: the text says
 * which), KELP_ERR_IO.
 */
kelp_status kelp_chaos_net_enter(struct kelp_error *reterr) KELP_MUST_USE;

/* Which packets are dropped: from one port to another; 0: any port. All zero: none. */
struct kelp_chaos_split {
    struct kelp_chaos_cut {
        uint16_t from;
        uint16_t to;
    } cuts[KELP_CHAOS_CUTS_MAX];
    uint32_t count;
};

/* Drop them from now on, which may be so already; once the split is full, no more. */
kelp_status kelp_chaos_split_drop(struct kelp_chaos_split *split, struct kelp_chaos_cut cut,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* Cut off the ports that the process has now; those that are cut off already stay so. */
kelp_status kelp_chaos_split_renew(struct kelp_chaos_split *split, pid_t pid,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* Let everything through again. */
kelp_status kelp_chaos_split_heal(struct kelp_chaos_split *split,
                                  struct kelp_error *reterr) KELP_MUST_USE;

#endif
