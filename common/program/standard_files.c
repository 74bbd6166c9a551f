/*
 * If a program is started with its standard input, output or error closed, /dev/null takes their
 * place before any library opens a file. Otherwise a socket or file of a library would become
 * descriptor 2 and receive the log. Output is then lost without an error; reading fails as from a
 * closed descriptor.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Uses system calls, since sanitizers' wrappers are not ready yet. open() returns the lowest
 * free descriptor, which is the one checked. Without /dev/null nothing changes. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (syscall(SYS_fcntl, fd, F_GETFD) == -1) {
            (void)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY);
        }
    }
}

/* Runs before the constructors of shared libraries; only programs may have this section. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = open_standard_files;
