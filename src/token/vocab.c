/* The byte-pair model: vocabulary, merges, and encoding of one piece. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

/* Up to here scanning all pairs for the best beats a heap; nearly every piece is shorter. */
enum { SCAN_SYMBOLS = 48 };

enum { RAW_SEED = 1 }; /* texts of raw bytes and of characters must not meet in the table */

/* ---- vocabulary ---- */

weft_status weft__vocab_grow(struct weft__vocab *vocab, size_t size, weft_error *err)
{
    if (size > vocab->entries_cap) {
        size_t cap = vocab->entries_cap < 1024 ? 1024 : vocab->entries_cap;
        while (cap < size) cap *= 2;
        struct weft__vocab_entry *entries = realloc(vocab->entries, cap * sizeof *entries);
        if (entries == NULL) return weft__fail_oom(err, cap * sizeof *entries, "a vocabulary");
        memset(entries + vocab->entries_cap, 0, (cap - vocab->entries_cap) * sizeof *entries);
        vocab->entries = entries;
        vocab->entries_cap = cap;
    }
    if (size > vocab->size) vocab->size = size;
    return WEFT_OK;
}

/* The bytes that stand for a content, and whether they are raw. A failure shows in mapped. */
static struct weft__json_text stored_form(struct weft__json_text content, struct weft__buf *mapped,
                                          bool *raw)
{
    mapped->len = 0;
    *raw = weft__unmap_chars(content.data, content.len, mapped);
    return *raw ? (struct weft__json_text){mapped->data, mapped->len} : content;
}

weft_status weft__vocab_add(struct weft__vocab *vocab, struct weft__json_text content, int64_t id,
                            struct weft__buf *mapped, const char *name, weft_error *err)
{
    if (id < 0 || id >= WEFT__MAX_VOCAB)
        return weft__fail(err, WEFT_TOO_LONG, "%s: token \"%.*s\" has id %lld; ids go up to %d",
                          name, (int)weft__min((int64_t)content.len, 60), content.data,
                          (long long)id, WEFT__MAX_VOCAB - 1);
    if (content.len > WEFT__MAX_TOKEN)
        return weft__fail(err, WEFT_TOO_LONG, "%s: token %lld is %zu bytes long; the limit is %d",
                          name, (long long)id, content.len, WEFT__MAX_TOKEN);
    weft_status status = weft__vocab_grow(vocab, (size_t)id + 1, err);
    if (status != WEFT_OK) return status;
    struct weft__vocab_entry *entry = &vocab->entries[id];
    if (entry->used)
        return weft__fail(err, WEFT_FORMAT, "%s: two tokens of the vocabulary have id %lld", name,
                          (long long)id);
    bool raw;
    struct weft__json_text text = stored_form(content, mapped, &raw);
    *entry = (struct weft__vocab_entry){.offset = (uint32_t)vocab->text.len,
                                        .len = (uint32_t)text.len & 0xfffffffu,
                                        .used = 1,
                                        .raw = raw};
    weft__buf_append(&vocab->text, text.data, text.len);
    if (vocab->text.failed || mapped->failed)
        return weft__fail_oom(err, vocab->text.len + text.len, "a vocabulary");
    vocab->count++;
    return WEFT_OK;
}

static size_t first_slot(const struct weft__vocab *vocab, const char *bytes, size_t len, bool raw)
{
    return (size_t)weft__hash(bytes, len, raw ? RAW_SEED : 0) & vocab->slot_mask;
}

/* The slot of a text: its own, or the empty one where it belongs. */
static uint32_t *slot_of(const struct weft__vocab *vocab, const char *bytes, size_t len, bool raw)
{
    size_t i = first_slot(vocab, bytes, len, raw);
    while (vocab->slots[i] != 0) {
        const struct weft__vocab_entry *entry = &vocab->entries[vocab->slots[i] - 1];
        if (entry->len == len && entry->raw == raw &&
            (len == 0 || memcmp(vocab->text.data + entry->offset, bytes, len) == 0))
            break;
        i = (i + 1) & vocab->slot_mask;
    }
    return &vocab->slots[i];
}

/* Slots for `count` keys: a power of two, at most two thirds full. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size * 2 < count * 3) size *= 2;
    return size;
}

/* The id of stored bytes; -1: none has them. */
static int32_t find(const struct weft__vocab *vocab, const char *bytes, size_t len, bool raw)
{
    return (int32_t)*slot_of(vocab, bytes, len, raw) - 1;
}

