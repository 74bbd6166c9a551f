/* Files of /proc, which have no size to go by. */
#ifndef KELP_COMMON_PROCESS_PROC_FILE_H
#define KELP_COMMON_PROCESS_PROC_FILE_H

#include <stddef.h>

/* "self/limits": what it holds, cut at text_bytes - 1, with a NUL behind it. Returns its length; 0
 * when it cannot be read. */
size_t kelp_proc_file_read(const char *name, char *text, size_t text_bytes);

#endif
