/* The run's files: what stands in them, what is skipped, torn and damaged lines, other digests. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "coordinator/journal.h"

static char folder[64];
static struct kelp_journal *journal;

static void make_path(char path[128], const char *name)
{
    (void)snprintf(path, 128, "%s/%s", folder, name);
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-journal-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    journal = NULL;
}

static void teardown(void)
{
    char path[128];
    kelp_journal_close(journal);
    make_path(path, "metrics.jsonl");
    (void)unlink(path); /* may not be there */
    make_path(path, "digests.jsonl");
    (void)unlink(path); /* may not be there */
    ck_assert_int_eq(rmdir(folder), 0);
}

static void write_file(const char *name, const char *text)
{
    char path[128];
    make_path(path, name);
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_int_ge(fputs(text, out), 0);
    ck_assert_int_eq(fclose(out), 0);
}

static void check_file(const char *name, const char *expected)
{
    char path[128];
    char text[4096] = "";
    make_path(path, name);
    FILE *in = fopen(path, "r");
    ck_assert_ptr_nonnull(in);
    size_t got = fread(text, 1, sizeof(text) - 1, in);
    text[got] = '\0';
    (void)fclose(in);
    ck_assert_str_eq(text, expected);
}

static void reopen(void)
{
    struct kelp_error error = {.text = ""};
    kelp_journal_close(journal);
    journal = NULL;
    kelp_status status = kelp_journal_open(folder, &journal, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

#define A "0123456789abcdef0123456789abcdef"
#define B "fedcba9876543210fedcba9876543210"

static struct kelp_record entry(uint64_t version, enum kelp_step_kind kind, const char *digest)
{
    struct kelp_record record = {
        .word = {.version = version, .step = version, .kind = kind, .epoch = 2, .lr = 0.25},
        .loss = 0.5,
        .mse = 0.75,
        .mae = 1.5,
        .epoch_loss = 0.125,
    };
    (void)snprintf(record.digest, sizeof(record.digest), "%s", digest);
    return record;
}

static kelp_status append(struct kelp_record record)
{
    return kelp_journal_append(journal, &record, NULL);
}

/* Each kind of entry, as people and tools read it. */
START_TEST(formats)
{
    reopen();
    struct kelp_record train = entry(10, KELP_STEP_TRAIN, "");
    ck_assert_int_eq(append(train), KELP_OK); /* neither epoch end nor digest: nothing to say */
    train = entry(11, KELP_STEP_TRAIN, A);
    train.epoch_end = true;
    ck_assert_int_eq(append(train), KELP_OK);
    ck_assert_int_eq(append(entry(12, KELP_STEP_EVALUATE_VAL, B)), KELP_OK);
    ck_assert_int_eq(append(entry(13, KELP_STEP_EVALUATE_TEST, "")), KELP_OK);
    ck_assert_int_eq(append(entry(14, KELP_STEP_FINISH, B)), KELP_OK);
    ck_assert_int_eq(kelp_journal_sync(journal, NULL), KELP_OK);
    check_file("metrics.jsonl",
               "{\"version\":11,\"step\":12,\"epoch\":3,\"train/loss\":0.125,\"lr\":0.25}\n"
               "{\"version\":12,\"step\":12,\"epoch\":3,\"val/loss\":0.5,\"val/mse\":0.75,"
               "\"val/mae\":1.5}\n"
               "{\"version\":13,\"step\":13,\"epoch\":3,\"test/loss\":0.5,\"test/mse\":0.75,"
               "\"test/mae\":1.5}\n");
    check_file("digests.jsonl", "{\"version\":11,\"step\":11,\"epoch\":2,\"digest\":\"" A "\"}\n"
                                "{\"version\":12,\"step\":12,\"epoch\":3,\"digest\":\"" B "\"}\n"
                                "{\"version\":14,\"step\":14,\"epoch\":3,\"digest\":\"" B "\"}\n");
}
END_TEST

/* JSON has no NaN. */
START_TEST(not_a_number_is_null)
{
    reopen();
    struct kelp_record record = entry(1, KELP_STEP_EVALUATE_VAL, "");
    record.mse = NAN;
    ck_assert_int_eq(append(record), KELP_OK);
    check_file("metrics.jsonl", "{\"version\":1,\"step\":1,\"epoch\":3,\"val/loss\":0.5,"
                                "\"val/mse\":null,\"val/mae\":1.5}\n");
    reopen();
}
END_TEST

/* A replay leaves the files alone, in this process and in the next one; newer entries follow. */
START_TEST(replay_is_skipped)
{
    reopen();
    for (int round = 0; round < 3; round++) {
        ck_assert_int_eq(append(entry(1, KELP_STEP_EVALUATE_VAL, A)), KELP_OK);
        ck_assert_int_eq(append(entry(2, KELP_STEP_FINISH, B)), KELP_OK);
        if (round == 1) {
            reopen();
        }
    }
    check_file("digests.jsonl", "{\"version\":1,\"step\":1,\"epoch\":3,\"digest\":\"" A "\"}\n"
                                "{\"version\":2,\"step\":2,\"epoch\":3,\"digest\":\"" B "\"}\n");
}
END_TEST

/* Another digest for a version that is on file is an error that shows both; nothing is written. */
START_TEST(other_digest)
{
    struct kelp_error error;
    reopen();
    ck_assert_int_eq(append(entry(1, KELP_STEP_EVALUATE_VAL, A)), KELP_OK);
    ck_assert_int_eq(append(entry(2, KELP_STEP_EVALUATE_VAL, A)), KELP_OK);
    reopen();
    struct kelp_record record = entry(1, KELP_STEP_EVALUATE_VAL, B);
    ck_assert_int_eq(kelp_journal_append(journal, &record, &error), KELP_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(error.text, A));
    ck_assert_ptr_nonnull(strstr(error.text, B));
    ck_assert_ptr_nonnull(strstr(error.text, "digests.jsonl"));
}
END_TEST

/* A crash in the middle of a line: the line goes, and the entry is written again when it comes. */
START_TEST(torn_line)
{
    const char *whole = "{\"version\":1,\"step\":1,\"epoch\":3,\"digest\":\"" A "\"}\n";
    char torn[256];
    (void)snprintf(torn, sizeof(torn), "%s{\"version\":2,\"st", whole);
    write_file("digests.jsonl", torn);
    reopen();
    check_file("digests.jsonl", whole);
    ck_assert_int_eq(append(entry(2, KELP_STEP_FINISH, B)), KELP_OK);
    reopen();
}
END_TEST

/* Any other damage is named by file and line and nothing is changed. */
START_TEST(damage)
{
    static const char *const texts[] = {
        "{\"version\":1}\n",
        "no json\n",
        "{\"digest\":\"" A "\"}\n",
        "{\"version\":2,\"digest\":\"" A "\"}\n{\"version\":2,\"digest\":\"" A "\"}\n",
        "{\"version\":-1,\"digest\":\"" A "\"}\n",
        "{\"version\":1,\"digest\":\"" A "0\"}\n",
        "\n",
    };
    struct kelp_error error;
    write_file("digests.jsonl", texts[_i]);
    ck_assert_int_eq(kelp_journal_open(folder, &journal, &error), KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "digests.jsonl:"));
    ck_assert_ptr_null(journal);
    check_file("digests.jsonl", texts[_i]);
}
END_TEST

/* A disk that is full in the middle of a line: nothing of the line stays, and it goes in later. */
START_TEST(full_disk)
{
    struct kelp_error error;
    struct rlimit limit = {.rlim_cur = 100, .rlim_max = RLIM_INFINITY}; /* bytes of a file */
    reopen();
    ck_assert_int_eq(append(entry(1, KELP_STEP_FINISH, A)), KELP_OK);
    (void)signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    struct kelp_record record = entry(2, KELP_STEP_FINISH, B);
    ck_assert_int_eq(kelp_journal_append(journal, &record, &error), KELP_ERR_IO);
    limit.rlim_cur = RLIM_INFINITY;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    check_file("digests.jsonl", "{\"version\":1,\"step\":1,\"epoch\":3,\"digest\":\"" A "\"}\n");
    ck_assert_int_eq(kelp_journal_append(journal, &record, &error), KELP_OK);
    check_file("digests.jsonl", "{\"version\":1,\"step\":1,\"epoch\":3,\"digest\":\"" A "\"}\n"
                                "{\"version\":2,\"step\":2,\"epoch\":3,\"digest\":\"" B "\"}\n");
}
END_TEST

START_TEST(no_folder)
{
    struct kelp_error error;
    ck_assert_int_eq(kelp_journal_open("/nowhere/at/all", &journal, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "/nowhere/at/all/metrics.jsonl"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("journal");
    TCase *tcase = tcase_create("files");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, formats);
    tcase_add_test(tcase, not_a_number_is_null);
    tcase_add_test(tcase, replay_is_skipped);
    tcase_add_test(tcase, other_digest);
    tcase_add_test(tcase, torn_line);
    tcase_add_loop_test(tcase, damage, 0, 7);
    tcase_add_test(tcase, full_disk);
    tcase_add_test(tcase, no_folder);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
