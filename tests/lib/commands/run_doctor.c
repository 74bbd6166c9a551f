#include "tests/lib/commands/run_doctor.h"

#include <stdio.h>
#include <string.h>

#define ARGS_MAX 16

void kelp_test_doctor_run(struct kelp_test_command *doctor, const char *folder, const char *job,
                          const char *url, const char *const *more, int exit_code)
{
    const char *args[ARGS_MAX] = {"doctor", job, "--etcd", url};

    for (size_t i = 0; more[i]; i++) {
        ck_assert_uint_lt(4 + i, ARGS_MAX - 1);
        args[4 + i] = more[i];
    }
    kelp_test_command_fini(doctor);
    memset(doctor, 0, sizeof(*doctor));
    kelp_test_command_run(doctor, folder, args, KELP_TEST_HANG_MS);
    ck_assert_msg(exit_code == KELP_TEST_DOCTOR_ANY || doctor->exit_code == exit_code,
                  "exit %d: %s%s", doctor->exit_code, doctor->out, doctor->err);
}

bool kelp_test_doctor_found(const struct kelp_test_command *doctor, const char *check,
                            const char *state, const char *words)
{
    char start[32];

    (void)snprintf(start, sizeof(start), "%-12s %-7s ", check, state);
    for (const char *line = doctor->out; *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        if (strncmp(line, start, strlen(start)) == 0 &&
            memmem(line, length, words, strlen(words))) {
            return true;
        }
        line += length + (line[length] != '\0');
    }
    return false;
}
