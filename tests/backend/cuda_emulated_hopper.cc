/*
 * See cuda_emulated_hopper.cuh. A barrier's state is in its 8 bytes, as on the hardware, in an order of its own: a mark,
 * the parity of the running phase, arrivals of a phase, those that are left in this one, and bytes that are left. Of a
 * wgmma the last of 128 threads to come does the work for all.
 */
#include "backend/cuda_emulated.h"
#include "backend/cuda_emulated_hopper.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <vector>

namespace emulated {

namespace {

enum { GROUPS = 8, THREADS = 128, IDS = 16, CLUSTER = 16 };
constexpr uint64_t MARK = 0x5A;

struct phase {
    uint64_t mark : 8, parity : 1, count : 11, left : 12;
    int64_t bytes : 32;
};
static_assert(sizeof(phase) == sizeof(arrivals), "the state of a barrier");

/* A bulk copy (shared), or the arrival of a thread's copies (list). */
struct late {
    char *shared;
    const char *global;
    uint32_t bytes;
    void *list;
    arrivals *barrier;
    place at;
};

struct batch_product {
    product p;
    place at;
    bool fresh; /* the sums before are in `before`, else in d of the product before it */
    std::vector<float> before; /* [THREADS][n / 2] */
    float *d[THREADS];
    uint32_t a[THREADS][4];
};

struct group {
    /* Who is at the operation that all four warps come to. */
    const char *what;
    place at;
    int come;
    unsigned turn;
    const void *brought[THREADS];
    /* Batches that were committed, ascending, and the one that is open. */
    std::vector<std::vector<batch_product>> batches;
    std::vector<batch_product> open;
    bool fenced;
    int registers; /* of a thread; 0: as at the launch */
    place registers_at;
};

struct meeting {
    int come, count;
    unsigned turn;
};

std::vector<late> copies;
group groups[CLUSTER][GROUPS]; /* of each block that is there */
meeting meetings[CLUSTER][IDS]; /* of each block that is there */
uint64_t seed;

phase *phase_of(arrivals *b, const char *what, const place *at)
{
    check_shared(b, 8, what, *at);
    phase *p = (phase *)b;
    if (p->mark != MARK) fail(at, "%s of a barrier that arrivals_init did not make", what);
    return p;
}

void end_phase(phase *p)
{
    if (p->left || p->bytes) return;
    p->parity ^= 1;
    p->left = p->count;
}

/* Outside of threads too. */
void come(arrivals *b, int64_t expected, const place *at)
{
    phase *p = (phase *)b;
    if (p->mark != MARK) return report(at, "a barrier was overwritten while something was to arrive at it");
    if (!p->left) return report(at, "more arrivals than the %d of a phase", (int)p->count);
    p->bytes += expected;
    p->left--;
    end_phase(p);
}

void arrives(const late *l)
{
    if (l->list) {
        copies_end(l->list, true);
        come(l->barrier, 0, &l->at);
        return;
    }
    memcpy(l->shared, l->global, l->bytes);
    phase *p = (phase *)l->barrier;
    if (p->mark != MARK) return report(&l->at, "a barrier was overwritten while bytes were to arrive at it");
    p->bytes -= l->bytes;
    end_phase(p);
}

/* ---- Warpgroups -------------------------------------------------------------------------------------------------- */

struct turn_of {
    const unsigned *now;
    unsigned mine;
};
bool turned(const void *what)
{
    const turn_of *t = (const turn_of *)what;
    return *t->now != t->mine;
}

/* All of a warpgroup; the last to come does `work`. */
template <typename function> void group_meet(const char *what, const void *brought, place at, function work)
{
    unsigned thread = threadIdx.x;
    if (thread / THREADS >= GROUPS || (thread / THREADS + 1) * THREADS > blockDim.x)
        fail(&at, "%s by warps that are no whole warpgroup", what);
    group *g = &groups[rank_in_cluster()][thread / THREADS];
    if (!g->come) {
        g->what = what, g->at = at;
    } else if (strcmp(g->what, what) || g->at.line != at.line) {
        fail(&at, "%s, while other threads of the warpgroup are at %s of line %d", what, g->what, g->at.line);
    }
    g->brought[thread % THREADS] = brought;
    turn_of t = {&g->turn, g->turn};
    if (++g->come < THREADS) return park(turned, &t, what, at);
    work(g);
    g->come = 0;
    g->turn++;
}

float half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31) return bits_float(sign | 0x7F800000u | mantissa << 13);
    if (exponent) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float small = (float)mantissa * 0x1p-24f;
    return sign ? -small : small;
}
float value(uint16_t x, bool is_half)
{
    return is_half ? half(x) : bits_float((uint32_t)x << 16);
}

