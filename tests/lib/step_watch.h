/*
 * When each entry of a running job was completed, as seen at the shard that hosts partition 0: a
 * thread asks it once a millisecond, and finds it again through etcd when it has moved or started
 * anew.
 */
#ifndef KELP_TESTS_LIB_STEP_WATCH_H
#define KELP_TESTS_LIB_STEP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#define KELP_STEP_WATCH_MAX 1000000 /* changes that are kept; a run has fewer */

struct kelp_step_sample {
    uint64_t at_us; /* seen first, on kelp_clock_us()'s clock */
    uint64_t generation;
    uint64_t version;
    uint64_t step;
};

struct kelp_step_watch;

/* Of the run in this folder, whose launcher has written cluster.json, or will: waits for it. Call
 * kelp_rpc_global_init() and curl_global_init() first. Fails the test (or ends the program) when
 * nothing comes. */
struct kelp_step_watch *kelp_step_watch_open(const char *run_path);
void kelp_step_watch_close(struct kelp_step_watch *watch); /* NULL is fine */

/* Wait until `step` training steps are complete; fails the test after timeout_ms. */
void kelp_step_watch_await(struct kelp_step_watch *watch, uint64_t step, uint32_t timeout_ms);

/* The newest one; false: none yet. */
bool kelp_step_watch_latest(struct kelp_step_watch *watch, struct kelp_step_sample *ret_sample);

/*
 * The longest time without a change that overlaps [from_us, to_us], in microseconds: from the last
 * change before it began to the next one, or to now when there is none yet.
 */
uint64_t kelp_step_watch_gap_us(struct kelp_step_watch *watch, uint64_t from_us, uint64_t to_us);

/* Entries completed within [from_us, to_us]. */
uint64_t kelp_step_watch_count(struct kelp_step_watch *watch, uint64_t from_us, uint64_t to_us);

/* Lanes that this shard has offered so far. */
uint64_t kelp_step_watch_offers(struct kelp_step_watch *watch);

#endif
