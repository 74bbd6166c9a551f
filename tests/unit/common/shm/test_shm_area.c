/* Memory that others may read: its seals, the checks of a reader, and areas by name. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/shm/area_table.h"
#include "tests/lib/shm_puppet.h"
#include "tests/lib/suite.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static struct kelp_shm_area *area;
static unsigned descriptors;

static void setup(void)
{
    descriptors = kelp_shm_descriptor_count();
    ck_assert_int_eq(kelp_shm_area_create(10000, &area, NULL), KELP_OK);
}

static void teardown(void)
{
    kelp_shm_area_unref(area);
    ck_assert_uint_eq(kelp_shm_descriptor_count(), descriptors);
}

KELP_CASE("area", .setup = setup, .teardown = teardown)

/* What the owner writes, the reader sees, where it is. */
KELP_TEST(written_and_read_in_place)
{
    struct kelp_shm_area *theirs = NULL;

    ck_assert_uint_eq(kelp_shm_area_length(area), 12288);
    ck_assert_int_eq(kelp_shm_area_map(kelp__shm_area_fd(area), 12288, &theirs, NULL), KELP_OK);
    const uint8_t *read = kelp_shm_area_bytes(theirs);
    ck_assert_uint_eq(read[12287], 0);
    ((uint8_t *)kelp_shm_area_bytes(area))[12287] = 5;
    ck_assert_uint_eq(read[12287], 5);
    kelp_shm_area_unref(area); /* the reader keeps it */
    ck_assert_uint_eq(read[12287], 5);
    kelp_shm_area_unref(theirs);
    ck_assert_int_eq(kelp_shm_area_create(1, &area, NULL), KELP_OK);
}

