/* Snapshots on disk: what is written is read back; damage is found before use; what is not there is
 * told from what is damaged; a failed attempt leaves nothing. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/tensors/philox.h"
#include "ps/storage/snapshot_store.h"
#include "tests/lib/suite.h"

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

static struct kelp_error error;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        kelp_status status_of_call = (call);                                                       \
        ck_assert_msg(status_of_call == KELP_OK, "%s: %s", #call, error.text);                     \
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

KELP_CASE("store", .setup = setup, .teardown = teardown)

/* Every shape comes back, from a folder that has nothing but what is needed, and that reading
 * leaves as it is. */
KELP_LOOP_TEST(round_trip, 0, KELP_ARRAY_COUNT(shapes))
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

/* ---- damage -----------------------------------------------------------------------------------
 */

static const struct shape damaged = {"to be damaged",
                                     3,
                                     {0, 1, 7},
                                     3,
                                     {{KELP_SNAPSHOT_CONTROL, 77},
                                      {KELP_SNAPSHOT_WEIGHTS, CHUNK + 1000},
                                      {KELP_SNAPSHOT_SLOT, 5000}}};

struct names {
    struct dirent **entries;
    int count;
};

static int not_dots(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static struct names list(const char *path)
{
    struct names names = {NULL, 0};
    names.count = scandir(path, &names.entries, not_dots, alphasort);
    ck_assert_int_ge(names.count, 0);
    return names;
}

static void free_names(struct names *names)
{
    for (int i = 0; i < names->count; i++) {
        free(names->entries[i]);
    }
    free(names->entries);
}

static void flip(int fd, off_t at, unsigned bit)
{
    unsigned char byte = 0;
    ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
    byte = (unsigned char)(byte ^ 1u << bit);
    ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
}

/* The next byte to be damaged: all of a small file; of a large one the beginning, the end, and a
 * sample. */
static off_t next_byte(off_t at, off_t bytes)
{
    off_t step = 1;
    if (bytes > 2048 && at >= 64 && at < bytes - 512) {
        step = (bytes - 576) / 400 + 1;
    }
    return at + step;
}

/* Whatever single bit of whatever file is another one: it is found, or it did not matter. Absence
 * is not damage, so a bit must not make a file look absent either. */
KELP_LOOP_TEST(flipped_bits, 0, 2)
{
    struct digests digests;
    MUST(write_all("a", &damaged, &digests, &error));
    struct names names = list("a");
    ck_assert_int_gt(names.count, 3);
    unsigned tried = 0;
    unsigned found = 0;
    for (int i = 0; i < names.count; i++) {
        char path[300];
        struct stat about;
        (void)snprintf(path, sizeof(path), "a/%s", names.entries[i]->d_name);
        int fd = open(path, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fstat(fd, &about), 0);
        for (off_t at = 0; at < about.st_size; at = next_byte(at, about.st_size)) {
            error.text[0] = '\0';
            unsigned bit = (unsigned)((at * 5 + _i) % 8);
            flip(fd, at, bit);
            kelp_status status = read_all("a", &damaged, &digests, &error);
            ck_assert_msg(status == KELP_OK || status == KELP_ERR_CORRUPT,
                          "byte %lld bit %u of %s: %s: %s", (long long)at, bit, path,
                          kelp_status_name(status), error.text);
            ck_assert(status == KELP_OK || error.text[0] != '\0');
            flip(fd, at, bit);
            tried++;
            found += status == KELP_ERR_CORRUPT;
        }
        (void)close(fd);
    }
    free_names(&names);
    MUST(read_all("a", &damaged, &digests, &error));
    /* Bytes that do not matter are few: unused ends of blocks. */
    ck_assert_msg(found * 100 >= tried * 99, "%u of %u were found", found, tried);
}

static void copy_file(const char *from, const char *to)
{
    char *bytes = NULL;
    size_t count = 0;
    MUST(kelp_files_read(from, 1u << 30, &bytes, &count, &error));
    MUST(kelp_files_write(to, bytes, count, &error));
    free(bytes);
}

/* Cut, grown and exchanged files are damage. */
KELP_TEST(other_damage)
{
    struct digests digests;
    MUST(write_all("a", &damaged, &digests, &error));
    struct names names = list("a");
    for (int i = 0; i < names.count; i++) {
        char path[300];
        struct stat about;
        (void)snprintf(path, sizeof(path), "a/%s", names.entries[i]->d_name);
        copy_file(path, "saved");
        ck_assert_int_eq(stat(path, &about), 0);
        const off_t lengths[] = {0, 1, about.st_size / 2, about.st_size - 1, about.st_size + 1};
        for (size_t k = 0; k < KELP_ARRAY_COUNT(lengths); k++) {
            ck_assert_int_eq(truncate(path, lengths[k]), 0);
            ck_assert_int_eq(read_all("a", &damaged, &digests, NULL), KELP_ERR_CORRUPT);
            copy_file("saved", path);
        }
        copy_file("a/CONTENTS", path);
        ck_assert(read_all("a", &damaged, &digests, NULL) == KELP_ERR_CORRUPT ||
                  strcmp(names.entries[i]->d_name, "CONTENTS") == 0);
        copy_file("saved", path);
    }
    free_names(&names);
    MUST(read_all("a", &damaged, &digests, &error));
}

/* A whole snapshot of another state is not the one asked for, and neither is a part of it. */
KELP_TEST(other_state)
{
    struct digests digests;
    struct kelp_snapshot_reader *reader = NULL;
    struct kelp_snapshot_id other = id;
    MUST(write_all("a", &damaged, &digests, &error));
    other.step++;
    ck_assert_int_eq(kelp_snapshot_reader_open("a", &other, &reader, &error), KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "step 1500"));
    other = (struct kelp_snapshot_id){.generation = id.generation - 1, .step = id.step};
    ck_assert_int_eq(kelp_snapshot_reader_open("a", &other, &reader, &error), KELP_ERR_CORRUPT);
    MUST(kelp_snapshot_reader_open("a", &id, &reader, &error));
    /* A partition that is not in it, a kind that is not, a length that is not. */
    char bytes[5001];
    MUST(kelp_snapshot_reader_part(reader, 3, &error));
    ck_assert_int_eq(kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_CONTROL, bytes, 77, &error),
                     KELP_ERR_CORRUPT);
    ck_assert_ptr_nonnull(strstr(error.text, "partition 3"));
    MUST(kelp_snapshot_reader_part(reader, 7, &error));
    ck_assert_int_eq(kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_SLOT, bytes, 5001, &error),
                     KELP_ERR_CORRUPT);
    ck_assert_int_eq(kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_SLOT + 1, bytes, 1, &error),
                     KELP_ERR_CORRUPT);
    /* An item that was left out. */
    MUST(kelp_snapshot_reader_part(reader, 7, &error));
    MUST(kelp_snapshot_reader_item(reader, KELP_SNAPSHOT_SLOT, bytes, 5000, &error));
    ck_assert_int_eq(kelp_snapshot_reader_check(reader, digests.hex[2], &error), KELP_ERR_CORRUPT);
    kelp_snapshot_reader_close(reader);
}

