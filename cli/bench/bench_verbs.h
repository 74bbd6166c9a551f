/* The verbs of `kelp bench`, and the options that they share. */
#ifndef KELP_CLI_BENCH_BENCH_VERBS_H
#define KELP_CLI_BENCH_BENCH_VERBS_H

#include "cli/verb/verb.h"

#define KELP_BENCH_BYTES_MIN (4u << 10)
#define KELP_BENCH_BYTES_MAX (256u << 20)

#define KELP_BENCH_SIZE_OPTION(option, hint, otherwise, text)                                      \
    {                                                                                              \
        .name = (option), .type = KELP_OPTION_TEXT, .placeholder = (hint),                         \
        .default_text = (otherwise), .help = text                                                  \
    }
#define KELP_BENCH_TIME_OPTION(text)                                                               \
    KELP_VERB_NUMBER("time", DURATION, 10, 600000, "1s", NULL, text)
#define KELP_BENCH_ETCD_PROGRAM_OPTION KELP_VERB_ETCD_PROGRAM(NULL)

extern const struct kelp_verb kelp_bench_verb_pushpull;
extern const struct kelp_verb kelp_bench_verb_optimizer;
extern const struct kelp_verb kelp_bench_verb_steps;
extern const struct kelp_verb kelp_bench_verb_scale;
extern const struct kelp_verb kelp_bench_verb_worker;
extern const struct kelp_verb kelp_bench_verb_crowd;

/* All of them, ending with NULL. */
extern const struct kelp_verb *const kelp_bench_verbs[];

/* What --option says: 4 KiB to 256 MiB, a multiple of 64 bytes. Errors: KELP_ERR_INVALID. */
kelp_status kelp_bench_size(const char *text, const char *option, uint64_t *ret_bytes,
                            struct kelp_error *reterr) KELP_MUST_USE;

#define KELP_BENCH_SIZES_MAX 16
struct kelp_bench_sizes {
    uint64_t bytes[KELP_BENCH_SIZES_MAX];
    uint32_t count;
};
/* "4KiB,1MiB": 1 to KELP_BENCH_SIZES_MAX of them. Errors: KELP_ERR_INVALID. */
kelp_status kelp_bench_sizes(const char *text, const char *option,
                             struct kelp_bench_sizes *ret_sizes,
                             struct kelp_error *reterr) KELP_MUST_USE;

/* Do so many workers and their shards have room for each size in so much memory? Errors:
 * KELP_ERR_LIMIT. */
kelp_status kelp_bench_sizes_fit(const struct kelp_bench_sizes *sizes, uint32_t workers,
                                 uint64_t memory_bytes, struct kelp_error *reterr) KELP_MUST_USE;

/* Of --transport: each, and then the words of transport.kind. */
extern const char *const kelp_bench_transports[];
#define KELP_BENCH_TRANSPORT_OPTION                                                                \
    {                                                                                              \
        .name = "transport", .type = KELP_OPTION_CHOICE, .choices = kelp_bench_transports,         \
        .default_text = "each",                                                                    \
        .help = "transport between the processes (job key transport.kind); each: first grpc, "     \
                "then shm"                                                                         \
    }
/* Is this word measured, where that one was given? Both by their place in the list. */
bool kelp_bench_chosen(uint32_t given, uint32_t transport);

/* Lanes are a power of two, and each worker has one at least. */
uint32_t kelp_bench_lanes(uint32_t workers);

#define KELP_BENCH_CROWD_MAX 1024 /* of workers, as a job may have */
/* May one process hold the connections of so many workers, two each, with so many files? Errors:
 * KELP_ERR_LIMIT. */
kelp_status kelp_bench_crowd_fits(uint32_t workers, uint64_t files_max,
                                  struct kelp_error *reterr) KELP_MUST_USE;

/* What a bench ends with that could not be done; says so. signal_number: that asked for the end; 0:
 * none did. */
int kelp_bench_failed(kelp_status status, const struct kelp_error *error, int signal_number);

#endif
