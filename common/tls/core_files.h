/* Private keys stay out of core files, which others may read, keep or send away. */
#ifndef KELP_COMMON_TLS_CORE_FILES_H
#define KELP_COMMON_TLS_CORE_FILES_H

/* This process has a key from now on: its crash leaves no memory behind, nor that of a process that
 * it starts. Threads: any. */
void kelp_core_files_forbid(void);

#endif
