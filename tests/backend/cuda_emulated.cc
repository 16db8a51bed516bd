/*
 * See cuda_emulated.h. A block runs like this: the scheduler switches to the first ready lane of a warp; a lane that
 * waits switches straight to the next ready lane of its warp; when none is left, back to the scheduler, which goes on
 * with the next warp and opens the barrier when all are there. Of a KERNEL_TOGETHER all blocks are there from the start,
 * of a KERNEL_NEIGHBOURS those of a cluster, each with its own fibers, and the scheduler goes round all their warps; a thread
 * that counts for other blocks or waits for them hands the turn on. An error switches to the scheduler and never back: the
 * stacks are used again, and kernels own nothing.
 */
#undef _FORTIFY_SOURCE /* it takes a long jump from one stack to another for an attack */
#include "backend/cuda_emulated.h"
#include "backend/cuda_emulated.cuh"
#include "backend/cuda_emulated_stack.h"

extern "C" {
#include "base/error.h"
}

#include <mutex>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

emulated::index3 threadIdx, blockIdx, blockDim, gridDim;

/* 3 GB; forward. */
cuda_emulated_settings cuda_emulated = {CUDA_EMULATED_FORWARD, 1, (size_t)3 << 30, false, false, 0, 0};

namespace {

enum { LANES = 32, MOST_THREADS = 1024, MOST_FIBERS = 8192 };
enum { PAGE = 4096, ALIGN = 256, MOST_SHARED = 227 * 1024, MOST_ARGS = 4096 };
constexpr size_t ARENA = (size_t)1 << 38;
constexpr size_t STACK = SANITIZED ? 256 * 1024 : 96 * 1024;
constexpr unsigned char RED = 0xD5;

/* ---- State ------------------------------------------------------------------------------------------------------- */

struct copy {
    char *shared;
    const char *global;
    int group;
    unsigned bytes;
    bool there;
};

struct fiber {
    context where;
    char *stack; /* the lowest byte */
    int index;   /* threadIdx.x */
    void *fake;  /* of the address sanitizer */
    std::vector<copy> copies;
    int group; /* number of the group that is open */
    bool (*until)(const void *); /* parked: goes on when this holds */
    const void *until_what;
};

struct warp {
    uint32_t live, ready, meeting, barrier, parked; /* by slot, not by lane: slot s is lane `lane[s]` */
    int lane[LANES];
    const char *what;
    emulated::place at;
    void *brought[LANES]; /* by lane */
};

struct allocation {
    char *pages; /* without the guards */
    size_t page_bytes;
    char *data;
    size_t bytes;
    char what[64];
};

struct machine : gpu {
    char *arena;
    size_t used; /* of the arena, never given back, so that a freed address stays bad */
    size_t bytes;
    std::vector<allocation> allocations; /* ascending */
    bool guarded;                        /* the host cannot touch them now */
};

std::mutex turn; /* of everything below: there is one emulated thread at a time */
emulated::kernel *kernels;
std::vector<std::pair<const char *, long>> launches;

/* What run_blocks keeps of a block while another one has the turn. */
struct block_state {
    emulated::index3 index;
    int exited, at_barrier;
    emulated::place barrier_at;
    uint64_t serial;
    char *dynamic; /* its shared memory */
    int order[MOST_THREADS / LANES];
};

/* What a thread waits for that other blocks bring. */
struct waiting {
    emulated::place at;
    const char *what;
    uint32_t there, least;
    emulated::index3 block;
    int thread;
};

fiber fibers[MOST_FIBERS]; /* those of a block lie one behind the other */
warp warps[MOST_FIBERS / LANES];
context scheduler;
#if SANITIZED
void *scheduler_fake;
const void *scheduler_stack;
size_t scheduler_stack_bytes; /* 0 until the first fiber of a launch has seen where it came from */
#endif
int threads, exited, at_barrier; /* this and what follows: of the block that has the turn */
emulated::place barrier_at, parked_at;
const char *parked_in;
int current; /* fiber */
const emulated::kernel *running;
const void *running_args;
uint64_t block_serial, serial_now; /* of all blocks; of the one that has the turn */
emulated::shared_memory *entered;
std::vector<char *> dynamic_pages; /* MOST_SHARED and a guard page, for each block that there is at once */
char *dynamic_start;
size_t dynamic_bytes;
machine *here;
cuda_emulated_order order_now;
uint64_t launch_serial;
int64_t grid_blocks;
uint64_t moves; /* that any thread got on: a barrier, an exchange, a count, an end */
waiting waits;
sigjmp_buf escape;
char failure[512];
bool failed;

/* ---- Fibers ------------------------------------------------------------------------------------------------------ */

[[noreturn]] void leave();

void fail_with(const emulated::place *at, const char *format, va_list arguments)
{
    if (failed) return;
    failed = true;
    char text[320];
    vsnprintf(text, sizeof text, format, arguments);
    const char *file = at ? strrchr(at->file, '/') : nullptr;
    int n = snprintf(failure, sizeof failure, "%s, block %u %u %u, thread %u: ", running ? running->name : "no kernel",
                     blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    if (at)
        snprintf(failure + n, sizeof failure - (size_t)n, "%s:%d: %s", file ? file + 1 : at->file, at->line, text);
    else
        snprintf(failure + n, sizeof failure - (size_t)n, "%s", text);
}

__attribute__((format(printf, 2, 3))) void fail_at(const emulated::place *at, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_with(at, format, arguments);
    va_end(arguments);
}

/* From the running fiber or the scheduler (-1) to another. */
void go(int from, int to)
{
    context *a = from < 0 ? &scheduler : &fibers[from].where, *b = to < 0 ? &scheduler : &fibers[to].where;
    current = to;
    if (to >= 0) threadIdx.x = (unsigned)fibers[to].index;
#if SANITIZED
    void **fake = from < 0 ? &scheduler_fake : &fibers[from].fake;
    if (to < 0)
        __sanitizer_start_switch_fiber(fake, scheduler_stack, scheduler_stack_bytes);
    else
        __sanitizer_start_switch_fiber(fake, fibers[to].stack, STACK);
#endif
    context_switch(a, b);
#if SANITIZED
    __sanitizer_finish_switch_fiber(*fake, nullptr, nullptr);
#endif
}

/* For good, after an error. */
void leave()
{
    go(current, -1);
    abort();
}

int slot_of(int f)
{
    return (int)((unsigned)f % LANES);
}

warp *warp_of(int f)
{
    return &warps[(unsigned)f / LANES];
}

/* Nobody of the running fiber's warp can go on: back to the scheduler. */
__attribute__((noinline)) void give_up(int me, warp *w)
{
    if (w->meeting && !w->parked) {
        if (w->barrier)
            fail_at(&w->at, "%s of %d lanes, while others of the warp wait at the barrier of line %d", w->what,
                    __builtin_popcount(w->meeting), barrier_at.line);
        else
            fail_at(&w->at, "%s of %d lanes, the others have returned", w->what, __builtin_popcount(w->meeting));
        leave();
    }
    go(me, -1);
}

/* The running fiber waits or has ended: on with its warp, or back to the scheduler. */
inline void pass_on(int me, warp *w)
{
    uint32_t ready = w->ready, later = ready & (~1u << slot_of(me));
    if (!ready) return give_up(me, w);
    int to = (int)((unsigned)me & ~(LANES - 1u)) + __builtin_ctz(later ? later : ready);
    if (SANITIZED) return go(me, to);
    current = to;
    threadIdx.x = (unsigned)fibers[to].index;
    context_switch(&fibers[me].where, &fibers[to].where);
}

/* The running fiber could go on and lets the others run first: its warp's, then all. */
void hand_on(int me, warp *w)
{
    uint32_t later = w->ready & (~1u << slot_of(me));
    go(me, later ? (int)((unsigned)me & ~(LANES - 1u)) + __builtin_ctz(later) : -1);
}

void fiber_main()
{
#if SANITIZED
    __sanitizer_finish_switch_fiber(nullptr, scheduler_stack_bytes ? nullptr : &scheduler_stack,
                                    scheduler_stack_bytes ? nullptr : &scheduler_stack_bytes);
#endif
    running->run(running_args);
    warp *w = warp_of(current);
    uint32_t bit = 1u << slot_of(current);
    w->live &= ~bit, w->ready &= ~bit;
    exited++;
    moves++;
    pass_on(current, w);
    abort();
}

void fibers_need(int count)
{
    for (int i = 0; i < count; i++) {
        if (fibers[i].stack) continue;
        char *p = (char *)mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE)) {
            perror("cuda_emulated: stacks");
            abort();
        }
        fibers[i].stack = p + PAGE;
    }
}

uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

/* `order` becomes a permutation of 0 .. n-1. */
void make_order(int *order, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++) order[i] = order_now == CUDA_EMULATED_REVERSE ? n - 1 - i : i;
    if (order_now != CUDA_EMULATED_RANDOM) return;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(mixed(seed += 0x9E3779B97F4A7C15) % (uint64_t)(i + 1)), t = order[i];
        order[i] = order[j], order[j] = t;
    }
}

/* Parked lanes that may go on become ready. */
void wake(int warp_index)
{
    warp *w = &warps[warp_index];
    for (uint32_t left = w->parked; left; left &= left - 1) {
        const fiber *f = &fibers[warp_index * LANES + __builtin_ctz(left)];
        if (f->until(f->until_what)) w->ready |= left & -left, w->parked &= ~(left & -left), moves++;
    }
}

/* Shared memory of the n-th block that there is at once. */
char *dynamic_of(size_t n)
{
    size_t bytes = (MOST_SHARED + PAGE - 1) / PAGE * PAGE;
    while (dynamic_pages.size() <= n) {
        char *p = (char *)mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                               -1, 0);
        if (p == MAP_FAILED) abort();
        mprotect(p + bytes, PAGE, PROT_NONE);
        dynamic_pages.push_back(p);
    }
    return dynamic_pages[n] + bytes - dynamic_bytes;
}

