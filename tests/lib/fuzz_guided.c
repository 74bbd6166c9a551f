#include "tests/lib/fuzz_guided.h"

#include <check.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GROWTH_MAX 4096 /* bytes by which an input may grow over the longest seed */

bool kelp_fuzz_guided_wanted(void)
{
    return getenv("KELP_FUZZ_SECONDS") != NULL;
}

#ifdef KELP_FUZZER

/* libFuzzer's main loop, for programs with their own main(). Ends the process. */
int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*target)(const uint8_t *bytes, size_t count));

static const struct kelp_fuzz *running;

static int run_target(const uint8_t *bytes, size_t count)
{
    const char *wrong = running->target(bytes, count);

    if (wrong != NULL) {
        (void)fprintf(stderr, "%s: %s\n", running->name, wrong);
        abort();
    }
    return 0;
}

/* corpus/PROGRAM.NAME beside the program. */
static void make_folder(const char *name, char *ret_folder, size_t room)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    ck_assert_int_gt(length, 0);
    program[length] = '\0';
    char *base = strrchr(program, '/');
    *base++ = '\0';
    int printed = snprintf(ret_folder, room, "%s/corpus", program);
    ck_assert(mkdir(ret_folder, 0755) == 0 || errno == EEXIST);
    printed = snprintf(ret_folder, room, "%s/corpus/%s.%s", program, base, name);
    ck_assert(printed > 0 && (size_t)printed < room);
    ck_assert(mkdir(ret_folder, 0755) == 0 || errno == EEXIST);
}

static FILE *create(const char *path)
{
    FILE *file = fopen(path, "we");
    ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
    return file;
}

/* Returns the length of the longest seed. */
static size_t write_seeds(const struct kelp_fuzz *fuzz, const char *folder)
{
    size_t longest = 0;

    for (size_t i = 0; i < fuzz->seed_count; i++) {
        char path[PATH_MAX + 32];
        (void)snprintf(path, sizeof(path), "%s/seed-%zu", folder, i);
        FILE *file = create(path);
        const struct kelp_fuzz_seed *seed = &fuzz->seeds[i];
        ck_assert_uint_eq(fwrite(seed->bytes, 1, seed->count, file), seed->count);
        ck_assert_int_eq(fclose(file), 0);
        longest = seed->count > longest ? seed->count : longest;
    }
    return longest;
}

static void write_words(const struct kelp_fuzz *fuzz, const char *path)
{
    FILE *file = create(path);

    for (size_t i = 0; i < fuzz->word_count; i++) {
        ck_assert_msg(fuzz->words[i][0] != '\0', "%s: word %zu is empty", fuzz->name, i);
        (void)fputc('"', file);
        for (const char *at = fuzz->words[i]; *at != '\0'; at++) {
            (void)fprintf(file, "\\x%02x", (unsigned)(unsigned char)*at);
        }
        (void)fputs("\"\n", file);
    }
    ck_assert_int_eq(fclose(file), 0);
}

_Noreturn static void run_child(const struct kelp_fuzz *fuzz, char *folder)
{
    char seconds[64], longest[64], words[PATH_MAX + 32], artifacts[PATH_MAX + 32];
    char program[] = "kelp-fuzz", timeout[] = "-timeout=60", memory[] = "-rss_limit_mb=3072";
    char stats[] = "-print_final_stats=1";
    char *arguments[] = {program, seconds, longest,   words,  timeout,
                         memory,  stats,   artifacts, folder, NULL};
    char **argv = arguments;
    int argc = 9;

    (void)snprintf(seconds, sizeof(seconds), "-max_total_time=%s", getenv("KELP_FUZZ_SECONDS"));
    (void)snprintf(longest, sizeof(longest), "-max_len=%zu",
                   write_seeds(fuzz, folder) + GROWTH_MAX);
    (void)snprintf(words, sizeof(words), "-dict=%s.words", folder);
    write_words(fuzz, words + strlen("-dict="));
    (void)snprintf(artifacts, sizeof(artifacts), "-artifact_prefix=%s/", folder);
    running = fuzz;
    (void)signal(SIGALRM, SIG_DFL); /* Check's handler would end us; libFuzzer sets its own */
    exit(LLVMFuzzerRunDriver(&argc, &argv, run_target));
}

void kelp_fuzz_guided_run(const struct kelp_fuzz *fuzz)
{
    const char *only = getenv("KELP_FUZZ_TARGET");
    char folder[PATH_MAX];
    int status = 0;

    if (only != NULL && strcmp(only, fuzz->name) != 0) {
        return;
    }
    make_folder(fuzz->name, folder, sizeof(folder));
    (void)fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run_child(fuzz, folder);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(status == 0, "%s: the input lies in %s", fuzz->name, folder);
}

#else

void kelp_fuzz_guided_run(const struct kelp_fuzz *fuzz)
{
    ck_abort_msg("%s: KELP_FUZZ_SECONDS needs libFuzzer: use the preset fuzz", fuzz->name);
}

#endif
