/* How calls of libkelp-worker report results, and the text of the last failure. */
#include "worker/client/client_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/program/daemon.h"
#include "common/program/options/version.h"

/* For kelp_worker_error(): a call may fail before the thread has a worker. */
static _Thread_local char error_text[sizeof(((struct kelp_error *)NULL)->text)];

const char *kelp_worker_version(void)
{
    return kelp_version();
}

const char *kelp_worker_error(void)
{
    return error_text;
}

int kelp_worker_exit_status(int result)
{
    if (result >= 0) {
        return KELP_EXIT_OK;
    }
    return result == KELP_WORKER_INVALID ? KELP_EXIT_USAGE : KELP_EXIT_FAILED;
}

int kelp__client_result(kelp_status status, const struct kelp_error *error)
{
    if (status == KELP_OK) {
        return KELP_WORKER_OK;
    }
    (void)snprintf(error_text, sizeof(error_text), "%s", error->text);
    return kelp_daemon_exit_code(status) == KELP_EXIT_USAGE ? KELP_WORKER_INVALID
                                                            : KELP_WORKER_FAILED;
}

int kelp__client_invalid(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error_text, sizeof(error_text), format, args);
    va_end(args);
    return KELP_WORKER_INVALID;
}

int kelp__client_no_memory(const char *where)
{
    (void)snprintf(error_text, sizeof(error_text), "%s: out of memory", where);
    return KELP_WORKER_FAILED;
}

int kelp__client_take(const char *where, void *ret, size_t known, size_t least, const void *given)
{
    size_t size;

    memcpy(&size, given, sizeof(size));
    if (size < least || size > KELP_CLIENT_STRUCT_MOST) {
        return kelp__client_invalid("%s: size is %zu; it must be the size of the struct", where,
                                    size);
    }
    for (size_t i = known; i < size; i++) {
        if (((const char *)given)[i] != 0) {
            return kelp__client_invalid("%s: the program asks for more than libkelp-worker %s has",
                                        where, kelp_version());
        }
    }
    memset(ret, 0, known);
    memcpy(ret, given, size < known ? size : known);
    return KELP_WORKER_OK;
}
