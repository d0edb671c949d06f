/* -v: who holds what, one line a rank. */
#include <stdio.h>

#include "prog.h"

/* Columns of the first dense and the first sparse layer; the others are cut alike. */
struct columns {
    int64_t dense, shared, expert;
};

static struct columns columns_of(const struct weft__arch *arch, const struct weft__weights *weights)
{
    struct columns c = {0};
    for (int64_t i = arch->layers - 1; i >= 0; i--) {
        const struct weft__layer *layer = &weights->layer[i];
        if (layer->expert_gate == NULL) {
            c.dense = layer->mlp.down.cols;
        } else {
            c.shared = layer->mlp.down.cols;
            c.expert = layer->expert_down[0].cols;
        }
    }
    return c;
}

static void print_range(const char *what, struct weft__range range)
{
    if (range.count == 0)
        (void)fprintf(stderr, "no %s", what);
    else
        (void)fprintf(stderr, "%s %lld-%lld (%lld)", what, (long long)range.begin,
                      (long long)(range.begin + range.count - 1), (long long)range.count);
}

static void print_rank(const struct weft__arch *arch, const struct weft__shard *shard,
                       const struct weft__weights *weights)
{
    struct columns c = columns_of(arch, weights);
    (void)fprintf(stderr, "rank %-3d ", shard->rank);
    print_range("heads", shard->heads);
    if (!arch->mla) {
        (void)fprintf(stderr, ", ");
        print_range("KV heads", shard->kv_heads);
    }
    if (arch->intermediate > 0) (void)fprintf(stderr, ", dense columns %lld", (long long)c.dense);
    if (arch->experts > 0)
        (void)fprintf(stderr, ", %lld experts x %lld columns, shared %lld",
                      (long long)arch->experts, (long long)c.expert, (long long)c.shared);
    (void)fprintf(stderr, ", ");
    print_range("vocabulary rows", shard->vocab);
    (void)fprintf(stderr, ", %.1f MiB of weights\n", weft__mib(weights->mapped_bytes));
}

weft_status weft__print_plan(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                             const struct weft__plan *plan, weft_error *err)
{
    int64_t unit = weft__head_unit(checkpoint, arch);
    int size = plan->ranks.size;
    (void)fprintf(stderr, "plan     %d rank%s x %d thread%s, context %lld, KV pool %lld tokens\n",
                  size, size == 1 ? "" : "s", plan->ranks.threads,
                  plan->ranks.threads == 1 ? "" : "s", (long long)plan->context,
                  (long long)plan->ranks.limits.pages * WEFT__PAGE);
    for (int r = 0; r < size; r++) {
        struct weft__weights weights;
        struct weft__shard shard = weft__shard_of(arch, unit, r, size);
        WEFT__TRY(weft__weights_load(checkpoint, arch, &shard, NULL, &weights, err));
        print_rank(arch, &shard, &weights);
        weft__weights_free(&weights);
    }
    return WEFT_OK;
}
