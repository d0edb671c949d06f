/* The grammar as an automaton over bytes. A configuration is a place in an alternative and the
 * stack of places to return to; a state is all the configurations that a text may have led to.
 * States are made when a text first comes to them and kept, with what each byte leads to and which
 * tokens may come next, so a step of decoding mostly is one look-up. */
#include <stdlib.h>
#include <string.h>

#include "private.h"

enum {
    DEAD = -1,    /* no text goes on like this */
    UNKNOWN = -2, /* not tried yet */
    BUCKETS_MIN = 256,
};

struct frame { /* of a stack; frame 0 is the empty one */
    int32_t position, parent, depth;
};

struct state {
    size_t begin, count; /* configurations */
    bool accepts;        /* the text may end here */
    int32_t *next;       /* [256], or NULL */
    uint32_t *mask;      /* [words], or NULL */
};

/* Open addressing; entries are indices + 1, so that zero is free. */
struct table {
    uint32_t *slot;
    size_t slots, used;
};

struct weft__guide {
    struct weft__guide_vocab *vocab;
    struct weft__grammar grammar;
    int32_t root; /* the first symbol of its only alternative */
    size_t words;
    uint32_t *nothing; /* [words] zeros */
    uint32_t generation;
    size_t memory;      /* of all below */
    size_t compiled;    /* bytes of the grammar */
    size_t work_left;   /* configurations that may still be looked at, for this mask or token */
    weft_status failed; /* OK, NO_MEMORY, UNSUPPORTED: it takes too much work or memory */

    struct frame *frame;
    size_t frames, frames_cap;
    struct state *state;
    size_t states, states_cap;
    uint64_t *config; /* position << 32 | frame, ascending in a state */
    size_t configs, configs_cap;
    struct table frame_table, state_table;

    uint64_t *work; /* a state in the making: distinct configurations */
    size_t works, works_cap;
    struct table work_table;
    int32_t path[WEFT__GUIDE_TOKEN_MAX + 1]; /* states after each byte of a token */
};

/* ---- memory ---- */

/* The one place where the guide's memory and the sum over all guides of a vocabulary change. */
static void account(struct weft__guide *g, size_t more)
{
    g->memory += more;
    (void)atomic_fetch_add(&g->vocab->bytes, more);
    if (g->memory > WEFT__GUIDE_MEMORY_HARD && g->failed == WEFT_OK) g->failed = WEFT_UNSUPPORTED;
}

/* False once the work for one mask or token is more than a server's other requests can wait for. */
static bool spend(struct weft__guide *g, size_t work)
{
    if (g->failed == WEFT_OK && work > g->work_left) g->failed = WEFT_UNSUPPORTED;
    if (g->failed != WEFT_OK) return false;
    g->work_left -= work;
    return true;
}

