#include "common/base/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CAPACITY_FIRST 256
#define MORE           "…"

/* Make room for `more` bytes and a NUL. */
static bool make_room(struct kelp_text *text, size_t more)
{
    size_t needed;

    if (__builtin_add_overflow(text->count, more, &needed) || needed == SIZE_MAX) {
        return false;
    }
    if (needed < text->capacity) {
        return true;
    }
    size_t capacity = text->capacity * 2 > needed + 1 ? text->capacity * 2 : needed + 1;
    capacity = capacity > CAPACITY_FIRST ? capacity : CAPACITY_FIRST;
    char *bytes = realloc(text->bytes, capacity);
    if (!bytes) {
        return false;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

static ssize_t append(void *cookie, const char *bytes, size_t count)
{
    struct kelp_text *text = cookie;

    if (text->failed || !make_room(text, count)) {
        text->failed = true;
        errno = ENOMEM;
        return 0;
    }
    memcpy(text->bytes + text->count, bytes, count);
    text->count += count;
    return (ssize_t)count;
}

/* For ftell(): the current position. */
static int tell(void *cookie, off64_t *position, int whence)
{
    const struct kelp_text *text = cookie;

    if (*position != 0 || whence == SEEK_SET) {
        errno = EINVAL;
        return -1;
    }
    *position = (off64_t)text->count;
    return 0;
}

kelp_status kelp_text_open(struct kelp_text *text, struct kelp_error *reterr)
{
    const cookie_io_functions_t functions = {.write = append, .seek = tell};

    *text = (struct kelp_text){0};
    text->out = fopencookie(text, "w", functions);
    if (!text->out) {
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    (void)setvbuf(text->out, NULL, _IONBF, 0); /* the text itself is the buffer */
    return KELP_OK;
}

kelp_status kelp_text_close(struct kelp_text *text, char **ret_bytes, size_t *ret_count,
                            struct kelp_error *reterr)
{
    bool failed = ferror(text->out) != 0;
    failed = fclose(text->out) != 0 || failed || text->failed || !make_room(text, 0);
    if (failed) {
        free(text->bytes);
        return kelp_fail(reterr, KELP_ERR_NO_MEMORY, "out of memory");
    }
    text->bytes[text->count] = '\0';
    *ret_bytes = text->bytes;
    *ret_count = text->count;
    return KELP_OK;
}

void kelp_text_discard(struct kelp_text *text)
{
    (void)fclose(text->out); /* the text is dropped anyway */
    free(text->bytes);
}

kelp_status kelp_text_print(void (*print)(const void *what, FILE *out), const void *what,
                            size_t bytes_max, char **ret_text, struct kelp_error *reterr)
{
    struct kelp_text text;
    char *bytes = NULL;
    size_t count = 0;
    kelp_status status = kelp_text_open(&text, reterr);

    if (status != KELP_OK) {
        return status;
    }
    print(what, text.out);
    status = kelp_text_close(&text, &bytes, &count, reterr);
    if (status == KELP_OK && count > bytes_max) {
        free(bytes);
        return kelp_fail(reterr, KELP_ERR_LIMIT, "takes %zu bytes, over %zu", count, bytes_max);
    }
    if (status == KELP_OK) {
        *ret_text = bytes;
    }
    return status;
}

void kelp_text_list_add(char *list, size_t list_bytes, const char *name)
{
    static const char comma[] = ", ";
    size_t used = strlen(list);
    size_t more = sizeof(MORE) - 1;

    if (used >= more && strcmp(list + used - more, MORE) == 0) {
        return;
    }
    bool fits = used + 2 * strlen(comma) + strlen(name) + more < list_bytes;
    (void)snprintf(list + used, list_bytes - used, "%s%s", used > 0 ? comma : "",
                   fits ? name : MORE);
}
