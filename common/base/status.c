#include "common/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/utf8.h"

const char *kelp_status_name(int status)
{
    switch (status) {
    case KELP_OK:
        return "OK";
#define KELP_STATUS_CASE(name, value, group, text)                                                 \
    case (value):                                                                                  \
        return #name;
        KELP_STATUS_LIST(KELP_STATUS_CASE)
#undef KELP_STATUS_CASE
    default:
        return "UNKNOWN";
    }
}

const char *kelp_status_text(int status)
{
    switch (status) {
    case KELP_OK:
        return "ok";
#define KELP_STATUS_CASE(name, value, group, text)                                                 \
    case (value):                                                                                  \
        return text;
        KELP_STATUS_LIST(KELP_STATUS_CASE)
#undef KELP_STATUS_CASE
    default:
        return "unknown status";
    }
}

enum kelp_status_group kelp_status_group(int status)
{
    switch (status) {
    case KELP_OK:
        return KELP_GROUP_OK;
#define KELP_STATUS_CASE(name, value, group, text)                                                 \
    case (value):                                                                                  \
        return KELP_GROUP_##group;
        KELP_STATUS_LIST(KELP_STATUS_CASE)
#undef KELP_STATUS_CASE
    default:
        return KELP_GROUP_RESOURCE;
    }
}

bool kelp_status_known(int status)
{
    return status == KELP_OK || strcmp(kelp_status_name(status), "UNKNOWN") != 0;
}

/* A control character, a line separator, or not a character. */
static bool is_control(uint32_t point)
{
    return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 || point == 0x2029 ||
           (point >= 0xd800 && point < 0xe000) || point > 0x10ffff;
}

/* Error texts repeat input, which may hold any bytes and may be cut within a character. Turn the
 * text into one printable line of UTF-8. */
static void make_one_line(char *text)
{
    while (*text != '\0') {
        uint32_t point = 0;
        size_t length = kelp_utf8_read(text, &point);
        if (length == 0) {
            *text++ = '?';
        } else {
            if (is_control(point)) {
                memset(text, ' ', length);
            }
            text += length;
        }
    }
}

kelp_status kelp_fail(struct kelp_error *reterr, kelp_status status, const char *format, ...)
{
    if (reterr) {
        va_list args;
        va_start(args, format);
        reterr->status = status;
        (void)vsnprintf(reterr->text, sizeof(reterr->text), format, args); /* truncation allowed */
        va_end(args);
        make_one_line(reterr->text);
    }
    return status;
}

void kelp_error_prefix(struct kelp_error *reterr, const char *format, ...)
{
    char prefix[sizeof(reterr->text)];
    char text[sizeof(reterr->text)];
    va_list args;

    if (!reterr) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(prefix, sizeof(prefix), format, args);
    va_end(args);
    memcpy(text, reterr->text, sizeof(text));
    size_t used = strnlen(prefix, sizeof(prefix) - 3);
    memcpy(reterr->text, prefix, used);
    (void)snprintf(reterr->text + used, sizeof(reterr->text) - used, ": %s", text);
    make_one_line(reterr->text);
}
