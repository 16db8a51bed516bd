/*
 * The safetensors header and the shard scanner: any bytes as a whole file. What is accepted must tile its data, be
 * found by name and be readable to its last byte.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/safetensors.h"
#include "checkpoint/scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_accepted(const safetensors *f)
{
    size_t sum = 0;
    const uint8_t *next = NULL;
    for (size_t i = 0; i < safetensors_count(f); i++) {
        const tensor *t = safetensors_at(f, i);
        size_t bytes = tensor_dtype_bytes(t->dtype);
        volatile uint8_t last = 0;
        for (int d = 0; d < t->dims; d++) bytes *= (size_t)t->shape[d];
        if (bytes != t->bytes || safetensors_find(f, t->name) != t || (next && t->data != next)) abort();
        next = (const uint8_t *)t->data + t->bytes;
        if (t->bytes) last = next[-1];
        (void)last;
        sum += t->bytes;
    }
    if (safetensors_at(f, safetensors_count(f))) abort();
    safetensors_metadata(f, "format");
    (void)sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors *f = NULL;
    hy_error err = {0};
    hy_status status = safetensors_parse("fuzz/file.safetensors", data, size, &f, &err);
    if (status == HY_OK)
        check_accepted(f);
    else if (status != HY_BAD_MODEL || !err.message[0] || strchr(err.message, '\n'))
        abort();
    safetensors_close(f);

    /* The same with a length prefix that fits, so that mutations of the JSON alone go deep; no data follows. */
    uint8_t *whole = malloc(size + 8);
    if (!whole) return 0;
    for (int i = 0; i < 8; i++) whole[i] = (uint8_t)((uint64_t)size >> 8 * i);
    if (size) memcpy(whole + 8, data, size);
    f = NULL;
    if (safetensors_parse("fuzz/file.safetensors", whole, size + 8, &f, &err) == HY_OK) check_accepted(f);
    safetensors_close(f);
    free(whole);

    scan s = scan_begin((const char *)data, size);
    if (scan_skip(&s) && scan_finish(&s) && scan_offset(&s) != size) abort();
    return 0;
}
