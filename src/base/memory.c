/* Arena and bounded buffer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

enum { ARENA_BLOCK = 64 * 1024 };

struct weft__arena_block {
    struct weft__arena_block *next;
    size_t used, cap;
    alignas(max_align_t) unsigned char data[];
};

static struct weft__arena_block *block_new(size_t cap)
{
    size_t bytes;
    if (!weft__add_size(sizeof(struct weft__arena_block), cap, &bytes)) return NULL;
    struct weft__arena_block *block = calloc(1, bytes);
    if (block != NULL) block->cap = cap;
    return block;
}

void *weft__arena_alloc(struct weft__arena *arena, size_t bytes)
{
    const size_t align = alignof(max_align_t);
    if (bytes > SIZE_MAX - align) return NULL;
    bytes = weft__round_up(bytes, align);

    struct weft__arena_block *block = arena->head;
    if (block == NULL || block->cap - block->used < bytes) {
        /* A large request gets a block of its own behind the current one, which keeps its rest. */
        bool large = bytes > ARENA_BLOCK / 4;
        block = block_new(large ? bytes : ARENA_BLOCK);
        if (block == NULL) return NULL;
        if (large && arena->head != NULL) {
            block->next = arena->head->next;
            arena->head->next = block;
        } else {
            block->next = arena->head;
            arena->head = block;
        }
    }
    void *out = block->data + block->used;
    block->used += bytes;
    arena->bytes += bytes;
    return out;
}

void *weft__arena_array(struct weft__arena *arena, size_t count, size_t size)
{
    size_t bytes;
    return weft__mul_size(count, size, &bytes) ? weft__arena_alloc(arena, bytes) : NULL;
}

char *weft__arena_strndup(struct weft__arena *arena, const char *text, size_t len)
{
    char *out = len < SIZE_MAX ? weft__arena_alloc(arena, len + 1) : NULL;
    if (out != NULL) memcpy(out, text, len);
    return out;
}

void weft__arena_free(struct weft__arena *arena)
{
    struct weft__arena_block *block = arena->head;
    while (block != NULL) {
        struct weft__arena_block *next = block->next;
        free(block);
        block = next;
    }
    *arena = (struct weft__arena){0};
}

void weft__buf_init(struct weft__buf *buf, size_t max) { *buf = (struct weft__buf){.max = max}; }

static bool buf_reserve(struct weft__buf *buf, size_t more)
{
    if (buf->failed || more > buf->max - buf->len) {
        buf->failed = true;
        return false;
    }
    size_t need = buf->len + more + 1;
    if (need <= buf->cap) return true;
    size_t cap = buf->cap < 64 ? 64 : buf->cap;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(buf->data, cap);
    if (data == NULL) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

void weft__buf_append(struct weft__buf *buf, const void *bytes, size_t len)
{
    if (!buf_reserve(buf, len)) return;
    if (len > 0) memcpy(buf->data + buf->len, bytes, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
}

void weft__buf_puts(struct weft__buf *buf, const char *text)
{
    weft__buf_append(buf, text, strlen(text));
}

void weft__buf_printf(struct weft__buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    if (len < 0) buf->failed = true;
    if (len >= 0 && buf_reserve(buf, (size_t)len)) {
        (void)vsnprintf(buf->data + buf->len, (size_t)len + 1, format, again);
        buf->len += (size_t)len;
    }
    va_end(again);
    va_end(args);
}

void weft__buf_free(struct weft__buf *buf)
{
    free(buf->data);
    weft__buf_init(buf, buf->max);
}
