/* One direction of a channel, in ordinary memory. */
#include <string.h>

#include "common/shm/ring_internal.h"
#include "common/tensors/philox.h"
#include "tests/lib/suite.h"

#define CAPACITY 64u

static uint8_t memory[CAPACITY];
static _Atomic uint64_t sent;
static _Atomic uint64_t taken;
static struct kelp_shm_ring_writer writer;
static struct kelp_shm_ring_reader reader;

static void setup(void)
{
    atomic_store(&sent, 0);
    atomic_store(&taken, 0);
    writer = (struct kelp_shm_ring_writer){
        .bytes = memory, .capacity = CAPACITY, .sent = &sent, .taken = &taken};
    reader = (struct kelp_shm_ring_reader){
        .bytes = memory, .capacity = CAPACITY, .sent = &sent, .taken = &taken};
}

static size_t room(void)
{
    size_t bytes = 0;

    ck_assert_int_eq(kelp_shm_ring_room(&writer, &bytes, NULL), KELP_OK);
    return bytes;
}

static size_t ready(void)
{
    size_t bytes = 0;

    ck_assert_int_eq(kelp_shm_ring_ready(&reader, &bytes, NULL), KELP_OK);
    return bytes;
}

KELP_CASE("shm_ring", .setup = setup)

/* What was put is nobody's until it is published, and then it is there as a whole. */
KELP_TEST(published_as_a_whole)
{
    char got[8];

    kelp_shm_ring_put(&writer, "abc", 3);
    kelp_shm_ring_put(&writer, "de", 2);
    ck_assert_uint_eq(ready(), 0);
    kelp_shm_ring_publish(&writer);
    ck_assert_uint_eq(ready(), 5);
    kelp_shm_ring_get(&reader, got, 5);
    ck_assert_int_eq(memcmp(got, "abcde", 5), 0);
}

/* Room comes back when what was got is said to be taken, and not before. */
KELP_TEST(full_and_room_again)
{
    uint8_t bytes[CAPACITY] = {7};

    ck_assert_uint_eq(room(), CAPACITY);
    kelp_shm_ring_put(&writer, bytes, CAPACITY);
    kelp_shm_ring_publish(&writer);
    ck_assert_uint_eq(room(), 0);
    kelp_shm_ring_get(&reader, bytes, 10);
    ck_assert_uint_eq(room(), 0);
    kelp_shm_ring_taken(&reader);
    ck_assert_uint_eq(room(), 10);
}

/* Pieces of any length, over the end of the memory and over the end of 32 bits. */
KELP_LOOP_TEST(any_lengths, 0, 20)
{
    const uint64_t begin = _i % 2 == 0 ? 0 : UINT32_MAX - 100u + (uint64_t)_i;
    uint8_t next_put = 0, next_got = 0;

    writer.at = reader.at = begin;
    atomic_store(&sent, begin);
    atomic_store(&taken, begin);
    for (uint64_t turn = 0; turn < 1000; turn++) {
        uint32_t words[4];
        uint8_t bytes[CAPACITY];
        kelp_philox((uint64_t)_i, KELP_PHILOX_TEST, 0, turn, words);
        const size_t put = words[0] % (room() + 1);
        for (size_t i = 0; i < put; i++) {
            bytes[i] = next_put++;
        }
        kelp_shm_ring_put(&writer, bytes, put);
        kelp_shm_ring_publish(&writer);
        const size_t got = words[1] % (ready() + 1);
        kelp_shm_ring_get(&reader, bytes, got);
        kelp_shm_ring_taken(&reader);
        for (size_t i = 0; i < got; i++) {
            ck_assert_uint_eq(bytes[i], next_got);
            next_got++;
        }
    }
}

/* Numbers of the other side that cannot be: ahead by more than there is, or behind. */
KELP_TEST(numbers_that_cannot_be)
{
    struct kelp_error error;
    size_t bytes;

    atomic_store(&sent, CAPACITY + 1);
    ck_assert_int_eq(kelp_shm_ring_ready(&reader, &bytes, &error), KELP_ERR_CORRUPT);
    ck_assert_str_eq(error.text, "the other process says that it wrote 65 bytes into a ring of 64 "
                                 "from which 0 were taken");
    reader.at = 8;
    atomic_store(&sent, 7);
    ck_assert_int_eq(kelp_shm_ring_ready(&reader, &bytes, NULL), KELP_ERR_CORRUPT);
    atomic_store(&taken, 1);
    ck_assert_int_eq(kelp_shm_ring_room(&writer, &bytes, &error), KELP_ERR_CORRUPT);
    ck_assert_str_eq(error.text, "the other process says that it took 1 bytes of a ring of 64 "
                                 "into which 0 were written");
    writer.at = 200;
    ck_assert_int_eq(kelp_shm_ring_room(&writer, &bytes, NULL), KELP_ERR_CORRUPT);
}
