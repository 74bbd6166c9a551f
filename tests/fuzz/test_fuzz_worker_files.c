/*
 * What workers leave for others: files of predictions in the run's folder, and what was found in
 * large arrays, in the cache. Damaged, also with a digest that fits: refused, or all that is taken
 * lies inside the file.
 */
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "tests/lib/fuzz.h"
#include "worker/compute/predictions.h"
#include "worker/data/arrays/survey_facts.h"

#define INPUTS  40000
#define VALUES  6
#define COLUMNS 3

static const char *const words[] = {
    "KELPPRED", "KELPSURV", "\xff\xff\xff\xff\xff\xff\xff\xff", "\x01\x00\x00\x00", "\x40", "\x80"};

/* The bytes with this digest at `at`, of all from `from` on; owned. */
static uint8_t *sealed(const uint8_t *bytes, size_t count, size_t at, size_t from)
{
    uint8_t *copy = malloc(count);

    ck_assert_ptr_nonnull(copy);
    memcpy(copy, bytes, count);
    const uint64_t digest = kelp_digest_bytes(copy + from, count - from);
    memcpy(copy + at, &digest, sizeof(digest));
    return copy;
}

/* ---- predictions ---------------------------------------------------------------------------- */

/* Layout 1, lane 0, version 3, samples 64 to 66, of 2 values each. */
static uint8_t predictions[KELP_PREDICTION_HEADER_BYTES + VALUES * sizeof(float)] = "KELPPRED\x01";

static const struct kelp_fuzz_seed prediction_seeds[] = {{predictions, sizeof(predictions)}};

/* The part that the file itself names: the check must hold without one that fits by chance. */
static const char *check(const uint8_t *bytes, size_t count)
{
    struct kelp_prediction_part part = {.values = 0};
    struct kelp_error error = {.text = ""};
    uint64_t whole = 0;

    if (count >= KELP_PREDICTION_HEADER_BYTES) {
        memcpy(&part.lane, bytes + 12, sizeof(part.lane));
        memcpy(&part.version, bytes + 16, sizeof(part.version));
        memcpy(&part.first, bytes + 24, sizeof(part.first));
        memcpy(&part.count, bytes + 32, sizeof(part.count));
    }
    if (kelp_prediction_check("part", bytes, count, &part, &error) != KELP_OK) {
        return strncmp(error.text, "part: ", 6) == 0 ? NULL : "refused without a word";
    }
    if (part.values == 0 || __builtin_mul_overflow(part.count, part.values, &whole) ||
        __builtin_mul_overflow(whole, sizeof(float), &whole) ||
        whole != count - KELP_PREDICTION_HEADER_BYTES) {
        return "what was taken does not lie inside the file";
    }
    return NULL;
}

static const char *read_predictions(const uint8_t *bytes, size_t count)
{
    const char *wrong = check(bytes, count);

    if (!wrong && count >= KELP_PREDICTION_HEADER_BYTES) {
        uint8_t *copy = sealed(bytes, count, 48, KELP_PREDICTION_HEADER_BYTES);
        wrong = check(copy, count);
        free(copy);
    }
    return wrong;
}

/* ---- what was found in arrays ---------------------------------------------------------------- */

static uint8_t facts_bytes[40 + 2 * COLUMNS * sizeof(double)] = "KELPSURV";
static const struct kelp_fuzz_seed facts_seeds[] = {{facts_bytes, sizeof(facts_bytes)}};

/* What the caller has room for is taken, or nothing. */
static const char *take(const uint8_t *bytes, size_t count, uint64_t columns)
{
    double *values = calloc(2 * columns + 1, sizeof(*values));
    struct kelp_survey_facts facts = {.fingerprint = 77,
                                      .class_largest = 78,
                                      .columns = columns,
                                      .shift = values,
                                      .factor = values + columns};

    ck_assert_ptr_nonnull(values);
    const bool taken = kelp_survey_facts_take(bytes, count, &facts);
    const bool changed = facts.fingerprint != 77 || facts.class_largest != 78;
    free(values);
    if (facts.columns != columns || (!taken && changed)) {
        return "what was refused has changed something";
    }
    return taken && count != 40 + columns * 2 * sizeof(double) ? "another file was taken" : NULL;
}

static const char *read_facts(const uint8_t *bytes, size_t count)
{
    const char *wrong = take(bytes, count, COLUMNS);

    if (!wrong && count >= 16) {
        uint8_t *copy = sealed(bytes, count, 8, 16);
        for (uint64_t columns = 0; columns <= COLUMNS + 1 && !wrong; columns++) {
            wrong = take(copy, count, columns);
        }
        free(copy);
    }
    return wrong;
}

/* The seeds are whole files: taken as they are. */
static void setup(void)
{
    const uint64_t header[] = {3, 64, VALUES / 2, 2}, columns = COLUMNS;
    struct kelp_prediction_part part = {
        .version = 3, .first = 64, .count = VALUES / 2, .values = 0};
    double room[2 * COLUMNS];
    struct kelp_survey_facts facts = {.columns = COLUMNS, .shift = room, .factor = room + COLUMNS};

    memcpy(predictions + 16, header, sizeof(header));
    uint8_t *copy = sealed(predictions, sizeof(predictions), 48, KELP_PREDICTION_HEADER_BYTES);
    memcpy(predictions, copy, sizeof(predictions));
    free(copy);
    memcpy(facts_bytes + 32, &columns, sizeof(columns));
    copy = sealed(facts_bytes, sizeof(facts_bytes), 8, 16);
    memcpy(facts_bytes, copy, sizeof(facts_bytes));
    free(copy);
    ck_assert_int_eq(kelp_prediction_check("part", predictions, sizeof(predictions), &part, NULL),
                     KELP_OK);
    ck_assert_uint_eq(part.values, 2);
    ck_assert(kelp_survey_facts_take(facts_bytes, sizeof(facts_bytes), &facts));
}

KELP_CASE("worker_files", .timeout_s = 120, .setup = setup)

KELP_FUZZ_TEST(prediction_files, INPUTS, prediction_seeds, words, read_predictions)
KELP_FUZZ_TEST(facts_of_arrays, INPUTS, facts_seeds, words, read_facts)
