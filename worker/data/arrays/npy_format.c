/*
 * NPY headers: a magic, a version, a length, and a dictionary as Python prints it:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
 */
#include <string.h>

#include "worker/data/arrays/array_format.h"

#define MAGIC       "\x93NUMPY"
#define MAGIC_BYTES 6u

struct header {
    const char *name; /* the file's name */
    const char *at;   /* the first byte not read yet */
    const char *end;
    char descr[16];
    bool fortran;
    struct kelp_array array;
    bool has_descr, has_order, has_shape;
};

static kelp_status malformed(const struct header *header, struct kelp_error *reterr)
{
    return kelp_fail(reterr, KELP_ERR_FORMAT,
                     "%s: its NPY header is damaged; it must be a dictionary of descr, "
                     "fortran_order and shape",
                     header->name);
}

static void skip_blanks(struct header *header)
{
    while (header->at < header->end && (*header->at == ' ' || *header->at == '\n')) {
        header->at++;
    }
}

/* Skip blanks and consume the character if it is the wanted one. */
static bool take(struct header *header, char wanted)
{
    skip_blanks(header);
    if (header->at == header->end || *header->at != wanted) {
        return false;
    }
    header->at++;
    return true;
}

static bool parse_word(struct header *header, const char *word)
{
    size_t length = strlen(word);
    skip_blanks(header);
    if ((size_t)(header->end - header->at) < length || memcmp(header->at, word, length) != 0) {
        return false;
    }
    header->at += length;
    return true;
}

/* 'text' or "text" of fewer than `room` characters. */
static bool parse_text(struct header *header, char *ret_text, size_t room)
{
    skip_blanks(header);
    if (header->at == header->end || (*header->at != '\'' && *header->at != '"')) {
        return false;
    }
    char quote = *header->at++;
    size_t length = 0;
    while (header->at < header->end && *header->at != quote) {
        if (length + 1 == room || *header->at == '\\') {
            return false;
        }
        ret_text[length++] = *header->at++;
    }
    ret_text[length] = '\0';
    return take(header, quote);
}

static bool parse_number(struct header *header, uint64_t *ret_number)
{
    skip_blanks(header);
    const char *first = header->at;
    uint64_t number = 0;
    while (header->at < header->end && *header->at >= '0' && *header->at <= '9') {
        if (__builtin_mul_overflow(number, (uint64_t)10, &number) ||
            __builtin_add_overflow(number, (uint64_t)(*header->at - '0'), &number)) {
            return false;
        }
        header->at++;
    }
    *ret_number = number;
    return header->at > first;
}

/* (), (3,) or (3, 4) */
static kelp_status parse_shape(struct header *header, struct kelp_error *reterr)
{
    struct kelp_array *array = &header->array;
    bool comma = true;
    if (!take(header, '(')) {
        return malformed(header, reterr);
    }
    while (!take(header, ')')) {
        uint64_t dim;
        if (!comma || !parse_number(header, &dim)) {
            return malformed(header, reterr);
        }
        if (array->rank == KELP_ARRAY_RANK_MAX) {
            return kelp_fail(reterr, KELP_ERR_LIMIT,
                             "%s: has more than %d dimensions; at most so many are read",
                             header->name, KELP_ARRAY_RANK_MAX);
        }
        array->dims[array->rank++] = dim;
        comma = take(header, ',');
    }
    header->has_shape = true;
    return KELP_OK;
}

static kelp_status parse_descr(struct header *header, struct kelp_error *reterr)
{
    skip_blanks(header);
    if (header->at < header->end && *header->at == '[') {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: is an array of records; save its columns as an array of one type",
                         header->name);
    }
    if (!parse_text(header, header->descr, sizeof(header->descr))) {
        return malformed(header, reterr);
    }
    header->has_descr = true;
    return KELP_OK;
}

static kelp_status parse_entry(struct header *header, struct kelp_error *reterr)
{
    char key[32];
    if (!parse_text(header, key, sizeof(key)) || !take(header, ':')) {
        return malformed(header, reterr);
    }
    if (strcmp(key, "descr") == 0 && !header->has_descr) {
        return parse_descr(header, reterr);
    }
    if (strcmp(key, "shape") == 0 && !header->has_shape) {
        return parse_shape(header, reterr);
    }
    if (strcmp(key, "fortran_order") == 0 && !header->has_order) {
        header->has_order = true;
        header->fortran = parse_word(header, "True");
        return header->fortran || parse_word(header, "False") ? KELP_OK : malformed(header, reterr);
    }
    return malformed(header, reterr);
}

