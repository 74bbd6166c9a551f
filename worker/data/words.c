#include "worker/data/words.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/tensors/digest.h"
#include "worker/data/sample.h"

#define SLOTS_FIRST 64u

void kelp_words_fini(struct kelp_words *words)
{
    free(words->bytes);
    free(words->starts);
    free(words->slots);
    *words = (struct kelp_words){0};
}

const char *kelp_words_at(const struct kelp_words *words, uint32_t number)
{
    assert(number < words->count);
    return words->bytes + words->starts[number];
}

/* The slot that holds the word, or the free slot for it. At least one slot is free. */
static uint32_t find_slot(const struct kelp_words *words, const char *word, size_t bytes)
{
    uint32_t mask = words->slot_count - 1;
    uint32_t at = (uint32_t)kelp_digest_bytes(word, bytes) & mask;
    while (words->slots[at] != 0 && strcmp(kelp_words_at(words, words->slots[at] - 1), word) != 0) {
        at = (at + 1) & mask;
    }
    return at;
}

/* Double the slots, so that at most half of them are in use. */
static bool grow_slots(struct kelp_words *words)
{
    struct kelp_words larger = *words;
    larger.slot_count = words->slot_count > 0 ? 2 * words->slot_count : SLOTS_FIRST;
    larger.slots = calloc(larger.slot_count, sizeof(*larger.slots));
    if (!larger.slots) {
        return false;
    }
    for (uint32_t i = 0; i < words->count; i++) {
        const char *word = kelp_words_at(words, i);
        larger.slots[find_slot(&larger, word, strlen(word))] = i + 1;
    }
    free(words->slots);
    *words = larger;
    return true;
}

static bool make_room(struct kelp_words *words, size_t bytes)
{
    if (words->bytes_used + bytes > words->bytes_capacity) {
        size_t larger = 2 * words->bytes_capacity + bytes + 256;
        char *moved = realloc(words->bytes, larger);
        if (!moved) {
            return false;
        }
        words->bytes = moved;
        words->bytes_capacity = larger;
    }
    if (words->count == words->capacity) {
        uint32_t larger = words->capacity > 0 ? 2 * words->capacity : SLOTS_FIRST;
        size_t *moved = realloc(words->starts, larger * sizeof(*moved));
        if (!moved) {
            return false;
        }
        words->starts = moved;
        words->capacity = larger;
    }
    return true;
}

kelp_status kelp_words_add(struct kelp_words *words, const char *word, uint32_t *ret_number,
                           struct kelp_error *reterr)
{
    size_t bytes = strlen(word);
    if (2 * (words->count + 1) > words->slot_count && !grow_slots(words)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u words", words->count);
    }
    uint32_t slot = find_slot(words, word, bytes);
    if (words->slots[slot] != 0) {
        *ret_number = words->slots[slot] - 1;
        return KELP_OK;
    }
    if (words->count == KELP_SAMPLE_CATEGORIES_MAX) {
        return kelp_fail(reterr, KELP_ERR_LIMIT, "more than %u different words",
                         KELP_SAMPLE_CATEGORIES_MAX);
    }
    if (!make_room(words, bytes + 1)) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory for %u words", words->count);
    }
    memcpy(words->bytes + words->bytes_used, word, bytes + 1);
    words->starts[words->count] = words->bytes_used;
    words->bytes_used += bytes + 1;
    words->slots[slot] = ++words->count;
    *ret_number = words->count - 1;
    return KELP_OK;
}

bool kelp_words_find(const struct kelp_words *words, const char *word, uint32_t *ret_number)
{
    if (words->count == 0) {
        return false;
    }
    uint32_t slot = find_slot(words, word, strlen(word));
    if (words->slots[slot] == 0) {
        return false;
    }
    *ret_number = words->slots[slot] - 1;
    return true;
}

/* Independent of the locale. */
static int by_bytes(const void *a, const void *b)
{
    const char *const *left = a;
    const char *const *right = b;
    return strcmp(*left, *right);
}

const char **kelp_words_sorted(const struct kelp_words *words)
{
    const char **sorted = calloc((size_t)words->count + 1, sizeof(*sorted));
    for (uint32_t i = 0; i < words->count && sorted; i++) {
        sorted[i] = kelp_words_at(words, i);
    }
    if (sorted) {
        qsort(sorted, words->count, sizeof(*sorted), by_bytes);
    }
    return sorted;
}
