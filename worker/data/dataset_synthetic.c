/*
 * The generated series: hourly, seven columns, in the layout of the ETT data sets. Six loads (high,
 * middle and low use, each useful and useless) follow daily and weekly cycles, a yearly cycle and a
 * trend, and carry autocorrelated noise. The oil temperature follows the loads with inertia, plus
 * the season and slower noise.
 *
 * The same rows and seed give the same bits on every machine: only + - * / and floor of doubles are
 * used, no libm function whose last bit may differ between machines. Values are whole thousandths,
 * so that a CSV file holds them without loss.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/tensors/philox.h"
#include "worker/data/dataset.h"
#include "worker/data/dataset_series.h"

#define COLUMN_COUNT   7
#define LOAD_COUNT     6
#define OIL            6
#define DAY_HOURS      24
#define HALF_DAY_HOURS 12
#define WEEK_HOURS     168
#define YEAR_HOURS     8766
#define FIRST_HOUR     INT64_C(1467331200) /* 2016-07-01 00:00:00, in seconds since 1970 */
/* The loads' mean sum: the oil's temperature without any cycle. */
#define STEADY_WARMTH 14.8

/* The parameters of one load; amplitudes in the column's unit, phases in hours. */
struct load_profile {
    const char *name;
    double level;
    double day;       /* of the cycle of 24 hours */
    double half_day;  /* of the cycle of 12 hours: morning and evening peaks */
    double weekend;   /* added on Saturday and Sunday */
    double year;      /* of the yearly cycle */
    double trend;     /* per year */
    double noise;     /* approximate deviation of each hour's innovation */
    double memory;    /* share of the noise that stays until the next hour */
    double day_phase; /* hour at which the daily cycle rises through zero */
};

static const struct load_profile profiles[LOAD_COUNT] = {
    {"HUFL", 7.4, 3.1, 1.4, -1.3, 1.9, 0.35, 0.95, 0.82, 8.0},
    {"HULL", 2.2, 0.7, 0.3, -0.3, 0.5, 0.10, 0.45, 0.75, 9.0},
    {"MUFL", 4.3, 2.6, 1.2, -1.0, 1.5, 0.20, 0.90, 0.80, 8.0},
    {"MULL", 0.9, 0.6, 0.3, -0.2, 0.4, 0.05, 0.42, 0.72, 9.0},
    {"LUFL", 3.1, 0.5, 0.3, 0.3, 0.4, 0.15, 0.28, 0.85, 17.0},
    {"LULL", 0.9, 0.2, 0.1, 0.1, 0.2, 0.04, 0.16, 0.78, 18.0},
};
static const char oil_name[] = "OT";

/*
 * sin(2 pi x) to within 0.002, by Bhaskara's formula: sin(pi u) = 16 u (1 - u) / (5 - 4 u (1 - u)).
 */
static double cycle(double x)
{
    double phase = x - floor(x);
    double u = phase < 0.5 ? 2.0 * phase : 2.0 * phase - 1.0;
    double bow = u * (1.0 - u);
    double half = 16.0 * bow / (5.0 - 4.0 * bow);
    return phase < 0.5 ? half : -half;
}

/* Nearly normal with deviation 1: the sum of four uniform numbers, shifted and scaled (each has
 * variance 1/12, so the sum has deviation 1/sqrt(3)). */
static double noise_at(uint64_t seed, uint32_t column, uint64_t hour)
{
    uint32_t words[4];
    kelp_philox(seed, KELP_PHILOX_DATA, column, hour, words);
    double sum = 0.0;
    for (int i = 0; i < 4; i++) {
        sum += (double)words[i] / 4294967296.0;
    }
    return (sum - 2.0) * 1.7320508075688772;
}

static double round_thousandths(double value)
{
    return floor(value * 1000.0 + 0.5) / 1000.0;
}

/* State that is passed from hour to hour. */
struct generator {
    uint64_t seed;
    double remembered[COLUMN_COUNT]; /* noise */
    double warmth;                   /* of the oil, from the loads so far */
};

