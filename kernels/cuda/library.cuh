/*
 * Loading a library of NVIDIA's when a job may use it, so that one build serves machines with and
 * without it.
 *
 * Private to kernels/cuda and its rooms.
 */
#ifndef KELP_KERNELS_CUDA_LIBRARY_CUH
#define KELP_KERNELS_CUDA_LIBRARY_CUH

#include <dlfcn.h>

#include <cstdio>

/* NAME of the major version of CUDA: as dlopen() finds it (LD_LIBRARY_PATH, the linker's own
 * configuration), else in the toolkit's folders. It stays for the life of the process. NULL: none.
 */
static inline void *kelp__cuda_library_open(const char *name, int cuda_major)
{
    char in_newest[128], in_own[128];
    (void)snprintf(in_newest, sizeof(in_newest), "/usr/local/cuda/lib64/%s", name);
    (void)snprintf(in_own, sizeof(in_own), "/usr/local/cuda-%d/lib64/%s", cuda_major, name);
    const char *const places[] = {name, in_newest, in_own};
    for (const char *place : places) {
        void *handle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            return handle;
        }
    }
    return NULL;
}

/* *ret is that function of the library. Where there is none, `missing` keeps the first such name.
 */
template <typename Function>
static inline void kelp__cuda_library_find(void *handle, const char *name, Function *ret,
                                           char (&missing)[64])
{
    *ret = reinterpret_cast<Function>(dlsym(handle, name));
    if (!*ret && missing[0] == '\0') {
        (void)snprintf(missing, sizeof(missing), "%s", name);
    }
}

#endif