/* Block `number` of the grid at its first line, with the fibers from `first` on. */
void start_block(block_state *b, int64_t number, size_t n)
{
    int first = (int)n * threads, count = threads / LANES;
    *b = {};
    b->index = {(unsigned)(number % gridDim.x), (unsigned)(number / gridDim.x % gridDim.y),
                (unsigned)(number / gridDim.x / gridDim.y)};
    b->serial = ++block_serial;
    b->dynamic = dynamic_of(n);
    if (dynamic_bytes) memset(b->dynamic, 0xFF, dynamic_bytes);
    uint64_t seed = mixed(cuda_emulated.seed * 0x9E3779B97F4A7C15 + block_serial);
    make_order(b->order, count, seed);
    for (int i = 0; i < count; i++) {
        warp *w = &warps[first / LANES + i];
        w->live = w->ready = ~0u, w->meeting = w->barrier = w->parked = 0;
        make_order(w->lane, LANES, seed + (uint64_t)(i + 1) * 0x2545F4914F6CDD1D);
        for (int s = 0; s < LANES; s++) {
            int k = i * LANES + s;
            fiber *f = &fibers[first + k];
            f->index = i * LANES + w->lane[s];
            f->copies.clear();
            f->group = 0;
            /* Tops at different lines, or all stacks would share a few sets of the first cache. */
            size_t colour = (size_t)(k * 7 % 61) * 64;
            context_make(&f->where, f->stack + STACK - 64 - colour, STACK / 2, fiber_main);
        }
    }
}

/* Each warp of the block that has the turn, once. False: none could go on. */
bool turn_of_block(const block_state *b, int first)
{
    bool progress = false;
    int count = threads / LANES;
    warp *own = warps + first / LANES;
    for (int i = 0; i < count && !failed; i++) {
        int which = b->order[i];
        if (own[which].parked) wake(first / LANES + which);
        if (!own[which].ready) continue;
        progress = true;
        go(-1, first + which * LANES + __builtin_ctz(own[which].ready));
    }
    if (!failed && at_barrier && at_barrier + exited == threads) {
        at_barrier = 0;
        for (int i = 0; i < count; i++) own[i].ready = own[i].barrier, own[i].barrier = 0;
        moves++;
        progress = true;
    }
    return progress;
}

/* `count` blocks of the grid, from `first` on in steps of `step`, at the same time. */
void run_blocks(int64_t first, int64_t step, size_t count)
{
    enum { PATIENCE = 3 }; /* rounds in which nobody gets on */
    static std::vector<block_state> blocks;
    int idle = 0;
    blocks.resize(count);
    entered = nullptr;
    parked_in = nullptr;
    emulated::hopper_begin();
    for (size_t n = 0; n < count; n++) start_block(&blocks[n], first + (int64_t)n * step, n);
    for (size_t left = count; left && !failed;) {
        uint64_t before = moves;
        for (size_t n = 0; n < count && !failed; n++) {
            block_state *b = &blocks[n];
            if (b->exited == threads) continue;
            blockIdx = b->index, exited = b->exited, at_barrier = b->at_barrier, barrier_at = b->barrier_at;
            serial_now = b->serial, dynamic_start = b->dynamic;
            if (!turn_of_block(b, (int)n * threads) && !failed) {
                if (emulated::hopper_go_on())
                    moves++;
                else if (running->together > 1 && parked_in)
                    ; /* the others of the cluster may come */
                else if (parked_in)
                    fail_at(&parked_at, "%s that nothing ends", parked_in);
                else
                    fail_at(&barrier_at, "no thread can go on");
            }
            b->exited = exited, b->at_barrier = at_barrier, b->barrier_at = barrier_at;
            if (exited == threads) left--;
        }
        if (moves == before && count == 1 && emulated::hopper_go_on()) moves++; /* who counts, waits for a copy */
        idle = moves == before ? idle + 1 : 0;
        if (idle < PATIENCE || failed) continue;
        if (emulated::hopper_go_on()) { /* those who wait for other blocks keep theirs from ending this way */
            moves++;
            continue;
        }
        if (running->together > 1) {
            fail_at(&parked_at, "%s that nothing ends", parked_in);
            continue;
        }
        blockIdx = waits.block, threadIdx.x = (unsigned)waits.thread;
        fail_at(&waits.at, "waits for %s, which nobody brings: there are %u of %u", waits.what, waits.there, waits.least);
    }
    if (!failed) emulated::hopper_end();
    for (emulated::shared_memory *m = entered; m && !failed; m = m->next)
        for (size_t i = 0; i < m->guard; i++)
            if (m->bytes[m->size + i] != RED) {
                fail_at(nullptr, "wrote %zu bytes behind the end of the shared array %s", i + 1, m->name);
                break;
            }
}

