#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static bool reserve(buffer *b, size_t extra)
{
    size_t need;
    void *p = b->data;
    if (!b->failed && b->length < b->capacity && extra < b->capacity - b->length) return true;
    if (b->failed || !size_add(b->length, extra, &need) || !size_add(need, 1, &need) ||
        !memory_reserve(&p, &b->capacity, need, 1)) {
        b->failed = true;
        return false;
    }
    b->data = p;
    return true;
}

void buffer_append(buffer *b, const void *bytes, size_t count)
{
    if (!reserve(b, count)) return;
    if (count) memcpy(b->data + b->length, bytes, count);
    b->length += count;
    b->data[b->length] = 0;
}

void buffer_string(buffer *b, const char *s)
{
    buffer_append(b, s, strlen(s));
}

void buffer_char(buffer *b, char c)
{
    if (!reserve(b, 1)) return;
    b->data[b->length++] = c;
    b->data[b->length] = 0;
}

void buffer_printf(buffer *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t room = b->failed ? 0 : b->capacity - b->length;
    int count = vsnprintf(room ? b->data + b->length : NULL, room, format, args);
    va_end(args);
    if (count < 0) b->failed = true;
    if (count >= 0 && reserve(b, (size_t)count)) {
        if ((size_t)count >= room) vsnprintf(b->data + b->length, (size_t)count + 1, format, again);
        b->length += (size_t)count;
    }
    va_end(again);
}

void buffer_drop(buffer *b, size_t count)
{
    if (count > b->length) count = b->length;
    if (!count) return;
    memmove(b->data, b->data + count, b->length - count + 1);
    b->length -= count;
}

void buffer_clear(buffer *b)
{
    b->length = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

void buffer_free(buffer *b)
{
    free(b->data);
    *b = (buffer){0};
}

char *buffer_take(buffer *b, size_t *length)
{
    if (!b->data) buffer_append(b, "", 0);
    if (b->failed) {
        buffer_free(b);
        return NULL;
    }
    char *s = b->data;
    if (length) *length = b->length;
    *b = (buffer){0};
    return s;
}
