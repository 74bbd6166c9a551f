#include "tests/lib/fuzz.h"

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/philox.h"
#include "tests/lib/fuzz_guided.h"

#define GROWTH_MAX  4096 /* bytes by which an input may grow over its seed */
#define CHANGES_MAX 6
#define ROUND       (UINT64_C(1) << 32) /* inputs until the same block of the next round */

struct dice {
    uint64_t input;
    uint64_t next;
};

struct buffer {
    uint8_t *bytes;
    size_t count;
    size_t room;
};

static size_t roll(struct dice *dice, size_t bound)
{
    uint32_t words[4];

    kelp_philox(dice->input, KELP_PHILOX_TEST, 2, dice->next++, words);
    return (size_t)kelp_philox_below(words[0], words[1], bound);
}

static void insert(struct buffer *buffer, size_t at, const void *bytes, size_t count)
{
    if (count > buffer->room - buffer->count) {
        return;
    }
    memmove(buffer->bytes + at + count, buffer->bytes + at, buffer->count - at);
    memcpy(buffer->bytes + at, bytes, count);
    buffer->count += count;
}

static void erase(struct buffer *buffer, size_t at, size_t count)
{
    memmove(buffer->bytes + at, buffer->bytes + at + count, buffer->count - at - count);
    buffer->count -= count;
}

static void repeat_piece(struct buffer *buffer, struct dice *dice)
{
    uint8_t piece[256];
    size_t from = roll(dice, buffer->count), left = buffer->count - from;
    size_t count = 1 + roll(dice, left < sizeof(piece) ? left : sizeof(piece));

    memcpy(piece, buffer->bytes + from, count);
    insert(buffer, roll(dice, buffer->count + 1), piece, count);
}

static void change(const struct kelp_fuzz *fuzz, struct buffer *buffer, struct dice *dice)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, '\n', ' ', '-', '0', '9'};
    size_t at = roll(dice, buffer->count + 1);
    size_t left = buffer->count - at;

    switch (roll(dice, 7)) {
    case 0:
        if (left > 0) {
            buffer->bytes[at] ^= (uint8_t)(1u << roll(dice, 8));
        }
        return;
    case 1:
        if (left > 0) {
            buffer->bytes[at] = edges[roll(dice, sizeof(edges))];
        }
        return;
    case 2:
        if (left > 0) {
            erase(buffer, at, 1 + roll(dice, left < 40 ? left : 40));
        }
        return;
    case 3:
        if (buffer->count > 0) {
            repeat_piece(buffer, dice);
        }
        return;
    case 4:
        buffer->count = at; /* truncated */
        return;
    case 5: {
        uint8_t byte = (uint8_t)roll(dice, 256);
        insert(buffer, at, &byte, 1);
        return;
    }
    default: {
        const char *word = fuzz->words[roll(dice, fuzz->word_count)];
        size_t gone = roll(dice, left < 12 ? left + 1 : 12);
        erase(buffer, at, gone);
        insert(buffer, at, word, strlen(word));
        return;
    }
    }
}

static void run_one(const struct kelp_fuzz *fuzz, uint64_t input)
{
    struct dice dice = {.input = input};
    const struct kelp_fuzz_seed *seed = &fuzz->seeds[input % fuzz->seed_count];
    struct buffer buffer = {.room = seed->count + GROWTH_MAX, .count = seed->count};

    buffer.bytes = malloc(buffer.room);
    ck_assert_ptr_nonnull(buffer.bytes);
    memcpy(buffer.bytes, seed->bytes, seed->count);
    /* The first round uses each seed unchanged. */
    size_t changes = input < fuzz->seed_count ? 0 : 1 + roll(&dice, CHANGES_MAX);
    for (size_t i = 0; i < changes; i++) {
        change(fuzz, &buffer, &dice);
    }
    uint8_t *exact = malloc(buffer.count > 0 ? buffer.count : 1);
    ck_assert_ptr_nonnull(exact);
    memcpy(exact, buffer.bytes, buffer.count);
    free(buffer.bytes);
    const char *wrong = fuzz->target(exact, buffer.count);
    ck_assert_msg(wrong == NULL, "input %llu: %s", (unsigned long long)input, wrong);
    free(exact);
}

static void run_block(const struct kelp_fuzz *fuzz, uint64_t first, uint64_t count)
{
    bool trace = getenv("KELP_FUZZ_TRACE") != NULL;

    for (uint64_t input = first; input < first + count; input++) {
        if (trace) {
            (void)fprintf(stderr, "input %llu\n", (unsigned long long)input);
        }
        run_one(fuzz, input);
    }
}

bool kelp_fuzz_run(const struct kelp_fuzz *fuzz, uint64_t first, uint64_t count)
{
    if (kelp_fuzz_guided_wanted()) {
        if (first == 0) {
            kelp_fuzz_guided_run(fuzz);
        }
        return false;
    }
    const char *times = getenv("KELP_FUZZ_TIMES");
    uint64_t blocks = times ? strtoull(times, NULL, 10) : 1;

    for (uint64_t block = 0; block < blocks; block++) {
        run_block(fuzz, first + block * ROUND, count);
    }
    return true;
}
