#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/replicas/replicas.h"
#include "tests/sim/run.h"

struct options {
    uint64_t seeds;
    uint64_t from;
    bool trace;
    bool replicas;
};

static void usage(FILE *out)
{
    (void)fputs(
        "usage: kelp-sim [--seeds N] [--from S]\n"
        "       kelp-sim --seed S [--trace]\n"
        "       kelp-sim --replicas [--seeds N] [--from S]\n"
        "\n"
        "Run whole clusters of coordinators, shards and workers in one thread: the cores are "
        "those\n"
        "of the programs; clock, network, disk and etcd are virtual, and whatever can go wrong "
        "with\n"
        "them and with processes does. After every event the invariants of the design are "
        "checked,\n"
        "at the end the digest. A run follows from its seed.\n"
        "\n"
        "  --seeds N  run so many seeds (default 1000) and print a summary\n"
        "  --from S   beginning with this one (default 1)\n"
        "  --seed S   run this one alone\n"
        "  --trace    print its story: virtual time in seconds, who, what\n"
        "  --replicas run the replicas of one partition instead, in a small world of their own\n"
        "  -h, --help\n"
        "\n"
        "Exit status: 0, or 1 when an invariant was broken; then the seed, the invariant and the\n"
        "last events are printed.\n",
        out);
}

static bool parse_number(const char *text, uint64_t *ret_number)
{
    char *end;
    errno = 0;
    *ret_number = strtoull(text, &end, 10);
    return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0';
}

static bool parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        uint64_t number = 0;
        bool numbered = strcmp(argv[i], "--seeds") == 0 || strcmp(argv[i], "--from") == 0 ||
                        strcmp(argv[i], "--seed") == 0;
        if (numbered && (i + 1 == argc || !parse_number(argv[i + 1], &number))) {
            (void)fprintf(stderr, "kelp-sim: %s needs a number\n", argv[i]);
            return false;
        }
        if (strcmp(argv[i], "--seeds") == 0) {
            options->seeds = number;
        } else if (strcmp(argv[i], "--from") == 0) {
            options->from = number;
        } else if (strcmp(argv[i], "--seed") == 0) {
            options->from = number;
            options->seeds = 1;
        } else if (strcmp(argv[i], "--trace") == 0) {
            options->trace = true;
        } else if (strcmp(argv[i], "--replicas") == 0) {
            options->replicas = true;
        } else {
            (void)fprintf(stderr,
                          "kelp-sim: %s: no such option; there are --seeds, --from, --seed, "
                          "--trace, --replicas and --help\n",
                          argv[i]);
            return false;
        }
        i += numbered ? 1 : 0;
    }
    return true;
}

/* The same run again, with its last events kept: it fails in the same way. */
static void explain(uint64_t seed)
{
    static char lines[SIM_STORY_LINES][sizeof(((struct sim_story *)0)->lines[0])];
    struct sim_story story = {.keep = true, .lines = lines};
    uint64_t counts[SIM_COUNT_COUNT] = {0};
    char failure[512];
    if (sim_run(seed, &story, counts, failure)) {
        (void)printf("the same seed has passed now: the simulator is not deterministic\n");
        return;
    }
    size_t first = story.count > SIM_STORY_LINES ? story.count - SIM_STORY_LINES : 0;
    (void)printf("the last events:\n");
    for (size_t i = first; i < story.count; i++) {
        (void)printf("%s\n", lines[i % SIM_STORY_LINES]);
    }
}

static void summarise(const uint64_t counts[SIM_COUNT_COUNT], uint64_t seeds, double seconds)
{
    (void)printf("%llu seeds passed in %.1f s: %.0f a second\n", (unsigned long long)seeds, seconds,
                 seconds > 0 ? (double)seeds / seconds : 0.0);
    for (int i = 0; i < SIM_COUNT_COUNT; i++) {
        if (i == 0 || i == SIM_COUNT_FAULTS) {
            (void)printf("%s\n", i == 0 ? "faults" : "and what came of them");
        }
        (void)printf("  %10llu  %s\n", (unsigned long long)counts[i], sim_count_names[i]);
    }
}

static double now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail with this clock */
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int run_replicas(const struct options *options)
{
    struct replicas_counts counts = {0};
    char failure[512];
    double began = now_s();
    for (uint64_t seed = options->from; seed < options->from + options->seeds; seed++) {
        if (!replicas_run(seed, options->trace, &counts, failure)) {
            (void)printf("seed %llu fails: %s\n", (unsigned long long)seed, failure);
            (void)printf("see it all: kelp-sim --replicas --seed %llu --trace\n",
                         (unsigned long long)seed);
            (void)fflush(stdout);
            _Exit(1); /* what the failed run holds is not worth a search for leaks */
        }
    }
    (void)printf("%llu seeds passed in %.1f s: %llu events, %llu promotions, %llu restores\n",
                 (unsigned long long)options->seeds, now_s() - began,
                 (unsigned long long)counts.events, (unsigned long long)counts.promotions,
                 (unsigned long long)counts.restored);
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {.seeds = 1000, .from = 1};
    uint64_t counts[SIM_COUNT_COUNT] = {0};
    char failure[512];
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            return 0;
        }
    }
    if (!parse(argc, argv, &options)) {
        return 2;
    }
    if (options.replicas) {
        return run_replicas(&options);
    }
    double began = now_s();
    for (uint64_t seed = options.from; seed < options.from + options.seeds; seed++) {
        struct sim_story story = {.out = stdout};
        if (sim_run(seed, options.trace ? &story : NULL, counts, failure)) {
            continue;
        }
        (void)printf("seed %llu fails: %s\n", (unsigned long long)seed, failure);
        if (!options.trace) {
            explain(seed);
        }
        (void)printf("see it all: kelp-sim --seed %llu --trace\n", (unsigned long long)seed);
        (void)fflush(stdout);
        _Exit(1); /* what the failed run holds is not worth a search for leaks */
    }
    summarise(counts, options.seeds, now_s() - began);
    return 0;
}
