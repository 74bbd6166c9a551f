/*
 * The CUDA device's kernels have no races (tests/lib/cuda/emulated_races.h), and none of their
 * barriers is there for nothing: without it some case of the operators has a race.
 *
 * KELP_CUDA_SEED=N: with other sizes and values. KELP_CUDA_RACES=1: print what is found without
 * each barrier.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/files.h"
#include "tests/lib/cuda/emulated_device.h"
#include "tests/lib/cuda/emulated_races.h"
#include "tests/lib/cuda/operator_cases.h"
#include "tests/lib/cuda/operator_faults.h"
#include "tests/lib/models/channels_last.h"
#include "tests/lib/suite.h"

#define BARRIERS_MOST 64 /* bits of operator_reach.barriers */
#define TEXT_MAX      1500
#define SOURCE_MAX    (1u << 20)

/* ---- races in a child, which ends with them -------------------------------------------------- */

static int race_pipe = -1;

static void tell_and_exit(const char *text)
{
    if (write(race_pipe, text, strlen(text)) < 0) {
        _exit(2);
    }
    _exit(1);
}

/* The text of the race that `body` has, or of the signal that ended it; false: there is none. */
static bool finds_race(void (*body)(const void *user), const void *user, char text[TEXT_MAX])
{
    int ends[2], status = 0;
    size_t filled = 0;
    ssize_t taken = 0;
    (void)fflush(NULL);
    ck_assert_int_eq(pipe(ends), 0);
    const pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)close(ends[0]);
        race_pipe = ends[1];
        kelp_cuda_races_handler(tell_and_exit);
        body(user);
        _exit(0);
    }
    (void)close(ends[1]);
    while (filled + 1 < TEXT_MAX &&
           (taken = read(ends[0], text + filled, TEXT_MAX - 1 - filled)) > 0) {
        filled += (size_t)taken;
    }
    text[filled] = '\0';
    (void)close(ends[0]);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) {
        (void)snprintf(text, TEXT_MAX, "signal %d", WTERMSIG(status));
        return true;
    }
    ck_assert_int_le(WEXITSTATUS(status), 1);
    return WEXITSTATUS(status) == 1;
}

/* ---- planted --------------------------------------------------------------------------------- */

static void run_planted(const void *user)
{
    kelp_cuda_planted_run(*(const uint32_t *)user);
}

KELP_TEST(planted_races)
{
    ck_assert_uint_gt(kelp_cuda_planted_count(), 0);
    for (uint32_t i = 0; i < kelp_cuda_planted_count(); i++) {
        const struct kelp_cuda_planted planted = kelp_cuda_planted(i);
        char text[TEXT_MAX];
        const bool found = finds_race(run_planted, &i, text);
        ck_assert_msg(found == planted.races, "%s: %s", planted.name, found ? text : "not found");
        ck_assert_msg(!found || strstr(text, planted.name) == text, "%s: %s", planted.name, text);
    }
}

/* ---- barriers -------------------------------------------------------------------------------- */

#define GROUP(group) cases_##group,
static void (*const groups[])(struct operator_cases *cases, bool large) = {OPERATOR_GROUPS(GROUP)};

struct operator_reach {
    struct operator_case one;
    uint64_t barriers; /* bit i: barrier i is reached */
    uint64_t ns;
};

static struct case_devices devices;
static struct operator_reach *all; /* the quickest first */
static uint32_t all_count;

static uint64_t seed(void)
{
    const char *text = getenv("KELP_CUDA_SEED");
    return text ? strtoull(text, NULL, 10) : 0;
}

static void measure(struct operator_reach *reach)
{
    uint64_t before[BARRIERS_MOST] = {0};
    const uint32_t known = kelp_cuda_barrier_count();
    for (uint32_t i = 0; i < known; i++) {
        before[i] = kelp_cuda_barrier(i).reached;
    }
    const uint64_t begin = kelp_clock_ns();
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_case_check(&reach->one, &devices, seed(), 0, &error) == KELP_OK, "%s",
                  error.text);
    reach->ns = kelp_clock_ns() - begin;
    ck_assert_uint_le(kelp_cuda_barrier_count(), BARRIERS_MOST);
    for (uint32_t i = 0; i < kelp_cuda_barrier_count(); i++) {
        reach->barriers |= (uint64_t)(kelp_cuda_barrier(i).reached > before[i]) << i;
    }
}

static int quicker(const void *a, const void *b)
{
    const struct operator_reach *one = a, *other = b;
    return (one->ns > other->ns) - (one->ns < other->ns);
}

static void run_cases(const struct operator_cases *cases)
{
    ck_assert_uint_gt(cases->count, 0);
    all = realloc(all, (all_count + cases->count) * sizeof(*all));
    ck_assert_ptr_nonnull(all);
    for (uint32_t i = 0; i < cases->count; i++) {
        all[all_count] = (struct operator_reach){.one = cases->cases[i]};
        measure(&all[all_count++]);
    }
}

