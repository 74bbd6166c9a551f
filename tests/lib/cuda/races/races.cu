/*
 * Races between a kernel's threads, and other accesses that a GPU does not forgive:
 * tests/lib/cuda/emulated_races.h.
 *
 * The compiler calls __tsan_read4() and the like before each access of a kernel. Two bytes of
 * memory have a cell with the last write and the reads since that matter. Blocks run one after the
 * other, so of earlier blocks a cell keeps only whether they read or wrote. Of the reads in one
 * interval between two barriers two are enough: a write by any third thread races with one of them.
 */
#include "tests/lib/cuda/emulated/cuda_runtime.h"
#include "tests/lib/cuda/emulated/races.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

extern "C" {
#include "tests/lib/cuda/emulated_races.h"
}

#define WARP         32u
#define WARPS_MOST   32u
#define GRANULE      2u /* bytes of a cell */
#define PAGE_BYTES   4096u
#define PAGE_CELLS   (PAGE_BYTES / GRANULE)
#define CACHED_PAGES 64u
#define PAGES_KEPT   1000u /* from launch to launch; a page of cells takes 80 KiB */

/* The program's own variables, a kernel's shared memory among them. */
extern "C" char __executable_start, __data_start, _end;

namespace kelp_emulated {

enum kind : uint8_t { NONE, READ, WRITE, ATOMIC };
enum : uint8_t { EARLIER_READ = 1, EARLIER_WRITE = 2, EARLIER_ATOMIC = 4 };

struct access {
    uint32_t code; /* bytes behind the program's begin */
    uint32_t interval;
    uint32_t warp_interval : 20, thread : 10, kind : 2;
};
struct cell {
    uint32_t launch, block; /* of what is in it */
    struct access write, read;
    uint32_t earlier_code;
    uint8_t earlier; /* what blocks did before this one */
    bool other_lane; /* of the warp of `read` one more read, in the same interval of the warp */
    bool other_warp; /* reads too, in the same interval of the block */
};
struct page {
    struct cell cells[PAGE_CELLS];
};

/* A write where another thread wrote: no race if it changes nothing. */
struct pending {
    bool there;
    const void *memory;
    std::vector<unsigned char> before;
    struct access one, other; /* other.kind NONE: a block before */
    const char *where;
};

/* Memory of the device. */
struct piece {
    uintptr_t begin, end;
    std::vector<bool> written; /* bytes that are not what cudaMalloc() left there */
};

struct barrier {
    const char *file;
    uint32_t line;
    bool warp;
    uint64_t reached;
};

static struct races_state {
    bool inside; /* a kernel's thread runs */
    const char *kernel;
    uint32_t launch, block, thread;
    uint32_t interval, warp_intervals[WARPS_MOST];
    uintptr_t stack, stack_end;
    uintptr_t arguments, arguments_end;       /* of the kernel: its threads copy them */
    std::map<uintptr_t, struct piece> memory; /* by where they begin */
    struct piece *last;                       /* where something was found last */
    std::unordered_map<uintptr_t, struct page *> pages;
    std::pair<uintptr_t, struct page *> cached[CACHED_PAGES];
    struct pending pending;
    std::vector<struct barrier> barriers;
    uint32_t removed = UINT32_MAX;
    void (*handler)(const char *text);
} &state = *new struct races_state();

/* ---- reports --------------------------------------------------------------------------------- */

/* other.kind NONE: by a block before. */
[[noreturn]] static void report(const struct access &one, const struct access &other,
                                const char *where)
{
    static const char *const now[] = {"", "reads", "writes", "changes"};
    static const char *const before[] = {"touched", "read", "wrote", "changed"};
    char text[1000], whose[40] = "another block";
    if (other.kind != NONE && other.thread != one.thread) {
        (void)snprintf(whose, sizeof(whose), "thread %u", other.thread);
    } else if (other.kind != NONE) { /* of several that read, the cell has only this one */
        (void)snprintf(whose, sizeof(whose), "another thread");
    }
    (void)snprintf(text, sizeof(text),
                   "%.400s: a race in %s memory: thread %u of block %u %s at %#x what %s %s at %#x "
                   "(addr2line -e %.300s)",
                   state.kernel, where, one.thread, state.block, now[one.kind], one.code, whose,
                   before[other.kind], other.code, program_invocation_name);
    state.inside = false;
    if (state.handler) {
        state.handler(text);
    }
    fprintf(stderr, "emulated kernel: %s\n", text);
    abort();
}

[[noreturn]] static void report_access(const struct access &now, const char *what)
{
    static const char *const does[] = {"", "reads", "writes", "changes"};
    char text[1000];
    (void)snprintf(text, sizeof(text),
                   "%.400s: thread %u of block %u %s at %#x %s (addr2line -e %.300s)", state.kernel,
                   now.thread, state.block, does[now.kind], now.code, what,
                   program_invocation_name);
    state.inside = false;
    if (state.handler) {
        state.handler(text);
    }
    fprintf(stderr, "emulated kernel: %s\n", text);
    abort();
}

static void settle(void)
{
    struct pending &pending = state.pending;
    if (pending.there) {
        pending.there = false;
        if (memcmp(pending.memory, pending.before.data(), pending.before.size()) != 0) {
            report(pending.one, pending.other, pending.where);
        }
    }
}

/* ---- cells ----------------------------------------------------------------------------------- */

static struct cell *find_cell(uintptr_t address)
{
    const uintptr_t number = address / PAGE_BYTES;
    std::pair<uintptr_t, struct page *> &cached = state.cached[number % CACHED_PAGES];
    if (cached.first != number || !cached.second) {
        struct page *&page = state.pages[number];
        if (!page) {
            page = new struct page();
        }
        cached = {number, page};
    }
    return &cached.second->cells[address % PAGE_BYTES / GRANULE];
}

static void begin_block(struct cell *cell, bool shared)
{
    if (cell->launch != state.launch || shared) {
        *cell = {};
        cell->launch = state.launch;
    } else {
        const uint32_t wrote = cell->write.kind;
        cell->earlier |= cell->read.kind == READ ? EARLIER_READ : 0;
        cell->earlier |= wrote == WRITE ? EARLIER_WRITE : wrote == ATOMIC ? EARLIER_ATOMIC : 0;
        cell->earlier_code = wrote != NONE             ? cell->write.code
                             : cell->read.kind == READ ? cell->read.code
                                                       : cell->earlier_code;
        cell->write = cell->read = {};
        cell->other_lane = cell->other_warp = false;
    }
    cell->block = state.block;
}

static bool ordered(const struct access &before, const struct access &now)
{
    return before.thread == now.thread || before.interval < now.interval ||
           (before.thread / WARP == now.thread / WARP && before.warp_interval < now.warp_interval);
}

static bool races_with_reads(const struct cell *cell, const struct access &now)
{
    const struct access &read = cell->read;
    if (read.kind == NONE || read.interval < now.interval) {
        return false;
    }
    if (cell->other_warp || read.thread / WARP != now.thread / WARP) {
        return true;
    }
    return read.warp_interval == now.warp_interval &&
           (cell->other_lane || read.thread != now.thread);
}

static void add_read(struct cell *cell, const struct access &now)
{
    struct access &read = cell->read;
    if (read.kind == NONE || read.interval < now.interval) {
        read = now;
        cell->other_lane = cell->other_warp = false;
    } else if (read.thread / WARP != now.thread / WARP) {
        cell->other_warp = true;
    } else if (read.warp_interval < now.warp_interval) {
        read = now;
        cell->other_lane = false;
    } else if (read.thread != now.thread) {
        cell->other_lane = true;
    }
}

/* True: now's write races with *ret_other if it changes anything. */
static bool check_cell(struct cell *cell, const struct access &now, bool shared,
                       struct access *ret_other)
{
    const char *where = shared ? "shared" : "global";
    bool pending = false;
    if (cell->launch != state.launch || cell->block != state.block) {
        begin_block(cell, shared);
    }
    const uint8_t wrong = now.kind == READ    ? EARLIER_WRITE | EARLIER_ATOMIC
                          : now.kind == WRITE ? EARLIER_READ | EARLIER_ATOMIC
                                              : EARLIER_READ | EARLIER_WRITE;
    if (cell->earlier & wrong) {
        report(now, {cell->earlier_code, 0, 0, 0, NONE}, where);
    }
    if (now.kind == WRITE && (cell->earlier & EARLIER_WRITE)) {
        *ret_other = {cell->earlier_code, 0, 0, 0, NONE};
        pending = true;
    }
    if (shared && now.kind != WRITE && cell->write.kind == NONE) {
        report_access(now, "shared memory that its block has not written");
    }
    const bool both_atomic = cell->write.kind == ATOMIC && now.kind == ATOMIC;
    if (cell->write.kind != NONE && !both_atomic && !ordered(cell->write, now)) {
        if (cell->write.kind != WRITE || now.kind != WRITE) {
            report(now, cell->write, where);
        }
        *ret_other = cell->write;
        pending = true;
    }
    if (now.kind == READ) {
        add_read(cell, now);
    } else {
        if (races_with_reads(cell, now)) {
            report(now, cell->read, where);
        }
        cell->write = now;
    }
    return pending;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The device's memory at an address; NULL: it is another's. */
static struct piece *find_piece(uintptr_t address)
{
    if (state.last && address >= state.last->begin && address < state.last->end) {
        return state.last;
    }
    std::map<uintptr_t, struct piece>::iterator next = state.memory.upper_bound(address);
    if (next == state.memory.begin() || address >= std::prev(next)->second.end) {
        return nullptr;
    }
    state.last = &std::prev(next)->second;
    return state.last;
}

static void look_at_piece(struct piece *piece, uintptr_t address, size_t bytes,
                          const struct access &now)
{
    if (address + bytes > piece->end) {
        report_access(now, "memory behind the end of a piece");
    }
    for (uintptr_t at = address - piece->begin; at < address - piece->begin + bytes; at++) {
        if (now.kind != WRITE && !piece->written[at]) {
            report_access(now, "global memory that nothing has written");
        }
        piece->written[at] = true;
    }
}

static bool is_within(uintptr_t address, const void *begin, const void *end)
{
    return address >= reinterpret_cast<uintptr_t>(begin) &&
           address < reinterpret_cast<uintptr_t>(end);
}

/* What only a thread itself sees, the numbers of threads and blocks, constants, and arguments. */
static bool is_own(uintptr_t address)
{
    return (address >= state.stack && address < state.stack_end) ||
           is_within(address, &threadIdx, &threadIdx + 1) ||
           is_within(address, &blockIdx, &blockIdx + 1) ||
           is_within(address, &blockDim, &blockDim + 1) ||
           is_within(address, &gridDim, &gridDim + 1) ||
           is_within(address, &__executable_start, &__data_start) ||
           (address >= state.arguments && address < state.arguments_end);
}

static void look_at(const void *memory, size_t bytes, enum kind kind, const void *code)
{
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const bool shared = is_within(address, &__data_start, &_end);
    settle();
    if (is_own(address)) {
        return;
    }
    const ptrdiff_t place = static_cast<const char *>(code) - 1 - &__executable_start;
    const struct access now = {static_cast<uint32_t>(place), state.interval,
                               state.warp_intervals[state.thread / WARP], state.thread, kind};
    struct piece *piece = shared ? nullptr : find_piece(address);
    if (piece) {
        look_at_piece(piece, address, bytes, now);
    } else if (!shared) {
        report_access(now, "memory of the host");
    }
    struct access other = {};
    bool pending = false;
    for (uintptr_t at = address / GRANULE * GRANULE; at < address + bytes; at += GRANULE) {
        pending = check_cell(find_cell(at), now, shared, &other) || pending;
    }
    if (pending) {
        const unsigned char *begin = static_cast<const unsigned char *>(memory);
        state.pending = {true, memory, {begin, begin + bytes},
                         now,  other,  shared ? "shared" : "global"};
    }
}

/* ---- what the runtime says ------------------------------------------------------------------- */

void races_launch(const char *kernel, const void *arguments, size_t bytes)
{
    state.kernel = kernel;
    state.arguments = reinterpret_cast<uintptr_t>(arguments);
    state.arguments_end = state.arguments + bytes;
    state.launch++;
    if (state.pages.size() > PAGES_KEPT) {
        for (const std::pair<const uintptr_t, struct page *> &page : state.pages) {
            delete page.second;
        }
        state.pages.clear();
        for (std::pair<uintptr_t, struct page *> &cached : state.cached) {
            cached = {0, nullptr};
        }
    }
}

void races_memory(const void *memory, size_t bytes)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    state.memory[begin] = {begin, begin + bytes, std::vector<bool>(bytes, false)};
    state.last = nullptr;
}

void races_freed(const void *memory)
{
    state.memory.erase(reinterpret_cast<uintptr_t>(memory));
    state.last = nullptr;
}

void races_written(const void *memory, size_t bytes)
{
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    struct piece *piece = find_piece(begin);
    if (piece) {
        const std::vector<bool>::iterator first =
            piece->written.begin() + static_cast<ptrdiff_t>(begin - piece->begin);
        std::fill(first, first + static_cast<ptrdiff_t>(bytes), true);
    }
}

void races_block(unsigned int block)
{
    state.block = block;
    state.interval = 0;
    memset(state.warp_intervals, 0, sizeof(state.warp_intervals));
}

void races_thread(unsigned int thread, const void *stack, size_t stack_bytes)
{
    state.thread = thread;
    state.stack = reinterpret_cast<uintptr_t>(stack);
    state.stack_end = state.stack + stack_bytes;
    state.inside = true;
}

void races_stop(void)
{
    settle();
    state.inside = false;
}

void races_block_met(void)
{
    state.interval++;
}

void races_warp_met(unsigned int warp)
{
    state.warp_intervals[warp]++;
}

bool races_removed(const char *file, unsigned int line, bool warp)
{
    uint32_t index = 0;
    settle();
    while (index < state.barriers.size() &&
           (state.barriers[index].line != line || strcmp(state.barriers[index].file, file) != 0)) {
        index++;
    }
    if (index == state.barriers.size()) {
        state.barriers.push_back({file, line, warp, 0});
    }
    state.barriers[index].reached++;
    return index == state.removed;
}

/* An atomic operation of a kernel (cuda_runtime.h). */
void races_atomic(const void *memory, size_t bytes, const void *code)
{
    if (state.inside) {
        look_at(memory, bytes, ATOMIC, code);
    }
}

} // namespace kelp_emulated

