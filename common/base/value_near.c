/* Suggests the word that a user may have meant. */
#include <ctype.h>
#include <string.h>

#include "common/base/value.h"

#define WORD_MAX 63

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t kelp_value_distance(const char *a, const char *b)
{
    /* Optimal string alignment distance, which needs three rows of the table. */
    uint32_t rows[3][WORD_MAX + 1];
    size_t a_bytes = strlen(a), b_bytes = strlen(b);

    if (a_bytes > WORD_MAX || b_bytes > WORD_MAX) {
        return UINT32_MAX;
    }
    for (uint32_t j = 0; j <= b_bytes; j++) {
        rows[0][j] = j;
    }
    for (uint32_t i = 1; i <= a_bytes; i++) {
        uint32_t *row = rows[i % 3];
        const uint32_t *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (uint32_t j = 1; j <= b_bytes; j++) {
            uint32_t changed = above[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
            row[j] = min_u32(changed, 1 + min_u32(above[j], row[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                row[j] = min_u32(row[j], above2[j - 2] + 1);
            }
        }
    }
    return rows[a_bytes % 3][b_bytes];
}

bool kelp_value_near(uint32_t distance, const char *word)
{
    size_t third = (strlen(word) + 2) / 3;

    return distance <= (third < 3 ? third : 3) && distance < strlen(word);
}

/* Convert to lower case; false: too long for kelp_value_distance(). */
static bool lower(const char *text, char word[WORD_MAX + 1])
{
    size_t bytes = strlen(text);

    for (size_t i = 0; i <= bytes && bytes <= WORD_MAX; i++) {
        word[i] = (char)tolower((unsigned char)text[i]);
    }
    return bytes <= WORD_MAX;
}

const char *kelp_value_nearest(const char *typed, const char *const *words)
{
    char small[WORD_MAX + 1], word[WORD_MAX + 1];
    const char *nearest = NULL;
    uint32_t least = UINT32_MAX;

    for (; lower(typed, small) && *words; words++) {
        uint32_t distance = lower(*words, word) ? kelp_value_distance(small, word) : UINT32_MAX;
        if (distance < least) {
            least = distance;
            nearest = *words;
        }
    }
    return nearest && kelp_value_near(least, nearest) ? nearest : NULL;
}