static double load_at(struct generator *generator, uint32_t column, uint64_t hour)
{
    const struct load_profile *profile = &profiles[column];
    double t = (double)hour;
    /* Row 0 is a Friday, 2016-07-01. */
    uint64_t weekday = (hour % WEEK_HOURS) / DAY_HOURS;
    double weekend = weekday == 1 || weekday == 2 ? profile->weekend : 0.0;
    double *remembered = &generator->remembered[column];
    *remembered =
        profile->memory * *remembered + profile->noise * noise_at(generator->seed, column, hour);
    return profile->level + profile->day * cycle((t - profile->day_phase) / DAY_HOURS) +
           profile->half_day * cycle((t - profile->day_phase) / HALF_DAY_HOURS) + weekend +
           profile->year * cycle(t / YEAR_HOURS) + profile->trend * (t / YEAR_HOURS) + *remembered;
}

static double oil_at(struct generator *generator, const double loads[LOAD_COUNT], uint64_t hour)
{
    double t = (double)hour;
    generator->warmth = 0.97 * generator->warmth + 0.03 * (loads[0] + loads[2] + loads[4]);
    double *remembered = &generator->remembered[OIL];
    *remembered = 0.985 * *remembered + 0.55 * noise_at(generator->seed, OIL, hour);
    return 8.0 + 0.45 * generator->warmth + 2.2 * cycle((t - 10.0) / DAY_HOURS) +
           6.5 * cycle((t + 700.0) / YEAR_HOURS) - 0.8 * (t / YEAR_HOURS) + *remembered;
}

static void next_row(struct generator *generator, uint64_t hour, double ret_row[COLUMN_COUNT])
{
    for (uint32_t column = 0; column < LOAD_COUNT; column++) {
        ret_row[column] = round_thousandths(load_at(generator, column, hour));
    }
    ret_row[OIL] = round_thousandths(oil_at(generator, ret_row, hour));
}

static const char *column_name(uint32_t column)
{
    return column < LOAD_COUNT ? profiles[column].name : oil_name;
}

static kelp_status check_request(uint64_t row_count, const char *target, uint32_t *ret_column,
                                 struct kelp_error *reterr)
{
    if (row_count == 0 || row_count > KELP_SYNTHETIC_ROWS_MAX) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "data.rows: %" PRIu64 " is not between 1 and %" PRIu64, row_count,
                         (uint64_t)KELP_SYNTHETIC_ROWS_MAX);
    }
    for (uint32_t column = 0; target && column < COLUMN_COUNT; column++) {
        if (strcmp(column_name(column), target) == 0) {
            *ret_column = column;
            return KELP_OK;
        }
    }
    if (!target) {
        return KELP_OK;
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "data.target: column %s: no such column; the synthetic series has HUFL, HULL, "
                     "MUFL, MULL, LUFL, LULL, OT",
                     target);
}

kelp_status kelp_synthetic_generate(uint64_t row_count, uint64_t seed, const char *target,
                                    struct kelp_series *ret_series, struct kelp_error *reterr)
{
    uint32_t first = 0;
    kelp_status status = check_request(row_count, target, &first, reterr);
    if (status != KELP_OK) {
        return status;
    }
    uint32_t count = target ? 1 : COLUMN_COUNT;
    struct kelp_series series;
    status = kelp_series_init(&series, row_count, count, reterr);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(series.column_names[i], sizeof(series.column_names[i]), "%s",
                       column_name(first + i));
    }
    series.times = calloc((size_t)row_count, sizeof(*series.times));
    if (!series.times) {
        kelp_series_fini(&series);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    struct generator generator = {.seed = seed, .warmth = STEADY_WARMTH};
    for (uint64_t hour = 0; hour < row_count; hour++) {
        double row[COLUMN_COUNT];
        next_row(&generator, hour, row);
        series.times[hour] = FIRST_HOUR + (int64_t)hour * 3600;
        memcpy(series.values + hour * count, row + first, count * sizeof(*row));
    }
    *ret_series = series;
    return KELP_OK;
}

