#include "cache/plan.h"

#include <assert.h>
#include <inttypes.h>

#include "backend/ops.h"
#include "base/error.h"
#include "base/memory.h"
#include "cache/blocks.h"

enum { DEFAULT_SEQUENCES = 16 };

/* Sixteen longest sequences within a quarter of the memory; one of them may take half of it. */
static uint64_t default_bytes(uint64_t longest, uint64_t available)
{
    if (longest > available / 4) return longest < available / 2 ? longest : available / 2;
    return longest < available / 4 / DEFAULT_SEQUENCES ? longest * DEFAULT_SEQUENCES : available / 4;
}

hy_status cache_plan_make(uint64_t row_bytes, int32_t max_len, uint64_t cache_bytes, uint64_t available,
                          cache_plan *plan, hy_error *err)
{
    assert(row_bytes > 0 && max_len > 0);
    size_t longest;
    if (!size_mul((size_t)row_bytes, (size_t)blocks_for_tokens(max_len), &longest))
        return error_set(err, HY_NO_FIT, "a sequence of %d tokens needs more cache than can be addressed", max_len);
    uint64_t bytes = cache_bytes;
    if (bytes == 0) bytes = default_bytes(longest, available);
    uint64_t count = bytes / row_bytes;
    if (count == 0)
        return error_set(err, HY_NO_FIT,
                         "the cache has %" PRIu64 " bytes, and a block of %d tokens needs %" PRIu64
                         ": give more cache or a smaller --kv-cache-dtype",
                         bytes, CACHE_BLOCK, row_bytes);
    if (count > INT32_MAX / CACHE_BLOCK) count = INT32_MAX / CACHE_BLOCK; /* slots of a block stay within 31 bits */
    *plan = (cache_plan){.blocks = (int32_t)count, .bytes = count * row_bytes, .longest_bytes = longest};
    int64_t tokens = (int64_t)count * CACHE_BLOCK;
    plan->longest_tokens = tokens < max_len ? (int32_t)tokens : max_len;
    return HY_OK;
}
