#include "cli/run/log_tail.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Behind "2026-01-31T12:00:00.123Z error ps/shard-0 "; NULL when the line has another form. */
static const char *after_header(const char *line, const char *end, bool *ret_error)
{
    const char *at = line;

    for (int word = 0; word < 3; word++) {
        const char *space = memchr(at, ' ', (size_t)(end - at));
        if (!space) {
            return NULL;
        }
        if (word == 0 && (space - at < 20 || space[-1] != 'Z')) {
            return NULL;
        }
        if (word == 1) {
            *ret_error = space - at == 5 && memcmp(at, "error", 5) == 0;
        }
        at = space + 1;
        while (at < end && *at == ' ') { /* levels are padded to one width */
            at++;
        }
    }
    return at;
}

static void copy(const char *from, const char *end, char *message, size_t message_bytes)
{
    size_t length = (size_t)(end - from);

    if (length >= message_bytes) {
        length = message_bytes - 1;
    }
    memcpy(message, from, length);
    message[length] = '\0';
}

void kelp_log_tail_message(const char *text, size_t text_bytes, char *message, size_t message_bytes)
{
    enum { OURS, PRINTED, ERROR } best = OURS;
    const char *end = text + text_bytes;

    message[0] = '\0';
    for (const char *line = text; line < end;) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line));
        bool error = false;
        if (!line_end) {
            line_end = end;
        }
        const char *words = after_header(line, line_end, &error);
        const int kind = error ? ERROR : words ? OURS : PRINTED;
        if (line_end > line && kind >= (int)best) {
            copy(words ? words : line, line_end, message, message_bytes);
            best = kind;
        }
        line = line_end + 1;
    }
}

/* The file's end, from byte `from` on; how many bytes. */
static size_t read_end(const char *path, long from, char *text, size_t text_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return 0;
    }
    off_t size = lseek(fd, 0, SEEK_END);
    off_t start = size > (off_t)text_bytes ? size - (off_t)text_bytes : 0;
    start = start > from ? start : from;
    ssize_t got = pread(fd, text, text_bytes, start);
    (void)close(fd);
    return got > 0 ? (size_t)got : 0;
}

void kelp_log_tail_read(const char *path, long from, char *message, size_t message_bytes)
{
    char text[KELP_LOG_TAIL_BYTES];
    size_t count = read_end(path, from, text, sizeof(text));

    message[0] = '\0';
    if (count > 0) {
        kelp_log_tail_message(text, count, message, message_bytes);
    }
}

void kelp_log_tail_printed(const char *path, long from, char *message, size_t message_bytes)
{
    char line[4096];
    bool error = false;

    kelp_log_tail_lines(path, from, 1, line, sizeof(line));
    const char *end = line + strcspn(line, "\n");
    copy(line, after_header(line, end, &error) ? line : end, message, message_bytes);
}

void kelp_log_tail_lines(const char *path, long from, unsigned lines, char *text, size_t text_bytes)
{
    char end[KELP_LOG_TAIL_BYTES];
    size_t count = read_end(path, from, end, sizeof(end));
    size_t start = count;

    while (start > 0 && count - start + 1 < text_bytes) {
        if (end[start - 1] == '\n' && start < count && lines-- == 1) {
            break;
        }
        start--;
    }
    memcpy(text, end + start, count - start);
    text[count - start] = '\0';
}

bool kelp_log_has(const char *path, long from, const char *text)
{
    FILE *in = fopen(path, "re");
    char *line = NULL;
    size_t line_bytes = 0;
    bool found = false;

    if (!in) {
        return false;
    }
    if (fseek(in, from, SEEK_SET) == 0) {
        while (!found && getline(&line, &line_bytes, in) >= 0) {
            found = strstr(line, text) != NULL;
        }
    }
    free(line);
    (void)fclose(in); /* only read from */
    return found;
}

kelp_status kelp_log_open(const char *path, int *ret_fd, long *ret_from, struct kelp_error *reterr)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

    if (fd < 0) {
        return kelp_fail(reterr, KELP_ERR_IO, "cannot open '%s': %s", path, strerror(errno));
    }
    off_t size = lseek(fd, 0, SEEK_END);
    *ret_from = size > 0 ? (long)size : 0;
    *ret_fd = fd;
    return KELP_OK;
}