/* With the descriptor alone nobody writes it, makes it shorter, longer, or takes pages away. */
KELP_TEST(sealed)
{
    const int fd = kelp__shm_area_fd(area);

    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(ftruncate(fd, 1 << 20), -1);
    ck_assert_int_eq(write(fd, "a", 1), -1);
    ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

/* Without its descriptor it is as it was. */
KELP_TEST(settled)
{
    const unsigned before = kelp_shm_descriptor_count();

    kelp_shm_area_settle(area);
    kelp_shm_area_settle(area);
    ck_assert_int_eq(kelp__shm_area_fd(area), -1);
    ck_assert_uint_eq(kelp_shm_descriptor_count(), before - 1);
    ((uint8_t *)kelp_shm_area_bytes(area))[12287] = 5;
}

/* A reader cannot make his mapping one that writes. */
KELP_TEST(a_reader_cannot_write)
{
    struct kelp_shm_area *theirs = NULL;

    ck_assert_int_eq(kelp_shm_area_map(kelp__shm_area_fd(area), 12288, &theirs, NULL), KELP_OK);
    ck_assert_int_eq(mprotect(kelp_shm_area_bytes(theirs), 4096, PROT_READ | PROT_WRITE), -1);
    kelp_shm_area_unref(theirs);
}

/* Lengths that no area has. */
KELP_TEST(lengths)
{
    struct kelp_error error;
    struct kelp_shm_area *none = NULL;

    ck_assert_int_eq(kelp_shm_area_create(0, &none, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "a shared area of 0 bytes: it has 1 to 68719476736");
    ck_assert_int_eq(kelp_shm_area_create(SIZE_MAX, &none, NULL), KELP_ERR_LIMIT);
    ck_assert_int_eq(kelp_shm_area_map(0, 0, &none, &error), KELP_ERR_LIMIT);
    ck_assert_str_eq(error.text, "shared memory of 0 bytes came: it has 1 to 68719476736");
    ck_assert_int_eq(kelp_shm_area_map(0, KELP_SHM_AREA_BYTES_MAX + 1, &none, NULL),
                     KELP_ERR_LIMIT);
    ck_assert_ptr_null(none);
}

/* What a reader refuses before it maps anything: each could become a signal, or memory of its own.
 */
static const struct {
    size_t length;
    int seals;
    bool filled;
    uint64_t said;
    const char *text;
} refused[] = {
    {8192, 0, true, 8192, "shared memory came without its seals: its owner could shorten it"},
    {8192, SEALS & ~F_SEAL_SHRINK, true, 8192,
     "shared memory came without its seals: its owner could shorten it"},
    {8192, SEALS & ~F_SEAL_FUTURE_WRITE, true, 8192,
     "shared memory came without its seals: its owner could shorten it"},
    {8192, SEALS & ~F_SEAL_SEAL, true, 8192,
     "shared memory came without its seals: its owner could shorten it"},
    {4096, SEALS, true, 8192, "shared memory of 4096 bytes came as 8192"},
    {8192, SEALS, true, 4096, "shared memory of 8192 bytes came as 4096"},
    {8192, SEALS, false, 8192, "shared memory came with pages left out"},
};

KELP_LOOP_TEST(refused_before_it_is_mapped, 0, KELP_ARRAY_COUNT(refused))
{
    struct kelp_error error;
    struct kelp_shm_area *none = NULL;
    int fd = kelp_shm_memfd(refused[_i].length, refused[_i].seals, refused[_i].filled);

    ck_assert_int_eq(kelp_shm_area_map(fd, refused[_i].said, &none, &error), KELP_ERR_DENIED);
    ck_assert_str_eq(error.text, refused[_i].text);
    (void)close(fd);
}

/* Files and pages of a size that the system may run out of are no shared memory. */
KELP_TEST(other_descriptors)
{
    struct kelp_error error;
    struct kelp_shm_area *none = NULL;
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);

    ck_assert_int_eq(kelp_shm_area_map(fd, 4096, &none, &error), KELP_ERR_DENIED);
    (void)close(fd);
    fd = memfd_create("large", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (fd >= 0 && ftruncate(fd, 2 << 20) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        ck_assert_int_eq(kelp_shm_area_map(fd, 2 << 20, &none, &error), KELP_ERR_DENIED);
        ck_assert_str_eq(error.text, "shared memory came that is not plain memory");
    }
    (void)close(fd);
}

static struct kelp_shm_area_table table;

static void table_setup(void)
{
    setup();
    table.count_max = 100;
}

static void table_teardown(void)
{
    kelp_shm_area_table_clear(&table);
    teardown();
}

KELP_CASE("table", .setup = table_setup, .teardown = table_teardown)

/* Added, found and removed by name; names whose places collide do not lose one another. */
KELP_TEST(by_name)
{
    const uint32_t names[] = {
        1, 1 + KELP_SHM_AREA_PLACES, 2, 1 + 2 * KELP_SHM_AREA_PLACES, UINT32_MAX, 3};

    for (size_t gone = 0; gone < KELP_ARRAY_COUNT(names); gone++) {
        for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
            ck_assert_ptr_null(kelp_shm_area_table_find(&table, names[i]));
            ck_assert_int_eq(kelp_shm_area_table_add(&table, names[i], area), KELP_OK);
        }
        ck_assert(kelp_shm_area_table_remove(&table, names[gone]));
        ck_assert(!kelp_shm_area_table_remove(&table, names[gone]));
        for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
            ck_assert_ptr_eq(kelp_shm_area_table_find(&table, names[i]), i == gone ? NULL : area);
        }
        for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
            ck_assert(i == gone || kelp_shm_area_table_remove(&table, names[i]));
        }
        ck_assert_uint_eq(table.count, 0);
    }
}

/* Names that are none, and more than there may be. */
KELP_TEST(refused_names)
{
    ck_assert_int_eq(kelp_shm_area_table_add(&table, 0, area), KELP_ERR_EXISTS);
    ck_assert_ptr_null(kelp_shm_area_table_find(&table, 0));
    ck_assert(!kelp_shm_area_table_remove(&table, 0));
    for (uint32_t name = 1; name <= 100; name++) {
        ck_assert_int_eq(kelp_shm_area_table_add(&table, name, area), KELP_OK);
    }
    ck_assert_int_eq(kelp_shm_area_table_add(&table, 50, area), KELP_ERR_EXISTS);
    ck_assert_int_eq(kelp_shm_area_table_add(&table, 101, area), KELP_ERR_LIMIT);
}

/* One that its owner has retired is found. */
KELP_TEST(retired)
{
    ck_assert_int_eq(kelp_shm_area_table_add(&table, 7, area), KELP_OK);
    ck_assert_uint_eq(kelp_shm_area_table_retired(&table), 0);
    kelp_shm_area_retire(area);
    ck_assert_uint_eq(kelp_shm_area_table_retired(&table), 7);
}