int64_t blocks_at_once()
{
    return running->together < 0 ? grid_blocks : running->together;
}

void run_grid()
{
    bool back = order_now == CUDA_EMULATED_REVERSE;
    int64_t at_once = blocks_at_once();
    for (int64_t i = 0; i < grid_blocks && !failed; i += at_once)
        run_blocks(back ? grid_blocks - 1 - i : i, back ? -1 : 1, (size_t)at_once);
}

/* ---- Device memory ----------------------------------------------------------------------------------------------- */

allocation *find(machine *m, const void *p)
{
    size_t low = 0, high = m->allocations.size();
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (m->allocations[middle].data <= (const char *)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &m->allocations[low - 1] : nullptr;
}

bool inside(machine *m, const void *p, size_t bytes)
{
    allocation *a = find(m, p);
    return a && (const char *)p - a->data + bytes <= a->bytes;
}

/* While it lives, device memory can be touched. */
struct touching {
    explicit touching(machine *x) : m(x)
    {
        if (m->guarded) protect(PROT_READ | PROT_WRITE);
        m->guarded = false;
    }
    ~touching()
    {
        m->guarded = cuda_emulated.host_guard;
        if (m->guarded) protect(PROT_NONE);
    }
    void protect(int how)
    {
        for (allocation &a : m->allocations) mprotect(a.pages, a.page_bytes, how);
    }
    machine *m;
};

bool red_zones_hold(const allocation *a, char *text, size_t room)
{
    for (const char *p = a->pages; p < a->data; p++)
        if ((unsigned char)*p != RED) {
            snprintf(text, room, "%s was written %zu bytes before its start", a->what, (size_t)(a->data - p));
            return false;
        }
    for (const char *p = a->data + a->bytes; p < a->pages + a->page_bytes; p++)
        if ((unsigned char)*p != RED) {
            snprintf(text, room, "%s of %zu bytes was written at byte %zu", a->what, a->bytes, (size_t)(p - a->data));
            return false;
        }
    return true;
}

void signalled(int number, siginfo_t *info, void *)
{
    if (number == SIGFPE) {
        fail_at(nullptr, "division by zero");
    } else {
        const char *p = (const char *)info->si_addr;
        allocation *a = here ? find(here, p) : nullptr;
        if (here && p >= here->arena && p < here->arena + ARENA && a)
            fail_at(nullptr, "access outside of device memory: byte %zd of %s, which has %zu",
                    (ssize_t)(p - a->data), a->what, a->bytes);
        else if (p >= dynamic_start + dynamic_bytes && p < dynamic_start + dynamic_bytes + PAGE)
            fail_at(nullptr, "byte %zd of %zu of dynamic shared memory", (ssize_t)(p - dynamic_start), dynamic_bytes);
        else
            fail_at(nullptr, "access to address %p", (void *)p);
    }
    siglongjmp(escape, 1);
}

/* A word of the parameter that is an address of the host's memory. -1: none. A number below 2^24 and the half of an old
 * address in the padding behind it are none; the shadow of the address sanitizer lies where two numbers might point. */
int host_address(machine *m, const void *args, size_t bytes)
{
    for (size_t i = 0; i + 8 <= bytes && !SANITIZED; i += 8) {
        uintptr_t word;
        memcpy(&word, (const char *)args + i, sizeof word);
        const char *p = (const char *)word;
        if (word >> 47 || word < (uintptr_t)1 << 40 || (uint32_t)word < 1u << 24) continue;
        if (p >= m->arena && p < m->arena + ARENA) continue;
        unsigned char there;
        if (mincore((void *)(word & ~(uintptr_t)(PAGE - 1)), 1, &there) == 0) return (int)i;
    }
    return -1;
}

/* ---- gpu --------------------------------------------------------------------------------------------------------- */

machine *of(gpu *g)
{
    return static_cast<machine *>(g);
}

void gpu_close(gpu *g)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    char text[256];
    {
        touching t(m);
        for (allocation &a : m->allocations) {
            if (!red_zones_hold(&a, text, sizeof text)) {
                fprintf(stderr, "cuda_emulated: %s\n", text);
                abort();
            }
            fprintf(stderr, "cuda_emulated: %s, %zu bytes, was never freed\n", a.what, a.bytes);
        }
    }
    if (!m->allocations.empty()) abort();
    munmap(m->arena, ARENA);
    if (here == m) here = nullptr;
    delete m;
}