/* Value (line, k) of a matrix: line a row of A or a column of B. */
float read(uint64_t matrix, bool mn, bool is_half, int line, int k, const place *at)
{
    uint32_t start = (uint32_t)(matrix & 0x3FFF) << 4, leading = (uint32_t)(matrix >> 16 & 0x3FFF) << 4,
             stride = (uint32_t)(matrix >> 32 & 0x3FFF) << 4;
    uint32_t offset = mn ? start + (uint32_t)(line / 64) * leading + (uint32_t)(line % 64) * 2 +
                               (uint32_t)(k / 8) * stride + (uint32_t)(k % 8) * 128
                         : start + (uint32_t)(line / 8) * stride + (uint32_t)(line % 8) * 128 + (uint32_t)k * 2;
    offset ^= (offset >> 7 & 7) << 4;
    if (offset + 2 > dynamic_size()) fail(at, "wgmma of byte %u of %zu of shared memory", offset, dynamic_size());
    uint16_t x;
    memcpy(&x, (const char *)dynamic_memory() + offset, 2);
    return value(x, is_half);
}

#if defined __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
void multiply(float *d, const float *a, const float *b, int n)
{
    static double sum[256];
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < n; j++) sum[j] = d[i * n + j];
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < n; j++) sum[j] += (double)a[i * 16 + k] * b[k * n + j];
        for (int j = 0; j < n; j++) d[i * n + j] = (float)sum[j];
    }
}

/* Place of accumulator e of a thread. */
int place_of(int thread, int e, int n)
{
    int row = thread / 32 * 16 + thread % 32 / 4 + e / 2 % 2 * 8;
    return row * n + e / 4 * 8 + thread % 4 * 2 + e % 2;
}

/* Does it and gives the sums to `next`, which takes the same accumulators, or to the threads. */
void finish(batch_product *o, batch_product *next)
{
    const product *p = &o->p;
    int n = p->n, each = n / 2;
    static float a[64 * 16], b[16 * 256], d[64 * 256];
    for (int i = 0; i < 64; i++)
        for (int k = 0; k < 16; k++) {
            int thread = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
            uint32_t pair = o->a[thread][i / 8 % 2 + k / 8 * 2];
            a[i * 16 + k] = p->a_shared ? read(p->a_matrix, p->a_mn, p->half, i, k, &o->at)
                                        : value((uint16_t)(pair >> k % 2 * 16), p->half);
        }
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < n; j++) b[k * n + j] = read(p->b_matrix, p->b_mn, p->half, j, k, &o->at);
    for (int t = 0; t < THREADS; t++)
        for (int e = 0; e < each; e++) d[place_of(t, e, n)] = p->add ? o->before[(size_t)(t * each + e)] : 0;
    multiply(d, a, b, n);
    if (next) next->before.resize((size_t)(THREADS * each)), next->fresh = true;
    for (int t = 0; t < THREADS; t++)
        for (int e = 0; e < each; e++) {
            if (next)
                next->before[(size_t)(t * each + e)] = d[place_of(t, e, n)];
            else
                o->d[t][e] = d[place_of(t, e, n)];
        }
}

batch_product *with_sums(std::vector<batch_product> *list, size_t from, const float *d)
{
    for (size_t i = from; i < list->size(); i++)
        if ((*list)[i].d[0] == d) return &(*list)[i];
    return nullptr;
}

} // namespace

