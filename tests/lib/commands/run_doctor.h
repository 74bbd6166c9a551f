/*
 * Runs `kelp doctor JOB --etcd URL`, and checks its findings.
 */
#ifndef KELP_TESTS_LIB_COMMANDS_RUN_DOCTOR_H
#define KELP_TESTS_LIB_COMMANDS_RUN_DOCTOR_H

#include "tests/lib/commands/run_command.h"

/* Run it in the folder with these options (NULL-terminated) after --etcd URL. The result of an
 * earlier run in doctor is freed; doctor may be all zero. Fails the test if the exit status
 * differs. */
#define KELP_TEST_DOCTOR_ANY (-2) /* any exit status */
void kelp_test_doctor_run(struct kelp_test_command *doctor, const char *folder, const char *job,
                          const char *url, const char *const *more, int exit_code);

/* Is there a line of that check and state ("OK", "warning", "PROBLEM") with these words? */
bool kelp_test_doctor_found(const struct kelp_test_command *doctor, const char *check,
                            const char *state, const char *words);

#define KELP_TEST_DOCTOR_FOUND(doctor, check, state, words)                                        \
    ck_assert_msg(kelp_test_doctor_found((doctor), (check), (state), (words)),                     \
                  "no %s of %s '%s': %s", (state), (check), (words), (doctor)->out)

#endif
