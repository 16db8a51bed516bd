#include "cli/bench_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/cli.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PIECE = 2 << 20, LEAST_BYTES = 256 << 20 };

/* ---- Sizes ---------------------------------------------------------------------------------------------------- */

uint64_t bench_read_cache_bytes(void)
{
    uint64_t largest = 0;
    for (int i = 0; i < 8; i++) {
        char path[96];
        char text[32] = "";
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "r");
        if (!f) break;
        uint64_t kilobytes = fgets(text, sizeof text, f) ? strtoull(text, NULL, 10) : 0; /* "266240K" */
        fclose(f);
        if (kilobytes * 1024 > largest) largest = kilobytes * 1024;
    }
    return largest;
}

uint64_t bench_read_default_bytes(void)
{
    uint64_t bytes = 4 * bench_read_cache_bytes(), most = memory_available() / 8;
    if (bytes < LEAST_BYTES) bytes = LEAST_BYTES;
    return bytes < most ? bytes : most;
}

/* ---- The buffer ------------------------------------------------------------------------------------------------- */

static void fill_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    const bench_read *r = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        uint64_t *at = (uint64_t *)(void *)(r->data + i * PIECE);
        for (uint64_t j = 0; j < PIECE / 8; j++) at[j] = ((uint64_t)i * PIECE + j) * 0x9E3779B97F4A7C15;
    }
}

hy_status bench_read_check(uint64_t bytes, hy_error *err)
{
    char want[32], free_bytes[32];
    uint64_t available = memory_available();
    if (bytes <= available / 10 * 9) return HY_OK;
    return error_at(err, HY_NO_FIT, "--read-buffer",
                    "a read buffer of %s does not fit into %s of free memory: give a smaller --read-buffer",
                    cli_format_bytes(bytes, want), cli_format_bytes(available, free_bytes));
}

void bench_read_warn(uint64_t bytes)
{
    char has[32], cache[32];
    if (bytes >= bench_read_cache_bytes()) return;
    log_line(HY_LOG_WARNING,
             "a read buffer of %s is smaller than the last-level cache of %s: its passes, and so the "
             "bounds, may be those of the cache",
             cli_format_bytes(bytes, has), cli_format_bytes(bench_read_cache_bytes(), cache));
}

hy_status bench_read_open(uint64_t bytes, threads *pool, bench_read *out, hy_error *err)
{
    hy_status status = bench_read_check(bytes, err);
    if (status != HY_OK) return status;
    bench_read r = {.bytes = ((size_t)bytes + PIECE - 1) / PIECE * PIECE};
    if (!r.bytes) r.bytes = PIECE;
    r.mapped = r.bytes + PIECE;
    r.map = mmap(NULL, r.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.map == MAP_FAILED) return error_memory(err, "the read buffer", r.mapped);
    r.data = (uint8_t *)r.map + (PIECE - (uintptr_t)r.map % PIECE) % PIECE;
    madvise(r.data, r.bytes, MADV_HUGEPAGE); /* small pages do as well, a few percent slower */
    threads_run(pool, (int64_t)(r.bytes / PIECE), 1, fill_pieces, &r);
    *out = r;
    return HY_OK;
}

void bench_read_close(bench_read *r)
{
    if (r->map) munmap(r->map, r->mapped);
    *r = (bench_read){0};
}

/* ---- A pass ----------------------------------------------------------------------------------------------------- */

static volatile uint64_t sink;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static uint64_t read_512(const uint8_t *p)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (const uint8_t *end = p + PIECE; p < end; p += 512) {
        a = _mm512_xor_si512(a, _mm512_load_si512(p));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + 64));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + 128));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + 192));
        e = _mm512_xor_si512(e, _mm512_load_si512(p + 256));
        f = _mm512_xor_si512(f, _mm512_load_si512(p + 320));
        g = _mm512_xor_si512(g, _mm512_load_si512(p + 384));
        h = _mm512_xor_si512(h, _mm512_load_si512(p + 448));
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    e = _mm512_xor_si512(_mm512_xor_si512(e, f), _mm512_xor_si512(g, h));
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(a, e));
}

#endif

static uint64_t read_plain(const uint8_t *p)
{
    uint64_t sum[8] = {0};
    for (const uint8_t *end = p + PIECE; p < end; p += 64) {
        uint64_t line[8];
        memcpy(line, p, sizeof line);
        for (int i = 0; i < 8; i++) sum[i] ^= line[i];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

typedef struct read_work {
    const uint8_t *data;
    uint64_t (*read)(const uint8_t *p); /* [PIECE] */
} read_work;

static void read_pieces(void *arg, int64_t begin, int64_t end, int worker)
{
    const read_work *work = arg;
    uint64_t sum = 0;
    (void)worker;
    for (int64_t i = begin; i < end; i++) sum ^= work->read(work->data + i * PIECE);
    sink = sum;
}

double bench_read_pass(const bench_read *r, threads *pool)
{
    read_work work = {r->data, read_plain};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) work.read = read_512;
#endif
    double start = clock_seconds();
    threads_run(pool, (int64_t)(r->bytes / PIECE), 1, read_pieces, &work);
    return (double)r->bytes / (clock_seconds() - start);
}
