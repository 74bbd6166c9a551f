/*
 * A program that was started with its standard input, output or error closed gets /dev/null in
 * their place, before any library opens a file. Else a socket or a file of a library's own becomes
 * descriptor 2, and the log goes there. Nobody wants what is written then, so it is lost without an
 * error; reading fails as from a closed one.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* System calls, since wrappers of sanitizers are not ready yet. The lowest descriptor that is free
 * is the one that is looked at. Where there is no /dev/null all stays as it was. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (syscall(SYS_fcntl, fd, F_GETFD) == -1) {
            (void)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_WRONLY);
        }
    }
}

/* Before the constructors of shared libraries; programs alone may have that. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = open_standard_files;
