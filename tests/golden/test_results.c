/*
 * Results on real data: DLinear on ETTh1 reaches what PyTorch reaches with the same settings (Adam
 * 0.005, batch 32, type1 schedule, ten epochs; RESULTS.md beside the reference fixtures), as the
 * median of three seeds, within or below its range with 1 % of slack.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>

#include "tests/lib/run_train.h"
#include "tests/lib/shared_files.h"

#define EPOCHS 10
#define SEEDS  3
#define SLACK  1.01

/* The upper ends of the ranges in RESULTS.md. */
static const double univariate_mse = 0.0618;
static const double univariate_mae = 0.184;
static const double multivariate_mse = 0.3710;
static const double multivariate_mae = 0.3925;

static char csv[KELP_TEST_PATH_MAX];

static void train(struct kelp_run *run, const char *features, unsigned seq_len, unsigned seed)
{
    char text[KELP_TEST_PATH_MAX + 512];
    (void)snprintf(
        text, sizeof(text),
        "name: etth1\nseed: %u\nmodel: {kind: dlinear}\n"
        "data: {kind: csv, path: \"%s\", features: %s, target: OT, seq_len: %u, pred_len: 96}\n"
        "train: {epochs: %d, batch_size: 32, optimizer: adam, lr: 0.005, schedule: type1}\n"
        "cluster: {workers: 2, shards: 1, lanes: 2}\n",
        seed, csv, features, seq_len, EPOCHS);
    kelp_run_prepare(run);
    kelp_run_train(run, kelp_test_write(run->folder, "job.yaml", text), NULL, 240);
    ck_assert_msg(run->exit_code == 0, "exit %d; output:\n%s", run->exit_code, run->output);
}

/* The epoch of the lowest validation MSE. */
static int best_epoch(const struct kelp_run *run)
{
    int best = 1;
    double lowest = INFINITY;
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        double mse = kelp_run_line_number(run, "metrics.jsonl", "epoch", epoch, "val/mse");
        if (mse < lowest) {
            lowest = mse;
            best = epoch;
        }
    }
    return best;
}

static double median(const double values[SEEDS])
{
    double low = fmin(values[0], values[1]);
    double high = fmax(values[0], values[1]);
    return fmax(low, fmin(high, values[2]));
}

static void check_setting(const char *features, unsigned seq_len, bool at_best, double mse_limit,
                          double mae_limit)
{
    double mse[SEEDS];
    double mae[SEEDS];
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        struct kelp_run run;
        train(&run, features, seq_len, seed + 1);
        int epoch = at_best ? best_epoch(&run) : EPOCHS;
        mse[seed] = kelp_run_line_number(&run, "metrics.jsonl", "epoch", epoch, "test/mse");
        mae[seed] = kelp_run_line_number(&run, "metrics.jsonl", "epoch", epoch, "test/mae");
        printf("ETTh1 %s %u -> 96 seed %u epoch %d: test MSE %.4f MAE %.4f\n", features, seq_len,
               seed + 1, epoch, mse[seed], mae[seed]);
        (void)fflush(stdout);
        kelp_run_fini(&run);
    }
    printf("ETTh1 %s %u -> 96 median: MSE %.4f (at most %.4f) MAE %.4f (at most %.4f)\n", features,
           seq_len, median(mse), mse_limit * SLACK, median(mae), mae_limit * SLACK);
    ck_assert_double_le(median(mse), mse_limit * SLACK);
    ck_assert_double_le(median(mae), mae_limit * SLACK);
}

START_TEST(univariate)
{
    check_setting("S", 96, false, univariate_mse, univariate_mae);
}
END_TEST

START_TEST(multivariate)
{
    check_setting("M", 336, true, multivariate_mse, multivariate_mae);
}
END_TEST

int main(void)
{
    if (!kelp_test_data_file("ett/ETTh1.csv", csv)) {
        printf("skipped: %s is missing (KELP_DATA names another folder)\n", csv);
        return 77;
    }
    Suite *suite = suite_create("results");
    TCase *tcase = tcase_create("etth1");
    tcase_set_timeout(tcase, 900);
    tcase_add_test(tcase, univariate);
    tcase_add_test(tcase, multivariate);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
