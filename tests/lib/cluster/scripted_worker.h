/*
 * A worker without computation: pushes the same gradient for one lane of each step and pulls the
 * next weights, over a real stream (tests/lib/cluster/shard_client.h). Everything here fails the
 * running test when it cannot do its work.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SCRIPTED_WORKER_H
#define KELP_TESTS_LIB_CLUSTER_SCRIPTED_WORKER_H

#include "tests/lib/cluster/shard_client.h"

struct scripted_worker {
    struct shard_stream stream;
    Kelp__V1__ExchangeRequest request;
    Kelp__V1__PushItem *pushes; /* owned, of each partition */
    Kelp__V1__PullItem *pulls;
};

/* Join in `generation` and take the control word of the next step. */
void scripted_worker_open(struct scripted_worker *worker, struct shard_fixture *fixture,
                          uint64_t generation, uint32_t lane, struct kelp_control_word *ret_word);
void scripted_worker_close(struct scripted_worker *worker);

/* Push the step that word names and ask for the next weights; the answer to the step before has
 * been taken. */
void scripted_worker_send(struct scripted_worker *worker, const struct kelp_control_word *word,
                          const float *gradient);
/* Wait for all of the answer; *ret_word: of the next step. */
void scripted_worker_take(struct scripted_worker *worker, struct kelp_control_word *ret_word);

#endif
