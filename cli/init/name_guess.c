#include "cli/init/name_guess.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "common/base/status.h"

#define WORD_MAX 32

/* The most telling first. */
static const char *const targets[] = {
    "target", "label", "y",      "class", "outcome",  "response", "click", "clicked",
    "rating", "score", "churn",  "fraud", "survived", "species",  "price", "fare",
    "rent",   "cost",  "salary", "sales", "demand",   "value",    "count", "ot",
};

/* The next word of a name: "PULocationID" has PU, Location, ID; false at its end. */
static bool next_word(const char **at, char word[WORD_MAX])
{
    const char *from = *at;
    size_t bytes = 0;
    while (*from != '\0' && !isalnum((unsigned char)*from)) {
        from++;
    }
    while (isalnum((unsigned char)from[bytes])) {
        bool upper = isupper((unsigned char)from[bytes]);
        bool begins =
            bytes > 0 && upper &&
            (!isupper((unsigned char)from[bytes - 1]) || islower((unsigned char)from[bytes + 1]));
        if (begins) {
            break;
        }
        bytes++;
    }
    *at = from + bytes;
    size_t kept = bytes < WORD_MAX - 1 ? bytes : WORD_MAX - 1;
    memcpy(word, from, kept);
    word[kept] = '\0';
    return bytes > 0;
}

static bool has_word(const char *name, const char *wanted)
{
    char word[WORD_MAX];
    while (next_word(&name, word)) {
        if (strcasecmp(word, wanted) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_word_of(const char *name, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (has_word(name, words[i])) {
            return true;
        }
    }
    return false;
}

uint32_t kelp_name_target_rank(const char *name)
{
    const uint32_t count = KELP_ARRAY_COUNT(targets);
    for (uint32_t i = 0; i < count; i++) {
        if (strcasecmp(name, targets[i]) == 0) {
            return 2 * count - i;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (has_word(name, targets[i])) {
            return count - i;
        }
    }
    return 0;
}

bool kelp_name_is_class(const char *name)
{
    static const char *const words[] = {"label",   "class",   "target", "y",       "species",
                                        "outcome", "variety", "kind",   "category"};
    return has_word_of(name, words, KELP_ARRAY_COUNT(words));
}

bool kelp_name_is_category(const char *name)
{
    static const char *const words[] = {"id",    "code",    "zip",    "type",      "class",
                                        "kind",  "zone",    "store",  "category",  "item",
                                        "shop",  "product", "user",   "region",    "district",
                                        "group", "brand",   "device", "occupation"};
    return has_word_of(name, words, KELP_ARRAY_COUNT(words));
}

bool kelp_name_is_row(const char *name)
{
    static const char *const names[] = {"", "id", "index", "row", "rownum", "row_id", "uuid"};
    for (size_t i = 0; i < KELP_ARRAY_COUNT(names); i++) {
        if (strcasecmp(name, names[i]) == 0) {
            return true;
        }
    }
    return strncasecmp(name, "Unnamed", 7) == 0;
}

/* Three numbers with the same sign between them. */
bool kelp_word_is_date(const char *word)
{
    char between = word[strspn(word, "0123456789")];
    if (between == '\0' || !strchr("/-.", between)) {
        return false;
    }
    for (int part = 0; part < 3; part++) {
        size_t digits = strspn(word, "0123456789");
        char next = word[digits];
        if (digits == 0 || digits > 4 || (next == between) != (part < 2)) {
            return false;
        }
        word += digits + 1;
    }
    return true;
}

/* Signs of currencies beyond ASCII have bytes from 0x80. */
bool kelp_word_is_amount(const char *word)
{
    bool digit = false, more = false;
    for (size_t i = 0; word[i] != '\0'; i++) {
        bool sign = strchr("$%,", word[i]) || (unsigned char)word[i] >= 0x80;
        digit = digit || isdigit((unsigned char)word[i]);
        more = more || sign;
        if (!sign && !strchr("0123456789.' +-", word[i])) {
            return false;
        }
    }
    return digit && more;
}
