/* sched_check.h: walks all of a scheduler and names the first broken invariant. */
#ifndef WEFT_TESTS_SCHED_CHECK_H
#define WEFT_TESTS_SCHED_CHECK_H

#include <stdlib.h>

#include "sched/private.h"

#define REQUIRE(condition, ...)                                               \
    do {                                                                      \
        if (!(condition)) return weft__fail(err, WEFT_INTERNAL, __VA_ARGS__); \
    } while (0)

/* A sequence's pages: as many as it needs, the first ones a chain in the cache, the others its own.
 */
static weft_status check_sequence(const struct weft__sched *sched, const struct weft__sequence *seq,
                                  int32_t *refs, weft_error *err)
{
    int64_t tokens = weft__sequence_tokens(seq);
    long long page_count = seq->page_count;
    if (!seq->running) {
        REQUIRE(page_count == 0 && seq->done == 0 && seq->shared == 0,
                "a waiting sequence has %lld pages", page_count);
        return WEFT_OK;
    }
    /* A token sampled by the last accept gets its page in the next plan. */
    REQUIRE(page_count >= weft__ceil_div(tokens - 1, WEFT__PAGE) &&
                page_count <= weft__ceil_div(tokens, WEFT__PAGE),
            "%lld pages for %lld tokens", page_count, (long long)tokens);
    REQUIRE(seq->shared * WEFT__PAGE <= seq->done && seq->done <= tokens,
            "%lld pages shared, %lld of %lld tokens done", (long long)seq->shared,
            (long long)seq->done, (long long)tokens);
    for (int64_t i = 0; i < page_count; i++) {
        int32_t number = seq->page[i];
        REQUIRE(number >= 0 && number < sched->pool.pages, "page %d is out of the pool", number);
        const struct weft__page *page = &sched->pool.page[number];
        refs[number]++;
        if (i >= seq->shared) {
            REQUIRE(!page->cached && page->refs == 1, "own page %d: %d refs", number, page->refs);
            continue;
        }
        const struct weft__page_key key = weft__sequence_key(seq, i);
        REQUIRE(page->cached && weft__pool_find(&sched->pool, &key) == number,
                "shared page %d is not found in the cache", number);
    }
    return WEFT_OK;
}

static weft_status check_queue(const struct weft__sched *sched, const struct weft__queue *queue,
                               int32_t *refs, weft_error *err)
{
    int64_t count = 0;
    const struct weft__sequence *last = NULL;
    for (const struct weft__sequence *seq = queue->head; seq != NULL; last = seq, seq = seq->next) {
        count++;
        REQUIRE(seq->prev == last, "a queue's links are broken");
        REQUIRE(seq->running == (queue == &sched->running), "a sequence is in the wrong queue");
        REQUIRE(last == NULL || last->group->request.priority >= seq->group->request.priority,
                "a queue is out of order");
        weft_status status = check_sequence(sched, seq, refs, err);
        if (status != WEFT_OK) return status;
    }
    REQUIRE(queue->tail == last && queue->count == count, "a queue's count or tail is wrong");
    return WEFT_OK;
}

/* free + idle + held = all; an idle page stands before its parent; every page is in one place. */
static weft_status check_pool(const struct weft__pool *pool, int32_t *refs, weft_error *err)
{
    int64_t held = 0, free_count = 0, idle = 0;
    for (int64_t i = 0; i < pool->pages; i++) {
        const struct weft__page *page = &pool->page[i];
        REQUIRE(page->refs == refs[i], "page %lld: %d refs, %d holders", (long long)i, page->refs,
                refs[i]);
        held += page->refs > 0;
        if (!page->cached || page->parent == WEFT__NO_PAGE) continue;
        const struct weft__page *parent = &pool->page[page->parent];
        REQUIRE(parent->cached && (page->refs == 0 || parent->refs > 0),
                "page %lld outlived its parent", (long long)i);
    }
    for (int32_t i = pool->first_free; free_count < pool->free; i = pool->page[i].next) {
        REQUIRE(i != WEFT__NO_PAGE && refs[i] == 0 && !pool->page[i].cached, "free page %d", i);
        free_count++;
        refs[i] = -1; /* seen: a page twice in a list fails here */
    }
    for (int32_t i = pool->oldest; i != WEFT__NO_PAGE; i = pool->page[i].next) {
        REQUIRE(refs[i] == 0 && pool->page[i].cached, "idle page %d", i);
        REQUIRE(pool->page[i].parent == WEFT__NO_PAGE || refs[pool->page[i].parent] != -1,
                "page %d would be evicted after its parent", i);
        idle++;
        refs[i] = -1;
    }
    REQUIRE(idle == pool->idle && held + free_count + idle == pool->pages,
            "%lld pages: %lld held, %lld free, %lld idle", (long long)pool->pages, (long long)held,
            (long long)free_count, (long long)idle);
    return WEFT_OK;
}

static weft_status check_sched(const struct weft__sched *sched, weft_error *err)
{
    int32_t *refs = calloc((size_t)sched->pool.pages, sizeof *refs);
    if (refs == NULL) return weft__fail_oom(err, (size_t)sched->pool.pages * 4, "the check");
    weft_status status = check_queue(sched, &sched->running, refs, err);
    if (status == WEFT_OK) status = check_queue(sched, &sched->waiting, refs, err);
    if (status == WEFT_OK) status = check_pool(&sched->pool, refs, err);
    free(refs);
    if (status == WEFT_OK && sched->running.count > sched->options.max_running)
        status =
            weft__fail(err, WEFT_INTERNAL, "%lld sequences run", (long long)sched->running.count);
    return status;
}

#endif
