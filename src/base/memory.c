#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *memory_alloc(size_t count, size_t size)
{
    size_t bytes, rounded;
    if (!size_mul(count, size, &bytes) || !size_add(bytes, 63, &rounded)) return NULL;
    rounded &= ~(size_t)63;
    return aligned_alloc(64, rounded ? rounded : 64);
}

void *memory_zeroed(size_t count, size_t size)
{
    void *p = memory_alloc(count, size);
    if (p) memset(p, 0, count * size);
    return p;
}

void memory_free(void *p)
{
    free(p);
}

bool memory_reserve(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return true;
    size_t grown = *capacity ? *capacity : 16, bytes;
    while (grown < need)
        if (!size_mul(grown, 2, &grown)) return false;
    if (!size_mul(grown, size, &bytes)) return false;
    void *p = realloc(*array, bytes);
    if (!p) return false;
    *array = p, *capacity = grown;
    return true;
}

char *memory_string(const char *s, size_t length)
{
    size_t bytes;
    if (!size_add(length, 1, &bytes)) return NULL;
    char *p = malloc(bytes);
    if (!p) return NULL;
    memcpy(p, s, length);
    p[length] = 0;
    return p;
}

void memory_prefer_huge(void *data, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    enum { HUGE = 2 << 20 };
    uintptr_t begin = ((uintptr_t)data + HUGE - 1) / HUGE * HUGE, end = ((uintptr_t)data + bytes) / HUGE * HUGE;
    if (end > begin) madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

uint64_t memory_resident(void)
{
    long page = sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    char text[128] = ""; /* size, resident, ... in pages */
    const char *line = fgets(text, sizeof text, f), *second = line ? strchr(line, ' ') : NULL;
    unsigned long long resident = second ? strtoull(second + 1, NULL, 10) : 0;
    fclose(f);
    return page > 0 ? (uint64_t)resident * (uint64_t)page : 0;
}

static uint64_t read_number(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    char text[32] = "", *end = text; /* "max" where there is no limit */
    unsigned long long v = fgets(text, sizeof text, f) ? strtoull(text, &end, 10) : 0;
    fclose(f);
    return end != text ? v : UINT64_MAX;
}

/* A line of /proc/meminfo in bytes, such as "MemTotal:"; UINT64_MAX: there is none. */
static uint64_t meminfo(const char *name)
{
    uint64_t bytes = UINT64_MAX;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return bytes;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0) bytes = (uint64_t)strtoull(line + strlen(name), NULL, 10) * 1024;
    fclose(f);
    return bytes;
}

uint64_t memory_total(void)
{
    uint64_t total = meminfo("MemTotal:"), limit = read_number("/sys/fs/cgroup/memory.max");
    return limit < total ? limit : total;
}

const char *memory_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(out, 32, "%u B", (unsigned)bytes);
        return out;
    }
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.95 && unit < 6) value /= 1000, unit++;
    snprintf(out, 32, value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
    return out;
}

uint64_t memory_available(void)
{
    uint64_t available = meminfo("MemAvailable:");
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = limit > used ? limit - used : 0;
        if (left < available) available = left;
    }
    return available == UINT64_MAX ? (uint64_t)1 << 30 : available;
}