weft_status weft__vocab_index(struct weft__vocab *vocab, const char *name, weft_error *err)
{
    size_t size = table_size(vocab->count);
    vocab->slots = calloc(size, sizeof *vocab->slots);
    if (vocab->slots == NULL)
        return weft__fail_oom(err, size * sizeof *vocab->slots, "a vocabulary's table");
    vocab->slot_mask = size - 1;
    for (size_t id = 0; id < vocab->size; id++) {
        const struct weft__vocab_entry *entry = &vocab->entries[id];
        if (!entry->used) continue;
        uint32_t *slot = slot_of(vocab, vocab->text.data + entry->offset, entry->len, entry->raw);
        if (*slot != 0)
            return weft__fail(err, WEFT_FORMAT, "%s: tokens %u and %zu of the vocabulary are equal",
                              name, *slot - 1, id);
        *slot = (uint32_t)id + 1;
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        vocab->byte_ids[byte] = find(vocab, &c, 1, true);
    }
    return WEFT_OK;
}

int32_t weft__vocab_id(const struct weft__vocab *vocab, struct weft__json_text content,
                       struct weft__buf *mapped)
{
    bool raw;
    struct weft__json_text text = stored_form(content, mapped, &raw);
    return find(vocab, text.data, text.len, raw);
}

void weft__vocab_free(struct weft__vocab *vocab)
{
    weft__buf_free(&vocab->text);
    free(vocab->entries);
    free(vocab->slots);
    free(vocab->merges);
    *vocab = (struct weft__vocab){0};
}

/* ---- merges ---- */

static size_t pair_slot(const struct weft__vocab *vocab, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32 ^ h >> 15) & vocab->merge_mask;
}

/* The slot of a pair: its own, or the empty one where it belongs. */
static struct weft__merge *merge_of(const struct weft__vocab *vocab, uint32_t left, uint32_t right)
{
    size_t i = pair_slot(vocab, left, right);
    struct weft__merge *slot = &vocab->merges[i];
    while (slot->left != UINT32_MAX && (slot->left != left || slot->right != right)) {
        i = (i + 1) & vocab->merge_mask;
        slot = &vocab->merges[i];
    }
    return slot;
}

weft_status weft__vocab_set_merges(struct weft__vocab *vocab, const struct weft__merge *merges,
                                   size_t count, weft_error *err)
{
    size_t size = table_size(count);
    vocab->merges = malloc(size * sizeof *vocab->merges);
    if (vocab->merges == NULL)
        return weft__fail_oom(err, size * sizeof *vocab->merges, "a table of merges");
    memset(vocab->merges, 0xff, size * sizeof *vocab->merges);
    vocab->merge_mask = size - 1;
    /* A pair that comes twice counts where it comes last, as in the reference. */
    for (size_t i = 0; i < count; i++)
        *merge_of(vocab, merges[i].left, merges[i].right) = merges[i];
    return WEFT_OK;
}

/* ---- encoding ---- */

weft_status weft__ids_push(struct weft__ids *ids, int32_t id, weft_error *err)
{
    if (ids->len == ids->cap) {
        size_t cap = ids->cap < 64 ? 64 : ids->cap * 2;
        int32_t *data = realloc(ids->data, cap * sizeof *data);
        if (data == NULL) return weft__fail_oom(err, cap * sizeof *data, "token ids");
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->len++] = id;
    return WEFT_OK;
}

static weft_status push_all(struct weft__ids *out, const uint32_t *ids, size_t count,
                            weft_error *err)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        status = weft__ids_push(out, (int32_t)ids[i], err);
    return status;
}

/* Merges symbols in place by looking at all pairs each time; returns how many are left. */
static size_t merge_by_scan(const struct weft__vocab *vocab, uint32_t *ids, size_t count)
{
    const struct weft__merge *pairs[SCAN_SYMBOLS];
    for (size_t i = 0; i + 1 < count; i++) pairs[i] = merge_of(vocab, ids[i], ids[i + 1]);
    for (;;) {
        size_t best = 0;
        uint32_t rank = UINT32_MAX; /* that of an empty slot, too */
        for (size_t i = 0; i + 1 < count; i++) {
            if (pairs[i]->rank < rank) {
                rank = pairs[i]->rank;
                best = i;
            }
        }
        if (rank == UINT32_MAX) return count;
        ids[best] = pairs[best]->merged;
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count) {
            memmove(pairs + best, pairs + best + 1, (count - best - 1) * sizeof(void *));
            pairs[best] = merge_of(vocab, ids[best], ids[best + 1]);
        }
        if (best > 0) pairs[best - 1] = merge_of(vocab, ids[best - 1], ids[best]);
    }
}

struct symbol {
    uint32_t id;
    uint32_t previous, next; /* positions, UINT32_MAX beyond the ends */
};

struct candidate {
    uint32_t rank, position, left,
        right; /* of a merge at `position`, while those ids stand there */
};

struct heap {
    struct candidate *items;
    size_t count;
};