void gpu_about(gpu *g, gpu_info *out)
{
    machine *m = of(g);
    *out = gpu_info{};
    snprintf(out->name, sizeof out->name, "emulated");
    out->major = cuda_emulated.major ? cuda_emulated.major : 9;
    out->processors = cuda_emulated.processors ? cuda_emulated.processors : 4;
    out->memory = cuda_emulated.memory;
    out->free = m->bytes < cuda_emulated.memory ? cuda_emulated.memory - m->bytes : 0;
    out->shared = MOST_SHARED;
    out->cache = 64 << 10;
    out->archs = "sm_90a";
}

hy_status gpu_alloc(gpu *g, size_t bytes, const char *what, void **device, hy_error *err)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    *device = nullptr;
    size_t left = m->bytes < cuda_emulated.memory ? cuda_emulated.memory - m->bytes : 0;
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!rounded) rounded = ALIGN;
    size_t page_bytes = (rounded + PAGE - 1) / PAGE * PAGE;
    if (bytes > left || m->used + page_bytes + PAGE > ARENA)
        return error_set(err, HY_NO_FIT, "%s: %zu bytes do not fit into %zu that are free", what, bytes, left);
    allocation a = {};
    a.pages = m->arena + m->used;
    a.page_bytes = page_bytes;
    a.bytes = bytes;
    a.data = a.pages + page_bytes - rounded;
    snprintf(a.what, sizeof a.what, "%s", what);
    if (mprotect(a.pages, page_bytes, PROT_READ | PROT_WRITE)) return error_memory(err, what, bytes);
    m->used += page_bytes + PAGE;
    m->bytes += bytes;
    memset(a.pages, RED, (size_t)(a.data - a.pages));
    memset(a.data + bytes, RED, rounded - bytes);
    m->allocations.push_back(a);
    *device = a.data;
    if (m->guarded) mprotect(a.pages, page_bytes, PROT_NONE);
    return HY_OK;
}

void gpu_free(gpu *g, void *device)
{
    machine *m = of(g);
    if (!device) return;
    std::lock_guard<std::mutex> lock(turn);
    allocation *a = find(m, device);
    if (!a || a->data != device) {
        fprintf(stderr, "cuda_emulated: free of an address that alloc did not give\n");
        abort();
    }
    char text[256];
    {
        touching t(m);
        if (!red_zones_hold(a, text, sizeof text)) {
            fprintf(stderr, "cuda_emulated: %s\n", text);
            abort();
        }
    }
    m->bytes -= a->bytes;
    madvise(a->pages, a->page_bytes, MADV_DONTNEED);
    mprotect(a->pages, a->page_bytes, PROT_NONE);
    m->allocations.erase(m->allocations.begin() + (a - m->allocations.data()));
}

bool range_holds(machine *m, const void *device, size_t bytes, const char *call)
{
    if (failed) return false;
    if (!bytes || inside(m, device, bytes)) return true;
    allocation *a = find(m, device);
    running = nullptr;
    fail_at(nullptr, "%s of %zu bytes at byte %zd of %s, which has %zu", call, bytes,
            a ? (ssize_t)((const char *)device - a->data) : 0, a ? a->what : "nothing", a ? a->bytes : 0);
    return false;
}

void gpu_write(gpu *g, void *device, const void *host, size_t bytes)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (!range_holds(m, device, bytes, "write") || !bytes) return;
    touching t(m);
    memcpy(device, host, bytes);
}

void gpu_read(gpu *g, const void *device, void *host, size_t bytes)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (!range_holds(m, device, bytes, "read") || !bytes) return;
    touching t(m);
    memcpy(host, device, bytes);
}

void gpu_copy(gpu *g, void *to, const void *from, size_t bytes)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (!range_holds(m, to, bytes, "copy to") || !range_holds(m, from, bytes, "copy from") || !bytes) return;
    touching t(m);
    memcpy(to, from, bytes);
}

