/* CONTENTS of a snapshot's folder, damaged but summed up rightly: refused, never a crash, and never
 * a file outside of the folder. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/files.h"
#include "ps/storage/snapshot_contents.h"
#include "tests/lib/fuzz.h"
#include "tests/lib/suite.h"

#define INPUTS 4000

static const struct kelp_snapshot_id id = {.generation = 2, .step = 1500};
static char folder[64];

/* "a" has three bytes: "abc"; its digest is put in by setup(). */
static char good[256];

static struct kelp_fuzz_seed seeds[] = {
    {.bytes = good, .count = 0},
    KELP_FUZZ_TEXT("kelp snapshot 1\nstate generation=2 step=1500\n"),
    KELP_FUZZ_TEXT(
        "kelp snapshot 1\nstate generation=2 step=1500\nfile none bytes=1 end=0000000000000000\n"),
};
static const char *const words[] = {"file ",  "bytes=",   "end=", "../x",  "/etc/passwd",
                                    "\nfile", "sum ",     "\n",   "-1",    "18446744073709551616",
                                    "state ", "CONTENTS", ".",    "step=", "a bytes=3 end="};

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/dev/shm/kelp-fuzz-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        (void)snprintf(folder, sizeof(folder), "/tmp/kelp-fuzz-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(folder));
    }
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(kelp_files_write("a", "abc", 3, NULL), KELP_OK);
    seeds[0].count = (size_t)snprintf(
        good, sizeof(good),
        "kelp snapshot 1\nstate generation=2 step=1500\nfile a bytes=3 end=%016" PRIx64 "\n",
        kelp_digest_bytes("abc", 3));
}

static void teardown(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

static kelp_status check_with_sum(const uint8_t *bytes, size_t count)
{
    size_t total = count + sizeof("sum 0123456789abcdef\n") - 1;
    char *text = malloc(total + 1);
    ck_assert_ptr_nonnull(text);
    memcpy(text, bytes, count);
    (void)snprintf(text + count, total + 1 - count, "sum %016" PRIx64 "\n",
                   kelp_digest_bytes(bytes, count));
    ck_assert_int_eq(kelp_files_write("CONTENTS", text, total, NULL), KELP_OK);
    free(text);
    return kelp__snapshot_contents_check(".", &id, NULL);
}

static const char *target(const uint8_t *bytes, size_t count)
{
    kelp_status status = check_with_sum(bytes, count);
    if (status == KELP_OK && (count < strlen("kelp snapshot 1\nstate generation=2 step=1500") ||
                              memcmp(bytes, "kelp snapshot 1\nstate generation=", 33) != 0)) {
        return "something else was taken for the contents of a snapshot";
    }
    if (status != KELP_OK && status != KELP_ERR_CORRUPT && status != KELP_ERR_NOT_FOUND &&
        status != KELP_ERR_IO) {
        return "neither damaged nor absent";
    }
    return NULL;
}

KELP_CASE("contents", .setup = setup, .teardown = teardown, .timeout_s = 120)

/* The seed itself is right: otherwise the sum were all that is tested. */
KELP_TEST(seed_is_good)
{
    ck_assert_int_eq(check_with_sum(seeds[0].bytes, seeds[0].count), KELP_OK);
    ck_assert_int_eq(check_with_sum(seeds[2].bytes, seeds[2].count), KELP_ERR_NOT_FOUND);
}

KELP_FUZZ_TEST(damaged_contents, INPUTS, seeds, words, target)
