/* Snapshots on disk: what is written is read back; damage is found before use; what is not there is
 * told from what is damaged; a failed attempt leaves nothing. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files.h"
#include "common/philox.h"
#include "ps/snapshot_store.h"

static const struct kelp_snapshot_id id = {.generation = 3, .step = 1500};
static char folder[] = "/tmp/kelp-store-XXXXXX";

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/kelp-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void teardown(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(kelp_files_remove(folder, NULL), KELP_OK);
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        struct kelp_error error = {.text = ""};                                                    \
        kelp_status status = (call);                                                               \
        ck_assert_msg(status == KELP_OK, "%s: %s", #call, error.text);                             \
    } while (0)

/* ---- states to save ---------------------------------------------------------------------------
 */

#define ITEMS_MAX 4
#define PARTS_MAX 40

struct item {
    uint32_t kind;
    size_t bytes;
};
struct shape {
    const char *name;
    uint32_t part_count;
    uint32_t parts[PARTS_MAX]; /* in the order in which they are written */
    uint32_t item_count;
    struct item items[ITEMS_MAX]; /* of each part */
};

#define CHUNK KELP_SNAPSHOT_CHUNK_BYTES
static const struct shape shapes[] = {
    {"one value", 1, {0}, 1, {{KELP_SNAPSHOT_WEIGHTS, 4}}},
    {"nothing in it", 1, {5}, 2, {{KELP_SNAPSHOT_WEIGHTS, 0}, {KELP_SNAPSHOT_SLOT, 0}}},
    {"an empty control state", 1, {0}, 2, {{KELP_SNAPSHOT_CONTROL, 0}, {KELP_SNAPSHOT_WEIGHTS, 9}}},
    {"no items", 2, {0, 1}, 0, {{0}}},
    {"no parts", 0, {0}, 0, {{0}}},
    {"a chunk", 1, {0}, 1, {{KELP_SNAPSHOT_WEIGHTS, CHUNK}}},
    {"a chunk but one", 1, {0}, 1, {{KELP_SNAPSHOT_WEIGHTS, CHUNK - 1}}},
    {"a chunk and one", 1, {0}, 1, {{KELP_SNAPSHOT_WEIGHTS, CHUNK + 1}}},
    {"Adam",
     4,
     {0, 1, 2, 3},
     4,
     {{KELP_SNAPSHOT_CONTROL, 77},
      {KELP_SNAPSHOT_WEIGHTS, 3 * CHUNK + 64},
      {KELP_SNAPSHOT_SLOT, 3 * CHUNK + 64},
      {KELP_SNAPSHOT_SLOT + 1, 3 * CHUNK + 64}}},
    {"out of order",
     8,
     {3, 9, 8, 4, 5, 0, 1023, 10},
     2,
     {{KELP_SNAPSHOT_WEIGHTS, 1000}, {KELP_SNAPSHOT_SLOT, 100}}},
    {"many small ones",
     12,
     {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
     2,
     {{KELP_SNAPSHOT_WEIGHTS, 64}, {KELP_SNAPSHOT_SLOT, 64}}},
    {"several files", 3, {0, 1, 2}, 1, {{KELP_SNAPSHOT_WEIGHTS, 40u << 20}}},
};

/* Incompressible, and different for each item. */
static unsigned char *values(uint32_t partition, uint32_t kind, size_t bytes)
{
    unsigned char *memory = malloc(bytes + 8);
    ck_assert_ptr_nonnull(memory);
    uint64_t state = ((uint64_t)partition << 32 | kind) * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t at = 0; at < bytes; at += 8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memcpy(memory + at, &state, 8);
    }
    return memory;
}

struct digests {
    char hex[PARTS_MAX][KELP_DIGEST_HEX_BYTES];
};

