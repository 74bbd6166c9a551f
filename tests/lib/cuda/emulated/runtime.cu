/*
 * Kernels as fibers. A fiber runs one thread of a block after the other, until one comes to a
 * barrier: then it waits there, and another fiber goes on with the threads that are left. So a
 * kernel without barriers takes one fiber and no switch.
 */
#include "tests/lib/cuda/emulated/cuda_runtime.h"
#include "tests/lib/cuda/emulated/races.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" {
#include "tests/lib/cuda/emulated_device.h"
}

#define STACK_BYTES ((size_t)128 << 10)
/* Stacks begin a few lines of the cache after each other: whole pages apart, what is used of them
 * would have the same few sets of it. */
#define STACK_STEP  ((size_t)17 * 64)
#define STACK_STEPS 30u
#define WARP        32u

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace kelp_emulated {

/* swapcontext() asks the kernel for the mask of signals each time. The compiler's own jumps do not,
 * take a few instructions, and are not seen by AddressSanitizer, which takes longjmp() for the end
 * of the stack's frames. */
typedef void *jump_mark[5];
#define SET_MARK  __builtin_setjmp
#define JUMP_BACK __builtin_longjmp

/* A stack, and where it goes on. */
struct place {
    ucontext_t context;
    jump_mark mark;
    bool begun = false; /* `mark` is set */
};

struct fiber : place {
    char *stack;                /* STACK_BYTES of them */
    void *fake_stack = nullptr; /* AddressSanitizer's */
    unsigned int thread = 0;
    bool waits = false; /* in meet(); otherwise it ran out of threads */
};

/* A thread that waits in meet(). */
struct waiting {
    bool here = false;
    enum operation operation = SYNC_BLOCK;
    uint64_t value = 0;
    unsigned int which = 0;
    struct fiber *fiber = nullptr;
};

static std::mutex one_launch;
struct launch_state {
    body_function body;
    void *arguments;
    std::vector<struct fiber *> idle; /* all fibers, while none runs */
    std::vector<unsigned int> order;  /* of threads; those from `next` on have not begun */
    unsigned int next, threads, ended;
    std::vector<struct waiting> waiting; /* by thread */
    std::vector<struct fiber *> ready;
    struct fiber *now;
    struct place scheduler;
    void *scheduler_fake_stack;
    const void *scheduler_stack;
    size_t scheduler_stack_bytes;
    bool drawn; /* otherwise ascending */
    uint64_t draws;
};
/* Never destroyed: fibers are not unwound. */
static struct launch_state &state = *new struct launch_state();

static uint32_t draw(uint32_t below)
{
    state.draws += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t h = state.draws;
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)((h >> 32) * below >> 32);
}

static void shuffle(std::vector<unsigned int> *numbers, unsigned int count)
{
    numbers->resize(count);
    for (unsigned int i = 0; i < count; i++) {
        (*numbers)[i] = i;
    }
    for (unsigned int i = count; state.drawn && i > 1; i--) {
        std::swap((*numbers)[i - 1], (*numbers)[draw(i)]);
    }
}

[[noreturn]] static void fail(const char *what)
{
    fprintf(stderr, "emulated kernel: block %u of %u: %s\n", blockIdx.x, gridDim.x, what);
    abort();
}

/* ---- switches -------------------------------------------------------------------------------- */

__attribute__((noinline, no_sanitize("address"))) static void switch_to(struct place *from,
                                                                        struct place *to)
{
    if (SET_MARK(from->mark) == 0) {
        if (to->begun) {
            JUMP_BACK(to->mark, 1);
        }
        to->begun = true;
        setcontext(&to->context);
    }
}

static void enter_scheduler(struct fiber *fiber)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber->fake_stack, state.scheduler_stack,
                                   state.scheduler_stack_bytes);
#endif
    switch_to(fiber, &state.scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber->fake_stack, &state.scheduler_stack,
                                    &state.scheduler_stack_bytes);
#endif
}

static void run_threads(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &state.scheduler_stack, &state.scheduler_stack_bytes);
#endif
    struct fiber *self = state.now;
    for (;;) {
        while (state.next < state.threads) {
            self->thread = state.order[state.next++];
            threadIdx.x = self->thread;
            races_thread(self->thread, self->stack, STACK_BYTES);
            state.body(state.arguments);
            state.ended++;
        }
        self->waits = false;
        enter_scheduler(self);
    }
}

