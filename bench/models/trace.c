#include "bench/models/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef KELP_BENCH_CUPTI

bool trace_begin(void)
{
    static bool said;
    if (!said) {
        printf("kernels are not traced: built without CUPTI\n");
        said = true;
    }
    return false;
}

void trace_forget(void)
{
}

void trace_end(struct trace *ret)
{
    *ret = (struct trace){0};
}

void trace_fini(struct trace *trace)
{
    (void)trace;
}

#else

#include <cupti.h>
#include <dlfcn.h>
#include <pthread.h>

#define BUFFER_BYTES ((size_t)8 << 20)

#define TEXT_OF(number)  TEXT_OF_(number)
#define TEXT_OF_(number) #number
#if CUDA_VERSION >= 13000
#define LIBRARY_NAME "libcupti.so.13"
#else
#define LIBRARY_NAME "libcupti.so.12"
#endif

#define FUNCTIONS(X)                                                                               \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityGetNumDroppedRecords)                                                           \
    X(cuptiGetResultString)

static struct {
    bool tried, there;
#define ENTRY(name) __typeof__(&(name)) name;
    FUNCTIONS(ENTRY)
#undef ENTRY
} cupti;

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

struct span {
    uint64_t begin_ns, end_ns;
    const char *kernel; /* CUPTI's name of it, which stays; NULL: no kernel */
};

static struct {
    pthread_mutex_t lock; /* CUPTI brings records from a thread of its own */
    struct span *spans;
    size_t count, space;
    uint64_t lost;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the library ---- */

static bool fails(const char *what, const char *why)
{
    printf("kernels are not traced: %s: %s\n", what, why);
    return false;
}

static bool works(CUptiResult result, const char *what)
{
    const char *text = "an unknown error";
    if (result == CUPTI_SUCCESS) {
        return true;
    }
    (void)cupti.cuptiGetResultString(result, &text);
    return fails(what, text);
}

static void *memory(void *given)
{
    if (!given) { /* not by Check: CUPTI's thread is not a test's */
        (void)fprintf(stderr, "models: out of memory\n");
        exit(1);
    }
    return given;
}

static void buffer_wanted(uint8_t **buffer, size_t *size, size_t *records_max)
{
    *buffer = memory(aligned_alloc(8, BUFFER_BYTES));
    *size = BUFFER_BYTES;
    *records_max = 0; /* as many as fit */
}

static void add_span(uint64_t begin_ns, uint64_t end_ns, const char *kernel)
{
    if (begin_ns == 0 || end_ns < begin_ns) { /* CUPTI has no times of it */
        seen.lost++;
        return;
    }
    if (seen.count == seen.space) {
        seen.space = seen.space > 0 ? 2 * seen.space : 4096;
        seen.spans = memory(realloc(seen.spans, seen.space * sizeof(*seen.spans)));
    }
    seen.spans[seen.count++] = (struct span){begin_ns, end_ns, kernel};
}

static void add_record(const CUpti_Activity *record)
{
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *kernel = (const void *)record;
        add_span(kernel->start, kernel->end, kernel->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *copy = (const void *)record;
        add_span(copy->start, copy->end, NULL);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *set = (const void *)record;
        add_span(set->start, set->end, NULL);
    }
}

static void buffer_full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                        size_t used)
{
    CUpti_Activity *record = NULL;
    size_t lost = 0;
    (void)size;
    (void)pthread_mutex_lock(&seen.lock);
    while (used > 0 && cupti.cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
        add_record(record);
    }
    if (cupti.cuptiActivityGetNumDroppedRecords(context, stream, &lost) == CUPTI_SUCCESS) {
        seen.lost += lost;
    }
    (void)pthread_mutex_unlock(&seen.lock);
    free(buffer);
}

static bool load(void)
{
    static const char *const places[] = {LIBRARY_NAME, "/usr/local/cuda/lib64/" LIBRARY_NAME,
                                         "/usr/local/cuda/extras/CUPTI/lib64/" LIBRARY_NAME};
    void *library = NULL;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !library; i++) {
        library = dlopen(places[i], RTLD_NOW);
    }
    if (!library) {
        return fails(LIBRARY_NAME, "neither on the path of libraries nor in /usr/local/cuda");
    }
