/* The pool of KV pages and the prefix cache. */
#include <stdlib.h>
#include <string.h>

#include "private.h"

weft_status weft__pool_open(struct weft__pool *pool, int64_t pages, weft_error *err)
{
    uint32_t buckets = 1;
    while (buckets < pages) buckets *= 2;
    *pool = (struct weft__pool){.pages = pages,
                                .free = pages,
                                .page = calloc((size_t)pages, sizeof(struct weft__page)),
                                .bucket = malloc(buckets * sizeof(int32_t)),
                                .bucket_mask = buckets - 1,
                                .oldest = WEFT__NO_PAGE,
                                .newest = WEFT__NO_PAGE};
    if (pool->page == NULL || pool->bucket == NULL) {
        weft__pool_close(pool);
        return weft__fail_oom(err, (size_t)pages * sizeof(struct weft__page), "the page table");
    }
    for (int64_t i = 0; i < pages; i++)
        pool->page[i].next = i + 1 < pages ? (int32_t)(i + 1) : WEFT__NO_PAGE;
    for (uint32_t b = 0; b < buckets; b++) pool->bucket[b] = WEFT__NO_PAGE;
    return WEFT_OK;
}

void weft__pool_close(struct weft__pool *pool)
{
    free(pool->page);
    free(pool->bucket);
    *pool = (struct weft__pool){0};
}

/* ---- LRU list of idle pages ---- */

static void lru_append(struct weft__pool *pool, int32_t number)
{
    struct weft__page *page = &pool->page[number];
    page->prev = pool->newest;
    page->next = WEFT__NO_PAGE;
    if (pool->newest != WEFT__NO_PAGE)
        pool->page[pool->newest].next = number;
    else
        pool->oldest = number;
    pool->newest = number;
    pool->idle++;
}

static void lru_remove(struct weft__pool *pool, int32_t number)
{
    const struct weft__page *page = &pool->page[number];
    if (page->prev != WEFT__NO_PAGE)
        pool->page[page->prev].next = page->next;
    else
        pool->oldest = page->next;
    if (page->next != WEFT__NO_PAGE)
        pool->page[page->next].prev = page->prev;
    else
        pool->newest = page->prev;
    pool->idle--;
}

/* ---- the cache ---- */

static uint32_t bucket_of(const struct weft__pool *pool, const struct weft__page_key *key)
{
    uint64_t seed = key->salt ^ (uint64_t)(uint32_t)key->parent << 32;
    return (uint32_t)weft__hash(key->token, sizeof key->token, seed) & pool->bucket_mask;
}

static bool page_equals(const struct weft__page *page, const struct weft__page_key *key)
{
    return page->parent == key->parent && page->salt == key->salt &&
           memcmp(page->token, key->token, sizeof key->token) == 0;
}

int32_t weft__pool_find(const struct weft__pool *pool, const struct weft__page_key *key)
{
    int32_t number = pool->bucket[bucket_of(pool, key)];
    while (number != WEFT__NO_PAGE && !page_equals(&pool->page[number], key))
        number = pool->page[number].chain;
    return number;
}

static void forget(struct weft__pool *pool, int32_t number)
{
    struct weft__page *page = &pool->page[number];
    int32_t *link = &pool->bucket[page->bucket];
    while (*link != number) link = &pool->page[*link].chain;
    *link = page->chain;
    page->cached = false;
}

int32_t weft__pool_share(struct weft__pool *pool, int32_t number, const struct weft__page_key *key)
{
    uint32_t bucket = bucket_of(pool, key);
    int length = 0;
    for (int32_t other = pool->bucket[bucket]; other != WEFT__NO_PAGE; length++) {
        if (page_equals(&pool->page[other], key)) {
            weft__pool_hold(pool, other);
            weft__pool_put(pool, number);
            return other;
        }
        other = pool->page[other].chain;
    }
    if (length >= WEFT__BUCKET_MAX) return WEFT__NO_PAGE;
    struct weft__page *page = &pool->page[number];
    page->cached = true;
    page->bucket = bucket;
    page->chain = pool->bucket[bucket];
    page->parent = key->parent;
    page->salt = key->salt;
    memcpy(page->token, key->token, sizeof page->token);
    pool->bucket[bucket] = number;
    return number;
}

/* ---- pages ---- */

static void free_page(struct weft__pool *pool, int32_t number)
{
    pool->page[number].next = pool->first_free;
    pool->first_free = number;
    pool->free++;
}

static void evict_oldest(struct weft__pool *pool)
{
    int32_t number = pool->oldest;
    lru_remove(pool, number);
    forget(pool, number);
    free_page(pool, number);
}

int32_t weft__pool_get(struct weft__pool *pool)
{
    if (pool->free == 0 && pool->idle > 0) evict_oldest(pool);
    if (pool->free == 0) return WEFT__NO_PAGE;
    int32_t number = pool->first_free;
    pool->first_free = pool->page[number].next;
    pool->free--;
    pool->page[number].refs = 1;
    return number;
}

void weft__pool_hold(struct weft__pool *pool, int32_t number)
{
    if (pool->page[number].refs++ == 0) lru_remove(pool, number);
}

void weft__pool_put(struct weft__pool *pool, int32_t number)
{
    if (--pool->page[number].refs > 0) return;
    if (pool->page[number].cached)
        lru_append(pool, number);
    else
        free_page(pool, number);
}

void weft__pool_flush(struct weft__pool *pool)
{
    while (pool->idle > 0) evict_oldest(pool);
}