static struct fiber *new_fiber(void)
{
    static unsigned int count;
    struct fiber *fiber = new struct fiber;
    fiber->stack = new char[STACK_BYTES]; /* as it is: most of it is never touched */
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES - count++ % STACK_STEPS * STACK_STEP;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, run_threads, 0);
    return fiber;
}

static void resume(struct fiber *fiber)
{
    state.now = fiber;
    state.scheduler.begun = true;
    threadIdx.x = fiber->thread;
    races_thread(fiber->thread, fiber->stack, STACK_BYTES);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&state.scheduler_fake_stack, fiber->stack, STACK_BYTES);
#endif
    switch_to(&state.scheduler, fiber);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(state.scheduler_fake_stack, nullptr, nullptr);
#endif
    races_stop();
    if (!fiber->waits) {
        state.idle.push_back(fiber);
    }
}

uint64_t meet(enum operation operation, uint64_t value, unsigned int which)
{
    struct fiber *self = state.now;
    const unsigned int thread = self->thread;
    self->waits = true;
    state.waiting[thread] = {true, operation, value, which, self};
    enter_scheduler(self);
    return state.waiting[thread].value;
}

void sync(enum operation operation, const char *file, int line)
{
    if (!races_removed(file, (unsigned int)line, operation == SYNC_WARP)) {
        (void)meet(operation, 0, 0);
    }
}

/* ---- meetings -------------------------------------------------------------------------------- */

static uint64_t result_of(const struct waiting *lanes, unsigned int lane, uint64_t ballot)
{
    const unsigned int which = lanes[lane].which;
    unsigned int from = lane;
    switch (lanes[lane].operation) {
    case BALLOT:
        return ballot;
    case SHUFFLE_XOR:
        from = lane ^ which;
        break;
    case SHUFFLE_DOWN:
        from = lane + which < WARP ? lane + which : lane;
        break;
    case SHUFFLE_UP:
        from = lane >= which ? lane - which : lane;
        break;
    case SHUFFLE:
        from = which % WARP;
        break;
    case SYNC_BLOCK:
    case SYNC_WARP:
    case TOGETHER:
        break;
    }
    return lanes[from % WARP].value;
}

static void run_together(const struct waiting *lanes)
{
    struct together *all[WARP];
    for (unsigned int i = 0; i < WARP; i++) {
        all[i] = reinterpret_cast<struct together *>(lanes[i].value);
    }
    all[0]->run(all);
}

/* Whether the lanes of the warp are all at one operation of a warp; they go on then. */
static bool meet_warp(unsigned int warp)
{
    struct waiting *lanes = &state.waiting[warp * WARP];
    uint64_t ballot = 0, results[WARP];
    for (unsigned int i = 0; i < WARP; i++) {
        if (!lanes[i].here || lanes[i].operation == SYNC_BLOCK) {
            return false;
        }
        if (lanes[i].operation != lanes[0].operation) {
            fail("the lanes of a warp are at different operations");
        }
        ballot |= lanes[i].value << i;
    }
    if (lanes[0].operation == TOGETHER) {
        run_together(lanes);
    }
    for (unsigned int i = 0; i < WARP; i++) {
        results[i] = result_of(lanes, i, ballot);
    }
    if (lanes[0].operation == SYNC_WARP) {
        races_warp_met(warp);
    }
    for (unsigned int i = 0; i < WARP; i++) {
        lanes[i].here = false;
        lanes[i].value = results[i];
        state.ready.push_back(lanes[i].fiber);
    }
    return true;
}

static bool meet_block(void)
{
    for (const struct waiting &thread : state.waiting) {
        if (!thread.here || thread.operation != SYNC_BLOCK) {
            return false;
        }
    }
    races_block_met();
    for (struct waiting &thread : state.waiting) {
        thread.here = false;
        state.ready.push_back(thread.fiber);
    }
    return true;
}

/* ---- launches -------------------------------------------------------------------------------- */

