#include "common/base/utf8.h"

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
        if ((at[i] & 0xc0) != 0x80) { /* a NUL ends it here too */
            return 0;
        }
        point = point << 6 | (at[i] & 0x3f);
    }
    *ret_point = point;
    return length > 0 && point >= smallest[length] ? length : 0;
}