void gpu_fill(gpu *g, void *device, int byte, size_t bytes)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (!range_holds(m, device, bytes, "fill") || !bytes) return;
    touching t(m);
    memset(device, byte, bytes);
}

const gpu_kernel *gpu_find(gpu *, const char *name)
{
    std::lock_guard<std::mutex> lock(turn);
    for (emulated::kernel *k = kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return (const gpu_kernel *)k;
    running = nullptr;
    fail_at(nullptr, "there is no kernel %s", name);
    return nullptr;
}

void count_launch(const char *name)
{
    for (auto &l : launches)
        if (l.first == name) {
            l.second++;
            return;
        }
    launches.push_back({name, 1});
}

void gpu_launch(gpu *g, const gpu_kernel *kernel, const int grid[3], int block, size_t shared, const void *args,
                size_t bytes)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (failed) return;
    running = (const emulated::kernel *)kernel;
    blockIdx = threadIdx = {0, 0, 0};
    if (cuda_emulated.trace)
        fprintf(stderr, "%s <%d %d %d, %d, %zu>\n", running ? running->name : "?", grid[0], grid[1], grid[2], block,
                shared);
    if (!running) return fail_at(nullptr, "launch of no kernel");
    if (block < LANES || block > MOST_THREADS || block % LANES)
        return fail_at(nullptr, "launch with %d threads a block", block);
    if (grid[0] < 1 || grid[1] < 1 || grid[2] < 1 || grid[1] > 65535 || grid[2] > 65535)
        return fail_at(nullptr, "launch with a grid of %d, %d, %d", grid[0], grid[1], grid[2]);
    if (shared > MOST_SHARED) return fail_at(nullptr, "launch with %zu bytes of shared memory", shared);
    if (bytes != running->bytes || bytes > MOST_ARGS)
        return fail_at(nullptr, "its parameter has %zu bytes, the launch brings %zu", running->bytes, bytes);
    int at = host_address(m, args, bytes);
    if (at >= 0) return fail_at(nullptr, "byte %d of its parameter is an address of the host", at);
    blockDim = {(unsigned)block, 1, 1};
    gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
    grid_blocks = (int64_t)grid[0] * grid[1] * grid[2];
    if (blocks_at_once() * block > MOST_FIBERS)
        return fail_at(nullptr, "%d blocks of %d threads together are more than are emulated", grid[0], block);
    if (running->together > 1 && grid[0] % running->together)
        return fail_at(nullptr, "launch of %d blocks in clusters of %d", grid[0], running->together);
    count_launch(running->name);
    emulated::remember(kernel, running->name, grid, block, shared, args, bytes);

    alignas(64) static char copied[MOST_ARGS];
    memcpy(copied, args, bytes);
    running_args = copied;
    here = m;
    order_now = cuda_emulated.order;
    launch_serial++;
    if (order_now == CUDA_EMULATED_MIXED)
        order_now = (cuda_emulated_order)(mixed(cuda_emulated.seed ^ launch_serial * 0x9E3779B97F4A7C15) % 3);
#if SANITIZED
    scheduler_stack_bytes = 0;
#endif
    threads = block;
    fibers_need((int)blocks_at_once() * block);
    dynamic_bytes = (shared + 127) / 128 * 128; /* the last bytes are poison, not a fault */
    dynamic_start = dynamic_of(0);

    static char signal_stack[1 << 16];
    stack_t stack = {}, old_stack;
    stack.ss_sp = signal_stack;
    stack.ss_size = sizeof signal_stack;
    struct sigaction action = {}, old[3];
    static const int numbers[3] = {SIGSEGV, SIGBUS, SIGFPE};
    action.sa_sigaction = signalled;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (!SANITIZED) {
        sigaltstack(&stack, &old_stack);
        for (int i = 0; i < 3; i++) sigaction(numbers[i], &action, &old[i]);
    }
    touching t(m);
    if (!sigsetjmp(escape, 1)) {
        run_grid();
    }
    if (!SANITIZED) {
        for (int i = 0; i < 3; i++) sigaction(numbers[i], &old[i], nullptr);
        sigaltstack(&old_stack, nullptr);
    }
}

hy_status gpu_wait(gpu *g, hy_error *err)
{
    machine *m = of(g);
    std::lock_guard<std::mutex> lock(turn);
    if (!failed) {
        touching t(m);
        char text[256];
        for (allocation &a : m->allocations)
            if (!red_zones_hold(&a, text, sizeof text)) {
                fail_at(nullptr, "%s", text);
                memset(a.pages, RED, (size_t)(a.data - a.pages));
                memset(a.data + a.bytes, RED, (size_t)(a.pages + a.page_bytes - a.data) - a.bytes);
                break;
            }
    }
    return failed ? error_set(err, HY_FAILED, "%s", failure) : HY_OK;
}

