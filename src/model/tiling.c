/* What attention and dense feed-forward layers give, and its sum over ranks: all rows at once, or
 * in tiles, each summed while the next is computed. Both give the same bits; which is faster
 * depends on the machine, on how bytes travel and on how evenly ranks run. So the first prompts
 * that are long enough show it: from pass to pass each layer changes between the two, and the
 * median of the ratios decides. Ranks see the same passes, so they take the same turns; rank 0's
 * times decide for all. */
#include <stdlib.h>

#include "rank.h"

enum { TILE = 96 };              /* rows; the CPU's kernels take 48 at a time */
static const float GAIN = 0.97f; /* what is not clearly faster is not worth a change */

static bool tried(const struct weft__model *m, int64_t rows)
{
    return m->limits.tile_rows == 0 && m->shard.size > 1 && rows > TILE;
}

/* Whether the layer's turn in this pass is tiles. */
static bool turn(const struct weft__model *m, int64_t layer)
{
    return (layer + m->trials) % 2 != 0;
}

int64_t weft__tiling_choose(const struct weft__model *m, enum weft__tiling_kind kind, int64_t layer,
                            int64_t rows)
{
    if (m->limits.tile_rows > 0) return m->limits.tile_rows;
    float median = m->tiling[kind].median;
    if (tried(m, rows) && (median == 0 ? turn(m, layer) : median < GAIN)) return TILE;
    return rows > WEFT__BLOCK_ROWS ? WEFT__BLOCK_ROWS : 0;
}

void weft__tiling_note(struct weft__model *m, enum weft__tiling_kind kind, int64_t layer,
                       int64_t rows, uint64_t ns)
{
    struct weft__tiling *tiling = &m->tiling[kind];
    if (!tried(m, rows) || tiling->median != 0) return;
    float now = (float)ns / (float)rows, before = tiling->last[layer];
    /* The first pass may have waited for the weights to be read. */
    if (m->trials > 1 && tiling->samples < WEFT__TILING_SAMPLES)
        tiling->ratio[tiling->samples++] = turn(m, layer) ? now / before : before / now;
    tiling->last[layer] = now;
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

weft_status weft__tiling_decide(struct weft__model *m, int64_t rows, weft_error *err)
{
    if (!tried(m, rows)) return WEFT_OK;
    m->trials++;
    for (int kind = 0; kind < WEFT__TILING_KINDS; kind++) {
        struct weft__tiling *t = &m->tiling[kind];
        if (t->samples < WEFT__TILING_SAMPLES || t->median != 0) continue;
        qsort(t->ratio, WEFT__TILING_SAMPLES, sizeof *t->ratio, ascending);
        t->median = t->ratio[WEFT__TILING_SAMPLES / 2];
        const weft_broadcast broadcast = {.bytes = sizeof t->median, .data = &t->median};
        WEFT__TRY(weft_comm_broadcast(m->comm, &broadcast, err));
    }
    return WEFT_OK;
}

struct weft__tiling_choice weft__model_tiling(const struct weft__model *m,
                                              enum weft__tiling_kind kind)
{
    float ratio = m->tiling[kind].median;
    return (struct weft__tiling_choice){ratio, ratio != 0 && ratio < GAIN};
}
