#include "worker/model/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/files.h"
#include "common/base/sha256.h"
#include "common/tensors/digest.h"
#include "worker/model/limits.h"

#define SYMBOL "kelp_model_plugin"

kelp_status kelp__plugin_digest(const char *path, uint64_t *ret_digest, struct kelp_error *reterr)
{
    char *bytes = NULL;
    size_t count = 0;
    const kelp_status status = kelp_files_read(path, KELP_PLUGIN_BYTES_MAX, &bytes, &count, reterr);
    if (status != KELP_OK) {
        kelp_error_prefix(reterr, "model.plugin");
        return status;
    }
    *ret_digest = kelp_digest_bytes(bytes, count);
    free(bytes);
    return KELP_OK;
}

/* ---- what the job gives ---------------------------------------------------------------------- */

static void describe_tensor(const struct kelp_sample_tensor *from, struct kelp_model_tensor *to)
{
    *to = (struct kelp_model_tensor){.size = sizeof(*to),
                                     .rank = from->rank,
                                     .dims = from->dims,
                                     .vocab_count = from->vocab_count,
                                     .vocab = from->vocab};
}

/* Parse lines of "name=value". False: a line is malformed, and the failure is in the graph. */
static bool read_params(struct kelp_model_builder *b, const char *texts)
{
    (void)snprintf(b->text, sizeof(b->text), "%s", texts);
    for (char *rest = b->text; rest && *rest != '\0';) {
        char *line = strsep(&rest, "\n");
        char *equals = strchr(line, '=');
        if (!equals || equals == line) {
            (void)kelp_graph_fail(b->graph, KELP_ERR_INVALID,
                                  "model.params: '%s' is not of the form name=value", line);
            return false;
        }
        if (b->param_count == KELP__PLUGIN_PARAMS_MAX) {
            (void)kelp_graph_fail(b->graph, KELP_ERR_LIMIT, "model.params: more than %d",
                                  KELP__PLUGIN_PARAMS_MAX);
            return false;
        }
        *equals = '\0';
        b->params[b->param_count++] =
            (struct kelp__plugin_param){.name = line, .value = equals + 1};
    }
    return true;
}

/* A parameter that the library never asked for is a misspelt name. */
static uint32_t refuse_idle_params(struct kelp_model_builder *b, uint32_t output)
{
    for (uint32_t i = 0; i < b->param_count; i++) {
        if (!b->params[i].asked_for) {
            return kelp_graph_fail(b->graph, KELP_ERR_INVALID,
                                   "model.params: '%s' is a parameter that the model does not use",
                                   b->params[i].name);
        }
    }
    return output;
}

/* ---- the library ----------------------------------------------------------------------------- */

/* Does the file contain all segments that the loader will map? The loader does not check that,
 * and access beyond the end kills the process. */
static bool is_whole(const char *bytes, size_t count)
{
    ElfW(Ehdr) header;
    if (count < sizeof(header) || memcmp(bytes, ELFMAG, SELFMAG) != 0) {
        return false;
    }
    memcpy(&header, bytes, sizeof(header));
    for (uint32_t i = 0; i < header.e_phnum; i++) {
        ElfW(Phdr) segment;
        if (header.e_phentsize != sizeof(segment) || header.e_phoff > count ||
            (count - header.e_phoff) / sizeof(segment) <= i) {
            return false;
        }
        memcpy(&segment, bytes + header.e_phoff + i * sizeof(segment), sizeof(segment));
        if (segment.p_type == PT_LOAD &&
            (segment.p_filesz > count || segment.p_offset > count - segment.p_filesz)) {
            return false;
        }
    }
    return true;
}

/* Compare the library with model.plugin_sha256, if the job gives it. */
static kelp_status check_sha256(const struct kelp_job *job, const char *bytes, size_t count,
                                struct kelp_error *reterr)
{
    char actual[KELP_SHA256_HEX_BYTES];

    if (job->model.plugin_sha256[0] == '\0') {
        return KELP_OK;
    }
    const kelp_status status = kelp_sha256(bytes, count, actual, reterr);
    if (status != KELP_OK || strcmp(actual, job->model.plugin_sha256) == 0) {
        return status;
    }
    return kelp_fail(reterr, KELP_ERR_MISMATCH,
                     "%.200s has the SHA-256 %s, but model.plugin_sha256 is %s", job->model.plugin,
                     actual, job->model.plugin_sha256);
}

/* The library's bytes, owned; NULL with the failure in the graph. */
static char *read_library(struct kelp_graph *graph, const struct kelp_job *job, size_t *ret_count)
{
    const char *path = job->model.plugin;
    struct kelp_error error;
    char *bytes = NULL;

    kelp_status status = kelp_files_read(path, KELP_PLUGIN_BYTES_MAX, &bytes, ret_count, &error);
    if (status == KELP_OK && !is_whole(bytes, *ret_count)) {
        status =
            kelp_fail(&error, KELP_ERR_INVALID, "%s is not a shared library, or is cut off", path);
    }
    if (status == KELP_OK) {
        status = check_sha256(job, bytes, *ret_count, &error);
    }
    if (status == KELP_OK) {
        return bytes;
    }
    (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "model.plugin: %s", error.text);
    free(bytes);
    return NULL;
}

