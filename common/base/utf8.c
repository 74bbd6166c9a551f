#include "common/base/utf8.h"

#include <stdbool.h>
#include <string.h>

size_t kelp_utf8_read(const char *text, uint32_t *ret_point)
{
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    size_t length = at[0] < 0x80             ? 1
                    : (at[0] & 0xe0) == 0xc0 ? 2
                    : (at[0] & 0xf0) == 0xe0 ? 3
                    : (at[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    uint32_t point = length == 1 ? at[0] : length > 0 ? at[0] & (0x7fu >> length) : 0;

    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xc0) != 0x80) { /* a NUL ends the text here, too */
            return 0;
        }
        point = point << 6 | (at[i] & 0x3f);
    }
    *ret_point = point;
    return length > 0 && point >= smallest[length] ? length : 0;
}

struct span {
    uint32_t first, last;
};

static bool is_in(uint32_t point, const struct span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (point >= spans[i].first && point <= spans[i].last) {
            return true;
        }
    }
    return false;
}

/* Blocks of Unicode, whole: which of their characters are assigned differs by its version. */
static size_t columns_of(uint32_t point)
{
    static const struct span wide[] = {
        {0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xa960, 0xa97f},
        {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff00, 0xff60},
        {0xffe0, 0xffe6},   {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff},
        {0x20000, 0x3fffd},
    };
    static const struct span none[] = {
        {0x0300, 0x036f}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x20d0, 0x20ff},
        {0x302a, 0x302d}, {0x3099, 0x309a}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
    };

    if (point < none[0].first) {
        return 1;
    }
    return is_in(point, none, sizeof(none) / sizeof(none[0]))   ? 0
           : is_in(point, wide, sizeof(wide) / sizeof(wide[0])) ? 2
                                                                : 1;
}

size_t kelp_utf8_columns(const char *text)
{
    size_t columns = 0;

    while (*text != '\0') {
        uint32_t point = 0;
        const size_t length = kelp_utf8_read(text, &point);
        columns += length > 0 ? columns_of(point) : 1;
        text += length > 0 ? length : 1;
    }
    return columns;
}

int kelp_utf8_field(const char *text, size_t columns)
{
    const size_t own = kelp_utf8_columns(text);

    return (int)(strlen(text) + (columns > own ? columns - own : 0));
}
