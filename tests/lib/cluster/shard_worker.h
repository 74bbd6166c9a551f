/*
 * A scripted worker: its requests to a real kelp-ps, and the answers. On an error these functions
 * fail the running test.
 */
#ifndef KELP_TESTS_LIB_CLUSTER_SHARD_WORKER_H
#define KELP_TESTS_LIB_CLUSTER_SHARD_WORKER_H

#include "tests/lib/cluster/shard_client.h"

#define SHARD_WORKER_DIGEST "00112233445566778899aabbccddeeff"

/* ---- requests ------------------------------------------------------------------------------ */

/* Memory for one request to a shard; it has pointers into itself. */
struct shard_request {
    Kelp__V1__ExchangeRequest message;
    Kelp__V1__Hello hello;
    Kelp__V1__ControlWord word;
    Kelp__V1__PushItem pushes[64];
    Kelp__V1__PushItem *push_pointers[64];
    Kelp__V1__PullItem pulls[64];
    Kelp__V1__PullItem *pull_pointers[64];
    double sums[KELP_METRIC_SUM_COUNT];
};

void shard_request_init(struct shard_request *request, uint64_t generation);
void shard_request_hello(struct shard_request *request, const struct shard_fixture *fixture);
void shard_request_word(struct shard_request *request, const struct kelp_control_word *word);
/* All four lanes of a partition, at its place in the flat vector; or without a gradient, as in
 * an evaluation. */
Kelp__V1__PushItem *shard_request_push(struct shard_request *request,
                                       const struct shard_fixture *fixture, uint32_t partition,
                                       bool with_gradient);
/* Add request->sums and a digest to the push. */
void shard_request_sums(struct shard_request *request, Kelp__V1__PushItem *item);
Kelp__V1__PullItem *shard_request_pull(struct shard_request *request, uint32_t partition,
                                       Kelp__V1__PullMode mode, uint64_t target);
/* Pull all partitions. */
void shard_request_pull_all(struct shard_request *request, const struct shard_fixture *fixture,
                            Kelp__V1__PullMode mode, uint64_t target);
/* Push lanes of all partitions, with sums for partition 0; without a gradient, only of partition
 * 0. */
void shard_request_push_lanes(struct shard_request *request, const struct shard_fixture *fixture,
                              uint32_t lane_first, uint32_t lane_count, bool with_gradient);

/* ---- answers ------------------------------------------------------------------------------- */

/* The next reply, without those that have only offers: on a slow machine lanes are late. As
 * shard_stream_take(). */
Kelp__V1__ExchangeReply *shard_worker_take_reply(struct shard_stream *worker,
                                                 struct kelp_rpc_message **ret_message,
                                                 struct kelp_wire_payload *ret_payload);
/* Take the next reply, with weights of `step`: they are copied to their places in the flat
 * vector, and partition 0's word to *ret_word. Returns how many partitions answered. */
uint32_t shard_worker_take_answers(struct shard_stream *worker, uint64_t step, float *weights,
                                   struct kelp_control_word *ret_word);
/* The same until all partitions have answered. Returns how many replies that took. */
uint32_t shard_worker_take_weights(struct shard_stream *worker, uint64_t step, float *weights,
                                   struct kelp_control_word *ret_word);

/* ---- a worker ------------------------------------------------------------------------------ */

/* Zeros; owned (free()). */
float *shard_worker_new_flat(const struct shard_fixture *fixture);
size_t shard_worker_flat_bytes(const struct shard_fixture *fixture);
/* The gradient of lane `lane` in a step. */
void shard_worker_gradient(const struct shard_fixture *fixture, float *gradient, uint32_t lane,
                           uint64_t step);
/* Send hello, and pull the weights of step 0. */
void shard_worker_open(struct shard_stream *worker, struct shard_fixture *fixture,
                       uint64_t generation, float *weights, struct kelp_control_word *ret_word);
/* Push one lane of generation 1, and optionally pull the next step. */
void shard_worker_push_lane(struct shard_stream *worker, const struct kelp_control_word *word,
                            uint32_t lane, bool pull);

#endif