#define LOAD(name)                                                                                 \
    *(void **)&cupti.name = dlsym(library, #name);                                                 \
    if (!cupti.name) {                                                                             \
        return fails(LIBRARY_NAME, "it lacks " #name);                                             \
    }
    FUNCTIONS(LOAD)
#undef LOAD
    return works(cupti.cuptiActivityRegisterCallbacks(buffer_wanted, buffer_full), "CUPTI");
}

bool trace_begin(void)
{
    if (!cupti.tried) {
        cupti.tried = true;
        cupti.there = load();
    }
    for (size_t i = 0; cupti.there && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        cupti.there = works(cupti.cuptiActivityEnable(kinds[i]), "CUPTI's kernels");
    }
    return cupti.there;
}

/* Everything that has ended is seen then. */
static void flush(void)
{
    (void)works(cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "CUPTI's records");
}

void trace_forget(void)
{
    flush();
    (void)pthread_mutex_lock(&seen.lock);
    seen.count = 0;
    seen.lost = 0;
    (void)pthread_mutex_unlock(&seen.lock);
}

/* ---- what was seen ---- */

static int by_begin(const void *one, const void *other)
{
    const struct span *a = one, *b = other;
    return a->begin_ns != b->begin_ns ? (a->begin_ns < b->begin_ns ? -1 : 1) : 0;
}

/* Of spans by their begin: the seconds in which at least one runs. */
static double union_of(const struct span *spans, size_t count, bool kernels_alone)
{
    uint64_t sum_ns = 0, until_ns = 0;
    for (size_t i = 0; i < count; i++) {
        if (kernels_alone && !spans[i].kernel) {
            continue;
        }
        const uint64_t begin_ns = spans[i].begin_ns > until_ns ? spans[i].begin_ns : until_ns;
        if (spans[i].end_ns > begin_ns) {
            sum_ns += spans[i].end_ns - begin_ns;
            until_ns = spans[i].end_ns;
        }
    }
    return 1e-9 * (double)sum_ns;
}

/* As C++ writes it. */
static char *readable(const char *name)
{
    char *(*demangle)(const char *, char *, size_t *, int *) = NULL;
    int status = -1;
    *(void **)&demangle = dlsym(RTLD_DEFAULT, "__cxa_demangle");
    char *text = demangle ? demangle(name, NULL, NULL, &status) : NULL;
    return text ? text : memory(strdup(name));
}

static struct trace_kernel *named(struct trace *trace, const char *name)
{
    for (size_t i = 0; i < trace->count; i++) {
        if (strcmp(trace->by_name[i].name, name) == 0) {
            return &trace->by_name[i];
        }
    }
    trace->by_name = memory(realloc(trace->by_name, (trace->count + 1) * sizeof(*trace->by_name)));
    trace->by_name[trace->count] = (struct trace_kernel){.name = memory(strdup(name))};
    return &trace->by_name[trace->count++];
}

static int by_seconds(const void *one, const void *other)
{
    const struct trace_kernel *a = one, *b = other;
    return a->seconds != b->seconds ? (a->seconds > b->seconds ? -1 : 1) : 0;
}

static void add_up(struct trace *trace)
{
    uint64_t end_ns = 0;
    qsort(seen.spans, seen.count, sizeof(*seen.spans), by_begin);
    for (size_t i = 0; i < seen.count; i++) {
        const struct span *span = &seen.spans[i];
        end_ns = span->end_ns > end_ns ? span->end_ns : end_ns;
        if (span->kernel) {
            struct trace_kernel *kernel = named(trace, span->kernel);
            kernel->count++;
            kernel->seconds += 1e-9 * (double)(span->end_ns - span->begin_ns);
        }
    }
    trace->window = 1e-9 * (double)(end_ns - seen.spans[0].begin_ns);
    trace->running = union_of(seen.spans, seen.count, false);
    trace->kernels = union_of(seen.spans, seen.count, true);
    qsort(trace->by_name, trace->count, sizeof(*trace->by_name), by_seconds);
    for (size_t i = 0; i < trace->count; i++) {
        char *name = readable(trace->by_name[i].name);
        free(trace->by_name[i].name);
        trace->by_name[i].name = name;
    }
}

void trace_end(struct trace *ret)
{
    *ret = (struct trace){0};
    flush();
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        (void)works(cupti.cuptiActivityDisable(kinds[i]), "CUPTI's end");
    }
    (void)pthread_mutex_lock(&seen.lock);
    if (seen.count > 0) {
        add_up(ret);
    }
    ret->lost = seen.lost;
    (void)pthread_mutex_unlock(&seen.lock);
}

void trace_fini(struct trace *trace)
{
    for (size_t i = 0; i < trace->count; i++) {
        free(trace->by_name[i].name);
    }
    free(trace->by_name);
    *trace = (struct trace){0};
}

#endif
