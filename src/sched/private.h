/* private.h: what the scheduler's files share. */
#ifndef WEFT_SRC_SCHED_PRIVATE_H
#define WEFT_SRC_SCHED_PRIVATE_H

#include "sched.h"

/* ---- pool: KV pages by number, and the prefix cache over them ----
 *
 * A page is free, or held by refs > 0 sequences, or cached and idle (refs 0). A cached page is full
 * and knows its tokens and its parent, the cached page before it; a chain of pages is a prefix. Who
 * holds a page holds its parents too, and lets go of the deepest first, so in the LRU list a page
 * always stands before its parent and is evicted first: a parent's number never goes stale. */

enum {
    WEFT__NO_PAGE = -1,
    WEFT__BUCKET_MAX = 64 /* pages of one hash value; more aren't cached */
};

struct weft__page {
    int32_t refs;
    bool cached;
    int32_t prev, next; /* LRU list while idle; next also links free pages */
    int32_t chain;      /* next page of the bucket, while cached */
    uint32_t bucket;
    int32_t parent; /* or WEFT__NO_PAGE: the prefix begins here */
    uint64_t salt;
    int32_t token[WEFT__PAGE];
};

struct weft__pool {
    int64_t pages, free, idle;
    struct weft__page *page; /* [pages] */
    int32_t *bucket;         /* [bucket_mask + 1] first page of each chain */
    uint32_t bucket_mask;
    int32_t first_free;
    int32_t oldest, newest; /* LRU list */
};

/* The beginning of a sequence's next page: what a cached page must equal. */
struct weft__page_key {
    int32_t parent;
    uint64_t salt;
    int32_t token[WEFT__PAGE];
};

weft_status weft__pool_open(struct weft__pool *pool, int64_t pages, weft_error *err);
void weft__pool_close(struct weft__pool *pool);
/* A page of the caller's own, evicting an idle one if none is free; WEFT__NO_PAGE: all are held. */
int32_t weft__pool_get(struct weft__pool *pool);
void weft__pool_hold(struct weft__pool *pool, int32_t page);
void weft__pool_put(struct weft__pool *pool, int32_t page);
int32_t weft__pool_find(const struct weft__pool *pool, const struct weft__page_key *key);
/* Puts the caller's full page into the cache. Returns the page the caller holds from now on:
 * an equal one that was there before takes its place. WEFT__NO_PAGE: not cached, still held. */
int32_t weft__pool_share(struct weft__pool *pool, int32_t page, const struct weft__page_key *key);
void weft__pool_flush(struct weft__pool *pool);

/* ---- sequences ---- */

struct weft__group;

struct weft__sequence { /* one sample of a request */
    struct weft__group *group;
    struct weft__sequence *prev, *next; /* in waiting or running */
    int32_t sample;
    bool running;
    bool ending; /* to be finished with `finish` at the next occasion */
    enum weft__finish finish;

    int32_t *output; /* [max_tokens] */
    int64_t output_count;
    int32_t *page; /* [page_count]; room for prompt and max_tokens */
    int64_t page_count;
    int64_t shared; /* the first pages, which are in the cache */
    int64_t done;   /* tokens whose KV is in the pages */

    int64_t rows;            /* in the batch in flight, from position `done` */
    int64_t outputs;         /* of them whose logits are wanted, */
    int64_t output_position; /* from here */

    int64_t next_logprob; /* the first prompt position not reported; prompt_count: none left */
    int64_t cached_tokens, retractions;
    uint64_t admitted_ns;
};

struct weft__group {              /* a request; lives as long as one of its samples */
    struct weft__request request; /* its arrays point into this allocation */
    uint64_t handle, arrival;
    int32_t unfinished;
    bool prompt_ready; /* the first sample's prompt is in the cache: the others may run */
    struct weft__sequence sequence[]; /* [samples] */
};

/* Sequences by priority, then arrival, then sample. */
struct weft__queue {
    struct weft__sequence *head, *tail;
    int64_t count;
};

struct weft__slot { /* of the table of handles */
    struct weft__group *group;
    uint32_t generation;
    uint32_t next_free;
};

struct weft__sched {
    struct weft__sched_options options;
    int32_t eos[WEFT__STOP_IDS_MAX];
    int64_t context; /* what both the options and the pool allow */
    struct weft__pool pool;
    struct weft__sampler *sampler;
    struct weft__queue waiting, running;
    struct weft__slot *slot; /* [slots] */
    uint32_t slots, first_free_slot;
    uint64_t arrivals;
    bool in_flight;

    struct weft__batch batch;
    int32_t *token, *position;       /* [chunk] */
    int64_t *kv_slot;                /* [chunk] */
    struct weft__seq *seq;           /* [max_running] */
    int32_t *output;                 /* [max_outputs] */
    struct weft__sequence **planned; /* [max_running] */

    struct weft__sched_counters counters; /* the totals */
};

/* Tokens of prompt and output so far. */
static inline int64_t weft__sequence_tokens(const struct weft__sequence *seq)
{
    return seq->group->request.prompt_count + seq->output_count;
}

void weft__queue_insert(struct weft__queue *queue, struct weft__sequence *seq);
void weft__queue_remove(struct weft__queue *queue, struct weft__sequence *seq);

struct weft__page_key weft__sequence_key(const struct weft__sequence *seq, int64_t page);
void weft__sequence_release(struct weft__sched *sched, struct weft__sequence *seq);
/* Lets go of everything and reports. The sequence, and with the last one its group, is gone. */
void weft__sequence_finish(struct weft__sched *sched, struct weft__sequence *seq,
                           enum weft__finish finish, int32_t stop_token, const weft_error *why);

#endif