static void run_block(void)
{
    shuffle(&state.order, state.threads);
    races_block(blockIdx.x);
    state.next = 0;
    state.ended = 0;
    state.waiting.assign(state.threads, {});
    while (state.ended < state.threads) {
        if (state.next < state.threads) {
            if (state.idle.empty()) {
                state.idle.push_back(new_fiber());
            }
            struct fiber *fiber = state.idle.back();
            state.idle.pop_back();
            resume(fiber);
        } else if (!state.ready.empty()) {
            if (state.drawn) {
                std::swap(state.ready[draw((uint32_t)state.ready.size())], state.ready.back());
            }
            struct fiber *fiber = state.ready.back();
            state.ready.pop_back();
            resume(fiber);
        } else {
            bool moves = meet_block();
            for (unsigned int warp = 0; warp < state.threads / WARP; warp++) {
                moves = meet_warp(warp) || moves;
            }
            if (!moves) {
                fail("threads wait for others that do not come to their barrier");
            }
        }
    }
}

void run(const char *name, unsigned int blocks, unsigned int threads, body_function body,
         void *arguments, size_t argument_bytes)
{
    const std::lock_guard<std::mutex> lock(one_launch);
    std::vector<unsigned int> order;
    if (threads % WARP != 0 || threads == 0 || threads > 1024) {
        fail("a block has a multiple of 32 threads, at most 1024");
    }
    state.body = body;
    state.arguments = arguments;
    state.threads = threads;
    gridDim.x = blocks;
    blockDim.x = threads;
    shuffle(&order, blocks);
    races_launch(name, arguments, argument_bytes);
    for (const unsigned int block : order) {
        blockIdx.x = block;
        run_block();
    }
}

} // namespace kelp_emulated

void kelp_cuda_emulated_order(uint64_t seed)
{
    const std::lock_guard<std::mutex> lock(kelp_emulated::one_launch);
    kelp_emulated::state.drawn = seed != 0;
    kelp_emulated::state.draws = seed * UINT64_C(0xD1342543DE82EF95);
}

/* ---- the runtime's calls --------------------------------------------------------------------- */

#define MEMORY_MAX ((size_t)8 << 30) /* bytes of one allocation: what the emulated device has */

struct kelp_emulated_stream {
    struct kelp_emulated_graph *captured; /* NULL: it is not */
};
struct kelp_emulated_graph {
    std::vector<std::function<void()>> nodes;
};
struct kelp_emulated_graph_exec {
    std::vector<std::function<void()>> nodes;
};

bool kelp_emulated::capture(cudaStream_t stream, const std::function<void()> &work)
{
    if (!stream->captured) {
        return false;
    }
    stream->captured->nodes.push_back(work);
    return true;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation           ? "out of memory"
           : error == cudaErrorStreamCaptureUnsupported ? "not while a stream is captured"
                                                        : "no error";
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation           ? "cudaErrorMemoryAllocation"
           : error == cudaErrorStreamCaptureUnsupported ? "cudaErrorStreamCaptureUnsupported"
                                                        : "cudaSuccess";
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int index)
{
    (void)index;
    const char *memory = getenv("KELP_EMULATED_MEMORY"); /* bytes */
    *properties = {9, 0, 1, memory ? static_cast<size_t>(strtoull(memory, nullptr, 10)) : 0};
    return cudaSuccess;
}

/* Of a worker, which gets no KELP_ variables: as if others had taken the rest. 0: not known. */
cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const char *memory = getenv("EMULATED_MEMORY_FREE"); /* bytes */
    *left = memory ? static_cast<size_t>(strtoull(memory, nullptr, 10)) : 0;
    *all = 0;
    return cudaSuccess;
}

/* The process's context: whatever works on the device makes one, which stays until a reset. Tests
 * of processes are told in a file. */
static std::atomic<bool> has_context;
static std::atomic<uint64_t> in_use; /* memory and streams */

static void tell_context(const char *what)
{
    const char *path = getenv("EMULATED_CONTEXTS");
    FILE *file = path ? fopen(path, "ae") : nullptr;
    if (file) {
        fprintf(file, "%d %s\n", static_cast<int>(getpid()), what);
        fclose(file);
    }
}

static void enter_context(void)
{
    if (!has_context.exchange(true)) {
        tell_context("enters");
    }
}

bool kelp_cuda_emulated_has_context(void)
{
    return has_context;
}

cudaError_t cudaSetDevice(int index)
{
    (void)index;
    enter_context();
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    if (in_use != 0) {
        fprintf(stderr, "emulated device: reset, with memory or streams in use\n");
        abort();
    }
    has_context = false;
    tell_context("leaves");
    return cudaSuccess;
}

static uint32_t overruns;
static size_t largest;

