/*
 * A worker without computation: it pushes the same gradient for one lane of each step and pulls the
 * next weights, over a real stream (tests/lib/cluster/shard_client.h). On an error these functions
 * fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SCRIPTED_WORKER_H
#define KELP_TESTS_LIB_CLUSTER_SCRIPTED_WORKER_H

#include "tests/lib/cluster/shard_client.h"

struct scripted_worker {
    struct shard_stream stream;
    Kelp__V1__ExchangeRequest request;
    Kelp__V1__PushItem *pushes; /* owned; one for each partition */
    Kelp__V1__PullItem *pulls;
};

/* Join in `generation` and read the control word of the next step. */
void scripted_worker_open(struct scripted_worker *worker, struct shard_fixture *fixture,
                          uint64_t generation, uint32_t lane, struct kelp_control_word *ret_word);
void scripted_worker_close(struct scripted_worker *worker);

/* Push the step of `word` and request the next weights. The answer to the step before must have
 * been taken. */
void scripted_worker_send(struct scripted_worker *worker, const struct kelp_control_word *word,
                          const float *gradient);
/* Wait for the whole answer; *ret_word: of the next step. */
void scripted_worker_take(struct scripted_worker *worker, struct kelp_control_word *ret_word);

#endif
