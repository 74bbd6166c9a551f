/* The run's files: what stands in them, what is skipped, torn and damaged lines, other digests. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "coordinator/files/journal.h"
#include "tests/lib/suite.h"

static char folder[64];
static struct kelp_journal *journal;
static const struct kelp_job no_job; /* without sums of its own */

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
    kelp_status status = kelp_journal_open(folder, &no_job, &journal, &error);
    ck_assert_msg(status == KELP_OK, "%s", error.text);
}

#define A "0123456789abcdef0123456789abcdef"
#define B "fedcba9876543210fedcba9876543210"

static struct kelp_record entry(uint64_t version, enum kelp_step_kind kind, const char *digest)
{
    struct kelp_record record = {
        .word = {.version = version, .step = version, .kind = kind, .epoch = 2, .lr = 0.25},
        .metrics = {.present = 7, .of = {0.5, 0.75, 1.5}},
        .epoch_loss = 0.125,
    };
    (void)snprintf(record.digest, sizeof(record.digest), "%s", digest);
    return record;
}

static kelp_status append(struct kelp_record record)
{
    return kelp_journal_append(journal, &record, NULL);
}

KELP_SUITE(.fork_each = true)
KELP_CASE("files", .setup = setup, .teardown = teardown)

/* Each kind of entry, as people and tools read it. */
KELP_TEST(formats)
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

/* metrics.every has lines of its own, or is in that of the epoch; steps that were skipped are
 * counted, with the loss of the others, or none. */
KELP_TEST(lines_of_steps)
{
    struct kelp_record latest;

    reopen();
    struct kelp_record record = entry(9, KELP_STEP_TRAIN, "");
    record.window_end = true;
    record.window_loss = 0.25;
    ck_assert_int_eq(append(record), KELP_OK);
    record.word.version = 10;
    record.word.step = 10;
    record.epoch_end = true;
    record.epoch_loss = (double)NAN;
    record.word.steps_skipped = 3;
    record.skipped = true;
    ck_assert_int_eq(append(record), KELP_OK);
    check_file("metrics.jsonl",
               "{\"version\":9,\"step\":10,\"epoch\":3,\"train/step_loss\":0.25,\"lr\":0.25}\n"
               "{\"version\":10,\"step\":11,\"epoch\":3,\"train/loss\":null,"
               "\"train/step_loss\":0.25,\"lr\":0.25,\"steps_skipped\":4}\n");
    reopen();
    ck_assert(kelp_journal_latest(journal, KELP_SPLIT_TRAIN, &latest));
    ck_assert_uint_eq(latest.word.version, 10);
    ck_assert(isnan(latest.epoch_loss));
}

/* JSON has no NaN. */
KELP_TEST(not_a_number_is_null)
{
    reopen();
    struct kelp_record record = entry(1, KELP_STEP_EVALUATE_VAL, "");
    record.metrics.of[KELP_METRIC_MSE] = NAN;
    ck_assert_int_eq(append(record), KELP_OK);
    check_file("metrics.jsonl", "{\"version\":1,\"step\":1,\"epoch\":3,\"val/loss\":0.5,"
                                "\"val/mse\":null,\"val/mae\":1.5}\n");
    reopen();
}

/* A replay leaves the files alone, in this process and in the next one; newer entries follow. */
KELP_TEST(replay_is_skipped)
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

/* Another digest for a version that is on file is an error that shows both; nothing is written. */
KELP_TEST(other_digest)
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

#define DIGEST_LINE(version, digest)                                                               \
    "{\"version\":" version ",\"step\":" version ",\"epoch\":3,\"digest\":\"" digest "\"}\n"
#define METRICS_LINE(version)                                                                      \
    "{\"version\":" version ",\"step\":" version ",\"epoch\":3,\"val/loss\":0.5,\"val/mse\":0.75," \
    "\"val/mae\":1.5}\n"

/* An old leader advises on beside the new one, and both append: each version stands there once. */
KELP_TEST(two_leaders)
{
    struct kelp_journal *other = NULL;
    reopen();
    ck_assert_int_eq(kelp_journal_open(folder, &no_job, &other, NULL), KELP_OK);
    for (uint64_t version = 1; version <= 4; version++) {
        struct kelp_record record = entry(version, KELP_STEP_EVALUATE_VAL, A);
        struct kelp_journal *first = version % 2 == 0 ? other : journal;
        struct kelp_journal *second = version % 2 == 0 ? journal : other;
        ck_assert_int_eq(kelp_journal_append(first, &record, NULL), KELP_OK);
        ck_assert_int_eq(kelp_journal_append(second, &record, NULL), KELP_OK);
    }
    struct kelp_record record = entry(5, KELP_STEP_FINISH, A);
    ck_assert_int_eq(kelp_journal_append(other, &record, NULL), KELP_OK);
    ck_assert_int_eq(append(entry(5, KELP_STEP_FINISH, B)), KELP_ERR_MISMATCH);
    kelp_journal_close(other);
    check_file("metrics.jsonl",
               METRICS_LINE("1") METRICS_LINE("2") METRICS_LINE("3") METRICS_LINE("4"));
    check_file("digests.jsonl", DIGEST_LINE("1", A) DIGEST_LINE("2", A) DIGEST_LINE("3", A)
                                    DIGEST_LINE("4", A) DIGEST_LINE("5", A));
    reopen();
}

