#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/verb/meter.h"
#include "tests/lib/suite.h"

static struct kelp_meter busy(void)
{
    return (struct kelp_meter){.running = true,
                               .reason = "",
                               .step = 812,
                               .total_steps = 1900,
                               .epoch = 3,
                               .epochs = 10,
                               .loss_known = true,
                               .loss = 0.161234,
                               .samples_per_s = 24132,
                               .workers = 2,
                               .shards = 1,
                               .left_s = 12.4};
}

/* A wide terminal shows everything, in this order. */
KELP_TEST(test_wide_bar)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    kelp_meter_bar(&meter, 140, text, sizeof(text));
    ck_assert_str_eq(text, "epoch 3/10  [=================>                      ]   42%  "
                           "step 812/1900  loss 0.1612  24.1k samples/s  2 workers  1 shard  "
                           "00:12 left");
}

/* What validation and left-out steps add to both forms. */
KELP_TEST(test_val_and_skipped)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    meter.val_known = true;
    meter.val_loss = 0.25;
    meter.steps_skipped = 7;
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_msg(strstr(text, "loss 0.1612  val 0.25  7 skipped  24.1k") != NULL, "%s", text);
    kelp_meter_line(&meter, text, sizeof(text));
    ck_assert_msg(strstr(text, "loss 0.161234 val/loss 0.25 skipped 7 samples/s") != NULL, "%s",
                  text);
}

/* No line is longer than the terminal is wide, and the share done is always told. */
KELP_TEST(test_every_width)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    for (unsigned columns = 4; columns < 600; columns++) {
        kelp_meter_bar(&meter, columns, text, sizeof(text));
        ck_assert_uint_le(strlen(text), columns);
        ck_assert_msg(strstr(text, "42%") != NULL, "%u: '%s'", columns, text);
    }
}

/* A cluster that waits says for what; a reason longer than the line is cut. */
KELP_TEST(test_waiting)
{
    struct kelp_meter meter = {.reason = "1 of 2 workers are there", .left_s = -1};
    char text[KELP_METER_TEXT_MAX];

    kelp_meter_bar(&meter, 80, text, sizeof(text));
    ck_assert_str_eq(text, "waiting: 1 of 2 workers are there");
    kelp_meter_bar(&meter, 12, text, sizeof(text));
    ck_assert_str_eq(text, "waiting: 1 o");
    kelp_meter_line(&meter, text, sizeof(text));
    ck_assert_str_eq(text, "waiting: 1 of 2 workers are there");
}

/* 100 % is not shown before the last step is made, and steps beyond the total are not over it. */
KELP_TEST(test_share)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    meter.step = 1899;
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, " 99%"));
    meter.step = 1900;
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "100%"));
    meter.step = 2000;
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "100%"));
    meter.total_steps = 0;
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "  0%"));
}

KELP_TEST(test_line)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    kelp_meter_line(&meter, text, sizeof(text));
    ck_assert_str_eq(text, "step 812/1900 epoch 3/10 loss 0.161234 samples/s 24132 workers 2 "
                           "shards 1 left 12 s");
    meter.what = "block";
    meter.epochs = 0;
    kelp_meter_line(&meter, text, sizeof(text));
    ck_assert_str_eq(text, "block 812/1900 samples/s 24132 workers 2 shards 1 left 12 s");
    kelp_meter_bar(&meter, 200, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "block 812/1900"));
    ck_assert_ptr_null(strstr(text, "epoch"));
}

/* A loss that is not finite is shown as it is. */
KELP_TEST(test_loss_not_finite)
{
    struct kelp_meter meter = busy();
    char text[KELP_METER_TEXT_MAX];

    meter.loss = (double)NAN;
    kelp_meter_line(&meter, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "loss nan"));
}