void *tiles(place at)
{
    if ((uintptr_t)dynamic_memory() % 1024) fail(&at, "a launch with TILES whose size is no multiple of 1024 bytes");
    return dynamic_memory();
}

uint64_t matrix_of(const void *shared, uint32_t leading, uint32_t stride, place at)
{
    check_shared(shared, 16, "matrix_of", at);
    size_t offset = (size_t)((const char *)shared - (const char *)dynamic_memory());
    if (offset >= dynamic_size()) fail(&at, "matrix_of outside of dynamic shared memory");
    if (leading % 16 || stride % 16) fail(&at, "matrix_of with distances of %u and %u bytes", leading, stride);
    return (uint64_t)(offset >> 4) | (uint64_t)(leading >> 4) << 16 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
}

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

void arrivals_make(arrivals *b, int count, place at)
{
    check_shared(b, 8, "arrivals_init", at);
    if (count < 1 || count >= 2048) fail(&at, "arrivals_init of %d", count);
    phase p = {MARK, 0, (uint64_t)count, (uint64_t)count, 0};
    memcpy(b, &p, sizeof p);
}

void arrive(arrivals *b, int64_t bytes, place at)
{
    phase_of(b, "an arrival", &at);
    come(b, bytes, &at);
}

namespace {
struct awaited {
    const arrivals *barrier;
    uint64_t parity;
};
bool ended(const void *what)
{
    const awaited *w = (const awaited *)what;
    return ((const phase *)w->barrier)->parity != w->parity;
}
} // namespace

void arrivals_await(arrivals *b, int parity, place at)
{
    phase_of(b, "arrivals_wait", &at);
    if (parity & ~1) fail(&at, "arrivals_wait for parity %d", parity);
    awaited w = {b, (uint64_t)parity};
    park(ended, &w, "arrivals_wait", at);
}

void bulk_start(void *shared, const void *global, uint32_t bytes, arrivals *b, place at)
{
    phase_of(b, "copy_bulk", &at);
    if (!bytes || bytes % 16) fail(&at, "copy_bulk of %u bytes", bytes);
    check_shared(shared, 16, "copy_bulk", at);
    check_shared((char *)shared + bytes - 16, 16, "copy_bulk", at);
    check_global(global, 16, "copy_bulk", at);
    volatile char touched = ((const char *)global)[bytes - 1];
    (void)touched;
    memset(shared, 0xFF, bytes);
    copies.push_back({(char *)shared, (const char *)global, bytes, nullptr, b, at});
}

void copies_then_arrive(arrivals *b, place at)
{
    phase_of(b, "copy_come", &at);
    copies.push_back({nullptr, nullptr, 0, copies_detach(), b, at});
}

void registers(int each, place at)
{
    group *g = &groups[rank_in_cluster()][threadIdx.x / THREADS % GROUPS];
    g->registers = each, g->registers_at = at;
}

/* A block that takes more than its launch has waits for ever. */
static void count_registers()
{
    int warpgroups = (int)blockDim.x / THREADS, all = 0;
    const group *last = nullptr;
    if (!warpgroups) return;
    int at_launch = (int)(65536 / blockDim.x < 255 ? 65536 / blockDim.x : 255) / 8 * 8;
    for (int i = 0; i < warpgroups && i < GROUPS; i++) {
        all += groups[0][i].registers ? groups[0][i].registers : at_launch;
        if (groups[0][i].registers) last = &groups[0][i];
    }
    if (last && all > at_launch * warpgroups)
        report(&last->registers_at, "warpgroups take %d registers in all, %d a thread of each, the launch has %d", all,
               last->registers, at_launch * warpgroups);
}

