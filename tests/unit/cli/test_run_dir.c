#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cluster/run_client.h"
#include "cli/launch/children/ledger.h"
#include "cli/run/result.h"
#include "cli/run/run_dir.h"
#include "tests/lib/suite.h"

static struct kelp_error error;
static char folder[64];

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-run-dir-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

static void teardown(void)
{
    (void)chdir("/");
    (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

KELP_CASE("run_dir", .setup = setup, .teardown = teardown)

/* A new run makes its folder with parents, refuses one that holds anything, takes an empty one. */
KELP_TEST(test_create)
{
    struct kelp_run_dir run;
    struct kelp_run_dir other;
    struct stat info;

    ck_assert_int_eq(kelp_run_dir_create("a/b/c/", false, &run, &error), KELP_OK);
    ck_assert_str_eq(run.path, "a/b/c");
    ck_assert_int_eq(stat("a/b/c/logs", &info), 0);
    ck_assert_int_eq(kelp_run_dir_create("a/b/c", false, &other, &error), KELP_ERR_EXISTS);
    ck_assert_ptr_nonnull(strstr(error.text, "--resume"));
    ck_assert_int_eq(kelp_run_dir_create("a/b/c", true, &other, &error), KELP_OK);
    ck_assert_str_eq(other.path, "a/b/c-2");
    kelp_run_dir_close(&other);
    kelp_run_dir_close(&run);

    ck_assert_int_eq(mkdir("empty", 0777), 0);
    ck_assert_int_eq(kelp_run_dir_create("empty", false, &run, &error), KELP_OK);
    kelp_run_dir_close(&run);
    ck_assert_int_eq(close(open("file", O_CREAT | O_WRONLY, 0600)), 0);
    ck_assert_int_eq(kelp_run_dir_create("file", false, &run, &error), KELP_ERR_EXISTS);
    ck_assert_int_ne(kelp_run_dir_create("file/x", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_create("", false, &run, &error), KELP_ERR_LIMIT);
}

/* Logs and weights are for the user and the group, or for the user alone. */
KELP_TEST(test_modes)
{
    struct kelp_run_dir run;
    struct stat info;

    (void)umask(0);
    ck_assert_int_eq(kelp_run_dir_create("r", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_protect(&run, false, &error), KELP_OK);
    ck_assert_int_eq(stat("r", &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0750);
    ck_assert_int_eq(kelp_run_dir_protect(&run, true, &error), KELP_OK);
    ck_assert_int_eq(stat("r", &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0700);
    kelp_run_dir_close(&run);
    ck_assert_int_eq(rmdir("r/logs"), 0);
    ck_assert_int_eq(unlink("r/lock"), 0);
    ck_assert_int_eq(rmdir("r"), 0);
    ck_assert_int_eq(kelp_run_dir_protect(&run, true, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "run.private"));
}

/* The lock is seen from outside while it is held, keeps a second run out, and ends with the
 * process that held it, however it ended. */
KELP_TEST(test_lock)
{
    struct kelp_run_dir run;
    struct kelp_run_dir other;
    int pipe_fds[2];
    char byte;

    ck_assert_int_eq(kelp_run_dir_create("r", false, &run, &error), KELP_OK);
    ck_assert(kelp_run_dir_running("r"));
    ck_assert_int_eq(kelp_run_dir_resume("r", &other, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_run_dir_write(&run, "job.yaml", "name: x\n", &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_resume("r", &other, &error), KELP_ERR_BUSY);
    kelp_run_dir_close(&run);
    ck_assert(!kelp_run_dir_running("r"));

    ck_assert_int_eq(pipe(pipe_fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (kelp_run_dir_resume("r", &other, NULL) == KELP_OK) {
            (void)!write(pipe_fds[1], "x", 1);
        }
        (void)pause();
        _exit(0);
    }
    ck_assert_int_eq(read(pipe_fds[0], &byte, 1), 1);
    ck_assert(kelp_run_dir_running("r"));
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(!kelp_run_dir_running("r"));
    ck_assert(!kelp_run_dir_running("nowhere"));
    ck_assert_int_eq(kelp_run_dir_resume("r", &run, &error), KELP_OK);
    kelp_run_dir_close(&run);
}

/* A folder that was removed, or whose name another one has, is not the one that was locked. */
KELP_TEST(test_held)
{
    struct kelp_run_dir run;

    ck_assert_int_eq(kelp_run_dir_create("r", false, &run, &error), KELP_OK);
    ck_assert(kelp_run_dir_is_held(&run));
    ck_assert_int_eq(rename("r", "moved"), 0);
    ck_assert(!kelp_run_dir_is_held(&run));
    ck_assert_int_eq(mkdir("r", 0777), 0);
    ck_assert_int_eq(close(open("r/lock", O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    ck_assert(!kelp_run_dir_is_held(&run));
    kelp_run_dir_close(&run);
    ck_assert(kelp_run_dir_is_held(&run));
}

/* A folder that this user may not look into is not called empty. */
KELP_TEST(test_closed)
{
    char path[KELP_RUN_PATH_MAX + 1];
    struct kelp_run_dir run;

    ck_assert_int_eq(kelp_run_dir_create("r", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_write(&run, "job.yaml", "name: x\n", &error), KELP_OK);
    kelp_run_dir_close(&run);
    ck_assert_int_eq(kelp_run_choose("r", path, &error), KELP_OK);
    ck_assert_int_eq(chmod("r", 0), 0);
    pid_t pid = fork();
    if (pid == 0) {
        const bool closed = (geteuid() != 0 || setuid(65534) == 0) && /* root may look everywhere */
                            kelp_run_choose("r", path, &error) == KELP_ERR_DENIED &&
                            kelp_run_dir_resume("r", &run, &error) == KELP_ERR_DENIED &&
                            strstr(error.text, "Permission denied");
        _exit(closed ? 0 : 1);
    }
    int wait_status = 0;
    ck_assert_int_eq(waitpid(pid, &wait_status, 0), pid);
    ck_assert_int_eq(chmod("r", 0700), 0);
    ck_assert_int_eq(wait_status, 0);
}

/* Runs that begin in the same moment under one name get folders of their own. */
KELP_LOOP_TEST(test_same_moment, 0, 20)
{
    enum { RUNS = 4 };
    struct kelp_run_dir run;
    int start_fds[2];

    ck_assert_int_eq(pipe(start_fds), 0);
    pid_t pids[RUNS];
    for (int i = 0; i < RUNS; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            char byte;
            (void)close(start_fds[1]);
            (void)!read(start_fds[0], &byte, 1); /* ends when the parent closes it: all at once */
            if (kelp_run_dir_create("same", true, &run, &error) != KELP_OK) {
                (void)fprintf(stderr, "%s\n", error.text);
                _exit(1);
            }
            (void)pause(); /* holding the folder */
        }
    }
    (void)close(start_fds[0]);
    (void)close(start_fds[1]);
    const char *const names[RUNS] = {"same", "same-2", "same-3", "same-4"};
    for (int i = 0; i < RUNS; i++) {
        for (int looks = 0; !kelp_run_dir_running(names[i]); looks++) {
            int wait_status;
            ck_assert_int_eq(waitpid(-1, &wait_status, WNOHANG), 0); /* none has given up */
            ck_assert_int_lt(looks, 20000);
            (void)usleep(1000);
        }
    }
    for (int i = 0; i < RUNS; i++) {
        ck_assert_int_eq(kill(pids[i], SIGKILL), 0);
        ck_assert_int_eq(waitpid(pids[i], NULL, 0), pids[i]);
    }
}

/* Files are replaced as a whole, and read back within their limit. */
KELP_TEST(test_files)
{
    struct kelp_run_dir run;
    struct stat info;
    char *text = NULL;

    ck_assert_int_eq(kelp_run_dir_create("r", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_read("r", "result.json", &text, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(kelp_run_dir_write(&run, "result.json", "a long first text", &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_write(&run, "result.json", "second", &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_read("r", "result.json", &text, &error), KELP_OK);
    ck_assert_str_eq(text, "second");
    free(text);
    ck_assert_int_ne(stat("r/result.json.new", &info), 0);
    ck_assert_int_eq(truncate("r/result.json", KELP_RUN_FILE_MAX + 1), 0);
    ck_assert_int_eq(kelp_run_dir_read("r", "result.json", &text, &error), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_run_dir_read("r", "logs", &text, &error), KELP_ERR_INVALID);
    kelp_run_dir_close(&run);
}

static const char *latest(void)
{
    static char target[1024];
    ssize_t length = readlink(KELP_RUN_LATEST, target, sizeof(target) - 1);

    ck_assert_int_gt(length, 0);
    target[length] = '\0';
    return target;
}

/* runs/latest is relative within runs/, absolute outside, and moves on with each run. */
KELP_TEST(test_latest)
{
    struct kelp_run_dir run;
    char expected[128];

    ck_assert_int_eq(kelp_run_dir_create("runs/one", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_link_latest(&run, &error), KELP_OK);
    ck_assert_str_eq(latest(), "one");
    kelp_run_dir_close(&run);
    ck_assert_int_eq(kelp_run_dir_create("elsewhere", false, &run, &error), KELP_OK);
    ck_assert_int_eq(kelp_run_dir_link_latest(&run, &error), KELP_OK);
    (void)snprintf(expected, sizeof(expected), "%s/elsewhere", folder);
    ck_assert_str_eq(latest(), expected);
    kelp_run_dir_close(&run);
}

KELP_TEST(test_default_name)
{
    char path[KELP_RUN_PATH_MAX + 1];

    ck_assert_int_eq(kelp_run_dir_default("etth1", 1769860800, path, &error), KELP_OK);
    ck_assert_str_eq(path, "runs/etth1-20260131-120000");
}

static char *summary_of(const struct kelp_result *result)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    kelp_result_summary(result, "runs/x", out);
    ck_assert_int_eq(fclose(out), 0);
    return text;
}

/* What is printed is read back the same; what is damaged is refused. */
KELP_TEST(test_result)
{
    struct kelp_result result = {.job = "a \"job\"",
                                 .status = "done",
                                 .step = 7650,
                                 .epoch = 10,
                                 .digest = "0123456789abcdef0123456789abcdef",
                                 .steps_per_s = 1234.5,
                                 .wall_s = 6.25,
                                 .restarts = 2,
                                 .restores = 3,
                                 .steps_recomputed = 450,
                                 .checkpoints = 12};
    struct kelp_result again;
    char *text = NULL;
    size_t bytes = 0;

    result.worker_count = 1;
    result.workers[0] = (struct kelp_result_worker){.id = "worker-0", .lanes_computed = 77};
    kelp_result_add(&result, "train/loss", 0.15963);
    kelp_result_add(&result, "test/loss", 1.0 / 3);
    result.best_known = true;
    result.best_step = 765;
    result.best_epoch = 7;
    kelp_result_add_best(&result, "val/loss", 0.25);
    kelp_result_add_best(&result, "val/auc", 0.75);
    (void)snprintf(result.best_checkpoint, sizeof(result.best_checkpoint), "step-765.g1");
    result.steps_skipped = 5;
    (void)snprintf(result.unit, sizeof(result.unit), "rides");
    (void)snprintf(result.host, sizeof(result.host), "here");
    (void)snprintf(result.version, sizeof(result.version), "0.1.0 (abc)");
    kelp_result_stamp(&result, 1767225605, 6.25);
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    kelp_result_print(&result, out);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_int_eq(kelp_result_parse(text, strlen(text), &again, &error), KELP_OK);
    ck_assert_str_eq(again.job, result.job);
    ck_assert_str_eq(again.digest, result.digest);
    ck_assert_uint_eq(again.step, 7650);
    ck_assert_uint_eq(again.metric_count, 2);
    ck_assert(again.metrics[1].value == result.metrics[1].value);
    ck_assert(again.wall_s == 6.25);
    ck_assert(again.best_known);
    ck_assert_uint_eq(again.best_step, 765);
    ck_assert_uint_eq(again.best_epoch, 7);
    ck_assert_str_eq(again.best_checkpoint, "step-765.g1");
    ck_assert_uint_eq(again.steps_skipped, 5);
    ck_assert_str_eq(again.unit, "rides");
    ck_assert_str_eq(again.started, "2025-12-31T23:59:59Z");
    ck_assert_str_eq(again.ended, "2026-01-01T00:00:05Z");
    ck_assert_str_eq(again.version, "0.1.0 (abc)");
    ck_assert_str_eq(again.host, "here");
    ck_assert_uint_eq(again.best_count, 2);
    ck_assert_str_eq(again.best[1].name, "val/auc");
    ck_assert(again.best[1].value == 0.75);
    ck_assert_uint_eq(again.worker_count, 1);
    ck_assert_uint_eq(again.workers[0].lanes_computed, 77);
    ck_assert_uint_eq(again.restarts, 2);
    ck_assert_uint_eq(again.restores, 3);
    ck_assert_uint_eq(again.steps_recomputed, 450);
    ck_assert_uint_eq(again.checkpoints, 12);
    static const char added[] = "\"restores\":3,\"steps_recomputed\":450,\"checkpoints\":12,";
    char *at = strstr(text, added);
    ck_assert_ptr_nonnull(at);
    memset(at, ' ', sizeof(added) - 1); /* as an older kelp wrote it */
    ck_assert_msg(kelp_result_parse(text, strlen(text), &again, &error) == KELP_OK, "%s",
                  error.text);
    ck_assert_uint_eq(again.restores, 0);
    for (size_t cut = 0; cut + 2 < strlen(text); cut++) {
        ck_assert_int_ne(kelp_result_parse(text, cut, &again, &error), KELP_OK);
    }
    free(text);
    text = summary_of(&result);
    ck_assert_ptr_nonnull(strstr(text, "\ntest           0.333333\n"));
    ck_assert_ptr_nonnull(strstr(text, "runs/x/model.safetensors\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nrestores   3, 450 steps computed again\n"));
    free(text);
    result.step = 0; /* run.mode evaluate and predict leave no model */
    text = summary_of(&result);
    ck_assert_ptr_null(strstr(text, "model.safetensors"));
    free(text);
}

/* Work and checkpoints are added up over all starts of workers and all leaders. */
KELP_TEST(test_ledger)
{
    static struct kelp_ledger ledger;
    static struct kelp_result result;
    Kelp__V1__CheckpointStatus checkpoint = KELP__V1__CHECKPOINT_STATUS__INIT;
    Kelp__V1__WorkerStatus worker = KELP__V1__WORKER_STATUS__INIT;
    Kelp__V1__StatusReply status = KELP__V1__STATUS_REPLY__INIT;
    const struct {
        char *leader;
        uint64_t committed;
        uint64_t incarnation;
        uint64_t lanes;
    } seen[] = {{"c-0", 0, 1, 5}, {"c-0", 2, 1, 9}, {"c-1", 1, 2, 4}, {"c-1", 4, 2, 6},
                {"c-1", 0, 2, 6}, {"c-1", 3, 3, 1}, {"c-0", 3, 3, 2}};

    worker.id = (char[]){"worker-0"};
    status.workers = (Kelp__V1__WorkerStatus *[]){&worker};
    status.n_workers = 1;
    kelp_ledger_add(&ledger, &status); /* of a coordinator that has no checkpoints to tell of */
    status.checkpoint = &checkpoint;
    for (size_t i = 0; i < KELP_ARRAY_COUNT(seen); i++) {
        status.leader = seen[i].leader;
        checkpoint.committed = seen[i].committed;
        worker.incarnation = seen[i].incarnation;
        worker.lanes_computed = seen[i].lanes;
        kelp_ledger_add(&ledger, &status);
    }
    /* Its third start has left with more, and a start before it is known already. */
    Kelp__V1__WorkerGone gone[] = {KELP__V1__WORKER_GONE__INIT, KELP__V1__WORKER_GONE__INIT,
                                   KELP__V1__WORKER_GONE__INIT};
    gone[0].id = gone[1].id = worker.id;
    gone[0].incarnation = 2;
    gone[0].lanes_computed = 6;
    gone[1].incarnation = 3;
    gone[1].lanes_computed = 8;
    gone[2].id = (char[]){"worker-1"}; /* it was not seen before */
    gone[2].incarnation = 4;
    gone[2].lanes_computed = 1;
    status.gone = (Kelp__V1__WorkerGone *[]){&gone[0], &gone[1], &gone[2]};
    status.n_gone = 3;
    status.n_workers = 0;
    kelp_ledger_add(&ledger, &status);
    kelp_ledger_result(&ledger, &result);
    ck_assert_uint_eq(result.checkpoints, 2 + 4 + 3 + 3);
    ck_assert_uint_eq(result.worker_count, 2);
    ck_assert_uint_eq(result.workers[0].lanes_computed, 9 + 6 + 8);
    ck_assert_uint_eq(result.workers[1].lanes_computed, 1);
}

/* The unit of the data may have letters of more than a byte: values stand below its column's end.
 */
KELP_TEST(test_result_unit_columns)
{
    static struct kelp_result result; /* large */
    static const char unit[] = "gr\u00f6\u00dfere \u00b0C";
    char *text = NULL;
    size_t bytes = 0;

    kelp_result_add(&result, "test/loss", 1);
    kelp_result_add(&result, "test/mae_unscaled", 2);
    (void)snprintf(result.unit, sizeof(result.unit), "%s", unit);
    FILE *out = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(out);
    kelp_result_table(out, &result);
    ck_assert_int_eq(fclose(out), 0);
    ck_assert_str_eq(text, "METRIC             loss mae (gr\u00f6\u00dfere \u00b0C)\n"
                           "test                  1                2\n");
    free(text);
}
