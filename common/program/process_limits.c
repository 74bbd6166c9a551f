/*
 * Limits of the process (setrlimit(2)) that concern every program of Kelp.
 *
 * With too small a stack, a program crashes somewhere later. It is refused before the constructors
 * of shared libraries run, since these start threads. A file that has reached the limit on its size
 * is an error like a full disk: the signal SIGXFSZ, which would end the process, is ignored.
 */
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/program/options/options.h"

#define STACK_BYTES (UINT64_C(1) << 20) /* crashes were seen below 256 KiB */

/* System calls, since wrappers of sanitizers are not ready yet. */
static void check_stack(void)
{
    static const char text[] =
        "kelp: the limit on the stack is below 1 MiB: raise it, for example with ulimit -s 8192\n";
    struct {
        uint64_t now, most;
    } limit;

    if (syscall(SYS_prlimit64, 0, RLIMIT_STACK, NULL, &limit) != 0 || limit.now >= STACK_BYTES) {
        return;
    }
    if (limit.most >= STACK_BYTES) {
        limit.now = STACK_BYTES;
        (void)syscall(SYS_prlimit64, 0, RLIMIT_STACK, &limit, NULL);
        return;
    }
    (void)syscall(SYS_write, STDERR_FILENO, text, sizeof(text) - 1);
    (void)syscall(SYS_exit_group, KELP_EXIT_USAGE);
}

/* Only programs may have a .preinit_array. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(void) = check_stack;

__attribute__((constructor)) static void ignore_size(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
}