/* ---- what the test asks for ------------------------------------------------------------------ */

using kelp_emulated::state;

void kelp_cuda_races_handler(void (*handler)(const char *text))
{
    state.handler = handler;
}

uint32_t kelp_cuda_barrier_count(void)
{
    return static_cast<uint32_t>(state.barriers.size());
}

struct kelp_cuda_barrier kelp_cuda_barrier(uint32_t index)
{
    const struct kelp_emulated::barrier &barrier = state.barriers[index];
    return {barrier.file, barrier.line, barrier.warp, barrier.reached};
}

void kelp_cuda_barrier_remove(uint32_t index)
{
    state.removed = index;
}

/* ---- what the compiler calls ----------------------------------------------------------------- */

#define ACCESS(name, bytes, kind)                                                                  \
    extern "C" void __tsan_##name(void *memory)                                                    \
    {                                                                                              \
        if (state.inside) {                                                                        \
            kelp_emulated::look_at(memory, bytes, kelp_emulated::kind,                             \
                                   __builtin_return_address(0));                                   \
        }                                                                                          \
    }
#define ACCESSES(bytes)                                                                            \
    ACCESS(read##bytes, bytes, READ)                                                               \
    ACCESS(write##bytes, bytes, WRITE)                                                             \
    ACCESS(unaligned_read##bytes, bytes, READ)                                                     \
    ACCESS(unaligned_write##bytes, bytes, WRITE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" void __tsan_read_range(void *memory, size_t bytes)
{
    if (state.inside) {
        kelp_emulated::look_at(memory, bytes, kelp_emulated::READ, __builtin_return_address(0));
    }
}
extern "C" void __tsan_write_range(void *memory, size_t bytes)
{
    if (state.inside) {
        kelp_emulated::look_at(memory, bytes, kelp_emulated::WRITE, __builtin_return_address(0));
    }
}
extern "C" void __tsan_init(void)
{
}
extern "C" void __tsan_func_entry(void *caller)
{
    (void)caller;
}
extern "C" void __tsan_func_exit(void)
{
}
extern "C" void __tsan_vptr_update(void **at, void *value)
{
    (void)at;
    (void)value;
}
