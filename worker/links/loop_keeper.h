/*
 * Runs a worker's event loop while its owner computes for long, on a thread of its own, so that
 * streams live, maps are taken and what was lost is sent again also while one lane takes minutes.
 *
 * The owner runs the loop itself whenever it waits: a hand-over costs a wake-up, which is more than
 * a small step takes. So the keeper looks at times whether the owner has been away for a while, and
 * only then takes the loop, until the owner wants it back.
 *
 *     owner   ── waits in the loop ──► leave ── computes ─────────────────► return ── waits ──►
 *     keeper                                     50 ms ──► runs the loop ──►│
 *
 * Whoever runs the loop owns everything that its callbacks touch; a hand-over is a barrier.
 */
#ifndef KELP_WORKER_LINKS_LOOP_KEEPER_H
#define KELP_WORKER_LINKS_LOOP_KEEPER_H

#include "common/base/status.h"
#include "common/rpc/rpc.h"

struct kelp_loop_keeper;

/* ran(user) follows each event that the keeper has handled, on its thread. The owner has the loop.
 * Errors: KELP_ERR_NO_MEMORY. */
kelp_status kelp_loop_keeper_start(struct kelp_rpc_loop *loop, void (*ran)(void *user), void *user,
                                   struct kelp_loop_keeper **ret_keeper,
                                   struct kelp_error *reterr) KELP_MUST_USE;
/* The owner has the loop afterwards. NULL does nothing. */
void kelp_loop_keeper_stop(struct kelp_loop_keeper *keeper);

/* Threads: the owner's. Away: it must not run the loop, nor touch what its callbacks do. at_once:
 * there will be work for the loop, so the keeper takes it without looking first. */
void kelp_loop_keeper_leave(struct kelp_loop_keeper *keeper, bool at_once);
void kelp_loop_keeper_return(struct kelp_loop_keeper *keeper);
/* The owner is back for a moment: it counts as away without a break. Twice is once. */
void kelp_loop_keeper_pause(struct kelp_loop_keeper *keeper);
void kelp_loop_keeper_resume(struct kelp_loop_keeper *keeper);

#endif