uint32_t kelp_cuda_emulated_overruns(void)
{
    return overruns;
}

uint64_t kelp_cuda_emulated_largest(void)
{
    const size_t ret = largest;
    largest = 0;
    return ret;
}

/* Memory of the device, NULL when there is not so much; and its end. */
#ifdef __SANITIZE_ADDRESS__ /* has guards of its own */
static void *memory_new(size_t bytes)
{
    void *memory = nullptr;
    return posix_memalign(&memory, 256, bytes) == 0 ? memory : nullptr;
}

static void memory_end(void *memory)
{
    free(memory);
}
#else
/* It lies between guards, whose first bytes say how large it is. */
#define GUARD      256u
#define GUARD_BYTE 0xa5

static void *memory_new(size_t bytes)
{
    void *all = nullptr;
    if (posix_memalign(&all, 256, bytes + 2 * GUARD) != 0) {
        return nullptr;
    }
    unsigned char *begin = static_cast<unsigned char *>(all) + GUARD;
    memset(all, GUARD_BYTE, GUARD);
    memset(begin + bytes, GUARD_BYTE, GUARD);
    memcpy(all, &bytes, sizeof(bytes));
    return begin;
}

static bool is_whole(const unsigned char *guard, size_t begin)
{
    for (size_t i = begin; i < GUARD; i++) {
        if (guard[i] != GUARD_BYTE) {
            return false;
        }
    }
    return true;
}

static void memory_end(void *memory)
{
    if (!memory) {
        return;
    }
    unsigned char *begin = static_cast<unsigned char *>(memory);
    size_t bytes = 0;
    memcpy(&bytes, begin - GUARD, sizeof(bytes));
    if (bytes > MEMORY_MAX || !is_whole(begin - GUARD, sizeof(bytes)) ||
        !is_whole(begin + bytes, 0)) {
        overruns++;
    }
    free(begin - GUARD);
}
#endif

/* Of the device, or pinned. */
static cudaError_t allocate(void **memory, size_t bytes)
{
    void *all = bytes <= MEMORY_MAX ? memory_new(bytes) : nullptr;
    if (!all) {
        return cudaErrorMemoryAllocation;
    }
    memset(all, 0xff, bytes); /* NaN */
    enter_context();
    in_use++;
    largest = bytes > largest ? bytes : largest;
    *memory = all;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const cudaError_t error = allocate(memory, bytes);
    if (error == cudaSuccess) {
        kelp_emulated::races_memory(*memory, bytes);
    }
    return error;
}

cudaError_t cudaFree(void *memory)
{
    kelp_emulated::races_freed(memory);
    in_use -= memory ? 1 : 0;
    memory_end(memory);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    return allocate(memory, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    in_use -= memory ? 1 : 0;
    memory_end(memory);
    return cudaSuccess;
}

static void do_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    kelp_emulated::races_written(to, bytes);
}

static void do_set(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    kelp_emulated::races_written(to, bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    if (stream->captured && kind != cudaMemcpyDeviceToDevice) {
        return cudaErrorStreamCaptureUnsupported;
    }
    if (!kelp_emulated::capture(stream, [=] { do_copy(to, from, bytes); })) {
        do_copy(to, from, bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    if (!kelp_emulated::capture(stream, [=] { do_set(to, value, bytes); })) {
        do_set(to, value, bytes);
    }
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    (void)flags;
    *stream = new kelp_emulated_stream{nullptr};
    enter_context();
    in_use++;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return stream->captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream;
    in_use--;
    return cudaSuccess;
}

/* All that comes before it is done already. */
struct kelp_emulated_event {
    uint64_t place; /* among all that were recorded */
};
static uint64_t recorded, waited;

uint64_t kelp_cuda_emulated_waited(void)
{
    return waited;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    (void)flags;
    *event = new kelp_emulated_event{0};
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    (void)stream;
    event->place = ++recorded;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    waited = event->place;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)event;
    (void)flags;
    return stream->captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    if (stream->captured) {
        return cudaErrorStreamCaptureUnsupported;
    }
    stream->captured = new kelp_emulated_graph{};
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = stream->captured;
    stream->captured = nullptr;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    (void)nodes;
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = new kelp_emulated_graph_exec{graph->nodes};
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (stream->captured) {
        return cudaErrorStreamCaptureUnsupported;
    }
    for (const std::function<void()> &node : exec->nodes) {
        node();
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}
