/*
 * Allocation and checked arithmetic.
 *
 * Sizes that come from a file or a client pass through the checked forms; a product that does not fit is an error of
 * the input, never a short buffer.
 */
#ifndef HAYATE_BASE_MEMORY_H
#define HAYATE_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *out = a op b; false (and *out untouched) when the result does not fit. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}
static inline bool size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* a + b, UINT64_MAX when that does not fit: needs that are held against a limit. */
static inline uint64_t bytes_sum(uint64_t a, uint64_t b)
{
    return a < UINT64_MAX - b ? a + b : UINT64_MAX;
}

/* count * size zeroed bytes, 64-byte aligned; NULL when there is no memory or the product overflows. memory_free it. */
void *memory_zeroed(size_t count, size_t size);
/* The same without clearing. */
void *memory_alloc(size_t count, size_t size);
void memory_free(void *p);

/* Grows an array kept as (pointer, capacity) to hold `need` elements: doubles, keeps contents. False: no memory, kept as
 * it was. The array must come from this function (start with NULL, 0) and be released with free(). */
bool memory_reserve(void **array, size_t *capacity, size_t need, size_t size);

/* A copy of the first `length` bytes with a NUL added, released with free(); NULL when there is no memory. */
char *memory_string(const char *s, size_t length);

/* Bytes of memory that this process has resident, pages of mapped files included; 0 where the system does not tell. */
uint64_t memory_resident(void);

/* Asks for large pages for a range that is walked through as a whole: most of the waiting is for address translation
 * otherwise. A wish only; nothing outside the range is touched. */
void memory_prefer_huge(void *data, size_t bytes);

/* Bytes of memory that new allocations can take without swapping (MemAvailable, and the cgroup's limit if smaller). */
uint64_t memory_available(void);
/* Bytes of memory that the machine has, or that the cgroup allows if those are fewer; UINT64_MAX: the system does not tell. */
uint64_t memory_total(void);

/* Three or four significant figures in powers of 1000: "512 B", "31.9 MB", "21.2 GB". Returns `out`. */
const char *memory_text(uint64_t bytes, char out[32]);

#endif