/* A file in memory with these bytes that nobody can change. -1: errno tells why not. */
static int seal(const char *bytes, size_t count)
{
    int fd = memfd_create("kelp-plugin", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 &&
        (!kelp_files_write_all(fd, bytes, count) ||
         fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)) {
        const int error = errno;
        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

#define NAME_BYTES (KELP_JOB_PATH_MAX + 3)

/* The loader identifies a library by its name, and some libraries stay loaded after they are
 * closed, so a descriptor with a new name is used. -1: errno tells why; *fd is closed. */
static int name_sealed(int fd, char name[NAME_BYTES])
{
    for (;;) {
        (void)snprintf(name, NAME_BYTES, "/proc/self/fd/%d", fd);
        void *other = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (!other) {
            return fd;
        }
        (void)dlclose(other);
        const int next = fcntl(fd, F_DUPFD_CLOEXEC, fd + 1);
        const int error = errno;
        (void)close(fd);
        if (next < 0) {
            errno = error;
            return -1;
        }
        fd = next;
    }
}

/* The name that the loader opens. If the bytes were checked, it is a copy of them, since the
 * file may have changed. False: the failure is in the graph. *ret_fd must be closed; -1: none. */
static bool name_library(struct kelp_graph *graph, const struct kelp_job *job, const char *bytes,
                         size_t count, char name[NAME_BYTES], int *ret_fd)
{
    const char *path = job->model.plugin;

    *ret_fd = -1;
    if (job->model.plugin_sha256[0] == '\0') {
        /* The loader searches system folders for a name without '/', but the job means a file. */
        (void)snprintf(name, NAME_BYTES, "%s%s", !strchr(path, '/') ? "./" : "", path);
        return true;
    }
    *ret_fd = seal(bytes, count);
    if (*ret_fd >= 0) {
        *ret_fd = name_sealed(*ret_fd, name);
    }
    if (*ret_fd < 0) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "model.plugin: %s cannot be copied into memory: %s", path,
                              strerror(errno));
    }
    return *ret_fd >= 0;
}

/* Report the loader's error with the path from the job. */
static void fail_of_loader(struct kelp_graph *graph, const char *name, const char *path)
{
    const char *said = dlerror(); /* NOLINT(concurrency-mt-unsafe): the loader's own */
    const size_t length = strlen(name);

    said = said ? said : "";
    const bool named = strncmp(said, name, length) == 0;
    (void)kelp_graph_fail(graph, KELP_ERR_INVALID, "model.plugin: %s%s", named ? path : "",
                          named ? said + length : said);
}

/* The caller owns it (dlclose()); NULL: the failure is in the graph. */
static void *open_library(struct kelp_graph *graph, const struct kelp_job *job)
{
    char name[NAME_BYTES];
    void *library = NULL;
    size_t count = 0;
    int fd = -1;

    char *bytes = read_library(graph, job, &count);
    if (bytes && name_library(graph, job, bytes, count, name, &fd)) {
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            fail_of_loader(graph, name, job->model.plugin);
        }
    }
    if (fd >= 0) {
        (void)close(fd); /* the library stays mapped */
    }
    free(bytes);
    return library;
}

static const struct kelp_model_plugin *find_plugin(struct kelp_graph *graph, void *library,
                                                   const char *path)
{
    const struct kelp_model_plugin *plugin = dlsym(library, SYMBOL);
    if (!plugin) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "model.plugin: %s: no symbol '" SYMBOL
                              "': a model ends with KELP_MODEL(name, function)",
                              path);
        return NULL;
    }
    if (plugin->abi != KELP_MODEL_ABI) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "model.plugin: %s: built for ABI %u of kelp/model.h, this Kelp has "
                              "%u: build it with this Kelp's header",
                              path, plugin->abi, KELP_MODEL_ABI);
        return NULL;
    }
    if (plugin->size < sizeof(*plugin) || !plugin->build || !plugin->name) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "model.plugin: %s: '" SYMBOL "' is incomplete", path);
        return NULL;
    }
    if (plugin->api_size > sizeof(struct kelp_model_api)) {
        (void)kelp_graph_fail(graph, KELP_ERR_INVALID,
                              "model.plugin: %s: built for a newer Kelp, whose models have more "
                              "functions to call",
                              path);
        return NULL;
    }
    return plugin;
}

uint32_t kelp__plugin_build(struct kelp_graph *graph, const struct kelp_job *job,
                            const struct kelp_sample_shape *shape, struct kelp_shape *ret_target)
{
    struct kelp_model_builder *b = calloc(1, sizeof(*b));
    if (!b) {
        return kelp_graph_fail(graph, KELP_ERR_NO_MEMORY, "out of memory");
    }
    b->graph = graph;
    b->shape = shape;
    for (uint32_t i = 0; i < shape->input_count; i++) {
        describe_tensor(&shape->inputs[i], &b->inputs[i]);
    }
    describe_tensor(&shape->target, &b->target);
    ret_target->rank = shape->target.rank;
    memcpy(ret_target->dims, shape->target.dims, sizeof(shape->target.dims));
    uint32_t output = KELP_GRAPH_NONE;
    void *library = read_params(b, job->model.params) ? open_library(graph, job) : NULL;
    const struct kelp_model_plugin *plugin =
        library ? find_plugin(graph, library, job->model.plugin) : NULL;
    if (plugin) {
        output = refuse_idle_params(b, plugin->build(&kelp__plugin_api, b));
    }
    if (library) {
        (void)dlclose(library); /* nothing of it is used after the graph is built */
    }
    free(b);
    return output;
}
