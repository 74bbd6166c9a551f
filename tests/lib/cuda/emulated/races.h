/*
 * What the emulated runtime tells of a kernel's run to the search for races (races.cu), where that
 * is built in.
 *
 * C++ for the .cu files alone.
 */
#ifndef KELP_TESTS_EMULATED_RACES_H
#define KELP_TESTS_EMULATED_RACES_H

#include <cstddef>

namespace kelp_emulated {

#ifdef KELP_EMULATED_RACES
/* arguments: of the kernel, which its threads copy. */
void races_launch(const char *kernel, const void *arguments, size_t bytes);
/* Memory of the device: what a block wrote there, others must not read in the same launch. */
void races_memory(const void *memory, size_t bytes);
void races_freed(const void *memory);
/* By the host, if it is memory of the device. */
void races_written(const void *memory, size_t bytes);
void races_block(unsigned int block);
void races_thread(unsigned int thread, const void *stack, size_t stack_bytes);
void races_stop(void); /* what runs now is no kernel */
/* True: it was removed; no thread waits there. */
bool races_removed(const char *file, unsigned int line, bool warp);
void races_block_met(void);
void races_warp_met(unsigned int warp);
#else
inline void races_launch(const char *, const void *, size_t)
{
}
inline void races_memory(const void *, size_t)
{
}
inline void races_freed(const void *)
{
}
inline void races_written(const void *, size_t)
{
}
inline void races_block(unsigned int)
{
}
inline void races_thread(unsigned int, const void *, size_t)
{
}
inline void races_stop(void)
{
}
inline bool races_removed(const char *, unsigned int, bool)
{
    return false;
}
inline void races_block_met(void)
{
}
inline void races_warp_met(unsigned int)
{
}
#endif

} // namespace kelp_emulated

#endif