/* The other leader died in the middle of a line: ours does not go on behind the piece. */
KELP_TEST(torn_line_of_another)
{
    reopen();
    ck_assert_int_eq(append(entry(1, KELP_STEP_FINISH, A)), KELP_OK);
    write_file("digests.jsonl", DIGEST_LINE("1", A) DIGEST_LINE("2", B) "{\"version\":3,\"st");
    ck_assert_int_eq(append(entry(2, KELP_STEP_FINISH, B)), KELP_OK);
    ck_assert_int_eq(append(entry(3, KELP_STEP_FINISH, A)), KELP_OK);
    check_file("digests.jsonl", DIGEST_LINE("1", A) DIGEST_LINE("2", B) DIGEST_LINE("3", A));
}

/* Files that two leaders wrote without locking open, and newer entries follow. */
KELP_TEST(repeated_version)
{
    const char *digests =
        DIGEST_LINE("1", A) DIGEST_LINE("2", B) DIGEST_LINE("2", B) DIGEST_LINE("1", A);
    const char *metrics = METRICS_LINE("2") METRICS_LINE("2") METRICS_LINE("1");
    write_file("digests.jsonl", digests);
    write_file("metrics.jsonl", metrics);
    reopen();
    ck_assert_int_eq(append(entry(2, KELP_STEP_EVALUATE_VAL, B)), KELP_OK);
    ck_assert_int_eq(append(entry(1, KELP_STEP_EVALUATE_VAL, B)), KELP_ERR_MISMATCH);
    check_file("digests.jsonl", digests);
    check_file("metrics.jsonl", metrics);
    ck_assert_int_eq(append(entry(3, KELP_STEP_FINISH, A)), KELP_OK);
    reopen();
}

KELP_TEST(repeated_version_other_digest)
{
    const char *digests = DIGEST_LINE("1", A) DIGEST_LINE("2", A) DIGEST_LINE("1", B);
    struct kelp_error error;
    write_file("digests.jsonl", digests);
    ck_assert_int_eq(kelp_journal_open(folder, &no_job, &journal, &error), KELP_ERR_MISMATCH);
    ck_assert_ptr_nonnull(strstr(error.text, "digests.jsonl:3"));
    ck_assert_ptr_nonnull(strstr(error.text, A));
    ck_assert_ptr_nonnull(strstr(error.text, B));
    ck_assert_ptr_null(journal);
    check_file("digests.jsonl", digests);
}

/* A crash in the middle of a line: the line goes, and the entry is written again when it comes. */
KELP_TEST(torn_line)
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

/* A loss of power left a page of what was not synced empty, and the one behind it whole. */
KELP_TEST(empty_page)
{
    const char *whole = "{\"version\":1,\"step\":1,\"epoch\":3,\"digest\":\"" A "\"}\n";
    char path[128], text[512] = "";

    (void)snprintf(text, sizeof(text), "%s{\"version\":2,\"st", whole);
    (void)snprintf(text + 300, sizeof(text) - 300, "p\":3,\"digest\":\"" B "\"}\n%s", whole);
    make_path(path, "digests.jsonl");
    FILE *out = fopen(path, "w");
    ck_assert_ptr_nonnull(out);
    ck_assert_uint_eq(fwrite(text, 1, 300 + strlen(text + 300), out), 300 + strlen(text + 300));
    ck_assert_int_eq(fclose(out), 0);
    reopen();
    check_file("digests.jsonl", whole);
    ck_assert_int_eq(append(entry(2, KELP_STEP_FINISH, B)), KELP_OK);
    reopen();
}

/* Any other damage is named by file and line and nothing is changed. */
KELP_LOOP_TEST(damage, 0, 6)
{
    static const char *const texts[] = {
        "{\"version\":1}\n",
        "no json\n",
        "{\"digest\":\"" A "\"}\n",
        "{\"version\":-1,\"digest\":\"" A "\"}\n",
        "{\"version\":1,\"digest\":\"" A "0\"}\n",
        "\n",
    };
    struct kelp_error error;
    write_file("digests.jsonl", texts[_i]);
    ck_assert_int_eq(kelp_journal_open(folder, &no_job, &journal, &error), KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "digests.jsonl:"));
    ck_assert_ptr_null(journal);
    check_file("digests.jsonl", texts[_i]);
}

/* What another job wrote from a version on is forgotten, in this process and in the file; what
 * comes then may differ. */
