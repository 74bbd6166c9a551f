#include "tests/lib/commands/run_terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITTEN_MAX (4u << 20)
#define LOOK_MS     100
#define ARGS_MAX    32

static void become(const char *folder, const char *const *args, char *mark, bool nohup)
{
    char program[512];
    const char *argv[ARGS_MAX + 2] = {program};

    kelp_test_program("kelp", program, sizeof(program));
    for (size_t i = 0; args[i] && i < ARGS_MAX; i++) {
        argv[i + 1] = args[i];
    }
    (void)signal(SIGHUP, nohup ? SIG_IGN : SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    if (chdir(folder) == 0 && putenv(mark) == 0) {
        (void)execv(program, (char *const *)argv);
    }
    _exit(127);
}

void kelp_test_terminal_start(struct kelp_test_terminal *terminal, const char *folder,
                              const char *const *args,
                              const struct kelp_test_terminal_options *options)
{
    struct winsize size = {.ws_row = (unsigned short)options->lines,
                           .ws_col = (unsigned short)options->columns};

    memset(terminal, 0, sizeof(*terminal));
    kelp_test_command_mark(&terminal->command);
    terminal->lines = options->lines;
    terminal->columns = options->columns;
    terminal->written = calloc(1, WRITTEN_MAX + 1);
    ck_assert_ptr_nonnull(terminal->written);
    terminal->pid = forkpty(&terminal->fd, NULL, NULL, &size);
    ck_assert_int_ge(terminal->pid, 0);
    if (terminal->pid == 0) {
        become(folder, args, terminal->command.mark, options->nohup);
    }
    ck_assert_int_ge(fcntl(terminal->fd, F_SETFD, FD_CLOEXEC), 0);
}

/* Read the available output. False: it has ended. */
static bool take(struct kelp_test_terminal *terminal)
{
    struct pollfd item = {.fd = terminal->fd, .events = POLLIN};
    char *room = terminal->written + terminal->bytes;

    if (poll(&item, 1, LOOK_MS) <= 0) {
        return true;
    }
    ck_assert_msg(terminal->bytes < WRITTEN_MAX, "it writes without end");
    ssize_t got = read(terminal->fd, room, WRITTEN_MAX - terminal->bytes);
    if (got <= 0) { /* EIO: no process has the terminal open any more */
        return got < 0 && errno == EINTR;
    }
    terminal->bytes += (size_t)got;
    return true;
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned count = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part)) {
        count++;
    }
    return count;
}

void kelp_test_terminal_await(struct kelp_test_terminal *terminal, const char *text, unsigned count)
{
    uint64_t hang_ms = kelp_clock_ms() + KELP_TEST_HANG_MS;

    while (count_of(terminal->written, text) < count) {
        ck_assert_msg(take(terminal) && kelp_clock_ms() < hang_ms, "'%s' does not come:\n%s", text,
                      terminal->written);
    }
}

void kelp_test_terminal_type(const struct kelp_test_terminal *terminal, const char *keys)
{
    ck_assert_int_eq(write(terminal->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

int kelp_test_terminal_end(struct kelp_test_terminal *terminal)
{
    uint64_t hang_ms = kelp_clock_ms() + KELP_TEST_HANG_MS;
    int wait_status = 0;

    while (take(terminal)) {
        ck_assert_msg(kelp_clock_ms() < hang_ms, "it does not end:\n%s", terminal->written);
    }
    ck_assert_int_eq(waitpid(terminal->pid, &wait_status, 0), terminal->pid);
    terminal->pid = 0;
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

void kelp_test_terminal_close(struct kelp_test_terminal *terminal)
{
    ck_assert_int_eq(close(terminal->fd), 0);
    terminal->fd = -1;
}

void kelp_test_terminal_fini(struct kelp_test_terminal *terminal)
{
    if (terminal->pid > 0) {
        (void)kill(terminal->pid, SIGKILL);
        (void)waitpid(terminal->pid, NULL, 0);
    }
    if (terminal->fd >= 0) {
        (void)close(terminal->fd);
    }
    free(terminal->written);
    memset(terminal, 0, sizeof(*terminal));
    terminal->fd = -1;
}

/* ---- the screen ----------------------------------------------------------------------------- */

struct screen {
    unsigned lines, columns;
    unsigned line, column; /* of the cursor */
    char *cells;           /* [lines][columns] */
    char *gone;            /* the lines scrolled out */
    size_t gone_bytes;
};

static char *line_of(const struct screen *screen, unsigned line)
{
    return screen->cells + (size_t)line * screen->columns;
}

/* Append the line without trailing blanks. */
static void append_line(char *text, size_t *bytes, const struct screen *screen, unsigned line)
{
    size_t length = screen->columns;

    while (length > 0 && line_of(screen, line)[length - 1] == ' ') {
        length--;
    }
    memcpy(text + *bytes, line_of(screen, line), length);
    *bytes += length;
    text[(*bytes)++] = '\n';
}

static void next_line(struct screen *screen)
{
    if (screen->line + 1 < screen->lines) {
        screen->line++;
        return;
    }
    append_line(screen->gone, &screen->gone_bytes, screen, 0);
    memmove(screen->cells, line_of(screen, 1), (size_t)(screen->lines - 1) * screen->columns);
    memset(line_of(screen, screen->lines - 1), ' ', screen->columns);
}

static void clear_right(struct screen *screen)
{
    memset(line_of(screen, screen->line) + screen->column, ' ', screen->columns - screen->column);
}

/* Execute "[2A", "[J" or "[K". Returns what follows. */
static const char *obey(struct screen *screen, const char *order)
{
    char *end = NULL;

    ck_assert_int_eq(order[0], '[');
    unsigned long number = strtoul(order + 1, &end, 10);
    switch (*end) {
    case 'A':
        screen->line = number < screen->line ? screen->line - (unsigned)number : 0;
        break;
    case 'J':
        clear_right(screen);
        for (unsigned line = screen->line + 1; line < screen->lines; line++) {
            memset(line_of(screen, line), ' ', screen->columns);
        }
        break;
    case 'K':
        clear_right(screen);
        break;
    default:
        ck_abort_msg("nobody knows the order '%.5s'", order);
    }
    return end + 1;
}

static void put(struct screen *screen, char letter)
{
    if (screen->column == screen->columns) {
        screen->column = 0;
        next_line(screen);
    }
    line_of(screen, screen->line)[screen->column++] = letter;
}

static void draw(struct screen *screen, const char *text)
{
    while (*text) {
        char letter = *text++;
        if (letter == '\033') {
            text = obey(screen, text);
        } else if (letter == '\r') {
            screen->column = 0;
        } else if (letter == '\n') {
            next_line(screen);
        } else {
            put(screen, letter);
        }
    }
}

char *kelp_test_terminal_seen(const struct kelp_test_terminal *terminal)
{
    struct screen screen = {.lines = terminal->lines, .columns = terminal->columns};
    size_t cells = (size_t)screen.lines * screen.columns;

    /* A line is at most as long as what was written, plus its line break. */
    screen.cells = malloc(cells);
    screen.gone = malloc(2 * terminal->bytes + cells + screen.lines + 1);
    ck_assert(screen.cells && screen.gone);
    memset(screen.cells, ' ', cells);
    draw(&screen, terminal->written);
    for (unsigned line = 0; line < screen.lines; line++) {
        append_line(screen.gone, &screen.gone_bytes, &screen, line);
    }
    screen.gone[screen.gone_bytes] = '\0';
    free(screen.cells);
    return screen.gone;
}