/* ---- CSV file -------------------------------------------------------------------------------- */

struct calendar {
    unsigned year, month, day;
};

static void next_day(struct calendar *date)
{
    static const unsigned days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = date->year % 4 == 0 && (date->year % 100 != 0 || date->year % 400 == 0);
    unsigned last = days[date->month - 1] + (leap && date->month == 2 ? 1u : 0u);
    date->day++;
    if (date->day > last) {
        date->day = 1;
        date->month++;
    }
    if (date->month > 12) {
        date->month = 1;
        date->year++;
    }
}

/* Print exactly the generated value, which is in thousandths after round_thousandths(). */
static void print_value(FILE *file, double value)
{
    int64_t thousandths = (int64_t)floor(value * 1000.0 + 0.5);
    uint64_t magnitude = (uint64_t)(thousandths < 0 ? -thousandths : thousandths);
    (void)fprintf(file, ",%s%" PRIu64 ".%03" PRIu64, thousandths < 0 ? "-" : "", magnitude / 1000,
                  magnitude % 1000); /* ferror() at the end reports errors */
}

static void print_rows(FILE *file, uint64_t row_count, uint64_t seed)
{
    struct generator generator = {.seed = seed, .warmth = STEADY_WARMTH};
    struct calendar date = {.year = 2016, .month = 7, .day = 1};
    (void)fprintf(file, "date");
    for (uint32_t column = 0; column < COLUMN_COUNT; column++) {
        (void)fprintf(file, ",%s", column_name(column));
    }
    (void)fputc('\n', file);
    for (uint64_t hour = 0; hour < row_count && !ferror(file); hour++) {
        double row[COLUMN_COUNT];
        next_row(&generator, hour, row);
        (void)fprintf(file, "%04u-%02u-%02u %02u:00:00", date.year, date.month, date.day,
                      (unsigned)(hour % DAY_HOURS));
        for (uint32_t column = 0; column < COLUMN_COUNT; column++) {
            print_value(file, row[column]);
        }
        (void)fputc('\n', file);
        if (hour % DAY_HOURS == DAY_HOURS - 1) {
            next_day(&date);
        }
    }
}

static kelp_status file_error(const char *path, const char *what, struct kelp_error *reterr)
{
    int reason = errno;
    return kelp_fail(reterr, reason == ENOSPC || reason == EDQUOT ? KELP_ERR_NO_SPACE : KELP_ERR_IO,
                     "%s: cannot be %s: %s", path, what, strerror(reason));
}

/* Write to `beside` and rename it, so that no reader finds half a file. */
static kelp_status write_file(const char *path, const char *beside, uint64_t row_count,
                              uint64_t seed, struct kelp_error *reterr)
{
    FILE *file = fopen(beside, "wx");
    if (!file) {
        return file_error(path, "created", reterr);
    }
    errno = 0;
    print_rows(file, row_count, seed);
    bool failed = fflush(file) != 0 || ferror(file) != 0 || fsync(fileno(file)) != 0;
    kelp_status status = failed ? file_error(path, "written", reterr) : KELP_OK;
    if (fclose(file) != 0 && status == KELP_OK) {
        status = file_error(path, "written", reterr);
    }
    if (status == KELP_OK && rename(beside, path) != 0) {
        status = file_error(path, "replaced", reterr);
    }
    if (status != KELP_OK) {
        (void)unlink(beside); /* the first error is the one to report */
    }
    return status;
}

kelp_status kelp_dataset_write_synthetic(const char *path, uint64_t rows, uint64_t seed,
                                         struct kelp_error *reterr)
{
    kelp_status status = check_request(rows, NULL, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: is there and not a regular file; name a file to write", path);
    }
    size_t bytes = strlen(path) + 32;
    char *beside = malloc(bytes);
    if (!beside) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)snprintf(beside, bytes, "%s.%ld.part", path, (long)getpid());
    status = write_file(path, beside, rows, seed, reterr);
    free(beside);
    return status;
}