static kelp_status parse_dictionary(struct header *header, struct kelp_error *reterr)
{
    bool comma = true;
    if (!take(header, '{')) {
        return malformed(header, reterr);
    }
    while (!take(header, '}')) {
        kelp_status status = comma ? parse_entry(header, reterr) : malformed(header, reterr);
        if (status != KELP_OK) {
            return status;
        }
        comma = take(header, ',');
    }
    skip_blanks(header);
    bool whole =
        header->at == header->end && header->has_descr && header->has_order && header->has_shape;
    return whole ? KELP_OK : malformed(header, reterr);
}

static kelp_status set_element(struct header *header, struct kelp_error *reterr)
{
    static const struct {
        const char *code; /* without the byte order */
        enum kelp_element element;
    } codes[] = {
        {"b1", KELP_ELEMENT_BOOL},    {"u1", KELP_ELEMENT_UINT8},   {"i1", KELP_ELEMENT_INT8},
        {"u2", KELP_ELEMENT_UINT16},  {"i2", KELP_ELEMENT_INT16},   {"u4", KELP_ELEMENT_UINT32},
        {"i4", KELP_ELEMENT_INT32},   {"u8", KELP_ELEMENT_UINT64},  {"i8", KELP_ELEMENT_INT64},
        {"f4", KELP_ELEMENT_FLOAT32}, {"f8", KELP_ELEMENT_FLOAT64},
    };
    char order = header->descr[0];
    header->array.big_endian = order == '>';
    for (size_t i = 0; i < KELP_ARRAY_COUNT(codes) && order != '\0'; i++) {
        if (strcmp(header->descr + 1, codes[i].code) == 0 && strchr("<>|=", order)) {
            header->array.element = codes[i].element;
            return KELP_OK;
        }
    }
    return kelp_fail(reterr, KELP_ERR_INVALID,
                     "%s: has elements of type '%s'; float32, float64, bool and integers of 8 to "
                     "64 bits are read",
                     header->name, header->descr);
}

/* Find the dictionary; the array's data_at is its end. */
static kelp_status find_dictionary(const struct kelp_array_text *text, struct header *header,
                                   struct kelp_error *reterr)
{
    const uint8_t *bytes = text->bytes;
    if (text->count < MAGIC_BYTES + 2 || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0) {
        bool gzip = text->count >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: is not an NPY file%s", text->name,
                         gzip ? ": it is compressed with gzip; decompress it first"
                              : " (numpy.save writes one; .npz and .csv are others)");
    }
    uint8_t version = bytes[MAGIC_BYTES];
    uint32_t length_bytes = version == 1 ? 2 : 4;
    uint64_t first = MAGIC_BYTES + 2 + length_bytes, length = 0;
    if (version < 1 || version > 3) {
        return kelp_fail(reterr, KELP_ERR_INVALID, "%s: is NPY version %u; 1 to 3 are read",
                         text->name, version);
    }
    if (text->count < first) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: is cut off in its header", text->name);
    }
    for (uint32_t i = 0; i < length_bytes; i++) {
        length |= (uint64_t)bytes[MAGIC_BYTES + 2 + i] << (8 * i);
    }
    if (first + length > KELP_ARRAY_HEADER_MAX || first + length > text->count) {
        return kelp_fail(reterr, KELP_ERR_FORMAT, "%s: %s", text->name,
                         first + length > KELP_ARRAY_HEADER_MAX ? "its NPY header is too long"
                                                                : "is cut off in its header");
    }
    header->at = (const char *)bytes + first;
    header->end = header->at + length;
    header->array.data_at = first + length;
    return KELP_OK;
}

kelp_status kelp_npy_parse(const struct kelp_array_text *text, struct kelp_array *ret_array,
                           struct kelp_error *reterr)
{
    struct header header = {.name = text->name};
    kelp_status status = find_dictionary(text, &header, reterr);
    if (status == KELP_OK) {
        status = parse_dictionary(&header, reterr);
    }
    if (status == KELP_OK) {
        status = set_element(&header, reterr);
    }
    if (status != KELP_OK) {
        return status;
    }
    if (header.array.rank == 0) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: is a single number; the first dimension must count samples",
                         text->name);
    }
    if (header.fortran && header.array.rank > 1) {
        return kelp_fail(reterr, KELP_ERR_INVALID,
                         "%s: is stored column by column (fortran_order); save "
                         "numpy.ascontiguousarray(...) of it",
                         text->name);
    }
    status = kelp_array_measure(&header.array, text->name, text->file_bytes, reterr);
    if (status == KELP_OK) {
        *ret_array = header.array;
    }
    return status;
}