static kelp_status write_parts(struct kelp_snapshot_writer *writer, const struct shape *shape,
                               struct digests *ret_digests, struct kelp_error *reterr)
{
    kelp_status status = KELP_OK;
    for (uint32_t p = 0; p < shape->part_count && status == KELP_OK; p++) {
        uint64_t total = 0;
        status = kelp_snapshot_writer_part(writer, shape->parts[p], reterr);
        for (uint32_t i = 0; i < shape->item_count && status == KELP_OK; i++) {
            const struct item *item = &shape->items[i];
            unsigned char *bytes = values(shape->parts[p], item->kind, item->bytes);
            status = kelp_snapshot_writer_item(writer, item->kind, bytes, item->bytes, reterr);
            total += item->bytes;
            free(bytes);
        }
        if (status == KELP_OK) {
            uint64_t bytes = 0;
            kelp_snapshot_writer_digest(writer, ret_digests->hex[p], &bytes);
            ck_assert_uint_eq(bytes, total);
        }
    }
    return status;
}

static kelp_status write_all(const char *path, const struct shape *shape,
                             struct digests *ret_digests, struct kelp_error *reterr)
{
    struct kelp_snapshot_writer *writer = NULL;
    kelp_status status = kelp_snapshot_writer_open(path, &id, &writer, reterr);
    if (status != KELP_OK) {
        return status;
    }
    status = write_parts(writer, shape, ret_digests, reterr);
    if (status != KELP_OK) {
        kelp_snapshot_writer_abandon(writer);
        return status;
    }
    return kelp_snapshot_writer_finish(writer, reterr);
}

/* Read everything; parts in descending order of their place, which no reader has to care about.
 * Bytes that pass the check are compared: damage must never be taken for data. */
static kelp_status read_part(struct kelp_snapshot_reader *reader, const struct shape *shape,
                             uint32_t p, const char *digest, struct kelp_error *reterr)
{
    unsigned char *read[ITEMS_MAX] = {NULL};
    kelp_status status = kelp_snapshot_reader_part(reader, shape->parts[p], reterr);
    for (uint32_t i = 0; i < shape->item_count && status == KELP_OK; i++) {
        read[i] = malloc(shape->items[i].bytes + 1);
        status = kelp_snapshot_reader_item(reader, shape->items[i].kind, read[i],
                                           shape->items[i].bytes, reterr);
    }
    if (status == KELP_OK) {
        status = kelp_snapshot_reader_check(reader, digest, reterr);
    }
    for (uint32_t i = 0; i < shape->item_count; i++) {
        if (status == KELP_OK) {
            unsigned char *want =
                values(shape->parts[p], shape->items[i].kind, shape->items[i].bytes);
            ck_assert_mem_eq(read[i], want, shape->items[i].bytes);
            free(want);
        }
        free(read[i]);
    }
    return status;
}

static kelp_status read_all(const char *path, const struct shape *shape,
                            const struct digests *digests, struct kelp_error *reterr)
{
    struct kelp_snapshot_reader *reader = NULL;
    kelp_status status = kelp_snapshot_reader_open(path, &id, &reader, reterr);
    if (status != KELP_OK) {
        return status;
    }
    for (uint32_t p = shape->part_count; p-- > 0 && status == KELP_OK;) {
        status = read_part(reader, shape, p, digests->hex[p], reterr);
    }
    kelp_snapshot_reader_close(reader);
    return status;
}

/* ---- tests ------------------------------------------------------------------------------------
 */

/* Every shape comes back, from a folder that has nothing but what is needed, and that reading
 * leaves as it is. */
START_TEST(round_trip)
{
    const struct shape *shape = &shapes[_i];
    struct digests digests;
    struct digests again;
    MUST(write_all("run/checkpoints/a/shard-0", shape, &digests, &error));
    ck_assert_int_ne(access("run/checkpoints/a/shard-0.writing", F_OK), 0);
    ck_assert_int_eq(chmod("run/checkpoints/a/shard-0", 0500), 0);
    MUST(read_all("run/checkpoints/a/shard-0", shape, &digests, &error));
    ck_assert_int_eq(chmod("run/checkpoints/a/shard-0", 0700), 0);
    MUST(read_all("run/checkpoints/a/shard-0", shape, &digests, &error));
    /* The digest depends on the state alone. */
    MUST(write_all("other", shape, &again, &error));
    for (uint32_t p = 0; p < shape->part_count; p++) {
        ck_assert_str_eq(digests.hex[p], again.hex[p]);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("snapshot_store");
    TCase *tcase = tcase_create("store");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, round_trip, 0, (int)KELP_ARRAY_COUNT(shapes));
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
