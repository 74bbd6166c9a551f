#include "worker/data/data_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/environment.h"
#include "common/base/files.h"

#define READ_BYTES (1u << 20)

void kelp_data_cache_add_number(struct kelp_digest *key, uint64_t number)
{
    kelp_digest_update(key, &number, sizeof(number));
}

void kelp_data_cache_add_text(struct kelp_digest *key, const char *text)
{
    kelp_digest_update(key, text, strlen(text) + 1);
}

static kelp_status add_bytes(struct kelp_digest *key, int fd, const char *path, char *buffer,
                             struct kelp_error *reterr)
{
    uint64_t total = 0;
    for (;;) {
        ssize_t got = read(fd, buffer, READ_BYTES);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return kelp_files_error(errno, "read", path, reterr);
        }
        if (got == 0) {
            kelp_data_cache_add_number(key, total);
            return KELP_OK;
        }
        kelp_digest_update(key, buffer, (size_t)got);
        total += (uint64_t)got;
    }
}

kelp_status kelp_data_cache_add_file(struct kelp_digest *key, const char *path,
                                     struct kelp_error *reterr)
{
    int fd = -1;
    kelp_status status = kelp_files_open(path, 0, &fd, NULL, reterr);
    if (status != KELP_OK) {
        return status;
    }
    char *buffer = malloc(READ_BYTES);
    status = buffer ? add_bytes(key, fd, path, buffer, reterr)
                    : kelp_fail(reterr, KELP_ERR_NO_MEMORY, "%s: out of memory", path);
    free(buffer);
    (void)close(fd); /* it was only read */
    return status;
}

kelp_status kelp_data_cache_open(struct kelp_data_cache *cache, const struct kelp_job *job,
                                 const struct kelp_digest *key, struct kelp_error *reterr)
{
    *cache = (struct kelp_data_cache){0};
    bool named = job->data.cache[0] != '\0';
    if (named) {
        memcpy(cache->folder, job->data.cache, strlen(job->data.cache) + 1);
    } else if (!kelp_environment_cache(cache->folder, sizeof(cache->folder))) {
        return KELP_OK;
    }
    kelp_status status = kelp_files_make_folder(cache->folder, named ? reterr : NULL);
    if (status != KELP_OK) {
        kelp_error_prefix(named ? reterr : NULL, "data.cache");
        return named ? status : KELP_OK;
    }
    if (access(cache->folder, W_OK) != 0) {
        return named ? kelp_fail(reterr, KELP_ERR_IO, "data.cache: cannot write in %s: %s",
                                 cache->folder, strerror(errno))
                     : KELP_OK;
    }
    char hex[KELP_DIGEST_HEX_BYTES];
    kelp_digest_hex(key, hex);
    (void)snprintf(cache->path, sizeof(cache->path), "%s/%s.prepared", cache->folder, hex);
    cache->usable = true;
    return KELP_OK;
}
