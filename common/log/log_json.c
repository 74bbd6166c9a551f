#include "common/log/log_json.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_DIGITS_MAX 15 /* every JSON reader keeps this many exactly */
#define END_BYTES         16 /* room for ,"cut":true} */

/* ---- parsing a log line ---- */

struct span {
    const char *at;
    size_t bytes;
};

struct field {
    struct span key;
    struct span value;
};

struct parts {
    struct span words[KELP_LOG_FIELDS_MAX + 1]; /* texts between fields, which are the message */
    struct field fields[KELP_LOG_FIELDS_MAX];
    size_t count; /* of fields; there is one more of words */
};

/* Length of a key that is followed by '='; 0: there is none. */
static size_t key_at(const char *at, const char *end)
{
    size_t bytes = 0;

    while (at + bytes < end && ((at[bytes] >= 'a' && at[bytes] <= 'z') || at[bytes] == '_' ||
                                (bytes > 0 && at[bytes] >= '0' && at[bytes] <= '9'))) {
        bytes++;
    }
    return bytes > 0 && at + bytes < end && at[bytes] == '=' ? bytes : 0;
}

/* Does this quote end a quoted value? A quote inside the value is followed by other characters. */
static bool ends_quoted(const char *quote, const char *end)
{
    return quote + 1 == end || (quote[1] == ' ' && (key_at(quote + 2, end) > 0 || quote[2] == '['));
}

/* Read the value at this position. Returns what follows. */
static const char *take_value(const char *at, const char *end, struct span *ret_value)
{
    const char *stop = at;

    if (at < end && *at == '"') {
        stop = at + 1;
        while (stop < end && !(*stop == '"' && ends_quoted(stop, end))) {
            stop++;
        }
        *ret_value = (struct span){at + 1, (size_t)(stop - at - 1)};
        return stop < end ? stop + 1 : stop;
    }
    while (stop < end && *stop != ' ') {
        stop++;
    }
    /* "ms=500: it leads 2 partitions": the colon belongs to the message. */
    while (stop > at && stop < end && (stop[-1] == ':' || stop[-1] == ',' || stop[-1] == ';')) {
        stop--;
    }
    *ret_value = (struct span){at, (size_t)(stop - at)};
    return stop;
}

static void take_apart(const char *text, size_t bytes, struct parts *ret_parts)
{
    const char *end = text + bytes;
    const char *at = text;
    const char *word = text;

    ret_parts->count = 0;
    while (at < end) {
        const size_t key = at == text || at[-1] == ' ' ? key_at(at, end) : 0;
        if (key == 0 || ret_parts->count == KELP_LOG_FIELDS_MAX) {
            at++;
            continue;
        }
        struct field *field = &ret_parts->fields[ret_parts->count];
        ret_parts->words[ret_parts->count++] = (struct span){word, (size_t)(at - word)};
        field->key = (struct span){at, key};
        at = take_value(at + key + 1, end, &field->value);
        word = at;
    }
    ret_parts->words[ret_parts->count] = (struct span){word, (size_t)(end - word)};
}

/* ---- printing ---- */

struct out {
    char *at;
    size_t used;
    size_t room; /* without END_BYTES */
    bool cut;
};

/* Append all bytes or none. */
static void put(struct out *out, const char *text, size_t bytes)
{
    if (out->cut || bytes > out->room - out->used) {
        out->cut = true;
        return;
    }
    memcpy(out->at + out->used, text, bytes);
    out->used += bytes;
}

/* Length of the UTF-8 character at this position; 0: not UTF-8. */
static size_t utf8_at(const unsigned char *at, size_t left)
{
    const unsigned char c = at[0];
    const size_t bytes = c < 0x80   ? 1
                         : c < 0xc2 ? 0
                         : c < 0xe0 ? 2
                         : c < 0xf0 ? 3
                         : c < 0xf5 ? 4
                                    : 0;

    if (bytes == 0 || bytes > left) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    /* Overlong, a surrogate, or beyond the last code point. */
    const bool wrong = (c == 0xe0 && at[1] < 0xa0) || (c == 0xed && at[1] > 0x9f) ||
                       (c == 0xf0 && at[1] < 0x90) || (c == 0xf4 && at[1] > 0x8f);
    return wrong ? 0 : bytes;
}

static void put_characters(struct out *out, struct span text)
{
    const unsigned char *bytes = (const unsigned char *)text.at;

    for (size_t i = 0; i < text.bytes && !out->cut;) {
        const size_t length = utf8_at(bytes + i, text.bytes - i);
        char escape[8];
        if (length == 0) {
            put(out, "\\ufffd", 6);
        } else if (bytes[i] < 0x20 || bytes[i] == 0x7f) {
            (void)snprintf(escape, sizeof(escape), "\\u%04x", bytes[i]);
            put(out, escape, 6);
        } else if (bytes[i] == '"' || bytes[i] == '\\') {
            put(out, (const char[]){'\\', (char)bytes[i]}, 2);
        } else {
            put(out, text.at + i, length);
        }
        i += length > 0 ? length : 1;
    }
}

