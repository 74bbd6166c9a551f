/*
 * A partition under test, and its shell: gradients are texts such as "((0+1)+(2+3))", which show
 * the association. Merges and applies are done when the test wants.
 */
#ifndef KELP_TESTS_LIB_CORES_PARTITION_BENCH_H
#define KELP_TESTS_LIB_CORES_PARTITION_BENCH_H

#include "ps/core/partition/partition.h"

#define BENCH_HANDLES_MAX    256
#define BENCH_LANES          4
#define BENCH_BATCH          8
#define BENCH_OFFERS_MAX     32
#define BENCH_REPLICATED_MAX 32

struct bench {
    struct kelp_job job;
    struct kelp_plan plan;
    struct kelp_partition *partition;
    struct kelp_actions actions;
    uint32_t index;
    bool hollow;
    bool skips;                         /* failure.on_nan */
    bool clips;                         /* train.clip_norm */
    char *gradients[BENCH_HANDLES_MAX]; /* by handle; NULL: free */
    uint64_t handle_count;
    struct kelp_action merges[32];
    size_t merge_count;
    struct kelp_action apply; /* the latest */
    size_t apply_count;
    struct kelp_action measure; /* the latest */
    size_t metric_count;
    size_t repeat_count;
    struct kelp_answer answers[32];
    size_t answer_count;
    struct kelp_refusal refusal; /* the latest */
    size_t refusal_count;
    struct kelp_record record; /* the latest */
    size_t record_count;
    struct kelp_action give_up; /* the latest */
    size_t give_up_count;
    struct kelp_action snapshot; /* the latest */
    size_t snapshot_count;
    struct kelp_action past; /* the latest */
    size_t past_count;
    struct kelp_offer offers[BENCH_OFFERS_MAX];
    size_t offer_count;
    bool compares;                 /* contents differ by the text's letters; false: all are equal */
    uint32_t author;               /* of the next push */
    struct kelp_conflict conflict; /* the latest */
    size_t conflict_count;
    struct kelp_action replicated[BENCH_REPLICATED_MAX]; /* actions of replication, in order */
    size_t replicated_count;
};
extern struct bench bench;

uint64_t bench_new_handle(const char *text);
/* FNV-1a of a text's letters and digits, so that "(0+1)" and "01" have the same content. */
struct kelp_content bench_content(const char *text);
size_t bench_live_handles(void);
struct kelp_partition_view bench_view(void);
/* Sort the partition's actions into the bench. */
void bench_take_actions(void);
void bench_finish_merge(size_t which);
void bench_finish_merges(void);
void bench_finish_apply(bool finite);
void bench_open_hollow(void);
void bench_open_control(void);
void bench_open_skipping(void);
void bench_open_other(void);
/* Open partition `index` in another place than that of a primary without followers. */
void bench_open_replica(uint32_t index, const struct kelp_partition_start *start);
/* Take the next action of replication, which must be of this kind. */
struct kelp_action bench_replicated(enum kelp_action_kind kind);
/* Open this one of two partitions, of a job that skips steps. */
void bench_open_deciding(uint32_t index);
void bench_close(void);
struct kelp_control_word bench_train_word(uint64_t version, uint64_t step);
void bench_push_as(const struct kelp_control_word *word, uint32_t first, uint32_t count,
                   const char *text, double loss);
void bench_push(uint32_t first, uint32_t count, const char *text);
void bench_pull(uint64_t requester, enum kelp_pull_mode mode, uint64_t target, bool holds,
                uint64_t held);
/* Make a complete training step of four lanes. */
void bench_train_step(void);

#endif
