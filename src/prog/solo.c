/* One sequence on ranks of its own: no queue, no engine; its caller is rank 0 and waits. */
#include "prog.h"

static weft_status make_batch_space(struct weft__solo *solo, weft_error *err)
{
    struct weft__arena *arena = &solo->arena;
    size_t chunk = (size_t)solo->plan.ranks.limits.tokens;
    int64_t pages = weft__ceil_div(solo->plan.context, WEFT__PAGE);
    solo->token = weft__arena_array(arena, chunk, sizeof *solo->token);
    solo->position = weft__arena_array(arena, chunk, sizeof *solo->position);
    solo->output = weft__arena_array(arena, chunk, sizeof *solo->output);
    solo->slot = weft__arena_array(arena, chunk, sizeof *solo->slot);
    solo->pages = weft__arena_array(arena, (size_t)pages, sizeof *solo->pages);
    if (solo->token == NULL || solo->position == NULL || solo->output == NULL ||
        solo->slot == NULL || solo->pages == NULL)
        return weft__fail_oom(err, chunk, "a batch");
    /* Pages in descending order: a page table that is not looked at would show. */
    for (int64_t i = 0; i < pages; i++) solo->pages[i] = (int32_t)(pages - 1 - i);
    return WEFT_OK;
}

weft_status weft__solo_open(const char *dir, struct weft__solo *solo, weft_error *err)
{
    *solo = (struct weft__solo){0};
    weft_status status = weft__arch_load(dir, &solo->arena, &solo->arch, err);
    if (status == WEFT_OK) status = weft__checkpoint_open(dir, &solo->checkpoint, err);
    if (status != WEFT_OK) weft__solo_close(solo);
    return status;
}

weft_status weft__solo_start(struct weft__solo *solo, const weft_engine_options *options,
                             int64_t tokens, bool verbose, weft_error *err)
{
    weft_engine_options sized = *options;
    sized.max_running = 1;
    if (sized.context == 0) sized.context = weft__min(tokens, solo->arch.context);
    WEFT__TRY(weft__plan_make(&solo->arch, solo->checkpoint, &sized, &solo->plan, err));
    if (verbose) WEFT__TRY(weft__print_plan(&solo->arch, solo->checkpoint, &solo->plan, err));
    WEFT__TRY(
        weft__ranks_open(&solo->arch, solo->checkpoint, &solo->plan.ranks, &solo->ranks, err));
    weft__warn_unread(solo->checkpoint, &solo->arch);
    return make_batch_space(solo, err);
}

void weft__solo_close(struct weft__solo *solo)
{
    if (!weft__ranks_close(solo->ranks)) return; /* a thread that hangs may still read the rest */
    weft__checkpoint_close(solo->checkpoint);
    weft__arena_free(&solo->arena);
    *solo = (struct weft__solo){0};
}

weft_status weft__solo_step(struct weft__solo *solo, struct weft__solo_rows rows,
                            const float **logits, weft_error *err)
{
    const struct weft__seq seq = {.count = (int32_t)rows.count,
                                  .kv_len = (int32_t)(rows.first + rows.count),
                                  .generated = rows.generated,
                                  .pages = solo->pages};
    int32_t outputs = 0;
    for (int64_t i = 0; i < rows.count; i++) {
        int64_t position = rows.first + i;
        solo->position[i] = (int32_t)position;
        solo->slot[i] =
            (int64_t)solo->pages[position / WEFT__PAGE] * WEFT__PAGE + position % WEFT__PAGE;
        if (position >= rows.wanted) solo->output[outputs++] = (int32_t)i;
    }
    const struct weft__batch batch = {.tokens = (int32_t)rows.count,
                                      .seqs = 1,
                                      .outputs = outputs,
                                      .token = solo->token,
                                      .position = solo->position,
                                      .slot = solo->slot,
                                      .seq = &seq,
                                      .output = solo->output};
    return weft__ranks_step(solo->ranks, &batch, logits, err);
}