/* What is not there is waited for, whichever file it is, and found when it has come. */
KELP_TEST(absence)
{
    struct digests digests = {{""}};
    ck_assert_int_eq(read_all("a", &damaged, &digests, &error), KELP_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(error.text, "'a/"));
    MUST(write_all("a", &damaged, &digests, &error));
    struct names names = list("a");
    for (int i = 0; i < names.count; i++) {
        char path[300];
        (void)snprintf(path, sizeof(path), "a/%s", names.entries[i]->d_name);
        ck_assert_int_eq(rename(path, "away"), 0);
        ck_assert_int_eq(read_all("a", &damaged, &digests, &error), KELP_ERR_NOT_FOUND);
        ck_assert_ptr_nonnull(strstr(error.text, path));
        ck_assert_int_eq(rename("away", path), 0);
    }
    free_names(&names);
    MUST(read_all("a", &damaged, &digests, &error));
    ck_assert_int_eq(rename("a", "b"), 0);
    ck_assert_int_eq(read_all("a", &damaged, &digests, &error), KELP_ERR_NOT_FOUND);
    ck_assert_int_eq(mkdir("a", 0700), 0);
    ck_assert_int_eq(read_all("a", &damaged, &digests, &error), KELP_ERR_NOT_FOUND);
}

/* ---- attempts ---------------------------------------------------------------------------------
 */

/* An attempt that is given up leaves nothing; one that was killed is removed by the next; an older
 * snapshot of the name stays until the new one is whole. */
