/*
 * Memory runs out: each module's work is repeated with its n-th allocation failing, for n = 1, 2, …
 * until it succeeds. Each failure is an error, and nothing is leaked or freed twice.
 *
 * The allocator of the whole program is replaced for that, libraries included, which sanitizers do
 * too: under them this test is skipped.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/job/job.h"
#include "common/program/options/options.h"
#include "common/tensors/safetensors.h"
#include "common/training/plan.h"
#include "tests/lib/suite.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

int main(void)
{
    (void)puts("skipped: the sanitizer replaces the allocator itself");
    return 77;
}

#else

/* glibc's own allocator, under the names that it keeps for programs that replace malloc(). */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void __libc_free(void *block);

static long countdown = -1; /* allocations until one fails; -1: none fails */
static long outstanding;

static bool fails(void)
{
    if (countdown < 0) {
        return false;
    }
    return countdown-- == 0;
}

void *malloc(size_t bytes)
{
    void *block = fails() ? NULL : __libc_malloc(bytes);

    outstanding += block != NULL;
    return block;
}

void *calloc(size_t count, size_t bytes)
{
    void *block = fails() ? NULL : __libc_calloc(count, bytes);

    outstanding += block != NULL;
    return block;
}

void *realloc(void *old, size_t bytes)
{
    void *block = fails() ? NULL : __libc_realloc(old, bytes);

    outstanding += block != NULL && old == NULL;
    return block;
}

void free(void *block)
{
    outstanding -= block != NULL;
    __libc_free(block);
}

/* At most 15 nodes: libyaml leaks one when its stack of 16 cannot grow. */
static const char job_text[] =
    "seed: 1\nmodel:\n  kind: mlp\n  hidden: [3, 4]\ndata:\n  kind: synthetic\n";
static const char plan_text[] =
    "{\"samples\":[1,2,3],\"data_fingerprint\":\"0000000000000000\",\"compute_kind\":\"c\","
    "\"compute_answer\":\"0000000000000000\",\"partitions\":1,\"tensors\":["
    "{\"name\":\"w\",\"shape\":[4],\"init\":\"constant\",\"a\":1}]}";
static const char tensors[] = "\x48\0\0\0\0\0\0\0"
                              "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                              "\"__metadata__\":{}}"
                              "1234";
static char tensors_path[] = "/tmp/kelp-test-memory-XXXXXX";

static kelp_status work_job(struct kelp_error *error)
{
    struct kelp_job_file *file = kelp_job_file_create();
    char *text = NULL;

    if (!file) {
        return KELP_ERR_NO_MEMORY;
    }
    kelp_status status = kelp_job_file_parse(file, "j", job_text, sizeof(job_text) - 1, error);
    if (status == KELP_OK) {
        status = kelp_job_file_finish(file, error);
    }
    if (status == KELP_OK) {
        status = kelp_job_file_print(file, true, &text, error);
    }
    if (status == KELP_OK && kelp_job_file_digest(file) == 0) {
        status = KELP_ERR_NO_MEMORY;
    }
    free(text);
    kelp_job_file_destroy(file);
    return status;
}

static kelp_status work_reference(struct kelp_error *error)
{
    char *text = NULL;
    kelp_status status = kelp_job_reference(&text);

    (void)error;
    free(text);
    return status;
}

static kelp_status work_plan(struct kelp_error *error)
{
    struct kelp_plan plan;
    char *text = NULL;
    kelp_status status = kelp_plan_parse(plan_text, sizeof(plan_text) - 1, &plan, error);

    if (status != KELP_OK) {
        return status;
    }
    status = kelp_plan_print(&plan, &text, error);
    free(text);
    kelp_plan_fini(&plan);
    return status;
}

static kelp_status work_safetensors(struct kelp_error *error)
{
    struct kelp_safetensors *file;
    kelp_status status =
        kelp_safetensors_open_memory("m", tensors, sizeof(tensors) - 1, &file, error);

    if (status == KELP_OK) {
        kelp_safetensors_close(file);
    }
    return status;
}

static kelp_status work_write(struct kelp_error *error)
{
    const float value = 1;
    const struct kelp_safetensors_item item = {.name = "x", .rank = 0, .data = &value};
    const struct kelp_safetensors_pair pair = {"key", "value"};

    return kelp_safetensors_write(tensors_path, &item, 1, &pair, 1, error);
}

static kelp_status work_options(struct kelp_error *error)
{
    static const struct kelp_option option = {
        .name = "x", .type = KELP_OPTION_TEXT, .default_text = "1", .help = "x"};
    static const struct kelp_program program = {
        .name = "p", .summary = "x", .options = &option, .option_count = 1};
    char name[] = "p";
    char *argv[] = {name, NULL};
    struct kelp_options *options = NULL;
    enum kelp_options_wish wish;
    kelp_status status = kelp_options_parse(&program, 1, argv, &wish, &options, error);

    kelp_options_destroy(options);
    return status;
}

static kelp_status (*const works[])(struct kelp_error *) = {
    work_job, work_reference, work_plan, work_safetensors, work_write, work_options,
};

static void make_file(void)
{
    int fd = mkstemp(tensors_path);
    if (fd < 0 || close(fd) != 0) {
        perror(tensors_path);
        exit(EXIT_FAILURE);
    }
}

static void remove_file(void)
{
    (void)unlink(tensors_path);
}

KELP_SUITE(.before = make_file, .after = remove_file)
KELP_CASE("common memory", .timeout_s = 60)

KELP_LOOP_TEST(test_each_allocation, 0, KELP_ARRAY_COUNT(works))
{
    struct kelp_error error;
    kelp_status status;
    long failing = 0;

    ck_assert_msg(works[_i](&error) == KELP_OK, "%s", error.text); /* one-time allocations too */
    do {
        long before = outstanding;
        countdown = failing;
        status = works[_i](&error);
        bool reached = countdown < 0;
        countdown = -1;
        ck_assert_msg(outstanding == before, "allocation %ld: %ld blocks leaked", failing,
                      outstanding - before);
        ck_assert_msg(!reached || status != KELP_OK, "allocation %ld: its failure is not seen",
                      failing);
        if (!reached) {
            break;
        }
        failing++;
    } while (failing < 10000);
    ck_assert_int_eq(status, KELP_OK);
    ck_assert_int_gt(failing, 0);
}

#endif