static struct span span_of(const char *text)
{
    return (struct span){text, strlen(text)};
}

/* A cut string still gets its closing quote: room is reserved for it. */
static void put_string(struct out *out, const char *name, struct span value)
{
    if (out->cut) {
        return;
    }
    const size_t before = out->used;
    put(out, out->used > 1 ? ",\"" : "\"", out->used > 1 ? 2 : 1);
    put(out, name, strlen(name));
    put(out, "\":\"", 3);
    if (out->cut) {
        out->used = before; /* no room for a value */
        return;
    }
    put_characters(out, value);
    out->at[out->used++] = '"';
}

static bool is_number(struct span value)
{
    size_t digits = 0;
    size_t points = 0;
    const size_t first = value.bytes > 0 && value.at[0] == '-' ? 1 : 0;

    for (size_t i = first; i < value.bytes; i++) {
        const bool point = value.at[i] == '.' && digits > 0 && i + 1 < value.bytes;
        if (!point && (value.at[i] < '0' || value.at[i] > '9')) {
            return false;
        }
        points += point ? 1 : 0;
        digits += point ? 0 : 1;
    }
    const bool zero_first =
        value.bytes > first + 1 && value.at[first] == '0' && value.at[first + 1] != '.';
    return digits > 0 && digits <= NUMBER_DIGITS_MAX && points <= 1 && !zero_first;
}

static bool is_key(struct span key, const char *name)
{
    return key.bytes == strlen(name) && memcmp(key.at, name, key.bytes) == 0;
}

/* How often the key occurs before field `index`. */
static size_t seen(const struct parts *parts, size_t index)
{
    static const char *const own[] = {"time", "level", "role", "id", "message", "cut"};
    const struct span key = parts->fields[index].key;
    size_t count = 0;

    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        count += is_key(key, own[i]) ? 1 : 0;
    }
    for (size_t i = 0; i < index; i++) {
        const struct span other = parts->fields[i].key;
        count += other.bytes == key.bytes && memcmp(other.at, key.at, key.bytes) == 0 ? 1 : 0;
    }
    return count;
}

static void put_field(struct out *out, const struct parts *parts, size_t index)
{
    const struct field *field = &parts->fields[index];
    char name[64];
    int used = snprintf(name, sizeof(name), "%.*s",
                        (int)(field->key.bytes < 24 ? field->key.bytes : 24), field->key.at);

    for (size_t i = seen(parts, index); i > 0; i--) {
        name[used++] = '_'; /* fits: 24 and KELP_LOG_FIELDS_MAX */
    }
    name[used] = '\0';
    if (!is_number(field->value)) {
        put_string(out, name, field->value);
        return;
    }
    const size_t before = out->used;
    put(out, ",\"", 2);
    put(out, name, strlen(name));
    put(out, "\":", 2);
    put(out, field->value.at, field->value.bytes);
    if (out->cut) {
        out->used = before;
    }
}

/* Append the texts between fields, separated by one space. */
static void put_message(struct out *out, const struct parts *parts)
{
    bool any = false;

    if (out->cut) {
        return;
    }
    const size_t before = out->used;
    put(out, ",\"message\":\"", 12);
    if (out->cut) {
        out->used = before;
        return;
    }
    for (size_t i = 0; i <= parts->count; i++) {
        struct span words = parts->words[i];
        while (words.bytes > 0 && words.at[0] == ' ') {
            words.at++;
            words.bytes--;
        }
        while (words.bytes > 0 && words.at[words.bytes - 1] == ' ') {
            words.bytes--;
        }
        const bool joins = words.bytes > 0 && strchr(":,;", words.at[0]) != NULL;
        put_characters(out, span_of(any && words.bytes > 0 && !joins ? " " : ""));
        put_characters(out, words);
        any = any || words.bytes > 0;
    }
    out->at[out->used++] = '"';
}

size_t kelp_log_json(const struct kelp_log_line *line, char *out_bytes_at, size_t out_bytes)
{
    struct out out = {.at = out_bytes_at, .room = out_bytes - END_BYTES};
    struct parts parts;

    take_apart(line->text, line->text_bytes, &parts);
    put(&out, "{", 1);
    put_string(&out, "time", span_of(line->time));
    put_string(&out, "level", span_of(line->level));
    put_string(&out, "role", span_of(line->role));
    put_string(&out, "id", span_of(line->id));
    put_message(&out, &parts);
    for (size_t i = 0; i < parts.count; i++) {
        put_field(&out, &parts, i);
    }
    const char *end = out.cut ? ",\"cut\":true}" : "}";
    memcpy(out.at + out.used, end, strlen(end));
    return out.used + strlen(end);
}