static bool grow(struct weft__guide *g, void *array, size_t *cap, size_t count, size_t size)
{
    void **data = array;
    if (count < *cap) return true;
    size_t wanted = *cap > 0 ? *cap * 2 : 64;
    void *grown = realloc(*data, wanted * size);
    if (grown == NULL) {
        g->failed = WEFT_NO_MEMORY;
        return false;
    }
    account(g, (wanted - *cap) * size);
    *data = grown;
    *cap = wanted;
    return true;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* ---- tables ---- */

static uint64_t frame_hash(const struct weft__guide *g, size_t i)
{
    const struct frame *f = &g->frame[i];
    return mix((uint64_t)(uint32_t)f->position << 32 | (uint32_t)f->parent);
}

static uint64_t work_hash(const struct weft__guide *g, size_t i) { return mix(g->work[i]); }

static uint64_t state_hash(const struct weft__guide *g, size_t i)
{
    const struct state *s = &g->state[i];
    return weft__hash(g->config + s->begin, s->count * sizeof(uint64_t), s->accepts);
}

/* Makes room for one more entry; the present ones are hashed again. */
static bool table_grow(struct weft__guide *g, struct table *t,
                       uint64_t (*hash)(const struct weft__guide *, size_t))
{
    if (t->used * 2 < t->slots) return true;
    size_t slots = t->slots > 0 ? t->slots * 2 : BUCKETS_MIN;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (slot == NULL) {
        g->failed = WEFT_NO_MEMORY;
        return false;
    }
    for (size_t i = 0; i < t->slots; i++) {
        if (t->slot[i] == 0) continue;
        size_t at = hash(g, t->slot[i] - 1) & (slots - 1);
        while (slot[at] != 0) at = (at + 1) & (slots - 1);
        slot[at] = t->slot[i];
    }
    account(g, (slots - t->slots) * sizeof *slot);
    free(t->slot);
    t->slot = slot;
    t->slots = slots;
    return true;
}

static void table_put(struct table *t, size_t at, size_t index)
{
    t->slot[at] = (uint32_t)index + 1;
    t->used++;
}

/* ---- stacks ---- */

static int32_t push_frame(struct weft__guide *g, int32_t position, int32_t parent)
{
    if (!table_grow(g, &g->frame_table, frame_hash) ||
        !grow(g, &g->frame, &g->frames_cap, g->frames, sizeof *g->frame))
        return 0;
    g->frame[g->frames] = (struct frame){position, parent, g->frame[parent].depth + 1};
    struct table *t = &g->frame_table;
    size_t at = frame_hash(g, g->frames) & (t->slots - 1);
    for (; t->slot[at] != 0; at = (at + 1) & (t->slots - 1)) {
        const struct frame *f = &g->frame[t->slot[at] - 1];
        if (f->position == position && f->parent == parent) return (int32_t)t->slot[at] - 1;
    }
    table_put(t, at, g->frames);
    return (int32_t)g->frames++;
}

/* ---- states ---- */

static void add_work(struct weft__guide *g, int32_t position, int32_t frame)
{
    uint64_t config = (uint64_t)(uint32_t)position << 32 | (uint32_t)frame;
    struct table *t = &g->work_table;
    if (!table_grow(g, t, work_hash) ||
        !grow(g, &g->work, &g->works_cap, g->works, sizeof *g->work))
        return;
    size_t at = mix(config) & (t->slots - 1);
    for (; t->slot[at] != 0; at = (at + 1) & (t->slots - 1))
        if (g->work[t->slot[at] - 1] == config) return;
    g->work[g->works] = config;
    table_put(t, at, g->works++);
}

/* Entries stand in runs behind their places, so clearing each run from there on clears all. */
static void clear_work(struct weft__guide *g)
{
    struct table *t = &g->work_table;
    for (size_t i = 0; i < g->works; i++)
        for (size_t at = mix(g->work[i]) & (t->slots - 1); t->slot[at] != 0;
             at = (at + 1) & (t->slots - 1))
            t->slot[at] = 0;
    g->works = t->used = 0;
}

/* Follows rules and ends of alternatives until only bytes are ahead. True: the text may end. */
static bool close_work(struct weft__guide *g)
{
    bool accepts = false;
    for (size_t i = 0; i < g->works && spend(g, 1); i++) {
        int32_t position = (int32_t)(g->work[i] >> 32), frame = (int32_t)(uint32_t)g->work[i];
        int32_t symbol = g->grammar.symbol[position];
        if (symbol > 0) continue;
        if (symbol == 0) {
            if (frame == 0)
                accepts = true;
            else
                add_work(g, g->frame[frame].position, g->frame[frame].parent);
            continue;
        }
        bool last = g->grammar.symbol[position + 1] == 0;
        int32_t inner = last ? frame : push_frame(g, position + 1, frame);
        int32_t alternative = g->grammar.rule[-symbol - 1].first;
        for (; alternative >= 0 && spend(g, 1);
             alternative = g->grammar.alternative[alternative].next) {
            const struct weft__alternative *a = &g->grammar.alternative[alternative];
            if (g->frame[inner].depth + a->height <= WEFT__GUIDE_DEPTH_MAX)
                add_work(g, a->begin, inner);
        }
    }
    return accepts;
}

static int compare_configs(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool same_state(const struct weft__guide *g, const struct state *a, const struct state *b)
{
    return a->accepts == b->accepts && a->count == b->count &&
           memcmp(g->config + a->begin, g->config + b->begin, a->count * sizeof(uint64_t)) == 0;
}

/* What the work's configurations lead to, behind all kept ones; the work is empty then. */
static struct state gather(struct weft__guide *g)
{
    struct state new = {.begin = g->configs, .accepts = close_work(g)};
    for (size_t i = 0; i < g->works; i++) {
        if (g->grammar.symbol[g->work[i] >> 32] <= 0) continue;
        if (!grow(g, &g->config, &g->configs_cap, new.begin + new.count, sizeof *g->config)) break;
        g->config[new.begin + new.count++] = g->work[i];
    }
    clear_work(g);
    return new;
}

/* The number of a gathered state, which is kept if it is not yet. */
static int32_t intern(struct weft__guide *g, struct state new)
{
    if (g->failed != WEFT_OK || (new.count == 0 && !new.accepts)) return DEAD;
    if (new.count > 0) qsort(g->config + new.begin, new.count, sizeof *g->config, compare_configs);
    if (!grow(g, &g->state, &g->states_cap, g->states, sizeof *g->state) ||
        !table_grow(g, &g->state_table, state_hash))
        return DEAD;
    g->state[g->states] = new;
    struct table *t = &g->state_table;
    size_t at = state_hash(g, g->states) & (t->slots - 1);
    for (; t->slot[at] != 0; at = (at + 1) & (t->slots - 1))
        if (same_state(g, &g->state[t->slot[at] - 1], &new)) return (int32_t)t->slot[at] - 1;
    g->configs = new.begin + new.count;
    table_put(t, at, g->states);
    return (int32_t)g->states++;
}

static bool has(const struct weft__byte_set *set, unsigned char byte)
{
    return (set->bit[byte / 64] >> (byte % 64) & 1) != 0;
}

/* Adds where a state's configurations are after a byte to the work. */
static void take_byte(struct weft__guide *g, const struct state *s, unsigned char byte)
{
    if (!spend(g, s->count / 8 + 1)) return; /* that much faster than to follow a rule */
    for (size_t i = 0; i < s->count; i++) {
        uint64_t config = g->config[s->begin + i];
        int32_t position = (int32_t)(config >> 32);
        if (has(&g->grammar.set[g->grammar.symbol[position] - 1], byte))
            add_work(g, position + 1, (int32_t)(uint32_t)config);
    }
}

/* What each byte leads to: nothing yet, but for those that no configuration takes. */
static bool make_next(struct weft__guide *g, struct state *s)
{
    int32_t *next = malloc(256 * sizeof *next);
    struct weft__byte_set taken = {{0}};
    if (next == NULL) {
        g->failed = WEFT_NO_MEMORY;
        return false;
    }
    for (size_t i = 0; i < s->count; i++) {
        int32_t symbol = g->grammar.symbol[g->config[s->begin + i] >> 32];
        for (int w = 0; w < 4; w++) taken.bit[w] |= g->grammar.set[symbol - 1].bit[w];
    }
    for (int b = 0; b < 256; b++) next[b] = has(&taken, (unsigned char)b) ? UNKNOWN : DEAD;
    s->next = next;
    account(g, 256 * sizeof *next);
    return true;
}

static int32_t find_next(struct weft__guide *g, int32_t from, unsigned char byte)
{
    if (g->state[from].next == NULL && !make_next(g, &g->state[from])) return DEAD;
    if (g->state[from].next[byte] != UNKNOWN) return g->state[from].next[byte];
    const struct state s = g->state[from];
    take_byte(g, &s, byte);
    int32_t next = intern(g, gather(g));
    if (g->failed != WEFT_OK) return DEAD;
    g->state[from].next[byte] = next;
    return next;
}

static inline int32_t step(struct weft__guide *g, int32_t from, unsigned char byte)
{
    const int32_t *next = g->state[from].next;
    if (next != NULL && next[byte] != UNKNOWN) return next[byte];
    return find_next(g, from, byte);
}

/* ---- masks ---- */

/* Tokens in the order of their bytes: what two neighbours share is walked once, and those that
 * begin with bytes known to lead nowhere are passed over. */
static void fill_mask(struct weft__guide *g, int32_t from, uint32_t *mask)
{
    const struct weft__guide_vocab *v = g->vocab;
    size_t alive = 0; /* bytes of the last token looked at that led somewhere */
    g->path[0] = from;
    for (size_t i = 0; i < v->count && g->failed == WEFT_OK; i++) {
        size_t at = v->common[i];
        if (at > alive) continue;
        struct weft__token_text text = weft__token_bytes(v->tokenizer, v->id[i]);
        for (; at < text.len; at++) {
            int32_t next = step(g, g->path[at], (unsigned char)text.data[at]);
            if (next == DEAD) break;
            g->path[at + 1] = next;
        }
        alive = at;
        if (at == text.len) mask[v->id[i] / 32] |= 1U << (v->id[i] % 32);
    }
    for (int32_t i = 0; i < v->eos_count && g->state[from].accepts; i++)
        mask[v->eos[i] / 32] |= 1U << (v->eos[i] % 32);
}

/* NULL: the guide has failed. */
static const uint32_t *mask_of(struct weft__guide *g, int32_t state)
{
    if (g->state[state].mask != NULL) return g->state[state].mask;
    uint32_t *mask = calloc(g->words, sizeof *mask);
    if (mask == NULL) {
        g->failed = WEFT_NO_MEMORY;
        return NULL;
    }
    fill_mask(g, state, mask);
    if (g->failed != WEFT_OK) {
        free(mask);
        return NULL;
    }
    account(g, g->words * sizeof *mask);
    g->state[state].mask = mask;
    return mask;
}

/* ---- life ---- */

static void drop_states(struct weft__guide *g)
{
    for (size_t i = 0; i < g->states; i++) {
        free(g->state[i].next);
        free(g->state[i].mask);
    }
    free(g->frame);
    free(g->state);
    free(g->config);
    free(g->work);
    free(g->frame_table.slot);
    free(g->state_table.slot);
    free(g->work_table.slot);
    g->frame = NULL, g->state = NULL, g->config = NULL, g->work = NULL;
    g->frames = g->frames_cap = g->states = g->states_cap = g->configs = g->configs_cap = 0;
    g->works = g->works_cap = 0;
    g->frame_table = g->state_table = g->work_table = (struct table){0};
    (void)atomic_fetch_sub(&g->vocab->bytes, g->memory);
    g->memory = 0;
}

/* State 0 is the beginning of every text. */
static void begin_states(struct weft__guide *g)
{
    g->generation++;
    if (!grow(g, &g->frame, &g->frames_cap, 0, sizeof *g->frame)) return;
    g->frame[g->frames++] = (struct frame){0};
    add_work(g, g->root, 0);
    (void)intern(g, gather(g));
}

/* Before anything that makes states: they have room, and the work may begin. `len`: bytes of text
 * that may have to be read again. */
static void make_room(struct weft__guide *g, size_t len)
{
    bool crowded = atomic_load(&g->vocab->bytes) > WEFT__GUIDES_MEMORY_MAX;
    g->failed = WEFT_OK;
    g->work_left = WEFT__GUIDE_WORK_MAX + len * WEFT__GUIDE_WORK_BYTE;
    if (g->states > 0 &&
        g->memory <= (crowded ? WEFT__GUIDE_MEMORY_CROWDED : WEFT__GUIDE_MEMORY_MAX))
        return;
    drop_states(g);
    begin_states(g);
}

static weft_status fail(weft_status status, weft_error *err)
{
    if (status == WEFT_NO_MEMORY) return weft__fail_oom(err, 1 << 20, "the states of a schema");
    return weft__fail(err, WEFT_UNSUPPORTED,
                      "the schema is too complex: too many of its alternatives, values of enum or "
                      "lengths have to be followed at once");
}

weft_status weft__guide_open(struct weft__guide_vocab *vocab, const struct weft__guide_spec *spec,
                             struct weft__guide **out, weft_error *err)
{
    struct weft__guide *g = calloc(1, sizeof *g);
    int32_t root;
    if (g == NULL) return weft__fail_oom(err, sizeof *g, "a guide");
    g->vocab = vocab;
    g->words = (size_t)weft__ceil_div(vocab->vocab, 32);
    weft_status status = weft__schema_compile(spec, &g->grammar, &root, err);
    g->compiled = weft__grammar_bytes(&g->grammar);
    (void)atomic_fetch_add(&vocab->bytes, g->compiled);
    if (status != WEFT_OK) goto close;
    g->root = g->grammar.alternative[g->grammar.rule[-root - 1].first].begin;
    g->nothing = calloc(g->words, sizeof *g->nothing);
    if (g->nothing == NULL) {
        status = weft__fail_oom(err, g->words * sizeof *g->nothing, "a guide");
        goto close;
    }
    make_room(g, 0);
    if (g->failed != WEFT_OK) {
        status = fail(g->failed, err);
        goto close;
    }
    *out = g;
    return WEFT_OK;
close:
    weft__guide_close(g);
    return status;
}

void weft__guide_close(struct weft__guide *guide)
{
    if (guide == NULL) return;
    drop_states(guide);
    (void)atomic_fetch_sub(&guide->vocab->bytes, guide->compiled);
    weft__grammar_free(&guide->grammar);
    free(guide->nothing);
    free(guide);
}

/* ---- texts ---- */

void weft__guided_init(struct weft__guided *text, struct weft__guide *guide)
{
    *text = (struct weft__guided){.guide = guide}; /* generation 0: state unknown */
    weft__buf_init(&text->text, SIZE_MAX);
}

void weft__guided_free(struct weft__guided *text) { weft__buf_free(&text->text); }

/* The state after the text, whose states on the way are not kept. */
static int32_t replay(struct weft__guide *g, const struct weft__buf *text)
{
    struct state s = g->state[0];
    for (size_t i = 0; i < text->len; i++) {
        take_byte(g, &s, (unsigned char)text->data[i]);
        s = gather(g);
    }
    return text->len > 0 ? intern(g, s) : 0;
}

/* Sees to it that the guide's states have room and the text's state is one of them. */
static bool settle(struct weft__guided *text)
{
    struct weft__guide *g = text->guide;
    if (text->text.failed) text->failed = WEFT_NO_MEMORY;
    if (text->failed != WEFT_OK) return false;
    make_room(g, text->text.len);
    if (g->failed == WEFT_OK && text->generation != g->generation) {
        text->generation = g->generation;
        text->state = replay(g, &text->text);
    }
    text->failed = g->failed;
    return text->failed == WEFT_OK && text->state >= 0;
}

const uint32_t *weft__guided_mask(struct weft__guided *text)
{
    const uint32_t *mask = settle(text) ? mask_of(text->guide, text->state) : NULL;
    if (text->failed == WEFT_OK) text->failed = text->guide->failed;
    return mask != NULL ? mask : text->guide->nothing;
}

bool weft__guided_push(struct weft__guided *text, int32_t token)
{
    struct weft__guide *g = text->guide;
    if (weft__guide_is_eos(g->vocab, token)) return true;
    struct weft__token_text bytes = weft__token_bytes(g->vocab->tokenizer, token);
    if (!settle(text)) return false;
    weft__buf_append(&text->text, bytes.data, bytes.len);
    for (size_t i = 0; i < bytes.len && text->state >= 0; i++)
        text->state = step(g, text->state, (unsigned char)bytes.data[i]);
    text->failed = g->failed;
    return text->state >= 0 && g->state[text->state].accepts && g->state[text->state].count == 0;
}

weft_status weft__guided_check(const struct weft__guided *text, weft_error *err)
{
    return text->failed == WEFT_OK ? WEFT_OK : fail(text->failed, err);
}