/* Every case with all barriers: a race ends the program. */
static void run_all_cases(void)
{
    for (size_t group = 0; group <= KELP_ARRAY_COUNT(groups); group++) {
        struct operator_cases cases;
        operator_cases_init(&cases, seed());
        if (group < KELP_ARRAY_COUNT(groups)) {
            groups[group](&cases, false);
        } else {
            cases_many_tiles(&cases);
        }
        run_cases(&cases);
        operator_cases_fini(&cases);
    }
    qsort(all, all_count, sizeof(*all), quicker);
}

static void setup(void)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_int_eq(channels_last_cpu_create(&devices.cpu, &error), KELP_OK);
    ck_assert_int_eq(kelp_device_cuda_create_emulated(&devices.other, &error), KELP_OK);
    ck_assert_int_eq(devices.cpu->table->stream_create(devices.cpu, &devices.cpu_stream, &error),
                     KELP_OK);
    ck_assert_int_eq(
        devices.other->table->stream_create(devices.other, &devices.other_stream, &error), KELP_OK);
}

static void teardown(void)
{
    free(all);
    devices.cpu->table->stream_destroy(devices.cpu_stream);
    devices.other->table->stream_destroy(devices.other_stream);
    devices.cpu->table->destroy(devices.cpu);
    devices.other->table->destroy(devices.other);
}

/* The cases that reach the barrier, without it. */
static void run_without(const void *user)
{
    const uint32_t barrier = *(const uint32_t *)user;
    struct kelp_error error;
    kelp_cuda_barrier_remove(barrier);
    for (uint32_t i = 0; i < all_count; i++) {
        if ((all[i].barriers >> barrier & 1) != 0) {
            (void)operator_case_check(&all[i].one, &devices, seed(), 0, &error);
        }
    }
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool is_reached(const char *file, uint32_t line)
{
    for (uint32_t i = 0; i < kelp_cuda_barrier_count(); i++) {
        const struct kelp_cuda_barrier barrier = kelp_cuda_barrier(i);
        if (barrier.line == line && strcmp(last_part(barrier.file), file) == 0) {
            return true;
        }
    }
    return false;
}

/* A barrier that is no part of a comment. */
static bool has_barrier(const char *line)
{
    const char *threads = strstr(line, "__syncthreads("), *warp = strstr(line, "__syncwarp(");
    const char *at = threads ? threads : warp;
    return at && strncmp(line + strspn(line, " "), "* ", 2) != 0 &&
           !memmem(line, (size_t)(at - line), "/*", 2);
}

/* How many barriers a source has; each must have been reached. */
static uint32_t check_source(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    uint32_t count = 0, number = 1;
    ck_assert_int_eq(kelp_files_read(path, SOURCE_MAX, &text, &bytes, NULL), KELP_OK);
    for (char *line = text, *next = text; next; line = next, number++) {
        next = strchr(line, '\n');
        if (next) {
            *next++ = '\0';
        }
        if (has_barrier(line)) {
            ck_assert_msg(is_reached(last_part(path), number), "%s:%u: no case comes to it", path,
                          number);
            count++;
        }
    }
    free(text);
    return count;
}

static uint32_t check_sources(void)
{
    static const char *const rooms[] = {"*", "*/*"};
    const char *source = getenv("KELP_SOURCE");
    char pattern[512];
    glob_t found;
    uint32_t count = 0;
    ck_assert_msg(source != NULL, "KELP_SOURCE is not set: run this test through ctest");
    for (size_t i = 0; i < KELP_ARRAY_COUNT(rooms); i++) {
        (void)snprintf(pattern, sizeof(pattern), "%s/kernels/cuda/%s.cu*", source, rooms[i]);
        ck_assert_int_eq(glob(pattern, i == 0 ? 0 : GLOB_APPEND, NULL, &found), 0);
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        count += check_source(found.gl_pathv[i]);
    }
    globfree(&found);
    return count;
}

KELP_CASE("barriers", .timeout_s = 600, .setup = setup, .teardown = teardown)

KELP_TEST(no_races_of_bad_ids_and_classes)
{
    struct kelp_error error = {KELP_OK, ""};
    ck_assert_msg(operator_faults_check(&devices, &error) == KELP_OK, "%s", error.text);
}

KELP_TEST(no_races_and_no_barrier_for_nothing)
{
    const bool verbose = getenv("KELP_CUDA_RACES") != NULL;
    uint32_t useless = 0;
    run_all_cases();
    ck_assert_uint_eq(check_sources(), kelp_cuda_barrier_count());
    for (uint32_t i = 0; i < kelp_cuda_barrier_count(); i++) {
        const struct kelp_cuda_barrier barrier = kelp_cuda_barrier(i);
        char text[TEXT_MAX];
        const bool found = finds_race(run_without, &i, text);
        if (verbose || !found) {
            printf("%s:%u: %s\n", last_part(barrier.file), barrier.line,
                   found ? text : "no case has a race without it");
        }
        useless += found ? 0 : 1;
    }
    ck_assert_uint_eq(useless, 0);
}
