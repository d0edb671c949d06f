/* What of the model is one rank's. */
#include "model.h"

struct weft__range weft__shard_range(int64_t n, int64_t unit, int rank, int size)
{
    int64_t units = weft__ceil_div(n, unit), share = units / size, more = units % size;
    int64_t begin = rank * share + weft__min(rank, more);
    int64_t end = begin + share + (rank < more ? 1 : 0);
    begin = weft__min(begin * unit, n);
    end = weft__min(end * unit, n);
    return (struct weft__range){.begin = begin, .count = end - begin};
}

struct weft__shard weft__shard_of(const struct weft__arch *arch, int64_t head_unit, int rank,
                                  int size)
{
    struct weft__shard shard = {.rank = rank, .size = size};
    shard.heads = weft__shard_range(arch->heads, head_unit, rank, size);
    shard.vocab = weft__shard_range(arch->vocab, 1, rank, size);
    if (shard.heads.count > 0) {
        int64_t group = arch->heads / arch->kv_heads;
        int64_t first = shard.heads.begin / group;
        int64_t last = (shard.heads.begin + shard.heads.count - 1) / group;
        shard.kv_heads = (struct weft__range){.begin = first, .count = last - first + 1};
    }
    return shard;
}