static bool before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct heap *heap, struct candidate item)
{
    size_t i = heap->count++;
    while (i > 0 && before(&item, &heap->items[(i - 1) / 2])) {
        heap->items[i] = heap->items[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->items[i] = item;
}

static struct candidate heap_pop(struct heap *heap)
{
    struct candidate top = heap->items[0], last = heap->items[--heap->count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap->count) break;
        if (child + 1 < heap->count && before(&heap->items[child + 1], &heap->items[child]))
            child++;
        if (!before(&heap->items[child], &last)) break;
        heap->items[i] = heap->items[child];
        i = child;
    }
    heap->items[i] = last;
    return top;
}

static void offer(const struct weft__vocab *vocab, const struct symbol *symbols, uint32_t left,
                  uint32_t right, struct heap *heap)
{
    const struct weft__merge *merge = merge_of(vocab, symbols[left].id, symbols[right].id);
    if (merge->left != UINT32_MAX)
        heap_push(heap, (struct candidate){merge->rank, left, merge->left, merge->right});
}

/* The same by a heap with lazy deletion, for pieces of any length. */
static size_t merge_by_heap(const struct weft__vocab *vocab, uint32_t *ids, size_t count,
                            struct symbol *symbols, struct candidate *items)
{
    struct heap heap = {items, 0};
    uint32_t last = (uint32_t)count - 1;
    for (uint32_t i = 0; i <= last; i++)
        symbols[i] = (struct symbol){ids[i], i - 1, i < last ? i + 1 : UINT32_MAX};
    for (uint32_t i = 0; i < last; i++) offer(vocab, symbols, i, i + 1, &heap);
    while (heap.count > 0) {
        struct candidate top = heap_pop(&heap);
        struct symbol *left = &symbols[top.position];
        /* A symbol that was merged away has the id UINT32_MAX: no pair holds it. */
        if (left->id != top.left || left->next == UINT32_MAX) continue;
        struct symbol *right = &symbols[left->next];
        if (right->id != top.right) continue;
        left->id = merge_of(vocab, left->id, right->id)->merged;
        right->id = UINT32_MAX;
        left->next = right->next;
        if (left->next != UINT32_MAX) {
            symbols[left->next].previous = top.position;
            offer(vocab, symbols, top.position, left->next, &heap);
        }
        if (left->previous != UINT32_MAX)
            offer(vocab, symbols, left->previous, top.position, &heap);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != UINT32_MAX; i = symbols[i].next) ids[kept++] = symbols[i].id;
    return kept;
}

/* Room for a long piece's ids, symbols and heap. The heap starts with fewer than n candidates, and
 * each of fewer than n merges takes one and offers at most two. */
static uint32_t *reserve(struct weft__bpe_scratch *scratch, size_t count, struct symbol **symbols,
                         struct candidate **items, weft_error *err)
{
    const size_t each = 2 * sizeof(struct candidate) + sizeof(struct symbol) + sizeof(uint32_t);
    size_t bytes = count * each;
    if (bytes > scratch->bytes) {
        free(scratch->memory);
        scratch->memory = malloc(bytes);
        scratch->bytes = scratch->memory != NULL ? bytes : 0;
    }
    if (scratch->memory == NULL) {
        (void)weft__fail_oom(err, bytes, "encoding a piece");
        return NULL;
    }
    *items = scratch->memory;
    *symbols = (struct symbol *)(void *)(*items + 2 * count);
    return (uint32_t *)(void *)(*symbols + count);
}

/* Bytes without a token vanish, as in the reference when there is no unknown token. */
static size_t byte_symbols(const struct weft__vocab *vocab, const char *piece, size_t len,
                           uint32_t *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = vocab->byte_ids[(unsigned char)piece[i]];
        if (id >= 0) ids[count++] = (uint32_t)id;
    }
    return count;
}

weft_status weft__vocab_encode(const struct weft__vocab *vocab, const char *piece, size_t len,
                               struct weft__bpe_scratch *scratch, struct weft__ids *out,
                               weft_error *err)
{
    if (vocab->ignore_merges && len <= WEFT__MAX_TOKEN) {
        int32_t id = find(vocab, piece, len, true);
        if (id >= 0) return weft__ids_push(out, id, err);
    }
    if (len <= SCAN_SYMBOLS) {
        uint32_t ids[SCAN_SYMBOLS];
        size_t count = byte_symbols(vocab, piece, len, ids);
        return push_all(out, ids, merge_by_scan(vocab, ids, count), err);
    }
    struct symbol *symbols;
    struct candidate *items;
    uint32_t *ids = reserve(scratch, len, &symbols, &items, err);
    if (ids == NULL) return WEFT_NO_MEMORY;
    size_t count = byte_symbols(vocab, piece, len, ids);
    if (count > 1) count = merge_by_heap(vocab, ids, count, symbols, items);
    return push_all(out, ids, count, err);
}
