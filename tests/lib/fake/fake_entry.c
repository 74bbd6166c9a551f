/* The fake device in place of libkelp-cuda.so, for whole jobs with cluster.device: cuda. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda_entry.h"
#include "tests/lib/fake/fake_device.h"

#define SEED       "FAKE_GPU_SEED"          /* no KELP_: kelp train keeps those from workers */
#define RECORDINGS "FAKE_GPU_RECORDINGS"    /* 0: not supported */
#define LAYOUT     "FAKE_GPU_CHANNELS_LAST" /* 0: images have channels first */

/* "worker-1 100 FILE": if this process is that worker, its GPU is lost after so many waits, and
 * FILE is created. While FILE exists, that worker finds no GPU. */
#define LOST "FAKE_GPU_LOST"

/* "worker-1 65536": other processes use all of that worker's GPU memory except so many bytes. */
#define LEFT "FAKE_GPU_LEFT"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct kelp_error no_seed; /* what is wrong with the seed */

static char lost_file[4096]; /* "": this process loses no GPU */

static void make_lost_file(void)
{
    const int fd = open(lost_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* Is one of this process's arguments that word? */
static bool has_argument(const char *word)
{
    char text[65536] = "";
    FILE *file = fopen("/proc/self/cmdline", "re");
    const size_t bytes = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    bool found = false;
    for (size_t at = 0; at < bytes; at += strlen(text + at) + 1) {
        found = found || strcmp(text + at, word) == 0;
    }
    if (file) {
        (void)fclose(file);
    }
    return found;
}

static void read_lost(void)
{
    const char *text = getenv(LOST);
    char worker[64], path[sizeof(lost_file)];
    unsigned long waits = 0;
    if (!text) {
        return;
    }
    if (sscanf(text, "%63s %lu %4095s", worker, &waits, path) != 3) {
        (void)kelp_fail(&no_seed, KELP_ERR_INVALID, LOST "=%s: WORKER WAITS FILE is meant", text);
    } else if (has_argument(worker)) {
        (void)snprintf(lost_file, sizeof(lost_file), "%s", path);
        fake_device_lose(waits, make_lost_file);
    }
}

static void read_left(void)
{
    const char *text = getenv(LEFT);
    char worker[64];
    unsigned long bytes = 0;
    if (text && sscanf(text, "%63s %lu", worker, &bytes) != 2) {
        (void)kelp_fail(&no_seed, KELP_ERR_INVALID, LEFT "=%s: WORKER BYTES is meant", text);
    } else if (text && has_argument(worker)) {
        fake_device_leave(bytes);
    }
}

static void read_environment(void)
{
    read_lost();
    read_left();
    const char *recordings = getenv(RECORDINGS), *layout = getenv(LAYOUT), *text = getenv(SEED);
    fake_device_offer_recordings(!recordings || strcmp(recordings, "0") != 0);
    fake_device_take_channels_last(!layout || strcmp(layout, "0") != 0);
    char *end = NULL;
    if (!text) {
        return;
    }
    errno = 0;
    const unsigned long long seed = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9') {
        (void)kelp_fail(&no_seed, KELP_ERR_INVALID, SEED "=%s: a whole number is meant", text);
        return;
    }
    fake_device_seed(seed);
}

kelp_status kelp_cuda_entry(uint32_t index, struct kelp_device **ret, struct kelp_error *reterr)
{
    if (index != 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "GPU %u: this machine has 1, from 0 on",
                         index);
    }
    (void)pthread_once(&once, read_environment);
    if (lost_file[0] != '\0' && access(lost_file, F_OK) == 0) {
        return kelp_fail(reterr, KELP_ERR_NOT_FOUND, "GPU 0: this machine has none");
    }
    return no_seed.status == KELP_OK ? fake_device_create(ret, reterr)
                                     : kelp_fail(reterr, no_seed.status, "%s", no_seed.text);
}

void kelp_cuda_leave(void)
{
}