KELP_TEST(test_units)
{
    static const struct {
        double seconds;
        const char *text;
    } durations[] = {
        {0, "0 ms"},           {0.0121, "12 ms"},   {0.9999, "1.0 s"},      {12.44, "12.4 s"},
        {59.97, "1 min 00 s"}, {192, "3 min 12 s"}, {3599.6, "1 h 00 min"}, {7500, "2 h 05 min"},
        {-1, "0 ms"}};
    static const struct {
        double value;
        const char *text;
    } counts[] = {{0, "0"}, {999.4, "999"}, {999.6, "1.0k"}, {24132, "24.1k"}, {1234567, "1.2M"}};
    static const struct {
        uint64_t value;
        const char *text;
    } sizes[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {28416, "27.8 KiB"},
                 {(1 << 20) - 1, "1.0 MiB"},
                 {UINT64_C(3) << 40, "3.0 TiB"},
                 {UINT64_C(5000) << 40, "5000.0 TiB"}};
    char text[64];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        kelp_meter_size(sizes[i].value, text, sizeof(text));
        ck_assert_str_eq(text, sizes[i].text);
    }
    for (size_t i = 0; i < sizeof(durations) / sizeof(durations[0]); i++) {
        kelp_meter_duration(durations[i].seconds, text, sizeof(text));
        ck_assert_str_eq(text, durations[i].text);
    }
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        kelp_meter_count(counts[i].value, text, sizeof(text));
        ck_assert_str_eq(text, counts[i].text);
    }
}

/* The rate is that of the window; the whole run's counts from the first step seen. */
KELP_TEST(test_rate)
{
    struct kelp_rate rate = {0};

    kelp_rate_add(&rate, 0, 1000);
    ck_assert(kelp_rate_recent(&rate) == 0);
    ck_assert(kelp_rate_whole(&rate) == 0);
    for (uint64_t i = 1; i <= 200; i++) {
        kelp_rate_add(&rate, i * 10, 5000 + i * 100);
    }
    ck_assert(fabs(kelp_rate_recent(&rate) - 100) < 1e-9);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
    /* standing still: the window empties, the whole stays */
    for (uint64_t i = 1; i <= 200; i++) {
        kelp_rate_add(&rate, 2000, 25000 + i * 100);
    }
    ck_assert(kelp_rate_recent(&rate) == 0);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
}

/* A run of a moment is timed from the last look at which it had not begun. */
KELP_TEST(test_rate_of_a_short_run)
{
    struct kelp_rate rate = {0};

    kelp_rate_add(&rate, 0, 1000);
    kelp_rate_add(&rate, 0, 1100);
    kelp_rate_add(&rate, 183, 1200);
    ck_assert(fabs(kelp_rate_recent(&rate) - 1830) < 1e-9);
    ck_assert(fabs(kelp_rate_whole(&rate) - 1830) < 1e-9);
    kelp_rate_add(&rate, 200, 1900);
    ck_assert(fabs(kelp_rate_whole(&rate) - 250) < 1e-9);
    kelp_rate_add(&rate, 283, 2200);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
}

/* A run that goes on from step 5000: what was made before counts in no rate, from the first look.
 */
KELP_TEST(test_rate_after_resume)
{
    struct kelp_rate rate = {0};

    kelp_rate_add(&rate, 0, 1000); /* the cluster starts */
    kelp_rate_add(&rate, 0, 1100);
    kelp_rate_begin(&rate, 5000);
    kelp_rate_add(&rate, 5000, 1200);
    ck_assert(kelp_rate_recent(&rate) == 0);
    kelp_rate_add(&rate, 5010, 1300);
    ck_assert(fabs(kelp_rate_recent(&rate) - 100) < 1e-9);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
    kelp_rate_begin(&rate, 0); /* it has begun */
    for (uint64_t i = 1; i <= 20; i++) {
        kelp_rate_add(&rate, 5010 + i * 10, 1300 + i * 100);
    }
    ck_assert(fabs(kelp_rate_recent(&rate) - 100) < 1e-9);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
}

/* The first look comes late: steps made since the restore count, those before do not. */
KELP_TEST(test_rate_of_a_late_look)
{
    struct kelp_rate rate = {0};

    kelp_rate_add(&rate, 0, 1000);
    kelp_rate_begin(&rate, 5000);
    kelp_rate_add(&rate, 5050, 1500);
    ck_assert(fabs(kelp_rate_recent(&rate) - 100) < 1e-9);
}

/* After a roll-back the window begins anew and no rate is negative. */
KELP_TEST(test_rate_after_roll_back)
{
    struct kelp_rate rate = {0};

    kelp_rate_add(&rate, 100, 1000);
    kelp_rate_add(&rate, 200, 2000);
    kelp_rate_add(&rate, 10, 3000);
    ck_assert(kelp_rate_recent(&rate) == 0);
    kelp_rate_add(&rate, 60, 4000);
    ck_assert(fabs(kelp_rate_recent(&rate) - 50) < 1e-9);
    ck_assert(fabs(kelp_rate_whole(&rate) - 100) < 1e-9);
}