void some_meet(int id, int count, bool stay, place at)
{
    meeting *m = &meetings[rank_in_cluster()][id];
    if (m->come && m->count != count) fail(&at, "barrier %d of %d threads, and of %d for others", id, count, m->count);
    m->count = count;
    turn_of t = {&m->turn, m->turn};
    if (++m->come == count) {
        m->come = 0;
        m->turn++;
    } else if (stay) {
        park(turned, &t, "threads_meet", at);
    }
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

void product_start(const product *mine, place at)
{
    group_meet("wgmma", mine, at, [at](group *g) {
        const product *p = (const product *)g->brought[0];
        if (!g->fenced) fail(&at, "wgmma without wgmma_fence since the last commit");
        g->open.emplace_back();
        batch_product *o = &g->open.back();
        o->p = *p, o->at = at, o->fresh = true;
        for (int t = 0; t < THREADS; t++) {
            const product *q = (const product *)g->brought[t];
            if (q->b_matrix != p->b_matrix || q->a_matrix != p->a_matrix || q->add != p->add)
                fail(&at, "wgmma for which lanes bring different matrices");
            o->d[t] = q->d;
            if (q->a) memcpy(o->a[t], q->a, sizeof o->a[t]);
        }
        for (size_t i = 0; i + 1 < g->open.size(); i++) o->fresh &= g->open[i].d[0] != o->d[0];
        for (auto &batch : g->batches)
            for (auto &before : batch) o->fresh &= before.d[0] != o->d[0];
        if (!o->fresh) return;
        int each = p->n / 2;
        o->before.resize((size_t)(THREADS * each));
        for (int t = 0; t < THREADS; t++) {
            memcpy(&o->before[(size_t)(t * each)], o->d[t], (size_t)each * sizeof(float));
            memset(o->d[t], 0xFF, (size_t)each * sizeof(float));
        }
    });
}

void product_fence(place at)
{
    group_meet("wgmma_fence", nullptr, at, [](group *g) { g->fenced = true; });
}

void product_commit(place at)
{
    group_meet("wgmma_commit", nullptr, at, [](group *g) {
        g->batches.push_back(std::move(g->open));
        g->open.clear();
        g->fenced = false;
    });
}

void product_wait(int left, place at)
{
    group_meet("wgmma_wait", nullptr, at, [left](group *g) {
        while ((int)g->batches.size() > left) {
            auto batch = std::move(g->batches[0]);
            g->batches.erase(g->batches.begin());
            for (size_t i = 0; i < batch.size(); i++) {
                batch_product *next = with_sums(&batch, i + 1, batch[i].d[0]);
                for (size_t j = 0; j < g->batches.size() && !next; j++)
                    next = with_sums(&g->batches[j], 0, batch[i].d[0]);
                if (!next) next = with_sums(&g->open, 0, batch[i].d[0]);
                finish(&batch[i], next);
            }
        }
    });
}

/* ---- Of a block -------------------------------------------------------------------------------------------------- */

void hopper_begin()
{
    for (late &l : copies)
        if (l.list) copies_end(l.list, false); /* of a block that failed */
    copies.clear();
    for (auto &block : groups)
        for (group &g : block) g = group();
    for (auto &block : meetings)
        for (meeting &m : block) m = meeting();
}

bool hopper_go_on()
{
    if (copies.empty()) return false;
    std::vector<late> now;
    now.swap(copies);
    if (!random_order(&seed)) {
        for (late &l : now) arrives(&l);
        return true;
    }
    for (size_t i = now.size(); i > 1; i--) {
        random_order(&seed);
        std::swap(now[i - 1], now[seed % i]);
    }
    random_order(&seed);
    size_t some = 1 + seed % now.size();
    for (size_t i = 0; i < now.size(); i++)
        if (i < some)
            arrives(&now[i]);
        else
            copies.push_back(now[i]);
    return true;
}

void hopper_end()
{
    count_registers();
    if (!copies.empty()) report(&copies[0].at, "a copy that has not arrived when the block ends");
    for (auto &block : groups)
        for (group &g : block) {
            const batch_product *o = g.open.empty() ? nullptr : &g.open[0];
            for (auto &batch : g.batches)
                if (!o && !batch.empty()) o = &batch[0];
            if (o) report(&o->at, "a wgmma that nobody waited for");
        }
}

} // namespace emulated