gpu_calls calls = {gpu_close, gpu_about, gpu_alloc, gpu_free,   gpu_write, gpu_read, gpu_copy,
                   gpu_fill,  gpu_find,  gpu_launch, nullptr,   nullptr,   gpu_wait, nullptr,
                   nullptr,   nullptr,   nullptr,   nullptr,    nullptr,   nullptr,  nullptr,
                   nullptr,   nullptr,   nullptr,   nullptr,    nullptr};

} // namespace

/* ---- What kernels call ------------------------------------------------------------------------------------------- */

namespace emulated {

kernel::kernel(const char *name_, size_t bytes_, void (*run_)(const void *args), int together_)
    : name(name_), bytes(bytes_), run(run_), together(together_), next(kernels)
{
    kernels = this;
}

void warp_meet(const char *what, warp_work work, void *brought, place at)
{
    int me = current, s = slot_of(me);
    warp *w = warp_of(me);
    if (!w->meeting) {
        w->what = what, w->at = at;
    } else if (w->what != what || w->at.line != at.line || (w->at.file != at.file && strcmp(w->at.file, at.file))) {
        fail_at(&at, "%s, while other lanes of the warp are at %s of line %d", what, w->what, w->at.line);
        leave();
    }
    w->brought[w->lane[s]] = brought;
    w->meeting |= 1u << s;
    if (w->meeting == ~0u) {
        w->meeting = 0;
        w->ready = ~0u;
        moves++;
        work(w->brought);
        return;
    }
    w->ready &= ~(1u << s);
    pass_on(me, w);
}

void block_meet(place at)
{
    int me = current, s = slot_of(me);
    warp *w = warp_of(me);
    if (!at_barrier) {
        barrier_at = at;
    } else if (barrier_at.line != at.line || (barrier_at.file != at.file && strcmp(barrier_at.file, at.file))) {
        fail_at(&at, "BLOCK_SYNC, while other threads are at that of line %d", barrier_at.line);
        leave();
    }
    at_barrier++;
    moves++;
    w->barrier |= 1u << s;
    w->ready &= ~(1u << s);
    pass_on(me, w);
}

void report(const place *at, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_with(at, format, arguments);
    va_end(arguments);
}

void fail(const place *at, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_with(at, format, arguments);
    va_end(arguments);
    leave();
}

void park(bool (*done)(const void *), const void *what, const char *name, place at)
{
    if (done(what)) return;
    int me = current, s = slot_of(me);
    warp *w = warp_of(me);
    fibers[me].until = done, fibers[me].until_what = what;
    parked_in = name, parked_at = at;
    moves++;
    w->parked |= 1u << s;
    w->ready &= ~(1u << s);
    pass_on(me, w);
}

int rank_in_cluster()
{
    return running->together > 1 ? (int)(blockIdx.x % (unsigned)running->together) : 0;
}

void cluster_arrive(place at)
{
    static uint64_t met;
    static int come;
    static uint64_t serial; /* of the launch that `come` is of */
    if (serial != launch_serial) serial = launch_serial, come = 0;
    uint64_t mine = met;
    if (++come == running->together * threads) come = 0, met++;
    park([](const void *what) { return met != *(const uint64_t *)what; }, &mine, "neighbours_meet", at);
}

const void *shared_of_rank(const void *own, int rank, place at)
{
    const char *p = (const char *)own;
    if (rank < 0 || rank >= running->together || p < dynamic_start || p >= dynamic_start + dynamic_bytes) {
        fail_at(&at, "neighbour_shared of rank %d, byte %td of its dynamic shared memory", rank, p - dynamic_start);
        leave();
    }
    size_t n = (size_t)(order_now == CUDA_EMULATED_REVERSE ? running->together - 1 - rank : rank);
    return dynamic_of(n) + (p - dynamic_start);
}

void shared_enter(shared_memory *m)
{
    if (m->block == serial_now) return;
    if (running->together != 1) {
        fail_at(nullptr, "the shared array %s, of a kernel whose blocks are there together: DYNAMIC has one for each", m->name);
        leave();
    }
    m->block = serial_now;
    memset(m->bytes, 0xFF, m->size);
    memset(m->bytes + m->size, RED, m->guard);
    m->next = entered;
    entered = m;
}

void *dynamic_memory()
{
    return dynamic_start;
}

size_t dynamic_size()
{
    return dynamic_bytes;
}

bool random_order(uint64_t *seed)
{
    *seed = mixed(*seed + 0x9E3779B97F4A7C15 + cuda_emulated.seed);
    return order_now == CUDA_EMULATED_RANDOM;
}

void check_global(const void *at, size_t bytes, const char *what, place where)
{
    const char *p = (const char *)at;
    if ((uintptr_t)at % bytes)
        fail_at(&where, "%s at %zu bytes off an address aligned to %zu", what, (size_t)((uintptr_t)at % bytes), bytes);
    else if (p < here->arena || p >= here->arena + ARENA)
        fail_at(&where, "%s of memory that is not the device's", what);
    else
        return;
    leave();
}

void check_shared(const void *at, size_t bytes, const char *what, place where)
{
    const char *p = (const char *)at;
    if ((uintptr_t)at % bytes) {
        fail_at(&where, "%s at %zu bytes off an address aligned to %zu", what, (size_t)((uintptr_t)at % bytes), bytes);
        leave();
    }
    if (p >= dynamic_start && p + bytes <= dynamic_start + dynamic_bytes) return;
    for (shared_memory *m = entered; m; m = m->next)
        if ((unsigned char *)p >= m->bytes && (unsigned char *)p + bytes <= m->bytes + m->size) return;
    fail_at(&where, "%s outside of shared memory", what);
    leave();
}

uint32_t count_arrival(uint32_t *at, uint32_t n, place where)
{
    check_global(at, sizeof *at, "arrive", where);
    uint32_t before = *at;
    *at = before + n, moves++;
    hand_on(current, warp_of(current));
    return before;
}

void wait_arrival(const uint32_t *at, uint32_t least, const char *what, place where)
{
    check_global(at, sizeof *at, "await", where);
    for (const volatile uint32_t *now = at; (int32_t)(*now - least) < 0;) {
        waits = {where, what, *now, least, blockIdx, fibers[current].index};
        hand_on(current, warp_of(current));
    }
    moves++;
}

void hand_word(uint32_t *at, uint32_t x, place where)
{
    check_global(at, sizeof *at, "hand_over", where);
    *at = x, moves++;
}

uint32_t wait_word(const uint32_t *at, const char *what, place where)
{
    check_global(at, sizeof *at, "await_word", where);
    for (const volatile uint32_t *now = at; *now == 0;) {
        waits = {where, what, *now, 1, blockIdx, fibers[current].index};
        hand_on(current, warp_of(current));
    }
    moves++;
    return *at;
}

void copy_start(void *shared, const void *global, unsigned bytes, bool there, place at)
{
    check_shared(shared, bytes, "copy_async", at);
    if (there) check_global(global, bytes, "copy_async", at);
    memset(shared, 0xFF, bytes);
    fiber *f = &fibers[current];
    f->copies.push_back({(char *)shared, (const char *)global, f->group, bytes, there});
}

static void copy_arrives(const copy *c)
{
    if (c->there)
        memcpy(c->shared, c->global, c->bytes);
    else
        memset(c->shared, 0, c->bytes);
}

void copy_close()
{
    fibers[current].group++;
}

void *copies_detach()
{
    fiber *f = &fibers[current];
    auto *list = new std::vector<copy>(f->copies);
    f->copies.clear();
    return list;
}

void copies_end(void *detached, bool arrive)
{
    auto *list = (std::vector<copy> *)detached;
    for (copy &c : *list)
        if (arrive) copy_arrives(&c);
    delete list;
}

void copy_finish(int left)
{
    fiber *f = &fibers[current];
    size_t n = 0;
    for (copy &c : f->copies) {
        if (c.group >= f->group - left) {
            f->copies[n++] = c;
            continue;
        }
        copy_arrives(&c);
    }
    f->copies.resize(n);
}

} // namespace emulated

extern "C" hy_status cuda_emulated_open(gpu **g, hy_error *err)
{
    *g = nullptr;
    machine *m = new machine();
    emulated::add_measuring(&calls);
    m->calls = &calls;
    m->arena = (char *)mmap(nullptr, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->arena == MAP_FAILED) {
        delete m;
        return error_memory(err, "the address space of an emulated GPU", ARENA);
    }
    m->used = PAGE;
    failed = false;
    *g = m;
    return HY_OK;
}

extern "C" const char *cuda_emulated_kernel(int i)
{
    emulated::kernel *k = kernels;
    while (k && i--) k = k->next;
    return k ? k->name : nullptr;
}

extern "C" long cuda_emulated_launches(const char *name)
{
    for (auto &l : launches)
        if (!strcmp(l.first, name)) return l.second;
    return 0;
}