KELP_TEST(attempts)
{
    struct digests digests;
    struct digests kept;
    struct kelp_snapshot_writer *writer = NULL;
    MUST(kelp_snapshot_writer_open("run/a", &id, &writer, &error));
    MUST(write_parts(writer, &damaged, &digests, &error));
    kelp_snapshot_writer_abandon(writer);
    struct names names = list("run");
    ck_assert_int_eq(names.count, 0);
    free_names(&names);

    MUST(kelp_files_make_folder("run/a.writing/sorted/deep", &error));
    MUST(kelp_files_write("run/a.writing/000001.sst", "rubbish", 7, &error));
    MUST(write_all("run/a", &damaged, &kept, &error));
    ck_assert_int_ne(access("run/a.writing", F_OK), 0);

    MUST(kelp_snapshot_writer_open("run/a", &id, &writer, &error));
    MUST(write_parts(writer, &shapes[8], &digests, &error));
    MUST(read_all("run/a", &damaged, &kept, &error));
    kelp_snapshot_writer_abandon(writer);
    MUST(read_all("run/a", &damaged, &kept, &error));
    MUST(write_all("run/a", &shapes[8], &digests, &error));
    MUST(read_all("run/a", &shapes[8], &digests, &error));
    names = list("run");
    ck_assert_int_eq(names.count, 1);
    free_names(&names);
    kelp_snapshot_writer_abandon(NULL);
    kelp_snapshot_reader_close(NULL);
}

/* The folder is moved away while it is written, as a leader that takes over does: the error says
 * so, and what follows, before the file that could not be found. Another error says nothing of it.
 */
KELP_TEST(moved_away)
{
    static const char why[] = "its folder was removed meanwhile, as a leader that takes over does; "
                              "that one takes the next checkpoint: cannot ";
    struct digests digests;
    struct kelp_snapshot_writer *writer = NULL;

    MUST(kelp_snapshot_writer_open("run/a", &id, &writer, &error));
    MUST(write_parts(writer, &damaged, &digests, &error));
    ck_assert_int_eq(rename("run", "removed"), 0);
    ck_assert_int_eq(kelp_snapshot_writer_finish(writer, &error), KELP_ERR_IO);
    ck_assert_msg(strncmp(error.text, why, strlen(why)) == 0, "%s", error.text);

    MUST(kelp_snapshot_writer_open("run/a", &id, &writer, &error));
    ck_assert_int_eq(rename("run", "again"), 0);
    ck_assert_int_eq(write_parts(writer, &damaged, &digests, &error), KELP_ERR_IO);
    ck_assert_msg(strncmp(error.text, why, strlen(why)) == 0, "%s", error.text);
    kelp_snapshot_writer_abandon(writer);

    MUST(kelp_snapshot_writer_open("run/a", &id, &writer, &error));
    MUST(kelp_files_remove("run/a.writing/sorted", &error));
    ck_assert_int_eq(write_parts(writer, &damaged, &digests, &error), KELP_ERR_IO);
    ck_assert_msg(strncmp(error.text, "cannot open ", strlen("cannot open ")) == 0, "%s",
                  error.text);
    kelp_snapshot_writer_abandon(writer);
}

/* Two readers at once, and one while the folder is being removed by name. */
KELP_TEST(many_readers)
{
    struct digests digests;
    struct kelp_snapshot_reader *readers[2];
    MUST(write_all("a", &damaged, &digests, &error));
    MUST(kelp_snapshot_reader_open("a", &id, &readers[0], &error));
    MUST(kelp_snapshot_reader_open("a", &id, &readers[1], &error));
    MUST(read_part(readers[0], &damaged, 0, digests.hex[0], &error));
    MUST(kelp_files_remove("a", &error));
    for (uint32_t p = 0; p < damaged.part_count; p++) {
        MUST(read_part(readers[p % 2], &damaged, p, digests.hex[p], &error));
    }
    kelp_snapshot_reader_close(readers[0]);
    kelp_snapshot_reader_close(readers[1]);
}

/* A path that cannot be is an error of the disk: nobody waits for it to come. */
KELP_TEST(bad_paths)
{
    struct kelp_snapshot_writer *writer = NULL;
    MUST(kelp_files_write("file", "x", 1, &error));
    ck_assert_int_eq(kelp_snapshot_writer_open("file/a", &id, &writer, &error), KELP_ERR_IO);
    ck_assert_ptr_nonnull(strstr(error.text, "file/a"));
}
