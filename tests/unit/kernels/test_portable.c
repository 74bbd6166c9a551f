/*
 * The portable compute kind: what it needs, and which OpenBLAS it takes. OpenBLAS chooses when it
 * is loaded, so this program executes itself again for each choice.
 */
#include "kernels/cpu/portable.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/process/process_again.h"
#include "kernels/device.h"
#include "tests/lib/suite.h"

#define VARIABLE "KELP_TEST_AGAIN" /* the descriptor that a child reports to */

/* What the device says of itself, or of what is missing: "KIND ANSWER" or "refused TEXT". */
static void report(int fd)
{
    struct kelp_device *device = NULL;
    struct kelp_error error = {.text = ""};
    char kind[KELP_COMPUTE_KIND_SIZE];
    uint64_t answer = 0;

    if (kelp_device_cpu_create_portable(1, &device, &error) != KELP_OK ||
        kelp_compute_kind(device, kind, &answer, &error) != KELP_OK) {
        (void)dprintf(fd, "refused %s", error.text);
        return;
    }
    (void)dprintf(fd, "%s %016llx", kind, (unsigned long long)answer);
    device->table->destroy(device);
}

static void before(void)
{
    const char *fd = getenv(VARIABLE);

    if (fd) {
        report((int)strtol(fd, NULL, 10));
        _exit(0);
    }
}

/* The report of this program with that set of kernels. */
static void ask(const char *core, char *text, size_t text_bytes)
{
    char again[64], choice[64];
    const char *const variables[] = {again, choice, NULL};
    struct kelp_error error = {.text = ""};
    size_t used = 0;
    ssize_t count;
    int fds[2];

    ck_assert_int_eq(pipe(fds), 0);
    (void)snprintf(again, sizeof(again), VARIABLE "=%d", fds[1]);
    (void)snprintf(choice, sizeof(choice), "OPENBLAS_CORETYPE=%s", core);
    const pid_t child = fork();
    if (child == 0) {
        const kelp_status status = kelp_process_again(variables, &error);
        (void)dprintf(fds[1], "%s: %s", kelp_status_name(status), error.text);
        _exit(1);
    }
    (void)close(fds[1]);
    while ((count = read(fds[0], text + used, text_bytes - 1 - used)) > 0) {
        used += (size_t)count;
    }
    text[used] = '\0';
    (void)close(fds[0]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

static bool can_here(void)
{
    struct kelp_portable_facts facts;

    kelp__portable_facts(&facts);
    return facts.avx2 && facts.fma;
}

KELP_SUITE(.before = before)
KELP_CASE("portable", .timeout_s = 120)

/* Each thing that is missing is named, the processor first. */
KELP_TEST(what_is_missing_is_named)
{
    static const struct {
        struct kelp_portable_facts facts;
        const char *text;
    } cases[] = {
        {{false, true, "Haswell"}, "and this one has no AVX2"},
        {{false, false, "Prescott"}, "and this one has no AVX2"},
        {{true, false, "Haswell"}, "and this one has no FMA"},
        {{true, true, "SkylakeX"},
         "needs OpenBLAS's kernels Haswell, and this process runs SkylakeX: start it with "
         "OPENBLAS_CORETYPE=Haswell"},
        {{true, true, "Haswell2"}, "runs Haswell2"},
    };
    struct kelp_error error = {.text = ""};

    for (size_t i = 0; i < KELP_ARRAY_COUNT(cases); i++) {
        ck_assert_int_eq(kelp__portable_check(&cases[i].facts, &error), KELP_ERR_INVALID);
        ck_assert_msg(strstr(error.text, cases[i].text) != NULL, "%s", error.text);
        ck_assert_ptr_nonnull(strstr(error.text, "cluster.compute: portable needs "));
    }
    const struct kelp_portable_facts good = {true, true, "Haswell"};
    ck_assert_int_eq(kelp__portable_check(&good, &error), KELP_OK);
}

/* With the named kernels the kind names them and nothing of this processor; with others, whatever
 * they are, nothing is computed. */
KELP_TEST(the_kind_names_what_is_pinned)
{
    char text[600], kind[KELP_COMPUTE_KIND_SIZE];

    ask("Haswell", text, sizeof(text));
    if (!can_here()) {
        ck_assert_msg(strstr(text, "refused cluster.compute: portable needs a processor") != NULL,
                      "%s", text);
        return;
    }
    ck_assert_msg(sscanf(text, "cpu portable x86-64-v3 openblas-%100s Haswell threads=1", kind) ==
                      1,
                  "%s", text);
    ck_assert_msg(strstr(text, "onednn") == NULL, "%s", text);
    ask("Zen", text, sizeof(text));
    ck_assert_msg(strstr(text, "refused cluster.compute: portable needs OpenBLAS's kernels "
                               "Haswell, and this process runs Zen") == text,
                  "%s", text);
}

/* What else the environment tells the libraries does not change the answer. */
KELP_TEST(the_answer_is_one)
{
    static const struct {
        const char *name, *value;
    } settings[] = {{"DNNL_MAX_CPU_ISA", "SSE41"},     {"DNNL_MAX_CPU_ISA", "AVX512_CORE"},
                    {"OPENBLAS_L2_SIZE", "64"},        {"OPENBLAS_L2_SIZE", "65536"},
                    {"OPENBLAS_BLOCK_FACTOR", "10"},   {"OPENBLAS_NUM_THREADS", "2"},
                    {"OMP_DYNAMIC", "true"},           {"OMP_NUM_THREADS", "3"},
                    {"OPENBLAS_THREAD_TIMEOUT", "20"}, {"OMP_ADAPTIVE", "1"}};
    char first[600], text[600];

    ask("Haswell", first, sizeof(first));
    for (size_t i = 0; i < KELP_ARRAY_COUNT(settings); i++) {
        ck_assert_int_eq(setenv(settings[i].name, settings[i].value, 1), 0);
        ask("Haswell", text, sizeof(text));
        ck_assert_msg(strcmp(text, first) == 0, "%s=%s: %s, not %s", settings[i].name,
                      settings[i].value, text, first);
        ck_assert_int_eq(unsetenv(settings[i].name), 0);
    }
}