KELP_TEST(forgotten)
{
    reopen();
    for (uint64_t version = 1; version <= 4; version++) {
        ck_assert_int_eq(append(entry(version, KELP_STEP_EVALUATE_VAL, A)), KELP_OK);
    }
    ck_assert_int_eq(kelp_journal_truncate(journal, 3, NULL, NULL), KELP_OK);
    check_file("digests.jsonl", DIGEST_LINE("1", A) DIGEST_LINE("2", A));
    check_file("metrics.jsonl", METRICS_LINE("1") METRICS_LINE("2"));
    ck_assert_int_eq(append(entry(2, KELP_STEP_EVALUATE_VAL, B)), KELP_ERR_MISMATCH);
    ck_assert_int_eq(append(entry(3, KELP_STEP_EVALUATE_VAL, B)), KELP_OK);
    check_file("digests.jsonl", DIGEST_LINE("1", A) DIGEST_LINE("2", A) DIGEST_LINE("3", B));
    check_file("metrics.jsonl", METRICS_LINE("1") METRICS_LINE("2") METRICS_LINE("3"));
    ck_assert_int_eq(kelp_journal_truncate(journal, 9, NULL, NULL), KELP_OK); /* nothing there */
    reopen();
    ck_assert_int_eq(kelp_journal_truncate(journal, 0, NULL, NULL), KELP_OK);
    check_file("digests.jsonl", "");
    check_file("metrics.jsonl", "");
    ck_assert_int_eq(append(entry(0, KELP_STEP_EVALUATE_VAL, B)), KELP_OK);
    reopen();
    ck_assert_int_eq(append(entry(0, KELP_STEP_EVALUATE_VAL, A)), KELP_ERR_MISMATCH);
}

/* A job of 2 epochs ended with a digest at its version 12, which a longer one does not record when
 * it evaluates: 5 steps an epoch, and an evaluation or none. */
KELP_LOOP_TEST(end_of_shorter, 0, 7)
{
    static const struct {
        bool evaluate;
        uint32_t epochs, turn;
        uint64_t finish; /* version */
        uint64_t step;
        bool forgotten;
    } cases[] = {
        {true, 3, 1, 12, 10, true},   /* goes on */
        {true, 2, 1, 12, 10, false},  /* is the same job */
        {true, 3, 1, 11, 10, false},  /* the newest line is another one */
        {false, 3, 1, 10, 10, false}, /* the next epoch's first step records it too */
        {true, 3, 3, 11, 10, true},   /* an evaluation that this one does not make there */
        {true, 3, 3, 12, 11, false},  /* no end of an epoch */
        {true, 2, 3, 11, 10, false},  /* is the same job */
    };
    struct kelp_job_file *file = kelp_job_file_create();
    struct kelp_plan plan = {.samples = {[KELP_SPLIT_TRAIN] = 50, [KELP_SPLIT_VAL] = 10}};
    struct kelp_job job = *kelp_job_file_job(file);

    job.train.batch_size = 10;
    job.train.epochs = cases[_i].epochs;
    job.train.evaluate = cases[_i].evaluate;
    job.train.evaluate_epochs = cases[_i].turn;
    reopen();
    ck_assert_int_eq(append(entry(6, KELP_STEP_EVALUATE_VAL, A)), KELP_OK);
    struct kelp_record finish = entry(cases[_i].finish, KELP_STEP_FINISH, B);
    finish.word.step = cases[_i].step;
    ck_assert_int_eq(append(finish), KELP_OK);
    reopen();
    ck_assert_int_eq(kelp_journal_lengthen(journal, &job, &plan, NULL, NULL), KELP_OK);
    ck_assert_int_eq(append(entry(cases[_i].finish, KELP_STEP_FINISH, A)),
                     cases[_i].forgotten ? KELP_OK : KELP_ERR_MISMATCH);
    ck_assert_int_eq(append(entry(6, KELP_STEP_EVALUATE_VAL, B)), KELP_ERR_MISMATCH);
    kelp_job_file_destroy(file);
}

/* What the validation split said at a step is known again after a restart; a value that was not
 * finite, and other parts, say nothing. */
KELP_TEST(evaluations)
{
    double metric[KELP_CHECKPOINT_METRICS] = {0};
    write_file(
        "metrics.jsonl",
        "{\"version\":3,\"step\":3,\"epoch\":1,\"train/loss\":1,\"lr\":0.5}\n"
        "{\"version\":4,\"step\":3,\"epoch\":1,\"val/loss\":1,\"val/mse\":2,\"val/mae\":3}\n"
        "{\"version\":5,\"step\":3,\"epoch\":1,\"test/loss\":4,\"test/mse\":5,\"test/mae\":6}\n"
        "{\"version\":9,\"step\":6,\"epoch\":2,\"val/loss\":null,\"val/mse\":2,\"val/mae\":3}\n");
    reopen();
    ck_assert(kelp_journal_evaluated(journal, 3, metric));
    ck_assert_double_eq(metric[0], 1);
    ck_assert_double_eq(metric[1], 2);
    ck_assert_double_eq(metric[2], 3);
    ck_assert(!kelp_journal_evaluated(journal, 6, metric));
    ck_assert(!kelp_journal_evaluated(journal, 4, metric));
}

/* A disk that is full in the middle of a line: nothing of the line stays, and it goes in later. */
KELP_TEST(full_disk)
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

KELP_TEST(no_folder)
{
    struct kelp_error error;
    ck_assert_int_eq(kelp_journal_open("/nowhere/at/all", &no_job, &journal, &error),
                     KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "/nowhere/at/all/metrics.jsonl"));
}
